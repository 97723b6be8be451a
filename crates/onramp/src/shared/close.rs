//! How ports are emptied, and closed.

use std::thread;
use std::time::Duration;

use onramp_core::{Clock, Instant, Ran};
use onramp_queue::DropReason;

use super::{BoxDevice, Shared};
use crate::CloseReport;
use crate::nap::Nap;
use crate::slots::Slot;

/// How long a close waits for owners of ports. With [`END_PATIENCE`] twice, a second.
const OWNER_PATIENCE: Duration = Duration::from_millis(800);
/// How long a close waits for threads that nothing wakers.
const END_PATIENCE: Duration = Duration::from_millis(100);

/// Packets that no qdisc dropped, and no device took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Dropped because a link or a port was closed.
    purged: u64,
    /// Dropped because a port died.
    dead: u64,
}

impl Lost {
    /// What a close did, if so much was lost `before` it, and it found nothing held (`flushed`).
    pub(crate) fn since(self, before: Self, flushed: bool, blocked: usize) -> CloseReport {
        CloseReport {
            flushed: flushed && self == before,
            purged: self.purged - before.purged,
            blocked,
        }
    }
}

impl Slot<BoxDevice> {
    /// What this port has lost so far.
    pub(crate) fn lost(&self) -> Lost {
        let dropped = &self.port.stats().dropped;
        Lost { purged: dropped.get(DropReason::Purged), dead: dropped.get(DropReason::PortDead) }
    }
}

impl Shared {
    /// See [`Link::close`](crate::Link::close).
    pub(crate) fn close(&self, timeout: Duration) -> CloseReport {
        if self.is_copy() {
            return CloseReport { flushed: false, purged: 0, blocked: 0 };
        }
        // One for all closes, so that each tells what became of the link.
        let before = *self.written.before_close.get_or_init(|| self.lost());
        // Sends under way are caught below, and ports that are being added.
        self.rig.gate.close();
        self.ring_all();
        let flushed = self.flush(timeout, |_| true);
        self.rig.runners.iter().for_each(|runner| runner.stop(&self.rig.threads));
        self.rig.threads.stop();
        let deadline = self.owners_deadline();
        self.close_ports(self.slots.iter(), deadline);
        self.rig.threads.join(&self.clock, deadline.max(self.clock.now() + END_PATIENCE));
        // A sender that brings a packet after this purges the port itself; this thread purges what
        // came before.
        self.rig.gate.shut();
        // With a moment more: a thread that no device wakers may be at a port just now.
        let deadline = deadline.max(self.clock.now() + END_PATIENCE);
        let blocked = self.close_ports(self.slots.iter(), deadline);
        self.ring_all();
        self.lost().since(before, flushed, blocked)
    }

    /// What all ports have lost so far.
    fn lost(&self) -> Lost {
        self.slots.iter().map(Slot::lost).fold(Lost::default(), |sum, lost| Lost {
            purged: sum.purged + lost.purged,
            dead: sum.dead + lost.dead,
        })
    }

    /// Waits until the ports that `these` name hold nothing, at most `timeout`, and hardly longer
    /// than until the link is shut. True if so.
    pub(crate) fn flush(&self, timeout: Duration, these: impl Fn(usize) -> bool) -> bool {
        let mut deadline = self.clock.now() + timeout;
        let mut nap = Nap::default();
        let slots = || (0..self.ports()).filter(|port| these(*port)).map(|port| self.slot(port));
        loop {
            if self.is_copy() {
                return false;
            }
            // First: what is shut holds no more from then on than what a device wakers.
            let is_shut = self.rig.gate.is_shut();
            // A device that may block wakers its runner, and not a thread that has promised when it
            // is back.
            for slot in slots().filter(|slot| !slot.known.may_block) {
                let _ = self.help(slot);
            }
            if slots().all(|slot| slot.port.is_quiet()) {
                return true;
            }
            let now = self.clock.now();
            if is_shut {
                // A thread may be at a port just now, and is about to leave it.
                deadline = deadline.min(now + END_PATIENCE);
            }
            let left = deadline.since(now);
            if left == 0 {
                return false;
            }
            thread::sleep(nap.next(left));
        }
    }

    /// Closes ports for good: what they hold, and what still comes, is purged. Gives up at
    /// `deadline`, on devices that block: their ports keep what they hold until these are back.
    /// Gives the number of these ports.
    pub(crate) fn close_ports<'a>(
        &self,
        slots: impl Iterator<Item = &'a Slot<BoxDevice>>,
        deadline: Instant,
    ) -> usize {
        let mut open: Vec<_> = slots.collect();
        let mut nap = Nap::default();
        loop {
            open.retain(|slot| {
                let closed = slot.port.close(self.clock.now(), &self.waker(slot));
                closed.is_none_or(|ran| ran.again)
            });
            let left = deadline.since(self.clock.now());
            if open.is_empty() || left == 0 {
                return open.len();
            }
            // An owner leaves after at most a quota, unless its device blocks.
            thread::sleep(nap.next(left));
        }
    }

    /// When a close gives up on devices that block, if it begins now.
    pub(crate) fn owners_deadline(&self) -> Instant {
        self.clock.now() + OWNER_PATIENCE
    }

    /// Sends from a port, or purges it, if nobody owns it, for at most a quota: see
    /// [`Port::help`](onramp_core::Port::help).
    pub(crate) fn help(&self, slot: &Slot<BoxDevice>) -> Option<Ran> {
        if self.is_copy() {
            return None;
        }
        let ran = slot.port.help(self.clock.now(), &self.waker(slot))?;
        self.follow_up(slot, ran);
        Some(ran)
    }

    /// Purges what a run left in a port, if the link was shut meanwhile and no runner comes any
    /// more: the thread that had the port so late has to.
    #[inline]
    pub(crate) fn follow_up(&self, slot: &Slot<BoxDevice>, ran: Ran) {
        // The fence in there counts only if no other look at the gate decides.
        if ran.again && self.rig.gate.is_shut() {
            self.sweep(slot);
        }
    }

    #[cold]
    fn sweep(&self, slot: &Slot<BoxDevice>) {
        // Each round purges all that is there, and only packets that were on their way come still.
        while slot.port.close(self.clock.now(), &self.waker(slot)).is_some_and(|ran| ran.again) {}
    }
}
