//! What is wrong with a configuration.

use std::fmt;

/// A configuration that cannot be: where, which option, which value, and what would be allowed.
///
/// ```
/// # use onramp_core::qdisc::Spec;
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
}

impl ConfigError {
    /// Says that `value` is no good for `key`.
    pub(crate) fn new(at: &str, key: &str, value: &str, why: impl Into<String>) -> Self {
        Self { at: at.into(), key: key.into(), value: value.into(), why: why.into() }
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
