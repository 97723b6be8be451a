//! A lock whose waiters spin for a bounded time and then sleep.
//!
//! The lock's word has three states: free, held, and held with sleepers. So the holder makes a
//! system call at the release only if another thread sleeps.
//!
//! Source: Drepper: Futexes are tricky, 2011 (the third mutex); adaptive spinning as in Solaris,
//! and since 2008 in the locks of the real-time kernel.

use std::time::Duration;

use super::Lock;
use crate::measure::PhaseCell;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{futex, spin_loop};

const FREE: u32 = 0;
const HELD: u32 = 1;
const SLEEPERS: u32 = 2;

/// How often a waiting thread looks at the lock before it sleeps: for a few microseconds, which is
/// about as long as going to sleep costs.
const SPINS: u32 = 200;
/// Longest sleep of a waiting thread, after which it checks whether the experiment has stopped: 20
/// ms.
const NAP: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct Adaptive(AtomicU32);

/// Proof that a thread holds the lock; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Adaptive);

impl Adaptive {
    /// Spins until the lock is free and takes it. Returns false if the lock was not free in time.
    fn spin(&self) -> bool {
        for _ in 0..SPINS {
            // Relaxed: the loaded state is only a guess, which `take` checks.
            if self.0.load(Ordering::Relaxed) == FREE && self.take() {
                return true;
            }
            spin_loop();
        }
        false
    }

    #[inline]
    fn take(&self) -> bool {
        // Acquire: makes the last holder's writes visible; pairs with the release in `drop`.
        let order = Ordering::Acquire;
        // Relaxed: a failed exchange does not take the lock.
        self.0.compare_exchange(FREE, HELD, order, Ordering::Relaxed).is_ok()
    }
}

impl Lock for Adaptive {
    const KIND: &'static str = "adaptive";
    type Held<'a> = Held<'a>;

    #[inline]
    fn try_acquire(&self) -> Option<Held<'_>> {
        self.take().then(|| Held(self))
    }

    fn acquire(&self, phase: &PhaseCell) -> Option<Held<'_>> {
        if self.spin() {
            return Some(Held(self));
        }
        // Acquire: makes the last holder's writes visible; pairs with the release in `drop`. A
        // thread that has slept does not know whether other threads still sleep, so it sets
        // `SLEEPERS` again.
        while self.0.swap(SLEEPERS, Ordering::Acquire) != FREE {
            if phase.is_stop() {
                return None;
            }
            futex::wait(&self.0, SLEEPERS, NAP);
        }
        Some(Held(self))
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: publishes the holder's writes; pairs with the acquire in `take` and `acquire`.
        if self.0.0.swap(FREE, Ordering::Release) == SLEEPERS {
            futex::wake_one(&self.0.0);
        }
    }
}
