//! Classes that wait for tokens: the earliest first, and among classes with equal times the one
//! that came first.
//!
//! A class that stops waiting early leaves its entry behind. Such an entry is stale: each class
//! knows the place number of its valid entry.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A waiting class: its time in the upper 64 bits, then its place in the order of arrival (48
/// bits), then its minor number. All three are in one number, because such entries compare without
/// branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry(u128);

impl Entry {
    #[inline]
    pub(super) fn time_ns(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// Returns the place in the order of arrival, which is never zero.
    #[inline]
    pub(super) fn place(self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let lower = self.0 as u64;
        lower >> 16
    }

    #[inline]
    pub(super) fn number(self) -> u16 {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest 16 bits")]
        let number = self.0 as u16;
        number
    }
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    heap: BinaryHeap<Reverse<Entry>>,
    /// Number of entries that may be stale.
    stale: usize,
    /// The place number of the last entry.
    place: u64,
}

/// Stale entries are removed all at once when there are more of them than of valid entries, and
/// more than this number.
const STALE_MAX: usize = 32;

impl Waiting {
    /// Makes a class wait until `time_ns`, and returns the place number of its entry.
    #[inline]
    pub(super) fn push(&mut self, time_ns: u64, number: u16) -> u64 {
        self.place += 1;
        let entry = u128::from(time_ns) << 64 | u128::from(self.place << 16 | u64::from(number));
        self.heap.push(Reverse(Entry(entry)));
        self.place
    }

    /// Notes that an entry is stale; `counts` tells which entries are valid.
    #[inline]
    pub(super) fn forget_one(&mut self, counts: impl Fn(Entry) -> bool) {
        self.stale += 1;
        if self.stale > STALE_MAX.max(self.heap.len() / 2) {
            self.heap.retain(|Reverse(entry)| counts(*entry));
            self.stale = 0;
        }
    }

    /// Removes and returns the first valid entry if its time has come. Otherwise returns as an
    /// error when the first entry's time comes, or `None` if no class waits.
    #[inline]
    pub(super) fn pop_due(
        &mut self,
        now_ns: u64,
        counts: impl Fn(Entry) -> bool,
    ) -> Result<Entry, Option<u64>> {
        while let Some(Reverse(entry)) = self.heap.peek().copied() {
            let counting = self.stale == 0 || counts(entry);
            if counting && entry.time_ns() > now_ns {
                return Err(Some(entry.time_ns()));
            }
            self.heap.pop();
            if counting {
                return Ok(entry);
            }
            self.stale -= 1;
        }
        Err(None)
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
        self.stale = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_then_the_first_to_come() {
        let mut waiting = Waiting::default();
        let places = [(30, 7), (10, 9), (10, 3), (20, 1)].map(|(time, n)| waiting.push(time, n));
        assert_eq!(places, [1, 2, 3, 4]);
        assert_eq!(waiting.pop_due(9, |_| true), Err(Some(10)));
        let mut due = || waiting.pop_due(25, |_| true).map(Entry::number);
        assert_eq!([due(), due(), due(), due()], [Ok(9), Ok(3), Ok(1), Err(Some(30))]);
    }

    #[test]
    fn entries_left_behind_do_not_count() {
        let mut waiting = Waiting::default();
        for round in 1..=1_000 {
            assert_eq!(waiting.push(10, 5), round);
            if round > 1 {
                waiting.forget_one(|entry| entry.place() == round);
            }
            assert!(waiting.heap.len() <= 3 * STALE_MAX);
        }
        let last = |entry: Entry| entry.place() == 1_000;
        assert_eq!(waiting.pop_due(10, last).map(Entry::place), Ok(1_000));
        assert_eq!(waiting.pop_due(10, |_| false), Err(None));
    }
}
