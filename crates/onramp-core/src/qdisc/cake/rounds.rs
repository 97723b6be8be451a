//! Rounds in which all flows of a tin get the same part of a quantum, without a step for each flow.
//!
//! The flows of a host share a quantum. If one host has all bulk flows of a tin, and many of them,
//! each flow gets a byte or less in a round, and many rounds pass until the flow that lacks the
//! fewest bytes may send. Linux takes a step for each flow in each round. Here, one number that is
//! added to every flow's own bytes gives all flows their parts at once, and a heap finds the flow
//! that lacks the fewest bytes. The parts are not rounded; Linux rounds them at random, to the same
//! average.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of fractional bits in a number of bytes.
const FRACTION: u32 = 16;

/// When the common number of bytes exceeds this bound, it is added to each flow's own bytes.
const BYTES_MAX: i64 = 1 << 29;

/// An old flow: its own bytes without the common ones, its place in the order of arrival, its
/// queue.
type Entry = (i32, Reverse<u64>, u16);

#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Whether the flows get their parts by the common number.
    pub(super) shared: bool,
    /// The common number: what each old flow has got, in units of 2^-16 bytes.
    got: i64,
    /// This heap has at least one entry for each old flow, and may have entries of other flows.
    heap: BinaryHeap<Entry>,
    came: u64,
}

impl Rounds {
    /// Returns the bytes that each old flow has in addition to its own.
    #[inline]
    pub(super) fn got(&self) -> i32 {
        i32::try_from(self.got >> FRACTION).unwrap_or(i32::MAX)
    }

    /// Whether the common bytes should be added to each flow's own, before the numbers become too
    /// large.
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.got > BYTES_MAX << FRACTION
    }

    /// Adds an old flow that has `own` bytes, not counting the common ones.
    #[inline]
    pub(super) fn add(&mut self, own: i32, queue: u16) {
        self.came += 1;
        self.heap.push((own, Reverse(self.came), queue));
    }

    /// Returns the flow that lacks the fewest bytes and its own bytes. `own` tells the own bytes of
    /// a flow that is still old.
    #[inline]
    pub(super) fn first(&mut self, own: impl Fn(u16) -> Option<i32>) -> Option<(u16, i32)> {
        while let Some(&(known, _, queue)) = self.heap.peek() {
            let own = own(queue);
            if own == Some(known) {
                return Some((queue, known));
            }
            self.heap.pop();
            // The flow has sent since the entry was made, so it gets a new entry. If the flow has
            // more bytes than the entry says, the heap has another entry of it.
            if let Some(own) = own.filter(|own| *own < known) {
                self.add(own, queue);
            }
        }
        None
    }

    /// Gives every flow `part` per round, in units of 2^-16 bytes, until a flow with `own` bytes
    /// has at least one byte.
    #[inline]
    pub(super) fn go(&mut self, part: u32, own: i32) {
        let lacks = ((1 - i64::from(own)) << FRACTION) - self.got;
        if lacks > 0 {
            let part = i64::from(part.max(1));
            self.got += (lacks + part - 1) / part * part;
        }
    }

    /// Ends the common rounds. The caller has added the common bytes to each flow's own.
    pub(super) fn end(&mut self) {
        self.shared = false;
        self.got = 0;
        self.heap.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_lacks_least_is_first() {
        let mut own = [-10, -3, -7, 1];
        let mut rounds = Rounds::default();
        (0..4).for_each(|queue| rounds.add(own[usize::from(queue)], queue));
        assert_eq!(rounds.first(|queue| Some(own[usize::from(queue)])), Some((3, 1)));
        rounds.go(1 << 15, 1);
        assert_eq!(rounds.got(), 0, "it has a byte");
        (own[3], own[1]) = (-99, -7);
        assert_eq!(rounds.first(|queue| Some(own[usize::from(queue)])), Some((2, -7)));
        rounds.go(3 << 15, -7);
        // The bytes of six rounds, each with one and a half bytes.
        assert_eq!(rounds.got(), 9);
        let gone = |queue| (queue != 2).then(|| own[usize::from(queue)]);
        assert_eq!(rounds.first(gone), Some((1, -7)));
        rounds.end();
        assert_eq!((rounds.got(), rounds.first(gone)), (0, None));
    }
}
