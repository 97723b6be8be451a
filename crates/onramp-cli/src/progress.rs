//! The line that shows people how far a long run has come.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Runs shorter than this need no progress line.
const LONG: Duration = Duration::from_secs(3);

/// The progress line on standard error. It shows nothing if standard error is no terminal or if the
/// run is short.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    written: bool,
}

impl Progress {
    /// Creates the line for a run that is expected to take the time `expected`.
    pub(crate) fn new(expected: Duration) -> Self {
        Self { shown: expected >= LONG && io::stderr().is_terminal(), written: false }
    }

    /// Shows `text` instead of the text before.
    pub(crate) fn show(&mut self, text: &str) {
        if self.shown {
            // A closed terminal is no reason to fail, so an error is ignored.
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
