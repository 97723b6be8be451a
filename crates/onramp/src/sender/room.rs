//! How a sender waits: for room, for its packets to come home, for a place in an intake.
//!
//! It works instead, as long as there is work that nobody does; then it is woken by its pool, when
//! half of what it has below came home.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use onramp_core::{Clock, Instant, PortWaker};
use onramp_queue::Armed;

use super::{Sender, is_over};
use crate::Flow;
use crate::nap::Nap;
use crate::runner::WISH_NS;
use crate::shared::{BoxDevice, Shared};
use crate::slots::Slot;

/// How long it sleeps at most while somebody is taking its last waker out.
const BUSY_NAP: Duration = Duration::from_micros(50);
/// How long a flush waits on a link that is closed for good: packets may be on their way home.
const CLOSED_PATIENCE: Duration = Duration::from_secs(1);
/// Ports that a sender works at besides its own, in one look: while it waits, and when it comes
/// again without having waited.
const HELPED_WAITING: usize = 4;
pub(super) const HELPED_AGAIN: usize = 1;
/// Times that a sender works for others before it looks again whether its own wait has an end.
const HELPS_MAX: u32 = 64;

impl Sender {
    /// Blocks until a datagram of `payload` bytes has a chance on `flow`, or never will: the link
    /// is closed, or the flow's port is dead.
    ///
    /// A caller that itself holds all the packets it may have ([`packet`](Self::packet)) waits
    /// until the link closes: only packets that were submitted or dropped come back.
    pub fn wait_room(&mut self, flow: &Flow, payload: usize) {
        self.reclaim();
        self.wait(flow, payload, Instant::MAX);
    }

    /// As [`wait_room`](Self::wait_room), for at most `timeout`. False: there is no room yet.
    pub fn wait_room_timeout(&mut self, flow: &Flow, payload: usize, timeout: Duration) -> bool {
        let deadline = self.shared().clock.now() + timeout;
        self.reclaim();
        self.wait(flow, payload, deadline)
    }

    /// As [`wait_room`](Self::wait_room), as a future for any executor.
    pub fn ready<'a>(&'a mut self, flow: &'a Flow, payload: usize) -> Ready<'a> {
        Ready { sender: self, flow, payload, polled: false }
    }

    /// As [`ready`](Self::ready), for futures and sinks made by hand: the task is woken even if
    /// nothing is kept of the call, unless another call of this sender comes first.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>, flow: &Flow, payload: usize) -> Poll<()> {
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        self.told_full = false;
        loop {
            self.reclaim();
            if !self.shared().is_open() && self.refusal(flow).is_some() {
                if self.shared().is_closed() {
                    let _ = self.uncork(); // What a cork holds back is purged.
                }
                return Poll::Ready(());
            }
            self.pool.allow(self.shared().fair_credits());
            if let Some(port) = self.stuck_at(flow) {
                self.work_at(port);
                if self.stuck_at(flow) != Some(port) {
                    continue;
                }
                // Whoever owns the port takes what waits, and a runner looks whether it has.
                self.wish_for_room(port);
                match self.pool.listen(cx.waker()) {
                    Armed::Armed => return Poll::Pending,
                    Armed::Ready => continue,
                    Armed::Busy => {}
                }
            } else if self.pool.has_room(payload) {
                return Poll::Ready(());
            } else if !self.help(self.served_by(flow), HELPED_WAITING) {
                self.end.counters.waits.add(1);
                match self.pool.arm(cx.waker(), self.half()) {
                    Armed::Armed => return Poll::Pending,
                    Armed::Ready => continue,
                    Armed::Busy => {}
                }
            }
            // Packets left, and one run a poll is enough: an executor has other tasks. Or somebody
            // is just taking the last waker out.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
    }

