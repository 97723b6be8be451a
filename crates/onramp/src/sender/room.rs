//! How a sender waits for credits and for room in an intake.
//!
//! While a port has packets that no other thread is sending, a waiting sender sends them.
//! Otherwise, it sleeps, and its pool wakes it when half of the packets that it has in flight have
//! come home. If they need longer than [`LinkBuilder::patience`](crate::LinkBuilder::patience),
//! perhaps because they wait for their time in a `netem` or with a receiver, the sender takes what
//! has come, or waits for the next one. In a link without threads, it also makes the rounds of the
//! runner: the program that should make them may be this very thread.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use onramp_core::{Clock, Instant, PortWaker};
use onramp_queue::{Armed, NEVER};

use super::{Sender, is_over};
use crate::Flow;
use crate::runner::WISH_NS;
use crate::shared::{BoxDevice, Shared};
use crate::slots::Slot;
use crate::sync::atomic::Ordering;
use crate::sync::thread;

/// Longest sleep of a sender that cannot ask its pool for a wake-up yet, because another thread is
/// just taking the sender's previous waker out of the pool.
const BUSY_NAP: Duration = Duration::from_micros(50);
/// Most ports, besides its own, at which a waiting sender looks for packets to send in one attempt.
pub(super) const HELPED_WAITING: usize = 4;
/// Most ports, besides its own, at which a sender looks for packets to send if it calls a sending
/// method again after `Full`, without having waited.
pub(super) const HELPED_AGAIN: usize = 1;
/// In a link without threads, longest time between two rounds that a waiting sender makes in place
/// of the program, nanoseconds. Requests of visits ring the program's descriptor, and wake no
/// waiting sender.
const TURN_NS: u64 = 1_000_000;
/// Number of times that a waiting sender sends packets of ports before it checks again whether its
/// own wait is over.
const HELPS_MAX: u32 = 64;

impl Sender {
    /// Blocks until the link is likely to accept a datagram of `payload` bytes on `flow`, or will
    /// never accept it because the link is closed or the flow's port is dead. Another thread may
    /// take the room first, so the next call of a sending method may still return `Full`.
    ///
    /// A caller that itself holds all packets that it may have ([`packet`](Self::packet)) waits
    /// until the link closes: only packets that were submitted or dropped free credit.
    pub fn wait_room(&mut self, flow: &Flow, payload: usize) {
        self.reclaim();
        self.wait(flow, payload, Instant::MAX);
    }

    /// Blocks as [`wait_room`](Self::wait_room) does, but for at most `timeout`. Returns false if
    /// there is still no room.
    pub fn wait_room_timeout(&mut self, flow: &Flow, payload: usize, timeout: Duration) -> bool {
        let deadline = self.shared().clock.now() + timeout;
        self.reclaim();
        self.wait(flow, payload, deadline)
    }

    /// Submits the packets that a cork held back, and ends the cork, as [`uncork`](Self::uncork)
    /// does. If some of the packets do not fit, blocks until they do, but for at most `timeout`.
    /// Returns false if some still do not fit: the cork goes on holding these packets back.
    ///
    /// If the link is closed meanwhile, the call ends, and the packets are dropped as `uncork`
    /// says.
    pub fn uncork_timeout(&mut self, timeout: Duration) -> bool {
        if self.uncork().is_ok() {
            return true;
        }
        self.end.counters.waits.add(1);
        let deadline = self.shared().clock.now() + timeout;
        self.uncork_by(deadline)
    }

    /// Returns a future that is ready when [`wait_room`](Self::wait_room) would return. The future
    /// works with any executor.
    pub fn ready<'a>(&'a mut self, flow: &'a Flow, payload: usize) -> Ready<'a> {
        Ready { sender: self, flow, payload, polled: false }
    }

