//! Detects whether this process is a forked copy of the process that made an object, and runs code
//! in a forked child.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number of forks between the process that started the program and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Relaxed); // Relaxed: this runs in a new child, which has only one thread.
}

/// Starts to count forks, if no call did so before, and returns how many forks lie between this
/// process and the ancestor that made the first call of this function. Returns 0 in that ancestor.
/// A child of `fork` has a copy of its parent's memory, but none of its parent's other threads. An
/// object that depends on threads can store this number when it is made and compare it later.
/// (`pthread_atfork` does not see `vfork` and raw `clone`, so these are not counted.)
///
/// # Panics
///
/// Panics if the C library has no memory to register the handler.
#[must_use]
pub fn watch_forks() -> u32 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler is a function of the program, and does only what a child may do: it
        // adds to a number.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert_eq!(failed, 0, "the C library notes a handler for forks");
    });
    forks()
}

/// Returns the current number of forks, without starting the count: see [`watch_forks`].
#[must_use]
#[inline]
pub fn forks() -> u32 {
    // Relaxed: only a child's first thread writes the number, before other threads exist.
    FORKS.load(Relaxed)
}

/// The process that made an object. A child of `fork` drops its copies of all objects when it ends,
/// and shares files, sockets and memory with its parent. An object whose drop changes something
/// that both share keeps this mark, and leaves the change to its maker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker(u32);

impl Maker {
    pub(crate) fn this_process() -> Self {
        Self(watch_forks())
    }

    /// Whether the calling process is the maker, and not a child of it.
    pub(crate) fn is_here(self) -> bool {
        forks() == self.0
    }
}

/// Exit status of a child in which the closure of [`run_in_child`] panicked.
const PANICKED: i32 = 101;

/// Runs `f` in a child process: a copy of this process that has only the calling thread. The child
/// exits with the status that `f` returns and runs nothing else. Returns the child's process id;
/// the caller must wait for the child.
///
/// A lock that another thread holds at this moment stays held in the child for ever. So `f` should
/// print nothing, and take no lock that other threads take.
///
/// # Errors
///
/// Fails with the kernel's error if no child could be made.
pub fn run_in_child(f: impl FnOnce() -> i32) -> io::Result<i32> {
    // SAFETY: `fork` touches no memory of this process; the child has a copy of all memory, and its
    // one thread continues below.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = catch_unwind(AssertUnwindSafe(f)).unwrap_or(PANICKED);
            // SAFETY: `_exit` ends the process at once and runs no destructor and no exit handler.
            unsafe { libc::_exit(status) }
        }
        child => Ok(child),
    }
}
