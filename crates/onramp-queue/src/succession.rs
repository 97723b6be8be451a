//! A place that takes packets, until it goes and others take over.
//!
//! ```text
//! OPEN ──leave──▶ LEAVING ──go──▶ GONE ──settle──▶ GONE, nothing on its way
//! ```
//!
//! A place that LEAVES takes nothing more; what comes for it waits. One that is GONE has successors, by
//! the flow. Until it is *settled*, a sender that finds a packet in it waits: that packet was on
//! its way in when the place went.
//!
//! Successors may go, too. The thread that removes places shortens chains of settled ones
//! ([`Succession::skip`]), and keeps the unsettled ones few. So a sender looks at few places,
//! however many went.

use std::sync::OnceLock;

use crate::mutant;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64};

/// Groups of flows. All flows of a group have the same successor.
const GROUPS: usize = 256;

const OPEN: u8 = 0;
const LEAVING: u8 = 1;
const GONE: u8 = 2;

/// Whether a place takes packets, and who takes over.
#[derive(Debug)]
pub struct Succession {
    state: AtomicU8,
    /// Until when who comes waits for packets that were on their way in, nanoseconds.
    patience: AtomicU64,
    successors: OnceLock<Box<[AtomicU32]>>,
}

impl Default for Succession {
    fn default() -> Self {
        let (state, patience) = (AtomicU8::new(OPEN), AtomicU64::new(0));
        Self { state, patience, successors: OnceLock::new() }
    }
}

/// The group of the flow `key`.
fn group(key: u64) -> usize {
    // Mixed: the flows of one place have keys that are alike.
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

impl Succession {
    /// It takes packets, and new flows.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        // Acquire: once it is not, its successors; pairs with the release in `go`.
        self.state.load(mutant::or("succession-state-acquire", Acquire, Relaxed)) == OPEN
    }

    /// It takes no packets, and still has some.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        // Relaxed: a sender that misses it brings a packet, which is sent.
        self.state.load(Relaxed) == LEAVING
    }

    /// Its flows are those of its successors.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        // Acquire: its successors; pairs with the release in `go`.
        self.state.load(mutant::or("succession-state-acquire", Acquire, Relaxed)) == GONE
    }

    /// It takes nothing more.
    pub fn leave(&self) {
        self.state.store(LEAVING, Relaxed); // Relaxed: as in `is_leaving`.
    }

    /// Its flows are those of `successors` from now on, which wait until `patience` for packets that
    /// were on their way in. It goes once.
    ///
    /// # Panics
    ///
    /// Panics when there are no successors.
    pub fn go(&self, successors: &[usize], patience: u64) {
        assert!(!successors.is_empty(), "the flows of a place that goes need another");
        let successor = |group: usize| {
            let successor = successors[group % successors.len()];
            AtomicU32::new(u32::try_from(successor).expect("places are counted by 32 bits"))
        };
        let _ = self.successors.set((0..GROUPS).map(successor).collect()); // It goes once.
        self.patience.store(patience, Relaxed); // Relaxed: the release below.
        // Release: successors and patience; pairs with the acquire in `is_gone`.
        self.state.store(GONE, mutant::or("succession-go-release", Release, Relaxed));
    }

    /// Who has the flow `key` now; `None`: this one.
    #[must_use]
    pub fn successor(&self, key: u64) -> Option<usize> {
        if !self.is_gone() {
            return None;
        }
        // Relaxed: to go by a place that was skipped since leads to the same successor.
        Some(self.successors.get()?[group(key)].load(Relaxed) as usize)
    }

    /// Until when its successors wait for what came late, nanoseconds; 0: no longer.
    #[must_use]
    pub fn patience(&self) -> u64 {
        self.patience.load(Relaxed) // Relaxed: who sees an old one waits for nothing, for a while.
    }

    /// Nothing is on its way in any more.
    pub fn settle(&self) {
        self.patience.store(0, Relaxed); // Relaxed: as above.
    }

    /// Flows whose successor here is `settled`, the place number `place`, go to that place's own successors
    /// from now on.
    pub fn skip(&self, place: usize, settled: &Self) {
        let (Some(mine), Some(theirs)) = (self.successors.get(), settled.successors.get()) else {
            return;
        };
        for (mine, theirs) in mine.iter().zip(theirs) {
            // Relaxed: as in `successor`; one thread at a time skips.
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

    /// The end of the way of a flow through places that went, and its length.
    fn follow(places: &[(usize, Succession)], mut at: usize, key: u64) -> (usize, usize) {
        let mut steps = 0;
        while let Some((_, place)) = places.iter().find(|(number, _)| *number == at) {
            at = place.successor(key).expect("it is gone");
            steps += 1;
        }
        (at, steps)
    }

    #[test]
    fn flows_spread_over_the_heirs() {
        let place = gone(&[3, 5, 6]);
        let mut counts = [0; 7];
        for key in 0..3_000 {
            counts[place.successor(key).expect("it is gone")] += 1;
        }
        assert_eq!(counts.iter().sum::<i32>(), counts[3] + counts[5] + counts[6]);
        assert!(counts[3].min(counts[5]).min(counts[6]) > 900, "{counts:?}");
    }

    /// To skip what is settled shortens the way, and changes no flow's successor.
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
