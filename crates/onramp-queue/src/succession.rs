//! The succession of a port: the port takes packets until it is removed, and other ports, its
//! successors, then take over its flows. Ports are named by their numbers.
//!
//! ```text
//! OPEN ──leave──▶ LEAVING ──go──▶ GONE ──settle──▶ GONE, no packet on its way in
//! ```
//!
//! A port in the state LEAVING accepts no more packets; senders that have packets for it wait. A
//! port in the state GONE has successors, one for each group of flows. Until a GONE port is
//! *settled*, a sender whose flow now belongs to a successor waits while it finds a packet in the
//! GONE port (a packet that another thread was just pushing when the port was removed), because the
//! sender's own packet could overtake that packet.
//!
//! Successors may be removed, too. The thread that removes ports shortens chains of successors by
//! leaving out settled ports ([`Succession::skip`]), and keeps the number of removed ports that are
//! not settled small. So a sender looks at few ports, however many were removed.

use std::sync::OnceLock;

use crate::mutant;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64};

/// Number of groups of flows. All flows of a group have the same successor (the port that takes
/// over the flows of a removed port), at most 256. A model of all interleavings has few.
const GROUPS: usize = if cfg!(loom) { 2 } else { 256 };

const OPEN: u8 = 0;
const LEAVING: u8 = 1;
const GONE: u8 = 2;

/// Whether a port takes packets, and which ports take over its flows when it is gone (removed).
#[derive(Debug)]
pub struct Succession {
    state: AtomicU8,
    /// The time, in nanoseconds, until which senders wait for packets that other threads were just
    /// pushing into this port when it was removed; 0: they do not wait.
    patience: AtomicU64,
    successors: OnceLock<Box<[AtomicU32]>>,
}

impl Default for Succession {
    fn default() -> Self {
        let (state, patience) = (AtomicU8::new(OPEN), AtomicU64::new(0));
        Self { state, patience, successors: OnceLock::new() }
    }
}

/// Returns the number of the group to which the flow `key` belongs.
fn group(key: u64) -> usize {
    // Multiply the key to mix its bits, because the keys of the flows of one port are similar.
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % GROUPS
}

