//! Measures the cost of packet memory: where packets are allocated, which thread frees them, and
//! how often threads disturb each other while they do so.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use onramp_queue::PacketList;

use crate::cell::Padded;
use crate::measure::{Latency, Sampler, stopwatch};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{is_simulated, thread_local};

/// Sampling period: one out of every 16 calls that take or free packets is timed.
pub const PERIOD: u64 = 16;

/// The allocator that packets come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Each thread has a pool, as in Onramp: the thread that frees a packet returns it to the pool
    /// of the packet's sender.
    #[default]
    Pool,
    /// The system allocator: the sender allocates each packet, and the thread that drains the qdisc
    /// frees it.
    Malloc,
}

impl Memory {
    /// Returns the name of the allocator on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Malloc => "malloc",
        }
    }
}

/// Measurements of packet memory, recorded while the phase of the experiment is `Measure`.
#[derive(Clone, Debug, Default)]
pub struct MemoryNotes {
    /// Number of packets that senders took from the allocator.
    pub taken: u64,
    /// Number of taken packets that were newly allocated: with pools, those taken while the pool
    /// had no free packet; with `malloc`, all.
    pub allocated: u64,
    /// Number of packets that were freed by threads that record measurements.
    pub freed: u64,
    /// Number of freed packets that were taken by another thread than the one that freed them.
    pub foreign: u64,
    /// Number of batches in which packets returned to their senders. A batch is a run of adjacent
    /// packets of one sender. With `malloc` only credits return in batches, and each packet is
    /// freed by itself.
    pub batches: u64,
    /// Number of atomic exchanges on pools that had to be repeated because another thread was
    /// faster. `None` if there is no pool.
    pub repeated: Option<u64>,
    /// Time to take a packet, nanoseconds. It includes the time to collect the packets that have
    /// returned to the pool.
    pub take: Latency,
    /// Time to free a list of packets, divided by the number of packets in the list; nanoseconds.
    pub give: Latency,
}

impl MemoryNotes {
    /// Adds the measurements of another thread or another round.
    pub fn merge(&mut self, other: &Self) {
        self.taken += other.taken;
        self.allocated += other.allocated;
        self.freed += other.freed;
        self.foreign += other.foreign;
        self.batches += other.batches;
        if let Some(repeated) = other.repeated {
            *self.repeated.get_or_insert_default() += repeated;
        }
        self.take.merge(&other.take);
        self.give.merge(&other.give);
    }

    /// Returns the mean number of packets in a batch that returned to a sender; `None` if no packet
    /// returned.
    #[must_use]
    pub fn packets_per_batch(&self) -> Option<f64> {
        (self.batches > 0).then(|| self.freed as f64 / self.batches as f64)
    }

    /// Records that `packets` packets were freed at once, and that freeing them took `ns`
    /// nanoseconds in all.
    fn gave(&mut self, ns: u64, packets: u64) {
        self.give.record(ns / packets);
    }

    /// Counts the packets of a list that `thread` is about to free. A packet is the thread's own if
    /// its flow is the thread's number.
    pub(crate) fn count(&mut self, list: &PacketList, thread: u64) {
        let mut last = None;
        for meta in list.metas() {
            self.freed += 1;
            self.foreign += u64::from(meta.flow != thread);
            self.batches += u64::from(last != Some(meta.flow));
            last = Some(meta.flow);
        }
    }
}

/// The measurements of one thread about the lists of packets that it frees.
struct Here {
    thread: u64,
    sampler: Sampler,
    notes: MemoryNotes,
}

thread_local! {
    /// The flow number of the packets that the calling thread itself sends.
    static FLOW: Cell<u64> = const { Cell::new(u64::MAX) };
    /// Whether the calling thread measures the lists of packets that it frees.
    static TIMED: Cell<bool> = const { Cell::new(false) };
    static HERE: RefCell<Option<Box<Here>>> = const { RefCell::new(None) };
}

/// Sets the flow number of the packets that the calling thread sends. With `timed`, the thread
/// measures the lists of packets that it frees. On the simulated machine no thread does: to look at
/// the packets would cost something there.
pub(crate) fn begin(flow: u64, timed: bool) {
    let timed = timed && !is_simulated();
    FLOW.set(flow);
    TIMED.set(timed);
    let here = || {
        let (sampler, notes) = (Sampler::one_in(PERIOD, 0), MemoryNotes::default());
        Box::new(Here { thread: flow, sampler, notes })
    };
    HERE.with(|place| place.replace(timed.then(here)));
}

