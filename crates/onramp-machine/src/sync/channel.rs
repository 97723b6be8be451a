//! Channels whose waiting receivers sleep in simulated time.

use std::fmt;
use std::sync::mpsc::{self, RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::fiber::suspend;
use crate::thread;
use crate::world::inside;

/// The simulated thread that waits for a message, if any.
#[derive(Clone, Debug, Default)]
struct Waiter(Arc<Mutex<Option<usize>>>);

impl Waiter {
    /// Puts the calling simulated thread to sleep until a message may have come, or until the time
    /// `until` (picoseconds). Returns false outside a simulation.
    fn wait(&self, until: Option<u64>) -> bool {
        let sleeps = inside(|world| {
            *self.place() = Some(world.me());
            world.block(until);
        });
        if sleeps.is_some() {
            suspend();
            *self.place() = None;
        }
        sleeps.is_some()
    }

    fn wake(&self) {
        if let Some(thread) = self.place().take() {
            let _ = inside(|world| world.release(thread));
        }
    }

    fn place(&self) -> std::sync::MutexGuard<'_, Option<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sender of std.
pub struct Sender<T>(Option<mpsc::Sender<T>>, Waiter);

/// The bounded sender of std.
pub struct SyncSender<T>(Option<mpsc::SyncSender<T>>, Waiter);

/// The receiver of std. Inside a simulation, it waits in simulated time.
pub struct Receiver<T>(mpsc::Receiver<T>, Waiter);

/// As in std.
#[must_use]
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let ((sender, receiver), waiter) = (mpsc::channel(), Waiter::default());
    (Sender(Some(sender), waiter.clone()), Receiver(receiver, waiter))
}

/// As in std.
#[must_use]
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let ((sender, receiver), waiter) = (mpsc::sync_channel(bound), Waiter::default());
    (SyncSender(Some(sender), waiter.clone()), Receiver(receiver, waiter))
}

impl<T> Sender<T> {
    /// As in std.
    ///
    /// # Errors
    ///
    /// As in std.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let Some(sender) = &self.0 else { return Err(SendError(message)) };
        sender.send(message)?;
        self.1.wake();
        Ok(())
    }
}

impl<T> SyncSender<T> {
    /// As in std.
    ///
    /// # Errors
    ///
    /// As in std.
    pub fn send(&self, mut message: T) -> Result<(), SendError<T>> {
        let Some(sender) = &self.0 else { return Err(SendError(message)) };
        if inside(|_| ()).is_none() {
            return sender.send(message);
        }
        loop {
            match sender.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(back)) => return Err(SendError(back)),
                Err(TrySendError::Full(back)) => message = back,
            }
            thread::sleep(Duration::from_micros(10));
        }
        self.1.wake();
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// As in std.
    ///
    /// # Errors
    ///
    /// As in std.
    pub fn recv(&self) -> Result<T, RecvError> {
        loop {
            match self.0.try_recv() {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) => {}
            }
            if !self.1.wait(None) {
                return self.0.recv();
            }
        }
    }

    /// As in std.
    ///
    /// # Errors
    ///
    /// As in std.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        let until = inside(|world| world.clock().saturating_add(thread::picoseconds(timeout)));
        let Some(until) = until else { return self.0.recv_timeout(timeout) };
        loop {
            match self.0.try_recv() {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            if inside(|world| world.clock() >= until) != Some(false) {
                return Err(RecvTimeoutError::Timeout);
            }
            self.1.wait(Some(until));
        }
    }

    /// As in std.
    ///
    /// # Errors
    ///
    /// As in std.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.0.try_recv()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), self.1.clone())
    }
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), self.1.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0 = None; // The receiver finds out that this was the last sender.
        self.1.wake();
    }
}

impl<T> Drop for SyncSender<T> {
    fn drop(&mut self) {
        self.0 = None; // The receiver finds out that this was the last sender.
        self.1.wake();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for SyncSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncSender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
