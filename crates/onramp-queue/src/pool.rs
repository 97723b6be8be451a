//! A sender's packets: one thread takes packets from its pool, any thread returns them, and the
//! number of packets out is limited by the sender's credits.
//!
//! A packet is out from the time when it is taken from its [`Pool`] until it comes home; the number
//! of packets out is limited. Taking a packet removes it from a private list of the pool. When a
//! packet has been sent or dropped, the thread that frees it returns it to its home (one lock-free
//! word); several packets of a pool return together. When the private list is empty, the pool takes
//! the whole list of returned packets. So one mechanism manages the memory of packets and limits
//! how many packets of a sender are in queues at the same time (the idea of TCP Small Queues). The
//! count in the word shows when enough packets have come home to wake a sender that waits.
//!
//! ```text
//!            |  take, reclaim, arm, drop | put_back
//! take, ...  |  one thread (`&mut`)      |    -          -: may run at the same time
//! put_back   |            -              |    -
//! ```
//!
//! ```text
//! word                               meaning
//! count, newest                      nodes that came home since the last reclaim
//! WAITING | count + bias, newest     nodes came home, the sender waits; the thread that makes the
//!                                    count reach `WAKE_AT` replaces WAITING by WAKING
//! WAKING | count + bias, newest      a thread is taking the waker out, and then clears WAKING
//! CLOSED | count                     the pool is gone, and `count` nodes are still out
//! ... | RUNG                         the bell rang, and the pool has not looked since
//! ... | BELL                         there is a bell
//! ```
//!
//! The home is freed by the thread whose exchange leaves the word CLOSED (the pool was dropped)
//! with no node out, no bell and no WAKING (no thread is taking the waker out).
//!
//! `bias` is a number that only the pool knows. [`Pool::arm`] adds `bias` to the count in the word,
//! so that the count reaches `WAKE_AT` exactly when as many packets have come home as the sender
//! needs. So the word that `put_back` exchanges contains everything that `put_back` decides on. (If
//! the need were stored beside the word, a sender could withdraw its request and make a smaller one
//! between the load and the exchange of another thread. The word would be unchanged, the exchange
//! would succeed, and the sender would never be woken.)

use std::ptr::{self, NonNull};
use std::task::{RawWakerVTable, Waker};

use crate::cancel::Cancelled;
use crate::hints::Recent;
use crate::node::home::{BELL, Home, RUNG, WAITING, WAKE_AT, WAKING, free_chain, store_waker};
use crate::node::word::Word;
use crate::node::{Before, Guests, Node, PAYLOAD_MAX, Tail};
use crate::packet::Packet;
use crate::sync::Arc;
use crate::sync::Ordering::{self, Acquire, Relaxed, Release};
use crate::{Cancels, DropReason, Meta, PacketList, mutant};

pub use crate::node::home::Bell;

/// Payload sizes of the nodes that a pool makes, in bytes. For a packet, the pool uses the smallest
/// size that fits.
const CLASSES: [u16; 6] = [128, 512, 2_048, 4_096, 16_384, 65_535];
const _: () = assert!(CLASSES[CLASSES.len() - 1] as usize == PAYLOAD_MAX);

/// The limits that a pool sets for its sender. A packet is out from the time when it is taken from
/// the pool until it comes home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// Maximum number of packets that are out at a time, 1 to [`Credits::PACKETS_MAX`].
    pub packets: u32,
    /// Maximum number of payload bytes in the packets that are out at a time. One packet may always
    /// be out, however large it is.
    pub bytes: u32,
}

impl Credits {
    /// Largest value of [`Credits::packets`]. The count in the word of a pool's home has 16 bits,
    /// and its highest bit says that it is time to wake the sender.
    pub const PACKETS_MAX: u32 = WAKE_AT as u32;
}

