//! Checks the invariants of the groups of aggregates after each step of a test.
//!
//! Source: Checconi, Rizzo, Valente, "QFQ: Efficient Packet Scheduling with Tight Guarantees",
//! 2013, section 4: a group is in one of four sets; which one depends on whether the group's start
//! has come, and on whether a ready group of longer services finishes before it.

use super::{
    BLOCKED, GROUPS, Group, INELIGIBLE, READY, SLOTS, Schedule, after, rounded, slot_bits,
};

impl Schedule {
    /// Panics if the sets of groups, the slots and the aggregates contradict each other.
    pub(crate) fn check(&self) {
        let state = |index: usize| (0..4).find(|set| self.sets[*set] & (1 << index) != 0);
        for set in 0..4 {
            for other in set + 1..4 {
                assert_eq!(self.sets[set] & self.sets[other], 0, "a group is in one set");
            }
        }
        for index in 0..GROUPS {
            let group = &self.groups[index];
            assert_eq!(group.full != 0, state(index).is_some(), "group {index}: {group:?}");
            let whole = group.start.wrapping_add(2 << slot_bits(index));
            assert!(group.full == 0 || group.finish == whole, "group {index}: {group:?}");
        }
        for (number, aggregate) in self.aggregates.iter().enumerate() {
            let waits = self.links.has(number);
            if aggregate.classes == 0 {
                assert!(!waits && self.served != Some(number), "{number} has no class");
                continue;
            }
            assert!(!(waits && self.served == Some(number)), "{number} waits and is served");
            if waits {
                self.check_slot(&self.groups[aggregate.group], aggregate.group, number);
            }
            let active = !aggregate.active.is_empty();
            assert!(!active || waits || self.served == Some(number), "{number} is forgotten");
        }
        self.check_sets();
    }

    /// Checks that a waiting aggregate is in the slot in which its start lies, or in the first slot
    /// of its group if its start is earlier.
    fn check_slot(&self, group: &Group, index: usize, number: usize) {
        let aggregate = &self.aggregates[number];
        let slot = (aggregate.slot + SLOTS - group.front) % SLOTS;
        assert!(group.full & (1 << slot) != 0, "{number}: its slot is empty: {group:?}");
        let start = rounded(aggregate.start, index);
        let slots = group.start.wrapping_add((slot as u64) << slot_bits(index));
        assert!(slots == start || (slot == 0 && after(slots, start)), "{number}: {group:?}");
    }

    /// Checks which set each group is in: the start of an eligible group has come, and the start of
    /// another group has not. Of two ready groups, the one with the longer services finishes later;
    /// each blocked group finishes after a ready group of longer services.
    fn check_sets(&self) {
        let is = |set: usize, index: &usize| self.sets[set] & (1 << index) != 0;
        for index in (0..GROUPS).filter(|index| self.groups[*index].full != 0) {
            let Group { start, finish, .. } = self.groups[index];
            let eligible = is(READY, &index) || is(BLOCKED, &index);
            if eligible {
                assert!(!after(start, self.now), "{index} is eligible before its start");
            } else {
                assert!(after(start, self.before), "{index} is not eligible since its start");
            }
            let mut longer = (index + 1..GROUPS).filter(|index| is(READY, index));
            let blocks = |other: usize| after(finish, self.groups[other].finish);
            if is(READY, &index) {
                assert!(!longer.any(blocks), "{index} is ready, and finishes after a longer one");
            } else if !is(INELIGIBLE, &index) {
                assert!(longer.any(blocks), "{index} is blocked by nobody");
            }
        }
    }
}
