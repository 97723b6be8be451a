//! The tools of a sending thread: its packets, its clock and its measurements.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use onramp_core::{Clock, Instant};
use onramp_dev::MonotonicClock;
use onramp_queue::{Armed, Credits, Packet, Pool};

use super::{Notes, Seat, Sent, Worker};
use crate::manners::Manners;
use crate::measure::{Sampler, stopwatch};
use crate::memory::{self, Freed};
use crate::sync::thread::{self, Thread};

/// Bytes of UDP, IPv4 and Ethernet headers, as Linux counts them in a qdisc.
const OVERHEAD: u32 = 8 + 20 + 14;
/// Longest duration of one wait for returned packets, nanoseconds.
const PATIENCE_NS: u64 = 50_000_000;
/// How long a thread sends before it yields, nanoseconds, if the thread yields at all.
const SLICE_NS: u128 = onramp::Sender::SLICE.as_nanos();
/// How often a thread runs the qdisc again after its quota was used up (`MAX_SOFTIRQ_RESTART`).
const RESTARTS: usize = 10;
/// Sampling period: the staging time of one out of every 16 batches is measured.
const PERIOD: u64 = 16;

/// The tools of one sending thread: its packets, its clock and its measurements. Paths get the
/// context with each call.
#[derive(Debug)]
pub(crate) struct WorkerContext<'a> {
    pub(crate) seat: &'a Seat<'a>,
    pub(crate) notes: Notes,
    /// Time at which the thread last read the clock, which it does once for each packet.
    pub(crate) now: Instant,
    /// Whether the thread ended a quota with packets left in the qdisc, so that the thread must run
    /// the qdisc again.
    pub(crate) scheduled: bool,
    /// Number of the processor whose queue the thread uses.
    pub(crate) cpu: usize,
    /// Time at which the thread last yielded its processor.
    slice_start: Instant,
    sampler: Sampler,
    takes: Sampler,
    pool: Pool,
    /// Whether taking a packet needs additional work: the packet is measured, or comes from the
    /// heap.
    special: bool,
    /// State of packets from the heap. `None` if packets come from the pool.
    heap: Option<Heap>,
    /// Largest number of packets seen in flight at once. The pool has allocated that many packets.
    out_max: u32,
    /// Value of [`Pool::repeated`] when the measured window began.
    repeated: u64,
    waker: Waker,
}

/// State of a sender whose packets come from the heap: its credits, and counts of its packets.
#[derive(Debug)]
struct Heap {
    freed: Freed,
    credits: u64,
    taken: u64,
    /// Number of this sender's packets that had been freed when the sender last looked.
    home: u64,
}

impl Heap {
    fn out(&self) -> u64 {
        self.taken - self.home
    }
}

