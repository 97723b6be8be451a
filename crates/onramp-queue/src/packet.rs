//! The packet: an eight-byte owning handle to a node, so handing a packet on moves only eight
//! bytes.
//!
//! A node is one allocation: a header of two cache lines, followed by the payload.
//!
//! ```text
//! line 0   list link, Meta              read and written by intake and qdisc
//! line 1   home, destination, lengths   read by device and sender
//! 2 ..     payload                      written once by the sender
//! ```
//!
//! A node either belongs to a [`Pool`](crate::Pool) or comes directly from the heap
//! ([`Packet::new`]). When any thread drops the handle, a pool's node returns to its pool, and a
//! heap node is freed.

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use crate::DropReason;
use crate::pool::Home;
use crate::sync::{Arc, UnsafeCell, alloc, dealloc};
use crate::word::Word;

/// The fields of a packet that qdiscs read and write. `Meta` and the list link together fill one
/// cache line.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Key of the packet's flow. Every qdisc that distinguishes flows keeps the packets of one flow
    /// in order.
    pub flow: u64,
    /// Earliest departure time, in nanoseconds on the link's clock; 0 = none (`SO_TXTIME`).
    pub txtime_ns: u64,
    /// When the packet was pushed, in nanoseconds on the link's clock. `netem` overwrites the time
    /// when it passes the packet to a child qdisc.
    pub enqueued_ns: u64,
    /// A number that the sender chooses and that the packet's completion reports. Onramp never
    /// reads the cookie.
    pub cookie: u64,
    /// Pacing rate of the packet's flow, in bytes per second; 0 = not set (`SO_MAX_PACING_RATE`).
    pub pacing_rate: u64,
    /// Length on the wire in bytes, including the link header (`qdisc_pkt_len`). Do not change
    /// `len` while the packet is in a list.
    pub len: u32,
    /// Priority, as in `SO_PRIORITY` (`skb->priority`).
    pub priority: u32,
    /// Mark, as in `SO_MARK` (`skb->mark`).
    pub mark: u32,
    /// Bytes of payload in each datagram, if the payload consists of several datagrams (GSO); 0 =
    /// one datagram. A qdisc may split such a packet into its datagrams; the sender's completion
    /// then reports the fate of the last datagram.
    pub gso_size: u16,
    /// ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    pub ecn: u8,
    /// Why the packet was dropped; `None`: the packet was not dropped. From the push until the
    /// packet is sent or dropped, the reason is `PortDead`, in case the port dies with the packet.
    pub drop_reason: Option<DropReason>,
}

/// The layer at which a payload begins. Filters use the layer to find the addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// The payload begins with the data of a UDP datagram, whose destination is [`Packet::dest`].
    /// Sockets send such payloads.
    #[default]
    Datagram,
    /// The payload begins with an IPv4 or IPv6 header.
    Ip,
    /// The payload begins with an Ethernet header.
    Ethernet,
}

/// Header and payload of a packet, in one allocation.
#[repr(C, align(64))]
pub(crate) struct Node {
    next: UnsafeCell<*mut Self>,
    pub(crate) meta: Meta,
    tail: Tail,
}

/// The second cache line of the header.
pub(crate) struct Tail {
    /// The pool that the node returns to; null for a heap node.
    pub(crate) home: *const Home,
    /// The sender that submitted the packet, if the packet comes from another pool or from the
    /// heap. Each such packet (a guest of the sender) holds a clone of this `Arc`, and the sender
    /// counts its guests by counting clones.
    pub(crate) host: Option<Arc<Guests>>,
    dest: Option<SocketAddr>,
    capacity: u32,
    /// Index of the device queue for the packet; `None` if nobody has chosen a queue.
    queue: Option<u16>,
    payload_len: u16,
    /// Bytes that the pool charged for the packet.
    pub(crate) charge: u16,
    layer: Layer,
    /// Whether a link accepted the packet, so that its fate must be reported as a completion.
    pub(crate) submitted: bool,
    /// Whether the packet was submitted by the sender that owns its pool. That sender counts the
    /// packet as below itself.
    pub(crate) below: bool,
    /// The state of the packet before the current attempt to submit it.
    pub(crate) before: Before,
}

