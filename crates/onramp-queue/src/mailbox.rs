//! A bounded mailbox: many threads post packets. One thread, the reader, takes all of them with one
//! swap, or sleeps until a packet comes.
//!
//! A mailbox is like an intake, but posting a packet never makes a thread the owner of a value.
//! Only a separate thread, the reader, takes packets; it does so when it likes, and may close the
//! mailbox; then another reader may open it.
//!
//! ```text
//! word              meaning
//! CLOSED            there is no reader: posted packets are given back to the poster
//! count, newest     `count` packets wait (0: none)
//! WAITING           no packet waits and the reader sleeps: the next poster also wakes the reader
//! ENDED | ...       the posting side is gone
//! WANTED | cap, ... the mailbox is full, and a poster wants to know when the reader has taken
//! ```
//!
//! ```text
//!              |  post | open | take, arm, close
//! post, want   |   -   |  -   |  -                -: may run at the same time
//! open         |   -   |  -   |  -
//! take, ...    |   -   |  -   |  one reader (`&mut Reader`)
//! ```
//!
//! No wake-up can be lost: before the reader goes to sleep, it exchanges the word "no packet waits"
//! for the flag WAITING, and the next post finds WAITING in the word that it exchanges. Later posts
//! find a packet in the word, and wake nobody.
//!
//! No wish for room can be lost: a poster sets the flag WANTED only in a word that says that the
//! mailbox is full, and the reader takes the packets and the flag with one exchange. So either the
//! reader finds the flag, or the poster finds that there is room.
//!
//! A flag, `lent`, says that another thread may be using the reader's waker; the reader may write
//! its waker only while `lent` is false. The reader sets `lent` before it sets WAITING. Then `lent`
//! stays true until the thread whose exchange removed WAITING has taken the waker out.

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

/// Flag in the word: the reader sleeps, and the next poster wakes it.
const WAITING: usize = 1;
/// Flag in the word: there is no reader.
const CLOSED: usize = 2;
/// Flag in the word: nobody will post any more, because the posting side was dropped.
const ENDED: usize = 4;
/// Flag in the word: a poster wants to know when there is room. Only set while the mailbox is full.
const WANTED: usize = 8;

/// The posting side of a mailbox. Threads share it by reference; dropping it tells the reader that
/// no more packets will come.
///
/// ```
/// use onramp_queue::{Mailbox, Packet, PacketList};
///
/// let mailbox = Mailbox::new(8);
/// let mut reader = mailbox.open().expect("nobody reads yet");
/// let packets = PacketList::from_iter([Packet::with_payload(b"hello")]);
/// mailbox.post(packets).expect("there is room for eight packets");
/// let received = reader.take();
/// assert_eq!(received.front().map(|packet| packet.payload()), Some(&b"hello"[..]));
/// ```
pub struct Mailbox(Arc<Shared>);

/// The only reader of a mailbox, until it closes the mailbox or is dropped.
pub struct Reader {
    shared: Arc<Shared>,
    /// Whether the flag ENDED (the posting side is gone) was set in a word that the reader took.
    ended: bool,
    /// Whether the flag WANTED was set in a word that the reader took, and the reader has not said
    /// so yet.
    wanted: bool,
    open: bool,
}

struct Shared {
    word: Padded<AtomicPtr<Node>>,
    bell: Padded<Bell>,
    cap: u16,
}

/// The word that posters exchange and the bell (the reader's waker, used only when the reader
/// sleeps) lie on separate cache lines.
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Padded<AtomicPtr<Node>>>() == LINES, "nothing else fits beside the word");
    assert!(offset_of!(Shared, word) / LINES != offset_of!(Shared, bell) / LINES);
};

/// The waker of the reader, and the flag `lent`: whether another thread may be using the waker.
struct Bell {
    waker: UnsafeCell<Option<Waker>>,
    lent: AtomicBool,
}