    /// Blocks until everything this sender submitted was sent or dropped, at most `timeout`, also
    /// packets that are not its own. True if so.
    ///
    /// A packet that a device handed to a receiver counts until somebody drops it, also if another
    /// sender submits it once more. When a close of the link has come to its end, the call waits
    /// for another second at most: what has not come home by then, a device or a receiver has.
    pub fn flush(&mut self, timeout: Duration) -> bool {
        let mut deadline = self.shared().clock.now() + timeout;
        if !self.uncork_by(deadline) {
            return false;
        }
        let mut nap = Nap::default();
        loop {
            self.reclaim();
            let below = self.pool.below();
            if below == 0 && !self.pool.has_guests() {
                return true;
            }
            let now = self.shared().clock.now();
            let is_copy = self.shared().is_copy();
            if is_copy || self.shared().rig.gate.is_shut() {
                let patience = if is_copy { Duration::ZERO } else { CLOSED_PATIENCE };
                deadline = deadline.min(now + patience);
            }
            let in_time = if below > 0 {
                self.wait_returned(0, below, deadline)
            } else {
                // Packets of others do not come home to us.
                let left = deadline.since(now);
                if !self.help(0, HELPED_WAITING) {
                    thread::park_timeout(nap.next(left));
                }
                left > 0
            };
            if !in_time {
                self.reclaim();
                return self.pool.below() == 0 && !self.pool.has_guests();
            }
        }
    }

    fn wait(&mut self, flow: &Flow, payload: usize, deadline: Instant) -> bool {
        self.told_full = false;
        self.end.counters.waits.add(1);
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        if !self.uncork_by(deadline) {
            return false;
        }
        loop {
            if !self.shared().is_open() && self.refusal(flow).is_some() {
                return true;
            }
            self.pool.allow(self.shared().fair_credits());
            if self.pool.has_room(payload) {
                return self.has_place(flow, deadline);
            }
            let in_time = self.wait_returned(self.served_by(flow), self.half(), deadline);
            self.reclaim();
            if !in_time && !self.pool.has_room(payload) {
                return false;
            }
        }
    }

    /// Half of what is below: a sender that went on with every single credit would wait for every
    /// single packet.
    fn half(&self) -> u32 {
        (self.pool.below() / 2).max(1)
    }

    /// Submits what a cork held back, as soon as it fits. False: not before `deadline`.
    pub(super) fn uncork_by(&mut self, deadline: Instant) -> bool {
        while self.uncork().is_err() {
            if !self.make_place(self.first_corked(), deadline) {
                return false;
            }
        }
        true
    }

    /// The port of the first packet that a cork holds back.
    fn first_corked(&self) -> usize {
        let held = self.corked.iter().enumerate();
        let mut held = held.filter_map(|(port, list)| Some((port, list.front()?.flow)));
        held.next().map_or(0, |(port, key)| self.shared().route(port, key))
    }

    /// The port that takes nothing just now, if one wakers packets of `flow`, or of a cork, from
    /// being submitted.
    fn stuck_at(&mut self, flow: &Flow) -> Option<usize> {
        if self.uncork().is_err() {
            return Some(self.first_corked());
        }
        let port = self.served_by(flow);
        self.shared().is_full(port).then_some(port)
    }

    /// Has the bell ring as soon as a port takes packets again.
    fn wish_for_room(&self, port: usize) {
        let shared = self.shared();
        let slot = shared.slot(port);
        if !slot.known.succession.is_leaving() {
            slot.want_room();
            shared.waker(slot).visit_by(shared.clock.now().after(WISH_NS));
        } // Else who removes it rings.
    }

    /// Blocks until `need` packets have come home, or something happened that may end the wait.
    /// False: neither before `deadline`.
    fn wait_returned(&mut self, port: usize, need: u32, deadline: Instant) -> bool {
        let mut helped = 0;
        loop {
            if self.pool.returned() >= need || helped == HELPS_MAX {
                return true;
            }
            if self.help(port, HELPED_WAITING) {
                helped += 1;
                let now = self.shared().clock.now();
                self.slice_over = is_over(self.slice_start, now);
                self.give_way();
                if now >= deadline {
                    return false;
                }
                continue;
            }
            match self.pool.arm(self.waker.get(), need) {
                Armed::Ready => return true,
                armed if !self.sleep(armed, deadline) => return false,
                _ => {}
            }
        }
    }

