//! The threads of an experiment: they start together, warm up, are measured, and stop.

use std::thread;
use std::time::Duration;

use onramp_core::Clock;
use onramp_dev::MonotonicClock;

use crate::measure::{Finally, Gate, Phase, PhaseCell, Usage, pause};
use crate::{Error, pin};

/// Length of the warm-up: the measured time divided by this number, so one fifth.
pub(crate) const WARM_UP: u32 = 5;

/// The state that all threads of an experiment share.
#[derive(Debug, Default)]
pub(crate) struct ThreadGroup {
    gate: Gate,
    pub(crate) phase: PhaseCell,
}

/// The part of an experiment that is measured, after the warm-up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    /// Length of the measured window, nanoseconds.
    pub(crate) ns: u64,
    /// Resources that the process used during the measured window.
    pub(crate) usage: Usage,
}

/// The results of all threads of a group, and the measured window.
#[derive(Debug)]
pub(crate) struct Watched<R, S> {
    /// The results of the threads, in the order of thread numbers.
    pub(crate) given: Vec<R>,
    pub(crate) window: Window,
    /// The results of `look`, called at the beginning and at the end of the measured window.
    pub(crate) seen: (S, S),
}

impl ThreadGroup {
    /// Runs `work` in `count` threads through all phases (warm-up, measured window, stop). Each
    /// call of `work` gets its thread's number; `span` is the length of the measured window.
    /// Returns the threads' results in the order of their numbers, and the window.
    pub(crate) fn run<R: Send>(
        &self,
        count: usize,
        span: Duration,
        work: impl Fn(usize) -> R + Sync,
    ) -> Result<(Vec<R>, Window), Error> {
        let watched = self.run_watched(count, span, || Ok(()), work)?;
        Ok((watched.given, watched.window))
    }

    /// Runs `work` in `count` threads, like [`run`](Self::run), and also calls `look` when the
    /// measured window begins and when it ends.
    pub(crate) fn run_watched<R: Send, S>(
        &self,
        count: usize,
        span: Duration,
        look: impl Fn() -> Result<S, Error>,
        work: impl Fn(usize) -> R + Sync,
    ) -> Result<Watched<R, S>, Error> {
        thread::scope(|scope| {
            let (work, gate) = (&work, &self.gate);
            let stops = Finally::new(|| {
                self.phase.set(Phase::Stop);
                gate.open();
            });
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
                None => self.watch(count, span, look),
                Some(error) => Err(error),
            };
            drop(stops);
            let joined: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
            let (window, seen) = window?;
            let given =
                joined.into_iter().collect::<Result<_, _>>().map_err(|_| Error::Panicked)?;
            Ok(Watched { given, window, seen })
        })
    }

    /// Runs `work` in one thread for each processor of `cpus`, bound to it, and calls `look` like
    /// [`run_watched`](Self::run_watched).
    pub(crate) fn run_bound<R: Send, S>(
        &self,
        cpus: &[usize],
        span: Duration,
        look: impl Fn() -> Result<S, Error>,
        work: impl Fn(usize) -> Result<R, Error> + Sync,
    ) -> Result<Watched<R, S>, Error> {
        let body = |number: usize| {
            pin::to(cpus[number])?;
            work(number)
        };
        let Watched { given, window, seen } = self.run_watched(cpus.len(), span, look, body)?;
        Ok(Watched { given: given.into_iter().collect::<Result<_, _>>()?, window, seen })
    }

    fn watch<S>(
        &self,
        count: usize,
        span: Duration,
        look: impl Fn() -> Result<S, Error>,
    ) -> Result<(Window, (S, S)), Error> {
        self.gate.gathered(count);
        self.gate.open();
        pause(span / WARM_UP)?;
        let (from, before, first) = (MonotonicClock.now(), Usage::now()?, look()?);
        self.phase.set(Phase::Measure);
        pause(span)?;
        self.phase.set(Phase::Stop);
        let (to, after, last) = (MonotonicClock.now(), Usage::now()?, look()?);
        Ok((Window { ns: to.since(from), usage: after.since(before) }, (first, last)))
    }
}

impl Window {
    /// Returns the number of events per second if `count` events happened in this window.
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        if self.ns == 0 { 0.0 } else { count as f64 * 1e9 / self.ns as f64 }
    }

    /// Returns the processor time that the process used, as a share (from 0 to 1) of the time of
    /// `cpus` processors.
    pub(crate) fn cpu_share(&self, cpus: usize) -> f64 {
        let ns = self.ns as f64 * cpus as f64;
        if ns == 0.0 { 0.0 } else { self.usage.process_ns as f64 / ns }
    }

    /// Returns the processor time that the process used, divided by `count`; nanoseconds.
    pub(crate) fn cpu_ns_per(&self, count: u64) -> f64 {
        if count == 0 { f64::INFINITY } else { self.usage.process_ns as f64 / count as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The run is repeated if a thread got no processor during the measured window.
    #[test]
    fn all_are_measured_and_end() {
        let span = Duration::from_millis(50);
        let run = || {
            let group = ThreadGroup::default();
            let work = |number: usize| {
                let mut turns = 0_u64;
                while !group.phase.is_stop() {
                    turns += u64::from(group.phase.get() == Phase::Measure);
                    thread::yield_now();
                }
                (number, turns > 0)
            };
            let (given, window) = group.run(3, span, work).expect("three threads");
            assert!(window.ns >= 50_000_000, "{window:?}");
            given
        };
        assert!((0..100).any(|_| run() == [(0, true), (1, true), (2, true)]));
    }

    #[test]
    fn bound_threads_stay_where_they_are_bound() {
        let mut cpus = pin::allowed().expect("Linux tells");
        cpus.reverse();
        let span = Duration::from_millis(1);
        let watched = ThreadGroup::default().run_bound(&cpus, span, || Ok(()), |_| pin::allowed());
        let each: Vec<_> = cpus.iter().map(|cpu| vec![*cpu]).collect();
        assert_eq!(watched.expect("as many threads as processors").given, each);
    }

    /// If they did not end, this test would never end.
    #[test]
    fn all_end_if_the_watching_thread_panics() {
        let group = ThreadGroup::default();
        let work = |_| {
            while !group.phase.is_stop() {
                thread::yield_now();
            }
        };
        let look = || -> Result<(), Error> { panic!("as planned") };
        let run = || group.run_watched(2, Duration::from_millis(10), look, work).map(drop);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    }

    #[test]
    fn a_panic_is_told() {
        let group = ThreadGroup::default();
        let work = |number: usize| assert_ne!(number, 1, "as planned");
        let error = group.run(2, Duration::from_millis(10), work).expect_err("one panicked");
        assert!(matches!(error, Error::Panicked), "{error}");
    }
}
