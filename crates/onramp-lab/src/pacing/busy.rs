//! What the machine contributes to the errors: a thread that reads the clock without end.

use std::thread;
use std::time::Duration;

use onramp::dev::MonotonicClock;
use onramp::{Clock, Instant};

use super::schedule::times_gap;
use super::{Cell, Outcome, Round};
use crate::Error;
use crate::measure::{Finally, Latency, Phase, PhaseCell, Usage, pause};

/// Reads the clock in a thread of its own until the time `window` is over, after a warm-up of one
/// fifth of it. Notes how long after each instant of the cell's rate a reading first shows that the
/// instant has passed.
pub(super) fn measure(cell: Cell, window: Duration) -> Result<Outcome, Error> {
    let (clock, phase) = (MonotonicClock, PhaseCell::default());
    let begin = clock.now() + window / 5;
    let (error, instants, usage, took_ns) = thread::scope(|scope| {
        let now = || (phase.get() != Phase::Stop).then(|| clock.now());
        let looks = scope.spawn(move || look(begin, window, cell.rate, now));
        let stops = Finally::new(|| phase.set(Phase::Stop));
        pause(window / 5)?;
        let (began, usage) = (clock.now(), Usage::now()?);
        pause(window)?;
        let (usage, took_ns) = (Usage::now()?.since(usage), clock.now().since(began));
        // The thread ends by itself at the last instant.
        let (error, instants) = looks.join().map_err(|_| Error::Panicked)?;
        drop(stops);
        Ok((error, instants, usage, took_ns))
    })?;
    let round = Round {
        packets_per_second: instants as f64 * 1e9 / took_ns as f64,
        cpu_ns_per_packet: Some(usage.process_ns as f64 / instants as f64),
        sender_cpu_ns_per_packet: None,
        interrupt_ns_per_packet: None,
        idle_interrupt_ns_per_packet: None,
        total_ns_per_packet: None,
        wakeups_per_packet: None,
        lost_share: 0.0,
    };
    Ok(Outcome { round, error, packets: instants, dropped: 0, overflowed: 0 })
}

/// Reads the clock until each instant of the time `window` from `begin` on has passed, or until
/// there is no reading any more. Returns how late the readings are that first show it, and the
/// number of instants.
fn look(
    begin: Instant,
    window: Duration,
    rate: u64,
    mut now: impl FnMut() -> Option<Instant>,
) -> (Latency, u64) {
    let (mut error, mut instants) = (Latency::default(), 0);
    let (mut due, end) = (begin, begin + window);
    while due < end
        && let Some(now) = now()
    {
        while due <= now && due < end {
            error.record(now.since(due));
            instants += 1;
            due = begin.after(times_gap(instants, rate));
        }
    }
    (error, instants)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pacing::{Path, Shaper};

    /// A reading 5 ms after the one before shows five instants, the first of them 4.5 ms late.
    #[test]
    fn a_gap_between_two_readings_is_an_error() {
        let at = |tenths: u64| Instant(tenths * 100_000);
        let mut readings = [70, 75, 125, 130, 160].map(at).into_iter();
        let window = Duration::from_millis(10);
        let (error, instants) = look(at(70), window, 1_000, || readings.next());
        let found = error.percentiles().expect("samples");
        assert_eq!((instants, found.samples), (10, 10));
        // Durations are kept to 1 %.
        assert!((4_455_000..=4_545_000).contains(&found.max), "{found:?}");
        assert!(found.p50 <= 1_515_000, "half of them are seen within 1.5 ms: {found:?}");
    }

    /// Each instant of the window is seen once, however late.
    #[test]
    fn every_instant_has_an_error() {
        let cell =
            Cell { path: Path::Busy, shaper: Shaper::Tbf, rate: 3_000, slack: None, spin: None };
        let outcome = measure(cell, Duration::from_millis(10)).expect("a clock");
        assert_eq!((outcome.packets, outcome.error.samples()), (30, 30));
        assert!(outcome.round.packets_per_second <= 3_000.1, "{outcome:?}");
    }
}
