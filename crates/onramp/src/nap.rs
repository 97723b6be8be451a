//! How long a thread sleeps between two checks of a condition that no other thread tells it about.

use std::time::Duration;

/// The length of the next sleep between two checks. The first sleep takes 50 µs, because most waits
/// are short. Each sleep is an eighth longer than the one before, up to 20 ms, so that a long wait
/// uses little processor time.
#[derive(Debug)]
pub(crate) struct Nap(Duration);

impl Nap {
    const FIRST: Duration = Duration::from_micros(50);
    const LONGEST: Duration = Duration::from_millis(20);

    /// Returns the length of the sleep to take now, which is at most `left` nanoseconds, and makes
    /// the next one longer.
    pub(crate) fn next(&mut self, left: u64) -> Duration {
        let nap = self.0.min(Duration::from_nanos(left));
        self.0 = (self.0 * 9 / 8).min(Self::LONGEST);
        nap
    }
}

impl Default for Nap {
    fn default() -> Self {
        Self(Self::FIRST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_up_to_a_bound() {
        let mut nap = Nap::default();
        assert_eq!(nap.next(10), Duration::from_nanos(10));
        let naps: Vec<_> = (0..100).map(|_| nap.next(u64::MAX)).collect();
        assert!(naps.is_sorted());
        assert_eq!(naps[0], Nap::FIRST * 9 / 8);
        assert_eq!(naps[99], Nap::LONGEST);
        // Because the sleeps grow, a wait of two seconds takes at most two hundred sleeps. If each
        // sleep took 50 µs, as the first does, the wait would take forty thousand sleeps.
        let until_longest: Duration = naps.iter().take_while(|nap| **nap < Nap::LONGEST).sum();
        assert!(until_longest < Duration::from_millis(200), "{until_longest:?}");
    }
}
