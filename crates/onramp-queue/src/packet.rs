//! The packet: a handle of eight bytes that owns a [`Node`] (the packet's memory), so handing a
//! packet on moves only eight bytes.
//!
//! A node either belongs to a [`Pool`](crate::Pool) or comes directly from the heap
//! ([`Packet::new`]). When any thread drops the handle, the node returns to its pool, or is freed
//! if it comes from the heap.

use std::fmt;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use crate::meta::{Layer, Meta, PartialChecksum};
use crate::node::home::Home;
use crate::node::{Before, CHOSEN, Node, PAYLOAD_MAX, Tail, Target};

/// An owned packet: a handle that is one pointer wide.
#[repr(transparent)]
pub struct Packet(NonNull<Node>);

// A `Packet` is one non-null pointer, so `Option<Packet>` needs no extra space.
const _: () = assert!(size_of::<Option<Packet>>() == size_of::<usize>());

impl Packet {
    /// Makes a packet from the heap, of `len` bytes on the wire, without a payload.
    ///
    /// Use such a packet when you keep the payload in your own buffers: store the number of the
    /// buffer in [`Meta::cookie`].
    #[must_use]
    pub fn new(len: u32) -> Self {
        let mut pkt = Self::with_capacity(0);
        pkt.len = len;
        pkt
    }

    /// Makes a packet from the heap that carries a copy of `payload`. Its length on the wire is the
    /// length of the payload; the caller may change [`Meta::len`] afterwards.
    ///
    /// # Panics
    ///
    /// Panics when the payload is larger than [`PAYLOAD_MAX`].
    #[must_use]
    pub fn with_payload(payload: &[u8]) -> Self {
        assert!(payload.len() <= PAYLOAD_MAX, "a payload has at most {PAYLOAD_MAX} bytes");
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        let len = payload.len() as u16;
        let mut pkt = Self::with_capacity(len);
        pkt.set_payload(payload);
        pkt.len = len.into();
        pkt
    }

