//! Reads the words of a `tc filter` line, and the values in them.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::quoted;
use crate::base::units::parse_count;
use crate::base::{ConfigError, Handle};

/// The words of a line, and which of them have been read. Quotes count as spaces, and parentheses
/// are words of their own, so that it does not matter whether a shell has already removed the
/// quotes. Only between parentheses, where a shell leaves them, double quotes make one word of what
/// is between them: see [`quoted`].
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    /// The text with which error messages begin, such as `filter u32`.
    pub(super) at: String,
    words: Vec<&'a str>,
    next: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(line: &'a str) -> Self {
        let ends = |c: char| c.is_ascii_whitespace() || "'\"\\()".contains(c);
        let (mut words, mut depth) = (Vec::new(), 0_usize);
        let mut rest = line;
        while let Some(at) = rest.find(ends) {
            let (word, sign) = (&rest[..at], &rest[at..=at]);
            words.push(word);
            rest = match sign {
                "\"" | "\\" if depth > 0 => {
                    let (word, behind) = quoted::split(&rest[at..]);
                    words.push(word);
                    behind
                }
                "(" | ")" => {
                    words.push(sign);
                    depth = if sign == "(" { depth + 1 } else { depth.saturating_sub(1) };
                    &rest[at + 1..]
                }
                _ => &rest[at + 1..],
            };
        }
        words.push(rest);
        words.retain(|word| !word.is_empty());
        Self { at: "filter".into(), words, next: 0 }
    }

    pub(crate) fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).copied()
    }

    /// Returns the word that is `behind` words after the next word, and takes no word.
    pub(super) fn peek_at(&self, behind: usize) -> Option<&'a str> {
        self.words.get(self.next + behind).copied()
    }

    /// Returns how many words have been read.
    pub(super) fn position(&self) -> usize {
        self.next
    }

    /// Returns the number of words, read or not.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns the word at this position. A string in quotes is written so that a shell, a
    /// configuration and this reader take it as it is.
    pub(super) fn again(&self, at: usize) -> Cow<'a, str> {
        self.words.get(at).map_or(Cow::Borrowed(""), |word| quoted::again(word))
    }

    /// Takes and returns the next word, or returns `None` at the end of the line.
    pub(super) fn next(&mut self) -> Option<&'a str> {
        let word = self.peek();
        self.next += usize::from(word.is_some());
        word
    }

    /// Puts back the word that was taken last.
    pub(super) fn back(&mut self) {
        self.next = self.next.saturating_sub(1);
    }

    /// Takes the next word if it equals `word`. Returns whether it did.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let taken = self.peek() == Some(word);
        self.next += usize::from(taken);
        taken
    }

    /// Takes the next word if it is `word` or an abbreviation of `word`. Returns whether it was.
    pub(super) fn takes(&mut self, word: &str) -> bool {
        let taken = self.peek().is_some_and(|next| is(next, word));
        self.next += usize::from(taken);
        taken
    }

    pub(crate) fn wrong(&self, key: &str, value: &str, why: impl Into<String>) -> ConfigError {
        ConfigError::new(&self.at, key, value, why)
    }

    /// Takes the next word, the value of the option `key`, and converts it with `read`. If that
    /// fails, the error says what was `expected`.
    pub(super) fn value<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, ConfigError> {
        let word = self.next();
        read(word.unwrap_or_default()).ok_or_else(|| {
            let error = self.wrong(key, word.unwrap_or_default(), format!("expected {expected}"));
            if word.is_none() { error.argument() } else { error }
        })
    }

    /// Reads a whole number up to `max`, in decimal, or as in C in hexadecimal (`0x`) or octal
    /// (`0`).
    pub(super) fn number(&mut self, key: &str, max: u32) -> Result<u32, ConfigError> {
        let read = |word: &str| count(word, max);
        self.value(key, &format!("a whole number, 0 to {max}"), read)
    }

    /// Reads a hexadecimal number up to `max`, with or without `0x`.
    pub(super) fn hex(&mut self, key: &str, max: u32) -> Result<u32, ConfigError> {
        let read = |word: &str| hexadecimal(word, max);
        self.value(key, &format!("a hexadecimal number, 0 to {max:x}"), read)
    }

    /// Reads the handle of a class.
    pub(super) fn class(&mut self, key: &str) -> Result<Handle, ConfigError> {
        self.value(key, "a class such as 1:20, hexadecimal", classid)
    }
}

