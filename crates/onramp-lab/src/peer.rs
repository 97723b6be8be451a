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

use std::hint::black_box;
use std::sync::Arc;
use std::thread;

use onramp_queue::{Counter, Packet, PacketList};
use parking_lot::Mutex;

use crate::cell::Padded;
use crate::measure::PhaseCell;
use crate::path::{Account, Desk, Path, Seat, Sent, Worker};

pub(crate) use floor::Floor;
pub(crate) use intake::Bare;
pub(crate) use mutex::Shared;
pub(crate) use ring::{Array, Channel, Rings, Things};

/// Packets that are freed together.
const RUN: u32 = 64;

/// Where popped packets end.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    taken: u64,
    run: PacketList,
    seen: Option<Seen>,
}

/// Thread and number of every packet that came out, for tests.
pub(crate) type Seen = Arc<Mutex<Vec<(u64, u64)>>>;

impl Sink {
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

    /// What is to be freed, when it is a run.
    #[inline]
    fn run(&mut self) -> Option<PacketList> {
        (self.run.len() >= RUN).then(|| self.rest())
    }

    /// What is to be freed.
    #[inline]
    fn rest(&mut self) -> PacketList {
        std::mem::take(&mut self.run)
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
}

/// Packets in flight of each sender: as many as fit the caches together.
pub(crate) fn credits(threads: usize) -> u32 {
    if threads < 64 { 256 } else { 64 }
}

impl<P: Peer> Peered<P> {
    pub(crate) fn new(threads: usize, seen: Option<Seen>) -> Self {
        let credits = credits(threads);
        let sink = Sink { seen: seen.clone(), ..Sink::default() };
        let peer = P::new(threads, credits, sink);
        Self { peer, count: Padded(Counter::new()), credits, seen }
    }

    /// Pops until there is nothing; until the phase is over, if that is given.
    fn drain(&self, phase: Option<&PhaseCell>) {
        let mut sink = Sink { seen: self.seen.clone(), ..Sink::default() };
        let mut taker = self.peer.taker();
        let before = self.count.0.get();
        loop {
            let came = self.peer.pop(&mut taker, &mut sink);
            self.count.0.set(before + sink.taken);
            drop(sink.run());
            if came {
                continue;
            }
            drop(sink.rest());
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
            desk: Desk::with_credits(seat, self.credits),
        }
    }

    const CONSUMES: bool = P::DRAINED;

    fn consume(&self, phase: &PhaseCell) {
        self.drain(Some(phase));
    }

    fn sent(&self) -> Option<u64> {
        Some(self.count.0.get())
    }

    fn finish(&mut self) -> Account {
        if P::DRAINED {
            self.drain(None);
        }
        Account { sent: self.count.0.get(), ..Account::default() }
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
