//! Counters for statistics: one thread at a time writes a counter, any number of threads read it,
//! and no access needs a locked instruction.

use crate::sync::{CounterWord, Ordering::Relaxed};

/// A number that one thread at a time writes (for example the owner of a port, or a sender) and
/// that any thread reads.
///
/// The writer pays for one plain load and one plain store. A reader never sees a counter shrink,
/// but the values of several counters, read one after another, belong to different instants. Two
/// simultaneous writers would lose counts; nothing worse would happen.
#[derive(Debug, Default)]
pub struct Counter(CounterWord);

impl Counter {
    /// Makes a counter that holds zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(CounterWord::new(0))
    }

    /// Adds `n` to the counter. Only the writing thread may call this.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub fn add(&self, n: u64) {
        // Relaxed: the counter only informs people; it orders no other memory.
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets the counter to `n` if its value is lower than `n`. Only the writing thread may call
    /// this.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub fn raise(&self, n: u64) {
        // Relaxed: the counter orders no other memory.
        if self.0.load(Relaxed) < n {
            self.0.store(n, Relaxed);
        }
    }

    /// Sets the counter to `n`; use this for values that also fall, such as a backlog. Only the
    /// writing thread may call this.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub fn set(&self, n: u64) {
        // Relaxed: the counter orders no other memory.
        self.0.store(n, Relaxed);
    }

    /// Returns the counter's current value.
    #[must_use]
    #[inline]
    pub fn get(&self) -> u64 {
        // Relaxed: the counter orders no other memory.
        self.0.load(Relaxed)
    }
}
