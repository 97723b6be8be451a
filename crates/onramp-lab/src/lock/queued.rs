//! A spinlock whose waiting threads queue: the lock of Linux on x86 since 4.2 (2015).
//!
//! The lock is one word: whether a thread holds the lock, whether a thread is *pending*, and the
//! last thread of the queue. The first thread that waits is pending and looks at the word itself.
//! The others form a queue (that of Mellor-Crummey and Scott): each waits at a place of its own, so
//! that a release disturbs only the one thread that is next. Only the head of the queue looks at
//! the word.
//!
//! ```text
//! word: free ──▶ held ──▶ held, pending ──▶ held, pending, queue ──▶ ...
//! ```
//!
//! The lock is fair, like a ticket lock, so all threads stall when the thread that is next does not
//! run. The kernel does not preempt threads that wait; a program's threads are preempted anywhere.
//!
//! Source: Mellor-Crummey, Scott: Algorithms for scalable synchronization on shared-memory
//! multiprocessors, 1991; Linux `kernel/locking/qspinlock.c` (4.2 to 7.2), by its behaviour, and
//! W. Long, P. Zijlstra: "qspinlock: a 4-byte queue spinlock with PV support" (lkml, 2015).

use std::sync::{Mutex, PoisonError};

use super::Lock;
use crate::measure::PhaseCell;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{spin_loop, store_part, swap_part, thread, thread_local};

/// The bit of a lock's word which says that a thread holds the lock.
const LOCKED: u32 = 1;
/// The bit which says that a thread is pending: it is the next one, and in no queue.
const PENDING: u32 = 1 << 8;
/// The part of the word that has the number of the place of the queue's last thread, plus one.
const TAIL: u32 = !0 << TAIL_SHIFT;
const TAIL_SHIFT: u32 = 16;

/// How often a thread that finds the lock between its holder and the pending thread looks again,
/// in the hope that it can be pending itself.
const HAND_OVER_LOOKS: u32 = 512;

/// Number of places. If more threads than that exist, the others spin on the word itself.
const PLACES: usize = 4_096;

/// The place at which a thread waits in a queue. A thread waits for one lock at a time, so each
/// thread has one place for all locks.
#[repr(align(128))]
struct Place {
    /// The number of the place of the next thread in the queue, plus one; 0 if there is none.
    next: AtomicU32,
    /// Whether the thread is the head of the queue.
    is_head: AtomicBool,
}

static ALL: [Place; PLACES] =
    [const { Place { next: AtomicU32::new(0), is_head: AtomicBool::new(false) } }; PLACES];

/// The numbers of the places that threads had and that are free now, and the first number that no
/// thread has ever had.
static FREE: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));

/// The number of a thread's place; `None` if all places were taken.
struct Mine(Option<u32>);

impl Mine {
    fn new() -> Self {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let (old, new) = &mut *free;
        let number = old.pop().or_else(|| {
            let number = *new;
            *new += u32::from((number as usize) < PLACES);
            ((number as usize) < PLACES).then_some(number)
        });
        Self(number)
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.0.extend(self.0);
    }
}

thread_local! {
    static MINE: Mine = Mine::new();
}

/// Returns the place with this number, counted from one.
fn place(number: u32) -> &'static Place {
    &ALL[number as usize - 1]
}

#[derive(Debug, Default)]
pub(crate) struct Queued(AtomicU32);

/// Proof that a thread holds the lock; dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Queued);

impl Lock for Queued {
    const KIND: &'static str = "spinlock";
    type Held<'a> = Held<'a>;

    #[inline]
    fn try_acquire(&self) -> Option<Held<'_>> {
        // Acquire: makes the last holder's writes visible; pairs with the release in `drop`.
        // Relaxed: a failed exchange does not take the lock.
        let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
        self.0.compare_exchange(0, LOCKED, order, failed).is_ok().then(|| Held(self))
    }

    /// Waits for the lock. The experiment's stop cannot interrupt a thread that waits, because the
    /// next thread in the queue waits for it. That is harmless: every holder releases the lock, and
    /// after the stop the waiting threads yield, so that the next one soon runs.
    fn acquire(&self, phase: &PhaseCell) -> Option<Held<'_>> {
        if phase.is_stop() {
            return None;
        }
        if !self.acquire_as_pending(phase) {
            self.acquire_by_queue(phase);
        }
        Some(Held(self))
    }
}

impl Queued {
    /// Becomes the pending thread, if no other thread waits, and takes the lock when its holder has
    /// released it. Returns false if others wait.
    fn acquire_as_pending(&self, phase: &PhaseCell) -> bool {
        // Relaxed: the loaded word is only a guess.
        let mut seen = self.0.load(Ordering::Relaxed);
        for _ in 0..HAND_OVER_LOOKS {
            if seen != PENDING {
                break;
            }
            spin_loop();
            seen = self.0.load(Ordering::Relaxed); // Relaxed: the loaded word is only a guess.
        }
        if seen & !LOCKED != 0 {
            return false;
        }
        // Acquire: if the lock is free, makes the last holder's writes visible.
        let before = self.0.fetch_or(PENDING, Ordering::Acquire);
        if before & !LOCKED != 0 {
            if before & PENDING == 0 {
                // There is a queue, so this thread must not be pending.
                // Relaxed: the bit publishes no data.
                store_part(&self.0, PENDING, Ordering::Relaxed);
            }
            return false;
        }
        if before & LOCKED != 0 {
            // Acquire: makes the last holder's writes visible; pairs with the release in `drop`.
            wait_until(phase, || self.0.load(Ordering::Acquire) & LOCKED == 0);
        }
        // Relaxed: this thread has acquired the last holder's writes already.
        store_part(&self.0, PENDING | LOCKED, Ordering::Relaxed);
        true
    }

