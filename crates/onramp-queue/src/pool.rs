//! A sender's packets: taken by one thread, given back by any, counted as its credits.
//!
//! A [`Pool`] has at most `limit` packets out. Taking one is a pop from a private list. A packet
//! that was sent or dropped goes home through one lock-free word, in runs, whoever frees it; the
//! pool takes that list whole when it runs dry. So the memory of packets and the bound on what a
//! sender has below it (the idea of TCP Small Queues) are one mechanism, and the count in the word
//! says when enough has come back to wake a sender that waits.
//!
//! ```text
//!            |  take, reclaim, arm, drop | put_back
//! take, ...  |  one thread (`&mut`)      |    -          - needs no lock
//! put_back   |            -              |    -
//! ```
//!
//! ```text
//! word                               meaning
//! count, newest                      nodes that came home since the last reclaim
//! WAITING | count + bias, newest     the same; who makes the count `WAKE_AT` sets WAKING instead
//! WAKING | count + bias, newest      somebody is taking the waker out; then it clears WAKING
//! CLOSED | count                     the pool is gone, and `count` nodes are out
//! ... | RUNG                         the bell rang, and the pool has not looked since
//! ... | BELL                         there is a bell
//! ```
//!
//! Whoever makes the word CLOSED, with no node out, no bell and nobody WAKING, frees the home.
//!
//! `bias` is the pool's own: what [`Pool::arm`] added so that the packets it needs make the count
//! `WAKE_AT`. So everything that `put_back` decides on is in the word that it exchanges. (If the
//! need stood beside it, a sender that takes its request back and makes a smaller one, between
//! look and exchange, would never be woken: the word is the same.)

mod home;

use std::ptr::{self, NonNull};
use std::task::{RawWakerVTable, Waker};

use crate::packet::{Before, Guests, Node, PAYLOAD_MAX, Packet, Tail};
use crate::sync::Arc;
use crate::sync::Ordering::{self, AcqRel, Acquire, Relaxed, Release};
use crate::word::Word;
use crate::{DropReason, Meta, PacketList, mutant};

use home::{BELL, CLOSED, RUNG, WAITING, WAKE_AT, WAKING, free_chain};

pub use home::Bell;
pub(crate) use home::{Home, store_waker};

/// Payload sizes of the nodes a pool keeps, bytes. A packet takes the smallest that fits.
const CLASSES: [u32; 4] = [128, 512, 2_048, 65_535];
const _: () = assert!(CLASSES[CLASSES.len() - 1] as usize == PAYLOAD_MAX);

/// What a pool allows its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// Packets that may be out at once, 1 to [`Credits::PACKETS_MAX`].
    pub packets: u32,
    /// Bytes of payload that may be out at once. One packet may always be out, however large.
    pub bytes: u32,
}

impl Credits {
    /// The count of a word has 16 bits, and one of them says that it is time to wake.
    pub const PACKETS_MAX: u32 = WAKE_AT as u32;
}

/// What became of a packet that came home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The sender's own word ([`Meta::cookie`](crate::Meta::cookie)).
    pub cookie: u64,
    /// Why it was dropped; `None`: the device took it.
    pub drop_reason: Option<DropReason>,
    /// Bytes on the wire.
    pub len: u32,
}

/// What [`Pool::arm`] or [`Reader::arm`](crate::Reader::arm) found.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Enough is there already, or the [`Bell`] rang since the last look: look.
    Ready,
    /// The waker will be called, once.
    Armed,
    /// Somebody is taking another waker out, which was given before; nap, then look again.
    Busy,
}

/// One thread's packets. `Send`, not `Sync`.
#[derive(Debug)]
pub struct Pool {
    home: NonNull<Home>,
    free: [*mut Node; CLASSES.len()],
    credits: Credits,
    /// Packets that may be out just now.
    allowed: u32,
    /// Nodes neither in `free` nor, by our last look, home.
    out: u32,
    out_bytes: u32,
    /// Of these, those that were submitted from here.
    below: u32,
    /// Shared with packets of others that were submitted from here and are not done with.
    guests: Option<Arc<Guests>>,
    /// What `arm` added to the count of the word.
    bias: u16,
    /// The waker that stands in the home, or that somebody is taking out: to tell it from others.
    armed: (*const (), *const RawWakerVTable),
    /// Fates of packets that came home together with one whose telling panicked.
    untold: Vec<Completion>,
}

