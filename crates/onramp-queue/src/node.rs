//! Nodes: the memory of packets. A node is one allocation: a header of two cache lines, followed by
//! the payload.
//!
//! ```text
//! line 0   list link, hint, Meta        read and written by intake and qdisc
//! line 1   home, destination, lengths   read by device and sender
//! 2 ..     payload                      written once by the sender
//! ```

pub(crate) mod home;
pub(crate) mod word;

use std::alloc::{Layout, handle_alloc_error};
use std::net::SocketAddr;
use std::ptr;

use self::home::Home;
use self::word::Word;
use crate::meta::{Layer, Meta, PartialChecksum};
use crate::sync::{Arc, UnsafeCell, alloc, dealloc};

/// The bit of [`Tail::source`] that says that the device queue was chosen.
pub(crate) const CHOSEN: u16 = 1 << 15;

/// Header and payload of a packet, in one allocation.
#[repr(C, align(64))]
pub(crate) struct Node {
    /// The address of the next node of the list, or null, and the hint, in one word.
    ///
    /// The hint is the address of a node that the same sender submitted some packets earlier, as
    /// its distance from this node. In the list of an intake that node comes some steps later, so
    /// an owner that walks over the list prefetches it. Nothing else depends on a hint: the node at
    /// that address may have left the list, or have been freed.
    link: UnsafeCell<Word>,
    pub(crate) meta: Meta,
    pub(crate) tail: Tail,
}

/// The second cache line of a node's header.
pub(crate) struct Tail {
    /// The home of the pool to which the node belongs; null for a node that comes from the heap.
    pub(crate) home: *const Home,
    /// The token of the sender that submitted the packet, if the packet comes from another pool or
    /// from the heap. Each such packet (a guest of the sender) holds a clone of this `Arc`, and the
    /// sender counts its guests by counting clones. If several senders submitted the packet, this
    /// is a token of the packet's own, see [`Guests`].
    pub(crate) host: Option<Arc<Guests>>,
    pub(crate) target: Target,
    pub(crate) capacity: u16,
    /// A number by which the sender that submitted the packet recognises its completion; 0 = none.
    /// See [`Pool::counted`](crate::Pool::counted).
    pub(crate) tag: u16,
    /// Index of the device queue for the packet; 0 if nobody has chosen a queue.
    pub(crate) queue: u16,
    /// The number by which a device knows the local address that the packet leaves from; 0 leaves
    /// the choice to the system. The bit [`CHOSEN`] says whether somebody has chosen a queue.
    pub(crate) source: u16,
    pub(crate) payload_len: u16,
    /// Number of payload bytes by which the packet uses up the credits of its pool
    /// (`Credits::bytes`).
    pub(crate) charge: u16,
    pub(crate) layer: Layer,
    /// Whether a link accepted the packet, so that its fate must be reported as a completion.
    pub(crate) submitted: bool,
    /// Whether the packet was submitted by the sender that owns its pool. That sender then includes
    /// the packet in its count [`Pool::below`](crate::Pool::below).
    pub(crate) below: bool,
    /// Whether, and by whom, the packet had been submitted before the present attempt to submit it.
    pub(crate) before: Before,
}

/// What a device must know about a packet besides its bytes: a socket, where the datagram goes; a
/// device of frames, which checksum is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// The address that the device is connected to. A frame is complete.
    Connected,
    Dest(SocketAddr),
    /// The frame has a checksum that its sender left to the device.
    Checksum(PartialChecksum),
}

/// Whether, and by whom, a packet had been submitted before an attempt to submit it. A receiver may
/// submit a packet again; if that attempt is refused, the packet returns to this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Before {
    /// No sender had submitted the packet.
    New,
    /// Another sender had submitted the packet; the present sender had not.
    Lent,
    /// The present sender had already submitted the packet, and counts it already, as a packet of
    /// its own pool or as a guest.
    Counted,
}

/// Reference-counted token that a sender shares with its guests: packets of other pools, or of the
/// heap, that the sender submitted. A guest holds a clone until the guest is sent or dropped, so
/// the number of clones is the number of guests.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    /// Empty for the token of a sender. A packet that several senders submitted, one after another,
    /// holds a token of its own, with the tokens of these senders in this list, the latest last. So
    /// no token is more than one level deep, and dropping a packet needs little stack.
    senders: Vec<Arc<Self>>,
}