    /// Sleeps as the answer to a request to be woken has it. False: `deadline` has passed.
    fn sleep(&mut self, armed: Armed, deadline: Instant) -> bool {
        match armed {
            Armed::Ready => true,
            // Somebody takes the last waker out: a nap lets it, whatever the priorities are.
            Armed::Busy => {
                thread::park_timeout(BUSY_NAP);
                !self.shared().is_copy() && self.shared().clock.now() < deadline
            }
            Armed::Armed => {
                self.end.counters.parks.add(1);
                let in_time = self.park(deadline);
                if !in_time {
                    self.pool.disarm();
                }
                in_time
            }
        }
    }

    /// Works for all instead of waiting, on the first port that lets it: its own, or one of `most`
    /// ports that asked for a visit, in turn. (Ports that did not have nothing to do.) True if
    /// packets left.
    pub(super) fn help(&mut self, port: usize, most: usize) -> bool {
        if self.work_at(port) {
            return true;
        }
        let shared = &*self.handle.shared;
        let (some, next) = shared.slots.some_marked(self.helps_from);
        self.helps_from = next;
        for (looked, (number, slot)) in some.filter(|(number, _)| *number != port).enumerate() {
            if looked == most {
                self.helps_from = number;
                break;
            }
            if work(shared, slot) {
                self.helps_from = number + 1;
                return true;
            }
        }
        false
    }

    /// Works at one port, if nobody does. True if packets left.
    fn work_at(&self, port: usize) -> bool {
        work(self.shared(), self.shared().slot(port))
    }

    /// The port that takes the flow's packets just now.
    pub(super) fn served_by(&self, flow: &Flow) -> usize {
        let port = if flow.by_cpu { self.cpu_port } else { flow.port };
        self.shared().route(port, flow.key)
    }

    /// Waits while the flow's port takes nothing: its intake is at its cap, which credits normally
    /// keep from happening, or it is being removed.
    fn has_place(&mut self, flow: &Flow, deadline: Instant) -> bool {
        loop {
            let port = self.served_by(flow);
            if !self.shared().is_full(port) || self.refusal(flow).is_some() {
                return true;
            }
            if !self.make_place(port, deadline) {
                return false;
            }
        }
    }

    /// Takes what waits in an intake out of it, or lets its owner. False: `deadline` has passed.
    fn make_place(&mut self, port: usize, deadline: Instant) -> bool {
        let shared = self.shared();
        if shared.clock.now() >= deadline {
            return false;
        }
        let helped = self.work_at(port);
        // If it is gone, its successors take nothing.
        if !helped && (shared.is_full(port) || shared.slot(port).known.succession.is_gone()) {
            self.wish_for_room(port);
            let armed = self.pool.listen(self.waker.get());
            self.sleep(armed, deadline);
        }
        true
    }

    /// Sleeps until woken or `deadline`; false: the deadline has passed.
    fn park(&self, deadline: Instant) -> bool {
        if deadline == Instant::MAX {
            thread::park();
            return true;
        }
        let left = deadline.since(self.shared().clock.now());
        thread::park_timeout(Duration::from_nanos(left));
        left > 0
    }
}

/// Sends up to a quota from a port, if nobody does. True if packets left.
fn work(shared: &Shared, slot: &Slot<BoxDevice>) -> bool {
    shared.help(slot).is_some_and(|ran| ran.done > 0)
}

/// Resolves when a datagram has a chance. See [`Sender::ready`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Ready<'a> {
    sender: &'a mut Sender,
    flow: &'a Flow,
    payload: usize,
    polled: bool,
}

impl Future for Ready<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.polled = true;
        this.sender.poll_ready(cx, this.flow, this.payload)
    }
}

impl Drop for Ready<'_> {
    /// A wake-up for nobody would only cost; the executor's task is let go of. A future that was
    /// never polled has asked for none, but [`Sender::poll_ready`] may have.
    fn drop(&mut self) {
        if self.polled {
            self.sender.pool.forget_waker();
        }
    }
}
