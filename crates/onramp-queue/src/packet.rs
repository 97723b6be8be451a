//! The packet: an eight-byte owning handle to a node, so a hop moves eight bytes.
//!
//! A node is two cache lines of header and its payload behind them, in one allocation:
//!
//! ```text
//! line 0   list link, Meta              what intake and qdisc read and write
//! line 1   home, destination, lengths   what device and sender read
//! 2 ..     payload                      written once by the sender
//! ```
//!
//! A node belongs to a [`Pool`](crate::Pool), and goes home to it when its handle is dropped, by
//! any thread; or to the heap alone ([`Packet::new`]).

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use crate::DropReason;
use crate::pool::Home;
use crate::sync::{Arc, UnsafeCell, alloc, dealloc};
use crate::word::Word;

/// What the scheduler reads and writes; with the list link it fills one cache line.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Key of the flow. Packets of one flow keep their order in every qdisc that knows flows.
    pub flow: u64,
    /// Earliest departure time, nanoseconds on the link's clock; 0 = none (`SO_TXTIME`).
    pub txtime_ns: u64,
    /// When the packet was pushed, nanoseconds on the link's clock; or when a `netem` let it go to
    /// a qdisc below.
    pub enqueued_ns: u64,
    /// The sender's own word: comes back in completions. Never read by Onramp.
    pub cookie: u64,
    /// The flow's pacing rate, bytes per second; 0 = not set (`SO_MAX_PACING_RATE`).
    pub pacing_rate: u64,
    /// Length on the wire, bytes, link header included (`qdisc_pkt_len`). Do not change it while
    /// the packet is in a list.
    pub len: u32,
    /// Priority, as in `SO_PRIORITY` (`skb->priority`).
    pub priority: u32,
    /// Mark, as in `SO_MARK` (`skb->mark`).
    pub mark: u32,
    /// Bytes of payload in each datagram, if the payload is several of them (GSO); 0 = one
    /// datagram. A qdisc may take such a packet apart; what becomes of the last datagram is what
    /// its sender learns.
    pub gso_size: u16,
    /// ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    pub ecn: u8,
    /// Set once, at the drop.
    pub drop_reason: Option<DropReason>,
}

/// What a payload begins with: where filters look for addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// With the data of a UDP datagram, to where [`Packet::dest`] says: what sockets send.
    #[default]
    Datagram,
    /// With an IP header, of either version.
    Ip,
    /// With an Ethernet header.
    Ethernet,
}

/// Header and payload of a packet, in one allocation.
#[repr(C, align(64))]
pub(crate) struct Node {
    next: UnsafeCell<*mut Self>,
    pub(crate) meta: Meta,
    tail: Tail,
}

/// The second line.
pub(crate) struct Tail {
    /// The pool to go back to; null: the heap.
    pub(crate) home: *const Home,
    /// The sender that submitted the packet, unless the packet is of that sender's own pool. The
    /// sender counts its guests by the clones of this.
    pub(crate) host: Option<Arc<Guests>>,
    dest: Option<SocketAddr>,
    capacity: u32,
    /// Which of the device's queues, if anybody has said so.
    queue: Option<u16>,
    payload_len: u16,
    /// What the pool charged for the packet, bytes.
    pub(crate) charge: u16,
    layer: Layer,
    /// Accepted by a link: its fate is a completion.
    pub(crate) submitted: bool,
    /// Accepted from the sender whose pool the packet is of, which counts it as below itself.
    pub(crate) below: bool,
    /// What the packet was before the present attempt to submit it.
    pub(crate) before: Before,
}

/// A packet that a receiver has may be submitted once more, and refused: then it is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Before {
    /// Nobody had submitted it.
    New,
    /// Somebody had; not the one who does now.
    Lent,
    /// The one who does now had: it counts there.
    Counted,
}

/// What a sender and the packets of others that it submitted hold together: as long as a packet
/// holds it, the packet is neither sent nor dropped. Its clones are the count.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    /// For a packet that a receiver sent on: what the sender holds that submitted it now, and what
    /// the packet held before.
    pub(crate) sent_on: Option<(Arc<Self>, Arc<Self>)>,
}

