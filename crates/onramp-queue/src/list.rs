//! An intrusive first-in, first-out list of packets, like the kernel's `qdisc_skb_head`.

use std::marker::PhantomData;
use std::ptr;

use crate::DropReason;
use crate::meta::Meta;
use crate::mutant;
use crate::node::home::Home;
use crate::node::{Node, Tail};
use crate::packet::Packet;

/// A first-in, first-out list of packets. Its operations never allocate.
#[derive(Debug)]
pub struct PacketList {
    head: *mut Node,
    tail: *mut Node,
    packets: u32,
    bytes: u64,
}

// SAFETY: the list owns its nodes exclusively.
unsafe impl Send for PacketList {}

impl Default for PacketList {
    fn default() -> Self {
        Self::new()
    }
}

impl PacketList {
    /// Makes an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { head: ptr::null_mut(), tail: ptr::null_mut(), packets: 0, bytes: 0 }
    }

    /// Appends `pkt` as the newest packet.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub fn push_back(&mut self, pkt: Packet) {
        self.packets += 1;
        self.bytes += u64::from(pkt.len);
        let node = pkt.into_raw();
        // SAFETY: `into_raw` returned the only pointer to a live node.
        unsafe { Node::set_next(node, ptr::null_mut()) };
        if self.tail.is_null() {
            self.head = node;
        } else {
            // SAFETY: a non-null `tail` points to a node that this list owns.
            unsafe { Node::set_next(self.tail, node) };
        }
        self.tail = node;
    }

    /// Inserts `pkt` in front of the oldest packet.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub fn push_front(&mut self, pkt: Packet) {
        self.packets += 1;
        self.bytes += u64::from(pkt.len);
        let node = pkt.into_raw();
        // SAFETY: `into_raw` returned the only pointer to a live node.
        unsafe { Node::set_next(node, self.head) };
        if self.tail.is_null() {
            self.tail = node;
        }
        self.head = node;
    }

    /// Removes and returns the oldest packet; `None` if the list is empty.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub fn pop_front(&mut self) -> Option<Packet> {
        if self.head.is_null() {
            return None;
        }
        // SAFETY: a non-null `head` points to a node that this list owns; the code below unlinks
        // the node.
        let pkt = unsafe { Packet::from_raw(self.head) };
        // SAFETY: the node is alive as long as `pkt`.
        self.head = unsafe { Node::next(self.head) };
        if self.head.is_null() {
            self.tail = ptr::null_mut();
        } else {
            crate::sync::prefetch(self.head);
        }
        self.packets -= 1;
        self.bytes -= u64::from(pkt.len);
        Some(pkt)
    }

    /// Returns the oldest packet; `None` if the list is empty.
    #[must_use]
    #[inline]
    pub fn front(&self) -> Option<&Packet> {
        if self.head.is_null() {
            return None;
        }
        // SAFETY: a `Packet` is a non-null pointer to a node. `head` is such a pointer, is stored
        // in `self`, and the list owns the node while `self` is borrowed.
        Some(unsafe { &*(&raw const self.head).cast::<Packet>() })
    }

    /// Prefetches the oldest packet, which will soon be removed.
    #[inline]
    pub fn prefetch_front(&self) {
        crate::sync::prefetch(self.head);
    }

    /// Begins to prefetch the packets, the oldest first. See [`Scout`].
    #[must_use]
    #[inline]
    pub fn scout(&self) -> Scout<'_> {
        crate::sync::prefetch_write(self.head);
        Scout { node: self.head, list: PhantomData }
    }

    /// Prefetches the newest packet for writing, because a packet will soon be appended to it.
    #[inline]
    pub fn prefetch_back(&self) {
        crate::sync::prefetch_write(self.tail);
    }

    /// Returns the newest packet; `None` if the list is empty.
    #[must_use]
    #[inline]
    pub fn back(&self) -> Option<&Packet> {
        if self.tail.is_null() {
            return None;
        }
        // SAFETY: a `Packet` is a non-null pointer to a node. A non-null `tail` is such a pointer,
        // is stored in `self`, and the list owns the node while `self` is borrowed.
        Some(unsafe { &*(&raw const self.tail).cast::<Packet>() })
    }

    /// Moves all packets of `other` to the end of this list, in constant time.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub fn append(&mut self, other: &mut Self) {
        if other.is_empty() {
            return;
        }
        let other = std::mem::take(other);
        if self.tail.is_null() {
            self.head = other.head;
        } else {
            // SAFETY: a non-null `tail` points to a node that this list owns.
            unsafe { Node::set_next(self.tail, other.head) };
        }
        self.tail = other.tail;
        self.packets += other.packets;
        self.bytes += other.bytes;
        std::mem::forget(other);
    }

    /// Returns an iterator over the metadata of the packets, oldest first.
    pub fn metas(&self) -> impl Iterator<Item = &Meta> + Clone {
        let mut node = self.head;
        std::iter::from_fn(move || {
            if node.is_null() {
                return None;
            }
            // SAFETY: the list owns its nodes, and lends them read-only while `self` is borrowed.
            let meta = unsafe { Node::meta(node) };
            // SAFETY: the list owns the node, so its link may be read.
            node = unsafe { Node::next(node) };
            Some(meta)
        })
    }

    /// Returns an iterator over the metadata of the packets, oldest first, which lends the metadata
    /// for writing.
    pub fn metas_mut(&mut self) -> impl Iterator<Item = &mut Meta> {
        let mut node = self.head;
        std::iter::from_fn(move || {
            if node.is_null() {
                return None;
            }
            // SAFETY: the list owns its nodes and is borrowed exclusively; this iterator yields
            // each node once.
            let meta = unsafe { Node::meta_mut(node) };
            // SAFETY: the list owns the node. The node's link does not belong to `Meta`, which is
            // lent to the caller.
            node = unsafe { Node::next(node) };
            Some(meta)
        })
    }

    /// Sets in every packet of the list the enqueue time `now_ns` (nanoseconds), and whether a
    /// sender has submitted the packet. A submitted packet gets the drop reason
    /// [`DropReason::PortDead`], which stays unless the packet is sent or dropped for another
    /// reason; in other packets, the drop reason is cleared.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub fn stamp(&mut self, now_ns: u64, submitted: bool) {
        for (meta, tail) in self.parts_mut() {
            (meta.enqueued_ns, tail.submitted) = (now_ns, submitted);
            meta.drop_reason = submitted.then_some(DropReason::PortDead);
        }
    }

    /// Gives each packet the hint that the closure returns for the address of the packet's node.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) fn set_hints(&mut self, mut hint: impl FnMut(usize) -> usize) {
        let mut node = self.head;
        while !node.is_null() {
            // SAFETY: the list owns its nodes and is borrowed exclusively.
            unsafe { Node::set_hint(node, hint(node.addr())) };
            // SAFETY: the list owns the node.
            node = unsafe { Node::next(node) };
        }
    }

    #[inline]
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = (&mut Meta, &mut Tail)> {
        let mut node = self.head;
        std::iter::from_fn(move || {
            if node.is_null() {
                return None;
            }
            // SAFETY: the list owns its nodes and is borrowed exclusively; this iterator yields
            // each node once.
            let parts = unsafe { Node::parts(node) };
            // SAFETY: the list owns the node. The node's link belongs neither to `Meta` nor to
            // `Tail`, which are lent to the caller.
            node = unsafe { Node::next(node) };
            Some(parts)
        })
    }

    /// Reverses the list, so that the newest packet comes first. Returns the node of the oldest
    /// packet (now the last node), the node of the newest packet (now the first node) and the
    /// number of packets; `None` if the list is empty.
    ///
    /// Afterwards, the caller may link the oldest node to other nodes. It must then call
    /// [`restore`](Self::restore) or forget the list.
    #[inline]
    pub(crate) fn reverse(&mut self) -> Option<(*mut Node, *mut Node, u32)> {
        if self.packets > 1 {
            let list = std::mem::take(self);
            // SAFETY: `list` owns the chain of nodes, which ends at null; `list` is forgotten
            // below.
            *self = unsafe { Self::from_newest_first(list.head) };
            std::mem::forget(list);
        }
        (!self.head.is_null()).then_some((self.tail, self.head, self.packets))
    }

    /// Undoes [`reverse`](Self::reverse), and cuts any link that the caller added to the oldest
    /// node.
    #[inline]
    pub(crate) fn restore(&mut self) {
        if !self.tail.is_null() && !mutant::is("list-restore-linked") {
            // SAFETY: a non-null `tail` points to a node that this list owns.
            unsafe { Node::set_next(self.tail, ptr::null_mut()) };
        }
        let _ = self.reverse();
    }

    /// Returns the number of packets in the list.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        self.packets
    }

    /// Whether the list holds no packets.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Returns the sum of the wire lengths of all packets in the list, in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes a list from a chain of nodes that is linked from the newest to the oldest packet; this
    /// reverses the chain.
    ///
    /// # Safety
    ///
    /// The chain is null-terminated, and the caller owns all nodes of the chain exclusively.
    pub(crate) unsafe fn from_newest_first(newest: *mut Node) -> Self {
        let (mut list, mut next) = (Self::new(), newest);
        while !next.is_null() {
            // SAFETY: the caller owns all nodes of the chain.
            let (older, _) = unsafe { list.push_front_node(next) };
            next = older;
        }
        list
    }

    /// Moves the first node of a chain, which is linked from newer to older packets, to the front
    /// of this list. The node keeps its hint. Returns the next node of the chain, and the hint.
    ///
    /// A link in the chain may have been made for a packet that was freed before it became part of
    /// this chain; another packet was then pushed at the same address. So this function uses links
    /// only as addresses, and takes the provenance that `Node::alloc` exposed for the node that
    /// lives at the address now.
    ///
    /// # Safety
    ///
    /// `node` is not null, and the caller owns it and gives it up.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    #[expect(clippy::disallowed_methods, reason = "see above; links elsewhere are pointers")]
    pub(crate) unsafe fn push_front_node(&mut self, node: *mut Node) -> (*mut Node, *const Node) {
        // Also the pointer to the first node may have the provenance of an earlier packet:
        // `Intake::own` may have written back an address that it read when that packet lived there.
        let node: *mut Node = ptr::with_exposed_provenance_mut(node.addr());
        // SAFETY: the caller owns the node.
        let (older, hint) = unsafe { Node::turn(node, self.head) };
        crate::sync::prefetch_write(older);
        self.packets += 1;
        // SAFETY: the caller owns the node.
        self.bytes += u64::from(unsafe { Node::meta(node) }.len);
        if self.tail.is_null() {
            self.tail = node;
        }
        self.head = node;
        (older, hint)
    }
}

