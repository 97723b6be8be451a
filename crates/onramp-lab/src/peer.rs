//! Queues of other crates beside Onramp's intake alone: nothing but the way from many threads to
//! one, without qdisc and device.
//!
//! The drainer pops packets, reads the first bytes of each, and frees them in runs. With
//! [`Manners::Linux`], rings and channels have a thread of their own for that, as their users have,
//! and it gives way when it finds nothing. With [`Manners::Equal`], a sender that has pushed drains
//! them, unless another sender does, as it does at Onramp's intake: no thread polls, and none is
//! billed for polling. A sender without credit gives way, instead of sleeping: so the queue is what
//! is measured, not the waking of threads.

mod floor;
mod intake;
mod mutex;
mod ring;
mod shards;
mod variant;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread;

use onramp_queue::{Counter, Packet, PacketList};
use parking_lot::Mutex;

use crate::cell::Padded;
use crate::contention::Manners;
use crate::measure::{Phase, PhaseCell};
use crate::memory::{self, Freed, Memory, MemoryNotes};
use crate::path::{Account, Behind, Notes, Path, Seat, Sent, Worker, WorkerContext};

pub(crate) use floor::Floor;
pub(crate) use intake::Bare;
pub(crate) use mutex::Shared;
pub(crate) use ring::{Array, Channel, Rings, Things};
pub(crate) use shards::Shards;
pub(crate) use variant::{Ahead, Batch, List, Variant};

/// Packets that are freed together, where senders have credits for it.
const RUN: u32 = 64;

/// Where popped packets end.
#[derive(Debug)]
pub(crate) struct Sink {
    taken: u64,
    run: PacketList,
    /// Packets that are a run. No sender ever waits for packets that are kept here: half of its
    /// credits are a run.
    run_len: u32,
    seen: Option<Seen>,
    /// Credits of packets that come from the heap.
    freed: Option<Freed>,
    /// Somebody notes what is freed, or gives credits for it.
    noted: bool,
}

/// Thread and number of every packet that came out, for tests.
pub(crate) type Seen = Arc<Mutex<Vec<(u64, u64)>>>;

impl Sink {
    /// Frees packets of senders that have `credits` each.
    fn new(credits: u32, seen: Option<Seen>, freed: Option<Freed>, noted: bool) -> Self {
        let run_len = (credits / 2).clamp(1, RUN);
        Self { taken: 0, run: PacketList::new(), run_len, seen, freed, noted }
    }

    /// Reads `pkt`, and keeps it to be freed.
    #[inline]
    fn put(&mut self, pkt: Packet) {
        black_box(pkt.payload().first());
        self.taken += 1;
        if let Some(seen) = &self.seen {
            seen.lock().push(numbers(pkt.payload()));
        }
        self.run.push_back(pkt);
    }

    #[inline]
    fn is_run(&self) -> bool {
        self.run.len() >= self.run_len
    }

    /// What is to be freed, when it is a run; otherwise nothing.
    #[inline]
    fn run(&mut self) -> PacketList {
        if self.is_run() { self.rest() } else { PacketList::new() }
    }

    /// What is to be freed.
    #[inline]
    fn rest(&mut self) -> PacketList {
        std::mem::take(&mut self.run)
    }

    /// Frees what is kept to be freed, when it is a run.
    #[inline]
    fn free_run(&mut self) {
        if self.is_run() {
            self.free_rest();
        }
    }

    /// Frees what is kept to be freed.
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

/// Thread and number of a packet, as the driver wrote them.
pub(crate) fn numbers(payload: &[u8]) -> (u64, u64) {
    let word = |at: usize| {
        let bytes: [u8; 8] = payload[at..at + 8].try_into().unwrap_or_default();
        u64::from_le_bytes(bytes)
    };
    (word(0), word(8))
}

/// A queue between senders and one drainer.
pub(crate) trait Peer: Sync + Sized {
    /// One sender's end.
    type End<'a>: Send
    where
        Self: 'a;

    /// The drainer's end.
    type Taker: Send;

