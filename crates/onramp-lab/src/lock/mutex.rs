//! `std::sync::Mutex`, which spins briefly and then sleeps.
//!
//! Source: Rust's standard library.

use std::sync::{PoisonError, TryLockError};

use super::Lock;
use crate::measure::PhaseCell;
use crate::sync::{Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(crate) struct StdMutex(Mutex<()>);

impl Lock for StdMutex {
    const KIND: &'static str = "mutex";
    type Held<'a> = MutexGuard<'a, ()>;

    #[inline]
    fn try_acquire(&self) -> Option<MutexGuard<'_, ()>> {
        match self.0.try_lock() {
            Ok(held) => Some(held),
            // The lock is taken even if the mutex is poisoned: it protects no data that a panic
            // could have left broken.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The experiment's stop cannot interrupt a thread that sleeps in `lock`. That is harmless:
    /// every holder releases the lock, and after the stop no thread waits long.
    fn acquire(&self, phase: &PhaseCell) -> Option<MutexGuard<'_, ()>> {
        if phase.is_stop() {
            return None;
        }
        Some(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
