//! The flows of `fq`: a slab, and the packets of each in order.
//!
//! A flow is one cache line. Its packets lie in a list sorted by time to send. Those that asked to
//! leave before the newest of the list go into a heap beside it, which only such flows have.
//!
//! Memory: 64 bytes a flow in the slab and 8 in each slot of the index, which is at most half
//! full. Both grow by doubling, and shrink only at a reset: a flow costs 80 to 160 bytes, 10,000
//! flows 1.25 MiB. A flow that has been idle for 3 s gives its place to a new one when there are
//! more than `buckets`; each new flow looks at the next 8, so that n new flows a second need at
//! most 3.5 n places.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use onramp_queue::{Meta, Packet, PacketList, prefetch};

use super::index::Index;

/// Names no flow, or no heap.
pub(super) const NONE: u32 = u32::MAX;

/// Linux counts the age of an idle flow in jiffies; these are as long as with `HZ=100`.
pub(super) const TICK_NS: u64 = 10_000_000;

/// Idle flows are collected after 3 s.
const GC_AGE_TICKS: u32 = 300;

/// Flows looked at when one is added.
const GC_MAX: usize = 8;

/// Where a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In no list: it has no packet, and is to be collected when it stays so.
    Detached,
    /// In a list of its band.
    Listed,
    /// In no list: it waits for its time.
    Throttled,
    /// Not in use.
    Free,
}

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Flow {
    /// Packets, by time to send.
    queue: PacketList,
    key: u64,
    /// Pacing: nothing leaves before; 0 = never paced yet.
    pub(super) time_next_ns: u64,
    /// Bytes it may still send in this round.
    pub(super) credit: i32,
    /// Throttled: its place among those that wait. Detached: when that happened, in ticks. Free:
    /// the next free one.
    pub(super) link: u32,
    /// Its heap of packets out of order.
    late: u32,
    pub(super) band: u8,
    pub(super) state: State,
}

const _: () = assert!(size_of::<Flow>() == 64, "a flow is one cache line");

impl Flow {
    fn new(key: u64, credit: i32, detached: u32) -> Self {
        Self {
            queue: PacketList::new(),
            key,
            time_next_ns: 0,
            credit,
            link: detached,
            late: NONE,
            band: 0,
            state: State::Detached,
        }
    }
}

/// A packet that leaves before one that came earlier.
#[derive(Debug)]
struct Late {
    time_ns: u64,
    /// Keeps those of one time in order.
    place: u64,
    pkt: Packet,
}

/// The earliest is the greatest, as `BinaryHeap` wants it.
impl Ord for Late {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time_ns, other.place).cmp(&(self.time_ns, self.place))
    }
}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Late {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Late {}

/// The packet of a flow that is next to leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) time_ns: u64,
    late: bool,
}

/// When a packet may leave, for its own part: the time it asked for, else the time it came.
#[inline]
fn time_to_send_ns(pkt: &Packet) -> u64 {
    if pkt.txtime_ns != 0 { pkt.txtime_ns } else { pkt.enqueued_ns }
}

/// All flows.
#[derive(Debug)]
pub(super) struct Flows {
    slab: Vec<Flow>,
    /// First of the free places of the slab.
    free: u32,
    /// Places in the slab, by key.
    index: Index,
    /// Found last.
    recent: (u64, u32),
    /// Where the collection of idle flows goes on.
    gc_at: usize,
    late: Vec<BinaryHeap<Late>>,
    late_free: Vec<u32>,
    late_places: u64,
}

/// Place of the flow of the fast path, which no key finds.
pub(super) const FAST: u32 = 0;

/// A flow that was looked for.
pub(super) struct Found {
    pub(super) index: u32,
    pub(super) fresh: bool,
    /// Idle flows collected meanwhile.
    pub(super) collected: u32,
}