// SAFETY: the pool owns its free nodes; `Home` is shared by design.
unsafe impl Send for Pool {}

impl Pool {
    /// Makes an empty pool: nodes are allocated when first needed, and kept.
    ///
    /// # Panics
    ///
    /// Panics unless 1 <= `credits.packets` <= [`Credits::PACKETS_MAX`].
    #[must_use]
    pub fn new(credits: Credits) -> Self {
        assert!(
            (1..=Credits::PACKETS_MAX).contains(&credits.packets),
            "credits are 1 to {} packets",
            Credits::PACKETS_MAX
        );
        let home = Box::new(Home::new());
        let free = [ptr::null_mut(); CLASSES.len()];
        let home = NonNull::from(Box::leak(home));
        let allowed = credits.packets;
        Self {
            home,
            free,
            credits,
            allowed,
            out: 0,
            out_bytes: 0,
            below: 0,
            guests: None,
            bias: 0,
            armed: (ptr::null(), ptr::null()),
            untold: Vec::new(),
        }
    }

    /// Takes a packet with room for `payload` bytes; `None`: no credit is left.
    ///
    /// # Panics
    ///
    /// Panics when `payload` exceeds [`PAYLOAD_MAX`].
    #[inline]
    pub fn take(&mut self, payload: usize) -> Option<Packet> {
        assert!(payload <= PAYLOAD_MAX, "a payload has at most {PAYLOAD_MAX} bytes");
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        let (charge, held) = (payload as u32, payload as u16);
        if !self.has_room(charge) {
            return None;
        }
        let class = CLASSES.iter().position(|&size| size >= charge).unwrap_or(CLASSES.len() - 1);
        let mut node = self.free[class];
        if node.is_null() {
            node = Node::alloc(CLASSES[class], self.home.as_ptr());
        } else {
            // SAFETY: free nodes are ours.
            self.free[class] = unsafe { Node::next(node) };
            // The next one is about to be written, most likely as far as this one.
            Node::prefetch_write(self.free[class], charge);
        }
        // SAFETY: `node` is ours alone, and was unlinked above.
        unsafe { Node::renew(node, held) };
        self.out += 1;
        self.out_bytes += charge;
        // SAFETY: as above.
        Some(unsafe { Packet::from_raw(node) })
    }

    /// True when a packet of `payload` bytes may be taken now.
    #[must_use]
    #[inline]
    pub fn has_room(&self, payload: u32) -> bool {
        self.out < self.allowed
            && (self.out == 0 || self.out_bytes.saturating_add(payload) <= self.credits.bytes)
    }

    /// Packets out, as far as the pool has looked.
    #[must_use]
    pub fn out(&self) -> u32 {
        self.out
    }

    /// Of these, packets that were [submitted](Self::submit) from here.
    #[must_use]
    #[inline]
    pub fn below(&self) -> u32 {
        self.below
    }

    /// Whether packets of other pools, or of the heap, were submitted from here and are neither
    /// sent nor dropped. If not, what others did with them is seen.
    #[must_use]
    pub fn has_guests(&mut self) -> bool {
        self.guests.as_mut().is_some_and(|guests| Arc::get_mut(guests).is_none())
    }

    /// Notes in every packet that it was submitted from here at `now_ns`, and, until somebody sends
    /// or drops it, that it went down with its port. From now on a packet of this pool counts as
    /// [below](Self::below) until it was taken in again, and one of another as
    /// [guest](Self::has_guests) until it is dropped.
    #[inline]
    pub fn submit(&mut self, packets: &mut PacketList, now_ns: u64) {
        let home = self.home.as_ptr().cast_const();
        for (meta, tail) in packets.parts_mut() {
            meta.enqueued_ns = now_ns;
            meta.drop_reason = Some(DropReason::PortDead);
            let was = if tail.submitted { Before::Lent } else { Before::New };
            tail.submitted = true;
            tail.before = if !ptr::eq(tail.home, home) {
                Self::invite(&mut self.guests, tail, was)
            } else if tail.below {
                Before::Counted // A receiver sends it once more.
            } else {
                (tail.below, self.below) = (true, self.below + 1);
                was
            };
        }
    }

