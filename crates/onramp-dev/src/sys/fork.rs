//! Forks: whether this process is one of that in which something was made, and one to try it in.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Forks between the process that started and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Relaxed); // Relaxed: a child begins with one thread.
}

/// How often the process has forked to become this one, since the first call. A child of `fork`
/// has a copy of its parent's memory, but none of its threads: what needs these compares the number
/// with that of its beginning. (`vfork` and raw `clone` are not seen, as by `pthread_atfork`.)
///
/// # Panics
///
/// Panics when the C library has no memory to note it.
#[must_use]
pub fn watch_forks() -> u32 {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler is a function of the program, and does what a child may: it adds to
        // a number.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert_eq!(failed, 0, "the C library notes a handler for forks");
    });
    forks()
}

/// The number now: see [`watch_forks`].
#[must_use]
#[inline]
pub fn forks() -> u32 {
    FORKS.load(Relaxed) // Relaxed: as above.
}

/// What a child exits with whose `f` panicked.
const PANICKED: i32 = 101;

/// Runs `f` in a child, a copy of this process that has the calling thread alone; the child ends
/// with what `f` gives, as its exit status, and runs nothing else. Gives the child's number: the
/// caller has to wait for it.
///
/// Locks that other threads hold just now are held in the child for ever: `f` should print nothing
/// and take none that others take.
///
/// # Errors
///
/// What the kernel said: there is no child.
pub fn run_in_child(f: impl FnOnce() -> i32) -> io::Result<i32> {
    // SAFETY: it touches no memory; the child has a copy of all, and its one thread goes on below.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = catch_unwind(AssertUnwindSafe(f)).unwrap_or(PANICKED);
            // SAFETY: it ends the process at once, with no destructor and no handler.
            unsafe { libc::_exit(status) }
        }
        child => Ok(child),
    }
}
