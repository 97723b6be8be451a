//! A bounded mailbox: many threads post packets, one reads them all by one swap, or sleeps.
//!
//! The intake without the right to run what is behind it: its reader is a thread of its own, which
//! comes when it likes, goes, and may be followed by another.
//!
//! ```text
//! word              meaning
//! CLOSED            nobody reads: what is posted is given back
//! count, newest     so many packets wait, or none
//! WAITING           none waits and the reader sleeps: who posts also takes its waker out
//! ENDED | ...       the posting side is gone
//! ```
//!
//! ```text
//!              |  post | open | take, arm, close
//! post         |   -   |  -   |  -                - needs no lock
//! open         |   -   |  -   |  -
//! take, ...    |   -   |  -   |  one reader (`&mut Reader`)
//! ```
//!
//! The wake-up cannot be lost: the reader goes to sleep by exchanging "nothing waits" for WAITING,
//! and the post that makes something wait finds WAITING in the word that it exchanges. Posts that
//! follow find a packet there, and wake nobody.
//!
//! The waker is the reader's to write while it is not `lent`: from before WAITING is set until who
//! took WAITING away has taken the waker out.

use std::fmt;
#[cfg(not(loom))]
use std::mem::offset_of;
use std::task::Waker;

use crate::packet::Node;
use crate::pool::store_waker;
#[cfg(not(loom))]
use crate::sync::LINES;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::{Arc, AtomicBool, AtomicPtr, Padded, UnsafeCell};
use crate::wakes::call;
use crate::word::Word;
use crate::{Armed, PacketList, mutant};

/// The reader sleeps.
const WAITING: usize = 1;
/// There is no reader.
const CLOSED: usize = 2;
/// Nobody will post any more.
const ENDED: usize = 4;

/// Where packets are posted. Share it by reference; dropping it tells the reader.
pub struct Mailbox(Arc<Shared>);

/// The one that reads a mailbox, until it closes it or is dropped.
pub struct Reader {
    shared: Arc<Shared>,
    /// ENDED was in a word that was taken.
    ended: bool,
    open: bool,
}

struct Shared {
    word: Padded<AtomicPtr<Node>>,
    bell: Padded<Bell>,
    cap: u16,
}

/// What posters exchange, and what is touched only when the reader sleeps.
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Padded<AtomicPtr<Node>>>() == LINES, "nothing else fits beside the word");
    assert!(offset_of!(Shared, word) / LINES != offset_of!(Shared, bell) / LINES);
};

/// How the reader is woken.
struct Bell {
    waker: UnsafeCell<Option<Waker>>,
    lent: AtomicBool,
}

// SAFETY: the word hands packets over, and `waker` is touched by who `lent` and WAITING name.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Packets that a mailbox did not take: they are still the caller's.
#[derive(Debug)]
pub enum Undelivered {
    /// There is no place for all of them.
    Full(PacketList),
    /// Nobody reads.
    Closed(PacketList),
}

impl Mailbox {
    /// Makes a mailbox for at most `cap` waiting packets, which nobody reads yet.
    ///
    /// # Panics
    ///
    /// Panics when `cap` is zero: nothing could ever be posted.
    #[must_use]
    pub fn new(cap: u16) -> Self {
        assert!(cap > 0, "a mailbox holds at least one packet");
        Self(Arc::new(Shared {
            word: Padded(AtomicPtr::new(Word::flags_only(CLOSED).0)),
            bell: Padded(Bell { waker: UnsafeCell::new(None), lent: AtomicBool::new(false) }),
            cap,
        }))
    }

    /// Becomes its reader, unless there is one.
    #[must_use]
    pub fn open(&self) -> Option<Reader> {
        let word = &self.0.word.0;
        let (closed, open) = (Word::flags_only(CLOSED), Word::ZERO);
        // Acquire: what the reader before did; pairs with the release in `close`.
        let order = mutant::or("mailbox-open-acquire", Acquire, Relaxed);
        word.compare_exchange(closed.0, open.0, order, Relaxed).ok()?;
        Some(Reader { shared: Arc::clone(&self.0), ended: false, open: true })
    }

    /// Posts one packet, or a chain of them with one exchange; they stay in order.
    ///
    /// # Errors
    ///
    /// Gives them all back when there is no place for all, or nobody reads.
    #[inline]
    pub fn post(&self, mut packets: PacketList) -> Result<(), Undelivered> {
        let Some((oldest, newest, count)) = packets.reverse() else { return Ok(()) };
        let shared = &*self.0;
        // Relaxed: a guess, which the exchange below checks.
        let mut word = Word(shared.word.0.load(Relaxed));
        loop {
            if word.has(CLOSED) {
                packets.restore();
                return Err(Undelivered::Closed(packets));
            }
            let total = u32::from(word.count()).saturating_add(count);
            if total > u32::from(shared.cap) {
                packets.restore();
                return Err(Undelivered::Full(packets));
            }
            #[expect(clippy::cast_possible_truncation, reason = "at most `cap`, a u16")]
            let total = total as u16;
            // SAFETY: the chain is ours until the exchange succeeds.
            unsafe { Node::set_next(oldest, word.node()) };
            let new = Word::with(newest, total, 0);
            // Release: the packets; pairs with the swap in `take` and `close`. Acquire: if it takes
            // WAITING away, the waker; pairs with the release in `arm`.
            let order = mutant::or("mailbox-post-release", AcqRel, Acquire);
            let order = mutant::or("mailbox-post-acquire", order, Release);
            match shared.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) => break,
                Err(seen) => word = Word(seen),
            }
        }
        std::mem::forget(packets);
        if word.has(WAITING) {
            // SAFETY: our exchange took WAITING away.
            unsafe { shared.wake() };
        }
        Ok(())
    }

    /// Places that are free; 0 when nobody reads. A hint: stale as soon as it is read.
    #[must_use]
    #[inline]
    pub fn room(&self) -> u16 {
        // Relaxed: a hint.
        let word = Word(self.0.word.0.load(Relaxed));
        if word.has(CLOSED) { 0 } else { self.0.cap - word.count() }
    }
}

