//! A hash table from the keys of flows to their places in a slab.
//!
//! Open addressing with linear probing; a deletion moves later slots back. A slot holds 32 bits of
//! the hash and the place; the key itself lies in the slab, where the caller compares it.

use std::hash::{BuildHasher, RandomState};

use onramp_queue::prefetch;

/// Number of slots in an empty table. The number of slots is always a power of two.
const SLOTS_MIN: usize = 64;

/// The bits of a slot that come from the hash: its upper half.
const TAG: u64 = 0xFFFF_FFFF << 32;

#[derive(Debug)]
pub(super) struct Index {
    /// Each slot has the upper half of the hash in its upper 32 bits and the place in its lower 32
    /// bits. A slot of 0 is empty: no flow in the table has place 0.
    slots: Vec<u64>,
    len: usize,
    /// Random number that enters the hash, so that nobody can choose keys that collide. It does not
    /// affect any result of the table.
    seed: u64,
}

impl Index {
    pub(super) fn new() -> Self {
        Self { slots: vec![0; SLOTS_MIN], len: 0, seed: RandomState::new().hash_one(0_u64) }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Hashes a key by folded multiplication: every bit of the key affects every bit of the result.
    #[inline]
    pub(super) fn hash(&self, key: u64) -> u64 {
        let product = u128::from(key ^ self.seed) * 0x9E37_79B9_7F4A_7C15;
        #[expect(clippy::cast_possible_truncation, reason = "both halves are folded together")]
        let folded = (product >> 64) as u64 ^ product as u64;
        folded
    }

    /// Returns the place with this hash for which `is` returns true, or `None` if there is none.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut at = home(hash) & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            if slot >> 32 == hash >> 32 && is(place(slot)) {
                return Some(place(slot));
            }
            at = (at + 1) & mask;
        }
    }

    /// Asks the processor to load the slot at which probing for this hash begins.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.slots[home(hash) & (self.slots.len() - 1)]);
    }

    /// Returns the first place with this hash, without comparing keys.
    #[inline]
    pub(super) fn guess(&self, hash: u64) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// Adds a place, which must be neither 0 nor in the table yet.
    pub(super) fn insert(&mut self, hash: u64, place: u32) {
        if (self.len + 1) * 2 > self.slots.len() {
            self.grow();
        }
        self.put(hash & TAG | u64::from(place));
        self.len += 1;
    }

    /// Writes a slot into the first empty slot from its home on.
    fn put(&mut self, slot: u64) {
        let mask = self.slots.len() - 1;
        let mut at = home(slot) & mask;
        while self.slots[at] != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = slot;
    }

    fn grow(&mut self) {
        let slots = vec![0; self.slots.len() * 2];
        let old = std::mem::replace(&mut self.slots, slots);
        old.into_iter().filter(|slot| *slot != 0).for_each(|slot| self.put(slot));
    }

    /// Removes a place that is in the table.
    pub(super) fn remove(&mut self, hash: u64, at_place: u32) {
        let mask = self.slots.len() - 1;
        let mut hole = home(hash) & mask;
        while place(self.slots[hole]) != at_place {
            hole = (hole + 1) & mask;
        }
        // Close the gap: move back each slot that a probe from its home could no longer reach.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            let displacement = at.wrapping_sub(home(slot)) & mask;
            if displacement >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = 0;
        self.len -= 1;
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }
}

/// Returns where probing for a hash begins, before the mask is applied.
#[inline]
fn home(hash_or_slot: u64) -> usize {
    (hash_or_slot >> 32) as usize
}

#[inline]
fn place(slot: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let place = slot as u32;
    place
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Returns how many different homes 8,192 keys have among 16,384 slots, where each key is
    /// `step` larger than the one before. Random hashes would give 6,447 homes.
    fn homes(seed: u64, step: u64) -> usize {
        let index = Index { seed, ..Index::new() };
        let home = |n: u64| home(index.hash(n.wrapping_mul(step))) % 16_384;
        (0..8_192).map(home).collect::<HashSet<_>>().len()
    }

    /// Keys that follow a regular pattern are spread over the table: few of them share a home.
    #[test]
    fn keys_are_spread() {
        for seed in [0, 1, 0x1234_5678_90AB_CDEF, u64::MAX] {
            for step in [1, 1 << 8, 1 << 16, 1 << 32, 1 << 40, 1 << 48, 0x1_0001] {
                let found = homes(seed, step);
                assert!(found >= 4_100, "{seed:#x} {step:#x}: {found}");
            }
        }
    }

    #[test]
    fn nobody_knows_which_keys_meet() {
        let hashes: HashSet<u64> = (0..4).map(|_| Index::new().hash(7)).collect();
        assert_eq!(hashes.len(), 4);
    }
}
