//! What belongs to the process: its shaper, its children and its end.

use std::cell::Cell;
use std::panic::catch_unwind;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, compiler_fence};

use super::memory;
use crate::notice::tell;
use crate::shaper::Shaper;
use crate::sys;

/// The shaper of this process; null before the first datagram, and in a child.
static SHAPER: AtomicPtr<Shaper> = AtomicPtr::new(ptr::null_mut());
/// Whether there is no shaper and there will be none, which standard error has been told.
static HOPELESS: AtomicBool = AtomicBool::new(false);
/// Whether the C library knows of `in_child`.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// The process whose shaper it is.
static OWNER: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether the thread is in a function of this library.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Shows that the thread is in a function of the library. A signal handler that interrupts it there
/// and sends a datagram must not wait for a lock that its own thread holds.
pub(super) struct Inside(());

impl Inside {
    /// Returns `None` if the thread is in the library already.
    pub(super) fn enter() -> Option<Self> {
        let was_inside = INSIDE.replace(true);
        // SeqCst: a signal handler of this thread, of which the compiler knows nothing, sees the
        // flag before anything that the library does; pairs with the read in the handler's call.
        compiler_fence(SeqCst);
        // `then_some` would make the value in any case, and its drop would let the next call in.
        (!was_inside).then(|| Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SeqCst: as in `enter`; all that the library does comes before.
        compiler_fence(SeqCst);
        INSIDE.set(false);
    }
}

/// Whether this is the process that has made the shaper. It is not in a child of `vfork`, which
/// uses its parent's memory, and of `_Fork` or a `clone` of the program's own, in which the C
/// library has not called `in_child`.
pub(super) fn is_owner() -> bool {
    // Relaxed: the load of the shaper has made it visible.
    OWNER.load(Relaxed) == std::process::id()
}

/// Returns the shaper of the process, which this call may make; `None` if it cannot be made.
pub(super) fn shaper() -> Option<&'static Shaper> {
    // Acquire: with the Release of the thread that has made the shaper.
    let mut found = SHAPER.load(Acquire);
    // Relaxed: a flag that says only itself.
    if found.is_null() && !HOPELESS.load(Relaxed) {
        found = make();
    }
    // SAFETY: a pointer that was stored is one to a shaper that is never freed.
    unsafe { found.as_ref() }
}

/// Makes the shaper. Of two threads that make one at the same time, one uses the other's.
fn make() -> *mut Shaper {
    // Relaxed: a flag that says only itself; two threads never both find it unset.
    if !WATCHED.swap(true, Relaxed) {
        // SAFETY: the handler is a function that stays loaded, and does only what a child may do.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
    let made = catch_unwind(Shaper::new);
    match made.unwrap_or_else(|_| Err("the library panicked; please report this".to_owned())) {
        Ok(shaper) => {
            let made = Box::into_raw(Box::new(shaper));
            OWNER.store(std::process::id(), Relaxed); // Relaxed: the exchange below publishes it.
            // AcqRel: other threads see the whole shaper, and this one sees theirs.
            match SHAPER.compare_exchange(ptr::null_mut(), made, AcqRel, Acquire) {
                Ok(_) => made,
                Err(others) => others,
            }
        }
        Err(why) => {
            // Relaxed: a flag that says only itself.
            if !HOPELESS.swap(true, Relaxed) {
                let pid = std::process::id();
                tell(&format!("the datagrams of process {pid} pass no qdisc: {why}"));
            }
            ptr::null_mut()
        }
    }
}

/// Runs in a child of `fork`, before its program goes on. The child has none of its parent's other
/// threads, and a lock that one of them held stays held. So it leaves the parent's shaper alone.
extern "C" fn in_child() {
    // Release, and not less: a child has one thread, and this is as cheap.
    SHAPER.store(ptr::null_mut(), Release);
    // A signal handler that forked may have interrupted the allocator, and must not come there.
    INSIDE.set(memory::is_inside());
    sys::close_all();
}

/// Waits until the datagrams of the process have left, as long as the order allows.
pub(super) extern "C" fn at_end() {
    let found = SHAPER.load(Acquire); // Acquire: see `shaper`.
    // The datagrams of another process are not the business of this one.
    if !is_owner() {
        return;
    }
    // SAFETY: as in `shaper`.
    if let Some(shaper) = unsafe { found.as_ref() } {
        shaper.drain_at_end();
    }
}

/// The dynamic linker calls the functions in this section when the process ends by `exit` or the
/// end of `main`: after the program's own handlers, which may still send.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;
