//! The transmit paths that are compared: what a thread does to get a packet to the device.
//!
//! All of them stand in front of the same kind of qdisc and device, with the same packets, the
//! same bound on what a sender has below it, and one reading of the clock a packet.

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

use crate::contention::Manners;
use crate::measure::{Latency, Octaves, PhaseCell};
use crate::memory::{Memory, MemoryNotes};

pub(crate) use context::WorkerContext;
pub(crate) use link::Linked;
pub(crate) use llist::{BURST_CAP, Llist};
pub(crate) use locked::Locked;
pub(crate) use percpu::PerCpu;

/// Packets that all senders together have below them, for each queue; as `onramp::Link` has it.
pub(crate) const CREDITS_PER_QUEUE: usize = 8_192;
/// Packets a sender may have below it; as `onramp::Link` has it.
pub(crate) const CREDITS_MAX: usize = 96;
const CREDITS_MIN: usize = 4;

/// What stands behind a path.
pub(crate) struct Behind<'a> {
    pub(crate) tree: &'a Setup,
    /// One for each queue.
    pub(crate) devices: Vec<Box<dyn Device>>,
    /// Packets that a sender may have below it; `None`: as many as it would have.
    pub(crate) credits: Option<u32>,
    /// Where packets come from; of queues alone.
    pub(crate) memory: Memory,
    /// What designs do beside their way of excluding each other.
    pub(crate) manners: Manners,
    /// Whether threads note what they free.
    pub(crate) timed: bool,
}

/// A thread's place in an experiment.
#[derive(Debug)]
pub(crate) struct Seat<'a> {
    /// Number of the thread.
    pub(crate) thread: usize,
    /// How many there are.
    pub(crate) threads: usize,
    /// Queues to choose from.
    pub(crate) queues: usize,
    /// Whether locks and delays are noted.
    pub(crate) timed: bool,
    /// Packets that it may have below it; `None`: as many as [`Seat::credits`] says.
    pub(crate) asked: Option<u32>,
    pub(crate) manners: Manners,
    /// Whether it gives way after a slice, with a design that has no such habit of its own.
    pub(crate) gives_way: bool,
    pub(crate) phase: &'a PhaseCell,
}

impl Seat<'_> {
    /// Packets that the thread may have below it: as many as a sender of `onramp::Link` among as
    /// many, unless another number was asked for.
    pub(crate) fn credits(&self) -> u32 {
        if let Some(asked) = self.asked {
            return asked;
        }
        let share = CREDITS_PER_QUEUE * self.queues / self.threads.max(1);
        u32::try_from(share.clamp(CREDITS_MIN, CREDITS_MAX)).unwrap_or(u32::MAX)
    }

    /// The thread's queue: flows go round.
    pub(crate) fn queue(&self) -> usize {
        self.thread % self.queues
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is on its way.
    Staged,
    /// It is dropped, and counted where it was; the sender learns of it.
    Congested,
    /// It was dropped at the door, and the sender counts it.
    Dropped,
    /// No credit is left: wait.
    Full,
    /// It was time to stop; nothing was taken.
    Stopped,
}

/// What a sender learns of a verdict.
fn told(verdict: Verdict) -> Sent {
    if verdict == Verdict::Dropped { Sent::Congested } else { Sent::Staged }
}

/// A transmit path.
pub(crate) trait Path: Sync {
    /// One thread's end of it.
    type Worker<'a>: Worker
    where
        Self: 'a;

    /// Opens a thread's end; called in that thread.
    fn worker<'a>(&'a self, seat: &'a Seat<'a>) -> Self::Worker<'a>;

    /// Takes packets out until the phase is over, for paths that need a thread for that.
    fn consume(&self, _phase: &PhaseCell, _timed: bool) {}

    /// Whether `consume` wants a thread.
    fn consumes(&self) -> bool {
        false
    }

    /// Packets that came out, by now, of a path without a device that counts them.
    fn sent(&self) -> Option<u64> {
        None
    }

    /// Sends what is left; called when all threads have ended.
    fn finish(&mut self) -> Account;
}

/// One thread's end of a path.
pub(crate) trait Worker {
    /// Sends one packet.
    fn send(&mut self, payload: &[u8]) -> Sent;

    /// Waits for room, not much longer than 50 ms.
    fn wait(&mut self);

    /// Waits until everything sent has come home, or it is time to stop.
    fn flush(&mut self);

    /// Lets others run, if it is time for that. Called after each packet that the path took, when
    /// the thread holds nothing.
    fn give_way(&mut self) {}

    /// Forgets what the thread noted so far: now it counts.
    fn begin_notes(&mut self) {}

    /// What the thread noted, if it did.
    fn end_notes(&mut self) -> Option<Notes> {
        None
    }
}

/// Where packets went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) sent: u64,
    /// Dropped behind the door, by reason.
    pub(crate) dropped: BTreeMap<&'static str, u64>,
    pub(crate) held: u64,
    /// Packets in each take from the intake, where the path itself counts them.
    pub(crate) staging: Option<Octaves>,
    /// Times somebody became owner, where nobody takes a lock.
    pub(crate) runs: Option<u64>,
    /// What threads that take packets out noted.
    pub(crate) memory: MemoryNotes,
}

/// What a thread notes of the locks it takes.
#[derive(Debug)]
pub(crate) struct Notes {
    /// By the numbers of `LOCKS`.
    pub(crate) locks: [crate::lockstat::LockNotes; LOCKS.len()],
    /// From the send call to the qdisc.
    pub(crate) staging: Latency,
    /// Packets that entered the qdisc at once.
    pub(crate) batches: Octaves,
    pub(crate) memory: MemoryNotes,
}

/// Locks that paths take.
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

    /// Hands the notes over.
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
