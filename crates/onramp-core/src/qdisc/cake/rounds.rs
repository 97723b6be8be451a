//! Common rounds of a tin: rounds of the scheduler in which all flows get the same number of bytes,
//! computed without visiting each flow.
//!
//! The bulk flows of a host share a quantum (the bytes that a host may send in a round). If one
//! host has all bulk flows of a tin, and many of them, each flow may send only a few bytes in a
//! round, and many rounds pass until any flow may send a packet. Linux visits each flow in each
//! round. Here, what a flow may send is the sum of its own number of bytes and a common number,
//! which is the same for all flows. To do a round for all flows at once, only the common number is
//! increased. A heap finds the flow that may send the most bytes; it sends first. Linux rounds the
//! bytes that a flow gets in a round at random; this module does not round them, which gives the
//! same average.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of fractional bits of a number of bytes.
const FRACTION: u32 = 16;

/// When the common number of bytes exceeds this bound, it is added to each flow's own number of
/// bytes and starts again from zero.
const BYTES_MAX: i64 = 1 << 29;

/// An entry for an old flow (a flow that waits for its turn in the rounds): the flow's own bytes
/// without the common number, the order in which the entry was made, and the flow's queue.
type Entry = (i32, Reverse<u64>, u16);

#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Whether common rounds are in effect, so that the common number counts for each old flow.
    pub(super) shared: bool,
    /// The common number: what each old flow has got in common rounds so far, in units of 2^-16
    /// bytes.
    got: i64,
    /// A heap with at least one entry for each old flow. It may also have entries of flows that are
    /// no longer old.
    heap: BinaryHeap<Entry>,
    came: u64,
}

impl Rounds {
    /// Returns the common number, in whole bytes: what each old flow has in addition to its own
    /// bytes.
    #[inline]
    pub(super) fn got(&self) -> i32 {
        i32::try_from(self.got >> FRACTION).unwrap_or(i32::MAX)
    }

    /// Whether the caller should end the common rounds and begin new ones, before the common number
    /// becomes too large.
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.got > BYTES_MAX << FRACTION
    }

    /// Adds an old flow that has `own` bytes, without the common number.
    #[inline]
    pub(super) fn add(&mut self, own: i32, queue: u16) {
        self.came += 1;
        self.heap.push((own, Reverse(self.came), queue));
    }

    /// Returns the old flow with the most bytes, and its own bytes. `own` returns a flow's own
    /// bytes, or `None` if the flow is no longer old.
    #[inline]
    pub(super) fn first(&mut self, own: impl Fn(u16) -> Option<i32>) -> Option<(u16, i32)> {
        while let Some(&(known, _, queue)) = self.heap.peek() {
            let own = own(queue);
            if own == Some(known) {
                return Some((queue, known));
            }
            self.heap.pop();
            // The entry is out of date. If the flow has fewer bytes than the entry says, it has
            // sent since the entry was made, so add a new entry. If it has more bytes, the heap
            // already has a newer entry of this flow.
            if let Some(own) = own.filter(|own| *own < known) {
                self.add(own, queue);
            }
        }
        None
    }

    /// Does as many common rounds as it takes until a flow with `own` bytes of its own has at least
    /// one byte in all. Each round adds `part` (in units of 2^-16 bytes) to the common number.
    #[inline]
    pub(super) fn go(&mut self, part: u32, own: i32) {
        let lacks = ((1 - i64::from(own)) << FRACTION) - self.got;
        if lacks > 0 {
            let part = i64::from(part.max(1));
            self.got += (lacks + part - 1) / part * part;
        }
    }

    /// Ends the common rounds. The caller has added the common number to each flow's own bytes.
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
        // Flow 2 has -7 bytes, so it needs 8 more to have one byte. A round gives it one and a half
        // bytes, so it needs six rounds, which give it 9 bytes.
        assert_eq!(rounds.got(), 9);
        let gone = |queue| (queue != 2).then(|| own[usize::from(queue)]);
        assert_eq!(rounds.first(gone), Some((1, -7)));
        rounds.end();
        assert_eq!((rounds.got(), rounds.first(gone)), (0, None));
    }
}