impl Guests {
    /// Whether a packet that holds the token `held` counts as a guest of the sender that owns the
    /// token `mine`.
    fn has(held: &Arc<Self>, mine: &Arc<Self>) -> bool {
        Arc::ptr_eq(held, mine) || held.senders.iter().any(|sender| Arc::ptr_eq(sender, mine))
    }

    /// Adds a sender to the list of the senders that submitted a packet.
    fn push(&mut self, mine: Arc<Self>) {
        if self.senders.len() == self.senders.capacity() {
            // Before the list grows, remove the senders that no longer exist: nobody but this list
            // holds their tokens. So a packet that passes many senders, of which few exist at a
            // time, needs memory for few.
            self.senders.retain_mut(|sender| Arc::get_mut(sender).is_none());
        }
        self.senders.push(mine);
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(std::mem::offset_of!(Node, tail) == 64, "link and meta fill one line");
    assert!(size_of::<Meta>() == 56, "a line without the link");
    assert!(size_of::<Node>() == 128, "the header is two lines");
};

/// Largest payload of one packet, in bytes: the limit of IP's 16-bit length field.
pub const PAYLOAD_MAX: usize = 65_535;

/// Number of payload bytes that are prefetched explicitly; the hardware prefetcher fetches the
/// rest.
const PREFETCH_MAX: u32 = 256;

/// Hints reach this far in both directions, in bytes.
const HINT_MAX: usize = 1 << 27;
/// A word has 22 bits beside the address of a node: the upper 16 and the lower 6. The distance to a
/// hint is a multiple of 64, so its lowest 6 bits are zero, and with its sign it fits 28 bits.
/// Shifted up by 36, it fills the bits 36 to 63. Rotated left by 6, its 22 bits that matter lie
/// beside the address, and the zeros lie in the address.
const HINT_SHIFT: u32 = 36;
const HINT_TURN: u32 = 6;

impl Node {
    fn layout(capacity: u16) -> Layout {
        let bytes = size_of::<Self>() + usize::from(capacity);
        Layout::from_size_align(bytes, align_of::<Self>()).expect("at most 64 KiB and a header")
    }

    /// Allocates a node for payloads of up to `capacity` bytes.
    pub(crate) fn alloc(capacity: u16, home: *const Home) -> *mut Self {
        let layout = Self::layout(capacity);
        // SAFETY: the layout is not empty, because it contains the header.
        let node = unsafe { alloc(layout) }.cast::<Self>();
        if node.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: the node was just allocated with this size and alignment, and no other thread
        // knows its address.
        unsafe { Self::init(node, capacity, home) };
        node
    }

    /// Writes the header of a node, with an empty payload.
    ///
    /// # Safety
    ///
    /// `node` is aligned, and the caller owns the bytes of a header there and `capacity` bytes
    /// behind it.
    pub(crate) unsafe fn init(node: *mut Self, capacity: u16, home: *const Home) {
        Word::assert_holds(node);
        // Expose the provenance of the pointer: `PacketList::from_newest_first` makes a pointer to
        // the node from its address.
        let _ = node.expose_provenance();
        let tail = Tail {
            home,
            host: None,
            target: Target::Connected,
            capacity,
            tag: 0,
            queue: 0,
            source: 0,
            payload_len: 0,
            charge: 0,
            layer: Layer::Datagram,
            submitted: false,
            below: false,
            before: Before::New,
        };
        let link = UnsafeCell::new(Word::ZERO);
        let fresh = Self { link, meta: Meta::default(), tail };
        crate::sync::writes(node, size_of::<Self>());
        // SAFETY: the caller owns the memory.
        unsafe { node.write(fresh) };
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
    #[cfg_attr(sim, track_caller)]
    pub(crate) unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: as the caller promises.
        unsafe { Self::link(node) }.node()
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    unsafe fn link(node: *mut Self) -> Word {
        // SAFETY: the caller owns the node, so the node is alive.
        let link = unsafe { &(*node).link };
        // SAFETY: only the owner of a node reads and writes its link.
        link.with(|word| unsafe { *word })
    }

    /// Sets the next node, and forgets the hint. Unlike [`turn`](Self::turn) it only writes, so
    /// the processor need not wait for the node's memory.
    ///
    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: as the caller promises.
        unsafe { Self::set_link(node, Word::with(next, 0, 0)) };
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    unsafe fn set_link(node: *mut Self, word: Word) {
        // SAFETY: the caller owns the node, so the node is alive.
        let link = unsafe { &(*node).link };
        // SAFETY: only the owner of a node reads and writes its link.
        link.with_mut(|slot| unsafe { *slot = word });
    }

    /// Makes the address `at` of a node the hint of this one. If it is too far away, there is none.
    ///
    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) unsafe fn set_hint(node: *mut Self, at: usize) {
        let distance = at.wrapping_sub(node.addr());
        let is_near = distance.wrapping_add(HINT_MAX) < 2 * HINT_MAX;
        let beside = if is_near { (distance << HINT_SHIFT).rotate_left(HINT_TURN) } else { 0 };
        // SAFETY: as the caller promises.
        let next = unsafe { Self::next(node) };
        // SAFETY: as the caller promises.
        unsafe { Self::set_link(node, Word::with_beside(next, beside)) };
    }

