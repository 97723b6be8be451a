//! A line that says how far a long run is, for people only.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Runs shorter than this need no progress line.
const LONG: Duration = Duration::from_secs(3);

/// The progress line on standard error. Silent when that is no terminal, or the run is short.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    written: bool,
}

impl Progress {
    /// For a run that is expected to last `expected`.
    pub(crate) fn new(expected: Duration) -> Self {
        Self { shown: expected >= LONG && io::stderr().is_terminal(), written: false }
    }

    /// Shows `text` in place of what was shown before.
    pub(crate) fn show(&mut self, text: &str) {
        if self.shown {
            // Progress is a courtesy: a terminal that went away is no reason to fail.
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
            self.written = true;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.written {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