impl Flows {
    pub(super) fn new() -> Self {
        Self {
            slab: vec![Flow::new(0, 0, 0)],
            free: NONE,
            index: Index::new(),
            recent: (0, NONE),
            gc_at: 1,
            late: Vec::new(),
            late_free: Vec::new(),
            late_places: 0,
        }
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &Flow {
        &self.slab[index as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut Flow {
        &mut self.slab[index as usize]
    }

    /// Flows there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Packets held of the flow of `key`.
    pub(super) fn held(&self, key: u64) -> usize {
        let is = |index: u32| self.slab[index as usize].key == key;
        self.index.find(self.index.hash(key), is).map_or(0, |index| self.packets(index))
    }

    /// Packets of these flows are about to come: asks for their slots, then for the flows, then
    /// for the packets that they come behind.
    #[inline]
    pub(super) fn prefetch_flows(&self, keys: impl Iterator<Item = u64> + Clone) {
        let guesses = || keys.clone().filter_map(|key| self.index.guess(self.index.hash(key)));
        keys.clone().for_each(|key| self.index.prefetch(self.index.hash(key)));
        guesses().for_each(|index| prefetch(self.get(index)));
        guesses().for_each(|index| self.get(index).queue.prefetch_back());
    }

    /// Asks the processor for a flow.
    #[inline]
    pub(super) fn prefetch_flow(&self, index: u32) {
        prefetch(self.get(index));
    }

    /// Asks the processor for the first packet of a flow.
    #[inline]
    pub(super) fn prefetch_packet(&self, index: u32) {
        self.get(index).queue.prefetch_front();
    }

    /// Finds the flow of `key`, or makes one with `credit`; beyond `room` flows, it then first
    /// collects idle ones.
    #[inline]
    pub(super) fn find_or_insert(
        &mut self,
        key: u64,
        credit: i32,
        now_ns: u64,
        room: usize,
    ) -> Found {
        if self.recent.0 == key && self.recent.1 != NONE {
            return Found { index: self.recent.1, fresh: false, collected: 0 };
        }
        let hash = self.index.hash(key);
        let slab = &self.slab;
        if let Some(index) = self.index.find(hash, |index| slab[index as usize].key == key) {
            self.recent = (key, index);
            return Found { index, fresh: false, collected: 0 };
        }
        self.insert(key, credit, ticks(now_ns), room)
    }

    #[cold]
    fn insert(&mut self, key: u64, credit: i32, now: u32, room: usize) -> Found {
        let collected = if self.len() >= room { self.collect(now) } else { 0 };
        let flow = Flow::new(key, credit, now | 1);
        let index = if self.free == NONE {
            self.slab.push(flow);
            u32::try_from(self.slab.len() - 1).expect("memory ends before 2^32 flows")
        } else {
            let index = self.free;
            self.free = self.get(index).link;
            self.slab[index as usize] = flow;
            index
        };
        self.index.insert(self.index.hash(key), index);
        self.recent = (key, index);
        Found { index, fresh: true, collected }
    }

    /// Frees idle flows among the next few; says how many.
    fn collect(&mut self, now: u32) -> u32 {
        let mut collected = 0;
        for _ in 0..GC_MAX.min(self.slab.len()) {
            self.gc_at = if self.gc_at < self.slab.len() { self.gc_at } else { 1 };
            let flow = &self.slab[self.gc_at];
            let old_at = flow.link.wrapping_add(GC_AGE_TICKS);
            if flow.state == State::Detached && is_after(now, old_at) {
                self.remove(self.gc_at);
                collected += 1;
            }
            self.gc_at += 1;
        }
        collected
    }

    fn remove(&mut self, place: usize) {
        #[expect(clippy::cast_possible_truncation, reason = "indices are 32 bits wide")]
        let index = place as u32;
        let flow = &mut self.slab[place];
        self.index.remove(self.index.hash(flow.key), index);
        flow.state = State::Free;
        flow.link = self.free;
        self.free = index;
        if self.recent.1 == index {
            self.recent.1 = NONE;
        }
    }

    /// Packets of a flow.
    #[inline]
    pub(super) fn packets(&self, index: u32) -> usize {
        let flow = self.get(index);
        let late = if flow.late == NONE { 0 } else { self.late[flow.late as usize].len() };
        flow.queue.len() as usize + late
    }

    /// Whether a flow has no packets.
    #[inline]
    pub(super) fn is_empty(&self, index: u32) -> bool {
        let flow = self.get(index);
        flow.queue.is_empty() && flow.late == NONE
    }

    /// Adds a packet where its time to send puts it, behind those of the same time.
    #[inline]
    pub(super) fn push(&mut self, index: u32, mut pkt: Packet, now_ns: u64) {
        let flow = &mut self.slab[index as usize];
        let newest_ns = flow.queue.back().map_or(0, time_to_send_ns);
        if pkt.txtime_ns == 0 {
            // The wait before it came here counts; but nobody asked to overtake what is due.
            let came_ns = if pkt.enqueued_ns == 0 { now_ns } else { pkt.enqueued_ns };
            pkt.enqueued_ns = came_ns.max(newest_ns).min(now_ns);
        }
        let time_ns = time_to_send_ns(&pkt);
        if time_ns >= newest_ns {
            flow.queue.push_back(pkt);
        } else {
            self.push_late(index, time_ns, pkt);
        }
    }

    #[cold]
    fn push_late(&mut self, index: u32, time_ns: u64, pkt: Packet) {
        let flow = &mut self.slab[index as usize];
        if flow.late == NONE {
            flow.late = self.late_free.pop().unwrap_or_else(|| {
                self.late.push(BinaryHeap::new());
                u32::try_from(self.late.len() - 1).expect("there are fewer heaps than flows")
            });
        }
        let place = self.late_places;
        self.late_places += 1;
        self.late[flow.late as usize].push(Late { time_ns, place, pkt });
    }

    /// The packet next to leave.
    #[inline]
    pub(super) fn head(&self, index: u32) -> Option<Head> {
        let flow = self.get(index);
        let listed = flow.queue.front();
        let listed = listed.map(|pkt| Head { time_ns: time_to_send_ns(pkt), late: false });
        if flow.late == NONE { listed } else { self.earlier(flow, listed) }
    }

    /// The earlier of the oldest packet of the list and the first of the heap.
    #[cold]
    fn earlier(&self, flow: &Flow, listed: Option<Head>) -> Option<Head> {
        let late = self.late[flow.late as usize].peek();
        let late = late.map(|late| Head { time_ns: late.time_ns, late: true });
        match (listed, late) {
            (Some(listed), Some(late)) if late.time_ns >= listed.time_ns => Some(listed),
            (listed, late) => late.or(listed),
        }
    }

    /// Takes the packet that [`Flows::head`] told of.
    #[inline]
    pub(super) fn pop(&mut self, index: u32, head: Head) -> Option<Packet> {
        if head.late { self.pop_late(index) } else { self.get_mut(index).queue.pop_front() }
    }

    #[cold]
    fn pop_late(&mut self, index: u32) -> Option<Packet> {
        let flow = &mut self.slab[index as usize];
        let heap = &mut self.late[flow.late as usize];
        let pkt = heap.pop().map(|late| late.pkt);
        if heap.is_empty() {
            self.late_free.push(flow.late);
            flow.late = NONE;
        }
        pkt
    }

    /// All packets, but those of the fast path.
    pub(super) fn metas(&self) -> impl Iterator<Item = &Meta> {
        let lists = self.slab[1..].iter().flat_map(|flow| flow.queue.metas());
        lists.chain(self.late.iter().flatten().map(|late| &*late.pkt))
    }

    /// Takes any packet of any flow.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Packet> {
        let lists = self.slab.iter_mut().flat_map(|flow| std::mem::take(&mut flow.queue));
        lists.chain(self.late.iter_mut().flat_map(|heap| heap.drain().map(|late| late.pkt)))
    }
}

/// Time in ticks; they wrap around after 497 days.
#[inline]
pub(super) fn ticks(now_ns: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "wraps around")]
    let ticks = (now_ns / TICK_NS) as u32;
    ticks
}

