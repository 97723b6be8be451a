//! Calling wakers, which may run arbitrary code.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use crate::sync::thread_local;

thread_local! {
    /// Number of wakers whose calls have begun and not yet ended in this thread; a waker may cause
    /// the call of another.
    static CALLS: Cell<u32> = const { Cell::new(0) };
    /// Number of values of the type [`HeldWakes`] that exist in this thread.
    static HOLDERS: Cell<u32> = const { Cell::new(0) };
    /// Wakers whose calls are delayed; this thread calls them when its last [`HeldWakes`] is
    /// dropped.
    static HELD: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// While a value of this type exists, its thread calls no wakers, but collects them for later; see
/// [`hold_wakes`].
#[derive(Debug)]
#[must_use = "dropped at once, it holds nothing"]
pub struct HeldWakes {
    /// Makes the type neither `Send` nor `Sync`: a value delays the wakers of the thread that made
    /// it, so it must be dropped in that thread.
    thread: PhantomData<*const ()>,
}

/// Delays all wakers that this crate, or [`call_waker`](crate::call_waker), is about to call in
/// this thread, until this thread has dropped all its [`HeldWakes`]; then the thread calls these
/// wakers. Use this while holding a lock, because a waker may ask for the same lock.
pub fn hold_wakes() -> HeldWakes {
    HOLDERS.set(HOLDERS.get() + 1);
    HeldWakes { thread: PhantomData }
}

impl Drop for HeldWakes {
    fn drop(&mut self) {
        HOLDERS.set(HOLDERS.get() - 1);
        if HOLDERS.get() == 0 {
            // Take the wakers out of `HELD` before calling them, because a waker may itself call
            // `hold_wakes`. In a thread that is ending, `HELD` no longer exists, and `call` has
            // called each waker at once.
            let held = HELD.try_with(RefCell::take);
            held.into_iter().flatten().for_each(call);
        }
    }
}

/// Calls a waker, or collects it while a [`HeldWakes`] exists. The calling thread usually works on
/// another thread's packet, and may be in the middle of a list or of unwinding. So a panic of the
/// waker is caught here. The value of the panic is leaked, because dropping it may panic again; the
/// panic hook has already printed the message.
pub fn call(waker: Waker) {
    let mut waker = Some(waker);
    if HOLDERS.get() > 0 {
        let _ = HELD.try_with(|held| held.borrow_mut().extend(waker.take()));
    }
    if let Some(waker) = waker {
        CALLS.set(CALLS.get() + 1);
        let wakes = AssertUnwindSafe(|| waker.wake());
        catch_unwind(wakes).unwrap_or_else(mem::forget);
        CALLS.set(CALLS.get() - 1);
    }
}

/// Whether the calling thread is inside a waker that this crate calls. Such a thread should not
/// wait for any other thread, because other threads may be waiting for it.
#[must_use]
pub fn is_in_waker() -> bool {
    CALLS.get() > 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn wakers_are_kept_until_the_last_holder_goes() {
        let count = Arc::new(Count::default());
        let wake = || call(Waker::from(count.clone()));
        wake();
        assert_eq!(count.0.load(SeqCst), 1, "nobody holds it");
        let outer = hold_wakes();
        wake();
        let inner = hold_wakes();
        wake();
        drop(outer);
        assert_eq!(count.0.load(SeqCst), 1, "the other one holds both, in whatever order they go");
        drop(inner);
        assert_eq!(count.0.load(SeqCst), 3);
        wake();
        assert_eq!(count.0.load(SeqCst), 4);
    }

    #[test]
    #[cfg_attr(miri, ignore = "what the panic says is left alone, which is a leak")]
    fn a_waker_that_panics_keeps_no_other_back() {
        struct Bad;
        impl Wake for Bad {
            fn wake(self: Arc<Self>) {
                panic!("as asked for");
            }
        }
        let count = Arc::new(Count::default());
        let held = hold_wakes();
        call(Waker::from(Arc::new(Bad)));
        call(Waker::from(count.clone()));
        drop(held);
        assert_eq!(count.0.load(SeqCst), 1);
    }
}
