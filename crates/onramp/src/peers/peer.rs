//! A sender that several tasks share, and in which all of them may wait for room.
//!
//! A [`Sender`] wakes one waker, and every call that takes credits back may cancel the request for
//! that wake-up. So the tasks that wait are in a list, the sender knows the list as its only waker,
//! and a call that may have cancelled the request asks anew for the tasks of the list.

use std::collections::HashMap;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use onramp_queue::{call_waker, hold_wakes};

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::{Flow, Message, Sender, TrySendError};

/// One destination of [`Peers`](crate::Peers), with a flow, a sender and credits of its own. Any
/// number of tasks and threads may send to it, and wait for room.
#[derive(Debug)]
pub struct Peer {
    sending: Mutex<Sending>,
    waiting: Arc<Waiting>,
    /// Wakes all tasks in `waiting`.
    waker: Waker,
    /// Whether the table has forgotten this peer: tasks that wait look their destination up again.
    is_forgotten: AtomicBool,
    /// Number of forks when the peer was made: see [`is_copy`](Self::is_copy).
    forks: u32,
}

#[derive(Debug)]
struct Sending {
    sender: Sender,
    flow: Flow,
}

/// The tasks that wait for room.
#[derive(Debug, Default)]
struct Waiting(Mutex<Waiters>);

#[derive(Debug, Default)]
struct Waiters {
    /// The tasks of the [`Room`]s that wait, by the numbers of these futures.
    futures: HashMap<u64, Waker>,
    /// The tasks that called [`Peer::poll_ready`]. All futures of a task share one entry.
    others: Vec<Waker>,
    /// The least number of bytes for which a task waits, or fewer. Meaningless while no task waits.
    least: usize,
    /// The number of the next [`Room`].
    next: u64,
}

impl Peer {
    pub(super) fn new(sender: Sender, flow: Flow) -> Self {
        let waiting = Arc::new(Waiting::default());
        let waker = Waker::from(Arc::clone(&waiting));
        let (sending, is_forgotten) =
            (Mutex::new(Sending { sender, flow }), AtomicBool::new(false));
        let forks = onramp_dev::watch_forks();
        Self { sending, waiting, waker, is_forgotten, forks }
    }

    /// Whether this is the copy of a peer in a child of `fork`, where other threads of the parent
    /// may have left the locks locked for ever. A copy takes no lock.
    fn is_copy(&self) -> bool {
        onramp_dev::forks() != self.forks
    }

    /// Lets the tasks that wait look their destination up again.
    pub(super) fn forget(&self) {
        // Relaxed: a task enters the list before it reads this, and the list is locked below.
        self.is_forgotten.store(true, Ordering::Relaxed);
        self.waiting.wake_all();
    }

    /// Stages a message, as [`Sender::try_send_message`] does. If two threads send to one peer at
    /// the same time, one of them waits for the other's push.
    ///
    /// # Errors
    ///
    /// As [`Sender::try_send`].
    ///
    /// # Panics
    ///
    /// Panics when the message's ECN code point has more than two bits.
    pub fn try_send(&self, message: &Message<'_>) -> Result<(), TrySendError> {
        if self.is_copy() {
            return Err(TrySendError::Closed);
        }
        // The call may send other senders' packets, too, and so wake any task. Wakers are called
        // without the lock, because they may run code that sends to this peer.
        let _held = hold_wakes();
        let mut sending = lock(&self.sending);
        let Sending { sender, flow } = &mut *sending;
        let sent = sender.try_send_message(flow, message);
        self.ask_anew(sending);
        sent
    }

    /// Returns a future that waits for room for a message of `payload` bytes. It is ready when
    /// there is likely to be room, when there will never be any, and when [`Peers`](crate::Peers)
    /// has forgotten this peer. Ask the table for the peer anew then, and send.
    #[must_use = "futures do nothing unless polled"]
    pub fn room(self: &Arc<Self>, payload: usize) -> Room {
        let number = if self.is_copy() { 0 } else { self.waiting.number() };
        Room { peer: Arc::clone(self), payload, number }
    }