    /// Polls for room as [`ready`](Self::ready) does, for futures and sinks that are written by
    /// hand. The call registers the task of `cx`, which is woken when there may be room. Another
    /// call of this sender may cancel the registration.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>, flow: &Flow, payload: usize) -> Poll<()> {
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        self.told_full = false;
        // Relaxed: a bell that rings although the task waits no longer does no harm.
        self.end.looks_at.store(NEVER, Ordering::Relaxed);
        loop {
            if self.reclaim() > 0 {
                self.waits_since = None;
            }
            if !self.shared().is_open() && self.refusal(flow).is_some() {
                if self.shared().is_closed() {
                    // `uncork` drops the packets that the cork holds back, and counts them as
                    // purged, because the link is closed.
                    let _ = self.uncork();
                }
                return Poll::Ready(());
            }
            self.look_for_credit();
            if let Some(port) = self.stuck_at(flow) {
                self.work_at(port);
                if self.stuck_at(flow) != Some(port) {
                    continue;
                }
                // The port accepts no packets, so the task waits. A runner, or the thread that
                // removes the port, wakes the task when there may be room again.
                self.wish_for_room(port);
                match self.pool.listen(cx.waker()) {
                    Armed::Armed => return Poll::Pending,
                    Armed::Ready => continue,
                    Armed::Busy => {}
                }
            } else if self.has_room(payload) {
                self.waits_since = None;
                return Poll::Ready(());
            } else if !self.help(self.served_by(flow), HELPED_WAITING) {
                self.end.counters.waits.add(1);
                let need = self.need_of_task();
                match self.pool.arm(cx.waker(), need) {
                    Armed::Armed => return Poll::Pending,
                    Armed::Ready => continue,
                    Armed::Busy => {}
                }
            }
            // Make the executor poll the task again, for one of two reasons. Either this poll has
            // sent packets of a port: a poll sends at most one quota, because the executor has
            // other tasks. Or another thread is just taking the task's previous waker out of the
            // pool.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
    }

    fn wait(&mut self, flow: &Flow, payload: usize, deadline: Instant) -> bool {
        self.told_full = false;
        self.end.counters.waits.add(1);
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        if !self.uncork_by(deadline) {
            return false;
        }
        let patience_ns = self.shared().patience_ns;
        let mut now = self.shared().clock.now();
        let mut patience = now.after(patience_ns);
        loop {
            if !self.shared().is_open() && self.refusal(flow).is_some() {
                return true;
            }
            self.look_for_credit();
            if self.has_room(payload) {
                return self.has_place(flow, deadline);
            }
            let port = self.served_by(flow);
            let in_time = if now < patience {
                self.wait_returned(port, self.half(), deadline.min(patience))
            } else {
                self.wait_returned(port, 1, deadline)
            };
            let came = self.reclaim() > 0;
            now = self.shared().clock.now();
            if !in_time && (now >= deadline || self.shared().is_copy()) && !self.has_room(payload) {
                return false;
            }
            if came {
                patience = now.after(patience_ns);
            }
        }
    }

    /// Lets the pool give out as many packets as the sender's share of the credits allows. If the
    /// share is too small and grows, the sender's bell rings.
    fn look_for_credit(&mut self) {
        let share = self.handle.shared.share_for(&self.end, self.pool.out());
        self.pool.allow(share.max(self.kept));
    }

    /// Returns how many packets have to come home before the sender's task is woken: half of them
    /// or, if none has come for long, one. The task is then also woken to look.
    fn need_of_task(&mut self) -> u32 {
        let now = self.shared().clock.now();
        let until = self.waits_since.get_or_insert(now).after(self.handle.shared.patience_ns);
        if now >= until {
            return 1;
        }
        self.shared().look_at(&self.end, until);
        self.half()
    }

    /// Returns half of the number of packets that this sender has in flight: it waits until so many
    /// have come home. A sender that resumed after every single credit would sleep and wake for
    /// every packet.
    fn half(&self) -> u32 {
        (self.pool.below() / 2).max(1)
    }

    /// Submits the packets that a cork held back, and waits until they fit. Returns false if some
    /// did not fit before `deadline`.
    pub(super) fn uncork_by(&mut self, deadline: Instant) -> bool {
        while self.uncork().is_err() {
            if !self.make_place(self.first_corked(), deadline) {
                return false;
            }
        }
        true
    }

    /// Returns the port into which the first packet that a cork holds back will be pushed.
    fn first_corked(&self) -> usize {
        let held = self.corked.iter().enumerate();
        let mut held = held.filter_map(|(port, list)| Some((port, list.front()?.flow)));
        held.next().map_or(0, |(port, key)| self.shared().route(port, key))
    }

    /// Returns the port that accepts no packet at present, and so keeps this sender from submitting
    /// packets of `flow` or packets that a cork held back. `None`: no port does.
    fn stuck_at(&mut self, flow: &Flow) -> Option<usize> {
        self.corked_at().or_else(|| {
            let port = self.served_by(flow);
            self.shared().is_full(port).then_some(port)
        })
    }

    /// Submits the packets that a cork held back. If some do not fit, returns the port that keeps
    /// the first of them from leaving.
    pub(super) fn corked_at(&mut self) -> Option<usize> {
        self.uncork().is_err().then(|| self.first_corked())
    }

    /// Asks a runner to wake this sender (to ring its bell) as soon as the port accepts packets
    /// again.
    pub(super) fn wish_for_room(&self, port: usize) {
        let shared = self.shared();
        let slot = shared.slot(port);
        if !slot.known.succession.is_leaving() {
            slot.want_room();
            shared.waker(slot).visit_by(shared.clock.now().after(WISH_NS));
        } // A leaving port needs no request: the thread that removes it wakes this sender.
    }

