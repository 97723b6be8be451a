//! A mutex of the simulated machine with the interface of `parking_lot::Mutex`.

use std::sync::{PoisonError, TryLockError};

use onramp_machine::sync::{Mutex, MutexGuard};

/// The mutex of `parking_lot`. Threads that wait for it sleep, and get it in the order in which
/// they came.
#[derive(Debug, Default)]
pub(crate) struct ParkingMutex<T>(Mutex<T>);

impl<T> ParkingMutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[track_caller]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether a thread holds the mutex. Here this costs as much as an attempt to take it.
    #[track_caller]
    pub(crate) fn is_locked(&self) -> bool {
        self.try_lock().is_none()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