    #[cold]
    fn invite(guests: &mut Option<Arc<Guests>>, tail: &mut Tail, was: Before) -> Before {
        let mine = guests.get_or_insert_with(Arc::default);
        if tail.join(mine) { was } else { Before::Counted }
    }

    /// Takes [`submit`](Self::submit) back: the packets were not accepted, and are as they were.
    #[cold]
    pub fn revoke(&mut self, packets: &mut PacketList) {
        let home = self.home.as_ptr().cast_const();
        for (meta, tail) in packets.parts_mut() {
            meta.drop_reason = None;
            tail.submitted = tail.before != Before::New;
            if tail.before == Before::Counted {
                continue;
            }
            if ptr::eq(tail.home, home) {
                (tail.below, self.below) = (false, self.below - 1);
            } else {
                tail.part();
            }
        }
    }

    /// The bell that wakes who waits for this pool, for events that bring no packet home. `None`:
    /// somebody has it.
    pub fn bell(&mut self) -> Option<Bell> {
        // Relaxed: nothing changes hands.
        let before = self.update(Relaxed, |word| {
            (!word.has(BELL)).then(|| word.with_flags(word.flags() | BELL))
        });
        before.map(|_| Bell::new(self.home))
    }

    /// Allows less, or more again: at most what the pool was made with, and at least one packet.
    pub fn allow(&mut self, packets: u32) {
        self.allowed = packets.clamp(1, self.credits.packets);
    }

    /// What this pool was made with.
    #[must_use]
    pub fn credits(&self) -> Credits {
        self.credits
    }

    /// Packets that came home since the last reclaim. A hint: it may only grow.
    #[must_use]
    #[inline]
    pub fn returned(&self) -> u32 {
        // Relaxed: a hint.
        self.returned_in(Word(self.home().word.0.load(Relaxed)))
    }

    /// Times that a thread which brought packets home met another there, and had to try again.
    #[must_use]
    #[cfg(not(loom))]
    pub fn repeated(&self) -> u64 {
        // Relaxed: a number for people.
        self.home().word.0.repeated.load(Relaxed)
    }

    fn returned_in(&self, word: Word) -> u32 {
        u32::from(word.count() - self.bias)
    }

    /// Takes in what came home and tells the fate of each submitted packet. Gives how many came.
    ///
    /// Unless nothing came, this takes a request to be woken back, like [`disarm`](Self::disarm).
    ///
    /// Should `fate` panic, all that came is taken in still, and the next call tells the rest.
    pub fn reclaim(&mut self, mut fate: impl FnMut(Completion)) -> u32 {
        while let Some(completion) = self.untold.pop() {
            fate(completion);
        }
        if self.returned() == 0 {
            return 0;
        }
        // Acquire: the nodes; pairs with the release in `put_back`.
        let order = mutant::or("pool-reclaim-acquire", Acquire, Relaxed);
        let take = |word: Word| Some(Word::flags_only(word.flags() & !WAITING));
        let taken = self.update(order, take).unwrap_or(Word::ZERO);
        let count = self.returned_in(taken);
        self.bias = 0;
        let mut arrivals = Arrivals { pool: self, node: taken.node() };
        while let Some(completion) = arrivals.next() {
            if let Some(completion) = completion {
                fate(completion);
            }
        }
        count
    }

    /// Takes a packet of this pool back that was not submitted: a way home without an atomic.
    #[inline]
    pub fn take_back(&mut self, pkt: Packet) {
        let node = pkt.into_raw();
        // SAFETY: `into_raw` gave us the only pointer to a live node.
        if !ptr::eq(unsafe { Node::home(node) }, self.home.as_ptr()) {
            // SAFETY: as above; a stranger's packet goes to its own home.
            drop(unsafe { Packet::from_raw(node) });
            return;
        }
        // SAFETY: as above.
        unsafe { Node::settle(node) };
        // SAFETY: as above.
        let (_, tail) = unsafe { Node::parts(node) };
        self.arrived(tail.charge, &mut tail.below);
        self.keep(node);
        if self.bias > 0 {
            self.count_one();
        }
    }

