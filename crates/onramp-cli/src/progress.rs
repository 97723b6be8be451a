//! What a long run tells people on standard error: how long it will take, and how far it has come.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use onramp_core::{Clock, Instant};
use onramp_dev::MonotonicClock;
use rustix::termios::tcgetwinsize;

use crate::error::tell;

/// Runs shorter than this tell nothing on a terminal, and elsewhere.
const LONG: Duration = Duration::from_secs(3);
const LONG_ELSEWHERE: Duration = Duration::from_secs(10);
/// If standard error is no terminal, a line is written after this part of the run, but not earlier
/// than [`PAUSE`] after the line before.
const PART: u32 = 20;
const PAUSE: Duration = Duration::from_secs(5);
/// The width of a terminal that does not tell its own, in characters.
const WIDTH: u16 = 80;

/// A line on standard error that is written again and again. Nothing is shown if standard error is
/// no terminal.
#[derive(Debug)]
pub(crate) struct Line {
    shown: bool,
    written: bool,
}

impl Line {
    /// Creates the line, which is shown only if the run is long.
    pub(crate) fn new(long: bool) -> Self {
        Self { shown: long && io::stderr().is_terminal(), written: false }
    }

    /// Shows `text` in place of the text that the line showed before.
    pub(crate) fn show(&mut self, text: &str) {
        if self.shown {
            let text = fitting(text, tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col));
            // A closed terminal is no reason for the run to fail, so a failed write is ignored.
            let _ = write!(io::stderr(), "\r\x1b[K{text}");
            self.written = true;
        }
    }
}

/// Returns the part of `text` that fits on a line of a terminal that is `width` characters wide (0:
/// unknown). A longer text could not be taken back, because the terminal would break it. The last
/// place of the line stays free, because some terminals break a line that fills it.
fn fitting(text: &str, width: u16) -> String {
    let width = if width == 0 { WIDTH } else { width };
    text.chars().take(usize::from(width).saturating_sub(1)).collect()
}

impl Line {
    /// Takes the text of the line back, so that another line can be written in its place.
    pub(crate) fn take_back(&mut self) {
        if std::mem::take(&mut self.written) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// The progress of a run that consists of steps. On a terminal a line is renewed with each step;
/// elsewhere a line is written now and then.
#[derive(Debug)]
pub(crate) struct Progress {
    line: Line,
    steps: usize,
    done: usize,
    expected: Duration,
    began: Instant,
    /// When the next line is written; `None` if no lines are.
    due: Option<Instant>,
}

impl Progress {
    /// Begins a run of `steps` steps that is expected to take as long as `expected`.
    pub(crate) fn begin(steps: usize, expected: Duration) -> Self {
        let (line, began) = (Line::new(expected >= LONG), MonotonicClock.now());
        let due = (!line.shown && expected >= LONG_ELSEWHERE).then_some(began);
        Self { line, steps, done: 0, expected, began, due }
    }

    /// Tells that the step `text` begins; with the first step, how long the run will take.
    pub(crate) fn step(&mut self, text: &str) {
        let now = MonotonicClock.now();
        if self.done == 0 && (self.line.shown || self.due.is_some()) {
            let (steps, span) = (self.steps, span(self.expected));
            tell(&format!("this run takes about {span}, for {steps} measurement(s)"));
        }
        let left = span(self.left(Duration::from_nanos(now.since(self.began))));
        self.done += 1;
        let text = format!("{} of {}, about {left} left: {text}", self.done, self.steps);
        self.line.show(&text);
        if self.due.is_some_and(|due| due <= now) {
            tell(&text);
            self.due = Some(now + PAUSE.max(self.expected / PART));
        }
    }

    /// Returns how long the rest of the run will take, if it goes on as in the time `gone`.
    fn left(&self, gone: Duration) -> Duration {
        if self.done == 0 {
            return self.expected;
        }
        let rest = self.steps.saturating_sub(self.done) as f64;
        gone.mul_f64(rest / self.done as f64)
    }
}

/// Returns the text for a duration, in whole seconds.
fn span(span: Duration) -> String {
    let seconds = span.as_secs_f64().ceil().clamp(1.0, 1e9);
    humantime::format_duration(Duration::from_secs_f64(seconds)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_as_fast_as_what_is_done() {
        let mut progress = Progress::begin(10, Duration::from_secs(1));
        assert_eq!(progress.left(Duration::ZERO), Duration::from_secs(1), "as expected");
        progress.done = 4;
        assert_eq!(progress.left(Duration::from_secs(8)), Duration::from_secs(12));
        progress.done = 11;
        assert_eq!(progress.left(Duration::from_secs(8)), Duration::ZERO);
    }

    #[test]
    fn a_text_is_shorter_than_the_line_of_the_terminal() {
        let text = "\u{e4}".repeat(100);
        for (width, count) in [(40, 39), (120, 100), (0, 79), (1, 0)] {
            assert_eq!(fitting(&text, width).chars().count(), count, "{width}");
        }
    }

    #[test]
    fn durations_have_no_fractions() {
        assert_eq!(span(Duration::from_millis(345_200)), "5m 46s");
        assert_eq!(span(Duration::ZERO), "1s");
    }
}
