//! The intake and the right to run what is behind it, in one word. Nobody waits for it.
//!
//! Many threads push packets; one at a time, the *owner*, takes them all and works on the value
//! behind the intake (for a port: qdisc and device). Whoever pushes into an idle intake becomes
//! its owner; everybody else leaves after one push.
//!
//! ```text
//! word                     meaning
//! 0                        idle
//! OWNED                    owned, nothing waits
//! OWNED | count, newest    owned, a list waits: the owner looks again before it leaves
//! OWNED | BUSY | ...       the same: it was BUSY when it was owned, and nothing was taken yet
//! BUSY | (count, newest)?  nobody owns it; what waits is looked after by the runner (below), by
//!                          the pusher that makes the list `batch` long, or by who calls `own`
//! ```
//!
//! BUSY is the owner's choice on leaving: the intake is so busy that packets are worth collecting.
//! Who sets it has told a runner (the port's runner), which must call [`Intake::own`] again and
//! again until it leaves the intake idle.
//!
//! ```text
//!                |  push | own | take, leave
//! push           |   -   |  -  |  -            - needs no lock
//! own            |   -   |  -  |  -
//! take, leave    |   -   |  -  |  one owner (`&mut Owner`)
//! ```
//!
//! List, ownership and count are one word, so there is no lost wake-up to fence against, the cap
//! is exact, and there is no ABA, because nothing but "take all" pops. A push may find the word as
//! it saw it though the packet it links to is another by now, at the address of one that died: the
//! link is right as an address, and `take` looks up by it which packet lives there.
//!
//! Source: `design 4` is ours; what it replaces is Linux's `__dev_xmit_skb` with its list
//! (`net/core/dev.c`, 7.2).

use std::fmt;
use std::marker::PhantomData;
#[cfg(not(loom))]
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};

use crate::PacketList;
use crate::mutant;
use crate::packet::Node;
#[cfg(not(loom))]
use crate::sync::LINES;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, Padded, UnsafeCell, prefetch_write};
use crate::word::Word;

/// Somebody runs it.
const OWNED: usize = 1;
/// Packets may wait with no owner.
const BUSY: usize = 2;

/// A lock-free intake in front of a value that one thread at a time works on.
pub struct Intake<T> {
    word: Padded<AtomicPtr<Node>>,
    cap: u16,
    batch: u16,
    value: Padded<UnsafeCell<T>>,
}

/// What producers exchange, what they only read, and what the owner works on lie on lines of their
/// own: a producer takes one line from others, and the owner's work takes none from producers.
#[cfg(not(loom))]
const _: () = {
    assert!(align_of::<Intake<u8>>() == LINES && size_of::<Intake<u8>>() == 3 * LINES);
    assert!(size_of::<Padded<AtomicPtr<Node>>>() == LINES, "nothing else fits beside the word");
    let word = offset_of!(Intake<u8>, word) / LINES;
    let (value, cap) = (offset_of!(Intake<u8>, value) / LINES, offset_of!(Intake<u8>, cap) / LINES);
    assert!(word != value && word != cap && value != cap);
    assert!(offset_of!(Intake<u8>, batch) / LINES == cap);
};

// SAFETY: the word hands packets over, and `value` from owner to owner; neither needs `T: Sync`,
// for only the owner has a reference to the value.
unsafe impl<T: Send> Send for Intake<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Intake<T> {}

/// What became of a push.
#[must_use = "an owner has to drain the intake"]
#[derive(Debug)]
pub enum Pushed<'a, T> {
    /// Somebody else is bound to take it.
    Staged {
        /// Nothing waited before: if there is a runner that takes what waits, it has to be told.
        first: bool,
    },
    /// The caller is the owner now. What it pushed is `fresh` if the intake was idle; otherwise
    /// [`Owner::take`] gives it, in its place.
    Owner {
        /// The right to work on the value.
        owner: Owner<'a, T>,
        /// The packets, not in the list.
        fresh: PacketList,
    },
}

/// The intake holds its cap. The packets are still the caller's.
#[derive(Debug)]
pub struct Full(pub PacketList);

