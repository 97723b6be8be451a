//! A hash table from the keys of flows to their places in a slab.
//!
//! The table uses open addressing with linear probing; removing an entry moves later slots back to
//! close the gap. A slot holds 32 bits of the hash, and a place; the key itself is in the slab,
//! where the caller compares it.

use std::hash::{BuildHasher, RandomState};

use onramp_queue::prefetch;

/// Number of slots in an empty table. The number of slots is always a power of two.
const SLOTS_MIN: usize = 64;

/// The bits of a slot that come from the hash: the upper half of the slot.
const TAG: u64 = 0xFFFF_FFFF << 32;

#[derive(Debug)]
pub(super) struct Index {
    /// Each slot has the upper half of the hash in its upper 32 bits and the place in its lower 32
    /// bits. A slot of 0 is empty: no flow in the table has place 0.
    slots: Vec<u64>,
    len: usize,
    /// A random number that enters the hash, so that nobody can choose keys that collide. The table
    /// returns the same results with any seed.
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

    /// Returns the place that was added with this hash and for which `is` returns true, or `None`
    /// if there is none.
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

    /// Asks the processor to load the slot at which a search for this hash begins.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.slots[home(hash) & (self.slots.len() - 1)]);
    }

    /// Returns the first place found for this hash, without comparing keys. The place belongs to
    /// another key only if the upper 32 bits of both keys' hashes are equal.
    #[inline]
    pub(super) fn guess(&self, hash: u64) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// Adds the place `place` with the hash `hash`. The place must be neither 0 nor already in the
    /// table.
    pub(super) fn insert(&mut self, hash: u64, place: u32) {
        if (self.len + 1) * 2 > self.slots.len() {
            self.grow();
        }
        self.put(hash & TAG | u64::from(place));
        self.len += 1;
    }

    /// Writes `slot` to the first empty slot, searching from the slot that the hash in `slot`
    /// selects.
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

    /// Removes the place `at_place`, which must be in the table with the hash `hash`.
    pub(super) fn remove(&mut self, hash: u64, at_place: u32) {
        let mask = self.slots.len() - 1;
        let mut hole = home(hash) & mask;
        while place(self.slots[hole]) != at_place {
            hole = (hole + 1) & mask;
        }
        // Close the gap: move back each slot that a search from its home could no longer reach.
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

/// Returns the home of a hash: the number of the slot at which a search for the hash begins. The
/// caller reduces the number modulo the number of slots.
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

    /// Returns how many different homes (slots where a search begins) 8,192 keys have among 16,384
    /// slots, where each key is `step` larger than the one before. Random hashes would give 6,447
    /// homes.
    fn homes(seed: u64, step: u64) -> usize {
        let index = Index { seed, ..Index::new() };
        let home = |n: u64| home(index.hash(n.wrapping_mul(step))) % 16_384;
        (0..8_192).map(home).collect::<HashSet<_>>().len()
    }

    /// Keys that follow a regular pattern are spread over the table: for few of them, the search
    /// begins at the same slot.
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