/// Returns the flow number of the packets that the calling thread sends. If the thread sends none,
/// returns a number that no packet has as its flow.
pub(crate) fn flow() -> u64 {
    FLOW.get()
}

/// Returns the measurements of the lists of packets that the calling thread freed, and leaves empty
/// measurements.
pub(crate) fn take() -> MemoryNotes {
    HERE.with(|here| {
        let mut here = here.borrow_mut();
        here.as_mut().map(|here| std::mem::take(&mut here.notes)).unwrap_or_default()
    })
}

/// Frees the packets in `list`. Without `freed`, each packet returns to its pool. With `freed`,
/// each packet is freed to the heap, and `freed` counts it, which gives its sender the credit back.
#[inline(never)]
pub(crate) fn free(list: PacketList, freed: Option<&Freed>) {
    if list.is_empty() {
        return;
    }
    let free = |list| match freed {
        None => drop(list),
        Some(freed) => freed.free(list),
    };
    if !TIMED.get() {
        return free(list);
    }
    HERE.with(|here| match &mut *here.borrow_mut() {
        None => free(list),
        Some(here) => here.free(list, free),
    });
}

impl Here {
    fn free(&mut self, list: PacketList, free: impl FnOnce(PacketList)) {
        self.notes.count(&list, self.thread);
        let packets = u64::from(list.len());
        let from = self.sampler.picks().then(stopwatch);
        free(list);
        if let Some(from) = from {
            self.notes.gave(stopwatch().since(from), packets);
        }
    }
}

/// For each sender, the number of its packets that were freed. If packets come from the heap, no
/// pool counts credits, and these numbers tell the senders how many credits have returned.
#[derive(Clone, Debug)]
pub(crate) struct Freed(Arc<[Padded<AtomicU64>]>);

impl Freed {
    pub(crate) fn new(senders: usize) -> Self {
        Self((0..senders).map(|_| Padded::default()).collect())
    }

    /// Frees `list` packet by packet, and returns credits once for each run of adjacent packets of
    /// one sender.
    pub(crate) fn free(&self, list: PacketList) {
        let (mut sender, mut run) = (0, 0);
        for pkt in list {
            if pkt.flow != sender {
                self.give(sender, run);
                (sender, run) = (pkt.flow, 0);
            }
            run += 1;
        }
        self.give(sender, run);
    }

    fn give(&self, sender: u64, packets: u64) {
        let place = usize::try_from(sender).ok().and_then(|sender| self.0.get(sender));
        if let Some(place) = place.filter(|_| packets > 0) {
            // Relaxed: the number of credits publishes no other data.
            place.0.fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// Returns the number of packets of `sender` that were freed since the run began.
    pub(crate) fn of(&self, sender: usize) -> u64 {
        // Relaxed: the number of credits publishes no other data.
        self.0[sender].0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use onramp_queue::Packet;

    use super::*;

    fn list(flows: &[u64]) -> PacketList {
        let packet = |flow: &u64| {
            let mut pkt = Packet::new(60);
            pkt.flow = *flow;
            pkt
        };
        flows.iter().map(packet).collect()
    }

    #[test]
    fn neighbours_of_one_sender_are_a_batch() {
        begin(2, true);
        (0..16).for_each(|_| free(list(&[1, 1, 2, 1]), None));
        free(PacketList::new(), None);
        let notes = take();
        assert_eq!((take().freed, flow()), (0, 2));
        let mut sum = MemoryNotes { repeated: Some(2), ..MemoryNotes::default() };
        sum.merge(&notes);
        sum.merge(&MemoryNotes { repeated: Some(3), ..MemoryNotes::default() });
        assert_eq!((sum.freed, sum.foreign, sum.batches, sum.repeated), (64, 48, 48, Some(5)));
        assert_eq!(sum.packets_per_batch(), Some(4.0 / 3.0));
        begin(2, false);
        free(list(&[1]), None);
        assert_eq!(take().freed, 0, "nothing is noted");
        assert_eq!(MemoryNotes::default().packets_per_batch(), None);
    }

    #[test]
    fn the_time_of_a_list_is_shared_out() {
        let mut notes = MemoryNotes::default();
        notes.gave(800, 8);
        assert_eq!(notes.give.percentiles().map(|ns| (ns.samples, ns.max)), Some((1, 100)));
    }

    #[test]
    fn credits_come_back_to_who_spent_them() {
        let freed = Freed::new(3);
        freed.free(list(&[2, 2, 0, 2]));
        freed.free(PacketList::new());
        assert_eq!([0, 1, 2].map(|sender| freed.of(sender)), [1, 0, 3]);
    }
}
