//! Memory of a few frames, for tests and models of [`MappedPool`].

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use super::MappedPool;
use crate::packet::Packet;
use crate::sync::UnsafeCell;

/// Number of frames.
pub const COUNT: usize = 4;
/// Bytes of a packet's payload.
pub const ROOM: u16 = 384;
const SIZE: usize = (MappedPool::HEADER + ROOM as usize).next_multiple_of(MappedPool::ALIGN);

/// Memory of [`COUNT`] frames of zeros. Under the model checker, each use of a frame, and the end
/// of the memory, is an access that conflicts with others at the same time.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    /// Whether a packet lies in the frame.
    taken: [AtomicBool; COUNT],
    uses: [UnsafeCell<u32>; COUNT],
    freed: Freed,
}

/// Counts how often a memory was freed.
#[derive(Clone, Debug, Default)]
pub struct Freed(Arc<AtomicUsize>);

impl Freed {
    /// Returns the number of times.
    #[must_use]
    pub fn count(&self) -> usize {
        // Relaxed: the test has joined the threads that could free the memory.
        self.0.load(Relaxed)
    }
}

// SAFETY: the pointer belongs to no thread, and the cells are accessed only by a thread that has a
// frame, or is the last to have the memory; the model checker checks that.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn layout() -> Layout {
        Layout::from_size_align(SIZE * COUNT, MappedPool::ALIGN).expect("it is small")
    }

    /// Makes the memory.
    #[must_use]
    pub fn new() -> (Arc<Self>, Freed) {
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(Self::layout()) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(Self::layout()));
        let freed = Freed::default();
        let uses = std::array::from_fn(|_| UnsafeCell::new(0));
        let memory = Self { start, taken: Default::default(), uses, freed: freed.clone() };
        (Arc::new(memory), freed)
    }

    fn use_frame(&self, frame: usize) {
        // SAFETY: the caller has the frame.
        self.uses[frame].with_mut(|uses| unsafe { *uses += 1 });
    }

    /// Returns the address of the payload in a frame.
    ///
    /// # Panics
    ///
    /// Panics if there is no such frame.
    #[must_use]
    pub fn payload(&self, frame: usize) -> NonNull<u8> {
        assert!(frame < COUNT, "there is no frame {frame}");
        // SAFETY: the frame lies in the memory.
        unsafe { self.start.add(frame * SIZE + MappedPool::HEADER) }
    }

    /// Makes a packet of the first `len` bytes of a frame.
    ///
    /// # Panics
    ///
    /// Panics if there is no such frame, or if a packet lies in it.
    pub fn packet(&self, pool: &mut MappedPool, frame: usize, len: u16) -> Packet {
        // Relaxed: only the thread that has the pool accesses this.
        assert!(!self.taken[frame].swap(true, Relaxed), "a packet lies in frame {frame}");
        self.use_frame(frame);
        // SAFETY: no packet lies in the frame, whose bytes are initialised.
        unsafe { pool.packet(self.payload(frame), ROOM, len) }
    }

    /// Takes in the packets that came home, and returns their frames in order.
    pub fn home(&self, pool: &mut MappedPool) -> Vec<usize> {
        let mut home = Vec::new();
        pool.reclaim(|payload| {
            let frame = (payload.addr().get() - self.start.addr().get()) / SIZE;
            self.use_frame(frame);
            // Relaxed: as in `packet`.
            self.taken[frame].store(false, Relaxed);
            home.push(frame);
        });
        home.sort_unstable();
        home
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Relaxed: see `Freed::count`.
        self.freed.0.fetch_add(1, Relaxed);
        (0..COUNT).for_each(|frame| self.use_frame(frame));
        // SAFETY: `new` allocated the memory with this layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout()) };
    }
}