/// The report on a packet that came home: what became of it, and when.
///
/// The time that a packet spent in its port, or in the last stage of a tree with stages, is
/// `left_ns - pushed_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Key of the packet's flow ([`Meta::flow`](crate::Meta::flow)).
    pub flow: u64,
    /// The number that the sender stored in [`Meta::cookie`](crate::Meta::cookie).
    pub cookie: u64,
    /// Why the packet was dropped; `None`: the device accepted the packet.
    pub drop_reason: Option<DropReason>,
    /// Length of the packet on the wire, in bytes.
    pub len: u32,
    /// Number of payload bytes by which the packet used up the credits of its pool
    /// ([`Credits::bytes`]).
    pub payload: u32,
    /// Time at which the packet was pushed, in nanoseconds on the link's clock. `series`, and
    /// `netem` with a child qdisc, move this time to the instant at which they passed the packet
    /// on, because the next qdisc judges by it how long the packet has waited there.
    pub pushed_ns: u64,
    /// Time at which the device took the packet, or at which the port dropped it, in nanoseconds on
    /// the link's clock; never before `pushed_ns`. It is the time at which the thread that sent or
    /// dropped the packet last read the clock, usually at most 100 µs earlier. `None`: the packet
    /// was lost with its port ([`DropReason::PortDead`]), and nobody noted the time.
    pub left_ns: Option<u64>,
}

impl Completion {
    fn new(meta: &Meta, payload: u32) -> Self {
        let Meta { flow, cookie, drop_reason, len, enqueued_ns: pushed_ns, txtime_ns, .. } = *meta;
        // The owner may have read the clock before another thread pushed the packet.
        let left_ns = txtime_ns.max(pushed_ns);
        let left_ns = (drop_reason != Some(DropReason::PortDead)).then_some(left_ns);
        Self { flow, cookie, drop_reason, len, payload, pushed_ns, left_ns }
    }
}

/// The result of [`Pool::arm`] or [`Reader::arm`](crate::Reader::arm).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// There is no need to wait: enough packets have come already, no more will come to the reader,
    /// or the [`Bell`] rang since the caller last looked. The caller should look for packets and
    /// changes now.
    Ready,
    /// The request for a wake-up is noted: the waker will be called once.
    Armed,
    /// Another thread is taking out the waker of an earlier request. The caller should sleep
    /// briefly and then try again.
    Busy,
}

/// The packets of one sender, which one thread at a time uses: a pool is `Send` but not `Sync`.
#[derive(Debug)]
///
/// ```
/// use onramp_queue::{Credits, Pool};
///
/// let mut pool = Pool::new(Credits { packets: 1, bytes: 2_000 });
/// let mut packet = pool.take(5).expect("the pool has one credit");
/// packet.set_payload(b"hello");
/// assert!(pool.take(5).is_none(), "the only credit is used");
/// std::thread::spawn(move || drop(packet)).join().expect("a drop does not panic");
/// assert_eq!(pool.reclaim(|_| ()), 1, "the packet has come home from the other thread");
/// assert!(pool.take(5).is_some());
/// ```
pub struct Pool {
    home: NonNull<Home>,
    free: [*mut Node; CLASSES.len()],
    credits: Credits,
    /// Maximum number of packets that may be out at present; see [`Pool::allow`].
    allowed: u32,
    /// Maximum number of payload bytes that may be out at present; see [`Pool::allow_bytes`].
    allowed_bytes: u32,
    /// Number of nodes that are out: neither in `free` nor found at home when the pool last looked
    /// there.
    out: u32,
    out_bytes: u32,
    /// Number of nodes that are out (neither in `free` nor home) and were submitted by this pool's
    /// sender.
    below: u32,
    recent: Recent,
    /// Token shared with the guests of this pool's sender. A guest is a packet of another pool, or
    /// of the heap, that this sender submitted and that is neither sent nor dropped yet.
    guests: Option<Arc<Guests>>,
    /// The number that `arm` added to the count in the home's word, so that the count reaches
    /// `WAKE_AT` when the sender must be woken.
    bias: u16,
    /// Whether the last request asked for a number of packets, and not only for the bell: then
    /// packets that are taken back count, too. The bias does not tell: it is zero if the request is
    /// for all packets of the largest pool.
    counts: bool,
    /// Identity of the waker that is stored in the home, or that another thread is taking out. It
    /// serves to recognise a new request with the same waker.
    armed: (*const (), *const RawWakerVTable),
    /// Completions that were not reported because the caller's closure panicked while `reclaim`
    /// reported an earlier one. The next `reclaim` reports them.
    untold: Vec<(Completion, u16)>,
    /// The times of the packets of the last `submit` that had been submitted before, in their
    /// order. If no port accepts the packets, `revoke` gives them these times back.
    earlier: Vec<Times>,
}

