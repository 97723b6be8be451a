//! Reads the part of a `tc` command line before the options of a kind.
//!
//! Source: behaviour of iproute2 6.1 (`tc(8)`), compared word by word.
//! Differs: a qdisc takes no `estimator` and no `stab`, and does not share blocks of filters.

mod build;

use crate::base::{ConfigError, Handle};
use crate::tc::spec::Words;

pub use self::build::{Class, Command, Filter, Operand, Qdisc};

/// The number with which the kernel names the parent of the root qdisc: `TC_H_ROOT`.
pub const ROOT: u32 = 0xFFFF_FFFF;
/// The number with which the kernel names the parent of an `ingress` or `clsact`: `TC_H_INGRESS`,
/// which equals `TC_H_CLSACT`.
pub const INGRESS: u32 = 0xFFFF_FFF1;
/// The major number that an `ingress` or `clsact` has.
pub(crate) const INGRESS_MAJOR: u16 = 0xFFFF;

/// What a command does with the qdisc, class or filter that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Replace,
    Change,
    Link,
    Delete,
}

impl Verb {
    /// Whether the command creates an object that does not exist (`NLM_F_CREATE`).
    pub(crate) fn creates(self) -> bool {
        matches!(self, Self::Add | Self::Replace)
    }

    /// Whether the command fails if the object exists (`NLM_F_EXCL`).
    pub(crate) fn excludes(self) -> bool {
        self == Self::Add
    }

    /// Whether the command may replace an existing object (`NLM_F_REPLACE`).
    pub(crate) fn replaces(self) -> bool {
        matches!(self, Self::Replace | Self::Link)
    }
}

/// Whether `word` is `name` or a beginning of `name`, because the words of a command may be
/// shortened.
#[must_use]
pub fn is_short_for(word: &str, name: &str) -> bool {
    !word.is_empty() && name.starts_with(word)
}

/// Returns the first of `names` of which `word` is a beginning, or `None` if there is none.
#[must_use]
pub fn unshorten<'n>(word: &str, names: &[&'n str]) -> Option<&'n str> {
    names.iter().find(|name| is_short_for(word, name)).copied()
}

/// The verb of a change after which token buckets hold or owe the bytes that they did before.
pub(crate) const ADJUST: &str = "adjust";

/// The objects of `tc` commands that this crate supports.
pub const OBJECTS: &[&str] = &["qdisc", "class", "filter"];

/// Reads the verb of a command that changes something. Only `qdisc` has the verb `link`.
pub(crate) fn verb(object: &str, word: Option<&str>) -> Result<Verb, ConfigError> {
    const VERBS: &[&str] = &["add", "change", "replace", "link", "delete"];
    if word == Some(ADJUST) && object != "filter" {
        return Ok(Verb::Change);
    }
    let name = word.and_then(|word| unshorten(word, VERBS));
    match name.filter(|name| *name != "link" || object == "qdisc") {
        Some("add") => Ok(Verb::Add),
        Some("change") => Ok(Verb::Change),
        Some("replace") => Ok(Verb::Replace),
        Some("link") => Ok(Verb::Link),
        Some(_) => Ok(Verb::Delete),
        None => {
            let expected = "expected add, replace, change or delete";
            let lists = |word: &str| unshorten(word, &["get", "list", "show", "lst"]).is_some();
            let error = match word {
                None => ConfigError::new(object, "", "", expected),
                Some(word) if lists(word) => {
                    let why = format!("the line lists, and changes nothing: {expected}");
                    ConfigError::new(object, "", "", why)
                }
                Some(word) => ConfigError::new(object, "", word, expected),
            };
            Err(error.argument())
        }
    }
}

/// The words of a command such as `qdisc add dev NAME root handle 1: fq`, up to the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QdiscHead<'w> {
    pub(crate) device: Option<&'w str>,
    /// The parent: the number of a class, [`ROOT`] or [`INGRESS`]. `None` if the command names the
    /// qdisc only by its handle.
    pub(crate) parent: Option<u32>,
    pub(crate) handle: Option<u16>,
    pub(crate) kind: Option<&'w str>,
}

impl<'w> QdiscHead<'w> {
    pub(crate) fn read(words: &mut Words<'w>) -> Result<Self, ConfigError> {
        let mut head = Self::default();
        let at = "qdisc";
        while let Some(word) = words.next() {
            let second_parent = || {
                let why = "expected one place: root, parent CLASS, ingress or clsact";
                Err(ConfigError::new(at, word, "", why).argument())
            };
            match word {
                "dev" => once(at, word, &mut head.device, value(at, word, words)?)?,
                "handle" => {
                    let handle = argument(at, word, words, parse_qdisc_handle, QDISC_LOOK)?;
                    once(at, word, &mut head.handle, handle)?;
                }
                "root" | "parent" | "ingress" | "clsact" if head.parent.is_some() => {
                    return second_parent();
                }
                "root" => head.parent = Some(ROOT),
                "parent" => {
                    head.parent = Some(argument(at, word, words, parse_classid, CLASS_LOOK)?);
                }
                "ingress" | "clsact" => {
                    (head.parent, head.handle) = (Some(INGRESS), Some(INGRESS_MAJOR));
                    head.kind = Some(word);
                    break;
                }
                "estimator" | "stab" | "ingress_block" | "egress_block" => {
                    return Err(ConfigError::new(at, word, "", "Onramp does not support it"));
                }
                kind => {
                    head.kind = Some(kind);
                    break;
                }
            }
        }
        Ok(head)
    }
}

