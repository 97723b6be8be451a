//! What a sending thread has at hand: its packets, its clock, its notes.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use onramp_core::{Clock, Instant};
use onramp_dev::MonotonicClock;
use onramp_queue::{Armed, Credits, Packet, Pool};

use super::{Notes, Seat, Sent, Worker};
use crate::measure::Sampler;

/// Bytes of UDP, IPv4 and Ethernet headers, as Linux counts them in a qdisc.
const OVERHEAD: u32 = 8 + 20 + 14;
/// How long a wait lasts at most.
const PATIENCE_NS: u64 = 50_000_000;
/// Runs of the qdisc that a thread adds when its quota is used up (`MAX_SOFTIRQ_RESTART`).
const RESTARTS: usize = 10;
/// One packet in so many is looked at on its way.
const PERIOD: u64 = 16;

/// One thread's means.
#[derive(Debug)]
pub(crate) struct Desk<'a> {
    pub(crate) seat: &'a Seat<'a>,
    pub(crate) notes: Notes,
    /// Its own time, read once a packet.
    pub(crate) now: Instant,
    /// It has left packets in the qdisc at the end of its quota, and has to come back.
    pub(crate) scheduled: bool,
    /// The processor whose queue it uses.
    pub(crate) cpu: usize,
    sampler: Sampler,
    pool: Pool,
    waker: Waker,
}

#[derive(Debug)]
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<'a> Desk<'a> {
    /// For the calling thread.
    pub(crate) fn new(seat: &'a Seat<'a>) -> Self {
        Self::with_credits(seat, seat.credits())
    }

    /// As `new`, with `credits` packets in flight.
    pub(crate) fn with_credits(seat: &'a Seat<'a>, credits: u32) -> Self {
        Self {
            seat,
            notes: Notes::new(seat.timed, seat.thread),
            now: Instant(0),
            scheduled: false,
            cpu: 0,
            sampler: Sampler::one_in(PERIOD, seat.thread),
            pool: Pool::new(Credits { packets: credits, bytes: 1 << 20 }),
            waker: Waker::from(Arc::new(Unpark(thread::current()))),
        }
    }

    /// A packet with `payload`, stamped with the time; `None`: no credit is left.
    #[inline]
    pub(crate) fn packet(&mut self, payload: &[u8]) -> Option<Packet> {
        let mut pkt = match self.pool.take(payload.len()) {
            Some(pkt) => pkt,
            None => {
                self.reclaim();
                self.pool.take(payload.len())?
            }
        };
        pkt.set_payload(payload);
        pkt.set_submitted(true);
        self.now = MonotonicClock.now();
        let meta = &mut *pkt;
        (meta.flow, meta.enqueued_ns) = (self.seat.thread as u64, self.now.0);
        meta.len = u32::try_from(payload.len()).map_or(u32::MAX, |len| len + OVERHEAD);
        Some(pkt)
    }

    /// Takes a packet back that went nowhere.
    #[inline]
    pub(crate) fn take_back(&mut self, pkt: Packet) {
        self.pool.take_back(pkt);
    }

    /// Takes back what came home; gives how many.
    pub(crate) fn reclaim(&mut self) -> u32 {
        self.pool.reclaim(|_| {})
    }

    /// Nothing of this thread's is below, as far as it has looked.
    pub(crate) fn is_home(&self) -> bool {
        self.pool.out() == 0
    }

    /// The packet in hand is all that is out, as far as it has looked.
    pub(crate) fn is_alone(&self) -> bool {
        self.pool.out() == 1
    }

    /// Notes how long the packet of this call took to get to the qdisc, now and then.
    #[inline]
    pub(crate) fn note_staging(&mut self, packets: u32, oldest: Instant) {
        if !self.seat.timed {
            return;
        }
        self.notes.batches.record(packets.into());
        if self.sampler.picks() {
            self.notes.staging.record(MonotonicClock.now().since(oldest));
        }
    }

    /// Sleeps until half of what is out has come home (`all`: all of it), `until`, or for 50 ms.
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

/// A path whose threads keep their packets at a desk.
pub(crate) trait Xmit: Sync {
    /// Sends a packet; `Stopped` has taken it back.
    fn xmit(&self, pkt: Packet, desk: &mut Desk<'_>) -> Sent;

    /// Runs the qdisc of the thread's queue, unless somebody does (`net_tx_action`).
    fn net_tx(&self, desk: &mut Desk<'_>);

    /// When the qdisc of the thread's queue wants to be run, if nobody sends.
    fn watchdog(&self, desk: &Desk<'_>) -> Instant;
}

/// A thread's end of such a path.
#[derive(Debug)]
pub(crate) struct Sender<'a, P> {
    path: &'a P,
    desk: Desk<'a>,
}

impl<'a, P: Xmit> Sender<'a, P> {
    pub(crate) fn new(path: &'a P, seat: &'a Seat<'a>) -> Self {
        Self { path, desk: Desk::new(seat) }
    }

    /// Goes on where the quota ended: no packet is left with nobody to send it.
    fn softirq(&mut self, restarts: usize) {
        for _ in 0..restarts {
            if !self.desk.scheduled {
                return;
            }
            self.desk.scheduled = false;
            self.path.net_tx(&mut self.desk);
        }
    }

    fn sleep(&mut self, all: bool) {
        while self.desk.scheduled {
            self.softirq(RESTARTS);
        }
        let until = self.path.watchdog(&self.desk);
        self.desk.sleep(all, until);
        if until <= MonotonicClock.now() {
            self.desk.now = MonotonicClock.now();
            self.path.net_tx(&mut self.desk);
        }
    }
}

impl<P: Xmit> Worker for Sender<'_, P> {
    #[inline]
    fn send(&mut self, payload: &[u8]) -> Sent {
        let Some(pkt) = self.desk.packet(payload) else { return Sent::Full };
        let sent = self.path.xmit(pkt, &mut self.desk);
        if self.desk.scheduled {
            self.softirq(RESTARTS);
        }
        sent
    }

    fn wait(&mut self) {
        self.sleep(false);
    }

    fn flush(&mut self) {
        self.desk.reclaim();
        while !self.desk.is_home() && !self.desk.seat.phase.is_stop() {
            self.sleep(true);
        }
    }

    fn notes(&mut self) -> Option<&mut Notes> {
        Some(&mut self.desk.notes)
    }
}
