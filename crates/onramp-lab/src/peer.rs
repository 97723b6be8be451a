//! Bare queues: queues of other crates, and Onramp's intake alone. A bare queue only carries
//! packets from many threads to one; it has no qdisc and no device.
//!
//! The drainer (the thread that empties the queue) pops packets, reads the first byte of each, and
//! frees many packets at a time. With [`Manners::Linux`], a ring or a channel has a thread of its
//! own as the drainer, as in ordinary use, and this thread yields when it finds no packet. With
//! [`Manners::Equal`], a sender that has pushed drains the queue unless another sender does, as at
//! Onramp's intake. Then no thread polls, so the experiment measures no processor time for polling.
//! A sender without credit yields instead of sleeping, so that the experiment measures the queue
//! and not the waking of threads.

#[cfg(feature = "full")]
mod floor;
mod intake;
mod mutex;
#[cfg(feature = "full")]
mod ring;
mod shards;
mod variant;

use std::hint::black_box;
use std::sync::Arc;

use onramp_queue::{Counter, Packet, PacketList};

use crate::cell::Padded;
use crate::manners::Manners;
use crate::measure::{Phase, PhaseCell};
use crate::memory::{self, Freed, Memory, MemoryNotes};
use crate::path::{Account, Behind, Notes, Path, Seat, Sent, Worker, WorkerContext};
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crate::sync::{ParkingMutex as Mutex, thread};

#[cfg(feature = "full")]
pub(crate) use floor::Floor;
pub(crate) use intake::Bare;
pub(crate) use mutex::Shared;
#[cfg(feature = "full")]
pub(crate) use ring::{Array, Channel, Rings, Things};
pub(crate) use shards::Shards;
pub(crate) use variant::{Ahead, Batch, List, Variant};

/// Largest number of packets that the drainer frees together; fewer if each sender has few credits.
const RUN: u32 = 64;

/// The end of a bare queue. It counts the packets popped from the queue, and frees them in runs:
/// many packets at a time.
#[derive(Debug)]
pub(crate) struct Sink {
    taken: u64,
    run: PacketList,
    /// Number of packets that the sink collects before it frees them together. It is at most half
    /// of a sender's credits, so that no sender ever waits only for packets that the sink keeps.
    run_len: u32,
    seen: Option<Seen>,
    /// Credits of the senders if packets come from the heap. `None` if packets come from pools.
    freed: Option<Freed>,
    /// Whether `memory::free` frees the packets, either because the time for freeing is measured,
    /// or because freed packets count as returned credits (`freed`).
    noted: bool,
    #[cfg(sim)]
    departed: crate::measure::Departed,
}

/// Thread number and packet number of every packet that left the queue, for tests.
pub(crate) type Seen = Arc<Mutex<Vec<(u64, u64)>>>;

impl Sink {
    /// Makes a sink (the end of a queue) that frees packets of senders that have `credits` credits
    /// each.
    fn new(credits: u32, seen: Option<Seen>, freed: Option<Freed>, noted: bool) -> Self {
        Self {
            taken: 0,
            run: PacketList::new(),
            run_len: (credits / 2).clamp(1, RUN),
            seen,
            freed,
            noted,
            #[cfg(sim)]
            departed: crate::measure::Departed::default(),
        }
    }

    /// Reads the first byte of `pkt`, and keeps `pkt` until there are enough packets to free them
    /// together.
    #[inline]
    fn put(&mut self, pkt: Packet) {
        black_box(pkt.payload().first());
        self.taken += 1;
        #[cfg(sim)]
        self.departed.add(1);
        if let Some(seen) = &self.seen {
            seen.lock().push(numbers(pkt.payload()));
        }
        self.run.push_back(pkt);
    }

    #[inline]
    fn is_run(&self) -> bool {
        self.run.len() >= self.run_len
    }

    /// Returns the packets that the sink keeps, if there are enough to be freed together; otherwise
    /// returns an empty list.
    #[inline]
    fn run(&mut self) -> PacketList {
        if self.is_run() { self.rest() } else { PacketList::new() }
    }

    /// Returns all packets that the sink keeps, however few.
    #[inline]
    fn rest(&mut self) -> PacketList {
        std::mem::take(&mut self.run)
    }

    /// Frees the packets that the sink keeps, if there are enough to be freed together.
    #[inline]
    fn free_run(&mut self) {
        if self.is_run() {
            self.free_rest();
        }
    }

    /// Frees all packets that the sink keeps, however few.
    #[inline]
    fn free_rest(&mut self) {
        if self.noted {
            self.free_specially();
        } else {
            drop(self.rest());
        }
    }

