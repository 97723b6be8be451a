//! A ticket lock: first come, first served.
//!
//! Each waiting thread draws a number and waits until it is the number's turn. The lock is fair.
//! For that reason all threads stall when the thread whose turn has come does not run: they then
//! wait for the scheduler to run that thread.
//!
//! Source: Mellor-Crummey, Scott: Algorithms for scalable synchronization on shared-memory
//! multiprocessors, 1991; Linux used it on x86 from 2.6.25 (2008) to 4.1.

use super::Lock;
use crate::measure::PhaseCell;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::spin_loop;

#[derive(Debug, Default)]
pub(crate) struct Ticket {
    /// The number that the next thread draws that wants the lock.
    next: AtomicU32,
    /// The number of the thread that may have the lock now.
    serving: AtomicU32,
}

/// Proof that a thread holds the lock; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Ticket);

impl Ticket {
    /// Whether a thread holds the lock or waits for it. The answer is only a hint.
    #[inline]
    pub(super) fn is_locked(&self) -> bool {
        // Relaxed: the value is only a hint.
        self.next.load(Ordering::Relaxed) != self.serving.load(Ordering::Relaxed)
    }
}

impl Lock for Ticket {
    const KIND: &'static str = "spinlock";
    type Held<'a> = Held<'a>;

    #[inline]
    fn try_acquire(&self) -> Option<Held<'_>> {
        // Acquire: makes the last holder's writes visible; pairs with the release in `drop`.
        let turn = self.serving.load(Ordering::Acquire);
        let after = turn.wrapping_add(1);
        // Relaxed: the acquire above suffices. The exchange succeeds only if no thread has drawn
        // the number `turn`, so no thread has held the lock since `serving` became `turn`.
        let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        let drawn = self.next.compare_exchange(turn, after, order, failed);
        drawn.is_ok().then(|| Held(self))
    }

    /// Waits for the lock. When the experiment stops, a waiting thread abandons its number, and the
    /// lock is never free again. That is acceptable, because all threads stop then.
    fn acquire(&self, phase: &PhaseCell) -> Option<Held<'_>> {
        // Relaxed: only the number matters; the load below acquires the last holder's writes.
        let mine = self.next.fetch_add(1, Ordering::Relaxed);
        // Acquire: makes the last holder's writes visible; pairs with the release in `drop`.
        while self.serving.load(Ordering::Acquire) != mine {
            if phase.is_stop() {
                return None;
            }
            spin_loop();
        }
        Some(Held(self))
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // Relaxed: only the holder of the lock writes `serving`.
        let turn = self.0.serving.load(Ordering::Relaxed);
        // Release: publishes the holder's writes; pairs with the acquire in `acquire` and
        // `try_acquire`.
        self.0.serving.store(turn.wrapping_add(1), Ordering::Release);
    }
}
