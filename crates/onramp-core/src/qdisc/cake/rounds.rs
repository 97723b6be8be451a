//! Rounds of flows that all get the same part of one, without a step for each flow.
//!
//! A quantum is cut among the flows of a host. Where one host has all bulk flows of a tin, and
//! many, a round gives each a byte or less, and the next packet comes after as many rounds as the
//! flow needs that lacks least. Linux takes a step for each flow in each of them. Here all flows
//! get their part at once, by one number that is added to what each has, and a heap knows which
//! one lacks least. The parts are not rounded: Linux rounds them at random, to the same on average.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bytes have so many bits behind the point.
const FRACTION: u32 = 16;

/// What all flows have got is put into each of them before it becomes more than this, in bytes.
const BYTES_MAX: i64 = 1 << 29;

/// A flow among the old ones: what it has beside what all have got, who came before, its queue.
type Entry = (i32, Reverse<u64>, u16);

#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Whether flows get their parts so.
    pub(super) shared: bool,
    /// What each of the old flows has got, in 2^-16 bytes.
    got: i64,
    /// At least once each flow that is among the old ones; also some that are no more.
    heap: BinaryHeap<Entry>,
    came: u64,
}

impl Rounds {
    /// Bytes that each of the old flows has beside its own.
    #[inline]
    pub(super) fn got(&self) -> i32 {
        i32::try_from(self.got >> FRACTION).unwrap_or(i32::MAX)
    }

    /// Whether the flows should get their own, before the numbers become too large.
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.got > BYTES_MAX << FRACTION
    }

    /// A flow is among the old ones, and has this beside what all have got.
    #[inline]
    pub(super) fn add(&mut self, own: i32, queue: u16) {
        self.came += 1;
        self.heap.push((own, Reverse(self.came), queue));
    }

    /// The flow that lacks least, if `own` says what each has that is still among the old ones.
    #[inline]
    pub(super) fn first(&mut self, own: impl Fn(u16) -> Option<i32>) -> Option<(u16, i32)> {
        while let Some(&(known, _, queue)) = self.heap.peek() {
            let own = own(queue);
            if own == Some(known) {
                return Some((queue, known));
            }
            self.heap.pop();
            // It has sent since. If it has more than it had, it is in the heap once more.
            if let Some(own) = own.filter(|own| *own < known) {
                self.add(own, queue);
            }
        }
        None
    }

    /// Gives all flows their parts, `part` in 2^-16 bytes, until one that has `own` has a byte.
    #[inline]
    pub(super) fn go(&mut self, part: u32, own: i32) {
        let lacks = ((1 - i64::from(own)) << FRACTION) - self.got;
        if lacks > 0 {
            let part = i64::from(part.max(1));
            self.got += (lacks + part - 1) / part * part;
        }
    }

    /// The flows have got their own.
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
        // Six rounds of one byte and a half.
        assert_eq!(rounds.got(), 9);
        let gone = |queue| (queue != 2).then(|| own[usize::from(queue)]);
        assert_eq!(rounds.first(gone), Some((1, -7)));
        rounds.end();
        assert_eq!((rounds.got(), rounds.first(gone)), (0, None));
    }
}