    /// Blocks until `need` packets have come home, or until the caller should check its condition
    /// again: because the sender's bell rang, or because it has sent packets of ports [`HELPS_MAX`]
    /// times. Returns false if `deadline` passed first.
    pub(super) fn wait_returned(&mut self, port: usize, need: u32, deadline: Instant) -> bool {
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

    /// Acts on `armed`, the pool's answer to this sender's request for a wake-up. If the pool took
    /// the request, sleeps until the wake-up. If it could not take the request yet, sleeps for a
    /// moment. If the awaited packets are home already, does not sleep. Returns false if `deadline`
    /// has passed, or if this is the copy of a link in a forked child, where nobody wakes the
    /// thread.
    fn sleep(&mut self, armed: Armed, deadline: Instant) -> bool {
        match armed {
            Armed::Ready => true,
            // Another thread is just taking the sender's previous waker out of the pool. A short
            // sleep lets that thread run, even if its priority is lower.
            Armed::Busy => {
                thread::park_timeout(BUSY_NAP);
                !self.shared().is_copy() && self.shared().clock.now() < deadline
            }
            Armed::Armed => {
                if self.shared().is_copy() {
                    // The process forked while this thread called a device, and this is the child,
                    // in which no other thread exists that could wake this one.
                    self.pool.disarm();
                    return false;
                }
                self.end.counters.parks.add(1);
                let in_time = self.park(deadline);
                if !in_time {
                    self.pool.disarm();
                }
                in_time
            }
        }
    }

    /// Sends packets of any senders, in place of sleeping. First tries `port`, the sender's own
    /// port. If there is nothing to do there, tries up to `most` ports that asked for a visit,
    /// until there is work at one of them; the next call goes on where this call stopped. Returns
    /// true if there was work.
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

    pub(super) fn work_at(&self, port: usize) -> bool {
        work(self.shared(), self.shared().slot(port))
    }

    /// Returns the port that serves the packets of `flow` at present.
    pub(super) fn served_by(&self, flow: &Flow) -> usize {
        let port = if flow.by_cpu { self.cpu_port } else { flow.port };
        self.shared().route(port, flow.key)
    }

    /// Waits while the flow's port accepts no packet: either its intake is at its cap, which
    /// credits normally prevent, or the port is being removed. Returns false if `deadline` has
    /// passed.
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

    /// Helps a port to accept packets again: sends its staged packets or, if another thread owns
    /// the port, waits for that thread to do so. Returns false if `deadline` has passed.
    fn make_place(&mut self, port: usize, deadline: Instant) -> bool {
        let shared = self.shared();
        if shared.clock.now() >= deadline {
            return false;
        }
        let helped = self.work_at(port);
        // Wait for a removed port, too: its successors accept no packets of its flows before the
        // removed port is empty.
        if !helped && (shared.is_full(port) || shared.slot(port).known.succession.is_gone()) {
            self.wish_for_room(port);
            let armed = self.pool.listen(self.waker.get());
            self.sleep(armed, deadline);
        }
        true
    }

    /// Sleeps until the thread is woken or `deadline` is reached, in a link without threads at most
    /// until the runner's next round. Returns false if the deadline has
    /// passed.
    fn park(&self, deadline: Instant) -> bool {
        let shared = self.shared();
        if shared.rig.threads.descriptor().is_some() {
            let next = shared.turn().unwrap_or(Instant::MAX);
            let now = shared.clock.now();
            let nap = next.since(now).min(deadline.since(now)).min(TURN_NS);
            thread::park_timeout(Duration::from_nanos(nap));
            return now < deadline;
        }
        if deadline == Instant::MAX {
            thread::park();
            return true;
        }
        let left = deadline.since(shared.clock.now());
        thread::park_timeout(Duration::from_nanos(left));
        left > 0
    }
}

/// Works on the packets of a port, up to a quota, if no thread owns the port. Returns true if
/// packets left, or if the port has more work that can be done now.
fn work(shared: &Shared, slot: &Slot<BoxDevice>) -> bool {
    shared.help(slot).is_some_and(|ran| ran.done > 0 || ran.again)
}

/// Future of [`Sender::ready`], which is ready when the link is likely to accept a datagram or will
/// never accept it.
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
    /// Withdraws the task's request to be woken, so that the task is not woken for nothing and its
    /// memory is released. A future that was never polled has made no request. In this case, a
    /// request that the caller made with [`Sender::poll_ready`] stays.
    fn drop(&mut self) {
        if self.polled {
            self.sender.pool.forget_waker();
        }
    }
}
