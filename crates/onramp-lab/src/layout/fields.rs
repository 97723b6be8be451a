//! The fields that the threads of a port write and read most often (the intake's word, its limit
//! and the owner's counters), in two layouts.

use std::hint::black_box;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use onramp_queue::Counter;

/// The flag in the intake's word which says that a thread owns the fields.
const OWNED: u64 = 1;
/// The amount by which the intake's word increases for each waiting item.
const ONE: u64 = 2;
/// Size of two cache lines, bytes: x86 fetches lines in pairs.
const LINES: usize = 128;

/// A layout of the fields, and the operations of threads on the fields.
pub(super) trait Fields: Sync {
    /// Makes fields in which at most `cap` items may wait.
    fn new(cap: u64) -> Self;
    /// Returns the intake's atomic word, which holds the flag `OWNED` and the number of waiting
    /// items.
    fn word(&self) -> &AtomicU64;
    /// Returns the largest number of items that may wait; senders read it.
    fn cap(&self) -> u64;
    /// Returns the counters that the owner writes for each packet.
    fn owners(&self) -> &Owners;
    /// Returns the counter that the owner increases each time it takes the waiting items.
    fn takes(&self) -> &Counter;

    /// Pushes one item. Returns `Some(true)` if the calling thread is now the owner, and `None` if
    /// too many items wait.
    #[inline]
    fn push(&self, retries: &mut u64) -> Option<bool> {
        // Relaxed: the loaded word is only a guess, which the exchange checks.
        let mut word = self.word().load(Ordering::Relaxed);
        loop {
            let owns = word & OWNED == 0;
            if word / ONE >= self.cap() {
                return None;
            }
            let new = if owns { OWNED } else { word + ONE };
            // Acquire: if the caller becomes the owner, makes the previous owner's writes to the
            // fields visible; pairs with `take_or_leave`.
            let order = Ordering::AcqRel;
            match self.word().compare_exchange_weak(word, new, order, Ordering::Relaxed) {
                Ok(_) => return Some(owns),
                Err(seen) => {
                    *retries += 1;
                    word = seen;
                }
            }
        }
    }

    /// Takes the waiting items and returns their number. If no item waits, gives up the ownership
    /// and returns 0. Only the owner may call this method.
    #[inline]
    fn take_or_leave(&self) -> u64 {
        self.takes().add(1);
        // Release: publishes the owner's writes to the fields; pairs with the acquire in `push`.
        // Relaxed: after a failure, this thread is still the owner.
        let (order, failed) = (Ordering::Release, Ordering::Relaxed);
        if self.word().compare_exchange(OWNED, 0, order, failed).is_ok() {
            return 0;
        }
        // Acquire: makes the data that belongs to the waiting items visible; pairs with the release
        // in `push`.
        // Release: publishes the number of this take; pairs with the acquire in `push`, see `mark`.
        self.word().swap(OWNED, Ordering::AcqRel) / ONE
    }

    /// Returns a mark for `has_left`, which later tells whether an owner has worked on all items
    /// that the caller has pushed. Call `mark` after the push.
    #[inline]
    fn mark(&self) -> u64 {
        // Say that take number `n` will include the caller's last item. The caller pushed this item
        // after take `n - 1` and acquired its number, so the mark is at least `n - 1`. The mark is
        // larger if take `n` has already begun.
        self.takes().get()
    }

    /// Whether the owner has worked on all items that the caller pushed before it called `mark`.
    #[inline]
    fn has_left(&self, mark: u64) -> bool {
        // Say that take number `n` includes the caller's last item; the mark is at least `n - 1`.
        // Take `n + 1` begins when the work for take `n` is done, so `mark + 2` takes suffice.
        // Acquire: an owner that gave up the ownership has done the work for all waiting items;
        // pairs with the release in `take_or_leave`.
        self.takes().get() >= mark + 2 || self.word().load(Ordering::Acquire) & OWNED == 0
    }

    /// Does the owner's work for one packet: it updates the counters and does `turns` steps of
    /// arithmetic. Only the owner may call this method.
    #[inline]
    fn work(&self, turns: u32) {
        let Owners { enqueued, sent, bytes, backlog } = self.owners();
        enqueued.add(1);
        backlog.set(enqueued.get() - sent.get());
        bytes.add(162 + (self::turns(turns, enqueued.get()) & 1));
        sent.add(1);
        backlog.set(enqueued.get() - sent.get());
    }

    /// Returns the number of packets that owners have worked on.
    fn sent(&self) -> u64 {
        self.owners().sent.get()
    }
}

/// Does `turns` steps of arithmetic. Each step needs the result of the previous one, so that the
/// processor cannot do several at once.
#[inline]
pub(super) fn turns(turns: u32, seed: u64) -> u64 {
    (0..turns)
        .fold(seed, |state, _| black_box(state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1)))
}

/// The counters that the owner writes for each packet.
#[derive(Debug, Default)]
pub(super) struct Owners {
    enqueued: Counter,
    sent: Counter,
    bytes: Counter,
    backlog: Counter,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// The layout in which fields are grouped by the thread that writes them, as in Onramp.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Grouped {
    word: Apart<AtomicU64>,
    cap: Apart<u64>,
    owners: Apart<(Owners, Counter)>,
}

/// The layout in which all fields are side by side.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Mixed {
    takes: Counter,
    word: AtomicU64,
    owners: Owners,
    cap: u64,
}

const _: () = {
    assert!(offset_of!(Grouped, word) / LINES != offset_of!(Grouped, cap) / LINES);
    assert!(offset_of!(Grouped, word) / LINES != offset_of!(Grouped, owners) / LINES);
    assert!(offset_of!(Grouped, cap) / LINES != offset_of!(Grouped, owners) / LINES);
    assert!(size_of::<Grouped>() == 3 * LINES);
    // All fields lie in the first of two adjacent cache lines.
    assert!(offset_of!(Mixed, cap) + size_of::<u64>() <= LINES / 2);
};

impl Fields for Grouped {
    fn new(cap: u64) -> Self {
        Self { word: Apart::default(), cap: Apart(cap), owners: Apart::default() }
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        &self.word.0
    }

    #[inline]
    fn cap(&self) -> u64 {
        self.cap.0
    }

    #[inline]
    fn owners(&self) -> &Owners {
        &self.owners.0.0
    }

    #[inline]
    fn takes(&self) -> &Counter {
        &self.owners.0.1
    }
}

impl Fields for Mixed {
    fn new(cap: u64) -> Self {
        let (takes, owners) = (Counter::new(), Owners::default());
        Self { takes, word: AtomicU64::new(0), owners, cap }
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        &self.word
    }

    #[inline]
    fn cap(&self) -> u64 {
        self.cap
    }

    #[inline]
    fn owners(&self) -> &Owners {
        &self.owners
    }

    #[inline]
    fn takes(&self) -> &Counter {
        &self.takes
    }
}
