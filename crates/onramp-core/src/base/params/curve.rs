//! Service curves, as `tc` reads and writes them: a curve has a first slope for some time, then a
//! second slope.
//!
//! Source: `tc-hfsc(7)`; behaviour of iproute2 6.1.

use std::fmt::Write as _;

use super::{Param, Unit};
use crate::base::ConfigError;

pub(super) const EXPECTED: &str =
    "[m1 RATE d TIME] m2 RATE, rate RATE, or umax BYTES dmax TIME rate RATE";

/// The words that may occur in a curve, and the units of the values after them.
const WORDS: [(&str, Unit); 6] = [
    ("m1", Unit::Rate),
    ("d", Unit::Usecs),
    ("m2", Unit::Rate),
    ("umax", Unit::Size),
    ("dmax", Unit::Usecs),
    ("rate", Unit::Rate),
];

/// Reads a service curve. Returns the first slope (bytes per second), its duration (nanoseconds),
/// and the second slope (bytes per second).
pub(super) fn parse<'w>(
    param: &Param,
    at: &str,
    words: &mut (impl Iterator<Item = &'w str> + Clone),
) -> Result<Vec<u64>, ConfigError> {
    let wrong = |word: &str, why: String| ConfigError::new(at, param.key, word, why);
    let mut read = [None; 6];
    while let Some(word) = words.clone().next()
        && let Some(place) = WORDS.iter().position(|(name, _)| *name == word)
    {
        words.next();
        let (name, unit) = WORDS[place];
        let value = words.next().unwrap_or_default();
        let number = param.number(unit, value);
        read[place] = Some(number.ok_or_else(|| {
            let unit = unit.metavariable();
            wrong(value, format!("expected {name} {unit}, at most {}", param.max))
        })?);
        if matches!(name, "m2" | "rate") {
            break;
        }
    }
    match read {
        [m1, d, Some(m2), None, None, None] => Ok(vec![m1.unwrap_or(0), d.unwrap_or(0), m2]),
        // `tc` computes with `dmax` in whole microseconds.
        [None, None, None, umax, dmax, Some(rate @ 1..)] => {
            match (umax.unwrap_or(0), dmax.unwrap_or(0) / 1_000) {
                (1.., 0) => {
                    let why = "expected `dmax TIME` after it, at least one microsecond";
                    Err(wrong("umax", why.into()))
                }
                (umax, dmax_us) => Ok(within_delay(umax, dmax_us, rate)),
            }
        }
        _ => {
            let word = words.clone().next().unwrap_or_default();
            Err(wrong(word, format!("expected {EXPECTED}")))
        }
    }
}

/// Returns the service curve whose second slope is `rate`, and which lets a burst of `umax` bytes
/// through within `dmax_us` microseconds. All rates are in bytes per second.
fn within_delay(umax: u64, dmax_us: u64, rate: u64) -> Vec<u64> {
    const PER_SEC: u64 = 1_000_000;
    // `dmax_us` may be zero if there is no burst, so do not divide by zero.
    let steep = (umax * PER_SEC).div_ceil(dmax_us.max(1));
    if steep > rate {
        return vec![steep, dmax_us * 1_000, rate];
    }
    // `tc` multiplies in 32 bits, so a `umax` above 4,294 bytes overflows. `tc` sends the
    // overflowed result to the kernel, so this crate uses the same result.
    let burst_us = ((umax * PER_SEC) & u64::from(u32::MAX)) / rate;
    vec![0, dmax_us.saturating_sub(burst_us) * 1_000, rate]
}

/// Appends a service curve to `line`. The function `word` formats a number of a given unit.
pub(super) fn write(line: &mut String, list: &[u64], word: impl Fn(Unit, u64) -> String) {
    for ((name, unit), number) in WORDS.iter().zip(list) {
        let _ = write!(line, " {name} {}", word(*unit, *number));
    }
}