    /// For so many senders, each with at most `credits` packets in flight. Where the peer has a
    /// way of its own to have senders drain, packets end in `sink`.
    fn new(senders: usize, credits: u32, sink: Sink) -> (Self, Self::Taker);

    fn end(&self, sender: usize) -> Self::End<'_>;

    /// Pushes; gives the packet back when there is no place.
    fn push(&self, end: &mut Self::End<'_>, pkt: Packet, count: &Counter) -> Result<(), Packet>;

    /// Whether it matters where a sender stands.
    const PLACED: bool = false;

    /// Nothing of the sender's is in flight: it may go another way from now on.
    #[inline]
    fn place(&self, _end: &mut Self::End<'_>) {}

    /// Frees what is kept to be freed with others, where the peer itself has senders drain.
    fn settle(&self) {}

    /// Whether somebody has to drain: the peer has no way of its own to have senders do it.
    const DRAINED: bool = true;

    /// Pops what is there, about a run of it; false: nothing was there.
    fn pop(&self, _taker: &mut Self::Taker, _sink: &mut Sink) -> bool {
        false
    }
}

/// A peer as a path.
pub(crate) struct Peered<P: Peer> {
    peer: P,
    /// Locked by the drainer.
    drain: Padded<Mutex<(P::Taker, Sink)>>,
    /// A sender came while somebody drained, and left its packet to the drainer.
    asked: Padded<AtomicBool>,
    /// Senders drain in turn.
    by_senders: bool,
    /// Packets that came out. Written by who drains.
    count: Padded<Counter>,
    credits: u32,
    freed: Option<Freed>,
    /// What the thread that drains noted.
    memory: Mutex<MemoryNotes>,
}

/// Packets in flight of each sender: as many as fit the caches together.
pub(crate) fn credits(threads: usize) -> u32 {
    if threads < 64 { 256 } else { 64 }
}

impl<P: Peer> Peered<P> {
    pub(crate) fn new(threads: usize, seen: Option<Seen>, behind: &Behind<'_>) -> Self {
        let credits = behind.credits.unwrap_or_else(|| credits(threads));
        let freed = (behind.memory == Memory::Malloc).then(|| Freed::new(threads));
        let noted = behind.timed || freed.is_some();
        let sink = || Sink::new(credits, seen.clone(), freed.clone(), noted);
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

    /// Pops until there is nothing.
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

    /// Drains until it is time to stop, as a thread of its own.
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

    /// Drains as a sender that has just pushed, unless another does.
    ///
    /// The drainer looks at `asked` after it has let go of the lock, and a sender that finds the
    /// lock taken looks at the lock after it has set `asked`: one of the two sees the other. A
    /// sender that finds `asked` set may leave: the sender that set it still has to see to it that
    /// somebody drains, or a drainer has cleared it, and pops after that.
    #[inline]
    fn drain_in_turn(&self) {
        loop {
            if let Some(mut drain) = self.drain.0.try_lock() {
                // AcqRel: the drainer pops what was pushed before it was set.
                self.asked.0.swap(false, Ordering::AcqRel);
                // SeqCst: pairs with the first fence of a sender, below. Either the sender finds
                // `asked` cleared, or we pop its packet.
                fence(Ordering::SeqCst);
                self.pop_all(&mut drain);
                drop(drain);
                // SeqCst: pairs with the second fence of a sender, below. Either the sender finds
                // the lock free, or we find `asked` set.
                fence(Ordering::SeqCst);
                // Relaxed: the fence orders it.
                if !self.asked.0.load(Ordering::Relaxed) {
                    return;
                }
                continue;
            }
            // SeqCst: our packet is pushed before we look; pairs with the first fence above.
            fence(Ordering::SeqCst);
            // Relaxed: the fence orders it.
            if !self.asked.0.load(Ordering::Relaxed) {
                // Release: our packet comes along; pairs with the swap above.
                self.asked.0.store(true, Ordering::Release);
                // SeqCst: pairs with the second fence above.
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

/// A sender's end of a peer.
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
