//! Reads the words of a command one after another, and reports what is wrong with them.

use crate::Reply;
use crate::device::Refusal;
use crate::netdev::{NAME_MAX, Netdevs};

/// Error: why a command was not carried out, as the reply that the user gets.
#[derive(Debug)]
pub(super) struct Fault(Reply);

impl From<Fault> for Reply {
    fn from(fault: Fault) -> Self {
        fault.0
    }
}

impl Fault {
    /// Returns an error with the exit status `code` and one line of text.
    pub(super) fn said(code: u8, line: impl Into<String>) -> Self {
        let mut err: String = line.into();
        err.push('\n');
        Self(Reply { code, out: String::new(), err })
    }

    /// Returns an error with a help text (iproute2's `usage`).
    pub(super) fn usage(text: &str) -> Self {
        Self(Reply { code: 255, out: String::new(), err: text.to_owned() })
    }

    /// Returns the reply to a request for the version. It ends the command like an error, but with
    /// exit status 0.
    pub(super) fn version() -> Self {
        let out = format!("ip utility, onramp-{}\n", env!("CARGO_PKG_VERSION"));
        Self(Reply { code: 0, out, err: String::new() })
    }

    /// Returns the error for a wrong word (iproute2's `invarg`).
    pub(super) fn argument(word: &str, why: &str) -> Self {
        Self::said(255, format!("Error: argument \"{word}\" is wrong: {why}"))
    }

    /// Returns the error for a word that comes twice (iproute2's `duparg2`).
    pub(super) fn twice(key: &str, word: &str) -> Self {
        let why = format!("Error: either \"{key}\" is duplicate, or \"{word}\" is a garbage.");
        Self::said(255, why)
    }

    /// Returns the error for an option that comes twice (iproute2's `duparg`).
    pub(super) fn again(key: &str, word: &str) -> Self {
        Self::said(255, format!("Error: duplicate \"{key}\": \"{word}\" is the second value."))
    }

    /// Returns the error for a command whose next word is missing.
    pub(super) fn missing(code: u8, key: &str, stop: &str) -> Self {
        Self::said(code, format!("Not enough information: \"{key}\" argument is required{stop}"))
    }

    /// Returns the error for a command that the kernel would refuse.
    pub(super) fn kernel(said: &str, why: &str) -> Self {
        let more = if why.is_empty() { String::new() } else { format!("\n{why}") };
        Self::said(2, format!("{said}{more}"))
    }

    /// Returns the error for a device that does not exist.
    pub(super) fn no_device(name: &str) -> Self {
        Self::said(1, format!("Cannot find device \"{name}\""))
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::kernel(&refusal.said, &refusal.why)
    }
}

/// The words of a command that have not been read yet.
#[derive(Debug)]
pub(super) struct Words<'a> {
    words: &'a [&'a str],
}

impl<'a> Words<'a> {
    pub(super) const fn new(words: &'a [&'a str]) -> Self {
        Self { words }
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.words.first().copied()
    }

    /// Returns the next word, which is the operand of an option.
    pub(super) fn value(&mut self) -> Result<&'a str, Fault> {
        let missing = || Fault::said(255, "Command line is not complete. Try option \"help\"");
        self.next().ok_or_else(missing)
    }

    /// Returns the number that follows the word `key`; it has 32 bits and may be negative.
    pub(super) fn number(&mut self, key: &str) -> Result<i32, Fault> {
        let word = self.value()?;
        // As in iproute2, the error for a wrong number ends with two line breaks.
        let wrong = || Fault::argument(word, &format!("Invalid \"{key}\" value\n"));
        integer(word).ok_or_else(wrong)
    }

    /// Returns the name of a device that follows the word `key`.
    pub(super) fn name(&mut self, key: &str) -> Result<&'a str, Fault> {
        let word = self.value()?;
        check_name(word, key)?;
        Ok(word)
    }
}

/// Parses a number as C's `strtol` does with base 0.
fn integer(word: &str) -> Option<i32> {
    let (sign, digits) = match word.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, word.strip_prefix('+').unwrap_or(word)),
    };
    let (base, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some(two) if two.starts_with('0') => (8, digits),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i32::try_from(sign * i64::from_str_radix(digits, base).ok()?).ok()
}

/// Whether a word has a character at which a [line of commands](crate::Lines) is split, or that
/// means something in it. Such a word could be saved, but not read again.
pub(super) fn splits(word: &str) -> bool {
    word.contains([' ', '\t', '\n', '\r', '"', '\'', '#', '\\'])
}

/// Checks whether a device may have the name `name`.
pub(super) fn check_name(name: &str, key: &str) -> Result<(), Fault> {
    let sound = |byte: u8| byte != b'/' && !byte.is_ascii_whitespace() && !byte.is_ascii_control();
    let long = name.len() > NAME_MAX;
    // `ip` itself checks the length of a name only for a new name. Other names that are too long
    // are refused by the kernel.
    if name.is_empty() || !name.bytes().all(sound) || (long && key == "name") {
        return Err(Fault::argument(name, &format!("\"{key}\" not a valid ifname")));
    }
    if long {
        let why = format!("{name:?}: a device's name has at most {NAME_MAX} bytes");
        return Err(Fault::kernel("Error: Attribute failed policy validation.", &why));
    }
    if name == "." || name == ".." || name.contains(':') || splits(name) {
        let why = format!("no device may be called {name:?}");
        return Err(Fault::kernel("RTNETLINK answers: Invalid argument", &why));
    }
    Ok(())
}

/// Returns the name that a device gets for which a command gives the new name `name`. As in Linux,
/// a `%d` in it stands for the lowest number with which no device has the name; the name `taken`
/// counts as used.
pub(super) fn numbered(devices: &Netdevs, name: &str, taken: &str) -> Result<String, Fault> {
    let Some((before, behind)) = name.split_once('%') else { return Ok(name.to_owned()) };
    let Some(behind) = behind.strip_prefix('d').filter(|rest| !rest.contains('%')) else {
        let why = format!("{name:?}: expected %d, for a number, or no %");
        return Err(Fault::kernel("RTNETLINK answers: Invalid argument", &why));
    };
    let name = devices.free_name(before, behind, taken);
    if name.len() > NAME_MAX {
        let why = format!("{name:?}: a device's name has at most {NAME_MAX} bytes");
        return Err(Fault::kernel("RTNETLINK answers: Too many open files in system", &why));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        let read = [("0x500", 1_280), ("010", 8), ("-1", -1), ("+7", 7), ("0", 0), ("00", 0)];
        for (word, number) in read {
            assert_eq!(integer(word), Some(number), "{word}");
        }
        for word in ["", "-", "1e3", "08", "0x", "--1", "+-1", "2147483648", "1 ", "a"] {
            assert_eq!(integer(word), None, "{word}");
        }
    }
}
