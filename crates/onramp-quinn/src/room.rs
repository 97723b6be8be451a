//! A sender that several tasks share, and in which all of them may wait for room.
//!
//! A [`Sender`] wakes one waker, and every call that takes credits back may cancel the request for
//! that wake-up. So the tasks that wait are in a list, the sender knows the list as its only waker,
//! and a call that may have cancelled the request wakes all tasks of the list, which then ask anew.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use onramp::{Flow, Message, Sender, TrySendError};

/// A sender with its flow, shared by the tasks that send to one peer.
#[derive(Debug)]
pub(crate) struct Peer {
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

/// The tasks that wait for room.
#[derive(Debug, Default)]
struct Waiting(Mutex<Vec<Waker>>);

impl Peer {
    pub(crate) fn new(sender: Sender, flow: Flow) -> Self {
        let waiting = Arc::new(Waiting::default());
        let waker = Waker::from(Arc::clone(&waiting));
        Self { sending: Mutex::new(Sending { sender, flow }), waiting, waker }
    }

    /// Stages a message, as [`Sender::try_send_message`] does. A thread may wait here while another
    /// one sends to the same peer, but not for longer than a push.
    pub(crate) fn try_send(&self, message: &Message<'_>) -> Result<(), TrySendError> {
        let sent = {
            let Sending { sender, flow } = &mut *lock(&self.sending);
            sender.try_send_message(flow, message)
        };
        self.waiting.wake_all();
        sent
    }

    /// Polls for room for `payload` bytes, as [`Sender::poll_ready`] does. Any number of tasks may
    /// wait.
    pub(crate) fn poll_room(&self, cx: &Context<'_>, payload: usize) -> Poll<()> {
        // The task enters the list before the sender looks for room, so a wake-up that comes from
        // then on finds it there.
        self.waiting.add(cx.waker());
        let polled = {
            let Sending { sender, flow } = &mut *lock(&self.sending);
            sender.poll_ready(&mut Context::from_waker(&self.waker), flow, payload)
        };
        if polled.is_ready() {
            self.waiting.remove(cx.waker());
            self.waiting.wake_all();
        }
        polled
    }
}

impl Waiting {
    fn add(&self, waker: &Waker) {
        let mut waiting = lock(&self.0);
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }

    fn remove(&self, waker: &Waker) {
        lock(&self.0).retain(|other| !other.will_wake(waker));
    }

    fn wake_all(&self) {
        // The lock is free again before a waker runs: it may run code of the executor.
        let waiting = mem::take(&mut *lock(&self.0));
        waiting.into_iter().for_each(Waker::wake);
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
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