    #[inline(never)]
    fn free_specially(&mut self) {
        memory::free(self.rest(), self.freed.as_ref());
    }
}

/// Returns the thread number and the packet number that the sending thread wrote into the payload.
pub(crate) fn numbers(payload: &[u8]) -> (u64, u64) {
    let word = |at: usize| {
        let bytes: [u8; 8] = payload[at..at + 8].try_into().unwrap_or_default();
        u64::from_le_bytes(bytes)
    };
    (word(0), word(8))
}

/// A queue between many senders and one drainer.
pub(crate) trait Peer: Send + Sync + Sized + 'static {
    /// One sender's end of the queue.
    type End<'a>: Send
    where
        Self: 'a;

    /// The end of the queue that the drainer (the thread that empties the queue) uses.
    type Taker: Send + 'static;

    /// Makes a queue for `senders` senders, each with at most `credits` packets in flight. If the
    /// senders drain the queue by their pushes, the queue passes the packets to `sink`, which frees
    /// them.
    fn new(senders: usize, credits: u32, sink: Sink) -> (Self, Self::Taker);

    fn end(&self, sender: usize) -> Self::End<'_>;

    /// Pushes a packet. Returns the packet as an error if the queue has no room.
    fn push(&self, end: &mut Self::End<'_>, pkt: Packet, count: &Counter) -> Result<(), Packet>;

    /// Whether the processor on which a sender runs decides to which part of the queue it pushes.
    const PLACED: bool = false;

    /// Tells the queue that none of the sender's packets is in flight, so that the sender may push
    /// to another part of the queue from now on.
    #[inline]
    fn place(&self, _end: &mut Self::End<'_>) {}

    /// Frees the packets that the queue's sink still keeps. Only queues that the senders drain by
    /// their pushes implement this method.
    fn settle(&self) {}

    /// Whether the queue needs a drainer (a thread that empties it). False if the senders drain the
    /// queue by their pushes.
    const DRAINED: bool = true;

    /// Pops about [`RUN`] packets at most, and passes them to `sink`, which frees them. Returns
    /// false if the queue was empty.
    fn pop(&self, _taker: &mut Self::Taker, _sink: &mut Sink) -> bool {
        false
    }
}

/// A bare queue that the experiment measures in place of a transmit path.
pub(crate) struct Peered<P: Peer> {
    peer: P,
    /// The drainer's end of the queue, and the sink. Only the drainer takes this lock.
    drain: Padded<Mutex<(P::Taker, Sink)>>,
    /// Set by a sender that found another thread draining and left its packet to that thread.
    asked: Padded<AtomicBool>,
    /// Whether the senders drain the queue, one after another, instead of a thread of its own.
    by_senders: bool,
    /// Number of packets that left the queue; the drainer writes it.
    count: Padded<Counter>,
    credits: u32,
    freed: Option<Freed>,
    /// What the drainer measured while it freed packets, if the drainer is a thread of its own.
    memory: Mutex<MemoryNotes>,
}

/// Returns how many packets each sender may have in flight: so few that the packets of all senders
/// together fit into the processor's caches.
pub(crate) fn credits(threads: usize) -> u32 {
    if threads < 64 { 256 } else { 64 }
}

impl<P: Peer> Peered<P> {
    pub(crate) fn new(threads: usize, seen: Option<Seen>, behind: &Behind<'_>) -> Self {
        let credits = behind.credits.unwrap_or_else(|| credits(threads));
        let freed = (behind.memory == Memory::Malloc).then(|| Freed::new(threads));
        let noted = behind.timed || freed.is_some();
        let sink = || {
            let sink = Sink::new(credits, seen.clone(), freed.clone(), noted);
            #[cfg(sim)]
            let sink = Sink { departed: behind.departed.clone(), ..sink };
            sink
        };
        let (peer, taker) = P::new(threads, credits, sink());
        Self {
            peer,
            drain: Padded(Mutex::new((taker, sink()))),
            asked: Padded::default(),
            by_senders: P::DRAINED && behind.manners == Manners::Equal,
            count: Padded::default(),
            credits,
            freed,
            memory: Mutex::default(),
        }
    }

    /// Pops packets until the queue is empty.
    fn pop_all(&self, (taker, sink): &mut (P::Taker, Sink)) {
        loop {
            let came = self.peer.pop(taker, sink);
            self.count.0.set(sink.taken);
            sink.free_run();
            if !came {
                return sink.free_rest();
            }
        }
    }

    /// Drains the queue until the run is stopped. The calling thread does nothing else.
    fn drain(&self, phase: &PhaseCell) {
        let mut drain = self.drain.0.lock();
        let mut measuring = false;
        while !phase.is_stop() {
            if !measuring && phase.get() == Phase::Measure {
                measuring = true;
                memory::take();
            }
            self.pop_all(&mut drain);
            thread::yield_now();
        }
    }

    /// Drains the queue in the thread of a sender that has just pushed, unless another thread is
    /// draining.
    ///
    /// No packet is left behind. The drainer reads the flag `asked` after it has released the lock,
    /// and a sender that finds the lock taken reads the lock again after it has set `asked`; so at
    /// least one of the two notices the other. A sender that finds `asked` already set may leave:
    /// either the sender that set `asked` still has to make sure that a thread drains, or a drainer
    /// has cleared `asked` and pops packets after that.
    #[inline]
    fn drain_in_turn(&self) {
        loop {
            if let Some(mut drain) = self.drain.0.try_lock() {
                // AcqRel: after this exchange the drainer pops all packets that were pushed before
                // `asked` was set.
                self.asked.0.swap(false, Ordering::AcqRel);
                // SeqCst: pairs with the first fence of a sender, below. Either the sender finds
                // `asked` cleared, or the drainer pops the sender's packet.
                fence(Ordering::SeqCst);
                self.pop_all(&mut drain);
                drop(drain);
                // SeqCst: pairs with the second fence of a sender, below. Either the sender finds
                // the lock free, or the drainer finds `asked` set.
                fence(Ordering::SeqCst);
                // Relaxed: the fence above orders the load.
                if !self.asked.0.load(Ordering::Relaxed) {
                    return;
                }
                continue;
            }
            // SeqCst: this sender's packet is pushed before the sender reads `asked`; pairs with
            // the drainer's fence before `pop_all`, above.
            fence(Ordering::SeqCst);
            // Relaxed: the fence above orders the load.
            if !self.asked.0.load(Ordering::Relaxed) {
                // Release: publishes this sender's packet; pairs with the exchange by which the
                // drainer clears `asked`.
                self.asked.0.store(true, Ordering::Release);
                // SeqCst: pairs with the drainer's fence after `pop_all`, above.
                fence(Ordering::SeqCst);
            }
            if self.drain.0.is_locked() {
                return;
            }
        }
    }
}

impl<P: Peer> Path for Peered<P> {
    type Worker<'a>
        = Sender<'a, P>
    where
        Self: 'a;

    fn worker<'a>(&'a self, seat: &'a Seat<'a>) -> Sender<'a, P> {
        Sender {
            peered: self,
            end: self.peer.end(seat.thread),
            context: WorkerContext::with_credits(seat, self.credits, self.freed.clone()),
        }
    }

    fn consumes(&self) -> bool {
        P::DRAINED && !self.by_senders
    }

    fn consume(&self, phase: &PhaseCell, timed: bool) {
        memory::begin(u64::MAX, timed);
        self.drain(phase);
        *self.memory.lock() = memory::take();
    }

    fn sent(&self) -> Option<u64> {
        Some(self.count.0.get())
    }

    fn finish(&mut self) -> Account {
        if P::DRAINED {
            self.pop_all(&mut self.drain.0.lock());
        }
        let memory = std::mem::take(self.memory.get_mut());
        Account { sent: self.count.0.get(), memory, ..Account::default() }
    }
}

