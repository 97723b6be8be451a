//! Statistics cells: one writer at a time, any number of readers, no locked instruction.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that one thread at a time writes (an owner, a sender) and any thread reads.
///
/// The writer pays a plain load and store. A reader sees each cell grow monotonically; cells read
/// one after another are not one instant. Two writers at once would lose counts, but nothing worse.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`. Writer only.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed: a number for people; it orders nothing.
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Raises it to `n` if it is less. Writer only.
    #[inline]
    pub fn raise(&self, n: u64) {
        // Relaxed: as above.
        if self.0.load(Relaxed) < n {
            self.0.store(n, Relaxed);
        }
    }

    /// Sets it to `n`: for levels, such as a backlog. Writer only.
    #[inline]
    pub fn set(&self, n: u64) {
        // Relaxed: as above.
        self.0.store(n, Relaxed);
    }

    /// What it holds.
    #[must_use]
    #[inline]
    pub fn get(&self) -> u64 {
        // Relaxed: as above.
        self.0.load(Relaxed)
    }
}
