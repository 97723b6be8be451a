//! A guard that ends threads, whatever ends the thread that started them.

use std::fmt;

/// Calls a function when it is dropped. `thread::scope` waits for its threads even if its closure
/// panics, so threads that loop until somebody stops them need this guard in the closure: it stops
/// them if the closure panics or returns early, too.
pub struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Finally<F> {
    /// Creates a guard that calls `act`.
    #[must_use = "a guard that is dropped at once acts at once"]
    pub const fn new(act: F) -> Self {
        Self(act)
    }
}

impl<F: FnMut()> fmt::Debug for Finally<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finally").finish_non_exhaustive()
    }
}

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_ends_although_its_scope_panics() {
        let stop = AtomicBool::new(false);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                });
                let _stops = Finally::new(|| stop.store(true, Ordering::Relaxed));
                panic!("as planned");
            });
        }));
        assert!(panicked.is_err() && stop.load(Ordering::Relaxed));
    }
}
