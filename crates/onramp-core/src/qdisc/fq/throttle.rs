//! Flows that wait for their time: the earliest first, and among equals the one that came first.
//!
//! A flow that moves forward leaves its old entry behind. An entry counts if its flow still waits
//! and knows its place; the rest is swept out at the top, and all at once when it is the most.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::flow::{Flows, State};

/// The waiting flows; 16 bytes each.
#[derive(Debug, Default)]
pub(super) struct Throttled {
    /// Time; place in the order of coming above, flow below. The first one always counts.
    heap: BinaryHeap<Reverse<(u64, u64)>>,
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
        self.heap.peek().map_or(u64::MAX, |Reverse((time_ns, _))| *time_ns)
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
        let place_and_flow = u64::from(self.place) << 32 | u64::from(index);
        self.heap.push(Reverse((flow.time_next_ns, place_and_flow)));
        self.place += 1;
    }

    /// Lets a waiting flow go on earlier than it should.
    #[cold]
    pub(super) fn move_forward(&mut self, flows: &mut Flows, index: u32, time_ns: u64) {
        debug_assert!(time_ns < flows.get(index).time_next_ns, "or a stale entry could come first");
        flows.get_mut(index).time_next_ns = time_ns;
        self.stale += 1;
        self.push(flows, index);
        if self.stale > self.heap.len() / 2 {
            self.heap.retain(|Reverse((_, entry))| counts(flows, *entry));
            self.stale = 0;
        }
    }

    /// Takes the first one if its time has come.
    #[inline]
    pub(super) fn pop_due(&mut self, flows: &Flows, now_ns: u64) -> Option<u32> {
        if self.first_ns() > now_ns {
            return None;
        }
        let Reverse((_, entry)) = self.heap.pop()?;
        while self.stale > 0 && self.heap.peek().is_some_and(|Reverse(e)| !counts(flows, e.1)) {
            self.heap.pop();
            self.stale -= 1;
        }
        if self.heap.is_empty() {
            self.place = 0;
        }
        Some(flow_of(entry))
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Makes places small again, once in 2^32 flows; leaves `moving` out, which comes anew.
    #[cold]
    fn renumber(&mut self, flows: &mut Flows, moving: u32) {
        let mut heap = std::mem::take(self).heap;
        heap.retain(|Reverse((_, entry))| flow_of(*entry) != moving && counts(flows, *entry));
        for Reverse((_, entry)) in heap.into_sorted_vec().into_iter().rev() {
            self.push(flows, flow_of(entry));
        }
    }
}

/// Whether the flow of an entry still waits there.
fn counts(flows: &Flows, entry: u64) -> bool {
    let flow = flows.get(flow_of(entry));
    flow.state == State::Throttled && u64::from(flow.link) == entry >> 32
}

#[inline]
fn flow_of(entry: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let flow = entry as u32;
    flow
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
        throttled.move_forward(&mut flows, i[2], 5);
        throttled.place = u32::MAX;
        let last = flows.find_or_insert(3, 0, 0, usize::MAX).index;
        flows.get_mut(last).time_next_ns = 5;
        throttled.push(&mut flows, last);
        assert_eq!((throttled.place, throttled.len()), (4, 4), "the stale entry is gone");
        assert_eq!(pop_all(&mut flows, &mut throttled), [i[0], i[1], i[2], last]);
    }

    #[test]
    fn stale_entries_are_at_most_half() {
        let (mut flows, mut throttled, i) = waiting(&[1 << 40, 1 << 41, 1 << 42]);
        for step in 1..10_000 {
            throttled.move_forward(&mut flows, i[2], (1 << 41) - step);
            assert!(throttled.heap.len() <= 2 * throttled.len());
            assert_eq!(throttled.len(), 3);
        }
        assert_eq!(pop_all(&mut flows, &mut throttled), [i[0], i[2], i[1]]);
    }
}
