//! The end of a port: another thread closes it, or it dies of a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use onramp_queue::{DropReason, PacketList};

use super::run::{Caller, Run, Stop};
use super::state::PortState;
use super::{CLOSE, Port, PortWaker, Ran};
use crate::base::Instant;
use crate::base::stats::PortStats;
use crate::base::sync::Ordering;
use crate::port::Device;
use crate::sched::Cx;

impl<D: Device> Port<D> {
    /// Closes the port: drops all packets that the port holds and all packets that still arrive, as
    /// [`DropReason::Purged`]. Returns `None` if another thread owns the port. That owner closes
    /// the port as soon as its call of the device returns; call `close` again in that case.
    pub fn close(&self, now: Instant, waker: &dyn PortWaker) -> Option<Ran> {
        // Release: publishes what the closing thread did before; pairs with the acquire in
        // `take_requests`.
        self.requests.fetch_or(CLOSE, Ordering::Release);
        let mut owner = self.intake.own()?;
        // Close the port before the run, so that the run offers the device no packets.
        owner.close(DropReason::Purged);
        Some(self.run(owner, PacketList::new(), Caller { now, waker, is_runner: true }))
    }

    /// Marks the port as dead after a panic of its qdisc or device. Returns why the owner stops its
    /// run: `Stop::Quota` if the port still holds packets to drop, else `Stop::Empty`.
    #[cold]
    pub(super) fn die(
        &self,
        owner: &mut PortState<D>,
        run: &Run<'_>,
        panic: Box<dyn Any + Send>,
    ) -> Stop {
        owner.die(run);
        self.stats.backlog.set(owner.held(&self.stats));
        run.waker.dies();
        let first = self.known.death.set(why(&*panic)).is_ok();
        // The code that panicked chose the payload of the panic, and dropping the payload may panic
        // too.
        std::mem::forget(panic);
        if first {
            run.waker.died();
        }
        owner.stop_of_death()
    }
}

/// Returns the message of a panic, or "a panic" if there is none.
fn why(panic: &(dyn Any + Send)) -> Box<str> {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic").into()
}

impl<D> PortState<D> {
    /// Closes the port: from the owner's next turn on, the port drops all packets for `reason`.
    /// Returns false if the port was already closed; the port then keeps its first reason.
    pub(super) fn close(&mut self, reason: DropReason) -> bool {
        let was_open = self.closed.is_none();
        self.closed.get_or_insert(reason);
        was_open
    }
}

impl<D: Device> PortState<D> {
    /// Whether the port is closed, so that it drops all packets and sends none.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Drops the packets of a closed port: at most `quota.purge` packets of `burst` and `inbox`,
    /// then the packets of the tree. A qdisc can only drop all of its packets at once. So if the
    /// owner is a sender, and the tree holds more packets than the rest of the quota, the sender
    /// leaves the tree to the runner.
    pub(super) fn purge(&mut self, reason: DropReason, run: &mut Run<'_>) -> Stop {
        self.share = None; // A closed port gives up its part of a shared rate.
        if !self.is_buried && self.closed == Some(DropReason::PortDead) {
            if self.is_burden(run) {
                return Stop::Quota;
            }
            self.bury(run.stats);
        }
        let mut drops = PacketList::new();
        let mut cx = Cx::new(run.now, &mut drops);
        for pkt in self.burst.by_ref().chain(self.inbox.by_ref()).take(run.quota.purge as usize) {
            cx.drop(pkt, reason);
        }
        run.quota.purge = run.quota.purge.saturating_sub(cx.drops.len());
        let rests = !run.is_runner && self.root.backlog().packets > run.quota.purge;
        if !rests {
            self.root.qdisc_mut().reset(&mut cx);
        }
        run.finish(&mut drops);
        if rests || self.has_staged() { Stop::Quota } else { Stop::Empty }
    }

    /// Whether a dead port holds too many packets for this owner to drop: the owner is a sender,
    /// which came only to push its own packets, and the packets exceed its quota.
    fn is_burden(&self, run: &Run<'_>) -> bool {
        !run.is_runner && self.held_by_death(run.stats) > u64::from(run.quota.purge)
    }

    /// Returns the number of packets that a dead port holds, computed from counters. The qdisc and
    /// the device may be broken, so neither may be called.
    fn held_by_death(&self, stats: &PortStats) -> u64 {
        // The subtraction saturates, because a broken device may have reported more packets than it
        // was given.
        self.came.saturating_sub(stats.sent.get() + stats.dropped.total())
    }

    /// Closes the port after a panic, so that its qdisc and device are never called again. Drops
    /// the port's packets at once if the owner is the runner, or if the packets do not exceed the
    /// owner's quota; otherwise the runner's next visit drops them.
    pub(super) fn die(&mut self, run: &Run<'_>) {
        self.closed = Some(DropReason::PortDead);
        self.root.let_leases_go();
        if !self.is_burden(run) {
            self.bury(run.stats);
        }
    }

    /// Whether the port is dead and still holds the packets that it held when it died.
    fn awaits_burial(&self) -> bool {
        !self.is_buried && self.closed == Some(DropReason::PortDead)
    }

    /// Returns why the owner of a dead port stops its run: `Stop::Quota` if the port still holds
    /// packets to drop, else `Stop::Empty`.
    pub(super) fn stop_of_death(&self) -> Stop {
        if self.awaits_burial() { Stop::Quota } else { Stop::Empty }
    }

    /// Returns the number of packets that the port holds.
    pub(super) fn held(&self, stats: &PortStats) -> u64 {
        if self.awaits_burial() { self.held_by_death(stats) } else { self.backlog() }
    }

    /// Drops the qdiscs, jobs and packets of a dead port. Each packet carries the drop reason
    /// `PortDead` from its push until the port has processed it, so it needs no other reason now.
    /// The number of dropped packets is computed from counters, because the panic itself may have
    /// destroyed packets.
    fn bury(&mut self, stats: &PortStats) {
        self.is_buried = true;
        self.share = None; // A dead port gives up its part of a shared rate.
        // The qdiscs may be broken, so dropping a qdisc may panic again.
        for qdisc in self.root.bury() {
            drop_any(qdisc);
        }
        self.drop_jobs();
        drop(std::mem::take(&mut self.inbox));
        drop(std::mem::take(&mut self.taken));
        // A device may have given a reason of its own to packets that it has not taken.
        self.burst.metas_mut().for_each(|meta| meta.drop_reason = Some(DropReason::PortDead));
        drop(std::mem::take(&mut self.burst));
        stats.dropped.add(DropReason::PortDead, self.held_by_death(stats));
    }
}

/// Drops a value whose `drop` may panic. If it panics, the payload of the panic is never freed,
/// because dropping the payload might panic as well.
pub(super) fn drop_any<T>(any: T) {
    let drops = AssertUnwindSafe(|| drop(any));
    catch_unwind(drops).unwrap_or_else(std::mem::forget);
}
