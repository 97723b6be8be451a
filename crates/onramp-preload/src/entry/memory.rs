//! The memory of the library.
//!
//! A signal handler of the program may call `sendto` while it interrupts the C library's `malloc`:
//! POSIX allows it. If the library took its memory from `malloc`, too, the handler would wait for
//! the lock that its own thread holds, or find a half-changed list. So the library has an allocator
//! of its own, whose memory comes from the kernel. A handler that interrupts this allocator finds
//! the thread [inside](super::process::Inside) the library, and sends around it.

use dlmalloc::GlobalDlmalloc;

#[global_allocator]
static MEMORY: GlobalDlmalloc = GlobalDlmalloc;

/// Lets children of `fork` allocate, whatever the other threads of their parent were doing: the
/// lock is taken before a fork, and released in both processes.
pub(super) fn allow_forks() {
    // SAFETY: called once, when the linker has loaded the library: no other thread is in the
    // allocator.
    unsafe { dlmalloc::enable_alloc_after_fork() };
}