/// State of a packet before an attempt to submit it. A receiver may submit a packet again; if that
/// attempt is refused, the packet returns to the saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Before {
    /// Nobody had submitted the packet.
    New,
    /// Another sender had submitted the packet; the current sender had not.
    Lent,
    /// The current sender had already submitted the packet, and already counts it.
    Counted,
}

/// Reference-counted token that a sender shares with its guests: packets of other pools, or of the
/// heap, that the sender submitted. A guest holds a clone until the guest is sent or dropped, so
/// the number of clones is the number of guests.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    /// For a packet that a receiver sent on: the token of the sender that submitted the packet now,
    /// and the token that the packet held before.
    pub(crate) sent_on: Option<(Arc<Self>, Arc<Self>)>,
}

impl Guests {
    /// Whether a packet that holds `self` counts as a guest of the sender that owns `mine`.
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

/// Largest payload of one packet, in bytes: the limit of IP's 16-bit length field.
pub const PAYLOAD_MAX: usize = 65_535;

/// Number of payload bytes that are prefetched explicitly; the hardware prefetcher fetches the
/// rest.
const PREFETCH_MAX: u32 = 256;

impl Node {
    fn layout(capacity: u32) -> Layout {
        let bytes = size_of::<Self>() + capacity as usize;
        Layout::from_size_align(bytes, align_of::<Self>()).expect("at most 64 KiB and a header")
    }

    /// Allocates a node whose payload may grow to `capacity` bytes.
    pub(crate) fn alloc(capacity: u32, home: *const Home) -> *mut Self {
        let layout = Self::layout(capacity);
        // SAFETY: the layout is not empty, because it contains the header.
        let node = unsafe { alloc(layout) }.cast::<Self>();
        if node.is_null() {
            handle_alloc_error(layout);
        }
        Word::assert_holds(node);
        // Exposes the provenance, which `PacketList::from_newest_first` picks up again.
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
        // SAFETY: the node was just allocated with the size and alignment of `Self`, and no other
        // thread knows its address.
        unsafe { node.write(fresh) };
        node
    }

    /// # Safety
    ///
    /// The caller owns the node, which came from [`Node::alloc`], and does not use it again.
    pub(crate) unsafe fn free(node: *mut Self) {
        // SAFETY: the node is alive until `drop_in_place` below.
        let capacity = unsafe { (*node).tail.capacity };
        // SAFETY: the caller owns the node.
        unsafe { ptr::drop_in_place(node) };
        // SAFETY: `alloc` allocated the node with this layout.
        unsafe { dealloc(node.cast(), Self::layout(capacity)) };
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    pub(crate) unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: the caller owns the node, so the node is alive.
        let link = unsafe { &(*node).next };
        // SAFETY: only the owner of a node reads and writes its link.
        link.with(|next| unsafe { *next })
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    pub(crate) unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: the caller owns the node, so the node is alive.
        let link = unsafe { &(*node).next };
        // SAFETY: only the owner of a node reads and writes its link.
        link.with_mut(|slot| unsafe { *slot = next });
    }

    /// Returns the addresses of the cache lines that hold a node's header and the first `payload`
    /// bytes.
    #[inline]
    fn lines(node: *mut Self, payload: u32) -> impl Iterator<Item = *mut Self> {
        let lines = 2 + (payload.min(PREFETCH_MAX) as usize).div_ceil(64);
        (0..lines).map(move |line| node.wrapping_byte_add(line * 64))
    }

    /// Prefetches a node's header and the first `payload` bytes for reading.
    #[inline]
    pub(crate) fn prefetch(node: *mut Self, payload: u32) {
        Self::lines(node, payload).for_each(|line| crate::sync::prefetch(line));
    }