    /// One that was taken back counts like one that came home, for who asked to be woken: it is one
    /// less to come.
    #[cold]
    fn count_one(&mut self) {
        // Relaxed: if it wakes, the waker is what we ourselves wrote in `arm`.
        let before = self.update(Relaxed, |word| {
            let count = word.count() + 1;
            let flags = word.flags();
            let wakes = if count >= WAKE_AT { WAITING | WAKING } else { 0 };
            word.has(WAITING).then(|| Word::with(word.node(), count, flags ^ wakes))
        });
        if let Some(before) = before {
            self.bias += 1;
            if before.count() + 1 >= WAKE_AT {
                // SAFETY: we set WAKING.
                unsafe { Home::wake(self.home.as_ptr()) };
            }
        }
    }

    /// Asks to be woken when `need` packets, or else all that are out, have come home or were taken
    /// back since the last reclaim, or when the [`Bell`] rings. Replaces an earlier request.
    pub fn arm(&mut self, waker: &Waker, need: u32) -> Armed {
        self.arm_for(waker, Some(need.min(self.out)))
    }

    /// Asks to be woken when the [`Bell`] rings, however many packets come home. Replaces an
    /// earlier request.
    pub fn listen(&mut self, waker: &Waker) -> Armed {
        self.arm_for(waker, None)
    }

    fn arm_for(&mut self, waker: &Waker, need: Option<u32>) -> Armed {
        loop {
            // Acquire: pairs with the release in `wake`, so the waker is ours to touch.
            let order = mutant::or("pool-arm-acquire", Acquire, Relaxed);
            let word = Word(self.home().word.0.load(order));
            if word.has(RUNG) && !mutant::is("pool-arm-deaf") {
                // It took the request back when it rang. Acquire: what happened before that; pairs
                // with the release in `ring`.
                let order = mutant::or("pool-rung-acquire", Acquire, Relaxed);
                self.update(order, |word| Some(word.with_flags(word.flags() & !RUNG)));
                return Armed::Ready;
            }
            let returned = self.returned_in(word);
            if need.is_some_and(|need| returned >= need) && !mutant::is("pool-arm-unchecked") {
                self.disarm();
                return Armed::Ready;
            }
            let asks = (waker.data(), ptr::from_ref(waker.vtable()));
            if word.has(WAKING) {
                // As long as the flag is set, the waker is not called yet: one that equals it is
                // that one, and will be.
                return if self.armed == asks { Armed::Armed } else { Armed::Busy };
            }
            if word.has(WAITING) {
                // Armed before: stop that first, the waker may be another. If that comes too late,
                // the one before is on its way.
                self.disarm();
                continue;
            }
            self.armed = asks;
            // SAFETY: neither WAITING nor WAKING is set, so nobody else touches the waker, and
            // only we set WAITING.
            self.home().waker.with_mut(|slot| unsafe { store_waker(slot, waker) });
            // Without a need, all packets that there may be would have to come home.
            #[expect(clippy::cast_possible_truncation, reason = "at most PACKETS_MAX, like `out`")]
            let (returned, bias) = (returned as u16, need.map_or(0, |need| WAKE_AT - need as u16));
            let armed = Word::with(word.node(), returned + bias, word.flags() | WAITING);
            // Release: publishes the waker. Pairs with the acquire in `put_back`.
            let order = mutant::or("pool-arm-release", Release, Relaxed);
            if self.home().word.0.compare_exchange(word.0, armed.0, order, Relaxed).is_ok() {
                self.bias = bias;
                return Armed::Armed;
            }
        }
    }

    /// Takes the request back; a wake-up that is on its way still comes.
    pub fn disarm(&mut self) {
        let bias = self.bias;
        // Relaxed: nothing changes hands; `arm` looks again before it touches the waker.
        let disarmed = self.update(Relaxed, |word| {
            let count = word.count() - bias;
            word.has(WAITING).then(|| Word::with(word.node(), count, word.flags() & !WAITING))
        });
        if disarmed.is_some() {
            self.bias = 0;
        }
    }

    fn home(&self) -> &Home {
        // SAFETY: the pool keeps its home alive until it is dropped.
        unsafe { self.home.as_ref() }
    }

