//! How the ports of a link are emptied and closed.

use std::time::Duration;

use onramp_core::{Clock, Instant, Job, Ran, TooManyJobs};
use onramp_queue::DropReason;

use super::{BoxDevice, Shared};
use crate::nap::Nap;
use crate::runner::turn;
use crate::slots::Slot;
use crate::sync::thread;

/// How long a close waits for threads that own ports to leave them. Together with twice
/// [`END_PATIENCE`], this makes [`PATIENCE`].
const OWNER_PATIENCE: Duration = Duration::from_millis(800);
/// Shortest time limit of each of the last two waits of a close: until the link's threads have
/// ended, and until owners have left their ports.
const END_PATIENCE: Duration = Duration::from_millis(100);
/// How long a close waits in all, after its time limit, for threads that own ports to leave them.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
const _: () = assert!(
    OWNER_PATIENCE.as_millis() + 2 * END_PATIENCE.as_millis() == PATIENCE.as_millis(),
    "a close waits as long by either way"
);

/// What became of a link that [`Link::close`](crate::Link::close) has closed, or of a port that
/// [`Link::remove_port`](crate::Link::remove_port) has removed.
///
/// If a link is closed several times, each report counts the losses since the first of these closes
/// began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseReport {
    /// Whether the devices had taken all packets before the deadline, except for packets that
    /// qdiscs dropped. If true, no packet was lost because of the close or because a port died.
    pub flushed: bool,
    /// Number of packets that the close has dropped so far (drop reason `purged`). Packets that a
    /// cork holds back are not included: see [`Sender::uncork`](crate::Sender::uncork).
    pub purged: u64,
    /// Number of ports that could not be closed within a second after the deadline, because a
    /// thread (a runner or a sender) was still calling their device. The packets of such a port are
    /// purged, and counted, when that thread returns from the device.
    pub blocked: usize,
}

/// Numbers of packets that were lost: neither taken by a device nor dropped by a qdisc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Packets dropped because a link or a port was closed.
    purged: u64,
    /// Packets dropped because a port died.
    dead: u64,
}

impl CloseReport {
    /// What a close reports in a child of `fork`, where it does nothing.
    pub(crate) const OF_COPY: Self = Self { flushed: false, purged: 0, blocked: 0 };
}

impl Lost {
    /// Returns the report of a close. `self` is what has been lost now, `before` what had been lost
    /// before the close; `flushed` says whether the ports became empty in time, and `blocked` how
    /// many ports could not be closed.
    pub(crate) fn since(self, before: Self, flushed: bool, blocked: usize) -> CloseReport {
        CloseReport {
            flushed: flushed && self == before,
            purged: self.purged - before.purged,
            blocked,
        }
    }
}

impl Slot<BoxDevice> {
    /// Returns how many packets this port has purged, and dropped because it died.
    pub(crate) fn lost(&self) -> Lost {
        let dropped = &self.port.stats().dropped;
        Lost { purged: dropped.get(DropReason::Purged), dead: dropped.get(DropReason::PortDead) }
    }
}

impl Shared {
    /// Closes the link. See [`Link::close`](crate::Link::close).
    pub(crate) fn close(&self, timeout: Duration) -> CloseReport {
        if self.is_copy() {
            return CloseReport::OF_COPY;
        }
        let before = self.begin_close();
        let flushed = self.flush(timeout, |_| true);
        self.stop_threads();
        let deadline = self.owners_deadline();
        self.close_ports(self.slots.iter(), deadline);
        self.rig.threads.join(&self.clock, deadline.max(self.clock.now() + END_PATIENCE));
        // Once the link is shut (closed for good), a sender that still pushes a packet into a port
        // purges (drops and counts) the port's packets itself. This thread purges the packets that
        // were pushed before.
        self.rig.gate.shut();
        // Allow a moment more, because a thread that no device blocks may still own a port and be
        // about to leave that port.
        let deadline = deadline.max(self.clock.now() + END_PATIENCE);
        let blocked = self.close_ports(self.slots.iter(), deadline);
        self.ring_all();
        self.end_recalls(blocked);
        // What a port that could not be closed still holds is not in the losses yet.
        self.lost().since(before, flushed && blocked == 0, blocked)
    }

    /// Begins a close: refuses new packets from here on, and wakes all waiting senders. Returns how
    /// many packets had been lost before the first close began. Packets that other threads are just
    /// pushing, and ports that they are just adding, are left to the rest of the close.
    pub(crate) fn begin_close(&self) -> Lost {
        // If several threads close the link, all of them compare with the same earlier value, so
        // each reports what the closes lost together.
        let before = *self.written.before_close.get_or_init(|| self.lost());
        self.rig.gate.close();
        self.ring_all();
        before
    }

    /// Makes the link's threads end, without waiting for them.
    pub(crate) fn stop_threads(&self) {
        self.rig.runners.iter().for_each(|runner| runner.stop(&self.rig.threads));
        self.rig.threads.stop();
    }

    /// Of a link that is shut: closes all ports for good, and purges the packets that they hold.
    /// Returns the number of ports that could not be closed, because other threads own them.
    pub(crate) fn sweep_all(&self) -> usize {
        self.slots.iter().filter(|slot| !self.sweep(slot)).count()
    }

