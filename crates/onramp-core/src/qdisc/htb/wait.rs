//! Classes that wait for tokens: the class with the earliest time is first; of classes with equal
//! times, the class that came first.
//!
//! A class that stops waiting before its time leaves its entry behind. Such an entry is stale: it
//! no longer counts, because each class knows the number of its valid entry.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The entry of a waiting class: its time in the upper 64 bits, then the entry's place number (48
/// bits; entries are numbered in the order in which they are made), then the class's minor number.
/// All three are in one integer, because comparing integers needs no branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry(u128);

impl Entry {
    #[inline]
    pub(super) fn time_ns(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// Returns the entry's place number, which is never zero.
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
    /// Number of entries that may be stale (their class no longer waits for them).
    stale: usize,
    /// The place number that the last entry got.
    place: u64,
}

/// Stale entries (whose class no longer waits for them) are removed all at once when they outnumber
/// the valid ones, and there are more of them than this.
const STALE_MAX: usize = 32;

impl Waiting {
    /// Makes the class with the minor number `number` wait until `time_ns`. Returns the place
    /// number of its entry.
    #[inline]
    pub(super) fn push(&mut self, time_ns: u64, number: u16) -> u64 {
        self.place += 1;
        let entry = u128::from(time_ns) << 64 | u128::from(self.place << 16 | u64::from(number));
        self.heap.push(Reverse(Entry(entry)));
        self.place
    }

    /// Notes that one more entry is stale (its class no longer waits for it); `counts` returns
    /// whether an entry is valid.
    #[inline]
    pub(super) fn forget_one(&mut self, counts: impl Fn(Entry) -> bool) {
        self.stale += 1;
        if self.stale > STALE_MAX.max(self.heap.len() / 2) {
            self.heap.retain(|Reverse(entry)| counts(*entry));
            self.stale = 0;
        }
    }

    /// Removes and returns the first valid entry if its time has come. Otherwise returns as an
    /// error the time of the first entry, or `None` if no class waits.
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
