//! Errors in a configuration, and how Linux would report them.

use std::fmt;

/// An invalid configuration: where the error is, which option and value are wrong, and what would
/// be allowed.
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
#[non_exhaustive]
pub struct ConfigError {
    /// The object whose description is wrong, such as `qdisc fq`.
    pub at: String,
    /// The name of the wrong option, or empty if the wrong word belongs to no option.
    pub key: String,
    /// The wrong word, or empty if a word is missing.
    pub value: String,
    /// What is wrong with the value, and what would be right, in words for users.
    pub why: String,
    /// Which program would have refused the configuration in Linux, and how.
    pub fault: Fault,
}

/// Which program refuses a configuration in Linux: `tc`, because it cannot read a word, or the
/// kernel, because it refuses the request of `tc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// `tc` cannot read a word, and exits with status 1.
    #[default]
    Usage,
    /// `tc` finds an argument that is no option of the kind of qdisc, class or filter, and exits
    /// with status 255 (`invarg`).
    Argument,
    /// The kernel refuses the request, and `tc` exits with status 2. The text is the message that
    /// the kernel sends with the error number, if it sends one.
    Kernel(Errno, Option<&'static str>),
}

/// The error number with which the kernel refuses a request of `tc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Errno {
    /// Device or resource busy (`EBUSY`).
    Busy,
    /// The object exists already (`EEXIST`).
    Exists,
    /// Invalid argument (`EINVAL`).
    Invalid,
    /// No such device (`ENODEV`).
    NoDevice,
    /// No such object (`ENOENT`).
    NoEntry,
    /// Cannot allocate memory (`ENOMEM`).
    NoMemory,
    /// No space left (`ENOSPC`).
    NoSpace,
    /// Operation not supported (`EOPNOTSUPP`).
    NotSupported,
    /// Number out of range (`ERANGE`).
    Range,
}

impl Errno {
    /// Returns the text of the error number, as `strerror(3)` gives it.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Busy => "Device or resource busy",
            Self::Exists => "File exists",
            Self::Invalid => "Invalid argument",
            Self::NoDevice => "No such device",
            Self::NoEntry => "No such file or directory",
            Self::NoMemory => "Cannot allocate memory",
            Self::NoSpace => "No space left on device",
            Self::NotSupported => "Operation not supported",
            Self::Range => "Numerical result out of range",
        }
    }
}

impl Fault {
    /// Returns the exit status of `tc` after this fault.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Usage => 1,
            Self::Argument => 255,
            Self::Kernel(..) => 2,
        }
    }

    /// Returns what `tc` prints if the kernel refuses a request, or `None` if `tc` itself refuses
    /// it.
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
    /// Creates an error that `tc` itself reports: `value` is wrong for the option `key`.
    pub(crate) fn new(at: &str, key: &str, value: &str, why: impl Into<String>) -> Self {
        Self {
            at: at.into(),
            key: key.into(),
            value: value.into(),
            why: why.into(),
            fault: Fault::Usage,
        }
    }

    /// Creates an error about a text that is no `what`. `expected` says what would be one.
    pub(crate) fn text(what: &str, word: &str, expected: &str) -> Self {
        match word {
            "" => Self::new(what, "", "", format!("the text is empty: {expected}")),
            word => Self::new(what, what, word, expected),
        }
    }

    /// Returns the same error as one that the kernel reports, with error number `errno` and the
    /// kernel's message `said` (empty if the kernel sends no message).
    pub(crate) fn kernel(mut self, errno: Errno, said: &'static str) -> Self {
        self.fault = Fault::Kernel(errno, (!said.is_empty()).then_some(said));
        self
    }

    /// Returns the same error as one that `tc` reports about an argument that is no option.
    pub(crate) fn argument(mut self) -> Self {
        self.fault = Fault::Argument;
        self
    }
}

/// A fault of options that are valid one by one but contradict each other: which option is wrong,
/// why, and which program refuses it in Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The name of the option.
    pub key: &'static str,
    /// What is wrong with the option, and what would be right.
    pub why: String,
    /// Which program refuses the option: the kernel, unless the code that created the `Clash` set
    /// another.
    pub fault: Fault,
}

impl<Why: Into<String>> From<(&'static str, Why)> for Clash {
    fn from((key, why): (&'static str, Why)) -> Self {
        Self { key, why: why.into(), fault: Fault::Kernel(Errno::Invalid, None) }
    }
}

impl Clash {
    /// Creates a `Clash` that `tc` itself refuses.
    pub(crate) fn usage(key: &'static str, why: impl Into<String>) -> Self {
        Self { key, why: why.into(), fault: Fault::Usage }
    }

    /// Returns the same `Clash` as one that the kernel refuses with error number `errno` and the
    /// message `said`.
    pub(crate) fn said(self, errno: Errno, said: &'static str) -> Self {
        Self { fault: Fault::Kernel(errno, Some(said)), ..self }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.at)?;
        match (self.key.as_str(), self.value.as_str()) {
            ("", "") => {}
            ("", value) => write!(f, "unexpected {value:?}: ")?,
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
