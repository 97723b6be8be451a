//! What is wrong with a trace.

use std::fmt;
use std::time::Duration;

/// Error: a trace cannot be understood, or the qdiscs cannot follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    pub(crate) line: usize,
    pub(crate) why: String,
}

impl TraceError {
    pub(crate) const fn at(line: usize, why: String) -> Self {
        Self { line, why }
    }

    pub(crate) fn unless_later(line: usize, before: Duration, at: Duration) -> Result<(), Self> {
        if at >= before {
            return Ok(());
        }
        let (at, before) = (at.as_secs_f64(), before.as_secs_f64());
        Err(Self::at(line, format!("{at} s comes after {before} s: times must not fall")))
    }

    /// Returns the number of the line, or of the step or time, from 1.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.line
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for TraceError {}