/// Whether `word` is `name` or an abbreviation of `name`.
pub(super) fn is(word: &str, name: &str) -> bool {
    !word.is_empty() && name.starts_with(word)
}

/// Reads a whole number up to `max`, in decimal, or as in C in hexadecimal (`0x`) or octal (`0`).
pub(super) fn count(word: &str, max: u32) -> Option<u32> {
    u32::try_from(parse_count(word)?).ok().filter(|number| *number <= max)
}

/// Reads a hexadecimal number up to `max`, with or without `0x`.
pub(super) fn hexadecimal(word: &str, max: u32) -> Option<u32> {
    let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")).unwrap_or(word);
    let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten();
    number.filter(|number| *number <= max)
}

/// Reads `VALUE` or `VALUE/MASK`, and returns value and mask. Without a mask, returns the mask
/// `all`.
pub(super) fn masked<T>(
    word: &str,
    all: T,
    read: impl Fn(&str, bool) -> Option<T>,
) -> Option<(T, T)> {
    match word.split_once('/') {
        Some((value, mask)) => Some((read(value, false)?, read(mask, true)?)),
        None => Some((read(word, false)?, all)),
    }
}

/// Reads the handle of a class. A word without a colon is a hexadecimal number with the 32 bits of
/// major and minor number (`get_tc_classid`).
pub(super) fn classid(word: &str) -> Option<Handle> {
    if !word.contains(':') {
        return hexadecimal(word, u32::MAX).map(Handle::from_priority);
    }
    let (major, minor) = word.split_once(':')?;
    let half = |digits: &str| match digits {
        "" => Some(0),
        digits => u16::try_from(hexadecimal(digits, 0xffff)?).ok(),
    };
    Some(Handle::new(half(major)?, half(minor)?))
}

/// Reads an IP address and the length of its prefix in bits.
pub(super) fn prefix(word: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = match word.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (word, None),
    };
    // The words `any`, `all` and `default` mean any address of either IP version. Trailing octets
    // of an IPv4 address may be missing.
    let address: IpAddr = match address {
        "any" | "all" | "default" => return Some((Ipv4Addr::UNSPECIFIED.into(), 0)),
        address if address.contains(':') => address.parse::<Ipv6Addr>().ok()?.into(),
        address => v4(address)?.into(),
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        Some(bits) if bits.contains('.') && address.is_ipv4() => {
            let mask = v4(bits)?.to_bits();
            (mask.leading_ones() == mask.count_ones()).then_some(mask)?;
            u8::try_from(mask.count_ones()).ok()?
        }
        Some(bits) => u8::try_from(count(bits, most)?).ok()?,
        None => u8::try_from(most).ok()?,
    };
    Some((address, bits))
}

/// Reads the four octets of an IPv4 address. Missing octets are zeros.
fn v4(word: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let given = word.split('.');
    if given.clone().count() > 4 {
        return None;
    }
    for (octet, digits) in octets.iter_mut().zip(given) {
        let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        *octet = plain.then(|| digits.parse().ok()).flatten()?;
    }
    Some(octets.into())
}

/// Returns 32 bits, beginning at bit `from`, of a mask whose first `bits` bits are set.
pub(super) fn leading(bits: u8, from: u8) -> u32 {
    match bits.saturating_sub(from) {
        0 => 0,
        bits => u32::MAX << (32 - u32::from(bits.min(32))),
    }
}

/// Reads a MAC address: `aa:bb:cc:dd:ee:ff`.
pub(super) fn mac(word: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut digits = word.split(':');
    for octet in &mut mac {
        let digits = digits.next().filter(|digits| digits.len() <= 2)?;
        *octet = u8::try_from(hexadecimal(digits, 0xff)?).ok()?;
    }
    digits.next().is_none().then_some(mac)
}