    /// Like [`prefetch`](Self::prefetch), but for writing.
    #[inline]
    pub(crate) fn prefetch_write(node: *mut Self, payload: u32) {
        Self::lines(node, payload).for_each(|line| crate::sync::prefetch_write(line));
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    pub(crate) unsafe fn home(node: *mut Self) -> *const Home {
        // SAFETY: the caller owns the node, so the node is alive; `home` never changes.
        unsafe { (*node).tail.home }
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    pub(crate) unsafe fn capacity(node: *mut Self) -> u32 {
        // SAFETY: the caller owns the node, so the node is alive; `capacity` never changes.
        unsafe { (*node).tail.capacity }
    }

    /// Resets a node for its next packet; only the payload buffer keeps its contents.
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

    /// Removes the packet from the guests of the sender that submitted it, because the packet has
    /// been sent or dropped. Returns the packet's home.
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
        // SAFETY: the caller owns the node, so the node is alive, and nobody writes it for `'a`.
        unsafe { &(*node).meta }
    }

    /// # Safety
    ///
    /// The caller owns the node and keeps it for `'a`.
    #[inline]
    pub(crate) unsafe fn parts<'a>(node: *mut Self) -> (&'a mut Meta, &'a mut Tail) {
        // SAFETY: the caller owns the node, so the node is alive, and nobody else refers to it.
        let meta = unsafe { &mut (*node).meta };
        // SAFETY: the caller owns the node, and `tail` does not overlap `meta`.
        let tail = unsafe { &mut (*node).tail };
        (meta, tail)
    }
}

impl Tail {
    /// Makes the packet count as a guest of the sender that owns `mine`, in addition to the senders
    /// that it already counts for. A packet that several senders sent on holds the token of each of
    /// them once. Returns false if the packet already counts for this sender.
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

    /// Undoes the last [`join`](Self::join).
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

/// An owned packet: a handle that is one pointer wide.
#[repr(transparent)]
pub struct Packet(NonNull<Node>);

// A `Packet` is one non-null pointer, so `Option<Packet>` needs no extra space.
const _: () = assert!(size_of::<Option<Packet>>() == size_of::<usize>());

impl Packet {
    /// Makes a heap packet of `len` bytes on the wire, without a payload.
    ///
    /// Use it when you keep the payload in your own buffers: store the buffer's number in
    /// [`Meta::cookie`].
    #[must_use]
    pub fn new(len: u32) -> Self {
        let mut pkt = Self::with_capacity(0);
        pkt.len = len;
        pkt
    }

    /// Makes a heap packet that carries a copy of `payload`. Its length on the wire is the length
    /// of the payload; the caller may change [`Meta::len`] afterwards.
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

    /// Copies the packet into a new heap packet. The copy counts as not accepted by any link, so
    /// its fate is not reported as a completion.
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
        // SAFETY: `alloc` never returns null, and nobody else has the node.
        unsafe { Self::from_raw(node) }
    }

    /// Returns the payload.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let len = usize::from(self.tail().payload_len);
        // SAFETY: `payload_len <= capacity`, so reads through the pointer stay in the allocation.
        let start = unsafe { self.payload_start() };
        // SAFETY: `set_payload` wrote the first `payload_len` bytes, and `self` stays borrowed as
        // long as the slice.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Returns the payloads of the packet's datagrams, in order: one datagram, unless
    /// [`Meta::gso_size`] splits the payload into several.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let payload = self.payload();
        let size = match self.gso_size {
            0 => payload.len(),
            size => size.into(),
        };
        // `chunks` yields nothing for an empty payload, but an empty payload is one empty datagram.
        let empty = payload.is_empty().then_some(&[][..]);
        payload.chunks(size.max(1)).chain(empty)
    }

    /// Copies `payload` into the packet as the bytes to send.
    ///
    /// # Panics
    ///
    /// Panics when `payload` does not fit the packet's buffer: see [`Packet::capacity`].
    #[inline]
    pub fn set_payload(&mut self, payload: &[u8]) {
        assert!(payload.len() <= self.capacity(), "the payload fits the packet's buffer");
        // SAFETY: the payload starts inside the allocation, or at its end if the capacity is zero.
        let start = unsafe { self.payload_start() }.cast_mut();
        // SAFETY: the `capacity` bytes from `start` belong to this packet alone; the source is
        // another object.
        unsafe { ptr::copy_nonoverlapping(payload.as_ptr(), start, payload.len()) };
        #[expect(clippy::cast_possible_truncation, reason = "at most `PAYLOAD_MAX`, a u16")]
        let len = payload.len() as u16;
        self.tail_mut().payload_len = len;
    }

