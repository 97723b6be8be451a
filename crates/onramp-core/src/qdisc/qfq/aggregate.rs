//! Aggregates: groups of up to eight classes of `qfq` that are scheduled as a unit.

use super::super::classes::List;

/// Number of groups. A group has the aggregates whose virtual service times (budget divided by
/// weight) have about the same number of bits.
pub(super) const GROUPS: usize = 25;
/// The slots of the first group are 2 to this power long, in virtual time. This is long enough that
/// even the service of the largest aggregate (8 packets of 2^16 bytes each, so 2^(16 + 3) bytes)
/// fits into a slot of the last group.
pub(super) const SLOT_BITS: u32 = 30 + 16 + 3 - 24;

/// An aggregate: classes with the same weight and the same largest packet.
#[derive(Debug, Default)]
pub(super) struct Aggregate {
    pub(super) start: u64,
    pub(super) finish: u64,
    pub(super) group: usize,
    /// The number of the slot, in the ring of slots of its group, in which the aggregate waits.
    pub(super) slot: usize,
    /// The weight of each class, and the size of its largest packet in bytes.
    pub(super) weight: u32,
    pub(super) packet_max: u32,
    /// The inverse of the sum of the classes' weights, as a fixed-point number.
    pub(super) inverse: u32,
    pub(super) classes: u32,
    /// The budget of the aggregate (the bytes that it may send before another aggregate is chosen):
    /// its greatest value, its value when the present service began, and how much of it is left.
    pub(super) budget_max: u32,
    pub(super) begun: u32,
    pub(super) left: u32,
    /// The classes that hold packets, in the order of their turns.
    pub(super) active: List,
}

impl Aggregate {
    /// Returns the number of the group whose slots are long enough for a whole budget of this
    /// aggregate.
    pub(super) fn fitting_group(&self) -> usize {
        let service = u64::from(self.budget_max) * u64::from(self.inverse);
        let slots = service.div_ceil(1 << SLOT_BITS);
        (slots.next_power_of_two().trailing_zeros() as usize).min(GROUPS - 1)
    }

    pub(super) fn recharge(&mut self) {
        (self.begun, self.left) = (self.budget_max, self.budget_max);
    }

    /// Sets `finish` to the virtual time at which the aggregate's service ends, given the bytes of
    /// its budget that it has sent.
    pub(super) fn settle(&mut self) {
        // If classes have left the aggregate, its whole budget may now be less than what it has
        // sent.
        let taken = self.begun.wrapping_sub(self.left).min(self.budget_max);
        self.finish = self.start.wrapping_add(u64::from(taken) * u64::from(self.inverse));
    }

    /// Sets `finish` to the virtual time at which the aggregate's service ends if it sends its
    /// whole budget.
    pub(super) fn plan(&mut self) {
        let whole = u64::from(self.budget_max) * u64::from(self.inverse);
        self.finish = self.start.wrapping_add(whole);
    }
}