/// A sender's end of a bare queue.
pub(crate) struct Sender<'a, P: Peer + 'a> {
    peered: &'a Peered<P>,
    end: P::End<'a>,
    context: WorkerContext<'a>,
}

impl<P: Peer> Worker for Sender<'_, P> {
    #[inline]
    fn send(&mut self, payload: &[u8]) -> Sent {
        let Some(pkt) = self.context.packet(payload) else { return Sent::Full };
        if P::PLACED && self.context.is_alone() {
            self.peered.peer.place(&mut self.end);
        }
        match self.peered.peer.push(&mut self.end, pkt, &self.peered.count.0) {
            Ok(()) => {
                if self.peered.by_senders {
                    self.peered.drain_in_turn();
                }
                Sent::Staged
            }
            Err(pkt) => {
                self.context.take_back(pkt);
                Sent::Full
            }
        }
    }

    fn wait(&mut self) {
        thread::yield_now();
    }

    fn begin_notes(&mut self) {
        self.context.begin_notes();
    }

    fn end_notes(&mut self) -> Option<Notes> {
        Some(self.context.end_notes())
    }

    fn flush(&mut self) {
        self.peered.peer.settle();
        self.context.reclaim();
        while !self.context.is_home() && !self.context.seat.phase.is_stop() {
            thread::yield_now();
            self.peered.peer.settle();
            self.context.reclaim();
        }
    }
}
