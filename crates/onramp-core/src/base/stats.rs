//! Counters of a port. Only the port's owner writes them; any thread may read them.

use onramp_queue::{Counter, DropReason, PacketList};

use crate::base::Instant;

/// A histogram by powers of two: bucket `i` counts values from `2^(i-1)` to below `2^i`, and bucket
/// 0 counts zeros.
///
/// The buckets of a histogram of nanoseconds reach up to nine minutes with 40 buckets. The last
/// bucket also counts all larger values.
#[derive(Debug)]
pub struct Histogram([Counter; BUCKETS]);

/// Number of buckets of a [`Histogram`].
pub const BUCKETS: usize = 40;

/// Returns the index of the bucket of a [`Histogram`] that counts `value`.
///
/// ```
/// use onramp_core::stats::bucket_of;
///
/// assert_eq!([0, 1, 2, 3, 4].map(bucket_of), [0, 1, 2, 2, 3]);
/// ```
#[must_use]
#[inline]
pub fn bucket_of(value: u64) -> usize {
    let bits = (u64::BITS - value.leading_zeros()) as usize;
    bits.min(BUCKETS - 1)
}

impl Default for Histogram {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::new()))
    }
}

impl Histogram {
    /// Counts one event with `value` in its bucket. Only the owner of the port may call `record`.
    #[inline]
    pub fn record(&self, value: u64) {
        self.0[bucket_of(value)].add(1);
    }

    /// Returns the present count of each bucket.
    #[must_use]
    pub fn snapshot(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|bucket| self.0[bucket].get())
    }
}

/// The number of dropped packets for each drop reason.
#[derive(Debug)]
pub struct DropCounters([Counter; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::new()))
    }
}

impl DropCounters {
    /// Counts `n` drops for `reason`. Only the owner of the port may call `add`.
    #[inline]
    pub fn add(&self, reason: DropReason, n: u64) {
        self.0[reason as usize].add(n);
    }

    /// Returns the number of drops for `reason`.
    #[must_use]
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].get()
    }

    /// Returns the number of drops for all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }

    /// Returns, for each drop reason that occurred, the reason and the number of drops.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.0[reason as usize].get()))
            .filter(|&(_, n)| n > 0)
    }
}

/// The values of all counters of a port at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PortSnapshot {
    /// Number of packets given to the qdisc, plus packets that the qdisc itself created.
    pub enqueued: u64,
    /// Number of packets, included in `enqueued`, that the qdisc itself created: the duplicates of
    /// `netem`, and the parts of packets that a qdisc split.
    pub made: u64,
    /// Number of packets that the device took.
    pub sent: u64,
    /// Bytes on the wire of the packets counted in `sent`.
    pub sent_bytes: u64,
    /// Number of dropped packets for each drop reason that occurred.
    pub dropped: Vec<(DropReason, u64)>,
    /// Number of packets that the port holds: staged, queued, or dequeued but not yet taken by the
    /// device.
    pub held: u64,
    /// Number of times that a thread became owner of the port.
    pub runs: u64,
    /// Number of times that a sender that had no credit left became owner of the port and sent.
    pub helped: u64,
    /// Number of times that the port became busy (pushes only stage packets).
    pub busy: u64,
    /// Number of times that the port handed packets to the device.
    pub bursts: u64,
    /// Histogram, by powers of two, of the number of packets that the port handed to the device at
    /// a time.
    pub burst_packets: [u64; BUCKETS],
    /// Histogram of the nanoseconds that the oldest packet in the intake had waited when an owner
    /// took all packets from the intake, by powers of two.
    pub staging_ns: [u64; BUCKETS],
    /// Histogram of the nanoseconds from push to device, for the oldest packet of each burst, by
    /// powers of two.
    pub sojourn_ns: [u64; BUCKETS],
    /// Histogram of the nanoseconds from the instant at which the qdisc could release a packet that
    /// it had held back (or from the later time for which the port had asked: see
    /// [`Wakes`](crate::Wakes)), to the owner that came for it, by powers of two; an owner that
    /// came before counts as 0. How late an owner comes for packets that were pushed into an idle
    /// port is in `staging_ns`.
    pub late_ns: [u64; BUCKETS],
    /// Nanoseconds in all by which owners came later than the port can catch up on. Shapers lose
    /// the rate of this time.
    pub lost_ns: u64,
}