impl Reader {
    /// Takes everything that waits, oldest first.
    #[inline]
    pub fn take(&mut self) -> PacketList {
        let word = &self.shared.word.0;
        // Relaxed: a post that it misses is found by `arm`.
        if !self.open || Word(word.load(Relaxed)).count() == 0 {
            return PacketList::new();
        }
        // Acquire: the packets; pairs with the release in `post`.
        let order = mutant::or("mailbox-take-acquire", Acquire, Relaxed);
        let taken = Word(word.swap(Word::ZERO.0, order));
        self.ended |= taken.has(ENDED);
        // SAFETY: the swap made the chain ours; `post` ends it at null.
        unsafe { PacketList::from_newest_first(taken.node()) }
    }

    /// Whether nothing waits, and nobody will post any more or this reader has closed it.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        // Relaxed: nothing changes hands. No post follows the word that has ENDED.
        let word = Word(self.shared.word.0.load(Relaxed));
        !self.open || word.count() == 0 && (self.ended || word.has(ENDED))
    }

    /// Asks to be woken when something is posted, or the posting side goes. Replaces an earlier
    /// request.
    pub fn arm(&mut self, waker: &Waker) -> Armed {
        let Shared { word: Padded(atomic), bell: Padded(bell), .. } = &*self.shared;
        if !self.open {
            return Armed::Ready;
        }
        loop {
            // Relaxed: the exchanges below check what matters.
            let word = Word(atomic.load(Relaxed));
            let ready = word.count() > 0 || word.has(ENDED) || self.ended;
            if ready && !mutant::is("mailbox-arm-unchecked") {
                return Armed::Ready;
            }
            if word.has(WAITING) {
                // Armed before, and the waker may be another.
                // Relaxed: nothing changes hands.
                if atomic.compare_exchange(word.0, Word::ZERO.0, Relaxed, Relaxed).is_ok() {
                    bell.lent.store(false, Relaxed); // Relaxed: only we look before we lend again.
                }
                continue;
            }
            // Acquire: pairs with the release in `wake`, so the waker is ours to touch.
            let order = mutant::or("mailbox-arm-acquire", Acquire, Relaxed);
            if bell.lent.load(order) && !mutant::is("mailbox-arm-lent") {
                return Armed::Busy;
            }
            // SAFETY: it is not lent, and only we lend it.
            bell.waker.with_mut(|slot| unsafe { store_waker(slot, waker) });
            bell.lent.store(true, Relaxed); // Relaxed: ordered by the exchange.
            // Release: the waker, and that it is lent. Pairs with the acquire in `post`.
            let order = mutant::or("mailbox-arm-release", Release, Relaxed);
            let waiting = Word::flags_only(WAITING);
            if atomic.compare_exchange(word.0, waiting.0, order, Relaxed).is_ok() {
                return Armed::Armed;
            }
            bell.lent.store(false, Relaxed); // Relaxed: as above.
        }
    }

    /// Closes the mailbox, and gives what still waits. From then on somebody else may read it.
    pub fn close(&mut self) -> PacketList {
        if !std::mem::take(&mut self.open) {
            return PacketList::new();
        }
        // Acquire: the packets; pairs with the release in `post`. Release: what we did with the
        // waker; pairs with the acquire in `open`.
        let order = mutant::or("mailbox-close-release", AcqRel, Acquire);
        let taken = Word(self.shared.word.0.swap(Word::flags_only(CLOSED).0, order));
        if taken.has(WAITING) {
            // Nobody took the waker out, so it is ours to give back. Until then the next reader
            // finds it lent. Relaxed: we touched the waker before the swap.
            self.shared.bell.0.lent.store(false, Relaxed);
        }
        // SAFETY: the swap made the chain ours; `post` ends it at null.
        unsafe { PacketList::from_newest_first(taken.node()) }
    }
}

impl Shared {
    /// Wakes the reader.
    ///
    /// # Safety
    ///
    /// The caller's exchange took WAITING away, with acquire.
    unsafe fn wake(&self) {
        let Bell { waker, lent } = &self.bell.0;
        // SAFETY: it stays lent to the caller until the store below.
        let waker = waker.with_mut(|slot| unsafe { (*slot).take() });
        // Release: we are done with the waker; pairs with the acquire in `arm`.
        lent.store(false, mutant::or("mailbox-wake-release", Release, Relaxed));
        if let Some(waker) = waker {
            call(waker); // Who posts may be the owner of a port.
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let atomic = &self.0.word.0;
        // Relaxed: a guess, which the exchange checks.
        let mut word = Word(atomic.load(Relaxed));
        loop {
            let new = word.with_flags((word.flags() & !WAITING) | ENDED);
            // Acquire: the waker; pairs with the release in `arm`.
            let order = mutant::or("mailbox-end-acquire", Acquire, Relaxed);
            match atomic.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) => break,
                Err(seen) => word = Word(seen),
            }
        }
        if word.has(WAITING) && !mutant::is("mailbox-end-silent") {
            // SAFETY: our exchange took WAITING away.
            unsafe { self.0.wake() };
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.close());
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox")
            .field("room", &self.room())
            .field("cap", &self.0.cap)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("has_ended", &self.has_ended()).finish_non_exhaustive()
    }
}
