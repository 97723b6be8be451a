//! The transmit paths that the laboratory compares: the steps by which a thread gets a packet to
//! the device.
//!
//! All paths have the same kind of qdisc and device behind them. Their senders send the same
//! packets, may have the same number of packets in flight, and read the clock once per packet.

mod context;
mod drain;
mod link;
mod llist;
mod locked;
mod percpu;
mod rings;
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
#[cfg(any(feature = "full", sim))]
pub(crate) use llist::BURST_CAP;
pub(crate) use llist::Llist;
pub(crate) use locked::Locked;
pub(crate) use percpu::PerCpu;
#[cfg(any(feature = "full", sim))]
pub(crate) use rings::RING_FULL;
pub(crate) use rings::RingPerSender;

/// Largest number of packets in flight of all senders together, for each queue; the same as in
/// `onramp::Link`.
pub(crate) const CREDITS_PER_QUEUE: usize = 8_192;
/// Largest number of packets in flight of one sender; the same as in `onramp::Link`.
pub(crate) const CREDITS_MAX: usize = 96;
const CREDITS_MIN: usize = 4;

/// Everything behind a path (qdisc and devices), and the path's options.
pub(crate) struct Behind<'a> {
    pub(crate) tree: &'a Setup,
    /// The devices, one for each queue.
    pub(crate) devices: Vec<Box<dyn Device>>,
    /// Largest number of packets in flight of a sender; `None` means the path's own default.
    pub(crate) credits: Option<u32>,
    /// The allocator that packets come from; only bare queues (paths without qdisc and device) use
    /// it.
    pub(crate) memory: Memory,
    /// What the path does besides handing packets over, such as yielding.
    pub(crate) manners: Manners,
    /// Whether threads measure the lists of packets that they free.
    pub(crate) timed: bool,
    /// Counts the packets that leave a bare queue, which has no device.
    #[cfg(sim)]
    pub(crate) departed: crate::measure::Departed,
}

/// A sending thread's position in an experiment: its number and its settings.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    /// Number of the thread, from 0.
    pub(crate) thread: usize,
    /// Number of sending threads in the experiment.
    pub(crate) threads: usize,
    /// Number of queues of the device; each thread uses one of them.
    pub(crate) queues: usize,
    /// Whether locks, send calls and the packets' delays are measured.
    pub(crate) timed: bool,
    /// Largest number of packets that the thread may have in flight; `None` means the number that
    /// [`Seat::credits`] computes.
    pub(crate) asked: Option<u32>,
    pub(crate) manners: Manners,
    /// Whether the thread yields after a time slice. Set for designs that do not yield by
    /// themselves.
    pub(crate) gives_way: bool,
    pub(crate) phase: &'a PhaseCell,
}

impl Seat<'_> {
    /// Returns how many packets the thread may have in flight: the number that was asked for,
    /// otherwise as many as a sender of an `onramp::Link` with the same number of senders.
    pub(crate) fn credits(&self) -> u32 {
        if let Some(asked) = self.asked {
            return asked;
        }
        let share = CREDITS_PER_QUEUE * self.queues / self.threads.max(1);
        u32::try_from(share.clamp(CREDITS_MIN, CREDITS_MAX)).unwrap_or(u32::MAX)
    }

    /// Returns the number of the thread's queue. Threads are assigned to the queues in turn.
    pub(crate) fn queue(&self) -> usize {
        self.thread % self.queues
    }
}

/// Result of a call that sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The path took the packet; it was not dropped within the call.
    Staged,
    /// The qdisc dropped the packet and counted the drop, and the sender learns of the drop.
    Congested,
    /// The packet was dropped before the qdisc. The sender must count the drop.
    Dropped,
    /// No credit is left; the sender must wait and try again.
    Full,
    /// The run was stopped, and the path did not take the packet.
    Stopped,
}

/// Translates the qdisc's verdict about a packet into the result that the packet's sender gets.
fn told(verdict: Verdict) -> Sent {
    if verdict == Verdict::Dropped { Sent::Congested } else { Sent::Staged }
}

/// A transmit path.
pub(crate) trait Path: Send + Sync + 'static {
    /// One sending thread's end of the path.
    type Worker<'a>: Worker
    where
        Self: 'a;

    /// Opens the path's end for the calling thread.
    fn worker<'a>(&'a self, seat: &'a Seat<'a>) -> Self::Worker<'a>;

    /// Takes packets out of the path until the phase is `Stop`. Only paths that need an additional
    /// thread implement it.
    fn consume(&self, _phase: &PhaseCell, _timed: bool) {}

    /// Whether the path needs an additional thread that calls `consume`.
    fn consumes(&self) -> bool {
        false
    }

    /// Returns the number of packets that have left the path so far; `None` if a device counts
    /// them.
    fn sent(&self) -> Option<u64> {
        None
    }

    /// Sends the packets that the path still holds, and returns the numbers of packets that were
    /// sent, dropped and are still held. Called when all threads have ended.
    fn finish(&mut self) -> Account;
}

/// One sending thread's end of a path.
pub(crate) trait Worker {
    /// Does what a program does before it sends a packet. Called once for each packet; only the
    /// programs of the simulated machine do anything.
    #[inline]
    fn prepare(&mut self) {}

    /// Sends one packet with the given payload.
    fn send(&mut self, payload: &[u8]) -> Sent;

    /// Waits for room (returned packets), for not much longer than 50 ms.
    fn wait(&mut self);

    /// Waits until all packets of this thread have returned or the run is stopped.
    fn flush(&mut self);

    /// Yields the processor if the thread's time slice is over. Called after each packet that the
    /// path took, while the thread holds no lock.
    fn give_way(&mut self) {}

    /// Discards the measurements that the thread has recorded so far, because the measured window
    /// begins.
    fn begin_notes(&mut self) {}

    /// Returns the measurements that the thread recorded; `None` if it records nothing.
    fn end_notes(&mut self) -> Option<Notes> {
        None
    }
}

/// The account of a run: how many packets were sent, were dropped or are still held.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) sent: u64,
    /// Number of packets that were dropped and that the path itself counted, by reason. Drops that
    /// the senders count are not included.
    pub(crate) dropped: BTreeMap<&'static str, u64>,
    pub(crate) held: u64,
    /// Histogram of the staging times (from the send call to the qdisc), nanoseconds. `None` if the
    /// path itself does not measure them.
    pub(crate) staging: Option<Octaves>,
    /// Number of times that a thread became the owner of a port. `None` for a path with locks.
    pub(crate) runs: Option<u64>,
    /// Measurements of packet memory by the threads that take packets out of the path.
    pub(crate) memory: MemoryNotes,
}

/// A thread's measurements of locks, of staging and of packet memory.
#[derive(Debug)]
pub(crate) struct Notes {
    /// Measurements of each lock, in the order of `LOCKS`.
    pub(crate) locks: [crate::lockstat::LockNotes; LOCKS.len()],
    /// Time from the send call until the packet enters the qdisc, nanoseconds.
    pub(crate) staging: Latency,
    /// Number of packets that entered the qdisc together.
    pub(crate) batches: Octaves,
    pub(crate) memory: MemoryNotes,
}

/// Names of the locks that the paths have.
pub(crate) const LOCKS: [&str; 5] = ["root", "busylock", "device", "percpu", "rings"];
pub(crate) const ROOT: usize = 0;
pub(crate) const BUSY: usize = 1;
pub(crate) const DEVICE: usize = 2;
pub(crate) const PERCPU: usize = 3;
pub(crate) const RINGS: usize = 4;

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

    /// Returns the measurements, and leaves empty ones that record nothing.
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
