//! How a sender waits until all its packets have come home.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use onramp_core::Clock;
use onramp_queue::Armed;

use super::Sender;
use super::room::HELPED_WAITING;
use crate::nap::Nap;
use crate::sync::thread;

/// How long a flush waits for packets to come home after the link has been closed for good.
const CLOSED_PATIENCE: Duration = Duration::from_secs(1);
/// How often a task that waits for packets of other senders looks whether they are gone.
const LOOK: Duration = Duration::from_millis(1);

impl Sender {
    /// Blocks until every packet that this sender submitted was sent or dropped, but at most for
    /// `timeout`. This includes packets that other senders made, if this sender submitted them.
    /// Returns true if no packet is left.
    ///
    /// A packet that a device handed to a receiver counts until the receiver drops it, even if
    /// another sender submits it once more. After a close of the link has ended, the call waits for
    /// one more second at most: a packet that has not come home by then is held by a device or a
    /// receiver.
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
                // Packets that other senders made do not come home to this sender, so no thread
                // wakes this sender for them. It has to check again and again.
                let left = deadline.since(now);
                if !self.help(0, HELPED_WAITING) {
                    self.shared().turn();
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

    /// Returns a future that is ready when every packet that this sender submitted was sent or
    /// dropped. This includes packets that other senders made, if this sender submitted them. Its
    /// output is true if no packet is left. Use it where [`flush`](Self::flush) must not block the
    /// thread; it works with any executor, and has no time limit of its own.
    ///
    /// A packet that a device handed to a receiver counts until the receiver drops it. After a
    /// close of the link has ended, the future is ready, too: with false if a device or a receiver
    /// still holds packets.
    pub fn flushed(&mut self) -> Flushed<'_> {
        Flushed { sender: self, polled: false }
    }

    /// Polls as [`flushed`](Self::flushed) does, for futures and sinks that are written by hand.
    /// The call registers the task of `cx`. Another call of this sender may cancel the
    /// registration.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            let is_copy = self.shared().is_copy();
            let is_shut = !is_copy && self.shared().rig.gate.is_shut();
            let corked_at = self.corked_at();
            if is_shut {
                // The thread that closes the link may not have come to these packets yet.
                self.shared().sweep_all();
            }
            self.reclaim();
            let below = self.pool.below();
            let armed = if let Some(port) = corked_at {
                self.work_at(port);
                if self.corked_at() != Some(port) {
                    continue;
                }
                self.wish_for_room(port);
                self.pool.listen(cx.waker())
            } else if below == 0 && !self.pool.has_guests() {
                return Poll::Ready(true);
            } else if is_copy || is_shut {
                return Poll::Ready(false);
            } else if self.help(0, HELPED_WAITING) {
                // A poll sends at most one quota, because the executor has other tasks.
                Armed::Busy
            } else if below > 0 {
                self.pool.arm(cx.waker(), below)
            } else if self.ask_to_look() {
                // Packets that other senders made do not come home to this sender, so no thread
                // wakes its task for them.
                self.pool.listen(cx.waker())
            } else {
                continue;
            };
            match armed {
                Armed::Armed => return Poll::Pending,
                Armed::Ready => {}
                // Make the executor poll the task again: see `poll_ready`.
                Armed::Busy => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Asks a runner to wake this sender's task soon. Returns false if no runner comes any more.
    fn ask_to_look(&self) -> bool {
        let shared = self.shared();
        shared.recall_at(&self.end.bell, shared.clock.now() + LOOK).is_ok()
    }
}

/// Future of [`Sender::flushed`], which is ready when all packets of a sender have left.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Flushed<'a> {
    sender: &'a mut Sender,
    polled: bool,
}

impl Future for Flushed<'_> {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let this = self.get_mut();
        this.polled = true;
        this.sender.poll_flush(cx)
    }
}

impl Drop for Flushed<'_> {
    /// Withdraws the task's request to be woken, as [`Ready`](super::Ready) does.
    fn drop(&mut self) {
        if self.polled {
            self.sender.pool.forget_waker();
        }
    }
}
