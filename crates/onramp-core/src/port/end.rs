//! The end of a port: it is closed, or it dies of a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use onramp_queue::{DropReason, PacketList};

use super::run::{Caller, Quota, Run, Stop};
use super::state::PortState;
use super::{CLOSE, Port, PortWaker, Ran};
use crate::base::Instant;
use crate::base::stats::PortStats;
use crate::base::sync::Ordering;
use crate::port::Device;
use crate::sched::Cx;

impl<D: Device> Port<D> {
    /// Drops all packets that the port holds and all packets that still arrive, as
    /// [`DropReason::Purged`]. Returns `None` if another thread owns the port; that owner closes
    /// the port as soon as its call of the device returns. Call `close` again in that case.
    pub fn close(&self, now: Instant, waker: &dyn PortWaker) -> Option<Ran> {
        // Release: publishes what the closing thread did before; pairs with the acquire in
        // `take_requests`.
        self.requests.fetch_or(CLOSE, Ordering::Release);
        let mut owner = self.intake.own()?;
        // Close before the run, so that it asks the device for nothing.
        owner.close(DropReason::Purged);
        Some(self.run(owner, PacketList::new(), Caller { now, waker, is_runner: true }))
    }

    /// Kills the port after a panic of its qdisc or device. Returns why the owner stops.
    #[cold]
    pub(super) fn die(
        &self,
        owner: &mut PortState<D>,
        run: &Run<'_>,
        panic: Box<dyn Any + Send>,
    ) -> Stop {
        owner.die(&run.quota, &self.stats);
        self.stats.backlog.set(owner.held(&self.stats));
        run.waker.dies();
        let first = self.known.death.set(why(&*panic)).is_ok();
        std::mem::forget(panic); // Dropping the payload is foreign code and may panic too.
        if first {
            run.waker.died();
        }
        owner.stop_of_death()
    }
}

/// Returns the message of a panic.
fn why(panic: &(dyn Any + Send)) -> Box<str> {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic").into()
}

impl<D> PortState<D> {
    /// Closes the port: from the next turn on, all packets are dropped for `reason`. Returns false
    /// if the port was already closed; the port then keeps its first reason.
    pub(super) fn close(&mut self, reason: DropReason) -> bool {
        let was_open = self.closed.is_none();
        self.closed.get_or_insert(reason);
        was_open
    }
}

impl<D: Device> PortState<D> {
    /// Whether the port is closed, and so sends nothing.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Drops the packets of a closed port: first packets of `burst` and `inbox`, up to
    /// `quota.purge`, then the packets of the tree. The tree is dropped only if its packets fit
    /// into the rest of the quota or if the owner has time, because a qdisc can only drop all of
    /// its packets at once.
    pub(super) fn purge(&mut self, reason: DropReason, run: &mut Run<'_>) -> Stop {
        self.share = None; // A closed port takes no part of the shared rate.
        if !self.is_buried && self.closed == Some(DropReason::PortDead) {
            if self.is_burden(&run.quota, run.stats) {
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
        let rests = !run.quota.at_leisure && self.root.backlog().packets > run.quota.purge;
        if !rests {
            self.root.qdisc_mut().reset(&mut cx);
        }
        run.finish(&mut drops);
        if rests || !self.inbox.is_empty() { Stop::Quota } else { Stop::Empty }
    }

    /// Whether a dead port holds more packets than a sender that only passes by should drop.
    fn is_burden(&self, quota: &Quota, stats: &PortStats) -> bool {
        !quota.at_leisure && self.held_by_death(stats) > u64::from(quota.purge)
    }

    /// Returns the number of packets that a dead port holds, computed from counters. The qdisc and
    /// the device may be broken, so neither is asked.
    fn held_by_death(&self, stats: &PortStats) -> u64 {
        // Saturating, because a broken device may have reported more packets than it was given.
        self.came.saturating_sub(stats.sent.get() + stats.dropped.total())
    }

    /// Closes the port after a panic and never calls its qdisc or device again. Drops the packets
    /// at once if they are few or the owner has time; otherwise the runner's visit drops them.
    pub(super) fn die(&mut self, quota: &Quota, stats: &PortStats) {
        self.closed = Some(DropReason::PortDead);
        if !self.is_burden(quota, stats) {
            self.bury(stats);
        }
    }

    /// Whether the port is dead and still holds the packets that it held when it died.
    fn awaits_burial(&self) -> bool {
        !self.is_buried && self.closed == Some(DropReason::PortDead)
    }

    /// Returns why an owner stops after a panic in its turn.
    pub(super) fn stop_of_death(&self) -> Stop {
        if self.awaits_burial() { Stop::Quota } else { Stop::Empty }
    }

    /// Returns the number of packets that the port holds.
    pub(super) fn held(&self, stats: &PortStats) -> u64 {
        if self.awaits_burial() { self.held_by_death(stats) } else { self.backlog() }
    }

    /// Drops all that a dead port holds. Packets are marked `PortDead` at push, so unprocessed
    /// packets already carry that reason. Packets that the panic itself destroyed are counted as
    /// the difference of the counters.
    fn bury(&mut self, stats: &PortStats) {
        self.is_buried = true;
        self.share = None; // A dead port takes no part of the shared rate.
        // The qdiscs may be broken, so that dropping one panics again.
        for qdisc in self.root.bury() {
            drop_any(qdisc);
        }
        self.drop_jobs();
        drop(std::mem::take(&mut self.inbox));
        drop(std::mem::take(&mut self.burst));
        stats.dropped.add(DropReason::PortDead, self.held_by_death(stats));
    }
}

/// Drops a value whose `drop` may panic, and leaks the panic's payload.
pub(super) fn drop_any<T>(any: T) {
    let drops = AssertUnwindSafe(|| drop(any));
    catch_unwind(drops).unwrap_or_else(std::mem::forget);
}
