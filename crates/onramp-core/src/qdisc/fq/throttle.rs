//! Flows that wait for their time: the earliest first, and among equals the one that came first.
//!
//! A flow that moves forward leaves its old entry behind. An entry counts if its flow still waits
//! and knows its place; the rest is swept out at the top, and all at once when it is the most.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::flow::{Flows, State};

/// A waiting flow: its time above, then its place in the order of coming, its index below. One
/// number, as that compares without branches, which a heap cannot foresee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(u128);

impl Entry {
    #[inline]
    fn new(time_ns: u64, place: u32, flow: u32) -> Self {
        Self(u128::from(time_ns) << 64 | u128::from(place) << 32 | u128::from(flow))
    }

    #[inline]
    fn time_ns(self) -> u64 {
        (self.0 >> 64) as u64
    }

    #[inline]
    fn place(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the upper half of the lower")]
        let place = (self.0 >> 32) as u32;
        place
    }

    #[inline]
    fn flow(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest quarter")]
        let flow = self.0 as u32;
        flow
    }

    /// Whether its flow still waits there.
    fn counts(self, flows: &Flows) -> bool {
        let flow = flows.get(self.flow());
        flow.state == State::Throttled && flow.link == self.place()
    }
}

/// The waiting flows; 16 bytes each.
#[derive(Debug, Default)]
pub(super) struct Throttled {
    /// The first one always counts.
    heap: BinaryHeap<Reverse<Entry>>,
    /// Entries that no longer count.
    stale: usize,
    /// The next place.
    place: u32,
}

impl Throttled {
    /// Flows that wait.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.heap.len() - self.stale
    }

    /// When the first one may go on; the end of time if there is none.
    #[inline]
    pub(super) fn first_ns(&self) -> u64 {
        self.heap.peek().map_or(u64::MAX, |Reverse(entry)| entry.time_ns())
    }

    /// Lets a flow wait until its next time.
    #[inline]
    pub(super) fn push(&mut self, flows: &mut Flows, index: u32) {
        if self.place == u32::MAX {
            self.renumber(flows, index);
        }
        let flow = flows.get_mut(index);
        flow.state = State::Throttled;
        flow.link = self.place;
        self.heap.push(Reverse(Entry::new(flow.time_next_ns, self.place, index)));
        self.place += 1;
    }

    /// Lets a flow that waits do so until its next time, which has changed.
    #[cold]
    pub(super) fn push_again(&mut self, flows: &mut Flows, index: u32) {
        self.stale += 1;
        self.push(flows, index);
        self.sweep(flows);
    }

    /// Notes that a flow that waited does not any more.
    #[cold]
    pub(super) fn forget_one(&mut self, flows: &Flows) {
        self.stale += 1;
        self.sweep(flows);
    }

    /// Takes the first one if its time has come.
    #[inline]
    pub(super) fn pop_due(&mut self, flows: &Flows, now_ns: u64) -> Option<u32> {
        if self.first_ns() > now_ns {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        if self.stale > 0 {
            self.sweep(flows);
        }
        if self.heap.is_empty() {
            self.place = 0;
        }
        Some(entry.flow())
    }

    /// Removes entries that no longer count from the top, or all if they are the most.
    fn sweep(&mut self, flows: &Flows) {
        if self.stale > self.heap.len() / 2 {
            self.heap.retain(|Reverse(entry)| entry.counts(flows));
            self.stale = 0;
        }
        while self.heap.peek().is_some_and(|Reverse(entry)| !entry.counts(flows)) {
            self.heap.pop();
            self.stale -= 1;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Makes places small again, once in 2^32 flows; leaves `moving` out, which comes anew.
    #[cold]
    fn renumber(&mut self, flows: &mut Flows, moving: u32) {
        let mut heap = std::mem::take(self).heap;
        heap.retain(|Reverse(entry)| entry.flow() != moving && entry.counts(flows));
        for Reverse(entry) in heap.into_sorted_vec().into_iter().rev() {
            self.push(flows, entry.flow());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(times: &[u64]) -> (Flows, Throttled, Vec<u32>) {
        let (mut flows, mut throttled, mut indices) = (Flows::new(), Throttled::default(), vec![]);
        for (key, time) in times.iter().enumerate() {
            let index = flows.find_or_insert(key as u64, 0, 0, usize::MAX).index;
            flows.get_mut(index).time_next_ns = *time;
            throttled.push(&mut flows, index);
            indices.push(index);
        }
        (flows, throttled, indices)
    }

    fn pop_all(flows: &mut Flows, throttled: &mut Throttled) -> Vec<u32> {
        std::iter::from_fn(|| {
            let index = throttled.pop_due(flows, u64::MAX - 1)?;
            flows.get_mut(index).state = State::Listed;
            Some(index)
        })
        .collect()
    }

    #[test]
    fn places_survive_their_renumbering() {
        let (mut flows, mut throttled, i) = waiting(&[5, 5, 9]);
        flows.get_mut(i[2]).time_next_ns = 5;
        throttled.push_again(&mut flows, i[2]);
        throttled.place = u32::MAX;
        let last = flows.find_or_insert(3, 0, 0, usize::MAX).index;
        flows.get_mut(last).time_next_ns = 5;
        throttled.push(&mut flows, last);
        assert_eq!((throttled.place, throttled.len()), (4, 4), "the stale entry is gone");
        assert_eq!(pop_all(&mut flows, &mut throttled), [i[0], i[1], i[2], last]);
    }

    #[test]
    fn those_that_do_not_wait_any_more_are_forgotten() {
        let (mut flows, mut throttled, i) = waiting(&[5, 6, 7, 8, 9]);
        for index in [i[0], i[3]] {
            flows.get_mut(index).state = State::Listed;
            throttled.forget_one(&flows);
        }
        assert_eq!((throttled.len(), throttled.first_ns()), (3, 6));
        assert_eq!(pop_all(&mut flows, &mut throttled), [i[1], i[2], i[4]]);
        assert_eq!((throttled.len(), throttled.first_ns()), (0, u64::MAX));
    }

    #[test]
    fn stale_entries_are_at_most_half() {
        let (mut flows, mut throttled, i) = waiting(&[1 << 40, 1 << 41, 1 << 42]);
        for step in 1..10_000 {
            flows.get_mut(i[2]).time_next_ns = (1 << 41) - step;
            throttled.push_again(&mut flows, i[2]);
            assert!(throttled.heap.len() <= 2 * throttled.len());
            assert_eq!(throttled.len(), 3);
        }
        assert_eq!(pop_all(&mut flows, &mut throttled), [i[0], i[2], i[1]]);
    }
}
