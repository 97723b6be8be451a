//! The transmit paths that are compared: the steps of a thread to get a packet to the device.
//!
//! All paths have the same kind of qdisc and device behind them. They send the same packets, limit
//! a sender to the same number of packets in flight, and read the clock once per packet.

mod context;
mod link;
mod llist;
mod locked;
mod percpu;
mod root;

use std::collections::BTreeMap;

use onramp_core::Device;
use onramp_core::Setup;
use onramp_core::qdisc::Verdict;

use crate::manners::Manners;
use crate::measure::{Latency, Octaves, PhaseCell};
use crate::memory::{Memory, MemoryNotes};

pub(crate) use context::WorkerContext;
pub(crate) use link::Linked;
pub(crate) use llist::{BURST_CAP, Llist};
pub(crate) use locked::Locked;
pub(crate) use percpu::PerCpu;

/// Largest number of packets in flight of all senders together, per queue; the same as in
/// `onramp::Link`.
pub(crate) const CREDITS_PER_QUEUE: usize = 8_192;
/// Largest number of packets in flight of one sender; the same as in `onramp::Link`.
pub(crate) const CREDITS_MAX: usize = 96;
const CREDITS_MIN: usize = 4;

/// The qdisc, the devices and the options behind a path.
pub(crate) struct Behind<'a> {
    pub(crate) tree: &'a Setup,
    /// One device per queue.
    pub(crate) devices: Vec<Box<dyn Device>>,
    /// Largest number of packets in flight of a sender; `None` means the path's own default.
    pub(crate) credits: Option<u32>,
    /// The allocator of packets; only bare queues use it.
    pub(crate) memory: Memory,
    /// The behaviour of designs that does not belong to their way of keeping threads apart.
    pub(crate) manners: Manners,
    /// Whether threads record the packets that they free.
    pub(crate) timed: bool,
}

/// A thread's position in an experiment.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    /// Number of the thread, from 0.
    pub(crate) thread: usize,
    /// Number of threads.
    pub(crate) threads: usize,
    /// Number of queues to choose from.
    pub(crate) queues: usize,
    /// Whether locks and delays are recorded.
    pub(crate) timed: bool,
    /// Largest number of packets that the thread may have in flight; `None` means the number that
    /// [`Seat::credits`] computes.
    pub(crate) asked: Option<u32>,
    pub(crate) manners: Manners,
    /// Whether the thread yields after a time slice, for designs that do not yield by themselves.
    pub(crate) gives_way: bool,
    pub(crate) phase: &'a PhaseCell,
}

impl Seat<'_> {
    /// Returns how many packets the thread may have in flight: as many as a sender of an
    /// `onramp::Link` with the same number of senders, unless another number was asked for.
    pub(crate) fn credits(&self) -> u32 {
        if let Some(asked) = self.asked {
            return asked;
        }
        let share = CREDITS_PER_QUEUE * self.queues / self.threads.max(1);
        u32::try_from(share.clamp(CREDITS_MIN, CREDITS_MAX)).unwrap_or(u32::MAX)
    }

    /// Returns the thread's queue. Threads are assigned to the queues in turn.
    pub(crate) fn queue(&self) -> usize {
        self.thread % self.queues
    }
}

/// Result of a send call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The path took the packet.
    Staged,
    /// The packet was dropped and counted where it was dropped, and the sender learns of the drop.
    Congested,
    /// The packet was dropped before the qdisc, and the sender counts it.
    Dropped,
    /// No credit is left; the sender must wait.
    Full,
    /// The run was stopped, and no packet was taken.
    Stopped,
}

/// Returns what a sender learns of the qdisc's verdict.
fn told(verdict: Verdict) -> Sent {
    if verdict == Verdict::Dropped { Sent::Congested } else { Sent::Staged }
}

/// A transmit path.
pub(crate) trait Path: Sync {
    /// One thread's end of the path.
    type Worker<'a>: Worker
    where
        Self: 'a;

    /// Opens the calling thread's end.
    fn worker<'a>(&'a self, seat: &'a Seat<'a>) -> Self::Worker<'a>;

    /// Takes packets out until the phase is `Stop`, for paths that need a thread for that.
    fn consume(&self, _phase: &PhaseCell, _timed: bool) {}

    /// Whether the path needs a thread that calls `consume`.
    fn consumes(&self) -> bool {
        false
    }

    /// Returns the number of packets that have left so far; `None` if a device counts them.
    fn sent(&self) -> Option<u64> {
        None
    }

    /// Sends the remaining packets. Called when all threads have ended.
    fn finish(&mut self) -> Account;
}

/// One thread's end of a path.
pub(crate) trait Worker {
    /// Sends one packet with the given payload.
    fn send(&mut self, payload: &[u8]) -> Sent;

    /// Waits for room, for not much longer than 50 ms.
    fn wait(&mut self);

    /// Waits until all sent packets have returned or the run is stopped.
    fn flush(&mut self);

    /// Yields if the thread's time slice is over. Called after each packet that the path took, when
    /// the thread holds no lock.
    fn give_way(&mut self) {}

    /// Discards what the thread recorded so far, because the measured time begins.
    fn begin_notes(&mut self) {}

    /// Returns what the thread recorded; `None` if it records nothing.
    fn end_notes(&mut self) -> Option<Notes> {
        None
    }
}

/// The number of packets of a run that were sent, dropped or are still held.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) sent: u64,
    /// Number of packets dropped behind the list, by reason.
    pub(crate) dropped: BTreeMap<&'static str, u64>,
    pub(crate) held: u64,
    /// Histogram of the staging times, nanoseconds, if the path itself measures them.
    pub(crate) staging: Option<Octaves>,
    /// Number of times that a thread became the owner, for a path without locks.
    pub(crate) runs: Option<u64>,
    /// Measurements of the threads that take packets out.
    pub(crate) memory: MemoryNotes,
}

/// A thread's measurements of locks, of staging and of packet memory.
#[derive(Debug)]
pub(crate) struct Notes {
    /// Measurements of each lock, indexed as in `LOCKS`.
    pub(crate) locks: [crate::lockstat::LockNotes; LOCKS.len()],
    /// Time from the send call to the qdisc, nanoseconds.
    pub(crate) staging: Latency,
    /// Number of packets that entered the qdisc together.
    pub(crate) batches: Octaves,
    pub(crate) memory: MemoryNotes,
}

/// Names of the locks that paths take.
pub(crate) const LOCKS: [&str; 4] = ["root", "busylock", "device", "percpu"];
pub(crate) const ROOT: usize = 0;
pub(crate) const BUSY: usize = 1;
pub(crate) const DEVICE: usize = 2;
pub(crate) const PERCPU: usize = 3;

impl Notes {
    fn new(on: bool, seed: usize) -> Self {
        let lock = |at| crate::lockstat::LockNotes::new(on, seed * LOCKS.len() + at);
        Self {
            locks: std::array::from_fn(lock),
            staging: Latency::default(),
            batches: Octaves::default(),
            memory: MemoryNotes::default(),
        }
    }

    /// Returns the measurements and leaves empty ones.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new(false, 0))
    }

    pub(crate) fn clear(&mut self) {
        self.locks.iter_mut().for_each(crate::lockstat::LockNotes::clear);
        self.staging.clear();
        self.batches = Octaves::default();
        self.memory = MemoryNotes::default();
    }
}
