//! The flows of `fq`: a slab (an array whose places are reused) of flows, and the packets of each
//! flow in order.
//!
//! A flow takes one cache line. Its packets lie in a list sorted by time to send. A packet that
//! asks to leave before the newest packet of the list goes into a separate heap of that flow; only
//! flows with such packets have a heap.
//!
//! Memory: 64 bytes for each flow in the slab, and 8 bytes for each slot of the index, which is at
//! most half full. Both grow by doubling and shrink only at a reset: a flow costs 80 to 160 bytes,
//! 10,000 flows cost 1.25 MiB. When there are more than `buckets` flows, new flows take the places
//! of flows that have been idle for 3 s. For each new flow, the next 8 flows of the slab are
//! checked for being idle that long. With n new flows a second, a check of all P places takes P/8n
//! seconds, so an idle flow keeps its place for at most 3 s + P/8n, and P is at most 3.5 n.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use onramp_queue::{Meta, Packet, PacketList, charge, prefetch};

use super::index::Index;

/// The value that means "none" where the number of a flow or of a heap is expected.
pub(super) const NONE: u32 = u32::MAX;

/// Length of a jiffy, in nanoseconds, with `HZ=100`: as in Linux, the time for which a flow has
/// been idle is counted in jiffies.
pub(super) const TICK_NS: u64 = 10_000_000;

/// How long a flow must have been idle before it may be removed: 3 s, in jiffies of 10 ms.
const GC_AGE_TICKS: u32 = 300;

/// Number of flows that are checked for idleness whenever a flow is added.
const GC_MAX: usize = 8;

/// The state of a flow, which says in which list the flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In no list: the flow has no packets, and may be removed once it has been idle for long
    /// enough.
    Detached,
    /// The flow is in a list of its band.
    Listed,
    /// In no list: the flow waits until its next packet may leave.
    Throttled,
    /// This place in the slab is not in use.
    Free,
}

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Flow {
    /// The packets of this flow that came in order, sorted by time to send.
    queue: PacketList,
    key: u64,
    /// The time before which pacing lets no packet of this flow leave, in nanoseconds; 0 if the
    /// flow was never paced.
    pub(super) time_next_ns: u64,
    /// Number of bytes that this flow may still send in this round.
    pub(super) credit: i32,
    /// The meaning depends on the state of the flow. Throttled: the number of the flow's entry
    /// among the waiting flows. Detached: when the flow became idle, in jiffies of 10 ms. Free: the
    /// next free place of the slab.
    pub(super) link: u32,
    /// Number of the heap that holds this flow's out-of-order packets, or `NONE`.
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

/// An out-of-order packet: a packet that leaves before a packet of the same flow that came earlier.
#[derive(Debug)]
struct Late {
    time_ns: u64,
    /// Sequence number that keeps packets with equal times in the order they came.
    place: u64,
    pkt: Packet,
}

/// The order is reversed: `BinaryHeap` returns the greatest element first, and the earliest packet
/// must come first.
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

/// Describes the packet of a flow that is to leave next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) time_ns: u64,
    late: bool,
}

/// Returns the earliest time at which a packet may leave, pacing aside: the departure time that the
/// packet asks for, else the time at which it came. In nanoseconds.
#[inline]
fn time_to_send_ns(pkt: &Packet) -> u64 {
    if pkt.txtime_ns != 0 { pkt.txtime_ns } else { pkt.enqueued_ns }
}

/// All flows of an `fq`.
#[derive(Debug)]
pub(super) struct Flows {
    slab: Vec<Flow>,
    /// The first free place of the slab, or `NONE`; each free place names the next one.
    free: u32,
    /// Finds the place of a flow in the slab from the flow's key.
    index: Index,
    /// Key of the flow that was found last, and its place in the slab.
    recent: (u64, u32),
    /// The place in the slab at which the next search for flows that have been idle for long
    /// begins.
    gc_at: usize,
    late: Vec<BinaryHeap<Late>>,
    late_free: Vec<u32>,
    late_places: u64,
}

/// Place in the slab of a special flow that holds the packets of the fast path. No key finds that
/// flow.
pub(super) const FAST: u32 = 0;

