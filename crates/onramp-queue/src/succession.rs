//! A place (a port) that takes packets until it is removed, and the successors that then take over
//! its flows.
//!
//! ```text
//! OPEN ──leave──▶ LEAVING ──go──▶ GONE ──settle──▶ GONE, no packet on its way in
//! ```
//!
//! A place that is LEAVING accepts no more packets; senders wait with packets for it. A place that
//! is GONE has successors, chosen by flow. Until a GONE place is *settled*, a sender that finds a
//! packet in the place waits: that packet was on its way in when the place went.
//!
//! Successors may be removed, too. The thread that removes places shortens chains of settled places
//! ([`Succession::skip`]), and keeps the number of unsettled places small. So a sender looks at few
//! places, however many were removed.

use std::sync::OnceLock;

use crate::mutant;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64};

/// Number of groups of flows. All flows of a group have the same successor.
const GROUPS: usize = 256;

const OPEN: u8 = 0;
const LEAVING: u8 = 1;
const GONE: u8 = 2;

/// Whether a place takes packets, and which places take over its flows.
#[derive(Debug)]
pub struct Succession {
    state: AtomicU8,
    /// Until when senders wait for packets that were on their way into this place, in nanoseconds.
    patience: AtomicU64,
    successors: OnceLock<Box<[AtomicU32]>>,
}

impl Default for Succession {
    fn default() -> Self {
        let (state, patience) = (AtomicU8::new(OPEN), AtomicU64::new(0));
        Self { state, patience, successors: OnceLock::new() }
    }
}

/// Returns the group of the flow `key`.
fn group(key: u64) -> usize {
    // The key is mixed, because the keys of one place's flows are similar.
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

impl Succession {
    /// Whether the place takes packets and new flows.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        // Acquire: if the place is no longer open, makes its successors visible; pairs with the
        // release in `go`.
        self.state.load(mutant::or("succession-state-acquire", Acquire, Relaxed)) == OPEN
    }

    /// Whether the place accepts no more packets but may still hold some.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        // Relaxed: a sender that misses the change pushes one more packet, and the place sends that
        // packet.
        self.state.load(Relaxed) == LEAVING
    }

    /// Whether the place is gone, so that its flows belong to its successors.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        // Acquire: makes the successors visible; pairs with the release in `go`.
        self.state.load(mutant::or("succession-state-acquire", Acquire, Relaxed)) == GONE
    }

    /// Makes the place accept no more packets.
    pub fn leave(&self) {
        self.state.store(LEAVING, Relaxed); // Relaxed: packets of late senders are sent.
    }

    /// Hands the flows of the place to `successors`, which wait until `patience` (nanoseconds) for
    /// packets that were on their way in. Call this once per place.
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
        // The first call is the only one.
        let _ = self.successors.set((0..GROUPS).map(successor).collect());
        self.patience.store(patience, Relaxed); // Relaxed: the release below publishes it.
        // Release: publishes successors and patience; pairs with the acquire in `is_gone`.
        self.state.store(GONE, mutant::or("succession-go-release", Release, Relaxed));
    }

    /// Returns the place that has the flow `key` now; `None`: this place.
    #[must_use]
    pub fn successor(&self, key: u64) -> Option<usize> {
        if !self.is_gone() {
            return None;
        }
        // Relaxed: a stale value names a place that was skipped since, and that place leads to the
        // same successor.
        Some(self.successors.get()?[group(key)].load(Relaxed) as usize)
    }

    /// Returns until when the successors wait for late packets, in nanoseconds; 0: they wait no
    /// longer.
    #[must_use]
    pub fn patience(&self) -> u64 {
        self.patience.load(Relaxed) // Relaxed: see `settle`.
    }

    /// Notes that no packet is on its way into this place any more.
    pub fn settle(&self) {
        // Relaxed: a sender that sees the old value waits in vain for a while.
        self.patience.store(0, Relaxed);
    }

    /// Redirects the flows whose successor is place number `place` to the successors of that place.
    /// `settled` is the succession of that place, which must be settled.
    pub fn skip(&self, place: usize, settled: &Self) {
        let (Some(mine), Some(theirs)) = (self.successors.get(), settled.successors.get()) else {
            return;
        };
        for (mine, theirs) in mine.iter().zip(theirs) {
            // Relaxed: as in `successor`; only one thread at a time calls `skip`.
            if mine.load(Relaxed) as usize == place {
                mine.store(theirs.load(Relaxed), Relaxed);
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

    /// Follows a flow through places that went. Returns the last place and the number of steps.
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

    /// Skipping settled places shortens the chain, and changes no flow's final successor.
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