/// The words of a command such as `class add dev NAME parent 1: classid 1:1 htb`, up to the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassHead<'w> {
    pub(crate) device: Option<&'w str>,
    pub(crate) parent: Option<u32>,
    pub(crate) class: Option<u32>,
    pub(crate) kind: Option<&'w str>,
}

impl<'w> ClassHead<'w> {
    pub(crate) fn read(words: &mut Words<'w>) -> Result<Self, ConfigError> {
        let mut head = Self::default();
        let at = "class";
        while let Some(word) = words.next() {
            match word {
                "dev" => once(at, word, &mut head.device, value(at, word, words)?)?,
                "classid" => {
                    let class = argument(at, word, words, parse_classid, CLASS_LOOK)?;
                    once(at, word, &mut head.class, class)?;
                }
                "root" => once(at, word, &mut head.parent, ROOT)?,
                "parent" => {
                    let parent = argument(at, word, words, parse_classid, CLASS_LOOK)?;
                    once(at, word, &mut head.parent, parent)?;
                }
                "estimator" => {
                    return Err(ConfigError::new(at, word, "", "Onramp does not support it"));
                }
                "handle" => {
                    let why = "expected `classid`, which names a class";
                    return Err(ConfigError::new(at, word, "", why).argument());
                }
                kind => {
                    head.kind = Some(kind);
                    break;
                }
            }
        }
        Ok(head)
    }
}

const QDISC_LOOK: &str = "expected a qdisc's handle such as 1:, hexadecimal, 1: to ffff:";
const CLASS_LOOK: &str = "expected root, a class such as 1:20, hexadecimal, or a qdisc: 1:";

/// Stores the value of the option `key`, and returns an error if the option was given before.
fn once<T>(at: &str, key: &str, slot: &mut Option<T>, value: T) -> Result<(), ConfigError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(ConfigError::new(at, key, "", "given twice").argument()),
    }
}

/// Returns the word after the option `key`, or an error if the line ends there.
fn value<'w>(at: &str, key: &str, words: &mut Words<'w>) -> Result<&'w str, ConfigError> {
    let missing = || ConfigError::new(at, key, "", "the value is missing at the end of the line");
    words.next().ok_or_else(|| missing().argument())
}

fn argument<T>(
    at: &str,
    key: &str,
    words: &mut Words<'_>,
    read: fn(&str) -> Option<T>,
    look: &str,
) -> Result<T, ConfigError> {
    let word = value(at, key, words)?;
    read(word).ok_or_else(|| ConfigError::new(at, key, word, look).argument())
}

/// Reads the handle of a qdisc, such as `1:`, `1` or `none`. As in `tc`, everything after the colon
/// is ignored.
#[must_use]
pub fn parse_qdisc_handle(word: &str) -> Option<u16> {
    match word {
        "none" => Some(0),
        _ => hex16(word.split_once(':').map_or(word, |(major, _)| major)),
    }
}

/// Reads the handle of a class, such as `1:20`, `:20`, `1:`, `root` or `none`. A word without a
/// colon is a number with the 32 bits of major and minor number.
#[must_use]
pub fn parse_classid(word: &str) -> Option<u32> {
    match (word, word.split_once(':')) {
        ("root", _) => Some(ROOT),
        ("none", _) => Some(0),
        (_, Some((major, minor))) => {
            let part = |digits: &str| if digits.is_empty() { Some(0) } else { hex16(digits) };
            Some(u32::from(part(major)?) << 16 | u32::from(part(minor)?))
        }
        (digits, None) => hex(digits),
    }
}

fn hex16(digits: &str) -> Option<u16> {
    hex(digits).and_then(|number| u16::try_from(number).ok())
}

/// Reads a hexadecimal number, with or without `0x` before it.
fn hex(digits: &str) -> Option<u32> {
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    // `from_str_radix` would accept a sign before the digits.
    let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

/// Splits the 32-bit number of a class into its major and minor number.
pub(crate) fn class_of(number: u32) -> Handle {
    Handle::from_priority(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_read_as_tc_reads_them() {
        for (word, handle) in [
            ("1:", Some(1)),
            ("1", Some(1)),
            ("ffff:", Some(0xffff)),
            ("1:1", Some(1)),
            ("0x10:", Some(0x10)),
            ("none", Some(0)),
            ("10000:", None),
            ("123^", None),
            ("", None),
            (":1", None),
            ("+1:", None),
        ] {
            assert_eq!(parse_qdisc_handle(word), handle, "{word}");
        }
        for (word, class) in [
            ("1:20", Some(0x1_0020)),
            ("1:", Some(0x1_0000)),
            (":20", Some(0x20)),
            ("20", Some(0x20)),
            ("root", Some(ROOT)),
            ("none", Some(0)),
            ("1:10000", None),
            ("zz", None),
            ("1:zz", None),
        ] {
            assert_eq!(parse_classid(word), class, "{word}");
        }
    }

    #[test]
    fn words_may_be_shortened() {
        assert_eq!(unshorten("q", OBJECTS), Some("qdisc"));
        assert_eq!(unshorten("cl", OBJECTS), Some("class"));
        assert_eq!(unshorten("qdiscs", OBJECTS), None);
        assert_eq!(unshorten("", OBJECTS), None);
        assert_eq!(verb("qdisc", Some("l")), Ok(Verb::Link));
        assert_eq!(verb("qdisc", Some("del")), Ok(Verb::Delete));
        assert!(verb("class", Some("link")).is_err());
    }
}
