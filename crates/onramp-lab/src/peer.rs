//! Queues of other crates beside Onramp's intake alone: nothing but the way from many threads to
//! one, without qdisc and device.
//!
//! Who is the drainer pops packets, reads the first bytes of each, and frees them in runs. Rings
//! and channels have a thread of their own for that, which gives way when it finds nothing; where
//! the sender itself becomes the drainer, it does the same work. A sender without credit gives
//! way, instead of sleeping: so the queue is what is measured, not the waking of threads.

mod floor;
mod intake;
mod mutex;
mod ring;
mod shards;
mod variant;

use std::hint::black_box;
use std::sync::Arc;
use std::thread;

use onramp_queue::{Counter, Packet, PacketList};
use parking_lot::Mutex;

use crate::cell::Padded;
use crate::measure::{Phase, PhaseCell};
use crate::memory::{self, Freed, Memory, MemoryNotes};
use crate::path::{Account, Behind, Desk, Notes, Path, Seat, Sent, Worker};

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
    type Taker<'a>
    where
        Self: 'a;

    /// For so many senders, each with at most `credits` packets in flight. Where senders drain,
    /// packets end in `sink`.
    fn new(senders: usize, credits: u32, sink: Sink) -> Self;

    fn end(&self, sender: usize) -> Self::End<'_>;

    /// Pushes; gives the packet back when there is no place.
    fn push(&self, end: &mut Self::End<'_>, pkt: Packet, count: &Counter) -> Result<(), Packet>;

    /// Whether it matters where a sender stands.
    const PLACED: bool = false;

    /// Nothing of the sender's is in flight: it may go another way from now on.
    #[inline]
    fn place(&self, _end: &mut Self::End<'_>) {}

    /// Frees what is kept to be freed with others, where senders drain.
    fn settle(&self) {}

    /// Whether a thread has to drain.
    const DRAINED: bool = true;

    fn taker(&self) -> Self::Taker<'_>;

    /// Pops what is there, about a run of it; false: nothing was there.
    fn pop(&self, taker: &mut Self::Taker<'_>, sink: &mut Sink) -> bool;
}

/// A peer as a path.
#[derive(Debug)]
pub(crate) struct Peered<P> {
    peer: P,
    /// Packets that came out. Written by who drains.
    count: Padded<Counter>,
    credits: u32,
    seen: Option<Seen>,
    freed: Option<Freed>,
    noted: bool,
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
        let sink = Sink::new(credits, seen.clone(), freed.clone(), noted);
        let peer = P::new(threads, credits, sink);
        let (count, memory) = (Padded(Counter::new()), Mutex::default());
        Self { peer, count, credits, seen, freed, noted, memory }
    }

    /// Pops until there is nothing; until the phase is over, if that is given.
    fn drain(&self, phase: Option<&PhaseCell>) {
        let (seen, freed) = (self.seen.clone(), self.freed.clone());
        let mut sink = Sink::new(self.credits, seen, freed, self.noted);
        let mut taker = self.peer.taker();
        let before = self.count.0.get();
        let mut measuring = false;
        loop {
            if !measuring && phase.is_some_and(|phase| phase.get() == Phase::Measure) {
                measuring = true;
                memory::take();
            }
            let came = self.peer.pop(&mut taker, &mut sink);
            self.count.0.set(before + sink.taken);
            sink.free_run();
            if came {
                continue;
            }
            sink.free_rest();
            match phase {
                Some(phase) if !phase.is_stop() => thread::yield_now(),
                _ => break,
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
            desk: Desk::with_credits(seat, self.credits, self.freed.clone()),
        }
    }

    const CONSUMES: bool = P::DRAINED;

    fn consume(&self, phase: &PhaseCell, timed: bool) {
        memory::begin(u64::MAX, timed);
        self.drain(Some(phase));
        *self.memory.lock() = memory::take();
    }

    fn sent(&self) -> Option<u64> {
        Some(self.count.0.get())
    }

    fn finish(&mut self) -> Account {
        if P::DRAINED {
            self.drain(None);
        }
        let memory = std::mem::take(self.memory.get_mut());
        Account { sent: self.count.0.get(), memory, ..Account::default() }
    }
}

/// A sender's end of a peer.
pub(crate) struct Sender<'a, P: Peer + 'a> {
    peered: &'a Peered<P>,
    end: P::End<'a>,
    desk: Desk<'a>,
}

impl<P: Peer> Worker for Sender<'_, P> {
    #[inline]
    fn send(&mut self, payload: &[u8]) -> Sent {
        let Some(pkt) = self.desk.packet(payload) else { return Sent::Full };
        if P::PLACED && self.desk.is_alone() {
            self.peered.peer.place(&mut self.end);
        }
        match self.peered.peer.push(&mut self.end, pkt, &self.peered.count.0) {
            Ok(()) => Sent::Staged,
            Err(pkt) => {
                self.desk.take_back(pkt);
                Sent::Full
            }
        }
    }

    fn wait(&mut self) {
        thread::yield_now();
    }

    fn begin_notes(&mut self) {
        self.desk.begin_notes();
    }

    fn end_notes(&mut self) -> Option<Notes> {
        Some(self.desk.end_notes())
    }

    fn flush(&mut self) {
        self.peered.peer.settle();
        self.desk.reclaim();
        while !self.desk.is_home() && !self.desk.seat.phase.is_stop() {
            thread::yield_now();
            self.peered.peer.settle();
            self.desk.reclaim();
        }
    }
}
