//! The hot fields of a port, in two layouts.

use std::hint::black_box;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use onramp_queue::Counter;

/// The flag in the word which says that a thread owns the fields.
const OWNED: u64 = 1;
/// The amount by which one waiting item increases the word.
const ONE: u64 = 2;
/// Size of two cache lines, bytes: x86 fetches lines in pairs.
const LINES: usize = 128;

/// The fields, and the operations of threads on them.
pub(super) trait Fields: Sync {
    /// Makes fields in which at most `cap` items may wait.
    fn new(cap: u64) -> Self;
    /// Returns the word that senders exchange: `OWNED`, and the number of waiting items.
    fn word(&self) -> &AtomicU64;
    /// Returns the limit on waiting items, which senders read.
    fn cap(&self) -> u64;
    /// Returns the counters that the owner writes for each packet.
    fn owners(&self) -> &Owners;
    /// Returns the counter that the owner writes for each take.
    fn takes(&self) -> &Counter;

    /// Pushes one item. Returns true if the caller is now the owner, and `None` if too many items
    /// wait.
    #[inline]
    fn push(&self, retries: &mut u64) -> Option<bool> {
        // Relaxed: the value is only a guess, which the exchange checks.
        let mut word = self.word().load(Ordering::Relaxed);
        loop {
            let owns = word & OWNED == 0;
            if word / ONE >= self.cap() {
                return None;
            }
            let new = if owns { OWNED } else { word + ONE };
            // Acquire: the owner's fields, if the caller becomes the owner; pairs with
            // `take_or_leave`.
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

    /// Takes the waiting items and returns their number, or leaves and returns 0. Only the owner
    /// may call it.
    #[inline]
    fn take_or_leave(&self) -> u64 {
        self.takes().add(1);
        // Release: the owner's fields; pairs with the acquire in `push`.
        // Relaxed: after a failure, this thread is still the owner.
        let (order, failed) = (Ordering::Release, Ordering::Relaxed);
        if self.word().compare_exchange(OWNED, 0, order, failed).is_ok() {
            return 0;
        }
        // Acquire: data published with the waiting items; pairs with the release in `push`.
        // Release: the number of this take; pairs with the acquire in `push`, see `mark`.
        self.word().swap(OWNED, Ordering::AcqRel) / ONE
    }

    /// Returns a mark for `has_left`, by which a thread learns that its items have left. Call it
    /// after the push.
    #[inline]
    fn mark(&self) -> u64 {
        // The push has seen at least the take before the one that takes the caller's item; it may
        // have seen that take itself.
        self.takes().get()
    }

    /// Whether all items that the caller pushed before `mark` have left.
    #[inline]
    fn has_left(&self, mark: u64) -> bool {
        // A take begins when the work for the previous take has ended.
        // Acquire: an owner that left the fields idle has done the work for all waiting items;
        // pairs with the release in `take_or_leave`.
        self.takes().get() >= mark + 2 || self.word().load(Ordering::Acquire) & OWNED == 0
    }

    /// Does the owner's work for one packet: counters, and `turns` steps of arithmetic. Only the
    /// owner may call it.
    #[inline]
    fn work(&self, turns: u32) {
        let Owners { enqueued, sent, bytes, backlog } = self.owners();
        enqueued.add(1);
        backlog.set(enqueued.get() - sent.get());
        bytes.add(162 + (self::turns(turns, enqueued.get()) & 1));
        sent.add(1);
        backlog.set(enqueued.get() - sent.get());
    }

    /// Returns the number of packets that went through.
    fn sent(&self) -> u64 {
        self.owners().sent.get()
    }
}

/// Does `turns` steps of arithmetic, each of which needs the previous result.
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

/// The layout in which fields are grouped by writer, as in Onramp.
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
    // All fields lie in the first of the two cache lines.
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