    /// Queues behind the other waiting threads, and takes the lock when it is this thread's turn.
    fn acquire_by_queue(&self, phase: &PhaseCell) {
        let Some(number) = MINE.with(|mine| mine.0.map(|number| number + 1)) else {
            return wait_until(phase, || self.try_take());
        };
        let mine = place(number);
        // Relaxed: the exchange of the tail publishes the place.
        mine.next.store(0, Ordering::Relaxed);
        mine.is_head.store(false, Ordering::Relaxed);
        if self.try_take() {
            return;
        }
        // Release: publishes this thread's place. Acquire: pairs with the release of the thread
        // before, so that its place is ready.
        let before = swap_part(&self.0, TAIL, number << TAIL_SHIFT, Ordering::AcqRel) >> TAIL_SHIFT;
        if before != 0 {
            // Release: pairs with the acquire below, of the thread before.
            place(before).next.store(number, Ordering::Release);
            // Acquire: pairs with the release below.
            wait_until(phase, || mine.is_head.load(Ordering::Acquire));
            // Relaxed: the number is only used to prefetch.
            let next = mine.next.load(Ordering::Relaxed);
            if next != 0 {
                onramp_queue::prefetch_write(place(next));
            }
        }
        let mut seen = 0;
        wait_until(phase, || {
            // Acquire: makes the last holder's writes visible; pairs with the release in `drop`.
            seen = self.0.load(Ordering::Acquire);
            seen & (LOCKED | PENDING) == 0
        });
        // Acquire, as above. Relaxed: a failed exchange does not take the lock.
        let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
        if seen >> TAIL_SHIFT == number
            && self.0.compare_exchange(seen, LOCKED, order, failed).is_ok()
        {
            return; // The queue is empty.
        }
        // Relaxed: this thread has acquired the last holder's writes already. No other thread takes
        // the lock while there is a queue.
        store_part(&self.0, LOCKED, Ordering::Relaxed);
        let mut next = 0;
        wait_until(phase, || {
            // Acquire: pairs with the release of the thread behind, whose place must be ready.
            next = mine.next.load(Ordering::Acquire);
            next != 0
        });
        // Release: pairs with the acquire above, of the thread behind.
        place(next).is_head.store(true, Ordering::Release);
    }

    /// Takes the lock if it is free.
    fn try_take(&self) -> bool {
        // Relaxed: the loaded word is only a guess, which the exchange checks.
        let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
        // Acquire: makes the last holder's writes visible; pairs with the release in `drop`.
        self.0.load(Ordering::Relaxed) == 0
            && self.0.compare_exchange(0, LOCKED, order, failed).is_ok()
    }
}

/// Spins until `done` returns true. When the experiment has stopped, the thread yields, because
/// the thread for which it waits may need a processor.
fn wait_until(phase: &PhaseCell, mut done: impl FnMut() -> bool) {
    while !done() {
        if phase.is_stop() {
            thread::yield_now();
        } else {
            spin_loop();
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: publishes the holder's writes; pairs with the acquires of the threads that wait.
        store_part(&self.0.0, LOCKED, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::thread::scope;

    use super::*;

    /// One thread holds the lock, one is pending, and two queue: all of them get the lock, and then
    /// the lock is free and nobody is in its queue.
    #[test]
    fn a_pending_thread_and_a_queue_get_the_lock() {
        let (lock, phase) = (Queued::default(), PhaseCell::default());
        let held = lock.try_acquire().expect("it is free");
        assert!(lock.try_acquire().is_none());
        scope(|scope| {
            let waits_for = |state: fn(u32) -> bool| {
                scope.spawn(|| drop(lock.acquire(&phase).expect("nobody says stop")));
                // Relaxed: only the state of the lock matters.
                while !state(lock.0.load(Ordering::Relaxed)) {
                    thread::yield_now();
                }
                lock.0.load(Ordering::Relaxed) >> TAIL_SHIFT
            };
            assert_eq!(waits_for(|word| word == LOCKED | PENDING), 0, "nobody queues");
            let first = waits_for(|word| word >> TAIL_SHIFT != 0);
            scope.spawn(|| drop(lock.acquire(&phase).expect("nobody says stop")));
            while lock.0.load(Ordering::Relaxed) >> TAIL_SHIFT == first {
                thread::yield_now();
            }
            assert!(lock.try_acquire().is_none());
            drop(held);
        });
        assert_eq!(lock.0.load(Ordering::Relaxed), 0);
        phase.set(crate::measure::Phase::Stop);
        assert!(lock.acquire(&phase).is_none(), "it is time to stop");
    }

    #[test]
    fn a_place_is_used_again_when_its_thread_has_ended() {
        let number = || scope(|scope| scope.spawn(|| MINE.with(|mine| mine.0)).join());
        for _ in 0..PLACES + 10 {
            assert!(number().expect("no panic").is_some());
        }
    }
}
