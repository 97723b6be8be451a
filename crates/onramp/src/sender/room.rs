//! How a sender waits: for room, for its packets to come home, for a place in an intake.
//!
//! It works instead, as long as there is work that nobody does; then it is woken by its pool, when
//! half of what it has below came home.

use std::future::Future;
use std::iter;
use std::pin::Pin;
use std::ptr;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use onramp_core::{Clock, Instant};
use onramp_queue::Armed;

use super::{SLICE_NS, Sender};
use crate::Flow;

/// How long a sender sleeps at most when it has credit and the intake is at its cap.
const FULL_NAP_NS: u64 = 1_000_000;

impl Sender {
    /// Blocks until a datagram of `payload` bytes has a chance on `flow`, or never will: the link
    /// is closed, or the flow's port is dead.
    ///
    /// A caller that itself holds all the packets it may have ([`packet`](Self::packet)) waits for
    /// ever: only submitted packets come back.
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
            if self.shared().refusal(flow).is_some() {
                return Poll::Ready(());
            }
            let corked = self.uncork().is_err();
            let port = self.served_by(flow);
            if corked || self.shared().is_full(port) {
                // Whoever owns the port takes what waits; if nobody does, we do.
                self.help_all();
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.pool.has_room(payload) {
                return Poll::Ready(());
            }
            if self.help(port) {
                // One run a poll: an executor has other tasks.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.counters.waits.add(1);
            let need = (self.below() / 2).max(1);
            match self.pool.arm(cx.waker(), need) {
                Armed::Armed if self.below() > 0 => return Poll::Pending,
                Armed::Ready => {}
                _ => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Blocks until everything this sender submitted was sent or dropped, at most `timeout`.
    /// True if so.
    pub fn flush(&mut self, timeout: Duration) -> bool {
        let deadline = self.shared().clock.now() + timeout;
        if !self.uncork_by(deadline) {
            return false;
        }
        self.reclaim();
        while self.below() > 0 {
            let out = self.below();
            if !self.wait_returned(0, out, deadline) {
                return false;
            }
            if self.reclaim() == 0 {
                // The link is closing: what is left comes home at once, or a device blocks.
                if self.shared().clock.now() >= deadline {
                    return false;
                }
                thread::yield_now();
            }
        }
        true
    }

    fn wait(&mut self, flow: &Flow, payload: usize, deadline: Instant) -> bool {
        self.told_full = false;
        self.counters.waits.add(1);
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        if !self.uncork_by(deadline) {
            return false;
        }
        loop {
            if self.shared().refusal(flow).is_some() {
                return true;
            }
            if self.pool.has_room(payload) {
                return self.has_place(flow, deadline);
            }
            // Half of what is below: a sender that went on with every single credit would wait for
            // every single packet.
            let need = (self.below() / 2).max(1);
            let in_time = self.wait_returned(self.served_by(flow), need, deadline);
            self.reclaim();
            if !in_time && !self.pool.has_room(payload) {
                return false;
            }
        }
    }

    /// Submits what a cork held back, as soon as it fits. False: not before `deadline`.
    pub(super) fn uncork_by(&mut self, deadline: Instant) -> bool {
        while self.uncork().is_err() {
            let held = self.corked.iter().position(|list| !list.is_empty());
            if !self.make_place(self.shared().front(held.unwrap_or(0)), deadline) {
                return false;
            }
        }
        true
    }

    /// Blocks until `need` packets have come home. False: not before `deadline`.
    fn wait_returned(&mut self, port: usize, need: u32, deadline: Instant) -> bool {
        loop {
            if self.pool.returned() >= need || self.shared().gate.is_closed() {
                return true;
            }
            if self.help(port) {
                let now = self.shared().clock.now();
                self.slice_over = now.since(self.slice_start) > SLICE_NS;
                self.give_way();
                if now >= deadline {
                    return self.pool.returned() >= need;
                }
                continue;
            }
            match self.pool.arm(self.waker.get(), need) {
                Armed::Ready => return true,
                Armed::Busy => thread::yield_now(),
                Armed::Armed => {
                    self.counters.parks.add(1);
                    if !self.park(deadline) {
                        self.pool.disarm();
                        return self.pool.returned() >= need;
                    }
                }
            }
        }
    }

    /// Works for all instead of waiting, on the first port that lets it: its own, or one that asked
    /// for a visit. (Others have nothing to do, and may be thousands.) True if packets left.
    pub(super) fn help(&self, port: usize) -> bool {
        let shared = self.shared();
        let own = shared.slot(port);
        let others = shared.slots.marked().filter(|slot| !ptr::eq(*slot, own));
        iter::once(own).chain(others).any(|slot| {
            let ran = slot.port.help(shared.clock.now(), &shared.keep(slot));
            ran.is_some_and(|ran| ran.done > 0)
        })
    }

    /// Empties all intakes that nobody owns.
    fn help_all(&self) {
        let shared = self.shared();
        for slot in (0..shared.ports()).map(|port| shared.slot(port)) {
            let _ = slot.port.help(shared.clock.now(), &shared.keep(slot));
        }
    }

    /// The port that takes the flow's packets just now.
    pub(super) fn served_by(&self, flow: &Flow) -> usize {
        let port = if flow.by_cpu { self.cpu_port } else { flow.port };
        self.shared().route(port, flow.key)
    }

    /// Waits while the flow's port takes nothing: its intake is at its cap, which credits normally
    /// keep from happening, or it is being removed.
    fn has_place(&self, flow: &Flow, deadline: Instant) -> bool {
        loop {
            let port = self.served_by(flow);
            if !self.shared().is_full(port) || self.shared().refusal(flow).is_some() {
                return true;
            }
            if !self.make_place(port, deadline) {
                return false;
            }
        }
    }

    /// Takes what waits in an intake out of it, or lets its owner. False: `deadline` has passed.
    fn make_place(&self, port: usize, deadline: Instant) -> bool {
        let shared = self.shared();
        let (slot, now) = (shared.slot(port), shared.clock.now());
        if now >= deadline {
            return false;
        }
        let ran = slot.port.help(now, &shared.keep(slot));
        let takes_nothing = shared.is_full(port) || slot.is_gone(); // Its heirs do not, then.
        if ran.is_none_or(|ran| ran.done == 0) && takes_nothing {
            thread::park_timeout(Duration::from_nanos(FULL_NAP_NS.min(deadline.since(now))));
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
