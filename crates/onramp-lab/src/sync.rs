//! Atomic types, locks and threads: those of std, or those of the simulated machine (crate
//! `onramp-machine`) under `--cfg sim`. On the simulated machine, each access to memory that
//! several threads use is charged what it costs there.
//!
//! Only the designs, and the loop that drives them, run on the simulated machine. The rest of the
//! laboratory uses std directly.

pub(crate) mod futex;
#[cfg(sim)]
mod parking;

#[cfg(sim)]
pub(crate) use onramp_machine::{
    hook::spin_loop,
    sync::{Mutex, MutexGuard, atomic},
    thread, thread_local,
};
#[cfg(not(sim))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, atomic},
    thread, thread_local,
};

#[cfg(not(any(sim, test)))]
pub(crate) use std::hint::spin_loop;

/// Stands for `std::hint::spin_loop` in the tests of this crate: a thread that spins also yields,
/// every 64 turns. Tests start more threads than there are processors. A thread that only spun
/// would waste its whole time slice while the thread for which it waits has no processor.
#[cfg(all(test, not(sim)))]
pub(crate) fn spin_loop() {
    use std::cell::Cell;

    thread_local! {
        static TURNS: Cell<u8> = const { Cell::new(0) };
    }
    let turns = TURNS.get().wrapping_add(1);
    TURNS.set(turns);
    if turns.is_multiple_of(64) {
        thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

#[cfg(sim)]
pub(crate) use parking::ParkingMutex;
#[cfg(not(sim))]
pub(crate) use parking_lot::Mutex as ParkingMutex;

use atomic::{AtomicU32, Ordering};

/// Whether the calling thread is a thread of the simulated machine.
#[inline]
pub(crate) fn is_simulated() -> bool {
    #[cfg(sim)]
    return onramp_machine::hook::processor().is_some();
    #[cfg(not(sim))]
    false
}

/// Flips those bits of the word that `bits` has. The caller knows what the part of the word was
/// that these bits are in, and only the caller may change it now.
///
/// In C, such a part is stored by itself, with an ordinary store of one byte or of one half of the
/// word. Rust allows no accesses of different sizes to one word, so on a real machine this is an
/// atomic operation on the whole word, which costs a few nanoseconds more. The simulated machine
/// charges the store.
#[inline]
#[cfg_attr(sim, track_caller)]
pub(crate) fn store_part(word: &AtomicU32, bits: u32, order: Ordering) {
    #[cfg(sim)]
    word.flip_by_store(bits, order);
    #[cfg(not(sim))]
    word.fetch_xor(bits, order);
}

/// Exchanges the part of the word that `mask` selects. Returns the whole word as it was before.
///
/// In C, one half of a word is exchanged by one atomic operation. In Rust, on a real machine, this
/// repeats an exchange of the whole word until it succeeds. The simulated machine charges one
/// operation.
#[inline]
#[cfg_attr(sim, track_caller)]
pub(crate) fn swap_part(word: &AtomicU32, mask: u32, part: u32, order: Ordering) -> u32 {
    #[cfg(sim)]
    return word.swap_part(mask, part, order);
    #[cfg(not(sim))]
    {
        // Relaxed: a failed exchange is repeated.
        let old = word.fetch_update(order, Ordering::Relaxed, |old| Some(old & !mask | part));
        old.unwrap_or_else(|old| old)
    }
}

/// Charges, on the simulated machine, that ordinary code reads and writes the value at `at`.
#[inline]
#[cfg_attr(sim, track_caller)]
pub(crate) fn changes<T>(at: *const T) {
    #[cfg(sim)]
    if size_of::<T>() > 0 {
        onramp_machine::hook::change(at, size_of::<T>());
    }
    #[cfg(not(sim))]
    let _ = at;
}
