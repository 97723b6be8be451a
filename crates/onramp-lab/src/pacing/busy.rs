//! What the machine contributes to the errors: a thread that reads the clock without end.

use std::time::Duration;

use onramp::Clock;
use onramp::dev::MonotonicClock;

use super::schedule::times_gap;
use super::{Cell, Outcome, Round};
use crate::Error;
use crate::measure::{Latency, Usage};

/// Reads the clock until the time `window` is over, after a warm-up of one fifth of it. Notes how
/// long after each instant of the cell's rate a reading first shows that the instant has passed.
pub(super) fn measure(cell: Cell, window: Duration) -> Result<Outcome, Error> {
    let clock = MonotonicClock;
    let begin = clock.now() + window / 5;
    while clock.now() < begin {}
    let (usage, end) = (Usage::now()?, begin + window);
    let (mut error, mut instants) = (Latency::default(), 0);
    let mut due = begin;
    while due < end {
        let now = clock.now();
        while due <= now && due < end {
            error.record(now.since(due));
            instants += 1;
            due = begin.after(times_gap(instants, cell.rate));
        }
    }
    let (took_ns, usage) = (clock.now().since(begin), Usage::now()?.since(usage));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pacing::{Path, Shaper};

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
