//! Classes that are scheduled as one.

use super::super::classes::List;

/// Groups: the numbers of bits in which services may differ.
pub(super) const GROUPS: usize = 25;
/// The shortest slot: the largest aggregate's whole budget, 2^(16 + 3) bytes, in the last group's.
pub(super) const SLOT_BITS: u32 = 30 + 16 + 3 - 24;

/// Classes of the same weight and largest packet.
#[derive(Debug, Default)]
pub(super) struct Aggregate {
    pub(super) start: u64,
    pub(super) finish: u64,
    pub(super) group: usize,
    /// Where in its group it waits.
    pub(super) slot: usize,
    /// Of each class.
    pub(super) weight: u32,
    pub(super) packet_max: u32,
    /// One by the weight of all.
    pub(super) inverse: u32,
    pub(super) classes: u32,
    /// Bytes it may send before another is chosen; what it began with, and what is left.
    pub(super) budget_max: u32,
    pub(super) begun: u32,
    pub(super) left: u32,
    /// Places of classes that hold something, in the order of their turns.
    pub(super) active: List,
}

impl Aggregate {
    /// The group in whose slots a whole budget fits.
    pub(super) fn fitting_group(&self) -> usize {
        let service = u64::from(self.budget_max) * u64::from(self.inverse);
        let slots = service.div_ceil(1 << SLOT_BITS);
        (slots.next_power_of_two().trailing_zeros() as usize).min(GROUPS - 1)
    }

    pub(super) fn recharge(&mut self) {
        (self.begun, self.left) = (self.budget_max, self.budget_max);
    }

    /// Moves the finish to where the service that was taken ends.
    pub(super) fn settle(&mut self) {
        // Classes may have left, and the budget with them.
        let taken = self.begun.wrapping_sub(self.left).min(self.budget_max);
        self.finish = self.start.wrapping_add(u64::from(taken) * u64::from(self.inverse));
    }

    /// Moves the finish to where a whole budget ends.
    pub(super) fn plan(&mut self) {
        let whole = u64::from(self.budget_max) * u64::from(self.inverse);
        self.finish = self.start.wrapping_add(whole);
    }
}
