//! A bounded mailbox: many threads post packets; one thread, the reader, takes them all with one
//! swap, or sleeps until a packet comes.
//!
//! A mailbox is like an intake, but without the right to run the value behind it. The reader is a
//! separate thread, which reads when it likes and may close the mailbox; then another reader may
//! open it.
//!
//! ```text
//! word              meaning
//! CLOSED            there is no reader: posted packets are given back to the poster
//! count, newest     `count` packets wait (0: none)
//! WAITING           no packet waits and the reader sleeps: the next poster also wakes the reader
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
//! The wake-up cannot be lost: the reader goes to sleep by exchanging "no packet waits" for
//! WAITING, and the next post finds WAITING in the word that it exchanges. Later posts find a
//! packet there, and wake nobody.
//!
//! The reader may write the waker only while `lent` is false. `lent` is true from before WAITING is
//! set until the thread that took WAITING away has taken the waker out.

use std::fmt;
#[cfg(not(loom))]
use std::mem::offset_of;
use std::task::Waker;

use crate::node::Node;
use crate::node::home::store_waker;
use crate::node::word::Word;
#[cfg(not(loom))]
use crate::sync::LINES;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::{Arc, AtomicBool, AtomicPtr, Padded, UnsafeCell};
use crate::wakes::call;
use crate::{Armed, PacketList, mutant};

/// Flag: the reader sleeps.
const WAITING: usize = 1;
/// Flag: there is no reader.
const CLOSED: usize = 2;
/// Flag: nobody will post any more.
const ENDED: usize = 4;

/// The posting side of a mailbox. Threads share it by reference; dropping it tells the reader that
/// no more packets will come.
pub struct Mailbox(Arc<Shared>);

/// The only reader of a mailbox, until it closes the mailbox or is dropped.
pub struct Reader {
    shared: Arc<Shared>,
    /// Whether a word that the reader took had ENDED set.
    ended: bool,
    open: bool,
}

struct Shared {
    word: Padded<AtomicPtr<Node>>,
    bell: Padded<Bell>,
    cap: u16,
}

/// The word that posters exchange, and the bell, which is touched only when the reader sleeps, lie
/// on separate cache lines.
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Padded<AtomicPtr<Node>>>() == LINES, "nothing else fits beside the word");
    assert!(offset_of!(Shared, word) / LINES != offset_of!(Shared, bell) / LINES);
};

/// The waker of the reader, and whether another thread may be using the waker.
struct Bell {
    waker: UnsafeCell<Option<Waker>>,
    lent: AtomicBool,
}

// SAFETY: the word hands packets over, and `lent` and WAITING decide which thread may touch
// `waker`.
unsafe impl Send for Shared {}
// SAFETY: the argument for `Send` above holds for `Sync` as well.
unsafe impl Sync for Shared {}

/// Packets that a mailbox did not accept. The error returns them to the caller.
#[derive(Debug)]
pub enum Undelivered {
    /// The mailbox has no room for all of the packets.
    Full(PacketList),
    /// The mailbox has no reader.
    Closed(PacketList),
}

impl Mailbox {
    /// Makes a mailbox for at most `cap` waiting packets. At first it has no reader.
    ///
    /// # Panics
    ///
    /// Panics when `cap` is zero, because such a mailbox could never accept a packet.
    #[must_use]
    pub fn new(cap: u16) -> Self {
        assert!(cap > 0, "a mailbox holds at least one packet");
        Self(Arc::new(Shared {
            word: Padded(AtomicPtr::new(Word::flags_only(CLOSED).0)),
            bell: Padded(Bell { waker: UnsafeCell::new(None), lent: AtomicBool::new(false) }),
            cap,
        }))
    }

    /// Opens the mailbox for reading; `None`: the mailbox already has a reader.
    #[must_use]
    pub fn open(&self) -> Option<Reader> {
        let word = &self.0.word.0;
        let (closed, open) = (Word::flags_only(CLOSED), Word::ZERO);
        // Acquire: makes what the previous reader did visible; pairs with the release in `close`.
        let order = mutant::or("mailbox-open-acquire", Acquire, Relaxed);
        word.compare_exchange(closed.0, open.0, order, Relaxed).ok()?;
        Some(Reader { shared: Arc::clone(&self.0), ended: false, open: true })
    }

    /// Posts a list of packets with one exchange. The packets keep their order.
    ///
    /// # Errors
    ///
    /// Returns all packets if there is no room for all of them, or if the mailbox has no reader.
    #[inline]
    pub fn post(&self, mut packets: PacketList) -> Result<(), Undelivered> {
        let Some((oldest, newest, count)) = packets.reverse() else { return Ok(()) };
        let shared = &*self.0;
        // Relaxed: this value is a guess, which the exchange below verifies.
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
            // SAFETY: the chain belongs to this thread until the exchange succeeds.
            unsafe { Node::set_next(oldest, word.node()) };
            let new = Word::with(newest, total, 0);
            // Release: publishes the packets; pairs with the swap in `take` and `close`. Acquire:
            // if the exchange takes WAITING away, makes the waker visible; pairs with the release
            // in `arm`. Relaxed: after a failed exchange, the word is only a guess.
            let order = mutant::or("mailbox-post-release", AcqRel, Acquire);
            let order = mutant::or("mailbox-post-acquire", order, Release);
            match shared.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) => break,
                Err(seen) => word = Word(seen),
            }
        }
        std::mem::forget(packets);
        if word.has(WAITING) {
            // SAFETY: the exchange of this thread took WAITING away, with acquire.
            unsafe { shared.wake() };
        }
        Ok(())
    }

    /// Returns how many more packets the mailbox accepts; 0 if it has no reader. A hint: the number
    /// may be stale as soon as it is read.
    #[must_use]
    #[inline]
    pub fn room(&self) -> u16 {
        // Relaxed: the result is only a hint.
        let word = Word(self.0.word.0.load(Relaxed));
        if word.has(CLOSED) { 0 } else { self.0.cap - word.count() }
    }
}

