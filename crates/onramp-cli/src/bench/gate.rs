//! Where threads gather so that all begin at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// A start line. Unlike `std::sync::Barrier` it can be opened before all have come, because some
/// could not be started; and who passes takes no lock, so that the last of hundreds does not wait
/// for all before it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    open: AtomicBool,
    waiting: Mutex<Vec<Thread>>,
    came: Condvar,
}

impl Gate {
    /// Waits until the gate opens.
    pub(crate) fn wait(&self) {
        self.lock().push(thread::current());
        self.came.notify_all();
        // Acquire: pairs with the release in `open`.
        while !self.open.load(Ordering::Acquire) {
            thread::park();
        }
    }

    /// Waits until `count` threads wait at the gate.
    pub(crate) fn gathered(&self, count: usize) {
        let mut waiting = self.lock();
        while waiting.len() < count {
            waiting = self.came.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets all pass, those who come later too.
    pub(crate) fn open(&self) {
        // Release: pairs with the acquire in `wait`.
        self.open.store(true, Ordering::Release);
        for thread in self.lock().iter() {
            thread.unpark();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Thread>> {
        // The list is valid at every moment, whoever panicked.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
