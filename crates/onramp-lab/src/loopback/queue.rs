//! The transmit queues of the designs: one queue behind a lock for all senders, or one queue per
//! sender.

use onramp_core::{Device, Instant};
use onramp_dev::{Loopback, Network};
use onramp_queue::PacketList;

use crate::cell::LockCell;
use crate::lock::Lock;
use crate::lockstat::{LockCounts, LockNotes};
use crate::measure::PhaseCell;

/// The transmit queues of a design.
pub(super) trait Queues: Sync {
    /// Name of the design, for messages.
    const NAME: &'static str;
    /// Kind of the design's lock; `None` if it has no lock.
    const KIND: Option<&'static str>;
    /// One sender's end of the queues.
    type End<'a>: SendEnd
    where
        Self: 'a;

    /// Returns the end of the queues that sender `number` uses. With `noted`, the end records
    /// statistics of the lock.
    fn end(&self, number: usize, noted: bool) -> Self::End<'_>;
}

/// One sender's end of the queues.
pub(super) trait SendEnd {
    /// Sends the packets in `burst`. Packets remain in `burst` if a receiver has no room for them
    /// or if the run was stopped.
    fn send(&mut self, burst: &mut PacketList, phase: &PhaseCell);

    /// Returns the statistics of the lock that this end recorded.
    fn notes(&self) -> LockCounts {
        LockCounts::default()
    }

    /// Discards the statistics of the lock that this end recorded so far.
    fn forget_notes(&mut self) {}
}

/// One queue with its counters, behind a lock.
#[derive(Debug)]
pub(super) struct Shared<L>(LockCell<L, Loopback>);

/// A sender's end of the shared queue. It takes the lock for each call.
#[derive(Debug)]
pub(super) struct Locking<'a, L> {
    queue: &'a LockCell<L, Loopback>,
    notes: LockNotes,
}

impl<L: Lock> Shared<L> {
    pub(super) fn new(network: &Network) -> Self {
        Self(LockCell::new(network.queue()))
    }
}

impl<L: Lock> Queues for Shared<L> {
    const NAME: &'static str = L::KIND;
    const KIND: Option<&'static str> = Some(L::KIND);
    type End<'a>
        = Locking<'a, L>
    where
        L: 'a;

    fn end(&self, number: usize, noted: bool) -> Locking<'_, L> {
        Locking { queue: &self.0, notes: LockNotes::new(noted, number) }
    }
}

impl<L: Lock> SendEnd for Locking<'_, L> {
    fn send(&mut self, burst: &mut PacketList, phase: &PhaseCell) {
        let Some(mut queue) = self.queue.lock(phase, &mut self.notes) else { return };
        let _ = queue.transmit(burst, &mut PacketList::new(), Instant(0));
        queue.unlock(&mut self.notes);
    }

    fn notes(&self) -> LockCounts {
        self.notes.counts()
    }

    fn forget_notes(&mut self) {
        self.notes.clear();
    }
}

/// The design without a lock: the network gives each sender a queue of its own.
#[derive(Debug)]
pub(super) struct Own(Network);

impl Own {
    pub(super) fn new(network: &Network) -> Self {
        Self(network.clone())
    }
}

impl Queues for Own {
    const NAME: &'static str = "per-queue";
    const KIND: Option<&'static str> = None;
    type End<'a> = Loopback;

    fn end(&self, _number: usize, _noted: bool) -> Loopback {
        self.0.queue()
    }
}

impl SendEnd for Loopback {
    fn send(&mut self, burst: &mut PacketList, _phase: &PhaseCell) {
        let _ = self.transmit(burst, &mut PacketList::new(), Instant(0));
    }
}