    /// Exchanges the word for `next` of it, unless that is `None`; gives the word before.
    #[inline]
    fn update(&self, order: Ordering, next: impl Fn(Word) -> Option<Word>) -> Option<Word> {
        let home = self.home();
        home.life.used();
        // Relaxed: a guess, which the exchange checks.
        let mut word = Word(home.word.0.load(Relaxed));
        loop {
            let new = next(word)?;
            match home.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) => return Some(word),
                Err(seen) => word = Word(seen),
            }
        }
    }

    /// Takes the request back, like [`disarm`](Self::disarm), and lets go of its waker. False: a
    /// wake-up is on its way, and takes the waker with it.
    pub fn forget_waker(&mut self) -> bool {
        self.disarm();
        let home = self.home();
        // Acquire: pairs with the release in `wake`, so the waker is ours to touch.
        let order = mutant::or("pool-forget-acquire", Acquire, Relaxed);
        if Word(home.word.0.load(order)).has(WAKING) && !mutant::is("pool-forget-early") {
            return false;
        }
        // SAFETY: neither WAITING nor WAKING is set, and only we set WAITING.
        drop(home.waker.with_mut(|slot| unsafe { (*slot).take() }));
        true
    }

    /// Ends the life of the pool's side. Gives the nodes that came home, and whether the home is
    /// nobody else's.
    fn close(&mut self) -> (*mut Node, bool) {
        // Acquire: the nodes, and all that others did with the home, if we free it; pairs with the
        // release in `put_back`. Release: all that we did with it, if another frees it.
        let order = mutant::or("pool-close-acquire", AcqRel, Release);
        let order = mutant::or("pool-close-release", order, Acquire);
        let last = self.update(order, |word| {
            #[expect(clippy::cast_possible_truncation, reason = "at most PACKETS_MAX")]
            let out = (self.out - self.returned_in(word)) as u16;
            // Nobody rings for us any more.
            let flags = word.flags() & (WAKING | BELL);
            Some(Word::with(ptr::null_mut(), out, CLOSED | flags))
        });
        let last = last.unwrap_or(Word::ZERO);
        let out = self.out - self.returned_in(last);
        (last.node(), out == 0 && !last.has(WAKING) && !last.has(BELL))
    }

    /// A packet of ours is no longer out.
    #[inline]
    fn arrived(&mut self, charge: u16, below: &mut bool) {
        self.out -= 1;
        self.out_bytes -= u32::from(charge);
        self.below -= u32::from(std::mem::take(below));
    }

    fn keep(&mut self, node: *mut Node) {
        // SAFETY: the caller owns the node.
        let capacity = unsafe { Node::capacity(node) };
        let class = CLASSES.iter().position(|&size| size == capacity).unwrap_or(0);
        // SAFETY: as above.
        unsafe { Node::set_next(node, self.free[class]) };
        self.free[class] = node;
    }
}

/// Nodes that came home and were not looked at yet. A fate whose telling panics keeps none of them
/// out, and no other untold.
struct Arrivals<'a> {
    pool: &'a mut Pool,
    node: *mut Node,
}

impl Arrivals<'_> {
    /// Takes the next node in; gives its packet's fate if it was submitted.
    fn next(&mut self) -> Option<Option<Completion>> {
        let node = self.node;
        if node.is_null() {
            return None;
        }
        // SAFETY: taking the word made the chain ours.
        self.node = unsafe { Node::next(node) };
        Node::prefetch_write(self.node, 0);
        // SAFETY: as above.
        let (meta, tail) = unsafe { Node::parts(node) };
        let Meta { cookie, drop_reason, len, .. } = *meta;
        let fate = tail.submitted.then_some(Completion { cookie, drop_reason, len });
        self.pool.arrived(tail.charge, &mut tail.below);
        self.pool.keep(node);
        Some(fate)
    }
}

impl Drop for Arrivals<'_> {
    fn drop(&mut self) {
        while let Some(completion) = self.next() {
            self.pool.untold.extend(completion);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The waker shall not be dropped with the home: its drop is anybody's code. Another thread
        // may be taking it out just now. The pool does not wait for that thread, which calls the
        // waker later, in vain.
        self.forget_waker();
        let (came, is_last) = self.close();
        // SAFETY: closing the word made the chain ours.
        unsafe { free_chain(came) };
        for node in self.free {
            // SAFETY: free nodes are ours.
            unsafe { free_chain(node) };
        }
        if is_last {
            // SAFETY: no node is out, there is no bell and nobody wakes, so nobody else has the
            // home.
            unsafe { Home::free(self.home.as_ptr()) };
        }
    }
}
