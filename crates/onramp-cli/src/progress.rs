//! The line that shows people how far a long run has come.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Runs shorter than this need no progress line.
const LONG: Duration = Duration::from_secs(3);

/// The progress line on standard error. Nothing is shown if standard error is no terminal or if the
/// run is short.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
    written: bool,
}

impl Progress {
    /// Creates the progress line for a run that is expected to take as long as `expected`.
    pub(crate) fn new(expected: Duration) -> Self {
        Self { shown: expected >= LONG && io::stderr().is_terminal(), written: false }
    }

    /// Shows `text` in place of the text that the progress line showed before.
    pub(crate) fn show(&mut self, text: &str) {
        if self.shown {
            // A closed terminal is no reason for the run to fail, so a failed write is ignored.
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
