//! The threads of an experiment: they start together, warm up, are measured, and end.

use std::thread;
use std::time::Duration;

use onramp_core::Clock;
use onramp_dev::MonotonicClock;

use crate::Error;
use crate::measure::{Gate, Phase, PhaseCell, Usage};

/// Threads warm up for this part of the time that they are measured.
const WARM_UP: u32 = 5;

/// What all threads of an experiment share.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    gate: Gate,
    pub(crate) phase: PhaseCell,
}

/// The time in which everything counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    /// Its length, nanoseconds.
    pub(crate) ns: u64,
    /// What the process cost in it.
    pub(crate) usage: Usage,
}

impl Crew {
    /// Runs `work` in `count` threads, each with its number, through all phases; `span` is how
    /// long they are measured. Gives what they gave, in order.
    pub(crate) fn run<R: Send>(
        &self,
        count: usize,
        span: Duration,
        work: impl Fn(usize) -> R + Sync,
    ) -> Result<(Vec<R>, Window), Error> {
        thread::scope(|scope| {
            let (work, gate) = (&work, &self.gate);
            let mut threads = Vec::with_capacity(count);
            let mut failed = None;
            for number in 0..count {
                let body = move || {
                    gate.wait();
                    work(number)
                };
                match thread::Builder::new().name(format!("lab-{number}")).spawn_scoped(scope, body)
                {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        failed = Some(Error::Thread(number, count, error));
                        break;
                    }
                }
            }
            let window = match failed {
                None => self.watch(count, span),
                Some(error) => Err(error),
            };
            self.phase.set(Phase::Stop);
            self.gate.open();
            self.gate.unpark();
            let joined: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
            let window = window?;
            let given =
                joined.into_iter().collect::<Result<_, _>>().map_err(|_| Error::Panicked)?;
            Ok((given, window))
        })
    }

    fn watch(&self, count: usize, span: Duration) -> Result<Window, Error> {
        self.gate.gathered(count);
        self.gate.open();
        thread::sleep(span / WARM_UP);
        let (from, before) = (MonotonicClock.now(), Usage::now()?);
        self.phase.set(Phase::Measure);
        thread::sleep(span);
        self.phase.set(Phase::Stop);
        let (to, after) = (MonotonicClock.now(), Usage::now()?);
        Ok(Window { ns: to.since(from), usage: after.since(before) })
    }
}

impl Window {
    /// So many in a second.
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        if self.ns == 0 { 0.0 } else { count as f64 * 1e9 / self.ns as f64 }
    }

    /// Processor time of the process for each of `count`, nanoseconds.
    pub(crate) fn cpu_ns_per(&self, count: u64) -> f64 {
        if count == 0 { f64::INFINITY } else { self.usage.process_ns as f64 / count as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_measured_and_end() {
        let crew = Crew::default();
        let work = |number: usize| {
            let mut turns = 0_u64;
            while !crew.phase.is_stop() {
                turns += u64::from(crew.phase.get() == Phase::Measure);
                thread::yield_now();
            }
            (number, turns > 0)
        };
        let (given, window) = crew.run(3, Duration::from_millis(50), work).expect("three threads");
        assert_eq!(given, [(0, true), (1, true), (2, true)]);
        assert!(window.ns >= 50_000_000, "{window:?}");
    }

    #[test]
    fn a_panic_is_told() {
        let crew = Crew::default();
        let work = |number: usize| assert_ne!(number, 1, "as planned");
        let error = crew.run(2, Duration::from_millis(10), work).expect_err("one panicked");
        assert!(matches!(error, Error::Panicked), "{error}");
    }
}
