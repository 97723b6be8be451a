//! Where threads gather so that all begin at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A start line. Unlike `std::sync::Barrier` it can be opened before all have come, because some
/// could not be started.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    open: bool,
}

impl Gate {
    /// Waits until the gate opens.
    pub(crate) fn wait(&self) {
        let mut state = self.lock();
        state.waiting += 1;
        self.changed.notify_all();
        while !state.open {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until `count` threads wait at the gate.
    pub(crate) fn gathered(&self, count: usize) {
        let mut state = self.lock();
        while state.waiting < count {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets all pass, those who come later too.
    pub(crate) fn open(&self) {
        self.lock().open = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid at every moment, whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