/// Goes through a list ahead of the thread's own work, and prefetches its packets, which another
/// processor has in its caches: 60 to 250 ns each on large machines.
///
/// Each packet tells where the next one is, so a scout that does not pause waits for one packet
/// after another. Send several scouts through several lists in turn: then the processor fetches the
/// packets of all of them at the same time.
///
/// ```
/// use onramp_queue::{Packet, PacketList};
///
/// let lists = [0, 1].map(|_| PacketList::from_iter([Packet::new(60), Packet::new(60)]));
/// let mut scouts = lists.each_ref().map(PacketList::scout);
/// let mut goes_on = true;
/// while goes_on {
///     goes_on = false;
///     for scout in &mut scouts {
///         goes_on |= scout.advance();
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Scout<'a> {
    node: *mut Node,
    list: PhantomData<&'a PacketList>,
}

impl Scout<'_> {
    /// Waits for the packet that was prefetched last, and prefetches the next one for writing.
    /// Returns false at the end of the list.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub fn advance(&mut self) -> bool {
        if self.node.is_null() {
            return false;
        }
        // SAFETY: the list owns the node, and lends it read-only while it is borrowed.
        self.node = unsafe { Node::next(self.node) };
        crate::sync::prefetch_write(self.node);
        !self.node.is_null()
    }
}