impl Reader {
    /// Takes all waiting packets, oldest first.
    #[inline]
    pub fn take(&mut self) -> PacketList {
        let word = &self.shared.word.0;
        // Relaxed: if the load misses a post, `arm` finds the packet.
        if !self.open || Word(word.load(Relaxed)).count() == 0 {
            return PacketList::new();
        }
        // Acquire: makes the packets visible; pairs with the release in `post`.
        let order = mutant::or("mailbox-take-acquire", Acquire, Relaxed);
        let taken = Word(word.swap(Word::ZERO.0, order));
        self.ended |= taken.has(ENDED);
        // SAFETY: the swap gave the chain to this thread alone; `post` ends the chain at null.
        unsafe { PacketList::from_newest_first(taken.node()) }
    }

    /// Whether no packet will come any more: no packet waits and the posting side is gone, or this
    /// reader has closed the mailbox.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        // Relaxed: the load hands nothing over. Once the word has ENDED, no further post comes.
        let word = Word(self.shared.word.0.load(Relaxed));
        !self.open || word.count() == 0 && (self.ended || word.has(ENDED))
    }

    /// Requests a wake-up when a packet is posted or the posting side goes away. Replaces an
    /// earlier request.
    pub fn arm(&mut self, waker: &Waker) -> Armed {
        let Shared { word: Padded(atomic), bell: Padded(bell), .. } = &*self.shared;
        if !self.open {
            return Armed::Ready;
        }
        loop {
            // Relaxed: the exchanges below verify this value.
            let word = Word(atomic.load(Relaxed));
            let ready = word.count() > 0 || word.has(ENDED) || self.ended;
            if ready && !mutant::is("mailbox-arm-unchecked") {
                return Armed::Ready;
            }
            if word.has(WAITING) {
                // A request is pending, and its waker may differ from the new one.
                // Relaxed: the exchange hands nothing over.
                if atomic.compare_exchange(word.0, Word::ZERO.0, Relaxed, Relaxed).is_ok() {
                    // Relaxed: only this thread reads `lent` before it lends again.
                    bell.lent.store(false, Relaxed);
                }
                continue;
            }
            // Acquire: pairs with the release in `wake`, so this thread may touch the waker.
            let order = mutant::or("mailbox-arm-acquire", Acquire, Relaxed);
            if bell.lent.load(order) && !mutant::is("mailbox-arm-lent") {
                return Armed::Busy;
            }
            // SAFETY: the waker is not lent, and only this thread lends it.
            bell.waker.with_mut(|slot| unsafe { store_waker(slot, waker) });
            bell.lent.store(true, Relaxed); // Relaxed: the exchange below orders this store.
            // Release: publishes the waker and `lent`; pairs with the acquire in `post`.
            let order = mutant::or("mailbox-arm-release", Release, Relaxed);
            let waiting = Word::flags_only(WAITING);
            if atomic.compare_exchange(word.0, waiting.0, order, Relaxed).is_ok() {
                return Armed::Armed;
            }
            // Relaxed: only this thread reads `lent` before it lends again.
            bell.lent.store(false, Relaxed);
        }
    }

    /// Closes the mailbox, and returns the packets that still wait. Afterwards another reader may
    /// open the mailbox.
    pub fn close(&mut self) -> PacketList {
        if !std::mem::take(&mut self.open) {
            return PacketList::new();
        }
        // Acquire: makes the packets visible; pairs with the release in `post`. Release: publishes
        // what this thread did with the waker; pairs with the acquire in `open`.
        let order = mutant::or("mailbox-close-release", AcqRel, Acquire);
        let taken = Word(self.shared.word.0.swap(Word::flags_only(CLOSED).0, order));
        if taken.has(WAITING) {
            // No other thread took the waker out, so this thread ends the loan. Until it does, the
            // next reader finds the waker lent.
            // Relaxed: this thread touched the waker before the swap.
            self.shared.bell.0.lent.store(false, Relaxed);
        }
        // SAFETY: the swap gave the chain to this thread alone; `post` ends the chain at null.
        unsafe { PacketList::from_newest_first(taken.node()) }
    }
}

impl Shared {
    /// Wakes the reader.
    ///
    /// # Safety
    ///
    /// An exchange of the caller took WAITING away, with acquire.
    unsafe fn wake(&self) {
        let Bell { waker, lent } = &self.bell.0;
        // SAFETY: the waker stays lent to the caller until the store below.
        let waker = waker.with_mut(|slot| unsafe { (*slot).take() });
        // Release: this thread has finished with the waker; pairs with the acquire in `arm`.
        lent.store(false, mutant::or("mailbox-wake-release", Release, Relaxed));
        if let Some(waker) = waker {
            call(waker); // `call` contains panics: this may be a port's owner.
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let atomic = &self.0.word.0;
        // Relaxed: this value is a guess, which the exchange verifies.
        let mut word = Word(atomic.load(Relaxed));
        loop {
            let new = word.with_flags((word.flags() & !WAITING) | ENDED);
            // Acquire: makes the waker visible; pairs with the release in `arm`.
            let order = mutant::or("mailbox-end-acquire", Acquire, Relaxed);
            match atomic.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) => break,
                Err(seen) => word = Word(seen),
            }
        }
        if word.has(WAITING) && !mutant::is("mailbox-end-silent") {
            // SAFETY: the exchange of this thread took WAITING away, with acquire.
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
