//! Sources without feedback: they send at their own pace, whatever becomes of their packets.

use onramp_core::{Instant, Rate};
use onramp_queue::Packet;

use super::{Source, Traffic};
use crate::chance::Chance;

/// A source that sends at a constant bit rate. The times of its packets are exact to the
/// nanosecond, so rounding errors do not add up.
#[derive(Debug)]
pub struct Cbr {
    traffic: Traffic,
    rate: Rate,
    sent: u64,
}

impl Cbr {
    /// Creates a source that sends at `rate`. If `rate` is zero, the source never sends.
    #[must_use]
    pub fn new(traffic: Traffic, rate: Rate) -> Self {
        Self { traffic, rate, sent: 0 }
    }
}

impl Source for Cbr {
    fn due(&mut self) -> Option<Instant> {
        let due = self.traffic.from.after(sending_ns(&self.traffic, self.rate, self.sent)?);
        (due < self.traffic.until).then_some(due)
    }

    fn packet(&mut self, _now: Instant) -> Option<Packet> {
        self.sent += 1;
        Some(self.traffic.packet(self.sent - 1))
    }
}

/// Returns the time, in nanoseconds, in which `packets` packets of `traffic` are sent at `rate`;
/// `None` if the rate is zero or the time does not fit into 64 bits.
fn sending_ns(traffic: &Traffic, rate: Rate, packets: u64) -> Option<u64> {
    let bytes = u128::from(traffic.size) * u128::from(packets);
    u64::try_from((bytes * 1_000_000_000).checked_div(rate.as_bytes_per_second().into())?).ok()
}

/// A source that sends each packet independently of the others (a Poisson process), at a given mean
/// rate.
#[derive(Debug)]
pub struct Poisson {
    traffic: Traffic,
    mean_gap_ns: u64,
    due: Instant,
    sent: u64,
    chance: Chance,
}

impl Poisson {
    /// Creates a source with the mean rate `rate`. If `rate` is zero, the source never sends.
    #[must_use]
    pub fn new(traffic: Traffic, rate: Rate, seed: u64) -> Self {
        let mean_gap_ns = sending_ns(&traffic, rate, 1).unwrap_or(u64::MAX);
        let mut chance = Chance::new(seed);
        let due = match mean_gap_ns {
            u64::MAX => Instant::MAX,
            _ => traffic.from.after(chance.exponential(mean_gap_ns)),
        };
        Self { traffic, mean_gap_ns, due, sent: 0, chance }
    }
}

impl Source for Poisson {
    fn due(&mut self) -> Option<Instant> {
        (self.due < self.traffic.until).then_some(self.due)
    }

    fn packet(&mut self, _now: Instant) -> Option<Packet> {
        self.due = self.due.after(self.chance.exponential(self.mean_gap_ns));
        self.sent += 1;
        Some(self.traffic.packet(self.sent - 1))
    }
}

/// A source that alternates between periods in which it sends at a constant rate and silent
/// periods. The lengths of the sending periods and those of the silent periods have exponential
/// distributions.
#[derive(Debug)]
pub struct OnOff {
    traffic: Traffic,
    gap_ns: u64,
    on_ns: u64,
    off_ns: u64,
    due: Instant,
    /// The time at which the current sending period ends.
    off: Instant,
    sent: u64,
    chance: Chance,
}

impl OnOff {
    /// Creates a source that sends at `rate` for `on_ns` nanoseconds on average, and then is silent
    /// for `off_ns` nanoseconds on average, in turn. If the rate or `on_ns` is zero, the source
    /// never sends.
    #[must_use]
    pub fn new(traffic: Traffic, rate: Rate, (on_ns, off_ns): (u64, u64), seed: u64) -> Self {
        let gap_ns = sending_ns(&traffic, rate, 1).unwrap_or(u64::MAX);
        let mut chance = Chance::new(seed);
        // The source is silent first, so that sources with different seeds do not begin at the same
        // time.
        let due = match (gap_ns, on_ns) {
            (u64::MAX, _) | (_, 0) => Instant::MAX,
            _ => traffic.from.after(chance.exponential(off_ns)),
        };
        let off = due.after(chance.exponential(on_ns));
        Self { traffic, gap_ns, on_ns, off_ns, due, off, sent: 0, chance }
    }
}

impl Source for OnOff {
    fn due(&mut self) -> Option<Instant> {
        (self.due < self.traffic.until).then_some(self.due)
    }

    fn packet(&mut self, _now: Instant) -> Option<Packet> {
        self.due = self.due.after(self.gap_ns.max(1));
        while self.due >= self.off && self.due < self.traffic.until {
            self.due = self.due.after(self.chance.exponential(self.off_ns));
            self.off = self.due.after(self.chance.exponential(self.on_ns));
        }
        self.sent += 1;
        Some(self.traffic.packet(self.sent - 1))
    }
}