/// Whether tick `a` is later than `b`.
#[inline]
pub(super) fn is_after(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const SEC: u64 = 1_000_000_000;

    #[test]
    fn ten_thousand_idle_flows_cost_what_the_docs_say() {
        let mut flows = Flows::new();
        for key in 0..10_000 {
            flows.find_or_insert(key, 0, 0, 1024);
        }
        assert_eq!(flows.len(), 10_000);
        let bytes = flows.slab.capacity() * size_of::<Flow>() + flows.index.bytes();
        assert_eq!(bytes, (5 << 20) / 4);
    }

    #[test]
    fn new_flows_take_the_places_of_idle_ones() {
        let mut flows = Flows::new();
        let per_sec = 10_000;
        for key in 0..30 * per_sec {
            flows.find_or_insert(key, 0, key * SEC / per_sec, 1024);
            assert!(flows.len() as u64 <= per_sec * 35 / 10, "{}", flows.len());
        }
    }

    #[test]
    fn only_idle_flows_go_and_the_rest_is_found() {
        let (mut flows, mut known) = (Flows::new(), HashMap::new());
        let (mut random, mut gone) = (1_u64, 0);
        for step in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (key, now_ns) = (random >> 52, step * SEC / 300);
            let found = flows.find_or_insert(key, 0, now_ns, 100);
            if found.collected > 0 {
                let before = known.len();
                known.retain(|key, index| {
                    let flow = flows.get(*index);
                    flow.key == *key && (flow.state != State::Free && *index != found.index)
                });
                assert_eq!(before - known.len(), found.collected as usize);
                gone += found.collected;
            }
            assert_eq!(known.insert(key, found.index), (!found.fresh).then_some(found.index));
            assert_eq!(flows.len(), known.len());
            // A quarter of the flows never becomes idle; the rest just now.
            let flow = flows.get_mut(found.index);
            flow.link = ticks(now_ns) | 1;
            flow.state = if key % 4 == 0 { State::Listed } else { State::Detached };
        }
        assert!(gone > 1_000, "{gone} collected");
        for (key, index) in &known {
            let found = flows.find_or_insert(*key, 0, 0, usize::MAX);
            assert!(!found.fresh && found.index == *index);
        }
    }
}