    /// Returns the largest payload that fits the packet's buffer, in bytes.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.tail().capacity as usize
    }

    /// Returns the destination; `None`: the address that the device is connected to.
    #[must_use]
    #[inline]
    pub fn dest(&self) -> Option<SocketAddr> {
        self.tail().dest
    }

    /// Sets the destination; `None`: the address that the device is connected to.
    #[inline]
    pub fn set_dest(&mut self, dest: Option<SocketAddr>) {
        self.tail_mut().dest = dest;
    }

    /// Returns the layer at which the payload begins.
    #[must_use]
    #[inline]
    pub fn layer(&self) -> Layer {
        self.tail().layer
    }

    /// Sets the layer at which the payload begins. Devices that send datagrams send the payload
    /// unchanged, whatever its layer.
    #[inline]
    pub fn set_layer(&mut self, layer: Layer) {
        self.tail_mut().layer = layer;
    }

    /// Returns the index of the device queue for this packet (`skb->queue_mapping`), or 0 if nobody
    /// has chosen a queue.
    #[must_use]
    #[inline]
    pub fn queue(&self) -> u16 {
        self.tail().queue.unwrap_or(0)
    }

    /// Returns the index of the device queue for this packet; `None` if nobody has chosen a queue.
    #[must_use]
    #[inline]
    pub fn chosen_queue(&self) -> Option<u16> {
        self.tail().queue
    }

    /// Chooses the device queue for this packet.
    #[inline]
    pub fn set_queue(&mut self, queue: u16) {
        self.tail_mut().queue = Some(queue);
    }

    /// Sets whether a link accepted the packet. Only an accepted packet yields a completion when it
    /// returns home.
    #[inline]
    pub fn set_submitted(&mut self, submitted: bool) {
        self.tail_mut().submitted = submitted;
    }

    /// # Safety
    ///
    /// The caller reads at most `capacity` bytes through the returned pointer.
    #[inline]
    unsafe fn payload_start(&self) -> *const u8 {
        // SAFETY: the payload directly follows the header in the same allocation.
        unsafe { self.0.as_ptr().cast::<u8>().add(size_of::<Node>()) }
    }

    #[inline]
    fn tail(&self) -> &Tail {
        // SAFETY: the handle owns the node, so the node is alive, and only `self` refers to it.
        unsafe { &(*self.0.as_ptr()).tail }
    }

    #[inline]
    fn tail_mut(&mut self) -> &mut Tail {
        // SAFETY: the handle owns the node, and `self` is borrowed exclusively.
        unsafe { &mut (*self.0.as_ptr()).tail }
    }

    /// Prefetches the parts of the packet that a device reads: the header and the payload.
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
        // SAFETY: neither `into_raw` nor `alloc` returns null.
        Self(unsafe { NonNull::new_unchecked(raw) })
    }
}

// SAFETY: a `Packet` owns its node; nothing in the node is bound to a thread, and any thread may
// use a `Home`.
unsafe impl Send for Packet {}

// SAFETY: a `&Packet` only reads the node.
unsafe impl Sync for Packet {}

impl Drop for Packet {
    fn drop(&mut self) {
        let node = self.0.as_ptr();
        // SAFETY: the handle owns the node.
        unsafe { Node::settle(node) };
        // SAFETY: the handle owns the node and is not used again.
        unsafe { Home::put_back(node, node, 1) };
    }
}

impl Deref for Packet {
    type Target = Meta;
    #[inline]
    fn deref(&self) -> &Meta {
        // SAFETY: the handle owns the node, so the node is alive, and only `self` refers to it.
        unsafe { &(*self.0.as_ptr()).meta }
    }
}

impl DerefMut for Packet {
    #[inline]
    fn deref_mut(&mut self) -> &mut Meta {
        // SAFETY: the handle owns the node, and `self` is borrowed exclusively.
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