/// The counters of a port. Only the port's owner writes them.
#[derive(Debug, Default)]
pub struct PortStats {
    /// Number of packets taken from the intake and given to the qdisc, plus packets that the qdisc
    /// itself created.
    pub enqueued: Counter,
    /// Number of packets, included in `enqueued`, that the qdisc itself created.
    pub made: Counter,
    /// Number of packets that the device took.
    pub sent: Counter,
    /// Bytes on the wire of the packets counted in `sent`.
    pub sent_bytes: Counter,
    /// Number of packets dropped by the port, its qdisc or its device, for each drop reason.
    pub dropped: DropCounters,
    /// Number of packets that have left the intake and are still in the port: before the qdisc, in
    /// the qdisc, or dequeued and not yet taken by the device.
    pub backlog: Counter,
    /// Number of times that a thread became owner of the port.
    pub runs: Counter,
    /// Number of times that a sender that had no credit left became owner of the port and sent.
    pub helped: Counter,
    /// Number of times that the port became busy (pushes only stage packets).
    pub busy: Counter,
    /// Number of times that the port handed packets to the device.
    pub bursts: Counter,
    /// Histogram of the number of packets that the port handed to the device at a time.
    pub burst_packets: Histogram,
    /// Histogram of the nanoseconds that the oldest packet in the intake had waited when an owner
    /// took all packets from the intake.
    pub staging_ns: Histogram,
    /// Histogram of the nanoseconds from push to device, for the oldest packet of each burst
    /// (packets handed to the device together).
    pub sojourn_ns: Histogram,
    /// Histogram of the nanoseconds from the instant at which the qdisc could release a packet that
    /// it had held back, plus the port's slack, to the owner that came for it.
    pub late_ns: Histogram,
    /// Nanoseconds in all by which owners came later than the port can catch up on.
    pub lost_ns: Counter,
}

impl PortStats {
    /// Returns the present values of the counters, which are read one after another. `staged` is
    /// the number of packets in the intake.
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
            late_ns: self.late_ns.snapshot(),
            lost_ns: self.lost_ns.get(),
        }
    }

    /// Counts a burst of `packets` packets with `bytes` bytes that the port handed to the device at
    /// `now`; the oldest of them came to the port at `oldest`. `out` contains the packets that the
    /// device has returned already, sent or dropped; all other packets of the burst count as sent.
    /// Writes into the packets in `out` when they left.
    #[inline]
    pub(crate) fn count_out(
        &self,
        packets: u32,
        bytes: u64,
        oldest: Instant,
        now: Instant,
        out: &mut PacketList,
    ) {
        if packets == 0 {
            return;
        }
        self.sojourn_ns.record(now.since(oldest));
        let (mut failed, mut failed_bytes) = (0, 0);
        for meta in out.metas_mut() {
            meta.txtime_ns = now.0;
            // At push, each packet gets the drop reason `PortDead`, in case the port dies. A packet
            // that still has this reason was not dropped by the device, so the reason is removed.
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

    /// Counts an owner that came `late_ns` nanoseconds after the time that the port had asked for,
    /// and that cannot catch up on `lost_ns` nanoseconds. `late_ns` is `None` if an earlier owner
    /// has already counted the lateness.
    #[inline]
    pub(crate) fn count_late(&self, late_ns: Option<u64>, lost_ns: u64) {
        if let Some(late_ns) = late_ns {
            self.late_ns.record(late_ns);
        }
        self.lost_ns.add(lost_ns);
    }

    /// Counts the packets in `drops`, which were dropped at `now`, and writes that time into them.
    pub(crate) fn count_drops(&self, drops: &mut PacketList, now: Instant) {
        for meta in drops.metas_mut() {
            meta.txtime_ns = now.0;
            self.dropped.add(meta.drop_reason.unwrap_or(DropReason::DeviceError), 1);
        }
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
        // The last bucket also counts all larger values.
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
