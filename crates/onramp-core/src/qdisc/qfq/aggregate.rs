//! Aggregates: classes that are scheduled as a unit.

use super::super::classes::List;

/// Number of groups. A group takes aggregates whose service times have about the same number of
/// bits.
pub(super) const GROUPS: usize = 25;
/// Length in bits of the shortest slot: the whole budget of the largest aggregate, 2^(16 + 3)
/// bytes, fits a slot of the last group.
pub(super) const SLOT_BITS: u32 = 30 + 16 + 3 - 24;

/// Classes of the same weight and largest packet.
#[derive(Debug, Default)]
pub(super) struct Aggregate {
    pub(super) start: u64,
    pub(super) finish: u64,
    pub(super) group: usize,
    /// The slot of the group in which the aggregate waits.
    pub(super) slot: usize,
    /// The weight and the largest packet of each class.
    pub(super) weight: u32,
    pub(super) packet_max: u32,
    /// The inverse of the sum of the classes' weights, in fixed point.
    pub(super) inverse: u32,
    pub(super) classes: u32,
    /// Bytes that the aggregate may send before another one is chosen: the bound, the bytes it
    /// began with, and the bytes left.
    pub(super) budget_max: u32,
    pub(super) begun: u32,
    pub(super) left: u32,
    /// Places of the classes that hold packets, in the order of their turns.
    pub(super) active: List,
}

impl Aggregate {
    /// Returns the group whose slots are long enough for a whole budget.
    pub(super) fn fitting_group(&self) -> usize {
        let service = u64::from(self.budget_max) * u64::from(self.inverse);
        let slots = service.div_ceil(1 << SLOT_BITS);
        (slots.next_power_of_two().trailing_zeros() as usize).min(GROUPS - 1)
    }

    pub(super) fn recharge(&mut self) {
        (self.begun, self.left) = (self.budget_max, self.budget_max);
    }

    /// Sets the finish to the virtual time at which the service that was used ends.
    pub(super) fn settle(&mut self) {
        // If classes have left, the budget has become smaller than what was used.
        let taken = self.begun.wrapping_sub(self.left).min(self.budget_max);
        self.finish = self.start.wrapping_add(u64::from(taken) * u64::from(self.inverse));
    }

    /// Sets the finish to the virtual time at which a whole budget ends.
    pub(super) fn plan(&mut self) {
        let whole = u64::from(self.budget_max) * u64::from(self.inverse);
        self.finish = self.start.wrapping_add(whole);
    }
}
