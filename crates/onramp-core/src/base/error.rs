//! What is wrong with a configuration.

use std::fmt;

/// A configuration that cannot be: where, which option, which value, and what would be allowed.
///
/// ```
/// # use onramp_core::Spec;
/// let error = "fq limit many".parse::<Spec>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     r#"qdisc fq: illegal "limit" "many": expected a whole number, 0 to 4294967295 packets"#,
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where, such as `qdisc fq`.
    pub at: String,
    /// The option; empty when the value stands alone.
    pub key: String,
    /// The word that is wrong; empty when one is missing.
    pub value: String,
    /// What is wrong with it, and what would be right.
    pub why: String,
    /// Who would have said so in Linux, and how.
    pub fault: Fault,
}

/// Who says no in Linux: `tc`, which cannot read a word, or the kernel, which will not do it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// `tc` cannot read it, and ends with 1.
    #[default]
    Usage,
    /// `tc` cannot read an argument that is no option of a kind, and ends with 255 (`invarg`).
    Argument,
    /// The kernel will not do it, and `tc` ends with 2.
    Kernel(Errno, Option<&'static str>),
}

/// What the kernel answers, where it does not say more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// `EBUSY`
    Busy,
    /// `EEXIST`
    Exists,
    /// `EINVAL`
    Invalid,
    /// `ENODEV`
    NoDevice,
    /// `ENOENT`
    NoEntry,
    /// `ENOSPC`
    NoSpace,
    /// `EOPNOTSUPP`
    NotSupported,
    /// `ERANGE`
    Range,
}

impl Errno {
    /// As `strerror(3)` says it.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Busy => "Device or resource busy",
            Self::Exists => "File exists",
            Self::Invalid => "Invalid argument",
            Self::NoDevice => "No such device",
            Self::NoEntry => "No such file or directory",
            Self::NoSpace => "No space left on device",
            Self::NotSupported => "Operation not supported",
            Self::Range => "Numerical result out of range",
        }
    }
}

impl Fault {
    /// The exit status of `tc`.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Usage => 1,
            Self::Argument => 255,
            Self::Kernel(..) => 2,
        }
    }

    /// What `tc` prints of a kernel that said no.
    #[must_use]
    pub fn kernel_text(self) -> Option<String> {
        match self {
            Self::Usage | Self::Argument => None,
            Self::Kernel(_, Some(said)) => Some(format!("Error: {said}.")),
            Self::Kernel(errno, None) => Some(format!("RTNETLINK answers: {}", errno.text())),
        }
    }
}

impl ConfigError {
    /// Says that `value` is no good for `key`.
    pub(crate) fn new(at: &str, key: &str, value: &str, why: impl Into<String>) -> Self {
        Self {
            at: at.into(),
            key: key.into(),
            value: value.into(),
            why: why.into(),
            fault: Fault::Usage,
        }
    }

    /// The same, said by the kernel.
    pub(crate) fn kernel(mut self, errno: Errno, said: &'static str) -> Self {
        self.fault = Fault::Kernel(errno, (!said.is_empty()).then_some(said));
        self
    }

    /// The same, said of an argument.
    pub(crate) fn argument(mut self) -> Self {
        self.fault = Fault::Argument;
        self
    }
}

/// Parameters that do not go with each other: which one is wrong, why, and who says so in Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The option.
    pub key: &'static str,
    /// What is wrong with it, and what would be right.
    pub why: String,
    /// Who says so; the kernel, if nothing else is said.
    pub fault: Fault,
}

impl<Why: Into<String>> From<(&'static str, Why)> for Clash {
    fn from((key, why): (&'static str, Why)) -> Self {
        Self { key, why: why.into(), fault: Fault::Kernel(Errno::Invalid, None) }
    }
}

impl Clash {
    /// `tc` itself says so.
    pub(crate) fn usage(key: &'static str, why: impl Into<String>) -> Self {
        Self { key, why: why.into(), fault: Fault::Usage }
    }

    /// The kernel says so, in these words.
    pub(crate) fn said(self, errno: Errno, said: &'static str) -> Self {
        Self { fault: Fault::Kernel(errno, Some(said)), ..self }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.at)?;
        match (self.key.as_str(), self.value.as_str()) {
            ("", "") => {}
            ("", value) => write!(f, "what is {value:?}? ")?,
            (key, "") => write!(f, "{key:?}: ")?,
            (key, value) if key == self.at => write!(f, "illegal {value:?}: ")?,
            (key, value) => write!(f, "illegal {key:?} {value:?}: ")?,
        }
        f.write_str(&self.why)
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests;
