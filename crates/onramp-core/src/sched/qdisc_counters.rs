//! Counters of the packets that pass a qdisc. The caller of the qdisc keeps these counters.

use onramp_queue::{DropReason, Packet};

use crate::base::stats::{BUCKETS, bucket_of};
use crate::base::{Counters, Instant};
use crate::sched::call::Cx;
use crate::sched::segments;

/// Counts the packets that left a qdisc, and those that were dropped in the qdisc or below it. The
/// caller of the qdisc has these counters (a parent qdisc for its children, the tree for its root),
/// so that a qdisc need not count.
#[derive(Debug, Default)]
pub(crate) struct QdiscCounters {
    bytes: u64,
    /// Number of packets that left. A packet that carries several datagrams counts once for each of
    /// them, as in Linux (`bstats_update`).
    packets: u64,
    /// Counters that most qdiscs do not need. They are allocated when they are first needed.
    rare: Option<Box<Rare>>,
}

#[derive(Debug)]
struct Rare {
    dropped: [u64; DropReason::ALL.len()],
    /// Number of packets that were dropped when they arrived, or for which another packet was
    /// dropped when they arrived.
    refused: u64,
    /// Bytes and packets that left through the class above this qdisc while other qdiscs stood
    /// below that class, before this qdisc replaced them.
    before: (u64, u64),
    /// Histogram of the sojourn times of packets (nanoseconds from push to dequeue), or `None` if
    /// none was measured.
    sojourn_ns: Option<Box<[u64; BUCKETS]>>,
}

impl Rare {
    const NONE: Self =
        Self { dropped: [0; DropReason::ALL.len()], refused: 0, before: (0, 0), sojourn_ns: None };
}

impl QdiscCounters {
    /// Creates counters with the memory for rare counters, so that counting the first drop need not
    /// allocate.
    pub(crate) fn roomy() -> Self {
        Self { rare: Some(Box::new(Rare::NONE)), ..Self::default() }
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_with(|| Box::new(Rare::NONE))
    }

    /// Counts a packet that left the qdisc.
    #[inline]
    pub(crate) fn count(&mut self, pkt: &Packet, cx: &Cx<'_>) {
        self.count_parts(pkt, segments::count(pkt), cx);
    }

    /// Counts a packet of `parts` datagrams that left the qdisc.
    #[inline]
    pub(crate) fn count_parts(&mut self, pkt: &Packet, parts: u32, cx: &Cx<'_>) {
        self.bytes += u64::from(pkt.len);
        self.packets += u64::from(parts);
        if cx.measures {
            self.measure(pkt, cx.now);
        }
    }

    fn measure(&mut self, pkt: &Packet, now: Instant) {
        let none = || Box::new([0; BUCKETS]);
        let counts = self.rare().sojourn_ns.get_or_insert_with(none);
        counts[bucket_of(now.since(Instant(pkt.enqueued_ns)))] += 1;
    }

    /// Counts the packets that were dropped since `cx.drops` held `before` packets.
    #[inline]
    pub(crate) fn count_dropped(&mut self, before: u32, cx: &Cx<'_>) {
        if cx.drops.len() > before {
            self.count_drops(before, cx);
        }
    }

    #[cold]
    fn count_drops(&mut self, before: u32, cx: &Cx<'_>) {
        let rare = self.rare();
        if let Some(reason) = cx.reason_since(before) {
            rare.dropped[reason as usize] += u64::from(cx.drops.len() - before);
            return;
        }
        for pkt in cx.drops.metas().skip(before as usize) {
            rare.dropped[pkt.drop_reason.unwrap_or(DropReason::DeviceError) as usize] += 1;
        }
    }

    /// Counts a packet that was dropped on arrival, or for which another packet was dropped. The
    /// drops that a class counts itself (see [`class`](Self::class)) are these, and no others.
    #[cold]
    pub(crate) fn refuse(&mut self) {
        self.rare().refused += 1;
    }

    /// Sets the counters back to zero for a new qdisc. What the class above the qdisc has counted
    /// is kept.
    pub(crate) fn restart(&mut self) {
        let before = self.class();
        let rare =
            Rare { refused: before.drops, before: (before.bytes, before.packets), ..Rare::NONE };
        let none = before == Counters::default();
        *self = Self { rare: (!none).then(|| Box::new(rare)), ..Self::default() };
    }

    /// Returns what the qdisc has counted.
    pub(crate) fn qdisc(&self) -> Counters {
        let drops = self.rare.as_ref().map_or(0, |rare| rare.dropped.iter().sum());
        Counters { bytes: self.bytes, packets: self.packets, drops, ..Counters::default() }
    }

    /// Returns the counters of the class above the qdisc, for kinds whose classes have counters of
    /// their own. They go on when another qdisc is put below the class.
    pub(crate) fn class(&self) -> Counters {
        let (mut bytes, mut packets, mut drops) = (self.bytes, self.packets, 0);
        if let Some(rare) = &self.rare {
            (bytes, packets) = (bytes + rare.before.0, packets + rare.before.1);
            drops = rare.refused;
        }
        Counters { bytes, packets, drops, ..Counters::default() }
    }

    /// Returns the number of drops for each reason that occurred.
    pub(crate) fn drops(&self) -> Vec<(DropReason, u64)> {
        let Some(rare) = &self.rare else { return Vec::new() };
        let all = DropReason::ALL.iter().zip(rare.dropped);
        all.filter(|(_, n)| *n > 0).map(|(reason, n)| (*reason, n)).collect()
    }

    /// Returns the histogram of the sojourn times of packets (nanoseconds from push to dequeue), or
    /// `None` if none was measured.
    pub(crate) fn sojourn_ns(&self) -> Option<Box<[u64; BUCKETS]>> {
        self.rare.as_ref()?.sojourn_ns.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onramp_queue::PacketList;
    use proptest::prelude::*;

    proptest! {
        /// If one qdisc drops packets, and calls another qdisc that drops packets too, the counters
        /// of the second qdisc count its own drops, and those of the first qdisc count the drops of
        /// both qdiscs. Each drop counts once, under its own reason.
        #[test]
        fn reasons_are_counted_whatever_their_order(
            calls in prop::collection::vec(prop::collection::vec(0_usize..4, 0..6), 0..20),
        ) {
            let mut drops = PacketList::new();
            let mut cx = Cx::new(Instant(1), &mut drops);
            let (mut outer, mut inner) = (QdiscCounters::default(), QdiscCounters::roomy());
            for call in &calls {
                let before = cx.drops.len();
                cx.drop(Packet::new(1), DropReason::ALL[0]);
                let begun = cx.drops.len();
                call.iter().for_each(|reason| cx.drop(Packet::new(1), DropReason::ALL[*reason]));
                inner.count_dropped(begun, &cx);
                outer.count_dropped(before, &cx);
            }
            for (place, reason) in DropReason::ALL.iter().enumerate() {
                let told = |counters: &QdiscCounters| {
                    counters.drops().into_iter().find(|(r, _)| r == reason).map_or(0, |(_, n)| n)
                };
                let came = calls.iter().flatten().filter(|r| **r == place).count() as u64;
                prop_assert_eq!(told(&inner), came);
                let own = if place == 0 { calls.len() as u64 } else { 0 };
                prop_assert_eq!(told(&outer), came + own);
            }
        }
    }
}