impl FromIterator<Packet> for PacketList {
    fn from_iter<I: IntoIterator<Item = Packet>>(packets: I) -> Self {
        let mut list = Self::default();
        list.extend(packets);
        list
    }
}

impl Extend<Packet> for PacketList {
    fn extend<I: IntoIterator<Item = Packet>>(&mut self, packets: I) {
        for pkt in packets {
            self.push_back(pkt);
        }
    }
}

impl Iterator for PacketList {
    type Item = Packet;
    fn next(&mut self) -> Option<Packet> {
        self.pop_front()
    }
}

/// Dropping a list returns its packets home in runs: neighbouring packets from the same pool are
/// returned by a single compare-and-swap.
impl Drop for PacketList {
    #[inline]
    fn drop(&mut self) {
        // Fast path: most dropped lists are empty.
        if !self.head.is_null() {
            // SAFETY: the list owns the chain of nodes that begins at `head`, and is not used
            // again.
            unsafe { Self::go_home(self.head) };
        }
    }
}

impl PacketList {
    /// Returns all packets of a chain to their homes (the homes of their pools, or the heap). The
    /// function takes the first node by value: a reference to the list would force the compiler to
    /// write the list to memory and read it back.
    ///
    /// # Safety
    ///
    /// The chain is null-terminated, and the caller owns it and does not use it again.
    unsafe fn go_home(mut first: *mut Node) {
        while !first.is_null() {
            // SAFETY: the caller owns every node from `first` on.
            let home = unsafe { Node::settle(first) };
            let (mut last, mut count) = (first, 1);
            // SAFETY: the caller owns `first` and the rest of the chain.
            let mut next = unsafe { Node::next(first) };
            // SAFETY: the caller owns `next`.
            while !next.is_null() && count < RUN_MAX && unsafe { Node::home(next) } == home {
                // SAFETY: the caller owns `next`.
                unsafe { Node::settle(next) };
                last = next;
                count += 1;
                // SAFETY: the caller owns `last`, which has not been returned yet.
                next = unsafe { Node::next(last) };
            }
            // SAFETY: `first..=last` is a chain of `count` nodes with the same home. The loop
            // continues at `next` and does not use the chain again.
            unsafe { Home::put_back(first, last, count) };
            first = next;
        }
    }
}

/// Largest number of packets that are returned home together. With this limit, the count of
/// returned packets in a home's word stays well below 2^16, where it would overflow.
const RUN_MAX: u16 = 1_024;
