//! Flows that wait for their time: the earliest first, and among equals the one that came first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The waiting flows; 16 bytes each.
#[derive(Debug, Default)]
pub(super) struct Throttled {
    /// Time; place in the order of coming above, flow below.
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    places: u32,
}

impl Throttled {
    /// Flows that wait.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    #[inline]
    pub(super) fn push(&mut self, time_ns: u64, flow: u32) {
        if self.places == u32::MAX {
            self.renumber();
        }
        self.heap.push(Reverse((time_ns, u64::from(self.places) << 32 | u64::from(flow))));
        self.places += 1;
    }

    /// When the first one may go on; the end of time if there is none.
    #[inline]
    pub(super) fn first_ns(&self) -> u64 {
        self.heap.peek().map_or(u64::MAX, |Reverse((time_ns, _))| *time_ns)
    }

    /// Takes the first one if its time has come.
    #[inline]
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<u32> {
        if self.first_ns() > now_ns {
            return None;
        }
        let Reverse((_, place_and_flow)) = self.heap.pop()?;
        if self.heap.is_empty() {
            self.places = 0;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let flow = place_and_flow as u32;
        Some(flow)
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
        self.places = 0;
    }

    /// Makes places small again, once in 2^32 flows.
    #[cold]
    fn renumber(&mut self) {
        let sorted = std::mem::take(&mut self.heap).into_sorted_vec();
        self.places = 0;
        for Reverse((time_ns, place_and_flow)) in sorted.into_iter().rev() {
            #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
            self.push(time_ns, place_and_flow as u32);
        }
    }
}
