//! What a port counts: single-writer cells, written by its owner, read by anybody.

use onramp_queue::{Counter, DropReason, PacketList};

/// Powers of two: bucket `i` counts values in `2^(i-1) .. 2^i`, bucket 0 counts zeros.
///
/// 40 buckets of nanoseconds reach nine minutes.
#[derive(Debug)]
pub struct Histogram([Counter; BUCKETS]);

/// Buckets of a [`Histogram`].
pub const BUCKETS: usize = 40;

/// The bucket that counts `value`.
#[inline]
pub(crate) fn bucket_of(value: u64) -> usize {
    let bits = (u64::BITS - value.leading_zeros()) as usize;
    bits.min(BUCKETS - 1)
}

impl Default for Histogram {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::new()))
    }
}

impl Histogram {
    /// Counts `value`. Writer only.
    #[inline]
    pub fn record(&self, value: u64) {
        self.0[bucket_of(value)].add(1);
    }

    /// The counts by bucket.
    #[must_use]
    pub fn snapshot(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|bucket| self.0[bucket].get())
    }
}

/// Counters by drop reason.
#[derive(Debug)]
pub struct DropCounters([Counter; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::new()))
    }
}

impl DropCounters {
    /// Counts `n` drops for `reason`. Writer only.
    #[inline]
    pub fn add(&self, reason: DropReason, n: u64) {
        self.0[reason as usize].add(n);
    }

    /// Drops for `reason`.
    #[must_use]
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].get()
    }

    /// Drops for all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }

    /// Drops by reason, those that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.0[reason as usize].get()))
            .filter(|&(_, n)| n > 0)
    }
}

/// What one port did, as plain values.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PortSnapshot {
    /// Packets given to the qdisc, and those that it made.
    pub enqueued: u64,
    /// Of these, packets that it made: the duplicates of `netem`.
    pub made: u64,
    /// Packets the device took.
    pub sent: u64,
    /// Their bytes on the wire.
    pub sent_bytes: u64,
    /// Packets dropped, by reason; reasons that occurred.
    pub dropped: Vec<(DropReason, u64)>,
    /// Packets staged, queued, or taken and not yet with the device.
    pub held: u64,
    /// Times somebody became owner.
    pub runs: u64,
    /// Times a sender without credit became owner.
    pub helped: u64,
    /// Times the port became busy.
    pub busy: u64,
    /// Calls of the device.
    pub bursts: u64,
    /// Packets per call of the device, by powers of two.
    pub burst_packets: [u64; BUCKETS],
    /// Nanoseconds that the oldest packet of a take had waited in the intake, by powers of two.
    pub staging_ns: [u64; BUCKETS],
    /// Nanoseconds from push to device, for the oldest packet of a burst, by powers of two.
    pub sojourn_ns: [u64; BUCKETS],
}

/// What one port did. Written by its owner alone.
#[derive(Debug, Default)]
pub struct PortStats {
    /// Packets taken from the intake and given to the qdisc, and those that it made.
    pub enqueued: Counter,
    /// Of these, packets that it made.
    pub made: Counter,
    /// Packets the device took.
    pub sent: Counter,
    /// Their bytes on the wire.
    pub sent_bytes: Counter,
    /// Packets dropped by qdisc or device.
    pub dropped: DropCounters,
    /// Packets in the qdisc, or taken from it and still offered to the device.
    pub backlog: Counter,
    /// Times somebody became owner.
    pub runs: Counter,
    /// Times a sender without credit became owner.
    pub helped: Counter,
    /// Times the port became busy.
    pub busy: Counter,
    /// Calls of the device.
    pub bursts: Counter,
    /// Packets per call of the device.
    pub burst_packets: Histogram,
    /// Nanoseconds that the oldest packet of a take had waited in the intake.
    pub staging_ns: Histogram,
    /// Nanoseconds from push to device, for the oldest packet of a burst.
    pub sojourn_ns: Histogram,
}

impl PortStats {
    /// The values now, one after another; `staged` packets wait in the intake.
    pub(crate) fn snapshot(&self, staged: u64) -> PortSnapshot {
        PortSnapshot {
            enqueued: self.enqueued.get(),
            made: self.made.get(),
            sent: self.sent.get(),
            sent_bytes: self.sent_bytes.get(),
            dropped: self.dropped.iter().collect(),
            held: staged + self.backlog.get(),
            runs: self.runs.get(),
            helped: self.helped.get(),
            busy: self.busy.get(),
            bursts: self.bursts.get(),
            burst_packets: self.burst_packets.snapshot(),
            staging_ns: self.staging_ns.snapshot(),
            sojourn_ns: self.sojourn_ns.snapshot(),
        }
    }

    /// Counts what left for the device: `packets` of `bytes`, the oldest of them `waited` so many
    /// nanoseconds. Those in `out` came back, sent or dropped; the device handed the others on.
    #[inline]
    pub(crate) fn count_out(&self, packets: u32, bytes: u64, waited: u64, out: &mut PacketList) {
        if packets == 0 {
            return;
        }
        self.sojourn_ns.record(waited);
        let (mut failed, mut failed_bytes) = (0, 0);
        for meta in out.metas_mut() {
            // As its sender marked it: nobody dropped it.
            if meta.drop_reason == Some(DropReason::PortDead) {
                meta.drop_reason = None;
            }
            if let Some(reason) = meta.drop_reason {
                self.dropped.add(reason, 1);
                failed += 1;
                failed_bytes += u64::from(meta.len);
            }
        }
        self.sent.add(u64::from(packets).saturating_sub(failed));
        self.sent_bytes.add(bytes.saturating_sub(failed_bytes));
    }

    /// Counts drops; gives their number.
    pub(crate) fn count_drops(&self, drops: &PacketList) -> u32 {
        for meta in drops.metas() {
            self.dropped.add(meta.drop_reason.unwrap_or(DropReason::DeviceError), 1);
        }
        drops.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_i_counts_what_is_below_two_to_the_i() {
        let histogram = Histogram::default();
        let mut expected = [0; BUCKETS];
        let mut counts = |value, bucket: usize| {
            histogram.record(value);
            expected[bucket] += 1;
            assert_eq!(histogram.snapshot(), expected, "{value} is one entry of {bucket}");
        };
        counts(0, 0);
        counts(1, 1);
        for bucket in 2..BUCKETS - 1 {
            counts(1 << (bucket - 1), bucket);
            counts((1 << bucket) - 1, bucket);
        }
        // The last takes all the rest.
        for value in [1 << 38, 1 << 39, 1 << 50, u64::MAX] {
            counts(value, 39);
        }
    }

    #[test]
    fn drops_add_up() {
        let counters = DropCounters::default();
        assert_eq!((counters.total(), counters.iter().count()), (0, 0));
        counters.add(DropReason::Overlimit, 2);
        counters.add(DropReason::Purged, 5);
        counters.add(DropReason::Overlimit, 1);
        assert_eq!(counters.total(), 8);
        assert_eq!(counters.get(DropReason::Overlimit), 3);
        let mut told: Vec<_> = counters.iter().collect();
        told.sort_by_key(|(_, n)| *n);
        assert_eq!(told, [(DropReason::Overlimit, 3), (DropReason::Purged, 5)]);
    }
}
