//! `std::sync::Mutex`, which spins briefly and then sleeps.
//!
//! Source: Rust's standard library.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::Lock;
use crate::measure::PhaseCell;

#[derive(Debug, Default)]
pub(crate) struct StdMutex(Mutex<()>);

impl Lock for StdMutex {
    const KIND: &'static str = "mutex";
    type Held<'a> = MutexGuard<'a, ()>;

    #[inline]
    fn try_acquire(&self) -> Option<MutexGuard<'_, ()>> {
        match self.0.try_lock() {
            Ok(held) => Some(held),
            // Nothing is behind it that a panic could have broken.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// It cannot be told to stop while it sleeps; but holders let go, and after the stop nobody
    /// waits for it in earnest.
    fn acquire(&self, phase: &PhaseCell) -> Option<MutexGuard<'_, ()>> {
        if phase.is_stop() {
            return None;
        }
        Some(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