/// The times of a packet before an attempt to submit it again.
#[derive(Clone, Copy, Debug)]
struct Times {
    enqueued_ns: u64,
    txtime_ns: u64,
}

// SAFETY: the pool owns the nodes in `free`; `Home` is designed to be shared between threads.
unsafe impl Send for Pool {}

impl Pool {
    /// Makes a pool without nodes. The pool allocates a node when it first needs one, and then
    /// keeps the node.
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
        let home = Box::new(Home::new(None));
        let free = [ptr::null_mut(); CLASSES.len()];
        let home = NonNull::from(Box::leak(home));
        let (allowed, allowed_bytes) = (credits.packets, credits.bytes);
        Self {
            home,
            free,
            credits,
            allowed,
            allowed_bytes,
            out: 0,
            out_bytes: 0,
            below: 0,
            recent: Recent::default(),
            guests: None,
            bias: 0,
            counts: false,
            armed: (ptr::null(), ptr::null()),
            untold: Vec::new(),
            earlier: Vec::new(),
        }
    }

    /// Takes a packet with room for `payload` bytes out of the pool. Returns `None` if the sender's
    /// credits do not allow another packet now.
    ///
    /// # Panics
    ///
    /// Panics when `payload` exceeds [`PAYLOAD_MAX`].
    #[inline]
    pub fn take(&mut self, payload: usize) -> Option<Packet> {
        self.take_with(payload, payload)
    }

    /// Takes a packet as [`take`](Self::take) does, for a payload of `payload` bytes that lies
    /// elsewhere. The packet uses up credits for them, and has room for few.
    ///
    /// # Panics
    ///
    /// Panics when `payload` exceeds [`PAYLOAD_MAX`].
    pub fn take_bare(&mut self, payload: usize) -> Option<Packet> {
        self.take_with(payload, 0)
    }

    /// Takes a packet with room for `room` bytes, which uses up credits for `payload` bytes.
    #[inline]
    fn take_with(&mut self, payload: usize, room: usize) -> Option<Packet> {
        assert!(payload <= PAYLOAD_MAX, "a payload has at most {PAYLOAD_MAX} bytes");
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        let (charge, held) = (payload as u32, payload as u16);
        if !self.has_room(charge) {
            return None;
        }
        let fits = |size: &u16| usize::from(*size) >= room;
        let class = CLASSES.iter().position(fits).unwrap_or(CLASSES.len() - 1);
        let mut node = self.free[class];
        if node.is_null() {
            node = Node::alloc(CLASSES[class], self.home.as_ptr());
        } else {
            // SAFETY: the pool owns the nodes in `free`.
            self.free[class] = unsafe { Node::next(node) };
            // Prefetch the next free node: the sender will probably write about as many bytes to it
            // as to this one.
            Node::prefetch_write(self.free[class], charge);
        }
        // SAFETY: `node` was unlinked above, so only this thread has it.
        unsafe { Node::renew(node, held) };
        self.out += 1;
        self.out_bytes += charge;
        // SAFETY: only this thread has a pointer to `node`.
        Some(unsafe { Packet::from_raw(node) })
    }

    /// Whether [`take`](Self::take) would return a packet with room for `payload` bytes now.
    #[must_use]
    #[inline]
    pub fn has_room(&self, payload: u32) -> bool {
        self.out < self.allowed
            && (self.out == 0 || self.out_bytes.saturating_add(payload) <= self.allowed_bytes)
    }

    /// Returns the number of packets that are out (taken and not yet back); packets that came home
    /// since the last [`reclaim`](Self::reclaim) still count.
    #[must_use]
    pub fn out(&self) -> u32 {
        self.out
    }

    /// Returns how many of the packets that are out (taken and not yet back) were
    /// [submitted](Self::submit) by this pool's sender.
    #[must_use]
    #[inline]
    pub fn below(&self) -> u32 {
        self.below
    }

    /// Whether the sender has guests: packets of other pools, or of the heap, that were submitted
    /// through this pool and are neither sent nor dropped yet. If the result is false, the caller
    /// sees everything that other threads did with such packets.
    #[must_use]
    pub fn has_guests(&mut self) -> bool {
        self.guests.as_mut().is_some_and(|guests| Arc::get_mut(guests).is_none())
    }

    /// Notes in every packet of the list that this pool's sender submitted it at `now_ns`
    /// (nanoseconds). The packet gets the drop reason `PortDead` at once, so that the reason is
    /// right if its port dies with it. From now on, a packet of this pool counts as
    /// [below](Self::below) until the pool takes it in again. A packet of another pool, or of the
    /// heap, counts as a [guest](Self::has_guests) until it is sent or dropped.
    #[inline]
    pub fn submit(&mut self, packets: &mut PacketList, now_ns: u64) {
        let home = self.home.as_ptr().cast_const();
        self.earlier.clear();
        let mut below = self.below;
        packets.set_hints(|node| {
            below += 1;
            self.recent.hint(node, below - 1)
        });
        for (meta, tail) in packets.parts_mut() {
            let was = if tail.submitted { Before::Lent } else { Before::New };
            if tail.submitted {
                self.keep_times(meta, now_ns);
            }
            meta.enqueued_ns = now_ns;
            meta.drop_reason = Some(DropReason::PortDead);
            tail.submitted = true;
            tail.before = if !ptr::eq(tail.home, home) {
                Self::invite(&mut self.guests, tail, was)
            } else if tail.below {
                Before::Counted // The packet is counted already; a receiver submits it again.
            } else {
                (tail.below, self.below) = (true, self.below + 1);
                was
            };
        }
    }

    /// Says for which port the packets are that are submitted next, by a number that no other port
    /// of the sender has. A hint by which an owner prefetches a sender's packets then never leads
    /// to a packet of another port. Without a call, all packets count as those of one port.
    #[inline]
    pub fn toward(&mut self, port: usize) {
        self.recent.toward(port);
    }

    /// Keeps the times of a packet that a receiver submits again, and clears its departure time if
    /// that is the time at which the packet left on its first way.
    #[cold]
    fn keep_times(&mut self, meta: &mut Meta, now_ns: u64) {
        let Meta { enqueued_ns, txtime_ns, .. } = *meta;
        self.earlier.push(Times { enqueued_ns, txtime_ns });
        if txtime_ns <= now_ns {
            meta.txtime_ns = 0;
        }
    }

    #[cold]
    fn invite(guests: &mut Option<Arc<Guests>>, tail: &mut Tail, was: Before) -> Before {
        let mine = guests.get_or_insert_with(Arc::default);
        if tail.join(mine) { was } else { Before::Counted }
    }

    /// Returns an iterator over the packets of the list that the last [`submit`](Self::submit)
    /// newly counted as [below](Self::below), and lends the *tag* of each. The tag is a number that
    /// the sender may choose (0: none). When the packet has come home,
    /// [`reclaim_tagged`](Self::reclaim_tagged) reports the tag, even if another thread changed or
    /// submitted the packet meanwhile.
    pub fn counted<'a>(
        &self,
        packets: &'a mut PacketList,
    ) -> impl Iterator<Item = (&'a Meta, &'a mut u16)> {
        let home = self.home.as_ptr().cast_const();
        packets
            .parts_mut()
            .filter(move |(_, tail)| ptr::eq(tail.home, home) && tail.before != Before::Counted)
            .map(|(meta, tail)| (&*meta, &mut tail.tag))
    }

    /// Cancels all packets of this pool that carry this [tag](Self::counted) and have not left
    /// their port yet: from now on they are [cancelled](crate::Packet::is_cancelled), and their
    /// ports drop them. The cancel stands until [`end_cancel`](Self::end_cancel). `cancels` counts
    /// the cancels of the link that gets the packets; all calls for a pool must pass clones of the
    /// same one. The first call for a pool allocates 8 KiB.
    ///
    /// # Panics
    ///
    /// Panics when the tag is 0, which means that a packet has none.
    pub fn cancel(&mut self, tag: u16, cancels: &Cancels) {
        assert_ne!(tag, 0, "tag 0 means that a packet has none");
        let cancelled = self.home().cancelled.get_or_init(|| Cancelled::new(cancels.clone()));
        cancelled.add(tag);
    }

    /// Ends a [cancel](Self::cancel). Call this when the last packet with the tag has come home.
    pub fn end_cancel(&mut self, tag: u16) {
        if let Some(cancelled) = self.home().cancelled.get() {
            cancelled.remove(tag);
        }
    }

    /// Undoes the last [`submit`](Self::submit), because no port accepted its packets, and restores
    /// the state that they had before: `packets` is the same list, in the same order. So a packet
    /// that had been submitted before has the times of that submission again, and its
    /// [`Completion`] reports them. The `enqueued_ns` of any other packet becomes 0.
    #[cold]
    pub fn revoke(&mut self, packets: &mut PacketList) {
        let home = self.home.as_ptr().cast_const();
        let mut earlier = self.earlier.drain(..);
        for (meta, tail) in packets.parts_mut() {
            meta.drop_reason = None;
            meta.enqueued_ns = 0;
            tail.submitted = tail.before != Before::New;
            if tail.submitted
                && let Some(times) = earlier.next()
            {
                (meta.enqueued_ns, meta.txtime_ns) = (times.enqueued_ns, times.txtime_ns);
            }
            if tail.before == Before::Counted {
                continue;
            }
            if ptr::eq(tail.home, home) {
                (tail.below, tail.tag, self.below) = (false, 0, self.below - 1);
            } else {
                tail.part();
            }
        }
    }

    /// Makes the pool's bell, by which other threads wake the thread that waits for this pool, when
    /// something happens that brings no packet home. Returns `None` if the pool's bell already
    /// exists.
    pub fn bell(&mut self) -> Option<Bell> {
        // Relaxed: the exchange need not order other memory.
        let before = self.update(Relaxed, |word| {
            (!word.has(BELL)).then(|| word.with_flags(word.flags() | BELL))
        });
        before.map(|_| Bell::new(self.home))
    }

    /// Sets how many packets may be out (taken and not yet back) from now on: at least one, at most
    /// as many as the credits with which the pool was made.
    pub fn allow(&mut self, packets: u32) {
        self.allowed = packets.clamp(1, self.credits.packets);
    }

    /// Sets how many payload bytes may be out from now on: at most as many as the credits with
    /// which the pool was made. One packet may always be out.
    pub fn allow_bytes(&mut self, bytes: u32) {
        self.allowed_bytes = bytes.min(self.credits.bytes);
    }

    /// Returns the credits with which this pool was made.
    #[must_use]
    pub fn credits(&self) -> Credits {
        self.credits
    }

    /// Returns the number of packets that came home since the last [`reclaim`](Self::reclaim). This
    /// is a hint: other threads may return more packets at any time.
    #[must_use]
    #[inline]
    pub fn returned(&self) -> u32 {
        // Relaxed: the result is only a hint.
        self.returned_in(Word(self.home().word.0.load(Relaxed)))
    }

    /// Returns how often a thread that returned packets of this pool lost a race against another
    /// thread and had to repeat its exchange.
    #[must_use]
    #[cfg(not(loom))]
    pub fn repeated(&self) -> u64 {
        // Relaxed: the number only informs people.
        self.home().word.0.repeated.load(Relaxed)
    }

    fn returned_in(&self, word: Word) -> u32 {
        u32::from(word.count() - self.bias)
    }

    /// Takes in the packets that came home, and calls `fate` with the completion of each packet
    /// that had been submitted. Returns the number of packets that came home.
    ///
    /// If at least one packet came home, a pending wake-up request is cancelled, as by
    /// [`disarm`](Self::disarm).
    ///
    /// If `fate` panics, the pool still takes in all these packets, and the next call reports the
    /// remaining completions.
    pub fn reclaim(&mut self, mut fate: impl FnMut(Completion)) -> u32 {
        self.reclaim_tagged(|completion, _| fate(completion))
    }

    /// Takes in the packets that came home, as [`reclaim`](Self::reclaim) does, and calls `fate`
    /// with the completion and the [tag](Self::counted) of each packet that had been submitted.
    pub fn reclaim_tagged(&mut self, mut fate: impl FnMut(Completion, u16)) -> u32 {
        while let Some((completion, tag)) = self.untold.pop() {
            fate(completion, tag);
        }
        if self.returned() == 0 {
            return 0;
        }
        // Acquire: makes the returned nodes visible; pairs with the release in `put_back`.
        let order = mutant::or("pool-reclaim-acquire", Acquire, Relaxed);
        let take = |word: Word| Some(Word::flags_only(word.flags() & !WAITING));
        let taken = self.update(order, take).unwrap_or(Word::ZERO);
        let count = self.returned_in(taken);
        (self.bias, self.counts) = (0, false);
        let mut arrivals = Arrivals { pool: self, node: taken.node() };
        while let Some(completion) = arrivals.next() {
            if let Some((completion, tag)) = completion {
                fate(completion, tag);
            }
        }
        count
    }

    /// Takes back a packet of this pool that was not submitted. This needs no atomic operation
    /// unless a wake-up request is pending.
    #[inline]
    pub fn take_back(&mut self, pkt: Packet) {
        let node = pkt.into_raw();
        // SAFETY: `into_raw` returned the only pointer to a live node.
        if !ptr::eq(unsafe { Node::home(node) }, self.home.as_ptr()) {
            // SAFETY: `into_raw` returned the only pointer to the node; a packet of another pool
            // returns to its own home.
            drop(unsafe { Packet::from_raw(node) });
            return;
        }
        // SAFETY: `into_raw` returned the only pointer to the node.
        unsafe { Node::settle(node) };
        // SAFETY: `into_raw` returned the only pointer to the node.
        let (_, tail) = unsafe { Node::parts(node) };
        self.arrived(tail.charge, &mut tail.below);
        self.keep(node);
        if self.counts {
            self.count_one();
        }
    }

    /// Counts a packet that was taken back as one that came home, if a wake-up request is pending:
    /// one packet fewer will come home later.
    #[cold]
    fn count_one(&mut self) {
        let bias = self.bias;
        // The bias is of no use any more when the wake-up is due. With it, the count would overflow
        // if as many packets came home as a pool can have.
        let next = |word: Word| {
            let (count, flags) = (word.count(), word.flags());
            match count + 1 >= WAKE_AT {
                true => Word::with(word.node(), count - bias, flags ^ (WAITING | WAKING)),
                false => Word::with(word.node(), count + 1, flags),
            }
        };
        // Relaxed: if this exchange makes the wake-up due, the waker is the one that this thread
        // itself stored in `arm`.
        let before = self.update(Relaxed, |word| word.has(WAITING).then(|| next(word)));
        match before {
            Some(before) if before.count() + 1 >= WAKE_AT => {
                (self.bias, self.counts) = (0, false);
                // SAFETY: the exchange above set WAKING, so only this thread may touch the waker.
                unsafe { Home::wake(self.home.as_ptr()) };
            }
            Some(_) => self.bias += 1,
            None => {}
        }
    }

    /// Requests that `waker` be called when `need` packets (or all packets that are out, if these
    /// are fewer) have come home or were taken back since the last [`reclaim`](Self::reclaim), or
    /// when the [`Bell`] rings. This replaces an earlier request.
    pub fn arm(&mut self, waker: &Waker, need: u32) -> Armed {
        self.arm_for(waker, Some(need.min(self.out)))
    }

    /// Requests that `waker` be called when the [`Bell`] rings, however many packets come home.
    /// This replaces an earlier request.
    pub fn listen(&mut self, waker: &Waker) -> Armed {
        self.arm_for(waker, None)
    }

    fn arm_for(&mut self, waker: &Waker, need: Option<u32>) -> Armed {
        loop {
            // Acquire: pairs with the release in `wake`. So if WAKING is not set, this thread may
            // touch the waker.
            let order = mutant::or("pool-arm-acquire", Acquire, Relaxed);
            let word = Word(self.home().word.0.load(order));
            if word.has(RUNG) && !mutant::is("pool-arm-deaf") {
                // RUNG is set: the bell rang, and the ring has already cancelled the request.
                // Acquire: makes visible what happened before the ring; pairs with the release in
                // `ring`.
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
                // While WAKING is set (another thread is taking out the stored waker), the stored
                // waker has not been called yet. So if the new waker is the same, the call that is
                // coming serves the new request as well.
                return if self.armed == asks { Armed::Armed } else { Armed::Busy };
            }
            if word.has(WAITING) {
                // WAITING is set: a request is pending, and its waker may differ from the new one,
                // so cancel it first. If another thread takes the old waker out before that, the
                // old waker is still called.
                self.disarm();
                continue;
            }
            self.armed = asks;
            // SAFETY: neither WAITING nor WAKING is set, so no other thread touches the waker, and
            // only this thread sets WAITING.
            self.home().waker.with_mut(|slot| unsafe { store_waker(slot, waker) });
            // Without `need` (the request is only for the bell), the bias is zero: the count
            // reaches `WAKE_AT` only if the largest possible number of packets comes home.
            #[expect(clippy::cast_possible_truncation, reason = "at most PACKETS_MAX, like `out`")]
            let (returned, bias) = (returned as u16, need.map_or(0, |need| WAKE_AT - need as u16));
            let armed = Word::with(word.node(), returned + bias, word.flags() | WAITING);
            // Release: publishes the waker; pairs with the acquire in `put_back`.
            let order = mutant::or("pool-arm-release", Release, Relaxed);
            if self.home().word.0.compare_exchange(word.0, armed.0, order, Relaxed).is_ok() {
                (self.bias, self.counts) = (bias, need.is_some());
                return Armed::Armed;
            }
        }
    }

    /// Cancels the pending wake-up request, if there is one. A wake-up that another thread has
    /// already begun still comes.
    pub fn disarm(&mut self) {
        let bias = self.bias;
        // Relaxed: the exchange need not order other memory; `arm` loads the word again before it
        // touches the waker.
        let disarmed = self.update(Relaxed, |word| {
            let count = word.count() - bias;
            word.has(WAITING).then(|| Word::with(word.node(), count, word.flags() & !WAITING))
        });
        if disarmed.is_some() {
            (self.bias, self.counts) = (0, false);
        }
    }

    fn home(&self) -> &Home {
        // SAFETY: the pool keeps its home alive until the pool is dropped.
        unsafe { self.home.as_ref() }
    }

    /// See [`Home::update`].
    #[inline]
    fn update(&self, order: Ordering, next: impl Fn(Word) -> Option<Word>) -> Option<Word> {
        // SAFETY: the pool keeps its home alive until the pool is dropped.
        unsafe { Home::update(self.home.as_ptr(), order, next) }
    }

    /// Cancels the pending wake-up request, like [`disarm`](Self::disarm), and drops its waker.
    /// Returns false if another thread has already begun the wake-up; that thread then takes the
    /// waker out.
    pub fn forget_waker(&mut self) -> bool {
        self.disarm();
        let home = self.home();
        // Acquire: pairs with the release in `wake`. So if WAKING is not set, this thread may touch
        // the waker.
        let order = mutant::or("pool-forget-acquire", Acquire, Relaxed);
        if Word(home.word.0.load(order)).has(WAKING) && !mutant::is("pool-forget-early") {
            return false;
        }
        // SAFETY: neither WAITING nor WAKING is set, so no other thread touches the waker, and only
        // this thread sets WAITING.
        drop(home.waker.with_mut(|slot| unsafe { (*slot).take() }));
        true
    }

    /// Counts a packet of this pool as no longer out, and no longer as submitted.
    #[inline]
    fn arrived(&mut self, charge: u16, below: &mut bool) {
        self.out -= 1;
        self.out_bytes -= u32::from(charge);
        self.below -= u32::from(std::mem::take(below));
    }

    fn keep(&mut self, node: *mut Node) {
        // SAFETY: the caller owns the node.
        let capacity = unsafe { Node::capacity(node) };
        let class = CLASSES.iter().position(|&size| size == capacity).expect("the size of a class");
        // SAFETY: the caller owns the node.
        unsafe { Node::set_next(node, self.free[class]) };
        self.free[class] = node;
    }
}