    /// Copies the packet into a new packet from the heap. The copy counts as not accepted by any
    /// link, so its fate is not reported as a completion.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        self.duplicate_with(self.payload())
    }

    /// Like [`duplicate`](Self::duplicate), but the copy has another payload. Its
    /// [length](Meta::len) is that of the original: the caller changes it.
    ///
    /// # Panics
    ///
    /// Panics when the payload is larger than [`PAYLOAD_MAX`].
    #[must_use]
    pub fn duplicate_with(&self, payload: &[u8]) -> Self {
        let mut copy = Self::with_payload(payload);
        *copy = Meta::clone(self);
        let tail = copy.tail_mut();
        (tail.target, tail.layer) = (self.tail().target, self.layer());
        (tail.queue, tail.source) = (self.tail().queue, self.tail().source);
        copy
    }

    /// Makes a packet from the heap with an empty payload and room for `capacity` bytes of it. To
    /// receive into it, see [`fill`](Self::fill).
    #[must_use]
    pub fn with_capacity(capacity: u16) -> Self {
        let node = Node::alloc(capacity, ptr::null());
        // SAFETY: `alloc` never returns null, and nobody else has a pointer to the node.
        unsafe { Self::from_raw(node) }
    }

    /// Returns the payload of the packet.
    #[must_use]
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub fn payload(&self) -> &[u8] {
        let len = usize::from(self.tail().payload_len);
        // SAFETY: `payload_len <= capacity`, so reads through the pointer stay in the allocation.
        let start = unsafe { self.payload_start() };
        crate::sync::reads(start, len);
        // SAFETY: `set_payload` wrote the first `payload_len` bytes, and `self` stays borrowed as
        // long as the slice.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Returns the payload of the packet, to change bytes in place.
    #[must_use]
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let len = usize::from(self.tail().payload_len);
        // SAFETY: `payload_len <= capacity`, so accesses through the pointer stay in the
        // allocation.
        let start = unsafe { self.payload_start() }.cast_mut();
        crate::sync::changes(start, len);
        // SAFETY: the first `payload_len` bytes have been written, they belong to this packet
        // alone, and `self` stays borrowed exclusively as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Lets `fill` write the payload directly into the packet's buffer, without a copy: for example
    /// `read` from a file descriptor. `fill` gets the whole buffer, of [`capacity`](Self::capacity)
    /// bytes, and returns the part at its beginning that it has written, which becomes the payload.
    ///
    /// ```
    /// use std::mem::MaybeUninit;
    ///
    /// let mut packet = onramp_queue::Packet::with_payload(&[0; 16]);
    /// packet.fill::<()>(|buffer| {
    ///     let (begin, _) = buffer.split_at_mut(5);
    ///     Ok(begin.write_copy_of_slice(b"hello"))
    /// })?;
    /// assert_eq!(packet.payload(), b"hello");
    /// # Ok::<(), ()>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of `fill`. The payload is then empty.
    ///
    /// # Panics
    ///
    /// Panics when `fill` returns a slice that does not lie at the beginning of the buffer.
    pub fn fill<E>(
        &mut self,
        fill: impl for<'a> FnOnce(&'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8], E>,
    ) -> Result<(), E> {
        self.tail_mut().payload_len = 0;
        // SAFETY: the slice below has `capacity` bytes.
        let start = unsafe { self.payload_start() }.cast_mut();
        // SAFETY: the `capacity` bytes from `start` belong to this packet alone, `MaybeUninit` does
        // not ask that they are initialised, and `self` stays borrowed exclusively.
        let buffer = unsafe { std::slice::from_raw_parts_mut(start.cast(), self.capacity()) };
        let capacity = buffer.len();
        let filled = fill(buffer)?;
        let (begin, len) = (filled.as_ptr(), filled.len());
        // A slice of `u8` is initialised. If it lies at the beginning of the buffer, so are the
        // first bytes of the buffer, and an empty slice may lie anywhere.
        assert!(len == 0 || begin == start.cast_const(), "the payload begins with the buffer");
        assert!(len <= capacity, "the payload ends in the buffer");
        #[expect(clippy::cast_possible_truncation, reason = "at most `capacity`, a u16")]
        let len = len as u16;
        self.tail_mut().payload_len = len;
        Ok(())
    }

    /// Returns the payloads of the packet's datagrams, in order. There is one datagram, unless
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
    #[cfg_attr(sim, track_caller)]
    pub fn set_payload(&mut self, payload: &[u8]) {
        self.write(0, payload);
    }

    /// Copies `bytes` into the packet, behind the payload that it has.
    ///
    /// # Panics
    ///
    /// Panics when the payload would not fit the packet's buffer: see [`Packet::capacity`].
    #[inline]
    pub fn append_payload(&mut self, bytes: &[u8]) {
        self.write(self.tail().payload_len, bytes);
    }

    /// Shortens the payload to its first `len` bytes. Does nothing if the payload is not longer.
    #[inline]
    pub fn truncate_payload(&mut self, len: usize) {
        if let Ok(len) = u16::try_from(len) {
            let tail = self.tail_mut();
            tail.payload_len = tail.payload_len.min(len);
        }
    }

    /// Copies `bytes` into the buffer from `at` on, which is at most `capacity`; the payload ends
    /// with them.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    fn write(&mut self, at: u16, bytes: &[u8]) {
        let room = self.capacity() - usize::from(at);
        assert!(bytes.len() <= room, "the payload fits the packet's buffer");
        // SAFETY: the payload starts inside the allocation, or at its end if the capacity is zero.
        let start = unsafe { self.payload_start() }.cast_mut();
        // SAFETY: both callers pass 0 or `payload_len`, which is at most `capacity`, so the pointer
        // stays in the allocation, or at its end.
        let place = unsafe { start.add(usize::from(at)) };
        crate::sync::writes(place, bytes.len());
        // SAFETY: the `room` bytes from `place` belong to this packet alone; the source is another
        // object.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        #[expect(clippy::cast_possible_truncation, reason = "at most `PAYLOAD_MAX`, a u16")]
        let len = bytes.len() as u16;
        self.tail_mut().payload_len = at + len;
    }

    /// Returns the largest payload that fits the packet's buffer, in bytes.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.tail().capacity.into()
    }

    /// Returns the destination of the packet; `None` means the address that the device is connected
    /// to.
    #[must_use]
    #[inline]
    pub fn dest(&self) -> Option<SocketAddr> {
        match self.tail().target {
            Target::Dest(dest) => Some(dest),
            Target::Connected | Target::Checksum(_) => None,
        }
    }

    /// Sets the destination of the packet; `None` means the address that the device is connected
    /// to. A packet has either a destination or a partial checksum: complete the checksum of a
    /// frame before you send the frame to a destination.
    #[inline]
    pub fn set_dest(&mut self, dest: Option<SocketAddr>) {
        debug_assert!(
            dest.is_none() || self.partial_checksum().is_none(),
            "a frame with a partial checksum has no destination"
        );
        // Two stores, and not one of a value that is chosen: the processor would wait until the
        // value is written before it could copy it.
        let target = &mut self.tail_mut().target;
        match dest {
            Some(dest) => *target = Target::Dest(dest),
            None => *target = Target::Connected,
        }
    }

    /// Returns which checksum the sender of the frame has left to the device; `None` if the frame
    /// is complete.
    #[must_use]
    #[inline]
    pub fn partial_checksum(&self) -> Option<PartialChecksum> {
        match self.tail().target {
            Target::Checksum(partial) => Some(partial),
            Target::Connected | Target::Dest(_) => None,
        }
    }

    /// Says which checksum of the frame is missing; `None` if the frame is complete. Removes the
    /// destination of the packet: frames carry theirs in their headers.
    #[inline]
    pub fn set_partial_checksum(&mut self, partial: Option<PartialChecksum>) {
        self.tail_mut().target = partial.map_or(Target::Connected, Target::Checksum);
    }

    /// Returns the layer at which the packet's payload begins.
    #[must_use]
    #[inline]
    pub fn layer(&self) -> Layer {
        self.tail().layer
    }

    /// Sets the layer at which the packet's payload begins. Devices that send datagrams send the
    /// payload unchanged, whatever its layer.
    #[inline]
    pub fn set_layer(&mut self, layer: Layer) {
        self.tail_mut().layer = layer;
    }

    /// Returns the index of the device queue for this packet (`skb->queue_mapping`), or 0 if nobody
    /// has chosen a queue.
    #[must_use]
    #[inline]
    pub fn queue(&self) -> u16 {
        self.tail().queue
    }

    /// Returns the index of the device queue that was chosen for this packet; `None` if nobody has
    /// chosen a queue.
    #[must_use]
    #[inline]
    pub fn chosen_queue(&self) -> Option<u16> {
        let tail = self.tail();
        (tail.source & CHOSEN != 0).then_some(tail.queue)
    }

    /// Chooses the device queue for this packet.
    #[inline]
    pub fn set_queue(&mut self, queue: u16) {
        let tail = self.tail_mut();
        tail.queue = queue;
        tail.source |= CHOSEN;
    }

    /// Returns the number of the local address, and of the interface, that the packet leaves from;
    /// `None` leaves the choice to the system. The device of the packet gives these numbers: UDP
    /// sockets know those of `onramp_dev::Source`.
    #[must_use]
    #[inline]
    pub fn source(&self) -> Option<NonZero<u16>> {
        NonZero::new(self.tail().source & !CHOSEN)
    }

    /// Sets where the packet leaves from: see [`source`](Self::source). Devices that are no sockets
    /// send the packet as it is.
    ///
    /// # Panics
    ///
    /// Panics when the number is larger than 32,767.
    #[inline]
    pub fn set_source(&mut self, source: Option<NonZero<u16>>) {
        let number = source.map_or(0, NonZero::get);
        assert!(number < CHOSEN, "sources have the numbers 1 to 32767");
        let tail = self.tail_mut();
        tail.source = tail.source & CHOSEN | number;
    }

    /// Sets whether a link accepted the packet. Only an accepted packet yields a completion when it
    /// returns home.
    #[inline]
    pub fn set_submitted(&mut self, submitted: bool) {
        self.tail_mut().submitted = submitted;
    }

    /// Whether the sender that submitted the packet has [cancelled](crate::Pool::cancel) it, so
    /// that its port drops it. A packet that a receiver has submitted again is not cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let tail = self.tail();
        if tail.tag == 0 || tail.before != Before::New {
            return false;
        }
        // SAFETY: a packet with a tag is one of a pool, and a home outlives the packets of its
        // pool.
        let home = unsafe { &*tail.home };
        home.life.used();
        home.cancelled.get().is_some_and(|cancelled| cancelled.has(tail.tag))
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
    #[cfg_attr(sim, track_caller)]
    fn tail(&self) -> &Tail {
        crate::sync::reads(self.0.as_ptr().wrapping_byte_add(64), 1);
        // SAFETY: the handle owns the node, so the node is alive, and only this handle refers to
        // it.
        unsafe { &(*self.0.as_ptr()).tail }
    }

    #[inline]
    #[cfg_attr(sim, track_caller)]
    fn tail_mut(&mut self) -> &mut Tail {
        crate::sync::changes(self.0.as_ptr().wrapping_byte_add(64), 1);
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
    #[cfg_attr(sim, track_caller)]
    fn deref(&self) -> &Meta {
        crate::sync::reads(self.0.as_ptr(), 1);
        // SAFETY: the handle owns the node, so the node is alive, and only this handle refers to
        // it.
        unsafe { &(*self.0.as_ptr()).meta }
    }
}

impl DerefMut for Packet {
    #[inline]
    #[cfg_attr(sim, track_caller)]
    fn deref_mut(&mut self) -> &mut Meta {
        crate::sync::changes(self.0.as_ptr(), 1);
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
