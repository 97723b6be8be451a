//! Converts words to the values of options.

use super::U32_MAX;
use crate::base::units::{parse_count, parse_size, parse_time};

/// Reads a number of 32 bits that may be negative.
pub(super) fn parse_signed(word: &str) -> Option<u64> {
    let (digits, negative) = match word.strip_prefix('-') {
        Some(digits) => (digits.strip_prefix('+').map_or(digits, |_| ""), true),
        None => (word, false),
    };
    let number = i64::try_from(parse_count(digits)?).ok()?;
    let number = i32::try_from(if negative { -number } else { number }).ok()?;
    Some(u64::from(number.cast_unsigned()))
}

/// Returns a number without the zeros with which it begins, so that it is decimal.
pub(super) fn without_zeros(word: &str) -> String {
    let digits = word.trim_start_matches(['+', '-']);
    let sign = &word[..word.len() - digits.len()];
    match digits.trim_start_matches('0') {
        "" if !digits.is_empty() => format!("{sign}0"),
        rest => format!("{sign}{rest}"),
    }
}

/// Reads a value of [`Unit::Burst`](super::Unit::Burst).
pub(super) fn parse_burst(word: &str) -> Option<u64> {
    match word.split_once('/') {
        None => parse_size(word),
        Some((size, cell)) => {
            parse_count(cell).filter(|cell| cell.is_power_of_two() && *cell <= U32_MAX)?;
            parse_size(size)
        }
    }
}

/// Reads a value of [`Unit::TimeOrPackets`](super::Unit::TimeOrPackets). Returns `None` for zero.
pub(super) fn parse_time_or_packets(word: &str) -> Option<u64> {
    const SUFFIXES: &[&str] = &["packets", "packet", "pkts", "pkt", "p"];
    let value = match SUFFIXES.iter().find_map(|suffix| word.strip_suffix(suffix)) {
        Some(digits) => parse_decimal(digits).filter(|n| (1..=U32_MAX).contains(n))? * 2 + 1,
        // Linux keeps the time in 32 bits, in nanoseconds.
        None => parse_time(word, 1_000).filter(|ns| (1_000..=4_294_967_000).contains(ns))? * 2,
    };
    Some(value)
}

/// Reads one range of a value with [`Unit::Ranges`](super::Unit::Ranges).
pub(super) fn parse_range(word: &str) -> Option<u64> {
    let (count, first) = word.split_once('@')?;
    let number = |word| parse_decimal(word).filter(|n| *n <= u64::from(u16::MAX));
    Some(number(count)? << 16 | number(first)?)
}

/// Reads a number that consists of digits only.
fn parse_decimal(word: &str) -> Option<u64> {
    if word.starts_with(|c: char| c.is_ascii_digit()) { word.parse().ok() } else { None }
}

/// Reads the value and the mask of [`Unit::Masked`](super::Unit::Masked), each a byte in decimal or
/// hexadecimal.
pub(super) fn parse_masked(word: &str) -> Option<u64> {
    let (value, mask) = word.split_once('/')?;
    let byte = |word: &str| match word.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16).ok(),
        None => word.parse::<u8>().ok(),
    };
    Some(u64::from(byte(mask)?) << 8 | u64::from(byte(value)?))
}
