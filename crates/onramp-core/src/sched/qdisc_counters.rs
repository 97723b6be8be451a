//! What passes a qdisc, counted.

use onramp_queue::{DropReason, Packet};

use crate::base::stats::{BUCKETS, bucket_of};
use crate::base::{Counters, Instant};
use crate::sched::{Cx, segments};

/// What left a qdisc, and what was dropped in it or below it. Whoever calls the qdisc keeps it, so
/// that a qdisc has no part in it: a parent for its children, the tree for its root.
#[derive(Debug, Default)]
pub(crate) struct QdiscCounters {
    bytes: u64,
    /// A packet of several datagrams counts as these, as in Linux (`bstats_update`).
    packets: u64,
    /// What most qdiscs have no need of.
    rare: Option<Box<Rare>>,
}

#[derive(Debug)]
struct Rare {
    dropped: [u64; DropReason::ALL.len()],
    /// Packets dropped as they came, and those for which another was dropped.
    refused: u64,
    /// What left through a class before the qdisc below it was replaced.
    before: (u64, u64),
    /// Nanoseconds from push to dequeue, if somebody measures.
    sojourn_ns: Option<Box<[u64; BUCKETS]>>,
}

impl Rare {
    const NONE: Self =
        Self { dropped: [0; DropReason::ALL.len()], refused: 0, before: (0, 0), sojourn_ns: None };
}

impl QdiscCounters {
    /// One that will not allocate when the first packet is dropped.
    pub(crate) fn roomy() -> Self {
        Self { rare: Some(Box::new(Rare::NONE)), ..Self::default() }
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_with(|| Box::new(Rare::NONE))
    }

    /// Counts a packet that left.
    #[inline]
    pub(crate) fn count(&mut self, pkt: &Packet, cx: &Cx<'_>) {
        self.bytes += u64::from(pkt.len);
        self.packets += u64::from(segments::count(pkt));
        if cx.measures {
            self.measure(pkt, cx.now);
        }
    }

    fn measure(&mut self, pkt: &Packet, now: Instant) {
        let none = || Box::new([0; BUCKETS]);
        let counts = self.rare().sojourn_ns.get_or_insert_with(none);
        counts[bucket_of(now.since(Instant(pkt.enqueued_ns)))] += 1;
    }

    /// Counts what was dropped since there were `before` packets in `cx.drops`.
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

    /// Counts a packet that was dropped as it came, or for which another was: its class counts no
    /// other.
    #[cold]
    pub(crate) fn refuse(&mut self) {
        self.rare().refused += 1;
    }

    /// Begins anew, for another qdisc; what passed the class above it stays known.
    pub(crate) fn restart(&mut self) {
        let before = self.class();
        let rare =
            Rare { refused: before.drops, before: (before.bytes, before.packets), ..Rare::NONE };
        let none = before == Counters::default();
        *self = Self { rare: (!none).then(|| Box::new(rare)), ..Self::default() };
    }

    /// What passed the qdisc.
    pub(crate) fn qdisc(&self) -> Counters {
        let drops = self.rare.as_ref().map_or(0, |rare| rare.dropped.iter().sum());
        Counters { bytes: self.bytes, packets: self.packets, drops, ..Counters::default() }
    }

    /// What passed the class above the qdisc, if it counts for itself.
    pub(crate) fn class(&self) -> Counters {
        let (mut bytes, mut packets, mut drops) = (self.bytes, self.packets, 0);
        if let Some(rare) = &self.rare {
            (bytes, packets) = (bytes + rare.before.0, packets + rare.before.1);
            drops = rare.refused;
        }
        Counters { bytes, packets, drops, ..Counters::default() }
    }

    /// Drops by reason, those that occurred.
    pub(crate) fn drops(&self) -> Vec<(DropReason, u64)> {
        let Some(rare) = &self.rare else { return Vec::new() };
        let all = DropReason::ALL.iter().zip(rare.dropped);
        all.filter(|(_, n)| *n > 0).map(|(reason, n)| (*reason, n)).collect()
    }

    /// Nanoseconds from push to dequeue, if somebody measured.
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
        /// Drops for any reasons, in calls that may be inside one another, are each counted once by
        /// every counters that was looking.
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
