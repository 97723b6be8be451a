//! Sizes, times and counts, as `tc` reads and writes them.
//!
//! Source: behaviour of iproute2 6.1 (`tc(8)`, section "UNITS"), compared word by word. Suffixes
//! may be written in upper or lower case.
//! Differs: negative numbers, numbers that do not fit, and special floating point words (`0x1p3`,
//! `inf`, `nan`) are errors, where `tc` wraps around or accepts some of them.

use std::fmt;
use std::str::FromStr;

use crate::base::ConfigError;

const KI: f64 = 1024.0;
/// Numbers of nanoseconds in a second, in a millisecond and in a microsecond.
const SEC: u64 = 1_000_000_000;
const MSEC: u64 = 1_000_000;
const USEC: u64 = 1_000;

const SIZE_SUFFIXES: &[(&str, f64)] = &[
    ("b", 1.0),
    ("k", KI),
    ("kb", KI),
    ("m", KI * KI),
    ("mb", KI * KI),
    ("g", KI * KI * KI),
    ("gb", KI * KI * KI),
    ("kbit", KI / 8.0),
    ("mbit", KI * KI / 8.0),
    ("gbit", KI * KI * KI / 8.0),
];

/// The suffixes of times, and the factors by which they convert a number to nanoseconds.
const TIME_SUFFIXES: &[(&str, f64)] = &[
    ("s", 1e9),
    ("sec", 1e9),
    ("secs", 1e9),
    ("ms", 1e6),
    ("msec", 1e6),
    ("msecs", 1e6),
    ("us", 1e3),
    ("usec", 1e3),
    ("usecs", 1e3),
    ("ns", 1.0),
    ("nsec", 1.0),
    ("nsecs", 1.0),
];

/// Reads a number and its suffix, and returns their product, rounded down. `bare` is the factor for
/// a number without a suffix.
pub(crate) fn parse_scaled(word: &str, bare: f64, suffixes: &[(&str, f64)]) -> Option<u64> {
    let (number, suffix) = split_number(word)?;
    let scale = if suffix.is_empty() {
        bare
    } else {
        suffixes.iter().find(|(name, _)| name.eq_ignore_ascii_case(suffix))?.1
    };
    whole(number * scale)
}

/// Whether the number at the start of `word` is zero.
pub(crate) fn is_zero(word: &str) -> bool {
    split_number(word).is_some_and(|(number, _)| number == 0.0)
}

/// Splits `word` into the number at its start, hexadecimal or decimal (sign, digits, point,
/// exponent), and the rest.
fn split_number(word: &str) -> Option<(f64, &str)> {
    if let Some(digits) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        let end = digits.bytes().take_while(u8::is_ascii_hexdigit).count();
        let number = u32::from_str_radix(&digits[..end], 16).ok()?;
        return Some((f64::from(number), &digits[end..]));
    }
    let bytes = word.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = usize::from(bytes.first() == Some(&b'+'));
    let start = end;
    end += digits(end);
    if bytes.get(end) == Some(&b'.') {
        end += 1 + digits(end + 1);
    }
    if !bytes[start..end].iter().any(u8::is_ascii_digit) {
        return None;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        // If no digits follow the `e`, `parse` below returns an error.
        end += 1 + sign + digits(end + 1 + sign);
    }
    Some((word[..end].parse().ok()?, &word[end..]))
}

/// Rounds `number` down. Returns `None` if `number` does not fit into 64 bits.
fn whole(number: f64) -> Option<u64> {
    #[expect(clippy::cast_precision_loss, reason = "2^64, exactly")]
    let limit = u64::MAX as f64;
    if !(0.0..limit).contains(&number) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    let number = number as u64;
    Some(number)
}

/// Reads a size in bytes, such as `1514`, `15k` (15,360), `1mb` or `8kbit` (1,024).
pub(crate) fn parse_size(word: &str) -> Option<u64> {
    parse_scaled(word, 1.0, SIZE_SUFFIXES)
}

/// Reads a time in nanoseconds. A number without a suffix counts units of `bare_ns` nanoseconds.
pub(crate) fn parse_time(word: &str, bare_ns: u32) -> Option<u64> {
    parse_scaled(word, f64::from(bare_ns), TIME_SUFFIXES)
}

/// Reads a whole number. As in C, `0x` begins a hexadecimal number and a leading `0` an octal
/// number.
pub(crate) fn parse_count(word: &str) -> Option<u64> {
    let word = word.strip_prefix('+').unwrap_or(word);
    let (digits, radix) =
        if let Some(hex) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            (hex, 16)
        } else if word.len() > 1 && word.starts_with('0') {
            (&word[1..], 8)
        } else {
            (word, 10)
        };
    // A sign has already been removed; `from_str_radix` would accept a second sign.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// Reads a percentage from 0 to 100. Returns it as a number from 0 to 2^32 - 1, rounded as `tc`
/// rounds percentages.
pub(crate) fn parse_percent(word: &str) -> Option<u64> {
    let part = word.parse::<f64>().ok()? / 100.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked here")]
    (0.0..=1.0).contains(&part).then(|| (part * f64::from(u32::MAX)).round() as u64)
}

/// Formats a percentage (0 to 2^32 - 1) as the shortest word that `parse_percent` reads back as the
/// same number.
pub(crate) fn exact_percent(part: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a part has 32 bits")]
    let number = part as f64 / f64::from(u32::MAX) * 100.0;
    shortest(number, |word| parse_percent(word) == Some(part))
}

/// 2^32: a probability is a number of these parts.
pub(crate) const PROBABILITY_PARTS: f64 = 4_294_967_296.0;

