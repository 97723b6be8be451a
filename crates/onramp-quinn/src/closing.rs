//! Notices that a link closes, or that its only port dies, without sending anything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use onramp::{Credits, Flow, Link, Packet, Sender, TrySendError, call_waker, hold_wakes};

/// Waits for the close of a link: a sender whose only credit is taken waits until then, and rings
/// its waker.
#[derive(Debug)]
pub(crate) struct Closing {
    held: Mutex<Held>,
    alarm: Arc<Alarm>,
    waker: Waker,
}

#[derive(Debug)]
struct Held {
    sender: Sender,
    flow: Flow,
    /// The packet that keeps the only credit.
    _packet: Packet,
}

/// What the sender wakes.
#[derive(Debug)]
struct Alarm {
    rang: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Closing {
    /// # Errors
    ///
    /// If the link is closed already, or its port is dead.
    pub(crate) fn new(link: &Link) -> Result<Self, TrySendError> {
        let mut sender = link.sender_with(Credits { packets: 1, bytes: 0 });
        let flow = sender.flow(None);
        let packet = sender.packet(&flow, &[])?;
        // The first poll arms the sender.
        let alarm = Arc::new(Alarm { rang: AtomicBool::new(true), task: Mutex::new(None) });
        let waker = Waker::from(Arc::clone(&alarm));
        Ok(Self { held: Mutex::new(Held { sender, flow, _packet: packet }), alarm, waker })
    }

    /// Returns whether the link is closed or its port dead. If not, wakes the task of `cx`, and no
    /// other, when it may be.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> bool {
        {
            let mut task = lock(&self.alarm.task);
            if !task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
                *task = Some(cx.waker().clone());
            }
        }
        // Relaxed: the sender itself tells what has changed.
        if !self.alarm.rang.swap(false, Ordering::Relaxed) {
            return false;
        }
        // The sender may send other senders' packets, too, and so wake any task. Wakers are called
        // without the lock, because they may run code that polls this value.
        let _held = hold_wakes();
        let Held { sender, flow, .. } = &mut *lock(&self.held);
        let closed = sender.poll_ready(&mut Context::from_waker(&self.waker), flow, 0).is_ready();
        if closed {
            self.alarm.rang.store(true, Ordering::Relaxed); // Relaxed: as above.
        }
        closed
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Relaxed: the lock below orders this store before the wake-up.
        self.rang.store(true, Ordering::Relaxed);
        let task = lock(&self.task).take();
        if let Some(task) = task {
            call_waker(task);
        }
    }
}

/// Locks, also after another thread panicked with the lock: no data here is ever half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