    /// Polls for room for a message of `payload` bytes, as [`Sender::poll_ready`] does. Registers
    /// the task of `cx`, which is woken when there may be room, and when there will never be any.
    /// Any number of tasks may wait, and any number of futures of a task; the registration of one
    /// does not replace that of another. A task may be woken although there is no room.
    ///
    /// Also ready when [`Peers`](crate::Peers) has forgotten this peer, as [`room`](Self::room) is.
    ///
    /// A task that no longer waits stays registered until the next wake-up. [`room`](Self::room)
    /// returns a future that takes its registration back.
    pub fn poll_ready(&self, cx: &Context<'_>, payload: usize) -> Poll<()> {
        if self.is_copy() {
            return Poll::Ready(());
        }
        // The task enters the list before the sender looks for room, so a wake-up that comes from
        // then on finds it there.
        let is_new = self.waiting.add(cx.waker(), payload);
        let _held = hold_wakes();
        let mut sending = lock(&self.sending);
        ready!(self.poll(&mut sending, payload));
        // An entry that was there before may be that of another future of the same task, which
        // still waits.
        if is_new {
            self.waiting.remove(cx.waker());
        }
        self.ask_anew(sending);
        Poll::Ready(())
    }

    /// Asks for a wake-up of the tasks that wait, if there are any, or wakes them if there is room.
    fn ask_anew(&self, mut sending: MutexGuard<'_, Sending>) {
        let Some(least) = self.waiting.least() else { return };
        let polled = self.poll(&mut sending, least);
        drop(sending);
        if polled.is_ready() {
            self.waiting.wake_all();
        }
    }

    /// Leaves the locks locked, as a thread does that a child of `fork` has no copy of.
    #[cfg(test)]
    pub(super) fn lock_for_ever(&self) {
        mem::forget((lock(&self.sending), lock(&self.waiting.0)));
    }

    fn poll(&self, Sending { sender, flow }: &mut Sending, payload: usize) -> Poll<()> {
        // Relaxed: see `forget`.
        if self.is_forgotten.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        sender.poll_ready(&mut Context::from_waker(&self.waker), flow, payload)
    }
}

impl Drop for Peer {
    /// Wakes the tasks that wait: they look their destination up again, which has been forgotten.
    fn drop(&mut self) {
        if !self.is_copy() {
            self.waiting.wake_all();
        }
    }
}

/// Future of [`Peer::room`]. If it is dropped before it is ready, it takes its registration back.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Room {
    peer: Arc<Peer>,
    payload: usize,
    number: u64,
}

impl Future for Room {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.peer.is_copy() {
            return Poll::Ready(());
        }
        // The task enters the list before the sender looks for room, as in `poll_ready`.
        self.peer.waiting.add_future(self.number, cx.waker(), self.payload);
        let _held = hold_wakes();
        let mut sending = lock(&self.peer.sending);
        ready!(self.peer.poll(&mut sending, self.payload));
        self.peer.waiting.remove_future(self.number);
        self.peer.ask_anew(sending);
        Poll::Ready(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if !self.peer.is_copy() {
            self.peer.waiting.remove_future(self.number);
        }
    }
}

impl Waiters {
    fn is_empty(&self) -> bool {
        self.futures.is_empty() && self.others.is_empty()
    }

    fn wants(&mut self, payload: usize) {
        self.least = if self.is_empty() { payload } else { self.least.min(payload) };
    }
}

impl Waiting {
    fn number(&self) -> u64 {
        let mut waiting = lock(&self.0);
        waiting.next += 1;
        waiting.next
    }

    fn add_future(&self, number: u64, waker: &Waker, payload: usize) {
        let waker = waker.clone();
        let mut waiting = lock(&self.0);
        waiting.wants(payload);
        let before = waiting.futures.insert(number, waker);
        // The lock is free again before a waker is dropped: that may run code of the executor.
        drop(waiting);
        drop(before);
    }

    fn remove_future(&self, number: u64) {
        // The lock is free again before the waker is dropped, as in `add_future`.
        let waker = lock(&self.0).futures.remove(&number);
        drop(waker);
    }

    /// Adds a task. Returns whether the entry is new.
    fn add(&self, waker: &Waker, payload: usize) -> bool {
        let mut waiting = lock(&self.0);
        waiting.wants(payload);
        let is_new = !waiting.others.iter().any(|other| other.will_wake(waker));
        if is_new {
            waiting.others.push(waker.clone());
        }
        is_new
    }

    fn remove(&self, waker: &Waker) {
        lock(&self.0).others.retain(|other| !other.will_wake(waker));
    }

    /// Returns the least number of bytes for which a task waits, or fewer. `None` if none waits.
    fn least(&self) -> Option<usize> {
        let waiting = lock(&self.0);
        (!waiting.is_empty()).then_some(waiting.least)
    }

    fn wake_all(&self) {
        let (futures, others) = {
            let mut waiting = lock(&self.0);
            (mem::take(&mut waiting.futures), mem::take(&mut waiting.others))
        };
        // The lock is free again before a waker runs: it may run code of the executor.
        futures.into_values().chain(others).for_each(call_waker);
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}

/// Locks, also after another thread panicked with the lock: no data here is ever half changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