#[derive(Debug)]
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<'a> WorkerContext<'a> {
    /// Makes a context for the calling thread, whose packets come from a pool.
    pub(crate) fn new(seat: &'a Seat<'a>) -> Self {
        Self::with_credits(seat, seat.credits(), None)
    }

    /// Makes a context like `new`, for at most `credits` packets in flight. If `freed` is given,
    /// packets come from the heap, and `freed` counts the freed ones.
    pub(crate) fn with_credits(seat: &'a Seat<'a>, credits: u32, freed: Option<Freed>) -> Self {
        memory::begin(seat.thread as u64, seat.timed);
        let heap = |freed| Heap { freed, credits: credits.into(), taken: 0, home: 0 };
        Self {
            seat,
            notes: Notes::new(seat.timed, seat.thread),
            now: Instant(0),
            scheduled: false,
            cpu: 0,
            slice_start: MonotonicClock.now(),
            sampler: Sampler::one_in(PERIOD, seat.thread),
            takes: Sampler::one_in(memory::PERIOD, seat.thread),
            special: seat.timed || freed.is_some(),
            heap: freed.map(heap),
            out_max: 0,
            repeated: 0,
            pool: Pool::new(Credits { packets: credits, bytes: 1 << 20 }),
            waker: Waker::from(Arc::new(Unpark(thread::current()))),
        }
    }

    /// Makes a packet with `payload`, stamped with the current time. Returns `None` if the thread
    /// has no credit left.
    #[inline]
    pub(crate) fn packet(&mut self, payload: &[u8]) -> Option<Packet> {
        let mut pkt = if self.special { self.noted(payload)? } else { self.pooled(payload)? };
        pkt.set_submitted(true);
        self.now = MonotonicClock.now();
        let meta = &mut *pkt;
        (meta.flow, meta.enqueued_ns) = (self.seat.thread as u64, self.now.0);
        meta.len = u32::try_from(payload.len()).map_or(u32::MAX, |len| len + OVERHEAD);
        Some(pkt)
    }

    #[inline]
    fn pooled(&mut self, payload: &[u8]) -> Option<Packet> {
        let mut pkt = match self.pool.take(payload.len()) {
            Some(pkt) => pkt,
            None => {
                self.reclaim();
                self.pool.take(payload.len())?
            }
        };
        pkt.set_payload(payload);
        Some(pkt)
    }

    fn heaped(&mut self, payload: &[u8]) -> Option<Packet> {
        let heap = self.heap.as_mut()?;
        if heap.out() == heap.credits {
            heap.home = heap.freed.of(self.seat.thread);
        }
        (heap.out() < heap.credits).then(|| {
            heap.taken += 1;
            Packet::with_payload(payload)
        })
    }

    /// Takes a packet from the heap, or from the pool with measurements of packet memory.
    #[inline(never)]
    fn noted(&mut self, payload: &[u8]) -> Option<Packet> {
        let from = (self.seat.timed && self.takes.picks()).then(stopwatch);
        let pkt = match self.heap {
            Some(_) => self.heaped(payload)?,
            None => self.pooled(payload)?,
        };
        let notes = &mut self.notes.memory;
        if let Some(from) = from {
            notes.take.record(stopwatch().since(from));
        }
        notes.taken += 1;
        if self.heap.is_some() {
            notes.allocated += 1;
        } else if self.pool.out() > self.out_max {
            // The pool keeps all packets that it has allocated. It allocates another one only when
            // all of them are in flight.
            self.out_max = self.pool.out();
            notes.allocated += 1;
        }
        Some(pkt)
    }

    /// Discards the measurements recorded so far, because the measured window begins.
    pub(crate) fn begin_notes(&mut self) {
        self.notes.clear();
        memory::take();
        self.repeated = self.pool.repeated();
    }

    /// Returns the measurements recorded since the measured window began.
    pub(crate) fn end_notes(&mut self) -> Notes {
        let mut notes = self.notes.take();
        notes.memory.merge(&memory::take());
        if self.heap.is_none() {
            notes.memory.repeated = Some(self.pool.repeated() - self.repeated);
        }
        notes
    }

    /// Takes back a packet that was not sent, so that its credit is free again.
    #[inline]
    pub(crate) fn take_back(&mut self, pkt: Packet) {
        match &mut self.heap {
            Some(heap) => heap.taken -= 1,
            None => return self.pool.take_back(pkt),
        }
        drop(pkt);
    }

    /// Takes back the packets that have returned to the thread, and returns their number.
    pub(crate) fn reclaim(&mut self) -> u32 {
        if let Some(heap) = &mut self.heap {
            heap.home = heap.freed.of(self.seat.thread);
        }
        self.pool.reclaim(|_| {})
    }

    fn out(&self) -> u64 {
        self.heap.as_ref().map_or_else(|| self.pool.out().into(), Heap::out)
    }

    /// Whether none of this thread's packets was in flight when the thread last looked.
    pub(crate) fn is_home(&self) -> bool {
        self.out() == 0
    }

    /// Whether the packet that the thread is about to send was its only one in flight when the
    /// thread last looked.
    pub(crate) fn is_alone(&self) -> bool {
        self.out() == 1
    }

    /// Records the number of packets that entered the qdisc together. For some of these batches,
    /// also records the time that the oldest packet took to reach the qdisc.
    #[inline]
    pub(crate) fn note_staging(&mut self, packets: u32, oldest: Instant) {
        if !self.seat.timed {
            return;
        }
        self.notes.batches.record(packets.into());
        if self.sampler.picks() {
            self.notes.staging.record(stopwatch().since(oldest));
        }
    }

    /// Yields when the thread's time slice is over, as a sender of `onramp::Link` does. Uses the
    /// time that was read for the packet, so the clock is not read again.
    #[inline]
    pub(crate) fn give_way(&mut self) {
        if self.seat.gives_way && u128::from(self.now.since(self.slice_start)) > SLICE_NS {
            thread::yield_now();
            self.slice_start = MonotonicClock.now();
        }
    }

    /// Sleeps until half of the packets in flight have returned (or all of them if `all` is true),
    /// but not beyond the time `until` and not for longer than 50 ms.
    fn sleep(&mut self, all: bool, until: Instant) {
        let need = if all { self.pool.out() } else { (self.pool.out() / 2).max(1) };
        match self.pool.arm(&self.waker, need) {
            Armed::Ready => {}
            Armed::Busy => thread::yield_now(),
            Armed::Armed => {
                let left = until.since(MonotonicClock.now()).min(PATIENCE_NS);
                if left > 0 && !self.seat.phase.is_stop() {
                    thread::park_timeout(Duration::from_nanos(left));
                }
                self.pool.disarm();
            }
        }
        self.reclaim();
    }
}

