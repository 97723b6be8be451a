//! The intake: one machine word that holds a lock-free list of packets, and the right to work on a
//! value behind that list. No thread ever waits for an intake.
//!
//! Many threads push packets. One thread at a time, the *owner*, takes all of them and works on the
//! value behind the intake (for a port: qdisc and device). A thread that pushes into an idle intake
//! becomes its owner; every other thread leaves after one push.
//!
//! ```text
//! word                     meaning
//! 0                        idle
//! OWNED                    a thread owns the intake, no packet waits
//! OWNED | count, newest    a thread owns the intake, a list of packets waits: the owner must look
//!                          again before it leaves
//! OWNED | BUSY | ...       a thread owns the intake; the intake was BUSY when this owner came, and
//!                          the owner has not taken any packets yet
//! BUSY | (count, newest)?  no thread owns the intake; the waiting packets are taken by the runner
//!                          (see below), by the pusher that makes the list `batch` long, or by a
//!                          thread that calls `own`
//! ```
//!
//! The owner sets the flag BUSY when it leaves an intake that gets so many packets that collecting
//! them into larger batches pays off. Before it sets BUSY, it tells a runner (the port's background
//! thread), which must then call [`Intake::own`] again and again until it leaves the intake idle.
//!
//! ```text
//!                |  push | own | take, leave
//! push           |   -   |  -  |  -            -: may run at the same time
//! own, own_idle  |   -   |  -  |  -
//! take, leave    |   -   |  -  |  one owner (`&mut Owner`)
//! ```
//!
//! The list, its length and the ownership share one word. So no wake-up can be lost, no fence is
//! needed, the limit on waiting packets is exact, and there is no ABA problem, because the only
//! operation that removes packets is "take all". A push may succeed although the packet that it
//! links to was freed and another packet now lives at the same address. The link is still correct
//! as an address, and `take` finds out from the address which packet lives there.
//!
//! Source: the design is our own. It replaces the list in Linux's `__dev_xmit_skb`
//! (`net/core/dev.c`, 7.2).

use std::fmt;
use std::marker::PhantomData;
#[cfg(not(loom))]
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};

use crate::PacketList;
use crate::mutant;
use crate::node::Node;
use crate::node::word::Word;
#[cfg(not(loom))]
use crate::sync::LINES;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, Padded, UnsafeCell, prefetch_write};
use crate::taken::Taken;

/// Flag in the word: a thread owns the intake.
const OWNED: usize = 1;
/// Flag in the word: packets may wait although no thread owns the intake; a runner takes them
/// later.
const BUSY: usize = 2;

/// A lock-free intake (a list to which many threads push packets) in front of a value that one
/// thread at a time works on.
///
/// Threads add numbers, which the thread that is the owner at the moment sums up:
///
/// ```
/// use onramp_queue::{Intake, Packet, PacketList, Pushed};
///
/// let intake = Intake::new(0_u32, 100, 100);
/// let push = |length: u32| {
///     let packets = PacketList::from_iter([Packet::new(length)]);
///     match intake.push(packets).expect("there is room for 100 packets") {
///         Pushed::Staged { .. } => {} // Another thread is the owner, and will take the packet.
///         Pushed::Owner { mut owner, mut fresh } => loop {
///             fresh.append(&mut owner.take());
///             *owner += std::mem::take(&mut fresh).map(|packet| packet.len).sum::<u32>();
///             match owner.leave_idle() {
///                 Ok(()) => break,
///                 Err(still) => owner = still, // Packets were pushed meanwhile.
///             }
///         },
///     }
/// };
/// std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| push(25)))));
/// assert_eq!(*intake.own().expect("no other thread is the owner"), 100);
/// ```
pub struct Intake<T> {
    word: Padded<AtomicPtr<Node>>,
    cap: u16,
    batch: u16,
    value: Padded<UnsafeCell<T>>,
}