impl Guests {
    /// Whether a packet that holds `self` counts for the sender of `mine`.
    fn has(&self, mine: &Arc<Self>) -> bool {
        let mut held = self;
        loop {
            if ptr::eq(held, &raw const **mine) {
                return true;
            }
            match &held.sent_on {
                Some((now, _)) if Arc::ptr_eq(now, mine) => return true,
                Some((_, before)) => held = before,
                None => return false,
            }
        }
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(std::mem::offset_of!(Node, tail) == 64, "link and meta fill one line");
    assert!(size_of::<Node>() == 128, "the header is two lines");
};

/// Largest payload of one packet, bytes: what IP's 16-bit length allows.
pub const PAYLOAD_MAX: usize = 65_535;

/// Bytes of payload worth a prefetch; the hardware follows by itself.
const PREFETCH_MAX: u32 = 256;

impl Node {
    fn layout(capacity: u32) -> Layout {
        let bytes = size_of::<Self>() + capacity as usize;
        Layout::from_size_align(bytes, align_of::<Self>()).expect("at most 64 KiB and a header")
    }

    /// Allocates a node whose payload may grow to `capacity` bytes.
    pub(crate) fn alloc(capacity: u32, home: *const Home) -> *mut Self {
        let layout = Self::layout(capacity);
        // SAFETY: the layout is not empty, it holds the header.
        let node = unsafe { alloc(layout) }.cast::<Self>();
        if node.is_null() {
            handle_alloc_error(layout);
        }
        Word::assert_holds(node);
        // For `PacketList::from_newest_first`.
        let _ = node.expose_provenance();
        let tail = Tail {
            home,
            host: None,
            dest: None,
            capacity,
            queue: None,
            payload_len: 0,
            charge: 0,
            layer: Layer::Datagram,
            submitted: false,
            below: false,
            before: Before::New,
        };
        let fresh = Self { next: UnsafeCell::new(ptr::null_mut()), meta: Meta::default(), tail };
        // SAFETY: just allocated with this type's size and alignment, and ours alone.
        unsafe { node.write(fresh) };
        node
    }

    /// # Safety
    ///
    /// The caller owns the node, which came from [`Node::alloc`], and does not use it again.
    pub(crate) unsafe fn free(node: *mut Self) {
        // SAFETY: alive until the next lines.
        let capacity = unsafe { (*node).tail.capacity };
        // SAFETY: owned by the caller.
        unsafe { ptr::drop_in_place(node) };
        // SAFETY: allocated with this layout.
        unsafe { dealloc(node.cast(), Self::layout(capacity)) };
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    pub(crate) unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: an owned node is alive.
        let link = unsafe { &(*node).next };
        // SAFETY: the owner alone reads and writes the link.
        link.with(|next| unsafe { *next })
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    pub(crate) unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: an owned node is alive.
        let link = unsafe { &(*node).next };
        // SAFETY: the owner alone reads and writes the link.
        link.with_mut(|slot| unsafe { *slot = next });
    }

    /// The lines of the header and of the first `payload` bytes of a node.
    #[inline]
    fn lines(node: *mut Self, payload: u32) -> impl Iterator<Item = *mut Self> {
        let lines = 2 + (payload.min(PREFETCH_MAX) as usize).div_ceil(64);
        (0..lines).map(move |line| node.wrapping_byte_add(line * 64))
    }

    /// Asks the processor for the header and the first `payload` bytes of a node, to read them.
    #[inline]
    pub(crate) fn prefetch(node: *mut Self, payload: u32) {
        Self::lines(node, payload).for_each(|line| crate::sync::prefetch(line));
    }

    /// As [`prefetch`](Self::prefetch), to write them.
    #[inline]
    pub(crate) fn prefetch_write(node: *mut Self, payload: u32) {
        Self::lines(node, payload).for_each(|line| crate::sync::prefetch_write(line));
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    pub(crate) unsafe fn home(node: *mut Self) -> *const Home {
        // SAFETY: an owned node is alive, and `home` never changes.
        unsafe { (*node).tail.home }
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    pub(crate) unsafe fn capacity(node: *mut Self) -> u32 {
        // SAFETY: an owned node is alive, and `capacity` never changes.
        unsafe { (*node).tail.capacity }
    }

    /// Makes the node as good as new: nothing of its last packet is left, but its buffer.
    ///
    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    pub(crate) unsafe fn renew(node: *mut Self, charge: u16) {
        // SAFETY: the caller owns the node.
        let (meta, tail) = unsafe { Self::parts(node) };
        *meta = Meta::default();
        (tail.dest, tail.queue, tail.layer) = (None, None, Layer::Datagram);
        (tail.payload_len, tail.charge, tail.submitted) = (0, charge, false);
        debug_assert!(tail.host.is_none() && !tail.below, "settled as it came home");
    }

    /// The sender that submitted a packet of others counts it no longer: the packet is done with.
    /// Gives the packet's home.
    ///
    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    pub(crate) unsafe fn settle(node: *mut Self) -> *const Home {
        // SAFETY: the caller owns the node.
        let (_, tail) = unsafe { Self::parts(node) };
        if tail.host.is_some() {
            tail.leave_host();
        }
        tail.home
    }

    /// # Safety
    ///
    /// The caller owns the node, and lends it read-only for `'a`.
    #[inline]
    pub(crate) unsafe fn meta<'a>(node: *mut Self) -> &'a Meta {
        // SAFETY: owned, hence alive; not written for `'a`.
        unsafe { &(*node).meta }
    }

    /// # Safety
    ///
    /// The caller owns the node and keeps it for `'a`.
    #[inline]
    pub(crate) unsafe fn parts<'a>(node: *mut Self) -> (&'a mut Meta, &'a mut Tail) {
        // SAFETY: owned, hence alive and unaliased.
        let meta = unsafe { &mut (*node).meta };
        // SAFETY: as above, and another field.
        let tail = unsafe { &mut (*node).tail };
        (meta, tail)
    }
}

impl Tail {
    /// The packet counts for the sender of `mine` from now on, and where it did before. As many
    /// senders as sent it on are noted, each once. False: it counts there already.
    pub(crate) fn join(&mut self, mine: &Arc<Guests>) -> bool {
        if self.host.as_ref().is_some_and(|host| host.has(mine)) {
            return false;
        }
        let mine = mine.clone();
        self.host = Some(match self.host.take() {
            Some(before) => Arc::new(Guests { sent_on: Some((mine, before)) }),
            None => mine,
        });
        true
    }

