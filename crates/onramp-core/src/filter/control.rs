//! The controls of actions, such as `drop` or `goto chain 3`. A control says what happens next to a
//! packet on which the action has run.

use super::reader::Reader;
use crate::base::ConfigError;
use crate::base::show::Out;

/// What is to be done with a packet after an action has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// Ask the next filter: this filter has not matched after all (`continue`).
    Next,
    /// This filter decides: the packet gets the filter's class (`ok`, `pass`).
    Ok,
    /// Begin the classification again at the first filter (`reclassify`).
    Again,
    /// Drop the packet (`drop`, `shot`).
    Drop,
    /// Run the next action (`pipe`).
    Pipe,
    /// Go on at the first filter of the chain with this number (`goto chain`).
    Goto(u32),
    /// Run the action at this position in the filter's list of actions next (`jump`). The first
    /// action has position 0.
    Jump(u32),
}

impl Control {
    /// Reads a control, such as `drop` or `goto chain 3`. Returns `None` if the next word does not
    /// begin a control.
    pub(super) fn read(words: &mut Reader<'_>) -> Result<Option<Self>, ConfigError> {
        let Some(word) = words.peek() else { return Ok(None) };
        let control = match word {
            "jump" => {
                words.next();
                return words.number("jump", 0xffff).map(Self::Jump).map(Some);
            }
            "goto" => {
                words.next();
                if !words.take("chain") {
                    return Err(words.wrong(
                        "goto",
                        words.peek().unwrap_or_default(),
                        "expected chain",
                    ));
                }
                return words.number("goto chain", 0x0fff_ffff).map(Self::Goto).map(Some);
            }
            word => Self::of(word),
        };
        if control.is_some() {
            words.next();
        }
        Ok(control)
    }

    /// Returns the control that `word` names, such as `drop`. Returns `None` if `word` is no
    /// control or needs a number after it.
    pub(super) fn of(word: &str) -> Option<Self> {
        Some(match word {
            "continue" => Self::Next,
            "ok" | "pass" => Self::Ok,
            "reclassify" => Self::Again,
            "drop" | "shot" => Self::Drop,
            "pipe" => Self::Pipe,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Next => "continue",
            Self::Ok => "pass",
            Self::Again => "reclassify",
            Self::Drop => "drop",
            Self::Pipe => "pipe",
            Self::Goto(_) => "goto",
            Self::Jump(_) => "jump",
        }
    }

    /// Shows this control, with the text `before` in front of it.
    pub(super) fn show(self, out: &mut Out, before: &str) {
        out.open(Some("control_action"));
        out.string("type", self.name(), format_args!("{before}{}", self.name()));
        match self {
            Self::Goto(chain) => out.uint("chain", chain.into(), format_args!(" chain {chain}")),
            Self::Jump(to) => out.uint("jump", to.into(), format_args!(" {to}")),
            _ => {}
        }
        out.close();
    }
}
