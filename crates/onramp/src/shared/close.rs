//! How ports are emptied and closed.

use std::thread;
use std::time::Duration;

use onramp_core::{Clock, Instant, Ran};
use onramp_queue::DropReason;

use super::{BoxDevice, Shared};
use crate::nap::Nap;
use crate::slots::Slot;

/// How long a close waits for the owners of ports. Together with twice [`END_PATIENCE`], a close
/// waits for one second.
const OWNER_PATIENCE: Duration = Duration::from_millis(800);
/// How long a close waits for threads that nothing holds up.
const END_PATIENCE: Duration = Duration::from_millis(100);

/// What became of a link that [`Link::close`](crate::Link::close) has closed, or of a port that
/// [`Link::remove_port`](crate::Link::remove_port) has removed.
///
/// If a link is closed several times, each report counts the losses since the first of these closes
/// began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseReport {
    /// Whether devices took all packets before the deadline, except those that qdiscs dropped. If
    /// true, no packet was lost because of the close or because a port died.
    pub flushed: bool,
    /// Number of packets that the close has dropped so far, counted as `purged`. Packets that a
    /// cork holds back are not included: see [`Sender::uncork`](crate::Sender::uncork).
    pub purged: u64,
    /// Number of ports that could not be closed within a second after the deadline, because their
    /// devices keep a thread, a runner or a sender. The packets of such a port are purged, and
    /// counted, when that thread returns from the device.
    pub blocked: usize,
}

/// Numbers of packets that were lost: neither dropped by a qdisc nor taken by a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Packets dropped because a link or a port was closed.
    purged: u64,
    /// Packets dropped because a port died.
    dead: u64,
}

impl Lost {
    /// Returns the report of a close, given what was lost `before` the close, whether the close
    /// found nothing held (`flushed`), and the number of `blocked` ports.
    pub(crate) fn since(self, before: Self, flushed: bool, blocked: usize) -> CloseReport {
        CloseReport {
            flushed: flushed && self == before,
            purged: self.purged - before.purged,
            blocked,
        }
    }
}

impl Slot<BoxDevice> {
    /// Returns what this port has lost so far.
    pub(crate) fn lost(&self) -> Lost {
        let dropped = &self.port.stats().dropped;
        Lost { purged: dropped.get(DropReason::Purged), dead: dropped.get(DropReason::PortDead) }
    }
}

impl Shared {
    /// Closes the link. See [`Link::close`](crate::Link::close).
    pub(crate) fn close(&self, timeout: Duration) -> CloseReport {
        if self.is_copy() {
            return CloseReport { flushed: false, purged: 0, blocked: 0 };
        }
        // All closes compare with the same value, so each reports what became of the link.
        let before = *self.written.before_close.get_or_init(|| self.lost());
        // Packets that are being sent, and ports that are being added, at this moment are handled
        // below.
        self.rig.gate.close();
        self.ring_all();
        let flushed = self.flush(timeout, |_| true);
        self.rig.runners.iter().for_each(|runner| runner.stop(&self.rig.threads));
        self.rig.threads.stop();
        let deadline = self.owners_deadline();
        self.close_ports(self.slots.iter(), deadline);
        self.rig.threads.join(&self.clock, deadline.max(self.clock.now() + END_PATIENCE));
        // After this call, a sender that pushes a packet purges the port itself. This thread purges
        // packets that were pushed before.
        self.rig.gate.shut();
        // Allows a moment more, because a thread that no device holds up may be at a port just now.
        let deadline = deadline.max(self.clock.now() + END_PATIENCE);
        let blocked = self.close_ports(self.slots.iter(), deadline);
        self.ring_all();
        self.lost().since(before, flushed, blocked)
    }

    /// Returns what all ports have lost so far.
    fn lost(&self) -> Lost {
        self.slots.iter().map(Slot::lost).fold(Lost::default(), |sum, lost| Lost {
            purged: sum.purged + lost.purged,
            dead: sum.dead + lost.dead,
        })
    }

    /// Blocks until the ports for which `these` returns true hold nothing, at most for `timeout`,
    /// and hardly longer than until the link is shut. Returns true if the ports hold nothing.
    pub(crate) fn flush(&self, timeout: Duration, these: impl Fn(usize) -> bool) -> bool {
        let mut deadline = self.clock.now() + timeout;
        let mut nap = Nap::default();
        let slots = || (0..self.ports()).filter(|port| these(*port)).map(|port| self.slot(port));
        loop {
            if self.is_copy() {
                return false;
            }
            // Read this flag first. Once the link is shut, its ports hold nothing more than what a
            // device keeps.
            let is_shut = self.rig.gate.is_shut();
            // Leave a device that may block to its runner. The calling thread has promised to
            // return in time.
            for slot in slots().filter(|slot| !slot.known.may_block) {
                let _ = self.help(slot);
            }
            if slots().all(|slot| slot.port.is_quiet()) {
                return true;
            }
            let now = self.clock.now();
            if is_shut {
                // A thread may be at a port just now, and about to leave it.
                deadline = deadline.min(now + END_PATIENCE);
            }
            let left = deadline.since(now);
            if left == 0 {
                return false;
            }
            thread::sleep(nap.next(left));
        }
    }

    /// Closes ports for good: the packets that they hold, and packets that still come, are purged.
    /// Gives up at `deadline` on devices that block; their ports keep their packets until these
    /// devices return. Returns the number of these ports.
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
            // An owner leaves after at most one quota, unless its device blocks.
            thread::sleep(nap.next(left));
        }
    }

    /// Returns the time at which a close that begins now gives up on devices that block.
    pub(crate) fn owners_deadline(&self) -> Instant {
        self.clock.now() + OWNER_PATIENCE
    }

    /// Sends packets of a port, or purges them, up to a quota, if no thread owns the port: see
    /// [`Port::help`](onramp_core::Port::help). Returns `None` if the port was not served.
    pub(crate) fn help(&self, slot: &Slot<BoxDevice>) -> Option<Ran> {
        if self.is_copy() {
            return None;
        }
        let ran = slot.port.help(self.clock.now(), &self.waker(slot))?;
        self.follow_up(slot, ran);
        Some(ran)
    }

    /// Purges the packets that a run left in a port if the link was shut meanwhile. No runner comes
    /// any more, so the thread that served the port this late has to purge it.
    #[inline]
    pub(crate) fn follow_up(&self, slot: &Slot<BoxDevice>, ran: Ran) {
        // The fence in `is_shut` is effective only if this call alone decides, and no earlier look
        // at the gate.
        if ran.again && self.rig.gate.is_shut() {
            self.sweep(slot);
        }
    }

    #[cold]
    fn sweep(&self, slot: &Slot<BoxDevice>) {
        // Each round purges all packets that are there. Only packets that were on their way can
        // still come.
        while slot.port.close(self.clock.now(), &self.waker(slot)).is_some_and(|ran| ran.again) {}
    }
}