    /// Takes the last [`join`](Self::join) back.
    pub(crate) fn part(&mut self) {
        let host = self.host.take();
        let sent_on = host.as_ref().and_then(|host| host.sent_on.as_ref());
        self.host = sent_on.map(|(_, before)| before.clone());
    }

    #[cold]
    fn leave_host(&mut self) {
        self.host = None;
    }
}

/// An owned packet.
#[repr(transparent)]
pub struct Packet(NonNull<Node>);

// One pointer, and a null niche: `Option<Packet>` costs nothing.
const _: () = assert!(size_of::<Option<Packet>>() == size_of::<usize>());

impl Packet {
    /// Makes a packet of `len` bytes on the wire and no payload, from the heap.
    ///
    /// For callers that keep their own buffers: say which in [`Meta::cookie`].
    #[must_use]
    pub fn new(len: u32) -> Self {
        let mut pkt = Self::with_capacity(0);
        pkt.len = len;
        pkt
    }

    /// Makes a packet that carries a copy of `payload`, from the heap. Its length on the wire is
    /// that of the payload until the caller says otherwise.
    ///
    /// # Panics
    ///
    /// Panics when the payload is larger than [`PAYLOAD_MAX`].
    #[must_use]
    pub fn with_payload(payload: &[u8]) -> Self {
        assert!(payload.len() <= PAYLOAD_MAX, "a payload has at most {PAYLOAD_MAX} bytes");
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        let len = payload.len() as u32;
        let mut pkt = Self::with_capacity(len);
        pkt.set_payload(payload);
        pkt.len = len;
        pkt
    }

    /// Makes a packet of the same contents, from the heap. No link has accepted it: what becomes
    /// of it is no completion.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let mut copy = Self::with_payload(self.payload());
        copy.set_dest(self.dest());
        copy.set_layer(self.layer());
        copy.tail_mut().queue = self.chosen_queue();
        *copy = Meta::clone(self);
        copy
    }

    fn with_capacity(capacity: u32) -> Self {
        let node = Node::alloc(capacity, ptr::null());
        // SAFETY: `alloc` never yields null, and nobody else has the node.
        unsafe { Self::from_raw(node) }
    }

    /// The bytes to send.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let len = usize::from(self.tail().payload_len);
        // SAFETY: `payload_len <= capacity`, so the pointer stays in the allocation.
        let start = unsafe { self.payload_start() };
        // SAFETY: the first `payload_len` bytes were written by `set_payload`, and are borrowed
        // through `self`.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// The payloads of its datagrams, in order: one, unless [`Meta::gso_size`] says otherwise.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let payload = self.payload();
        let size = match self.gso_size {
            0 => payload.len(),
            size => size.into(),
        };
        // An empty payload is one empty datagram.
        let empty = payload.is_empty().then_some(&[][..]);
        payload.chunks(size.max(1)).chain(empty)
    }