/// Three things lie on separate cache lines: the word that pushing threads exchange, the fields
/// that they only read, and the value that the owner works on. So a push takes only one cache line
/// from other pushing threads, and the owner's work takes none from them.
#[cfg(not(loom))]
const _: () = {
    assert!(align_of::<Intake<u8>>() == LINES && size_of::<Intake<u8>>() == 3 * LINES);
    assert!(size_of::<Padded<AtomicPtr<Node>>>() == LINES, "nothing else fits beside the word");
    let word = offset_of!(Intake<u8>, word) / LINES;
    let (value, cap) = (offset_of!(Intake<u8>, value) / LINES, offset_of!(Intake<u8>, cap) / LINES);
    assert!(word != value && word != cap && value != cap);
    assert!(offset_of!(Intake<u8>, batch) / LINES == cap);
};

// SAFETY: the word hands packets from thread to thread, and hands `value` from owner to owner. It
// does not need `T: Sync`, because only the owner has a reference to the value.
unsafe impl<T: Send> Send for Intake<T> {}
// SAFETY: threads share only the atomic word; only the one owner has a reference to the value.
unsafe impl<T: Send> Sync for Intake<T> {}

/// The result of a push.
#[must_use = "an owner has to drain the intake"]
#[derive(Debug)]
pub enum Pushed<'a, T> {
    /// The packets are staged: they wait in the intake, and another thread will certainly take
    /// them.
    Staged {
        /// Whether no packet waited before this push. If it is left to a runner to take the packets
        /// (the intake is BUSY), the pusher must then tell the runner.
        first: bool,
    },
    /// The calling thread is now the owner of the intake. If the intake was idle, `fresh` holds the
    /// pushed packets. Otherwise `fresh` is empty, and [`Owner::take`] returns the pushed packets,
    /// at their place in the list.
    Owner {
        /// The right to work on the value behind the intake.
        owner: Owner<'a, T>,
        /// The pushed packets, if they were not put into the intake's list.
        fresh: PacketList,
    },
}

/// The error of a push after which more packets would wait than the intake allows. It returns the
/// packets to the caller.
#[derive(Debug)]
pub struct Full(pub PacketList);

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the intake holds as many packets as its cap allows")
    }
}

impl std::error::Error for Full {}

/// The right to work on the value behind an intake; only one thread has it at a time.
///
/// Give the right up with [`Owner::leave_idle`] or [`Owner::leave_busy`]. If an owner is merely
/// dropped, for example by a panic, the intake stays owned for ever. This is intended, because the
/// value may be inconsistent.
#[must_use = "dropping an owner leaves the intake owned for ever"]
pub struct Owner<'a, T> {
    intake: &'a Intake<T>,
    /// An owner is equivalent to `&mut T`, so threads may share an owner only if they may share
    /// `T`.
    value: PhantomData<&'a mut T>,
}

impl<T> Intake<T> {
    /// Makes an intake for at most `cap` waiting packets in front of `value`. While the intake is
    /// BUSY (packets are only staged, for a runner to take), a push that makes the list at least
    /// `batch` packets long makes its thread the owner.
    pub fn new(value: T, cap: u16, batch: u16) -> Self {
        Self {
            word: Padded(AtomicPtr::new(Word::ZERO.0)),
            cap,
            batch,
            value: Padded(UnsafeCell::new(value)),
        }
    }

