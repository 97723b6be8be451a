//! The spinlocks of the kernels of 2004 and 2009. Each has a cache line of its own.

use onramp_machine::hook::spin_loop;
use onramp_machine::sync::atomic::{AtomicU32, Ordering};

use super::memory::Apart;

/// The spinlock of Linux 2.4 on Itanium: a word that is 1 while somebody holds the lock. Who finds
/// it 1 reads it until it is 0 and tries again; nobody has a turn.
#[derive(Debug, Default)]
pub(super) struct TestAndSet(Apart<AtomicU32>);

impl TestAndSet {
    /// Waits for the lock and takes it. Returns whether somebody else held it at first.
    pub(super) fn acquire(&self) -> bool {
        if self.take() {
            return false;
        }
        loop {
            // Relaxed: the exchange that takes the lock orders what it protects.
            while self.0.load(Ordering::Relaxed) != 0 {
                spin_loop();
            }
            if self.take() {
                return true;
            }
        }
    }

    fn take(&self) -> bool {
        // Acquire: makes the last holder's writes visible; pairs with the release in `release`.
        // Relaxed on failure: nothing was taken.
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Gives the lock back. The kernel does so by a store. On the simulated machine, a store takes
    /// effect at once, although its line comes later: it would overtake the exchanges of all that
    /// try to take the lock, whose requests for the line are older. So this is charged as an
    /// exchange, which takes effect when its line is there; the holder waits until then.
    pub(super) fn release(&self) {
        // Release: publishes the holder's writes; pairs with the acquire in `take`.
        self.0.swap(0, Ordering::Release);
    }
}

/// The spinlock of Linux 2.6.29 on x86. The high half of the word is the number that the next one
/// draws who wants the lock, the low half the number whose turn it is. The holder alone changes the
/// low half, by an ordinary store.
#[derive(Debug, Default)]
pub(super) struct Ticket(Apart<AtomicU32>);

const DRAW: u32 = 1 << 16;
const TURN: u32 = DRAW - 1;

impl Ticket {
    /// Waits for the lock and takes it. Returns whether somebody else held it at first.
    pub(super) fn acquire(&self) -> bool {
        // Acquire: makes the last holder's writes visible; pairs with the release in `release`.
        let drawn = self.0.fetch_add(DRAW, Ordering::Acquire);
        let mine = drawn >> 16;
        if drawn & TURN == mine {
            return false;
        }
        // Acquire: as above.
        while self.0.load(Ordering::Acquire) & TURN != mine {
            spin_loop();
        }
        true
    }

    /// Takes the lock if nobody holds it. Returns whether it did.
    pub(super) fn try_acquire(&self) -> bool {
        // Relaxed: the exchange that takes the lock orders what it protects.
        let word = self.0.load(Ordering::Relaxed);
        let drawn = word.wrapping_add(DRAW);
        // Acquire: as in `acquire`. Relaxed on failure: nothing was taken.
        let (taken, failed) = (Ordering::Acquire, Ordering::Relaxed);
        word >> 16 == word & TURN && self.0.compare_exchange(word, drawn, taken, failed).is_ok()
    }

    /// Gives the lock to the next one.
    pub(super) fn release(&self) {
        // Relaxed: only the holder of the lock changes the turn.
        let turn = self.0.load(Ordering::Relaxed) & TURN;
        let changes = turn ^ (turn.wrapping_add(1) & TURN);
        // Release: publishes the holder's writes; pairs with the acquire in `acquire`.
        self.0.flip_by_store(changes, Ordering::Release);
    }

    /// Charges that other data on the line of the lock is read and written.
    #[track_caller]
    pub(super) fn change_beside(&self) {
        self.0.change_beside();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use onramp_machine::{Setup, hook, simulate, thread};

    use super::*;
    use crate::{Description, Draw};

    /// Four processors change a number under a lock, each reading it a while before it writes it.
    fn excludes<L: Default + Send + Sync + 'static>(acquire: fn(&L) -> bool, release: fn(&L)) {
        let machine = Description::named("xeon-2009").unwrap().draw(&mut Draw::new(0));
        let setup = Setup { machine, limit_ns: 1_000_000_000, measure_ns: 0..0 };
        let contended = simulate(&setup, move || {
            let shared = Arc::new((L::default(), AtomicU64::new(0)));
            let threads = (0..4).map(|processor| {
                let shared = shared.clone();
                let body = move || {
                    let take = |_: &u32| {
                        let waited = acquire(&shared.0);
                        // Relaxed: all simulated threads run in one real thread.
                        let number = shared.1.load(Ordering::Relaxed);
                        hook::work(100);
                        // Relaxed, as above.
                        shared.1.store(number + 1, Ordering::Relaxed);
                        release(&shared.0);
                        waited
                    };
                    (0..100).filter(take).count()
                };
                thread::Builder::new().on(processor).spawn(body).expect("simulated")
            });
            let threads: Vec<_> = threads.collect();
            let contended: usize = threads.into_iter().map(|it| it.join().expect("ends")).sum();
            // Relaxed, as above.
            assert_eq!(shared.1.load(Ordering::Relaxed), 400);
            contended
        });
        assert!(contended.unwrap().0 > 0, "they meet at the lock");
    }

    #[test]
    fn only_one_holds_a_lock() {
        excludes(TestAndSet::acquire, TestAndSet::release);
        excludes(Ticket::acquire, Ticket::release);
    }

    #[test]
    fn a_ticket_lock_is_tried_and_its_numbers_begin_again() {
        let lock = Ticket(Apart(AtomicU32::new(TURN << 16 | TURN)));
        assert!(lock.try_acquire());
        assert!(!lock.try_acquire(), "it is held");
        lock.release();
        assert!(!lock.acquire(), "nobody else wants it");
        lock.release();
        // Relaxed: no other thread uses the lock.
        assert_eq!(lock.0.load(Ordering::Relaxed), DRAW | 1);
    }
}