    /// Copies the bytes to send into the packet.
    ///
    /// # Panics
    ///
    /// Panics when they do not fit: see [`Packet::capacity`].
    #[inline]
    pub fn set_payload(&mut self, payload: &[u8]) {
        assert!(payload.len() <= self.capacity(), "the payload fits the packet's buffer");
        // SAFETY: the start of the payload lies in the allocation, also of an empty one.
        let start = unsafe { self.payload_start() }.cast_mut();
        // SAFETY: `capacity` bytes from `start` are ours alone; the source is another object.
        unsafe { ptr::copy_nonoverlapping(payload.as_ptr(), start, payload.len()) };
        #[expect(clippy::cast_possible_truncation, reason = "at most `PAYLOAD_MAX`, a u16")]
        let len = payload.len() as u16;
        self.tail_mut().payload_len = len;
    }

    /// Bytes of payload it can carry.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.tail().capacity as usize
    }

    /// Where to; `None`: where the device is connected to.
    #[must_use]
    #[inline]
    pub fn dest(&self) -> Option<SocketAddr> {
        self.tail().dest
    }

    /// Says where to.
    #[inline]
    pub fn set_dest(&mut self, dest: Option<SocketAddr>) {
        self.tail_mut().dest = dest;
    }

    /// What the payload begins with.
    #[must_use]
    #[inline]
    pub fn layer(&self) -> Layer {
        self.tail().layer
    }

    /// Says what the payload begins with. Devices that send datagrams send it as it is.
    #[inline]
    pub fn set_layer(&mut self, layer: Layer) {
        self.tail_mut().layer = layer;
    }

    /// Which of the device's queues it is for (`skb->queue_mapping`); 0 if nobody has said so.
    #[must_use]
    #[inline]
    pub fn queue(&self) -> u16 {
        self.tail().queue.unwrap_or(0)
    }

    /// Which of the device's queues it is for, if anybody has said so.
    #[must_use]
    #[inline]
    pub fn chosen_queue(&self) -> Option<u16> {
        self.tail().queue
    }

    /// Says which of the device's queues it is for.
    #[inline]
    pub fn set_queue(&mut self, queue: u16) {
        self.tail_mut().queue = Some(queue);
    }

    /// Notes whether a link accepted it: only then its way home counts as a completion.
    #[inline]
    pub fn set_submitted(&mut self, submitted: bool) {
        self.tail_mut().submitted = submitted;
    }

    /// # Safety
    ///
    /// Read at most `capacity` bytes through it.
    #[inline]
    unsafe fn payload_start(&self) -> *const u8 {
        // SAFETY: the payload lies right behind the header, in the same allocation.
        unsafe { self.0.as_ptr().cast::<u8>().add(size_of::<Node>()) }
    }

    #[inline]
    fn tail(&self) -> &Tail {
        // SAFETY: owned, hence valid and unaliased but through `self`.
        unsafe { &(*self.0.as_ptr()).tail }
    }

    #[inline]
    fn tail_mut(&mut self) -> &mut Tail {
        // SAFETY: owned, and borrowed exclusively through `self`.
        unsafe { &mut (*self.0.as_ptr()).tail }
    }

    /// Asks the processor for what a device reads: the header's second line and the payload.
    #[inline]
    pub fn prefetch(&self) {
        Node::prefetch(self.0.as_ptr(), self.len);
    }

    #[inline]
    pub(crate) fn into_raw(self) -> *mut Node {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }

    /// # Safety
    ///
    /// `raw` came from [`Packet::into_raw`] or [`Node::alloc`], and nobody else owns it.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: *mut Node) -> Self {
        // SAFETY: neither source yields null.
        Self(unsafe { NonNull::new_unchecked(raw) })
    }
}

// SAFETY: a `Packet` owns its node; nothing in it is thread-bound, and `Home` is made to be
// reached from any thread.
unsafe impl Send for Packet {}

// SAFETY: through `&Packet` the node is only read.
unsafe impl Sync for Packet {}

impl Drop for Packet {
    fn drop(&mut self) {
        let node = self.0.as_ptr();
        // SAFETY: the handle owns the node.
        unsafe { Node::settle(node) };
        // SAFETY: as above, and the handle is not used again.
        unsafe { Home::put_back(node, node, 1) };
    }
}

impl Deref for Packet {
    type Target = Meta;
    #[inline]
    fn deref(&self) -> &Meta {
        // SAFETY: owned, hence valid and unaliased but through `self`.
        unsafe { &(*self.0.as_ptr()).meta }
    }
}

impl DerefMut for Packet {
    #[inline]
    fn deref_mut(&mut self) -> &mut Meta {
        // SAFETY: owned, and borrowed exclusively through `self`.
        unsafe { &mut (*self.0.as_ptr()).meta }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dest, payload) = (self.dest(), self.payload().len());
        let meta: &Meta = self;
        f.debug_struct("Packet")
            .field("meta", meta)
            .field("dest", &dest)
            .field("payload", &payload)
            .finish()
    }
}