/// Reads a probability from 0 to 1. Returns how many parts of 2^32 it has, without a fraction, as
/// `tc` computes it. The greatest number, 2^32 - 1, also stands for the probability 1.
pub(crate) fn parse_probability(word: &str) -> Option<u64> {
    let number = word.parse::<f64>().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked here")]
    let parts = || ((number * PROBABILITY_PARTS) as u64).min(u32::MAX.into());
    (0.0..=1.0).contains(&number).then(parts)
}

/// Formats a probability (0 to 2^32 - 1) as the shortest word that `parse_probability` reads back
/// as the same number.
pub(crate) fn exact_probability(parts: u64) -> String {
    // All numbers from `parts` to below `parts + 1` are read as `parts`. Take their middle.
    #[expect(clippy::cast_precision_loss, reason = "parts have 32 bits")]
    let number = (parts as f64 + 0.5) / PROBABILITY_PARTS;
    shortest(number, |word| parse_probability(word) == Some(parts))
}

/// Formats `number` with as few digits as possible, so that `is_exact` holds for the word.
fn shortest(number: f64, is_exact: impl Fn(&str) -> bool) -> String {
    let words = (0..18).map(|digits| format!("{number:.digits$}"));
    words.into_iter().find(|word| is_exact(word)).unwrap_or_else(|| number.to_string())
}

/// A number of bytes. Printed as by `tc`, which rounds: `1514b`, `15Kb`, `32Mb`.
///
/// ```
/// use onramp_core::units::Size;
/// assert_eq!("15k".parse(), Ok(Size(15_360)));
/// assert_eq!(Size(15_360).to_string(), "15Kb");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = ConfigError;
    fn from_str(word: &str) -> Result<Self, ConfigError> {
        let expected = "expected a size such as 1514 or 15kb";
        parse_size(word).map(Self).ok_or_else(|| ConfigError::text("size", word, expected))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KIB: u128 = 1 << 10;
        const MIB: u128 = 1 << 20;
        let bytes = u128::from(self.0);
        let near = |unit: u128| (bytes + unit / 2) / unit;
        let (kib, mib) = (near(KIB), near(MIB));
        if bytes >= MIB && (mib * MIB).abs_diff(bytes) < 1024 {
            write!(f, "{mib}Mb")
        } else if bytes >= KIB && (kib * KIB).abs_diff(bytes) < 16 {
            write!(f, "{kib}Kb")
        } else {
            write!(f, "{}b", self.0)
        }
    }
}

/// A time in nanoseconds. A number without a suffix is read as microseconds. Printed as by `tc`,
/// with at most three digits: `10s`, `1.5ms`, `40us`, `100ns`.
///
/// ```
/// use onramp_core::units::Time;
/// assert_eq!("1.5ms".parse(), Ok(Time(1_500_000)));
/// assert_eq!("40".parse(), Ok(Time(40_000)));
/// assert_eq!(Time(1_500_000).to_string(), "1.5ms");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl FromStr for Time {
    type Err = ConfigError;
    fn from_str(word: &str) -> Result<Self, ConfigError> {
        let expected = "expected a time such as 10ms or 40us";
        parse_time(word, 1_000).map(Self).ok_or_else(|| ConfigError::text("time", word, expected))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            SEC.. => (SEC, "s"),
            MSEC.. => (MSEC, "ms"),
            USEC.. => (USEC, "us"),
            _ => return write!(f, "{}ns", self.0),
        };
        three_digits(f, self.0, unit)?;
        f.write_str(name)
    }
}

/// Prints `value / unit` as C's `%.3g` does: with three digits, without trailing zeros. The
/// quotient must be at least 1.
fn three_digits(f: &mut fmt::Formatter<'_>, value: u64, unit: u64) -> fmt::Result {
    #[expect(clippy::cast_precision_loss, reason = "three digits of it are written")]
    let scientific = format!("{:.2e}", value as f64 / unit as f64);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let digits: String = mantissa.chars().filter(|&c| c != '.').collect();
    match exponent.parse::<usize>() {
        Ok(point @ 0..3) => write_decimal(f, &digits, point + 1),
        _ => {
            write_decimal(f, &digits, 1)?;
            write!(f, "e+{exponent:0>2}")
        }
    }
}

/// Prints `digits` with the decimal point after the first `point` digits, without trailing zeros.
fn write_decimal(f: &mut fmt::Formatter<'_>, digits: &str, point: usize) -> fmt::Result {
    let (whole, part) = digits.split_at(point);
    f.write_str(whole)?;
    match part.trim_end_matches('0') {
        "" => Ok(()),
        part => write!(f, ".{part}"),
    }
}

/// Formats a number of bytes as the shortest word that reads back as the same number.
pub(crate) fn exact_size(bytes: u64) -> String {
    match bytes {
        0 => "0b".into(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}mb", bytes >> 20),
        _ if bytes.is_multiple_of(1024) => format!("{}kb", bytes >> 10),
        _ => format!("{bytes}b"),
    }
}

/// Formats a number of nanoseconds as the shortest word that reads back as the same number.
pub(crate) fn exact_time(ns: u64) -> String {
    match ns {
        0 => "0us".into(),
        _ if ns.is_multiple_of(SEC) => format!("{}s", ns / SEC),
        _ if ns.is_multiple_of(MSEC) => format!("{}ms", ns / MSEC),
        _ if ns.is_multiple_of(USEC) => format!("{}us", ns / USEC),
        _ => format!("{ns}ns"),
    }
}

#[cfg(test)]
mod tests;