/// The result of `find_or_insert`: the flow that was found or created.
pub(super) struct Found {
    pub(super) index: u32,
    pub(super) fresh: bool,
    /// Number of idle flows that were removed to make room.
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
        let flow = &mut self.slab[index as usize];
        charge(flow);
        flow
    }

    /// Returns the number of flows, not counting that of the fast path.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns how many packets the flow with the key `key` holds.
    pub(super) fn held(&self, key: u64) -> usize {
        let is = |index: u32| self.slab[index as usize].key == key;
        self.index.find(self.index.hash(key), is).map_or(0, |index| self.packets(index))
    }

    /// Prefetches the memory that enqueuing packets of the flows `keys` will need soon: first the
    /// slots of the index, then the flows, then the last packet in each flow's list.
    #[inline]
    pub(super) fn prefetch_flows(&self, keys: impl Iterator<Item = u64> + Clone) {
        let guesses = || keys.clone().filter_map(|key| self.index.guess(self.index.hash(key)));
        keys.clone().for_each(|key| self.index.prefetch(self.index.hash(key)));
        guesses().for_each(|index| prefetch(self.get(index)));
        guesses().for_each(|index| self.get(index).queue.prefetch_back());
    }

    /// Asks the processor to load the data of a flow into its cache.
    #[inline]
    pub(super) fn prefetch_flow(&self, index: u32) {
        prefetch(self.get(index));
    }

    /// Asks the processor to load the first packet of a flow into its cache.
    #[inline]
    pub(super) fn prefetch_packet(&self, index: u32) {
        self.get(index).queue.prefetch_front();
    }

    /// Returns the packets of a flow that came in order.
    #[inline]
    pub(super) fn in_order(&self, index: u32) -> &PacketList {
        &self.get(index).queue
    }

    /// Finds the flow with the key `key`, or creates it; a new flow may send `credit` bytes in its
    /// first round. If a flow must be created and there already are `room` flows or more, first
    /// removes idle flows.
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
        let is = |index| {
            let flow: &Flow = self.get(index);
            charge(flow);
            flow.key == key
        };
        if let Some(index) = self.index.find(hash, is) {
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

    /// Checks the next few flows of the slab, removes those that have been idle for long, and
    /// returns how many were removed.
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

    /// Returns the number of packets that the flow at place `index` holds.
    #[inline]
    pub(super) fn packets(&self, index: u32) -> usize {
        let flow = self.get(index);
        let late = if flow.late == NONE { 0 } else { self.late[flow.late as usize].len() };
        flow.queue.len() as usize + late
    }

    /// Whether the flow at place `index` has no packets.
    #[inline]
    pub(super) fn is_empty(&self, index: u32) -> bool {
        let flow = self.get(index);
        flow.queue.is_empty() && flow.late == NONE
    }

    /// Adds a packet to a flow, sorted by time to send, behind packets with the same time.
    #[inline]
    pub(super) fn push(&mut self, index: u32, mut pkt: Packet, now_ns: u64) {
        let flow = self.get_mut(index);
        let newest_ns = flow.queue.back().map_or(0, time_to_send_ns);
        if pkt.txtime_ns == 0 {
            // A packet normally counts as having come when its sender pushed it. But a packet that
            // asks for no departure time must not overtake packets of its flow that may leave now,
            // so it counts as having come no earlier than the flow's newest packet, but never later
            // than now.
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

    /// Returns the packet of the flow that is to leave next, or `None` if the flow has no packets.
    #[inline]
    pub(super) fn head(&self, index: u32) -> Option<Head> {
        let flow = self.get(index);
        let listed = flow.queue.front();
        let listed = listed.map(|pkt| Head { time_ns: time_to_send_ns(pkt), late: false });
        if flow.late == NONE { listed } else { self.earlier(flow, listed) }
    }

    /// Returns the earlier one of two packets: the first packet of the flow's list (`listed`) and
    /// the first packet of the flow's heap.
    #[cold]
    fn earlier(&self, flow: &Flow, listed: Option<Head>) -> Option<Head> {
        let late = self.late[flow.late as usize].peek();
        let late = late.map(|late| Head { time_ns: late.time_ns, late: true });
        match (listed, late) {
            (Some(listed), Some(late)) if late.time_ns >= listed.time_ns => Some(listed),
            (listed, late) => late.or(listed),
        }
    }

    /// Removes the packet that [`Flows::head`] returned.
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

    /// Returns the metadata of all packets held, except those of the fast path.
    pub(super) fn metas(&self) -> impl Iterator<Item = &Meta> {
        let lists = self.slab[1..].iter().flat_map(|flow| flow.queue.metas());
        lists.chain(self.late.iter().flatten().map(|late| &*late.pkt))
    }

    /// Removes all packets of all flows, the fast path included.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Packet> {
        let lists = self.slab.iter_mut().flat_map(|flow| std::mem::take(&mut flow.queue));
        lists.chain(self.late.iter_mut().flat_map(|heap| heap.drain().map(|late| late.pkt)))
    }
}

/// Converts a time in nanoseconds to jiffies of 10 ms. The number of jiffies has 32 bits and wraps
/// around after 497 days.
#[inline]
pub(super) fn ticks(now_ns: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "wraps around")]
    let ticks = (now_ns / TICK_NS) as u32;
    ticks
}

/// Whether the jiffy `a` is later than the jiffy `b`, even if the number of jiffies has wrapped
/// around in between. A jiffy is 10 ms long.
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
            // Make the flow that was found or created idle. Flows whose key is a multiple of four
            // never become idle.
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
