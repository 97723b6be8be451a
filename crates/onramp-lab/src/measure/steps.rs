//! The steps of a run: each measures one cell (one combination of settings) in one round. A cell
//! that fails does not end the run, and a run that is stopped keeps what was measured before.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Error;

/// Whether the runs of this process shall end early. There is one such wish for the whole process,
/// because it comes with a signal, and signals are sent to processes.
static STOP: Stop = Stop::new();

/// Lets all runs of this process end early: the measurements in progress are discarded, and no
/// further one begins. The wish cannot be taken back.
pub fn stop() {
    STOP.set();
}

/// Whether [`stop`] was called.
#[must_use]
pub fn is_stopped() -> bool {
    *STOP.lock()
}

/// Sleeps for `span`.
///
/// # Errors
///
/// [`Error::Stopped`] as soon as [`stop`] was called.
pub fn pause(span: Duration) -> Result<(), Error> {
    STOP.pause(span)
}

/// A wish to stop, for which threads can wait.
struct Stop {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    const fn new() -> Self {
        Self { set: Mutex::new(false), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        // A poisoned lock is ignored: the flag is valid at every moment.
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    fn pause(&self, span: Duration) -> Result<(), Error> {
        let waited = self.changed.wait_timeout_while(self.lock(), span, |set| !*set);
        let (set, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *set { Err(Error::Stopped) } else { Ok(()) }
    }
}

/// A cell that was not measured, or not in all rounds, because a measurement failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The cell: the names of its design and settings.
    pub cell: String,
    /// The error of the measurement that failed.
    pub why: String,
}

/// Runs the steps of an experiment, one after another, and keeps a list of those that failed.
pub struct Steps<'a> {
    told: Box<dyn FnMut(&str) + Send + 'a>,
    /// The cells of which a step has begun.
    cells: Vec<String>,
    failures: Vec<Failure>,
}

impl fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").field("failures", &self.failures).finish_non_exhaustive()
    }
}

impl<'a> Steps<'a> {
    /// Creates the steps of a run. `told` is called with the description of each step before the
    /// step begins.
    pub fn new(told: impl FnMut(&str) + Send + 'a) -> Self {
        Self { told: Box::new(told), cells: Vec::new(), failures: Vec::new() }
    }

    /// Measures `cell`; `part` says which part of its measurements this is, such as the round.
    /// Returns `None`, and keeps the reason, if `measure` fails or panics. Returns `None` without a
    /// call of `measure` if an earlier step of the same cell failed, or if the run was stopped; so
    /// the rounds that a cell has are always its first.
    pub fn step<T, E: fmt::Display>(
        &mut self,
        cell: impl fmt::Display,
        part: impl fmt::Display,
        measure: impl FnOnce() -> Result<T, E>,
    ) -> Option<T> {
        let cell = cell.to_string();
        if !self.begin(&cell, part) {
            return None;
        }
        // A panic in one measurement says nothing about the results of the others, and nothing that
        // the measurement has left half done is used again.
        match catch_unwind(AssertUnwindSafe(measure)) {
            Ok(found) => self.end(cell, found),
            Err(_) => self.end(cell, Err(Error::Panicked)),
        }
    }

    /// Begins a step, like [`step`](Self::step). Returns false if the step shall be left out. Ends
    /// with [`end`](Self::end), possibly after other steps have begun.
    pub fn begin(&mut self, cell: &str, part: impl fmt::Display) -> bool {
        if is_stopped() || self.failures.iter().any(|failure| failure.cell == cell) {
            return false;
        }
        if !self.cells.iter().any(|known| known == cell) {
            self.cells.push(cell.to_owned());
        }
        (self.told)(&format!("{cell}, {part}"));
        true
    }

    /// Ends a step that has begun. Returns what it found, or keeps the reason why it failed.
    pub fn end<T, E: fmt::Display>(&mut self, cell: String, found: Result<T, E>) -> Option<T> {
        match found {
            Ok(found) => Some(found),
            // A measurement that was cut off says nothing about its cell.
            Err(_) if is_stopped() => None,
            Err(why) => {
                self.failures.push(Failure { cell, why: why.to_string() });
                None
            }
        }
    }

    /// Returns the number of cells of which a step has begun, and the failures.
    #[must_use]
    pub fn finish(self) -> (usize, Vec<Failure>) {
        (self.cells.len(), self.failures)
    }

    /// Runs an experiment of which no step may fail. Returns its results and the number of steps.
    #[cfg(test)]
    pub(crate) fn whole<T>(experiment: impl FnOnce(&mut Steps<'_>) -> T) -> (T, usize) {
        let mut told = 0;
        let mut steps = Steps::new(|_| told += 1);
        let found = experiment(&mut steps);
        assert_eq!(steps.finish().1, []);
        (found, told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_that_fails_is_not_measured_again_and_the_others_are() {
        let mut told = Vec::new();
        let mut steps = Steps::new(|step| told.push(step.to_owned()));
        let mut found = Vec::new();
        for round in 1..=3 {
            for cell in ["a", "b"] {
                let measure = || if (cell, round) == ("a", 2) { Err("broken") } else { Ok(round) };
                found.push(steps.step(cell, format!("round {round}"), measure));
            }
        }
        let (cells, failures) = steps.finish();
        assert_eq!(found, [Some(1), Some(1), None, Some(2), None, Some(3)]);
        assert_eq!(failures, [Failure { cell: "a".into(), why: "broken".into() }]);
        assert_eq!(cells, 2);
        assert_eq!(told, ["a, round 1", "b, round 1", "a, round 2", "b, round 2", "b, round 3"]);
    }

    #[test]
    fn a_panic_is_a_failure() {
        let mut steps = Steps::new(|_| {});
        let found: Option<()> = steps.step("a", "round 1", || -> Result<(), Error> {
            assert_eq!(1, 2, "as planned");
            Ok(())
        });
        assert_eq!(found, None);
        assert_eq!(steps.finish().1[0].why, Error::Panicked.to_string());
    }

    #[test]
    fn a_pause_ends_with_the_wish_to_stop() {
        let stop = Stop::new();
        assert!(stop.pause(Duration::from_millis(1)).is_ok());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| stop.pause(Duration::MAX));
            stop.set();
            let waited = waits.join().expect("no panic");
            assert!(matches!(waited, Err(Error::Stopped)));
        });
        assert!(stop.pause(Duration::MAX).is_err(), "it lasts");
    }
}
