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
//! CLOSED | count                     the pool is gone, and `count` nodes are out; who brings the
//!                                    last one frees the home
//! ```
//!
//! `bias` is the pool's own: what [`Pool::arm`] added so that the packets it needs make the count
//! `WAKE_AT`. So everything that `put_back` decides on is in the word that it exchanges. (If the
//! need stood beside it, a sender that takes its request back and makes a smaller one, between
//! look and exchange, would never be woken: the word is the same.)

mod home;

use std::ptr::{self, NonNull};
use std::task::Waker;

use crate::packet::{Node, PAYLOAD_MAX, Packet};
use crate::sync::Ordering::{self, AcqRel, Acquire, Relaxed, Release};
use crate::sync::yield_now;
use crate::word::Word;
use crate::{DropReason, Meta, mutant};

use home::{CLOSED, WAITING, WAKE_AT, WAKING, free_chain};

pub(crate) use home::{Home, store_waker};

/// Payload sizes of the nodes a pool keeps, bytes. A packet takes the smallest that fits.
const CLASSES: [u32; 4] = [128, 512, 2_048, 65_536];
const _: () = assert!(CLASSES[CLASSES.len() - 1] as usize >= PAYLOAD_MAX);

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
    /// Enough is there already: take it.
    Ready,
    /// The waker will be called, once.
    Armed,
    /// The last wake-up is still on its way; give way, then look again.
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
    /// What `arm` added to the count of the word.
    bias: u16,
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
        Self { home, free, credits, allowed, out: 0, out_bytes: 0, bias: 0 }
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
        let charge = payload as u32;
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
        unsafe { Node::renew(node, charge) };
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
    pub fn reclaim(&mut self, mut fate: impl FnMut(Completion)) -> u32 {
        if self.returned() == 0 {
            return 0;
        }
        // Acquire: the nodes; pairs with the release in `put_back`.
        let order = mutant::or("pool-reclaim-acquire", Acquire, Relaxed);
        let take = |word: Word| Some(Word::flags_only(word.flags() & WAKING));
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
        let (_, tail) = unsafe { Node::parts(node) };
        self.out -= 1;
        self.out_bytes -= tail.charge;
        self.keep(node);
    }

    /// Asks to be woken when `need` packets, or else all that are out, have come home since the
    /// last reclaim. Replaces an earlier request.
    pub fn arm(&mut self, waker: &Waker, need: u32) -> Armed {
        let need = need.min(self.out);
        loop {
            // Acquire: pairs with the release in `wake`, so the waker is ours to touch.
            let order = mutant::or("pool-arm-acquire", Acquire, Relaxed);
            let word = Word(self.home().word.0.load(order));
            let returned = self.returned_in(word);
            if returned >= need && !mutant::is("pool-arm-unchecked") {
                self.disarm();
                return Armed::Ready;
            }
            if word.has(WAKING) {
                return Armed::Busy;
            }
            if word.has(WAITING) {
                // Armed before: stop that first, the waker may be another.
                self.disarm();
                continue;
            }
            // SAFETY: neither WAITING nor WAKING is set, so nobody else touches the waker, and
            // only we set WAITING.
            self.home().waker.with_mut(|slot| unsafe { store_waker(slot, waker) });
            #[expect(clippy::cast_possible_truncation, reason = "at most PACKETS_MAX, like `out`")]
            let (returned, bias) = (returned as u16, WAKE_AT - need as u16);
            let armed = Word::with(word.node(), returned + bias, WAITING);
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
            word.has(WAITING).then(|| Word::with(word.node(), count, 0))
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
        let waker = home.waker.with_mut(|slot| unsafe { (*slot).take() });
        drop(waker);
        true
    }

    /// Ends the life of the pool's side. Gives the nodes that came home, and how many are out.
    fn close(&mut self) -> (*mut Node, u32) {
        // Acquire: the nodes, and all that others did with the home, if we free it; pairs with the
        // release in `put_back`. Release: all that we did with it, if another frees it.
        let order = mutant::or("pool-close-acquire", AcqRel, Release);
        let order = mutant::or("pool-close-release", order, Acquire);
        let last = self.update(order, |word| {
            #[expect(clippy::cast_possible_truncation, reason = "at most PACKETS_MAX")]
            let out = (self.out - self.returned_in(word)) as u16;
            Some(Word::with(ptr::null_mut(), out, CLOSED))
        });
        let last = last.unwrap_or(Word::ZERO);
        (last.node(), self.out - self.returned_in(last))
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
/// out.
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
        self.pool.out -= 1;
        self.pool.out_bytes -= tail.charge;
        self.pool.keep(node);
        Some(fate)
    }
}

impl Drop for Arrivals<'_> {
    fn drop(&mut self) {
        while self.next().is_some() {}
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Nobody may run the waker after us, nor drop it with the home. Who takes it out leaves the
        // home alone after that, and waits for nobody, so this ends.
        while !self.forget_waker() {
            yield_now();
        }
        let (came, out) = self.close();
        // SAFETY: closing the word made the chain ours.
        unsafe { free_chain(came) };
        for node in self.free {
            // SAFETY: free nodes are ours.
            unsafe { free_chain(node) };
        }
        if out == 0 {
            // SAFETY: no node is out, so nobody else has the home.
            unsafe { Home::free(self.home.as_ptr()) };
        }
    }
}