impl Succession {
    /// Whether the port is open: it takes packets and new flows.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        // Acquire: if the port is no longer open, makes its successors visible; pairs with the
        // release in `go`.
        self.state.load(mutant::or("succession-state-acquire", Acquire, Relaxed)) == OPEN
    }

    /// Whether the port is leaving: it is about to be removed and accepts no more packets, but may
    /// still hold packets.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        // Relaxed: a sender that misses the change pushes one more packet, and the port sends that
        // packet.
        self.state.load(Relaxed) == LEAVING
    }

    /// Whether the port is gone (removed): its flows belong to its successors.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        // Acquire: makes the successors visible; pairs with the release in `go`.
        self.state.load(mutant::or("succession-state-acquire", Acquire, Relaxed)) == GONE
    }

    /// Makes the port accept no more packets, because it is about to be removed.
    pub fn leave(&self) {
        // Relaxed: if a sender misses the change and pushes a packet, the port still sends it.
        self.state.store(LEAVING, Relaxed);
    }

    /// Makes the port gone and hands its flows to the ports with the numbers `successors`. Until
    /// the time `patience` (nanoseconds), senders of these flows wait for packets that other
    /// threads were just pushing into this port. Call this once per port.
    ///
    /// # Panics
    ///
    /// Panics when `successors` is empty.
    pub fn go(&self, successors: &[usize], patience: u64) {
        assert!(!successors.is_empty(), "the flows of a place that goes need another");
        let successor = |group: usize| {
            let successor = successors[group % successors.len()];
            AtomicU32::new(u32::try_from(successor).expect("places are counted by 32 bits"))
        };
        // `go` is called only once per port, so `set` does not fail.
        let _ = self.successors.set((0..GROUPS).map(successor).collect());
        self.patience.store(patience, Relaxed); // Relaxed: the release below publishes this value.
        // Release: publishes successors and patience; pairs with the acquire in `is_gone`.
        self.state.store(GONE, mutant::or("succession-go-release", Release, Relaxed));
    }

    /// Returns the number of the port to which the flow `key` belongs now; `None` if it still
    /// belongs to this port.
    #[must_use]
    pub fn successor(&self, key: u64) -> Option<usize> {
        if !self.is_gone() {
            return None;
        }
        // Acquire: the successor may be a port that was added after this port went; pairs with the
        // release in `skip`. A stale value names a successor that `skip` has left out since then,
        // and that port leads to the same final successor.
        let order = mutant::or("succession-successor-acquire", Acquire, Relaxed);
        Some(self.successors.get()?[group(key)].load(order) as usize)
    }

    /// Returns the time, in nanoseconds, until which senders of this port's former flows wait for
    /// packets that other threads were just pushing into the port when it was removed; 0: they do
    /// not wait.
    #[must_use]
    pub fn patience(&self) -> u64 {
        self.patience.load(Relaxed) // Relaxed: an old value only makes a sender wait longer.
    }

    /// Settles the removed port: from now on, no sender waits for packets that other threads were
    /// just pushing into the port when it was removed.
    pub fn settle(&self) {
        // Relaxed: a sender that sees the old value waits for some time although it need not.
        self.patience.store(0, Relaxed);
    }

    /// Redirects those flows of this port whose successor is the port with the number `place` to
    /// the successors of that port. `settled` is the succession of that port, which must be settled
    /// (no sender waits for its packets any more).
    pub fn skip(&self, place: usize, settled: &Self) {
        let (Some(mine), Some(theirs)) = (self.successors.get(), settled.successors.get()) else {
            return;
        };
        for (mine, theirs) in mine.iter().zip(theirs) {
            // Relaxed loads: only one thread at a time calls `skip`. Release: the successor may be
            // a port that other threads do not know yet; pairs with the acquire in `successor`.
            if mine.load(Relaxed) as usize == place {
                let order = mutant::or("succession-skip-release", Release, Relaxed);
                mine.store(theirs.load(Relaxed), order);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(successors: &[usize]) -> Succession {
        let place = Succession::default();
        assert!(place.is_open() && !place.is_leaving() && place.successor(7).is_none());
        place.leave();
        assert!(!place.is_open() && place.is_leaving() && place.successor(7).is_none());
        place.go(successors, 9);
        assert!(!place.is_open() && !place.is_leaving() && place.is_gone());
        place
    }

    /// Follows a flow from the port with the number `at` through all ports that are gone. Returns
    /// the number of the last port and the number of steps.
    fn follow(places: &[(usize, Succession)], mut at: usize, key: u64) -> (usize, usize) {
        let mut steps = 0;
        while let Some((_, place)) = places.iter().find(|(number, _)| *number == at) {
            at = place.successor(key).expect("it is gone");
            steps += 1;
        }
        (at, steps)
    }

    #[test]
    fn flows_spread_over_the_successors() {
        let place = gone(&[3, 5, 6]);
        let mut counts = [0; 7];
        for key in 0..3_000 {
            counts[place.successor(key).expect("it is gone")] += 1;
        }
        assert_eq!(counts.iter().sum::<i32>(), counts[3] + counts[5] + counts[6]);
        assert!(counts[3].min(counts[5]).min(counts[6]) > 900, "{counts:?}");
    }

    /// Leaving out settled ports (removed ports for whose packets no sender waits) shortens the
    /// chain of successors, and does not change the final successor of any flow.
    #[test]
    fn a_chain_is_shortened_without_a_change() {
        let places: Vec<_> = (0..20).map(|n| (n, gone(&[n + 1, n + 2, 30, 31]))).collect();
        let before: Vec<_> = (0..500).map(|key| follow(&places, 0, key).0).collect();
        for (number, settled) in &places[1..] {
            settled.settle();
            assert_eq!(settled.patience(), 0);
            places.iter().for_each(|(_, place)| place.skip(*number, settled));
        }
        for (key, end) in before.iter().enumerate() {
            assert_eq!(follow(&places, 0, key as u64), (*end, 1), "flow {key}");
        }
        assert_eq!(places[0].1.patience(), 9, "it was not settled");
    }
}