    /// Pushes a list of packets with one exchange. The packets keep their order.
    ///
    /// # Errors
    ///
    /// Returns [`Full`] with the packets if more than `cap` packets would wait in the intake.
    #[inline]
    pub fn push(&self, mut packets: PacketList) -> Result<Pushed<'_, T>, Full> {
        let Some((oldest, newest, count)) = packets.reverse() else {
            return Ok(Pushed::Staged { first: false });
        };
        // Relaxed: the loaded value is a guess, which the exchanges below verify.
        let mut word = Word(self.word.0.load(Relaxed));
        loop {
            if word == Word::ZERO {
                // Acquire: makes the last owner's work on the value visible; pairs with the release
                // in `leave_idle`.
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
            // The oldest node keeps its hint.
            // SAFETY: the chain of pushed nodes belongs to this thread until the exchange succeeds.
            unsafe { Node::turn(oldest, word.node()) };
            let owns =
                !word.has(OWNED) && total >= self.batch && !mutant::is("intake-push-never-owns");
            let new = Word::with(newest, total, word.flags() | if owns { OWNED } else { 0 });
            // Release: publishes the packets; pairs with the swap in `take`. Acquire: if the
            // exchange makes this thread the owner, makes the value visible; pairs with the release
            // in `leave_busy`. Relaxed: after a failed exchange, the word is only a guess.
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

    /// Prefetches the intake's word for writing, in preparation for a push.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_write(&raw const self.word);
    }

    /// Makes the calling thread the owner of the intake. Returns `None` if another thread is the
    /// owner.
    #[inline]
    pub fn own(&self) -> Option<Owner<'_, T>> {
        // Relaxed: the loaded value is a guess, which the exchange below verifies.
        let mut word = Word(self.word.0.load(Relaxed));
        while !word.has(OWNED) {
            let owned = word.with_flags(word.flags() | OWNED);
            // Acquire: makes the last owner's work on the value visible; pairs with the release in
            // `leave_idle` and `leave_busy`.
            let order = mutant::or("intake-own-acquire", Acquire, Relaxed);
            match self.word.0.compare_exchange_weak(word.0, owned.0, order, Relaxed) {
                Ok(_) => return Some(Owner::new(self)),
                Err(seen) => word = Word(seen),
            }
        }
        None
    }

    /// Makes the calling thread the owner of the intake if the intake is idle: no thread owns it,
    /// no packet waits, and it is not BUSY. Otherwise returns `None`.
    #[inline]
    pub fn own_idle(&self) -> Option<Owner<'_, T>> {
        let owned = Word::flags_only(OWNED);
        // Acquire: makes the last owner's work on the value visible; pairs with the release in
        // `leave_idle`. Relaxed: after a failed exchange, nothing of the intake is used.
        let order = mutant::or("intake-own-idle-acquire", Acquire, Relaxed);
        let exchanged = self.word.0.compare_exchange(Word::ZERO.0, owned.0, order, Relaxed);
        exchanged.is_ok().then(|| Owner::new(self))
    }

    /// Returns the number of packets that wait in the intake. This is a hint: the number may be
    /// stale as soon as it is read.
    pub fn waiting(&self) -> u32 {
        // Relaxed: the result is only a hint.
        u32::from(Word(self.word.0.load(Relaxed)).count())
    }

    /// Whether a thread owns the intake. This is a hint: the answer may be stale as soon as it is
    /// read.
    pub fn is_owned(&self) -> bool {
        // Relaxed: the result is only a hint.
        Word(self.word.0.load(Relaxed)).has(OWNED)
    }

    /// Whether no thread owns the intake, no packet waits, and the intake is not BUSY. This is a
    /// hint: the answer may be stale as soon as it is read.
    pub fn is_idle(&self) -> bool {
        // Relaxed: the result is only a hint.
        Word(self.word.0.load(Relaxed)) == Word::ZERO
    }

    /// Whether the intake is BUSY (its last owner left packets to a runner). This is a hint: the
    /// answer may be stale as soon as it is read.
    pub fn is_busy(&self) -> bool {
        // Relaxed: the result is only a hint.
        Word(self.word.0.load(Relaxed)).has(BUSY)
    }

    /// Whether no thread owns the intake and no packet waits. If true, the caller sees everything
    /// that earlier owners wrote.
    pub fn is_quiet(&self) -> bool {
        // Acquire: makes the work of earlier owners visible; pairs with the release in `leave_idle`
        // and `leave_busy`.
        let order = mutant::or("intake-quiet-acquire", Acquire, Relaxed);
        let word = Word(self.word.0.load(order));
        !word.has(OWNED) && word.count() == 0
    }

    /// Returns the largest number of packets that may wait in the intake.
    pub fn cap(&self) -> u16 {
        self.cap
    }
}

