//! A spinlock: test-and-test-and-set.
//!
//! Waiting threads only read the lock's word until the lock looks free; then all of them try to
//! take it. So the word's cache line stays shared while the lock is held, and moves between
//! processors only for the attempts after a release.
//!
//! Source: Rudolph, Segall: Dynamic decentralized cache schemes, 1984.

use super::Lock;
use crate::measure::PhaseCell;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::spin_loop;

#[derive(Debug, Default)]
pub(crate) struct Spin(AtomicBool);

/// Proof that a thread holds the lock; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Spin);

impl Lock for Spin {
    const KIND: &'static str = "spinlock";
    type Held<'a> = Held<'a>;

    #[inline]
    fn try_acquire(&self) -> Option<Held<'_>> {
        // Acquire: makes the last holder's writes visible; pairs with the release in `drop`.
        // Relaxed: the loaded value is only a guess.
        let taken = !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Acquire);
        taken.then(|| Held(self))
    }

    fn acquire(&self, phase: &PhaseCell) -> Option<Held<'_>> {
        loop {
            if let Some(held) = self.try_acquire() {
                return Some(held);
            }
            // Relaxed: the loaded value is only a guess, which `try_acquire` checks.
            while self.0.load(Ordering::Relaxed) {
                if phase.is_stop() {
                    return None;
                }
                spin_loop();
            }
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: publishes the holder's writes; pairs with the acquire in `try_acquire`.
        self.0.0.store(false, Ordering::Release);
    }
}