    /// Sets the next node, and keeps the hint. Returns the former next node, and the hint: without
    /// one, the address of the node itself.
    ///
    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) unsafe fn turn(node: *mut Self, next: *mut Self) -> (*mut Self, *const Self) {
        // SAFETY: as the caller promises.
        let link = unsafe { Self::link(node) };
        let beside = link.beside();
        // SAFETY: as the caller promises.
        unsafe { Self::set_link(node, Word::with_beside(next, beside)) };
        let distance = beside.rotate_right(HINT_TURN).cast_signed() >> HINT_SHIFT;
        (link.node(), node.wrapping_byte_offset(distance))
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

    /// Prefetches a node's header and the first `payload` bytes for writing.
    #[inline]
    pub(crate) fn prefetch_write(node: *mut Self, payload: u32) {
        Self::lines(node, payload).for_each(|line| crate::sync::prefetch_write(line));
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) unsafe fn home(node: *mut Self) -> *const Home {
        crate::sync::reads(node.wrapping_byte_add(64), 1);
        // SAFETY: the caller owns the node, so the node is alive; `home` never changes.
        unsafe { (*node).tail.home }
    }

    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    pub(crate) unsafe fn capacity(node: *mut Self) -> u16 {
        // SAFETY: the caller owns the node, so the node is alive; `capacity` never changes.
        unsafe { (*node).tail.capacity }
    }

    /// Resets a node so that it can hold its next packet; only the bytes in the payload buffer
    /// stay.
    ///
    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) unsafe fn renew(node: *mut Self, charge: u16) {
        // SAFETY: the caller owns the node.
        let (meta, tail) = unsafe { Self::parts(node) };
        *meta = Meta::default();
        (tail.target, tail.layer) = (Target::Connected, Layer::Datagram);
        (tail.queue, tail.source) = (0, 0);
        (tail.payload_len, tail.charge, tail.tag, tail.submitted) = (0, charge, 0, false);
        debug_assert!(tail.host.is_none() && !tail.below, "settled as it came home");
    }

