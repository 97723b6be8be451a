//! A schedule of chances to send, in the format of Mahimahi's traces.

use std::sync::Arc;

use onramp_core::Instant;

use crate::trace_error::TraceError;

/// Bytes that one chance carries: an IP packet of the usual MTU.
pub(crate) const CHANCE: u32 = 1_500;
const NS_PER_MS: u64 = 1_000_000;
/// Longest trace, milliseconds: 24 days.
const LONGEST_MS: u64 = i32::MAX as u64;

/// A link whose capacity changes as a recorded one did: at each of its instants, up to 1,500 bytes
/// may pass.
///
/// Source: the traces of Mahimahi's `mm-link` (R. Netravali et al., "Mahimahi: Accurate
/// Record-and-Replay for HTTP", 2015). Each line is a time in milliseconds from the start; lines
/// with equal times are several chances in that millisecond; the trace begins anew at its last
/// time, for ever. A chance carries 1,500 bytes of IP packets: several small packets, or a part of
/// a large one, whose rest goes with the next chances. A chance that finds no packet is lost.
#[derive(Clone, Debug)]
pub struct Schedule {
    times_ms: Arc<[u64]>,
}

impl Schedule {
    /// Makes a schedule of these times in milliseconds, none less than the one before.
    ///
    /// # Errors
    ///
    /// [`TraceError`] names the number of the time, from 1, that is wrong: it is less than the one
    /// before, or later than 24 days, or the last one is zero.
    pub fn new(times_ms: impl Into<Arc<[u64]>>) -> Result<Self, TraceError> {
        let times_ms = times_ms.into();
        let mut before = 0;
        for (number, time) in (1..).zip(&*times_ms) {
            if *time < before {
                let why = format!("{time} ms comes after {before} ms: times must not fall");
                return Err(TraceError::at(number, why));
            }
            if *time > LONGEST_MS {
                let why = format!("{time} ms is later than {LONGEST_MS} ms");
                return Err(TraceError::at(number, why));
            }
            before = *time;
        }
        if before == 0 {
            let why = "the last time must be greater than 0: there the trace begins anew";
            return Err(TraceError::at(times_ms.len().max(1), why.to_owned()));
        }
        Ok(Self { times_ms })
    }

    /// Returns the mean rate of the whole schedule, bits per second.
    #[must_use]
    pub fn bits_per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let (chances, ms) = (self.times_ms.len() as f64, self.period_ms() as f64);
        chances * f64::from(CHANCE) * 8e3 / ms
    }

    fn period_ms(&self) -> u64 {
        *self.times_ms.last().expect("a schedule has at least one time")
    }
}

/// A schedule that runs: its next chance.
#[derive(Clone, Debug)]
pub(crate) struct Chances {
    schedule: Schedule,
    /// The instant that is the time 0 of the present lap.
    lap: Instant,
    /// Index of the next chance of the lap; may be the number of chances.
    next: usize,
}

impl Chances {
    pub(crate) fn new(schedule: Schedule, origin: Instant) -> Self {
        Self { schedule, lap: origin, next: 0 }
    }

    /// Returns the instant of the next chance.
    pub(crate) fn next(&self) -> Instant {
        let times_ms = &self.schedule.times_ms;
        let (lap, time_ms) = match times_ms.get(self.next) {
            Some(time_ms) => (self.lap, *time_ms),
            None => (self.lap.after(self.schedule.period_ms() * NS_PER_MS), times_ms[0]),
        };
        lap.after(time_ms * NS_PER_MS)
    }

    /// Goes on to the chance behind the next.
    pub(crate) fn advance(&mut self) {
        if self.next == self.schedule.times_ms.len() {
            self.lap = self.lap.after(self.schedule.period_ms() * NS_PER_MS);
            self.next = 0;
        }
        self.next += 1;
    }

    /// Leaves out all chances up to `now`.
    pub(crate) fn skip(&mut self, now: Instant) {
        if now < self.next() {
            return;
        }
        let period_ns = self.schedule.period_ms() * NS_PER_MS;
        let laps = now.since(self.lap) / period_ns;
        self.lap = self.lap.after(laps * period_ns);
        let within_ns = now.since(self.lap);
        let times_ms = &self.schedule.times_ms;
        self.next = times_ms.partition_point(|time_ms| time_ms * NS_PER_MS <= within_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chances(times_ms: &[u64]) -> Chances {
        Chances::new(Schedule::new(times_ms).expect("a schedule"), Instant(7))
    }

    fn ms(instant: Instant) -> u64 {
        assert_eq!((instant.0 - 7) % NS_PER_MS, 0);
        (instant.0 - 7) / NS_PER_MS
    }

    #[test]
    fn it_begins_anew_at_its_last_time() {
        let mut running = chances(&[0, 1, 1, 4]);
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.push(ms(running.next()));
            running.advance();
        }
        assert_eq!(seen, [0, 1, 1, 4, 4, 5, 5, 8, 8, 9]);
    }

    /// To leave out many chances is the same as to go on many times.
    #[test]
    fn skipped_chances_are_those_that_are_over() {
        for times in [&[0, 1, 1, 4][..], &[3], &[1, 5, 5], &[0, 0, 2]] {
            for until_ms in 0..40 {
                for extra_ns in [0, 1] {
                    let now = Instant(7 + until_ms * NS_PER_MS + extra_ns);
                    let (mut one, mut other) = (chances(times), chances(times));
                    while one.next() <= now {
                        one.advance();
                    }
                    other.skip(now);
                    for _ in 0..5 {
                        assert_eq!(one.next(), other.next(), "{times:?} {until_ms}");
                        one.advance();
                        other.advance();
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_is_at_its_line() {
        for (times, line) in [(&[][..], 1), (&[0, 0], 2), (&[1, 3, 2], 3), (&[1 << 40], 1)] {
            assert_eq!(Schedule::new(times).expect_err("wrong").line(), line, "{times:?}");
        }
        let rate = Schedule::new([1; 10]).expect("a schedule").bits_per_second();
        assert!((rate - 120e6).abs() < 1.0, "{rate}");
    }
}
