//! Simple replacements for a qdisc: packets ordered by departure time; packets of the same flow
//! leave in the order in which they came.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use onramp_core::Instant;
use onramp_queue::{Packet, PacketList};

use super::{BURST, PACKET_NS, Scheduler};

/// For each flow, the time at which its next packet may leave. All flows together send one packet
/// every 100 ns.
#[derive(Debug)]
struct Departures {
    next: HashMap<u64, u64>,
    gap_ns: u64,
    place: u64,
}

impl Departures {
    fn new(flows: u32) -> Self {
        Self { next: HashMap::new(), gap_ns: PACKET_NS * u64::from(flows), place: 0 }
    }

    /// Returns a packet's departure time, and a number that orders packets with the same departure
    /// time.
    fn key(&mut self, pkt: &Packet, now: Instant) -> (u64, u64) {
        let departure = self.next.entry(pkt.flow).or_default();
        let at_ns = (*departure).max(now.0);
        *departure = at_ns + self.gap_ns;
        self.place += 1;
        (at_ns, self.place)
    }
}

/// A replacement for a qdisc that keeps packets in a binary heap.
#[derive(Debug)]
pub(super) struct Heap {
    departures: Departures,
    heap: BinaryHeap<Entry>,
}

#[derive(Debug)]
struct Entry {
    key: (u64, u64),
    pkt: Packet,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Entry {}

impl Heap {
    pub(super) fn new(flows: u32) -> Self {
        Self { departures: Departures::new(flows), heap: BinaryHeap::new() }
    }
}

impl Scheduler for Heap {
    fn put(&mut self, now: Instant, packets: PacketList) {
        for pkt in packets {
            self.heap.push(Entry { key: self.departures.key(&pkt, now), pkt });
        }
    }

    fn take(&mut self, now: Instant, out: &mut PacketList, _drops: &mut PacketList) {
        for _ in 0..BURST {
            if self.heap.peek().is_none_or(|entry| entry.key.0 > now.0) {
                return;
            }
            out.extend(self.heap.pop().map(|entry| entry.pkt));
        }
    }
}

/// A replacement for a qdisc that keeps packets in a search tree.
#[derive(Debug)]
pub(super) struct Sorted {
    departures: Departures,
    tree: BTreeMap<(u64, u64), Packet>,
}

impl Sorted {
    pub(super) fn new(flows: u32) -> Self {
        Self { departures: Departures::new(flows), tree: BTreeMap::new() }
    }
}

impl Scheduler for Sorted {
    fn put(&mut self, now: Instant, packets: PacketList) {
        for pkt in packets {
            self.tree.insert(self.departures.key(&pkt, now), pkt);
        }
    }

    fn take(&mut self, now: Instant, out: &mut PacketList, _drops: &mut PacketList) {
        for _ in 0..BURST {
            match self.tree.first_entry() {
                Some(first) if first.key().0 <= now.0 => out.push_back(first.remove()),
                _ => return,
            }
        }
    }
}