/// The right to work on the value behind an intake.
///
/// Leave by [`Owner::leave_idle`] or [`Owner::leave_busy`]. An owner that is merely dropped (by a
/// panic) keeps the intake owned for ever, on purpose: the value may be broken.
#[must_use = "dropping an owner leaves the intake owned for ever"]
pub struct Owner<'a, T> {
    intake: &'a Intake<T>,
    /// An owner is as good as `&mut T`: threads may share it only if they may share `T`.
    value: PhantomData<&'a mut T>,
}

impl<T> Intake<T> {
    /// Puts an intake for at most `cap` waiting packets in front of `value`. While BUSY, the push
    /// that makes the list `batch` long owns it.
    pub fn new(value: T, cap: u16, batch: u16) -> Self {
        Self {
            word: Padded(AtomicPtr::new(Word::ZERO.0)),
            cap,
            batch,
            value: Padded(UnsafeCell::new(value)),
        }
    }

    /// Pushes one packet, or a chain of them with one exchange; they stay in order.
    ///
    /// # Errors
    ///
    /// Gives the packets back when the intake holds its cap.
    #[inline]
    pub fn push(&self, mut packets: PacketList) -> Result<Pushed<'_, T>, Full> {
        let Some((oldest, newest, count)) = packets.reverse() else {
            return Ok(Pushed::Staged { first: false });
        };
        // Relaxed: a guess, which the exchanges below check.
        let mut word = Word(self.word.0.load(Relaxed));
        loop {
            if word == Word::ZERO {
                // Acquire: the value; pairs with the release in `leave_idle`.
                let order = mutant::or("intake-idle-acquire", Acquire, Relaxed);
                let owned = Word::flags_only(OWNED);
                match self.word.0.compare_exchange_weak(word.0, owned.0, order, Relaxed) {
                    Ok(_) => {
                        packets.restore();
                        return Ok(Pushed::Owner { owner: Owner::new(self), fresh: packets });
                    }
                    Err(seen) => word = Word(seen),
                }
                continue;
            }
            let total = u32::from(word.count()).saturating_add(count);
            if total > u32::from(self.cap) {
                packets.restore();
                return Err(Full(packets));
            }
            #[expect(clippy::cast_possible_truncation, reason = "at most `cap`, a u16")]
            let total = total as u16;
            // SAFETY: the chain is ours until the exchange succeeds.
            unsafe { Node::set_next(oldest, word.node()) };
            let owns =
                !word.has(OWNED) && total >= self.batch && !mutant::is("intake-push-never-owns");
            let new = Word::with(newest, total, word.flags() | if owns { OWNED } else { 0 });
            // Release: the packets; pairs with the swap in `take`. Acquire: when it makes us owner,
            // the value; pairs with the release in `leave_busy`.
            let order = mutant::or("intake-push-release", AcqRel, Acquire);
            let order = mutant::or("intake-push-acquire", order, Release);
            match self.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) => {
                    std::mem::forget(packets);
                    if owns {
                        let fresh = PacketList::new();
                        return Ok(Pushed::Owner { owner: Owner::new(self), fresh });
                    }
                    let first = word.count() == 0 && !mutant::is("intake-push-never-first");
                    return Ok(Pushed::Staged { first });
                }
                Err(seen) => word = Word(seen),
            }
        }
    }

    /// Asks the processor for the word: a push is about to come.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_write(&raw const self.word);
    }

    /// Becomes owner, unless somebody is.
    #[inline]
    pub fn own(&self) -> Option<Owner<'_, T>> {
        // Relaxed: a guess, which the exchange below checks.
        let mut word = Word(self.word.0.load(Relaxed));
        while !word.has(OWNED) {
            let owned = word.with_flags(word.flags() | OWNED);
            // Acquire: the value; pairs with the release in `leave_idle` and `leave_busy`.
            let order = mutant::or("intake-own-acquire", Acquire, Relaxed);
            match self.word.0.compare_exchange_weak(word.0, owned.0, order, Relaxed) {
                Ok(_) => return Some(Owner::new(self)),
                Err(seen) => word = Word(seen),
            }
        }
        None
    }

    /// Packets that wait. A hint: stale as soon as it is read.
    pub fn waiting(&self) -> u32 {
        // Relaxed: a hint.
        u32::from(Word(self.word.0.load(Relaxed)).count())
    }

    /// Whether somebody owns it. A hint.
    pub fn is_owned(&self) -> bool {
        // Relaxed: a hint.
        Word(self.word.0.load(Relaxed)).has(OWNED)
    }

    /// Whether it was left busy. A hint.
    pub fn is_busy(&self) -> bool {
        // Relaxed: a hint.
        Word(self.word.0.load(Relaxed)).has(BUSY)
    }

    /// Whether nobody owns it and nothing waits. If so, what owners wrote before is seen.
    pub fn is_quiet(&self) -> bool {
        // Acquire: pairs with the release in `leave_idle` and `leave_busy`.
        let order = mutant::or("intake-quiet-acquire", Acquire, Relaxed);
        let word = Word(self.word.0.load(order));
        !word.has(OWNED) && word.count() == 0
    }

    /// Most packets that may wait.
    pub fn cap(&self) -> u16 {
        self.cap
    }
}