    /// Returns how many packets all ports have purged, and dropped because they died.
    pub(crate) fn lost(&self) -> Lost {
        self.slots.iter().map(Slot::lost).fold(Lost::default(), |sum, lost| Lost {
            purged: sum.purged + lost.purged,
            dead: sum.dead + lost.dead,
        })
    }

    /// Blocks until the ports for which `these` returns true hold no packet, but at most for
    /// `timeout`. If another thread shuts the link (closes it for good) meanwhile, blocks for
    /// [`END_PATIENCE`] more at most. Returns true if these ports hold no packet.
    pub(crate) fn flush(&self, timeout: Duration, these: impl Fn(usize) -> bool) -> bool {
        let mut deadline = self.clock.now() + timeout;
        let mut nap = Nap::default();
        let slots = || (0..self.ports()).filter(|port| these(*port)).map(|port| self.slot(port));
        loop {
            if self.is_copy() {
                return false;
            }
            // Ask whether the link is shut before looking at the ports: in a link that is shut, no
            // port holds packets, except a port whose device blocks its owner.
            let is_shut = self.rig.gate.is_shut();
            // If a device may block, leave its port to the runners: the calling thread has to
            // return in time.
            for slot in slots().filter(|slot| !slot.known.may_block) {
                let _ = self.help(slot);
            }
            if slots().all(|slot| slot.port.is_quiet()) {
                return true;
            }
            let now = self.clock.now();
            if is_shut {
                // Another thread may own a port at this moment and be about to leave it, so wait a
                // little.
                deadline = deadline.min(now + END_PATIENCE);
            }
            let left = deadline.since(now);
            if left == 0 {
                return false;
            }
            self.turn();
            thread::sleep(nap.next(left));
        }
    }

    /// Of a link without threads: makes one round of the runner, whoever calls. A thread that waits
    /// for packets to leave calls this, because the program may not come to do it meanwhile.
    /// Returns the time of the next round, see [`turn`]. Does nothing in other links.
    pub(crate) fn turn(&self) -> Option<Instant> {
        if self.is_copy() { None } else { turn(self, &self.clock) }
    }

    /// Closes ports for good: purges (drops and counts) the packets that they hold and those that
    /// still come. If a device blocks, gives up at `deadline`; the device's port keeps its packets
    /// until the device returns. Returns the number of ports that could not be closed.
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
            // The owner of a port leaves it after at most one quota of packets, unless the device
            // blocks. So try again soon.
            thread::sleep(nap.next(left));
        }
    }

    /// Returns the time until which a close that begins now waits for ports whose devices block.
    pub(crate) fn owners_deadline(&self) -> Instant {
        self.clock.now() + OWNER_PATIENCE
    }

    /// Serves a port if no thread owns it: sends (or, if the link is closing, purges) its packets,
    /// up to a quota, see [`Port::help`](onramp_core::Port::help). Returns `None` if the port was
    /// not served.
    pub(crate) fn help(&self, slot: &Slot<BoxDevice>) -> Option<Ran> {
        if self.is_copy() {
            return None;
        }
        let ran = slot.port.help(self.clock.now(), &self.waker(slot))?;
        self.follow_up(slot, ran);
        Some(ran)
    }

    /// If the link was shut while this thread served a port, purges the packets that are left in
    /// the port, also those that wait for their time. No runner comes any more, so the thread that
    /// served the port last has to do this.
    #[inline]
    pub(crate) fn follow_up(&self, slot: &Slot<BoxDevice>, ran: Ran) {
        // Call `is_shut` after the port was served: the fence in `is_shut` then makes sure that
        // either this thread sees that the link is shut, or the closing thread finds the packets
        // left in the port.
        if slot.may_hold_packets(ran) && self.rig.gate.is_shut() {
            self.sweep(slot);
        }
    }

    /// Gives the owner of a port `job` to run; see [`Port::with`](onramp_core::Port::with). If the
    /// link was shut meanwhile, purges the packets that are left in the port.
    ///
    /// # Errors
    ///
    /// Returns the job if too many jobs wait for the port.
    pub(crate) fn give(&self, slot: &Slot<BoxDevice>, job: Job) -> Result<bool, TooManyJobs> {
        let taken = slot.port.with(job, self.clock.now(), &self.waker(slot));
        // This thread may have owned the port to run the job, and may have been suspended before it
        // left the port, for longer than a close waits. Then the packets that the port holds are
        // this thread's to purge, as in `follow_up`. Call `is_shut` after the port was left.
        if self.rig.gate.is_shut() {
            self.sweep(slot);
        }
        taken
    }

    /// Returns false if another thread owns the port.
    #[cold]
    fn sweep(&self, slot: &Slot<BoxDevice>) -> bool {
        // Each round purges all packets that are in the port. More can come only from threads that
        // were already pushing when the link was shut.
        loop {
            let closed = slot.port.close(self.clock.now(), &self.waker(slot));
            if closed.is_none_or(|ran| !ran.again) {
                return closed.is_some();
            }
        }
    }
}