    /// Removes the packet from the guests of the sender that submitted it (a guest comes from
    /// another pool or from the heap), because the packet has been sent or dropped. Returns the
    /// packet's home.
    ///
    /// # Safety
    ///
    /// The caller owns the node.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) unsafe fn settle(node: *mut Self) -> *const Home {
        crate::sync::reads(node.wrapping_byte_add(64), 1);
        // SAFETY: the caller owns the node, so the node is alive, and nobody else refers to it.
        let tail = unsafe { &mut (*node).tail };
        if tail.host.is_some() {
            tail.leave_host();
        }
        tail.home
    }

    /// # Safety
    ///
    /// The caller owns the node, and lends it read-only for `'a`.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) unsafe fn meta<'a>(node: *mut Self) -> &'a Meta {
        crate::sync::reads(node, 1);
        // SAFETY: the caller owns the node, so the node is alive, and nobody writes it for `'a`.
        unsafe { &(*node).meta }
    }

    /// # Safety
    ///
    /// The caller owns the node and keeps it for `'a`.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) unsafe fn meta_mut<'a>(node: *mut Self) -> &'a mut Meta {
        crate::sync::changes(node, 1);
        // SAFETY: the caller owns the node, so the node is alive, and nobody else refers to it.
        unsafe { &mut (*node).meta }
    }

    /// # Safety
    ///
    /// The caller owns the node and keeps it for `'a`.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) unsafe fn parts<'a>(node: *mut Self) -> (&'a mut Meta, &'a mut Tail) {
        crate::sync::changes(node, size_of::<Self>());
        // SAFETY: the caller owns the node, so the node is alive, and nobody else refers to it.
        let meta = unsafe { &mut (*node).meta };
        // SAFETY: the caller owns the node, and `tail` does not overlap `meta`.
        let tail = unsafe { &mut (*node).tail };
        (meta, tail)
    }
}

impl Tail {
    /// Makes the packet a guest of the sender that owns the token `mine`, in addition to the
    /// senders of which it already is a guest. A packet that several senders submitted holds the
    /// token of each of them once. Returns false if the packet already is a guest of this sender.
    pub(crate) fn join(&mut self, mine: &Arc<Guests>) -> bool {
        if self.host.as_ref().is_some_and(|host| Guests::has(host, mine)) {
            return false;
        }
        let mine = mine.clone();
        let Some(mut host) = self.host.take() else {
            self.host = Some(mine);
            return true;
        };
        // If nobody else holds the token, it is either the packet's own, with a list of senders, or
        // the token of a sender that no longer exists, which may become the packet's own.
        if let Some(own) = Arc::get_mut(&mut host) {
            own.push(mine);
            self.host = Some(host);
        } else {
            self.host = Some(Arc::new(Guests { senders: vec![host, mine] }));
        }
        true
    }

    /// Undoes the last [`join`](Self::join) of this packet: the packet is no longer a guest of the
    /// sender that it joined last.
    pub(crate) fn part(&mut self) {
        // A token without a list belongs to that sender.
        let own = self.host.as_mut().and_then(Arc::get_mut);
        if own.and_then(|own| own.senders.pop()).is_none() {
            self.host = None;
        }
    }

    #[cold]
    fn leave_host(&mut self) {
        self.host = None;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A hint is kept while the node goes from list to list, and leads to the same place; a place
    /// that is too far away gives none.
    #[test]
    fn hints_lead_to_places_nearby() {
        let nodes = [0; 2].map(|_| Node::alloc(128, ptr::null()));
        let [node, next] = nodes;
        let here = node.addr();
        // SAFETY: the test owns the node.
        let set_next = |to| unsafe { Node::set_next(node, to) };
        // SAFETY: the test owns the node.
        let set_hint = |at| unsafe { Node::set_hint(node, at) };
        let turn = |to| {
            // SAFETY: the test owns the node.
            let (was, hint) = unsafe { Node::turn(node, to) };
            (was, hint.addr())
        };
        let near = [64, 64_usize.wrapping_neg(), HINT_MAX.wrapping_neg(), HINT_MAX - 64, 0];
        // Under miri, nodes lie at low addresses.
        let near = near.map(|distance| here.wrapping_add(distance));
        for at in near.into_iter().chain([next.addr()]) {
            set_next(next);
            set_hint(at);
            // SAFETY: the test owns the node.
            assert_eq!(unsafe { Node::next(node) }, next);
            assert_eq!(turn(ptr::null_mut()), (next, at));
            assert_eq!(turn(next), (ptr::null_mut(), at), "it is kept");
            set_next(next);
            assert_eq!(turn(next), (next, here), "it is forgotten");
        }
        for far in [here.wrapping_sub(HINT_MAX + 64), here + HINT_MAX, here ^ (1 << 40)] {
            set_hint(far);
            assert_eq!(turn(next), (next, here), "{far:#x}");
        }
        for node in nodes {
            // SAFETY: the test owns the node.
            unsafe { Node::free(node) };
        }
    }
}
