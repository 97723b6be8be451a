//! A lock that spins for a bounded time, then sleeps.
//!
//! Three states, so that a holder makes a system call only if somebody sleeps: free, held, held
//! with sleepers.
//!
//! Source: Drepper: Futexes are tricky, 2011 (the third mutex); adaptive spinning as Solaris had
//! it, and as the real-time kernel's locks got it in 2008.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex::{self, Flags, Timespec};

use super::Lock;
use crate::measure::PhaseCell;

const FREE: u32 = 0;
const HELD: u32 = 1;
const SLEEPERS: u32 = 2;

/// Looks at the lock before going to sleep: a few microseconds, which is about what a sleep costs.
const SPINS: u32 = 200;
/// A sleeper looks this often whether it is time to stop.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

#[derive(Debug, Default)]
pub(crate) struct Adaptive(AtomicU32);

/// Lets go when dropped.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Adaptive);

impl Adaptive {
    /// Spins; true: taken.
    fn spin(&self) -> bool {
        for _ in 0..SPINS {
            // Relaxed: a guess, which `try_acquire` checks.
            if self.0.load(Ordering::Relaxed) == FREE && self.take() {
                return true;
            }
            hint::spin_loop();
        }
        false
    }

    #[inline]
    fn take(&self) -> bool {
        // Acquire: what the last holder wrote; pairs with the release in `drop`.
        let order = Ordering::Acquire;
        // Relaxed: nothing was taken.
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
        // Acquire: as in `take`. Who has slept does not know whether others still do.
        while self.0.swap(SLEEPERS, Ordering::Acquire) != FREE {
            if phase.is_stop() {
                return None;
            }
            // Whatever ends the sleep, we look again.
            let _ = futex::wait(&self.0, Flags::PRIVATE, SLEEPERS, Some(&NAP));
        }
        Some(Held(self))
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: what we wrote; pairs with the acquire in `take` and `acquire`.
        if self.0.0.swap(FREE, Ordering::Release) == SLEEPERS {
            // It fails only for addresses that are none.
            let _ = futex::wake(&self.0.0, Flags::PRIVATE, 1);
        }
    }
}
