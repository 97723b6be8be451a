//! Packets that lie in memory which a device shares with the kernel or with a card.

#[cfg(any(test, loom))]
#[cfg_attr(not(loom), allow(unreachable_pub, reason = "only the models are another crate"))]
pub mod memory;

use std::ptr::NonNull;

use crate::mutant;
use crate::node::Node;
use crate::node::home::{Home, Memory, WAKE_AT};
use crate::node::word::Word;
use crate::packet::Packet;
use crate::sync::Ordering::{Acquire, Relaxed};

/// Makes packets out of frames in memory that a device shares with the kernel or with a card, where
/// they lie, and learns when the memory of a frame may be used again.
///
/// One thread makes packets, and takes in those that came home; any thread drops them. A packet's
/// own data lie in front of its payload, in the room that drivers keep free there. The memory is
/// freed when the pool and all of its packets are dropped.
///
/// ```text
///                         |  packet, reclaim, drop | drop of a packet
/// packet, reclaim, drop   |  one thread (`&mut`)   |    -       -: may run at the same time
/// drop of a packet        |            -           |    -
/// ```
#[derive(Debug)]
pub struct MappedPool {
    home: NonNull<Home>,
    /// Number of packets that are out: made, and not taken in by `reclaim`.
    out: u32,
    /// The home keeps the memory, too. But after `drop` has closed the home, another thread may
    /// free it.
    _memory: Memory,
}

// SAFETY: `Home` is designed to be shared between threads, and the pool owns nothing else.
unsafe impl Send for MappedPool {}

impl MappedPool {
    /// Bytes that a packet needs in front of its payload.
    pub const HEADER: usize = size_of::<Node>();
    /// The address of a payload must be a multiple of this.
    pub const ALIGN: usize = align_of::<Node>();
    /// Largest number of packets that are out at a time.
    pub const PACKETS_MAX: u32 = WAKE_AT as u32;

    /// Makes a pool of packets that lie in `memory`.
    #[must_use]
    pub fn new(memory: std::sync::Arc<impl Send + Sync + 'static>) -> Self {
        let memory: Memory = memory;
        let home = Box::new(Home::new(Some(memory.clone())));
        Self { home: NonNull::from(Box::leak(home)), out: 0, _memory: memory }
    }

    /// Makes a packet with the `len` bytes at `payload`, and room for `capacity` bytes there.
    ///
    /// # Panics
    ///
    /// Panics when [`PACKETS_MAX`](Self::PACKETS_MAX) packets are out, when `len` exceeds
    /// `capacity`, or when the address is not [aligned](Self::ALIGN).
    ///
    /// # Safety
    ///
    /// The `capacity` bytes at `payload`, of which the first `len` are initialised, and the
    /// [`HEADER`](Self::HEADER) bytes in front of them lie in the pool's memory. Nobody else writes
    /// any of these bytes, or reads the header, until [`reclaim`](Self::reclaim) has returned
    /// `payload`; if it never does, until the memory is freed.
    #[inline]
    pub unsafe fn packet(&mut self, payload: NonNull<u8>, capacity: u16, len: u16) -> Packet {
        assert!(self.out < Self::PACKETS_MAX, "too many packets are out");
        assert!(len <= capacity, "{len} bytes do not fit {capacity}");
        // SAFETY: by the caller's promise, the header lies in the same memory.
        let node = unsafe { payload.as_ptr().sub(Self::HEADER) }.cast::<Node>();
        assert!(node.is_aligned(), "the address of a payload is a multiple of 64");
        // SAFETY: the caller gives the header and the payload away until they come home.
        unsafe { Node::init(node, capacity, self.home.as_ptr()) };
        // SAFETY: only this thread has a pointer to the node.
        let (_, tail) = unsafe { Node::parts(node) };
        tail.payload_len = len;
        self.out += 1;
        // SAFETY: as above; the pointer is not null, because it lies in memory.
        unsafe { Packet::from_raw(node) }
    }

    /// Returns the number of packets that were made and that [`reclaim`](Self::reclaim) has not
    /// taken in yet.
    #[must_use]
    pub fn out(&self) -> u32 {
        self.out
    }

    /// Takes in the packets that were dropped, and calls `each` with the address of each payload.
    pub fn reclaim(&mut self, mut each: impl FnMut(NonNull<u8>)) {
        // Relaxed: a hint; the exchange below synchronises.
        if Word(self.home().word.0.load(Relaxed)).count() == 0 {
            return;
        }
        // Acquire: makes the nodes visible, and orders what other threads did with the payloads
        // before what becomes of them now; pairs with the release in `put_back`.
        let order = mutant::or("mapped-reclaim-acquire", Acquire, Relaxed);
        let home = self.home.as_ptr();
        // SAFETY: the pool keeps its home alive until the pool is dropped.
        let taken = unsafe { Home::update(home, order, |_| Some(Word::ZERO)) };
        let taken = taken.unwrap_or(Word::ZERO);
        self.out -= u32::from(taken.count());
        let mut node = taken.node();
        while !node.is_null() {
            // SAFETY: this thread has taken the whole chain, and nobody uses the node's memory
            // before `each` gets its address.
            let next = unsafe { Node::next(node) };
            // SAFETY: the payload follows the header in the same memory.
            let payload = unsafe { node.cast::<u8>().add(Self::HEADER) };
            // SAFETY: a pointer to memory is not null.
            each(unsafe { NonNull::new_unchecked(payload) });
            node = next;
        }
    }

    fn home(&self) -> &Home {
        // SAFETY: the pool keeps its home alive until the pool is dropped.
        unsafe { self.home.as_ref() }
    }
}

impl Drop for MappedPool {
    fn drop(&mut self) {
        let out = |word: Word| self.out - u32::from(word.count());
        // SAFETY: the pool keeps its home alive until now, and closes it only here.
        let (_, is_last) = unsafe { Home::close(self.home.as_ptr(), out) };
        if is_last {
            // SAFETY: no node is out, and no thread waits, so nobody else refers to the home.
            unsafe { Home::free(self.home.as_ptr()) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