// SAFETY: the word hands packets from thread to thread. `lent` and the flag WAITING decide which
// thread may touch `waker`.
unsafe impl Send for Shared {}
// SAFETY: the word is atomic; `lent` and the flag WAITING decide which thread may touch `waker`.
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
    /// Makes a mailbox in which at most `cap` packets may wait. At first it has no reader.
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

    /// Opens the mailbox for reading. Returns `None` if the mailbox already has a reader.
    #[must_use]
    pub fn open(&self) -> Option<Reader> {
        let word = &self.0.word.0;
        let (closed, open) = (Word::flags_only(CLOSED), Word::ZERO);
        // Acquire: makes what the previous reader did visible; pairs with the release in `close`.
        let order = mutant::or("mailbox-open-acquire", Acquire, Relaxed);
        word.compare_exchange(closed.0, open.0, order, Relaxed).ok()?;
        Some(Reader { shared: Arc::clone(&self.0), ended: false, wanted: false, open: true })
    }

    /// Posts a list of packets with one exchange. The packets keep their order.
    ///
    /// # Errors
    ///
    /// Returns all packets if the mailbox has no room for all of them, or has no reader.
    #[inline]
    pub fn post(&self, mut packets: PacketList) -> Result<(), Undelivered> {
        let Some((oldest, newest, count)) = packets.reverse() else { return Ok(()) };
        let shared = &*self.0;
        // Relaxed: the loaded value is a guess, which the exchange below verifies.
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
            // SAFETY: the chain of posted nodes belongs to this thread until the exchange succeeds.
            unsafe { Node::set_next(oldest, word.node()) };
            let new = Word::with(newest, total, 0);
            // Release: publishes the packets; pairs with the swap in `take` and `close`. Acquire:
            // if the exchange clears WAITING (the reader slept), makes the waker visible; pairs
            // with the release in `arm`. Relaxed: after a failed exchange, the word is only a
            // guess.
            let order = mutant::or("mailbox-post-release", AcqRel, Acquire);
            let order = mutant::or("mailbox-post-acquire", order, Release);
            match shared.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) => break,
                Err(seen) => word = Word(seen),
            }
        }
        std::mem::forget(packets);
        if word.has(WAITING) {
            // SAFETY: an exchange of this thread, with acquire, cleared WAITING.
            unsafe { shared.wake() };
        }
        Ok(())
    }

    /// Returns how many more packets the mailbox accepts; 0 if it has no reader. This is a hint:
    /// the number may be stale as soon as it is read.
    #[must_use]
    #[inline]
    pub fn room(&self) -> u16 {
        // Relaxed: the result is only a hint.
        let word = Word(self.0.word.0.load(Relaxed));
        if word.has(CLOSED) { 0 } else { self.0.cap - word.count() }
    }

    /// For a poster whose packets had no room: lets the reader know
    /// ([`is_wanted`](Reader::is_wanted)) that a poster wants room. Returns false if the mailbox
    /// has room for a packet or has no reader; the poster can then post again at once.
    ///
    /// The reader that finds the wish sees all that the poster did before this call, such as noting
    /// whom to wake.
    #[must_use]
    pub fn want_room(&self) -> bool {
        let Shared { word: Padded(atomic), cap, .. } = &*self.0;
        // Relaxed: the loaded value is a guess, which the exchange below verifies.
        let mut word = Word(atomic.load(Relaxed));
        loop {
            let has_room = word.has(CLOSED) || word.count() < *cap;
            if has_room && !mutant::is("mailbox-want-unchecked") {
                return false;
            }
            // The exchange is needed even if the flag is set already: it publishes what this thread
            // did. Release: pairs with the acquire in `take` and `close`.
            let new = word.with_flags(word.flags() | WANTED);
            let order = mutant::or("mailbox-want-release", Release, Relaxed);
            match atomic.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) => return true,
                Err(seen) => word = Word(seen),
            }
        }
    }
}

impl Reader {
    /// Takes all packets that wait in the mailbox, oldest first.
    #[inline]
    pub fn take(&mut self) -> PacketList {
        let word = &self.shared.word.0;
        // Relaxed: if the load misses a post, `arm` finds the posted packet.
        if !self.open || Word(word.load(Relaxed)).count() == 0 {
            return PacketList::new();
        }
        // Acquire: makes the packets visible; pairs with the release in `post`.
        let order = mutant::or("mailbox-take-acquire", Acquire, Relaxed);
        let taken = Word(word.swap(Word::ZERO.0, order));
        self.ended |= taken.has(ENDED);
        self.wanted |= taken.has(WANTED);
        // SAFETY: the swap gave the chain of waiting nodes to this thread alone; `post` ends the
        // chain at null.
        unsafe { PacketList::from_newest_first(taken.node()) }
    }

    /// Whether a poster has [wanted room](Mailbox::want_room) that this reader has made since the
    /// last call: by taking packets, or by closing the mailbox.
    #[must_use]
    #[inline]
    pub fn is_wanted(&mut self) -> bool {
        std::mem::take(&mut self.wanted)
    }

