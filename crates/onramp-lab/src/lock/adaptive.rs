//! A lock whose waiters spin for a bounded time and then sleep.
//!
//! The lock has three states: free, held, and held with sleepers. So a holder makes a system call
//! only if a thread sleeps.
//!
//! Source: Drepper: Futexes are tricky, 2011 (the third mutex); adaptive spinning as in Solaris,
//! and since 2008 in the locks of the real-time kernel.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex::{self, Flags, Timespec};

use super::Lock;
use crate::measure::PhaseCell;

const FREE: u32 = 0;
const HELD: u32 = 1;
const SLEEPERS: u32 = 2;

/// How often a waiter looks at the lock before it sleeps: a few microseconds, about as long as a
/// sleep costs.
const SPINS: u32 = 200;
/// How often a sleeper checks whether the experiment has stopped: every 20 ms.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

#[derive(Debug, Default)]
pub(crate) struct Adaptive(AtomicU32);

/// Proof that the lock is held; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Adaptive);

impl Adaptive {
    /// Spins for the lock. Returns true if the lock was taken.
    fn spin(&self) -> bool {
        for _ in 0..SPINS {
            // Relaxed: the value is only a guess, which `try_acquire` checks.
            if self.0.load(Ordering::Relaxed) == FREE && self.take() {
                return true;
            }
            hint::spin_loop();
        }
        false
    }

    #[inline]
    fn take(&self) -> bool {
        // Acquire: the last holder's writes; pairs with the release in `drop`.
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
        // Acquire: the last holder's writes; pairs with the release in `drop`. A thread that has
        // slept does not know whether others still sleep, so it sets `SLEEPERS` again.
        while self.0.swap(SLEEPERS, Ordering::Acquire) != FREE {
            if phase.is_stop() {
                return None;
            }
            // Look at the lock again, whatever ended the sleep.
            let _ = futex::wait(&self.0, Flags::PRIVATE, SLEEPERS, Some(&NAP));
        }
        Some(Held(self))
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: the holder's writes; pairs with the acquire in `take` and `acquire`.
        if self.0.0.swap(FREE, Ordering::Release) == SLEEPERS {
            // A wake-up fails only for an invalid address.
            let _ = futex::wake(&self.0.0, Flags::PRIVATE, 1);
        }
    }
}
