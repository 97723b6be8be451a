//! An intrusive FIFO of packets (the kernel's `qdisc_skb_head`).

use std::ptr;

use crate::DropReason;
use crate::mutant;
use crate::packet::{Meta, Node, Packet, Tail};
use crate::pool::Home;

/// A first-in, first-out list. Never allocates.
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
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { head: ptr::null_mut(), tail: ptr::null_mut(), packets: 0, bytes: 0 }
    }

    /// Appends `pkt`.
    #[inline]
    pub fn push_back(&mut self, pkt: Packet) {
        self.packets += 1;
        self.bytes += u64::from(pkt.len);
        let node = pkt.into_raw();
        // SAFETY: `into_raw` gave us the only pointer to a live node.
        unsafe { Node::set_next(node, ptr::null_mut()) };
        if self.tail.is_null() {
            self.head = node;
        } else {
            // SAFETY: a non-null tail is a node this list owns.
            unsafe { Node::set_next(self.tail, node) };
        }
        self.tail = node;
    }

    /// Puts `pkt` at the head.
    #[inline]
    pub fn push_front(&mut self, pkt: Packet) {
        self.packets += 1;
        self.bytes += u64::from(pkt.len);
        let node = pkt.into_raw();
        // SAFETY: as in `push_back`.
        unsafe { Node::set_next(node, self.head) };
        if self.tail.is_null() {
            self.tail = node;
        }
        self.head = node;
    }

    /// Removes the oldest packet.
    #[inline]
    pub fn pop_front(&mut self) -> Option<Packet> {
        if self.head.is_null() {
            return None;
        }
        // SAFETY: a non-null head is a node this list owns, and we unlink it below.
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

    /// The oldest packet.
    #[must_use]
    #[inline]
    pub fn front(&self) -> Option<&Packet> {
        if self.head.is_null() {
            return None;
        }
        // SAFETY: a `Packet` is a non-null pointer to a node; `head` is one, lives in `self`, and
        // the list owns the node as long as `self` is borrowed.
        Some(unsafe { &*(&raw const self.head).cast::<Packet>() })
    }

    /// Asks the processor for the oldest packet, which is about to leave.
    #[inline]
    pub fn prefetch_front(&self) {
        crate::sync::prefetch(self.head);
    }

    /// Asks the processor for the newest packet, behind which another is about to come.
    #[inline]
    pub fn prefetch_back(&self) {
        crate::sync::prefetch_write(self.tail);
    }

    /// The newest packet.
    #[must_use]
    #[inline]
    pub fn back(&self) -> Option<&Packet> {
        if self.tail.is_null() {
            return None;
        }
        // SAFETY: as in `front`.
        Some(unsafe { &*(&raw const self.tail).cast::<Packet>() })
    }

    /// Moves all of `other` behind the newest packet. O(1).
    #[inline]
    pub fn append(&mut self, other: &mut Self) {
        if other.is_empty() {
            return;
        }
        let other = std::mem::take(other);
        if self.tail.is_null() {
            self.head = other.head;
        } else {
            // SAFETY: a non-null tail is a node this list owns.
            unsafe { Node::set_next(self.tail, other.head) };
        }
        self.tail = other.tail;
        self.packets += other.packets;
        self.bytes += other.bytes;
        std::mem::forget(other);
    }

    /// Visits what the scheduler knows of each packet, oldest first.
    pub fn metas(&self) -> impl Iterator<Item = &Meta> + Clone {
        let mut node = self.head;
        std::iter::from_fn(move || {
            if node.is_null() {
                return None;
            }
            // SAFETY: the list owns its nodes while `self` is borrowed, and lends them read-only.
            let meta = unsafe { Node::meta(node) };
            // SAFETY: as above.
            node = unsafe { Node::next(node) };
            Some(meta)
        })
    }

    /// As [`metas`](Self::metas), to change.
    pub fn metas_mut(&mut self) -> impl Iterator<Item = &mut Meta> {
        self.parts_mut().map(|(meta, _)| meta)
    }

    /// Notes in every packet that it was submitted at `now_ns`, and, until somebody sends or drops
    /// it, that it went down with its port. Or takes that back.
    #[inline]
    pub fn stamp(&mut self, now_ns: u64, submitted: bool) {
        for (meta, tail) in self.parts_mut() {
            (meta.enqueued_ns, tail.submitted) = (now_ns, submitted);
            meta.drop_reason = submitted.then_some(DropReason::PortDead);
        }
    }

    #[inline]
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = (&mut Meta, &mut Tail)> {
        let mut node = self.head;
        std::iter::from_fn(move || {
            if node.is_null() {
                return None;
            }
            // SAFETY: the list owns its nodes, and is borrowed exclusively; each comes once.
            let parts = unsafe { Node::parts(node) };
            // SAFETY: as above; the link is in neither part.
            node = unsafe { Node::next(node) };
            Some(parts)
        })
    }

    /// Turns the list around, newest first, and gives its oldest node (now the last), its newest
    /// (now the first) and its length; `None` when it is empty.
    ///
    /// The caller may then link the oldest node to others, and has to call
    /// [`restore`](Self::restore) or to forget the list.
    #[inline]
    pub(crate) fn reverse(&mut self) -> Option<(*mut Node, *mut Node, u32)> {
        if self.packets > 1 {
            let list = std::mem::take(self);
            // SAFETY: the list owns the chain, which ends at null, and forgets it here.
            *self = unsafe { Self::from_newest_first(list.head) };
            std::mem::forget(list);
        }
        (!self.head.is_null()).then_some((self.tail, self.head, self.packets))
    }

    /// Undoes [`reverse`](Self::reverse), and what the caller linked the oldest node to.
    #[inline]
    pub(crate) fn restore(&mut self) {
        if !self.tail.is_null() && !mutant::is("list-restore-linked") {
            // SAFETY: a non-null tail is a node this list owns.
            unsafe { Node::set_next(self.tail, ptr::null_mut()) };
        }
        let _ = self.reverse();
    }

    /// Packets held.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        self.packets
    }

    /// True when nothing is held.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Wire bytes held.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adopts a newest-first chain, reversing it.
    ///
    /// A link in it may have been made for a packet that died before another was pushed at its
    /// address. So links count as addresses here, whose provenance is that which `Node::alloc`
    /// exposed for what lives there now.
    ///
    /// # Safety
    ///
    /// The chain is null-terminated and exclusively owned by the caller.
    #[expect(clippy::disallowed_methods, reason = "see above; links elsewhere are pointers")]
    pub(crate) unsafe fn from_newest_first(mut node: *mut Node) -> Self {
        let mut list = Self::default();
        // The head too: `Intake::own` may have written back an address that it read in an earlier
        // life of the node.
        node = ptr::with_exposed_provenance_mut(node.addr());
        while !node.is_null() {
            // SAFETY: the caller owns every node of the chain.
            let link = unsafe { Node::next(node) };
            let older: *mut Node = ptr::with_exposed_provenance_mut(link.addr());
            crate::sync::prefetch_write(older);
            // SAFETY: as above; `node` leaves the chain here.
            list.push_front(unsafe { Packet::from_raw(node) });
            node = older;
        }
        list
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

/// Packets go home in runs: one compare-and-swap for neighbours of the same sender.
impl Drop for PacketList {
    #[inline]
    fn drop(&mut self) {
        // Most lists that are dropped are empty.
        if !self.head.is_null() {
            // SAFETY: the list owns the chain, and ends here.
            unsafe { Self::go_home(self.head) };
        }
    }
}

impl PacketList {
    /// Brings all packets of a chain home. By value: a list whose address somebody wants would have
    /// to be written to memory, and read again at once.
    ///
    /// # Safety
    ///
    /// The chain is null-terminated, and the caller owns it and does not use it again.
    unsafe fn go_home(mut first: *mut Node) {
        while !first.is_null() {
            // SAFETY: the caller owned every node from `first` on.
            let home = unsafe { Node::settle(first) };
            let (mut last, mut count) = (first, 1);
            // SAFETY: as above.
            let mut next = unsafe { Node::next(first) };
            // SAFETY: as above.
            while !next.is_null() && count < RUN_MAX && unsafe { Node::home(next) } == home {
                // SAFETY: as above.
                unsafe { Node::settle(next) };
                last = next;
                count += 1;
                // SAFETY: as above.
                next = unsafe { Node::next(last) };
            }
            // SAFETY: `first..=last` is a chain of `count` nodes of one home, ours
            // no more, since we go on at `next`.
            unsafe { Home::put_back(first, last, count) };
            first = next;
        }
    }
}

/// Bounds a run so that counts stay far from 16 bits.
const RUN_MAX: u16 = 1_024;
