//! The memory of the library.
//!
//! A signal handler of the program may call `sendto` while it interrupts the C library's `malloc`:
//! POSIX allows it. If the library took its memory from `malloc`, too, the handler would wait for
//! the lock that its own thread holds, or find a half-changed list. So the library has an allocator
//! of its own, whose memory comes from the kernel. A handler that interrupts this allocator finds
//! the thread [inside](super::process::Inside) the library, and sends around it.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::compiler_fence;

use dlmalloc::Dlmalloc;
use libc::pthread_mutex_t;

#[global_allocator]
static MEMORY: Memory = Memory {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    inner: UnsafeCell::new(Dlmalloc::new()),
};

thread_local! {
    /// Whether the thread is in the allocator.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is in the allocator: then this is a signal handler.
pub(super) fn is_inside() -> bool {
    INSIDE.get()
}

struct Memory {
    lock: UnsafeCell<pthread_mutex_t>,
    inner: UnsafeCell<Dlmalloc>,
}

// SAFETY: threads use what is inside only while they hold the lock.
unsafe impl Sync for Memory {}

impl Memory {
    fn lock(&self) {
        // SAFETY: the mutex is initialised, and never moves. It cannot be poisoned.
        unsafe { libc::pthread_mutex_lock(self.lock.get()) };
    }

    fn unlock(&self) {
        // SAFETY: as in `lock`; the caller holds it.
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }

    fn with<R>(&self, act: impl FnOnce(&mut Dlmalloc) -> R) -> R {
        INSIDE.set(true);
        // SeqCst: a signal handler of this thread, of which the compiler knows nothing, sees the
        // flag as long as the thread may hold the lock; so does the fence below.
        compiler_fence(SeqCst);
        self.lock();
        // SAFETY: the thread holds the lock, and `act` allocates nothing else.
        let result = act(unsafe { &mut *self.inner.get() });
        self.unlock();
        // SeqCst: as above.
        compiler_fence(SeqCst);
        INSIDE.set(false);
        result
    }
}

// SAFETY: `Dlmalloc` gives blocks that overlap no others, of the asked size and alignment, or null;
// it does not unwind.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to the same conditions, here and below.
        self.with(|memory| unsafe { memory.malloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        self.with(|memory| unsafe { memory.free(block, layout.size(), layout.align()) });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        self.with(|memory| unsafe { memory.calloc(layout.size(), layout.align()) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`.
        self.with(|memory| unsafe { memory.realloc(block, layout.size(), layout.align(), size) })
    }
}

/// Lets children of `fork` allocate, whatever the other threads of their parent were doing: the
/// forking thread takes the lock before, and both processes release it. A signal handler that forks
/// may have interrupted the allocator: then its own thread holds the lock, and releases it when the
/// handler returns.
pub(super) fn allow_forks() {
    // SAFETY: the handlers are functions that stay loaded, and do only what a child may do.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
}

extern "C" fn before_fork() {
    if !is_inside() {
        MEMORY.lock();
    }
}

extern "C" fn after_fork() {
    if !is_inside() {
        MEMORY.unlock();
    }
}
