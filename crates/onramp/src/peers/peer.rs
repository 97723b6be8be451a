//! A sender that several tasks share, and in which all of them may wait for room.
//!
//! A [`Sender`] wakes one waker, and every call that takes credits back may cancel the request for
//! that wake-up. So the tasks that wait are in a list, the sender knows the list as its only waker,
//! and a call that may have cancelled the request asks anew for the tasks of the list.

use std::mem;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use onramp_queue::{call_waker, hold_wakes};

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
}

#[derive(Debug)]
struct Sending {
    sender: Sender,
    flow: Flow,
}

/// The tasks that wait for room, each with the bytes that it needs.
#[derive(Debug, Default)]
struct Waiting(Mutex<Vec<(Waker, usize)>>);

impl Peer {
    pub(super) fn new(sender: Sender, flow: Flow) -> Self {
        let waiting = Arc::new(Waiting::default());
        let waker = Waker::from(Arc::clone(&waiting));
        Self { sending: Mutex::new(Sending { sender, flow }), waiting, waker }
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
        // The call may send other senders' packets, too, and so wake any task. Wakers are called
        // without the lock, because they may run code that sends to this peer.
        let _held = hold_wakes();
        let mut sending = lock(&self.sending);
        let Sending { sender, flow } = &mut *sending;
        let sent = sender.try_send_message(flow, message);
        self.ask_anew(sending);
        sent
    }

    /// Polls for room for a message of `payload` bytes, as [`Sender::poll_ready`] does. Registers
    /// the task of `cx`, which is woken when there may be room, and when there will never be any.
    /// Any number of tasks may wait, and any number of futures of a task; the registration of one
    /// does not replace that of another. A task may be woken although there is no room.
    pub fn poll_ready(&self, cx: &Context<'_>, payload: usize) -> Poll<()> {
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

    fn poll(&self, Sending { sender, flow }: &mut Sending, payload: usize) -> Poll<()> {
        sender.poll_ready(&mut Context::from_waker(&self.waker), flow, payload)
    }
}

impl Drop for Peer {
    /// Wakes the tasks that wait: they look their destination up again, which has been forgotten.
    fn drop(&mut self) {
        self.waiting.wake_all();
    }
}

impl Waiting {
    /// Adds a task. All futures of a task share one entry, with the least of the bytes that they
    /// need. Returns whether the entry is new.
    fn add(&self, waker: &Waker, payload: usize) -> bool {
        let mut waiting = lock(&self.0);
        match waiting.iter_mut().find(|(other, _)| other.will_wake(waker)) {
            Some((_, needed)) => {
                *needed = payload.min(*needed);
                false
            }
            None => {
                waiting.push((waker.clone(), payload));
                true
            }
        }
    }

    fn remove(&self, waker: &Waker) {
        lock(&self.0).retain(|(other, _)| !other.will_wake(waker));
    }

    /// Returns the least number of bytes for which a task waits.
    fn least(&self) -> Option<usize> {
        lock(&self.0).iter().map(|(_, payload)| *payload).min()
    }

    fn wake_all(&self) {
        // The lock is free again before a waker runs: it may run code of the executor.
        let waiting = mem::take(&mut *lock(&self.0));
        waiting.into_iter().for_each(|(waker, _)| call_waker(waker));
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
