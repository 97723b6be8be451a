//! Models of packets in memory of a device: they come home from other threads, and the last of all
//! frees the memory.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use loom::cell::UnsafeCell;
use onramp_queue::{MappedPool, Packet};

use crate::pool::drop_on_threads;
use crate::{check, join};

const COUNT: usize = 2;

/// Memory of two frames, which the model accesses as a device does: loom checks each access against
/// the others, and against the end.
struct Memory {
    start: NonNull<u8>,
    used: [UnsafeCell<bool>; COUNT],
    freed: Arc<AtomicBool>,
}

// SAFETY: the cells are accessed only where the protocol under test orders the accesses, which loom
// checks.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    const SIZE: usize = (MappedPool::HEADER + 8).next_multiple_of(MappedPool::ALIGN);

    fn layout() -> Layout {
        Layout::from_size_align(Self::SIZE * COUNT, MappedPool::ALIGN).expect("it is small")
    }

    fn new() -> (Arc<Self>, Arc<AtomicBool>) {
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc(Self::layout()) }).expect("memory");
        let freed = Arc::<AtomicBool>::default();
        let used = std::array::from_fn(|_| UnsafeCell::new(false));
        (Arc::new(Self { start, used, freed: freed.clone() }), freed)
    }

    /// Uses a frame as a device does: nobody else may use it.
    fn touch(&self, frame: usize) {
        // SAFETY: loom reports an access at the same time.
        self.used[frame].with_mut(|used| unsafe { *used = true });
    }

    fn payload(&self, frame: usize) -> NonNull<u8> {
        // SAFETY: the frame lies in the memory.
        unsafe { self.start.add(frame * Self::SIZE + MappedPool::HEADER) }
    }

    fn frame(&self, payload: NonNull<u8>) -> usize {
        // SAFETY: both lie in the memory.
        let offset = unsafe { payload.offset_from(self.start) };
        offset.cast_unsigned() / Self::SIZE
    }

    fn packet(&self, pool: &mut MappedPool, frame: usize) -> Packet {
        self.touch(frame);
        // SAFETY: each frame becomes one packet at a time, of no bytes.
        unsafe { pool.packet(self.payload(frame), 8, 0) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        assert!(!self.freed.swap(true, SeqCst), "freed twice");
        // A packet that is dropped while, or after, the memory is freed conflicts with this.
        (0..COUNT).for_each(|frame| self.touch(frame));
        // SAFETY: `new` allocated the memory with this layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout()) };
    }
}

/// Two threads drop a packet each, while the pool takes in what has come home, and makes a packet
/// of it again. Each frame belongs to one side at a time.
///
/// Must fail with each of these mutants: mapped-reclaim-acquire, pool-put-release.
#[test]
fn frames_come_home() {
    check(3, || {
        let (memory, freed) = Memory::new();
        let mut pool = MappedPool::new(memory.clone());
        let out = [0, 1].map(|frame| memory.packet(&mut pool, frame));
        let threads = drop_on_threads::<COUNT>(out.into_iter().collect());
        let mut home = Vec::new();
        pool.reclaim(|payload| home.push(memory.frame(payload)));
        assert_eq!(pool.out() as usize + home.len(), COUNT);
        for frame in home {
            drop(memory.packet(&mut pool, frame));
        }
        join(threads);
        let mut count = 0;
        pool.reclaim(|_| count += 1);
        assert_eq!((count, pool.out()), (COUNT, 0));
        drop(memory);
        drop(pool);
        assert!(freed.load(SeqCst));
    });
}

/// Two threads drop a packet each, while the pool is dropped. The last of all frees the memory.
///
/// Must fail with each of these mutants: pool-close-acquire, pool-close-release, pool-put-acquire,
/// pool-put-release.
#[test]
fn who_is_last_frees_the_memory() {
    check(3, || {
        let (memory, freed) = Memory::new();
        let mut pool = MappedPool::new(memory.clone());
        let out = [0, 1].map(|frame| memory.packet(&mut pool, frame));
        drop(memory);
        let threads = drop_on_threads::<COUNT>(out.into_iter().collect());
        drop(pool);
        join(threads);
        assert!(freed.load(SeqCst));
    });
}