impl<'a, T> Owner<'a, T> {
    #[inline]
    fn new(intake: &'a Intake<T>) -> Self {
        Self { intake, value: PhantomData }
    }

    /// Takes all packets that wait in the intake, oldest first. The work grows with their number:
    /// see [`take_unordered`](Self::take_unordered).
    #[inline]
    pub fn take(&mut self) -> PacketList {
        self.take_unordered().ordered()
    }

    /// Takes all packets that wait in the intake, and leaves it to the caller to put them in order.
    #[inline]
    pub fn take_unordered(&mut self) -> Taken {
        let word = &self.intake.word.0;
        // Relaxed: if the load misses a push, `leave_idle` or the next owner finds the pushed
        // packet.
        if Word(word.load(Relaxed)).count() == 0 {
            return Taken::default();
        }
        // Acquire: makes the packets visible; pairs with the release in `push`. The swap also
        // clears BUSY. That is allowed, because only owners clear BUSY, and `leave_busy` sets it
        // again.
        let order = mutant::or("intake-take-acquire", Acquire, Relaxed);
        let taken = Word(word.swap(Word::flags_only(OWNED).0, order));
        // SAFETY: the swap gave the chain of waiting nodes to this thread alone; `push` ends the
        // chain at null, and has counted its nodes.
        unsafe { Taken::new(taken.node(), taken.count().into()) }
    }

    /// Returns the number of packets that wait in the intake. Other threads may push more at any
    /// time.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.intake.waiting()
    }

    /// Whether the last owner left the intake BUSY, with any waiting packets, to a runner. Call
    /// this before the first [`take`](Self::take), which clears the flag BUSY.
    #[inline]
    pub fn was_busy(&self) -> bool {
        self.intake.is_busy()
    }

    /// If no packet waits, gives up ownership and leaves the intake idle.
    ///
    /// # Errors
    ///
    /// Returns this owner as the error if packets wait; the caller then still owns the intake.
    #[inline]
    pub fn leave_idle(self) -> Result<(), Self> {
        let atomic = &self.intake.word.0;
        // Relaxed: the loaded value is a guess, which the exchange below verifies.
        let mut word = Word(atomic.load(Relaxed));
        while word.count() == 0 || mutant::is("intake-leave-idle-unchecked") {
            // Release: publishes this owner's work on the value; pairs with the acquire of the next
            // owner.
            let order = mutant::or("intake-leave-idle-release", Release, Relaxed);
            match atomic.compare_exchange_weak(word.0, Word::ZERO.0, order, Relaxed) {
                Ok(_) => return Ok(()),
                Err(seen) => word = Word(seen),
            }
        }
        Err(self)
    }

    /// Gives up ownership and leaves the intake BUSY: packets that wait, or come later, are left to
    /// the runner. Tell the runner before this call.
    #[inline]
    pub fn leave_busy(self) {
        let atomic = &self.intake.word.0;
        // Relaxed: the loaded value is a guess, which the exchange below verifies.
        let mut word = Word(atomic.load(Relaxed));
        loop {
            let forgets = mutant::is("intake-leave-busy-empty");
            let busy = if forgets { Word::flags_only(BUSY) } else { word.with_flags(BUSY) };
            // Release: publishes this owner's work on the value; pairs with the acquire of the next
            // owner.
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
        // SAFETY: there is one owner at a time, and the exchanges of the word order this owner's
        // accesses to the value after those of the previous owner.
        self.intake.value.0.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Owner<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one owner at a time, and `&mut self` excludes other references through
        // this owner.
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
        // Relaxed: a caller that has `&mut self` has already synchronised with all pushes.
        let left = Word(self.word.0.load(Relaxed));
        // SAFETY: `&mut self` excludes other pushes and takes; `push` ends the chain of waiting
        // nodes at null, and has counted its nodes.
        drop(unsafe { Taken::new(left.node(), left.count().into()) });
    }
}
