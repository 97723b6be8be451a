//! Reads the part of a `tc filter` line before the kind of the filter: at which qdisc or class the
//! filter is, and which filter is meant.
//!
//! Source: behaviour of iproute2 6.1 (`tc filter`), compared word by word.

use super::protocol;
use super::reader::{Reader, classid, count, is};
use crate::base::{ConfigError, Handle};

/// Special parents that have names instead of numbers, with the numbers that `tc` gives them.
const ROOT: Handle = Handle::new(0xffff, 0xffff);
const INGRESS: Handle = Handle::new(0xffff, 0xfff2);
const EGRESS: Handle = Handle::new(0xffff, 0xfff3);

/// The part of a `tc filter` line before the kind of the filter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Head {
    /// The device, if this part of the line names it.
    pub(crate) device: Option<String>,
    /// The qdisc or class to which the filter is attached; `None` means the root qdisc. The word
    /// `root` itself names the parent of the root qdisc, where Linux has no filters.
    pub(crate) parent: Option<Handle>,
    pub(super) chain: Option<u32>,
    pub(super) pref: Option<u16>,
    pub(super) protocol: Option<u16>,
    pub(super) handle: Option<String>,
}

/// An option that may stand before the kind of the filter in a `tc filter` line.
enum Word {
    Device,
    Parent(Handle),
    ParentId,
    Pref,
    Protocol,
    Chain,
    Handle,
    Estimator,
}

impl Word {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "dev" => Self::Device,
            "root" => Self::Parent(ROOT),
            "ingress" => Self::Parent(INGRESS),
            "egress" => Self::Parent(EGRESS),
            "parent" => Self::ParentId,
            "handle" => Self::Handle,
            "prio" => Self::Pref,
            word if is(word, "preference") || is(word, "priority") => Self::Pref,
            word if is(word, "protocol") => Self::Protocol,
            "chain" => Self::Chain,
            word if is(word, "estimator") => Self::Estimator,
            _ => return None,
        })
    }
}

/// Returns an error if an option was given twice, as `tc` does.
fn once<T>(there: &Option<T>, key: &str, words: &Reader<'_>) -> Result<(), ConfigError> {
    match there {
        None => Ok(()),
        Some(_) => {
            let second = words.peek().unwrap_or_default();
            Err(words.wrong(key, second, "given twice").argument())
        }
    }
}

impl Head {
    /// Reads the options before the kind of a filter.
    pub(crate) fn read(words: &mut Reader<'_>) -> Result<Self, ConfigError> {
        let mut head = Self::default();
        while let Some(word) = words.peek() {
            let Some(what) = Word::of(word) else { break };
            words.next();
            head.read_word(&what, words).map_err(ConfigError::argument)?;
        }
        Ok(head)
    }

    /// Reads the options of `tc filter show`, after which no kind follows.
    pub(crate) fn read_query(words: &mut Reader<'_>) -> Result<Self, ConfigError> {
        let head = Self::read(words)?;
        match words.peek() {
            None => Ok(head),
            Some(word) => {
                let why = "expected dev, parent, root, pref, protocol, chain, handle";
                Err(words.wrong("", word, why).argument())
            }
        }
    }

    fn read_word(&mut self, what: &Word, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        match what {
            Word::Device => {
                once(&self.device, "dev", words)?;
                self.device = Some(read_name(words, "dev", "the name of a device")?);
            }
            Word::Parent(parent) => {
                once(&self.parent, "parent", words)?;
                self.parent = Some(*parent);
            }
            Word::ParentId => {
                once(&self.parent, "parent", words)?;
                let expected = "a handle such as 1: or 1:20, hexadecimal, 1 to ffff";
                self.parent = Some(words.value("parent", expected, classid)?);
            }
            Word::Pref => {
                once(&self.pref, "priority", words)?;
                let read = |word: &str| u16::try_from(count(word, 0xffff)?).ok();
                self.pref = Some(words.value("pref", "a whole number, 0 to 65535", read)?);
            }
            Word::Protocol => {
                once(&self.protocol, "protocol", words)?;
                let read = words.value("protocol", protocol::EXPECTED, protocol::read)?;
                self.protocol = Some(read);
            }
            Word::Chain => {
                once(&self.chain, "chain", words)?;
                self.chain = Some(words.number("chain", u32::MAX)?);
            }
            Word::Handle => {
                once(&self.handle, "handle", words)?;
                self.handle = Some(read_name(words, "handle", "a filter's handle")?);
            }
            Word::Estimator => {
                let why = "estimators are not supported; use the filter's counters";
                return Err(words.wrong("estimator", "", why));
            }
        }
        Ok(())
    }

    pub(super) fn chain(&self) -> u32 {
        self.chain.unwrap_or(0)
    }

    /// Returns the preference of the filter, or `None` if the line gives none or zero, so that a
    /// preference must be assigned.
    pub(super) fn pref(&self) -> Option<u16> {
        self.pref.filter(|pref| *pref > 0)
    }
}

fn read_name(words: &mut Reader<'_>, key: &str, expected: &str) -> Result<String, ConfigError> {
    words.value(key, expected, |word| (!word.is_empty()).then(|| word.to_owned()))
}