/// Nodes that came home and that the pool has not taken in yet. If the closure to which completions
/// are reported panics, `drop` still takes in the remaining nodes and saves their completions in
/// `untold`.
struct Arrivals<'a> {
    pool: &'a mut Pool,
    node: *mut Node,
}

impl Arrivals<'_> {
    /// Takes the next node into the pool. Returns the completion and the tag of its packet, or
    /// `Some(None)` if the packet was not submitted, or `None` if no node is left.
    // Inlined, because the processor would wait until the result is in memory to copy it.
    #[inline]
    fn next(&mut self) -> Option<Option<(Completion, u16)>> {
        let node = self.node;
        if node.is_null() {
            return None;
        }
        // SAFETY: `reclaim` took the whole chain of returned nodes, so this thread owns the node.
        self.node = unsafe { Node::next(node) };
        Node::prefetch_write(self.node, 0);
        // SAFETY: this thread owns the node.
        let (meta, tail) = unsafe { Node::parts(node) };
        let fate = tail.submitted.then(|| (Completion::new(meta, tail.charge.into()), tail.tag));
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
        // Drop the waker here and not together with the home, because dropping a waker may run
        // arbitrary code. If another thread is taking the waker out, the pool does not wait for
        // that thread: its call of the waker later has no effect.
        self.forget_waker();
        let out = |word| self.out - self.returned_in(word);
        // SAFETY: the pool keeps its home alive until now, and closes it only here.
        let (came, is_last) = unsafe { Home::close(self.home.as_ptr(), out) };
        // SAFETY: closing the word gave the chain of returned nodes to this thread alone.
        unsafe { free_chain(came) };
        for node in self.free {
            // SAFETY: the pool owns the nodes in `free`.
            unsafe { free_chain(node) };
        }
        if is_last {
            // SAFETY: no node is out, there is no bell and no thread is taking the waker out, so
            // nobody else refers to the home.
            unsafe { Home::free(self.home.as_ptr()) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_tried_again_is_counted() {
        let pool = Pool::new(Credits { packets: 1, bytes: 1 });
        assert_eq!(pool.repeated(), 0);
        for count in 1..=3 {
            pool.home().word.0.repeats();
            assert_eq!(pool.repeated(), count);
        }
    }
}
