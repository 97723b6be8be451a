//! Describes options for a reference page: how an option is written, and its default.

use std::fmt::Write as _;

use super::{Default, Param, Unit, Value};
use crate::base::show::Style;

impl Param {
    /// Returns how users write the option, such as `limit PACKETS`.
    #[must_use]
    pub fn usage(&self) -> String {
        match self.unit {
            Unit::Words(names) => names.join(" | "),
            Unit::Choice(names) => format!("{} {}", self.key, names.join(" | ")),
            Unit::List(len) => format!("{} N1 .. N{len}", self.key),
            Unit::Many(_) => format!("{} N1 N2 ..", self.key),
            Unit::Ranges(_) => format!("{} COUNT@FIRST ..", self.key),
            Unit::Row(..) | Unit::Forms(_) => format!("{} {}", self.key, self.expected()),
            Unit::Named(list) => {
                let names = list.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" | ");
                format!("{} TIME | {names}", self.key)
            }
            Unit::RateOr(zero) => format!("{} RATE | {zero}", self.key),
            unit => format!("{} {}", self.key, unit.metavariable()),
        }
    }

    /// Returns the option's default value as text, without the option's name, or `None` if the
    /// option must be given.
    #[must_use]
    pub fn without(&self) -> Option<String> {
        let mut text = String::new();
        match (self.default, self.unit) {
            (Default::Needed, _) => return None,
            (Default::Off, Unit::Words(names)) if names.len() > 1 => return Some(names[0].into()),
            (Default::Off, Unit::Choice(names)) => return Some(names[0].into()),
            (Default::Off, _) => return Some("off".into()),
            (Default::Mtus(n), _) => return Some(format!("{n} times the device's largest packet")),
            (Default::QueueLen, _) => return Some("the device's txqueuelen".into()),
            (Default::QueueBytes, _) => {
                return Some("txqueuelen times the device's largest packet".into());
            }
            (Default::Number(n), _) => {
                self.write_shown(&mut text, &Value::Number(n), Style::default())
            }
            (Default::List(list), _) => {
                self.write_shown(&mut text, &Value::List(list.to_vec()), Style::default())
            }
        }
        let text = text.trim_start();
        let text = match self.unit {
            Unit::Words(_) => text,
            _ => text.strip_prefix(self.key).unwrap_or(text).trim_start(),
        };
        Some(text.to_owned())
    }

    /// Returns the words that may follow the option's name, such as the choices. The result is
    /// empty if only a number or nothing follows the name.
    #[must_use]
    pub fn words_behind(&self) -> Vec<&'static str> {
        match self.unit {
            Unit::Choice(names) => names.to_vec(),
            Unit::Forms(forms) => {
                forms.iter().map(|form| form.word).filter(|word| !word.is_empty()).collect()
            }
            Unit::Curve => vec!["m1", "m2", "d", "umax", "dmax", "rate"],
            _ => Vec::new(),
        }
    }

    /// Whether a value follows the option's name.
    #[must_use]
    pub fn takes_value(&self) -> bool {
        !matches!(self.unit, Unit::Words(_))
    }

    /// Returns one line of help text for users: the option, what it does, and its default.
    pub(crate) fn help(&self) -> String {
        let default = match self.without() {
            Some(default) => format!("default: {default}"),
            None => "needed".into(),
        };
        let mut line = format!("{:28} ", self.usage());
        let _ = write!(line, "{} ({default})", self.help);
        line
    }
}