    /// Whether this reader will get no more packets: the posting side is gone and no packet waits,
    /// or this reader has closed the mailbox.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        // Relaxed: only the word itself is read. Once the flag ENDED is set, no further packet is
        // posted.
        let word = Word(self.shared.word.0.load(Relaxed));
        !self.open || word.count() == 0 && (self.ended || word.has(ENDED))
    }

    /// Requests that `waker` be called when a packet is posted or the posting side goes away. This
    /// replaces an earlier request.
    pub fn arm(&mut self, waker: &Waker) -> Armed {
        let Shared { word: Padded(atomic), bell: Padded(bell), .. } = &*self.shared;
        if !self.open {
            return Armed::Ready;
        }
        loop {
            // Relaxed: the exchanges below verify the loaded value.
            let word = Word(atomic.load(Relaxed));
            let ready = word.count() > 0 || word.has(ENDED) || self.ended;
            if ready && !mutant::is("mailbox-arm-unchecked") {
                return Armed::Ready;
            }
            if word.has(WAITING) {
                // WAITING is set: an earlier request is pending, and its waker may differ from the
                // new one, so cancel it.
                // Relaxed: the exchange need not order other memory.
                if atomic.compare_exchange(word.0, Word::ZERO.0, Relaxed, Relaxed).is_ok() {
                    // Relaxed: only this thread reads `lent` before it lends the waker again.
                    bell.lent.store(false, Relaxed);
                }
                continue;
            }
            // Acquire: pairs with the release in `wake`. So if the waker is not lent, this thread
            // may touch it.
            let order = mutant::or("mailbox-arm-acquire", Acquire, Relaxed);
            if bell.lent.load(order) && !mutant::is("mailbox-arm-lent") {
                return Armed::Busy;
            }
            // SAFETY: the waker is not lent to another thread, and only this thread lends it.
            bell.waker.with_mut(|slot| unsafe { store_waker(slot, waker) });
            bell.lent.store(true, Relaxed); // Relaxed: the exchange below orders this store.
            // Release: publishes the waker and `lent`; pairs with the acquire in `post`.
            let order = mutant::or("mailbox-arm-release", Release, Relaxed);
            let waiting = Word::flags_only(WAITING);
            if atomic.compare_exchange(word.0, waiting.0, order, Relaxed).is_ok() {
                return Armed::Armed;
            }
            // Relaxed: only this thread reads `lent` before it lends the waker again.
            bell.lent.store(false, Relaxed);
        }
    }

    /// Closes the mailbox, and returns the packets that still wait in it. Afterwards another reader
    /// may open the mailbox.
    pub fn close(&mut self) -> PacketList {
        if !std::mem::take(&mut self.open) {
            return PacketList::new();
        }
        // Acquire: makes the packets visible; pairs with the release in `post`. Release: publishes
        // what this thread did with the waker; pairs with the acquire in `open`.
        let order = mutant::or("mailbox-close-release", AcqRel, Acquire);
        let taken = Word(self.shared.word.0.swap(Word::flags_only(CLOSED).0, order));
        self.wanted |= taken.has(WANTED);
        if taken.has(WAITING) {
            // WAITING was still set, so no other thread took the waker out, and this thread marks
            // the waker as no longer lent. Until then, the next reader finds the waker lent.
            // Relaxed: this thread touched the waker before the swap.
            self.shared.bell.0.lent.store(false, Relaxed);
        }
        // SAFETY: the swap gave the chain of waiting nodes to this thread alone; `post` ends the
        // chain at null.
        unsafe { PacketList::from_newest_first(taken.node()) }
    }
}

impl Shared {
    /// Wakes the reader, whose waker is lent to the calling thread.
    ///
    /// # Safety
    ///
    /// An exchange of the caller, with acquire, cleared WAITING.
    unsafe fn wake(&self) {
        let Bell { waker, lent } = &self.bell.0;
        // SAFETY: the waker stays lent to the calling thread until the store below.
        let waker = waker.with_mut(|slot| unsafe { (*slot).take() });
        // Release: this thread has finished with the waker; pairs with the acquire in `arm`.
        lent.store(false, mutant::or("mailbox-wake-release", Release, Relaxed));
        if let Some(waker) = waker {
            call(waker); // `call` catches panics, which must not reach a port's owner.
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        let atomic = &self.0.word.0;
        // Relaxed: the loaded value is a guess, which the exchange verifies.
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
            // SAFETY: an exchange of this thread, with acquire, cleared WAITING.
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
