//! Rates, as `tc` reads and writes them.
//!
//! Source: behaviour of iproute2 6.1 (`tc(8)`, section "UNITS"): `bit` means bits, `bps` means
//! bytes per second. `k`, `m`, `g`, `t` are powers of 1,000, or powers of 1,024 if an `i` follows.
//! Differs: `tc` reads a rate of less than a byte per second as zero, which often means "no limit".
//! Here such a rate is an error.

use std::fmt;
use std::str::FromStr;

use crate::base::ConfigError;
use crate::base::units::{is_zero, parse_scaled};

const KI: f64 = 1024.0;

/// The suffixes of rates, and the factors by which they convert a number to bytes per second.
const SUFFIXES: &[(&str, f64)] = &[
    ("bit", 1.0 / 8.0),
    ("kbit", 1e3 / 8.0),
    ("mbit", 1e6 / 8.0),
    ("gbit", 1e9 / 8.0),
    ("tbit", 1e12 / 8.0),
    ("kibit", KI / 8.0),
    ("mibit", KI * KI / 8.0),
    ("gibit", KI * KI * KI / 8.0),
    ("tibit", KI * KI * KI * KI / 8.0),
    ("bps", 1.0),
    ("kbps", 1e3),
    ("mbps", 1e6),
    ("gbps", 1e9),
    ("tbps", 1e12),
    ("kibps", KI),
    ("mibps", KI * KI),
    ("gibps", KI * KI * KI),
    ("tibps", KI * KI * KI * KI),
];

/// A rate in bytes per second.
///
/// A number without a suffix counts bits per second, as in `tc`. A fraction of a byte per second is
/// cut off, but a rate between zero and one byte per second is an error.
///
/// ```
/// use onramp_core::Rate;
/// assert_eq!("8mbit".parse(), Ok(Rate::bits_per_second(8_000_000)));
/// assert_eq!("1gbps".parse(), Ok(Rate::bytes_per_second(1_000_000_000)));
/// assert_eq!(Rate::bytes_per_second(1_000_000).to_string(), "8Mbit");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// Returns the rate of this many bytes per second.
    #[must_use]
    pub const fn bytes_per_second(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the rate of this many bits per second. A fraction of a byte per second is cut off.
    #[must_use]
    pub const fn bits_per_second(bits: u64) -> Self {
        Self(bits / 8)
    }

    /// Returns the number of bytes per second.
    #[must_use]
    pub const fn as_bytes_per_second(self) -> u64 {
        self.0
    }

    /// Reads a rate. Returns `None` also for a rate between zero and one byte per second, because
    /// zero often means "no limit".
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let rate = parse_scaled(word, 1.0 / 8.0, SUFFIXES)?;
        (rate > 0 || is_zero(word)).then_some(Self(rate))
    }

    /// Returns the shortest word that reads back as the same rate.
    pub(crate) fn exact(self) -> String {
        let bits = u128::from(self.0) * 8;
        for (unit, name) in [(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1_000, "kbit")] {
            if bits > 0 && bits.is_multiple_of(unit) {
                return format!("{}{name}", bits / unit);
            }
        }
        format!("{}bps", self.0)
    }
}

impl FromStr for Rate {
    type Err = ConfigError;
    fn from_str(word: &str) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::text("rate", word, &format!("expected {LOOK}"));
        Self::parse(word).ok_or_else(wrong)
    }
}

/// Describes what a rate looks like, for error messages.
pub(crate) const LOOK: &str = "a rate such as 8mbit or 1mbps (bytes)";

/// Prints the rate in bits per second as `tc` does: divided by 1,000 as long as the number is a
/// whole number of thousands or at least a million, so the text can lose digits. With `{:#}`, the
/// rate is printed as by `tc -iec`, in powers of 1,024.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kilo, sign) = if f.alternate() { (1_024, "i") } else { (1_000, "") };
        let mut bits = u128::from(self.0) * 8;
        let mut unit = 0;
        while unit < 4 && bits >= kilo && (bits.is_multiple_of(kilo) || bits >= 1_000 * kilo) {
            bits /= kilo;
            unit += 1;
        }
        write!(f, "{bits}{}{}bit", ["", "K", "M", "G", "T"][unit], if unit > 0 { sign } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected texts are what `tc` of iproute2 6.1 prints for the same rates, without and with
    /// `-iec`.
    #[test]
    fn rates_are_shown_in_either_thousand() {
        for (rate, plain, iec) in [
            ("0", "0bit", "0bit"),
            ("500bit", "496bit", "496bit"),
            ("1023bit", "1016bit", "1016bit"),
            ("8kibit", "8192bit", "8Kibit"),
            ("20kbit", "20Kbit", "20000bit"),
            ("1mbit", "1Mbit", "1000000bit"),
            ("1048576bit", "1048Kbit", "1Mibit"),
            ("1234567bit", "1234Kbit", "1205Kibit"),
            ("999kibit", "1022Kbit", "999Kibit"),
            ("1000kibit", "1024Kbit", "1000Kibit"),
            ("2000kibit", "2048Kbit", "2000Kibit"),
            ("2gibit", "2147Mbit", "2Gibit"),
        ] {
            let rate: Rate = rate.parse().expect("a rate");
            assert_eq!((format!("{rate}"), format!("{rate:#}")), (plain.into(), iec.into()));
        }
    }
}
