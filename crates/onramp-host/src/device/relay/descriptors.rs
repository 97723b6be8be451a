//! How many of the process's file descriptors the clients of all relays may have.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

/// Number of file descriptors that the clients of all relays have.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The file descriptors of one client, until this value is dropped.
#[derive(Debug)]
pub(super) struct Descriptors(u64);

impl Descriptors {
    /// Takes `count` file descriptors. Returns `None` if the clients would then have more than half
    /// of those that the process may have: the rest is for its other work, such as clients of the
    /// daemon that end the relay.
    pub(super) fn take(count: u64) -> Option<Self> {
        let most = getrlimit(Resource::Nofile).current.map_or(u64::MAX, |most| most / 2);
        Self::of(&TAKEN, count, most)
    }

    /// Whether the clients have less than half of the file descriptors that they may have, so that
    /// there are some for clients that a relay has forgotten.
    pub(super) fn are_plenty() -> bool {
        let some = getrlimit(Resource::Nofile).current.map_or(u64::MAX, |most| most / 4);
        TAKEN.load(Ordering::Relaxed) < some // Relaxed: as in `of`.
    }

    fn of(taken: &AtomicU64, count: u64, most: u64) -> Option<Self> {
        let more = |taken: u64| Some(taken + count).filter(|taken| *taken <= most);
        // Relaxed: only the number itself matters.
        let took = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        took.ok().map(|_| Self(count))
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::Relaxed); // Relaxed: as in `of`.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_half_of_the_descriptors_at_most() {
        let taken = AtomicU64::new(0);
        for _ in 0..5 {
            let two = Descriptors::of(&taken, 2, 11).expect("there are enough");
            std::mem::forget(two); // It would be given back to all relays.
        }
        assert!(Descriptors::of(&taken, 2, 11).is_none());
        assert_eq!(taken.load(Ordering::Relaxed), 10);
    }
}