impl<'a, T> Owner<'a, T> {
    #[inline]
    fn new(intake: &'a Intake<T>) -> Self {
        Self { intake, value: PhantomData }
    }

    /// Takes everything that waits, oldest first.
    #[inline]
    pub fn take(&mut self) -> PacketList {
        let word = &self.intake.word.0;
        // Relaxed: a push that it misses is found by `leave_idle`, or by the next owner.
        if Word(word.load(Relaxed)).count() == 0 {
            return PacketList::new();
        }
        // Acquire: the packets; pairs with the release in `push`. Nobody but the owner takes BUSY
        // away, and the owner may: `leave_busy` sets it again.
        let order = mutant::or("intake-take-acquire", Acquire, Relaxed);
        let taken = Word(word.swap(Word::flags_only(OWNED).0, order));
        // SAFETY: the swap made the chain ours; `push` ends it at null.
        unsafe { PacketList::from_newest_first(taken.node()) }
    }

    /// Packets that wait. More may come at any time.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.intake.waiting()
    }

    /// Whether the last owner left the intake busy. Ask before the first take.
    #[inline]
    pub fn was_busy(&self) -> bool {
        self.intake.is_busy()
    }

    /// Leaves the intake idle.
    ///
    /// # Errors
    ///
    /// Still owner: packets wait.
    #[inline]
    pub fn leave_idle(self) -> Result<(), Self> {
        let atomic = &self.intake.word.0;
        // Relaxed: a guess, which the exchange below checks.
        let mut word = Word(atomic.load(Relaxed));
        while word.count() == 0 || mutant::is("intake-leave-idle-unchecked") {
            // Release: our work on the value; pairs with the acquire of the next owner.
            let order = mutant::or("intake-leave-idle-release", Release, Relaxed);
            match atomic.compare_exchange_weak(word.0, Word::ZERO.0, order, Relaxed) {
                Ok(_) => return Ok(()),
                Err(seen) => word = Word(seen),
            }
        }
        Err(self)
    }

    /// Leaves the intake busy, with whatever waits. Tell the runner first.
    #[inline]
    pub fn leave_busy(self) {
        let atomic = &self.intake.word.0;
        // Relaxed: a guess, which the exchange below checks.
        let mut word = Word(atomic.load(Relaxed));
        loop {
            let forgets = mutant::is("intake-leave-busy-empty");
            let busy = if forgets { Word::flags_only(BUSY) } else { word.with_flags(BUSY) };
            // Release: our work on the value; pairs with the acquire of the next owner.
            let order = mutant::or("intake-leave-busy-release", Release, Relaxed);
            match atomic.compare_exchange_weak(word.0, busy.0, order, Relaxed) {
                Ok(_) => return,
                Err(seen) => word = Word(seen),
            }
        }
    }
}

impl<T> Deref for Owner<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: one owner at a time, and the word hands the value over.
        self.intake.value.0.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Owner<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` is the only way here.
        self.intake.value.0.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> fmt::Debug for Intake<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intake")
            .field("waiting", &self.waiting())
            .field("owned", &self.is_owned())
            .field("cap", &self.cap)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Owner<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("waiting", &self.waiting()).finish()
    }
}

impl<T> Drop for Intake<T> {
    fn drop(&mut self) {
        // Relaxed: who hands out `&mut self` has ordered all pushes before it.
        let left = Word(self.word.0.load(Relaxed));
        // SAFETY: `&mut self`: nobody else pushes or takes; `push` ends the chain at null.
        drop(unsafe { PacketList::from_newest_first(left.node()) });
    }
}
