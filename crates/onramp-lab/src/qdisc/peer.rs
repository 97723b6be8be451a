//! Simple replacements for a qdisc: packets ordered by departure time; packets of the same flow
//! leave in the order in which they came.
//!
//! They get what the qdiscs have: a hash of a flow that costs one multiplication, and the flows of
//! a whole burst looked up one after another, so that the processor waits for several at once.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use onramp_core::Instant;
use onramp_queue::{Packet, PacketList};

use super::{BURST, PACKET_NS, Scheduler};

/// For each flow, the time at which its next packet may leave. All flows together send one packet
/// every 100 ns.
#[derive(Debug)]
struct Departures {
    next: HashMap<u64, u64, BuildHasherDefault<Multiply>>,
    gap_ns: u64,
    place: u64,
    /// The packets of the latest burst with their keys; empty between bursts.
    burst: Vec<Entry>,
}

/// A hasher for a single number, after Fibonacci hashing (Knuth, The Art of Computer Programming,
/// volume 3, section 6.4).
#[derive(Debug, Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn write_u64(&mut self, number: u64) {
        let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The map reads the high and the low bits. The low bits of a product are weak.
        self.0 = product ^ product >> 32;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("flows are numbers of 64 bits");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Departures {
    fn new(flows: u32) -> Self {
        let gap_ns = PACKET_NS * u64::from(flows);
        Self { next: HashMap::default(), gap_ns, place: 0, burst: Vec::new() }
    }

    /// Returns the packets of a burst with their keys.
    fn keys(&mut self, now: Instant, packets: PacketList) -> std::vec::Drain<'_, Entry> {
        for pkt in packets {
            let key = self.key(&pkt, now);
            self.burst.push(Entry { key, pkt });
        }
        self.burst.drain(..)
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
        self.heap.extend(self.departures.keys(now, packets));
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
        self.tree.extend(self.departures.keys(now, packets).map(|entry| (entry.key, entry.pkt)));
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
