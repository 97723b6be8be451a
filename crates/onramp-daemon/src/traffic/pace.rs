//! When the next packet of a traffic is due.

use onramp_core::Instant;

/// Spaces packets of one size evenly over time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    begun: Instant,
    /// Bytes per second; `None`: a packet is always due.
    rate: Option<u64>,
    size: u64,
    sent: u64,
}

impl Pace {
    pub(super) const fn new(begun: Instant, rate: Option<u64>, size: u64) -> Self {
        Self { begun, rate, size, sent: 0 }
    }

    /// Notes that a packet was sent.
    pub(super) const fn sent(&mut self) {
        self.sent += 1;
    }

    /// Returns the time at which the next packet is due.
    pub(super) fn next(&self) -> Instant {
        let Some(rate) = self.rate else { return self.begun };
        let bytes = u128::from(self.sent) * u128::from(self.size);
        let after = bytes * 1_000_000_000 / u128::from(rate.max(1));
        Instant(self.begun.0.saturating_add(u64::try_from(after).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_due_at_the_rate() {
        let mut pace = Pace::new(Instant(5), Some(1_000), 100);
        for number in 0..1_000 {
            assert_eq!(pace.next(), Instant(5 + number * 100_000_000));
            pace.sent();
        }
        // A rate that does not divide a second loses nothing to rounding: after three packets of
        // 100 bytes at 300 bytes per second, exactly a second has passed.
        let mut pace = Pace::new(Instant(0), Some(300), 100);
        let due = [0, 333_333_333, 666_666_666, 1_000_000_000].map(|_| {
            let next = pace.next().0;
            pace.sent();
            next
        });
        assert_eq!(due, [0, 333_333_333, 666_666_666, 1_000_000_000]);
        let mut slow = Pace::new(Instant(0), Some(1), u64::from(u32::MAX));
        slow.sent = u64::MAX - 1;
        slow.sent();
        assert_eq!(slow.next(), Instant(u64::MAX), "the time has an end");
    }

    #[test]
    fn without_a_rate_packets_are_always_due() {
        let mut pace = Pace::new(Instant(7), None, 100);
        pace.sent();
        assert_eq!(pace.next(), Instant(7));
    }
}
