//! Handles, the names of qdiscs and classes: `1:`, `1:20`.

use std::fmt;
use std::str::FromStr;

use crate::base::ConfigError;

/// The lowest major number that is assigned automatically, as in Linux: a qdisc that is created
/// without a handle gets the next free number from here on.
pub(crate) const FIRST_OWN_HANDLE: u16 = 0x8001;

/// The name of a qdisc (`1:`) or of a class of that qdisc (`1:20`), in hexadecimal, as in `tc`.
///
/// ```
/// use onramp_core::Handle;
/// let class: Handle = "1:20".parse()?;
/// assert_eq!((class.major, class.minor), (1, 0x20));
/// assert_eq!(class, Handle::from_priority(0x1_0020));
/// assert_eq!(class.qdisc().to_string(), "1:");
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// Major number, which names the qdisc.
    pub major: u16,
    /// Minor number, which names the class; 0 in the handle of a qdisc.
    pub minor: u16,
}

impl Handle {
    /// Creates the handle of class `minor` of qdisc `major`.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// Splits a packet's 32-bit priority into the handle of the class that it names (`TC_H_MAJ`,
    /// `TC_H_MIN`).
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "two halves")]
    pub const fn from_priority(priority: u32) -> Self {
        Self { major: (priority >> 16) as u16, minor: priority as u16 }
    }

    /// Returns the handle of the qdisc to which this handle, or the class with this handle,
    /// belongs.
    #[must_use]
    pub const fn qdisc(self) -> Self {
        Self { major: self.major, minor: 0 }
    }

    /// Reads a minor number, with or without `:` before it.
    pub(crate) fn parse_minor(word: &str) -> Option<u16> {
        let digits = word.strip_prefix(':').unwrap_or(word);
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        hex(digits)
    }
}

/// Reads a number of at most four hexadecimal digits, or returns `None`.
fn hex(digits: &str) -> Option<u16> {
    // `from_str_radix` would accept a sign before the digits.
    let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| u16::from_str_radix(digits, 16).ok()).flatten()
}

impl FromStr for Handle {
    type Err = ConfigError;

    fn from_str(word: &str) -> Result<Self, ConfigError> {
        let parts = word.split_once(':').and_then(|(major, minor)| {
            let minor = if minor.is_empty() { Some(0) } else { hex(minor) };
            Some(Self { major: hex(major)?, minor: minor? })
        });
        parts.ok_or_else(|| {
            let why = "expected a handle such as 1: or 1:20, hexadecimal, 1 to ffff";
            ConfigError::text("handle", word, why)
        })
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.minor {
            0 => write!(f, "{:x}:", self.major),
            minor => write!(f, "{:x}:{minor:x}", self.major),
        }
    }
}