/// A path whose threads keep their packets and measurements in a [`WorkerContext`].
pub(crate) trait Xmit: Sync {
    /// Prefetches the cache line to which the next packet is pushed, as a sender of `onramp::Link`
    /// does before it reads the clock. Paths with a lock prefetch nothing, because that would take
    /// the lock's cache line away from the lock's holder.
    fn prefetch(&self, _context: &WorkerContext<'_>) {}

    /// What a thread has of the path for itself, such as its end of a ring.
    type End;

    /// Returns what the thread with this seat has for itself. Called once for each thread.
    fn end(&self, seat: &Seat<'_>) -> Self::End;

    /// Sends a packet. If the result is `Stopped`, the path has given the packet back to `context`.
    fn xmit(&self, pkt: Packet, end: &mut Self::End, context: &mut WorkerContext<'_>) -> Sent;

    /// Runs the qdisc of the thread's queue, unless another thread is running it (`net_tx_action`).
    fn net_tx(&self, context: &mut WorkerContext<'_>);

    /// Returns the time at which the qdisc of the thread's queue must be run even if no thread
    /// sends.
    fn watchdog(&self, context: &WorkerContext<'_>) -> Instant;
}

/// One thread's end of a path, with the thread's context.
pub(crate) struct Sender<'a, P: Xmit> {
    path: &'a P,
    end: P::End,
    context: WorkerContext<'a>,
}

impl<'a, P: Xmit> Sender<'a, P> {
    pub(crate) fn new(path: &'a P, seat: &'a Seat<'a>) -> Self {
        Self { path, end: path.end(seat), context: WorkerContext::new(seat) }
    }

    /// Runs the qdisc again, at most `restarts` times, if the thread's quota was used up. Otherwise
    /// packets could stay in the qdisc with no thread to send them.
    fn softirq(&mut self, restarts: usize) {
        for _ in 0..restarts {
            if !self.context.scheduled {
                return;
            }
            self.context.scheduled = false;
            self.path.net_tx(&mut self.context);
        }
    }

    /// Runs the qdisc until the thread has left no packet behind in it.
    fn settle(&mut self) {
        while self.context.scheduled {
            self.softirq(RESTARTS);
        }
    }

    fn sleep(&mut self, all: bool) {
        self.settle();
        let until = self.path.watchdog(&self.context);
        self.context.sleep(all, until);
        if until <= MonotonicClock.now() {
            self.context.now = MonotonicClock.now();
            self.path.net_tx(&mut self.context);
        }
    }
}

impl<P: Xmit> Worker for Sender<'_, P> {
    #[inline]
    fn send(&mut self, payload: &[u8]) -> Sent {
        if self.context.seat.manners == Manners::Equal {
            self.path.prefetch(&self.context);
        }
        let Some(pkt) = self.context.packet(payload) else { return Sent::Full };
        let sent = self.path.xmit(pkt, &mut self.end, &mut self.context);
        if self.context.scheduled {
            self.softirq(RESTARTS);
        }
        sent
    }

    fn wait(&mut self) {
        self.sleep(false);
    }

    fn flush(&mut self) {
        self.settle();
        self.context.reclaim();
        while !self.context.is_home() && !self.context.seat.phase.is_stop() {
            self.sleep(true);
        }
    }

    fn give_way(&mut self) {
        self.context.give_way();
    }

    fn begin_notes(&mut self) {
        self.context.begin_notes();
    }

    fn end_notes(&mut self) -> Option<Notes> {
        Some(self.context.end_notes())
    }
}
