//! The hot fields of a port, in two orders.

use std::hint::black_box;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use onramp_queue::Counter;

/// Somebody runs it.
const OWNED: u64 = 1;
/// One that waits.
const ONE: u64 = 2;
/// Two cache lines, since x86 fetches them in pairs.
const LINES: usize = 128;

/// The fields, and what threads do with them.
pub(super) trait Fields: Sync {
    /// For at most `cap` that wait.
    fn new(cap: u64) -> Self;
    /// What senders exchange: `OWNED`, and how many wait.
    fn word(&self) -> &AtomicU64;
    /// What senders read.
    fn cap(&self) -> u64;
    /// What the owner writes for each packet.
    fn owners(&self) -> &Owners;
    /// What the owner writes for each take.
    fn takes(&self) -> &Counter;

    /// Pushes one. True: the caller is owner now; `None`: too many wait.
    #[inline]
    fn push(&self, retries: &mut u64) -> Option<bool> {
        // Relaxed: a guess, which the exchange checks.
        let mut word = self.word().load(Ordering::Relaxed);
        loop {
            let owns = word & OWNED == 0;
            if word / ONE >= self.cap() {
                return None;
            }
            let new = if owns { OWNED } else { word + ONE };
            // Acquire: the owner's fields, if it makes us owner; pairs with `take_or_leave`.
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

    /// Takes what waits, or leaves and gives 0. Owner only.
    #[inline]
    fn take_or_leave(&self) -> u64 {
        self.takes().add(1);
        // Release: the owner's fields; pairs with the acquire in `push`. Relaxed: we were owner.
        let (order, failed) = (Ordering::Release, Ordering::Relaxed);
        if self.word().compare_exchange(OWNED, 0, order, failed).is_ok() {
            return 0;
        }
        // Acquire: what came with those that wait; pairs with the release in `push`. Release: the
        // number of this take; pairs with the acquire in `push`, see `mark`.
        self.word().swap(OWNED, Ordering::AcqRel) / ONE
    }

    /// A mark by which one whose number waits learns that it has left. Read it after the push.
    #[inline]
    fn mark(&self) -> u64 {
        // The push has seen the take before the one that gets the number, or that one itself.
        self.takes().get()
    }

    /// Whether all that the caller pushed before `mark` has left.
    #[inline]
    fn has_left(&self, mark: u64) -> bool {
        // A take begins when the work for the one before has ended. Acquire: who left it idle has
        // worked for all that waited; pairs with the release in `take_or_leave`.
        self.takes().get() >= mark + 2 || self.word().load(Ordering::Acquire) & OWNED == 0
    }

    /// The owner's work for one packet: counters, and `turns` of arithmetic. Owner only.
    #[inline]
    fn work(&self, turns: u32) {
        let Owners { enqueued, sent, bytes, backlog } = self.owners();
        enqueued.add(1);
        backlog.set(enqueued.get() - sent.get());
        bytes.add(162 + (self::turns(turns, enqueued.get()) & 1));
        sent.add(1);
        backlog.set(enqueued.get() - sent.get());
    }

    /// Packets that went through.
    fn sent(&self) -> u64 {
        self.owners().sent.get()
    }
}

/// So many turns of arithmetic, each of which waits for the one before.
#[inline]
pub(super) fn turns(turns: u32, seed: u64) -> u64 {
    (0..turns)
        .fold(seed, |state, _| black_box(state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1)))
}

/// What the owner writes for each packet.
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

/// By writer, as in Onramp.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Grouped {
    word: Apart<AtomicU64>,
    cap: Apart<u64>,
    owners: Apart<(Owners, Counter)>,
}

/// Side by side.
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
    // The first of the two lines holds all of it.
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
