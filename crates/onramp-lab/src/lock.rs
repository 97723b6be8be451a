//! The locks of the designs that the laboratory compares with Onramp. A thread that waits for a
//! lock gives up when the experiment stops.

mod adaptive;
mod handicap;
mod mutex;
mod queued;
mod spin;
mod ticket;

use crate::measure::PhaseCell;

pub(crate) use adaptive::Adaptive;
pub(crate) use handicap::Handicap;
pub(crate) use mutex::StdMutex;
pub(crate) use queued::Queued;
pub(crate) use spin::Spin;
pub(crate) use ticket::Ticket;

/// A lock. Code in this crate relies on two properties: at most one `Held` (proof that a thread
/// holds the lock) exists at a time, and everything written under one `Held` is visible under the
/// next.
pub(crate) trait Lock: Default + Send + Sync + 'static {
    /// The name of this kind of lock in tables.
    const KIND: &'static str;

    /// Proof that a thread holds the lock; dropping it releases the lock.
    type Held<'a>
    where
        Self: 'a;

    /// Takes the lock if it is free. Returns `None` otherwise.
    fn try_acquire(&self) -> Option<Self::Held<'_>>;

    /// Waits for the lock and takes it. Returns `None` if the experiment stopped first.
    fn acquire(&self, phase: &PhaseCell) -> Option<Self::Held<'_>>;

    /// Waits for the lock like `acquire`, for the thread that dequeues packets and wants the lock
    /// back. Some kinds of locks prefer that thread.
    #[inline]
    fn acquire_as_owner(&self, phase: &PhaseCell) -> Option<Self::Held<'_>> {
        self.acquire(phase)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::cell::LockCell;
    use crate::lockstat::LockNotes;
    use crate::measure::{Gate, Phase};

    /// Each kind of lock lets only one thread at a time use the data that it protects: four threads
    /// increment a plain number under the lock, and check that no two of them hold the lock at
    /// once.
    fn excludes<L: Lock>() {
        const EACH: u64 = if cfg!(miri) { 9 } else { 90 };
        let (cell, inside) = (LockCell::<L, u64>::new(0), AtomicUsize::new(0));
        let (phase, gate) = (PhaseCell::default(), Gate::default());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (cell, inside, phase, gate) = (&cell, &inside, &phase, &gate);
                scope.spawn(move || {
                    let mut notes = LockNotes::on(thread);
                    gate.wait();
                    for n in 0..EACH {
                        let guard = match n % 3 {
                            0 => cell.lock_as_owner(phase, &mut notes),
                            1 => cell.try_lock(&mut notes),
                            _ => None,
                        };
                        let guard = guard.or_else(|| cell.lock(phase, &mut notes));
                        let mut guard = guard.expect("nobody says stop");
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two inside");
                        *guard += 1;
                        // Yield while this thread holds the lock, so that other threads find the
                        // lock held.
                        if n % 4 == 0 {
                            std::thread::yield_now();
                        }
                        assert_eq!(inside.fetch_sub(1, Ordering::Relaxed), 1, "two inside");
                        guard.unlock(&mut notes);
                    }
                    assert_eq!(notes.acquired(), EACH);
                });
            }
            gate.gathered(4);
            gate.open();
        });
        let mut cell = cell;
        assert_eq!(*cell.get_mut(), 4 * EACH, "{}", L::KIND);
    }

    /// A waiting thread gives up when the experiment stops, even if the lock is never released.
    fn stops<L: Lock>() {
        let (cell, phase) = (LockCell::<L, ()>::new(()), PhaseCell::default());
        let held = cell.lock(&phase, &mut LockNotes::off()).expect("it is free");
        std::thread::scope(|scope| {
            let (cell, phase) = (&cell, &phase);
            let waiters = [0, 1].map(|thread| {
                scope.spawn(move || {
                    let mut notes = LockNotes::on(thread);
                    let taken = if thread == 0 {
                        cell.lock(phase, &mut notes).is_some()
                    } else {
                        cell.lock_as_owner(phase, &mut notes).is_some()
                    };
                    (taken, notes)
                })
            });
            phase.set(Phase::Stop);
            for waiter in waiters {
                let (taken, notes) = waiter.join().expect("it only waits");
                assert!(!taken, "{}", L::KIND);
                assert_eq!(notes.acquired(), 0);
            }
        });
        held.unlock(&mut LockNotes::off());
    }

    #[test]
    fn every_lock_excludes() {
        excludes::<Spin>();
        excludes::<Ticket>();
        excludes::<Handicap>();
        excludes::<Adaptive>();
        excludes::<StdMutex>();
        excludes::<Queued>();
    }

    /// `StdMutex` and `Queued` are not tested here, because their waiters wait until the holder
    /// releases the lock.
    #[test]
    fn every_wait_ends_when_it_is_time_to_stop() {
        stops::<Spin>();
        stops::<Ticket>();
        stops::<Handicap>();
        stops::<Adaptive>();
    }
}
