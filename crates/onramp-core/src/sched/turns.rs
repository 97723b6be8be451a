//! A ring buffer with the numbers of flows in the order in which they are served. Flows that will
//! be served soon can be seen ahead of their turn, to prefetch them.
//!
//! With many flows, no flow is in a cache when its turn comes. The processor would have to wait
//! first for the state of the flow and then for the packet that the state points to. So in each
//! turn, the qdisc that uses the ring prefetches the state of a flow that is some turns ahead, and
//! the packet of a nearer flow whose state is already in a cache.
//!
//! Source: the prefetching of DPDK's `rte_sched`. Linux keeps such flows in linked lists, in which
//! one cannot look ahead.

/// With more flows than this, their states do not fit into the caches. Then an enqueue of many
/// packets prefetches their flows first.
pub(crate) const MANY: usize = 4096;
/// If the ring contains fewer flows than this, `look_ahead` returns `None`.
const SEVERAL: usize = 64;
/// Number of flows for which a new ring has room. A full ring grows.
const ROOM: usize = 16;
/// How many turns ahead the three flows are that `look_ahead` returns.
const AHEAD: [usize; 3] = [18, 12, 6];

/// The numbers of flows, in the order in which they are served. The first is served next.
///
/// A `VecDeque` would take three times as long, because its capacity need not be a power of two.
#[derive(Debug)]
pub(crate) struct Turns {
    /// The ring. Its length is a power of two.
    ring: Box<[u32]>,
    /// `head` counts the turns that have begun since the ring was created, and `tail` counts the
    /// flows that were appended.
    head: usize,
    tail: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self { ring: vec![0; ROOM].into(), head: 0, tail: 0 }
    }
}

impl Turns {
    #[inline]
    fn at(&self, turn: usize) -> usize {
        turn & (self.ring.len() - 1)
    }

    /// Returns the flow whose turn comes after the turns of `turns` other flows. The ring must
    /// contain more flows than that.
    #[inline]
    fn ahead(&self, turns: usize) -> u32 {
        self.ring[self.at(self.head.wrapping_add(turns))]
    }

    /// Returns the flows, in the order of their turns.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        (0..self.len()).map(|turns| self.ahead(turns))
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        (!self.is_empty()).then(|| self.ahead(0))
    }

    #[inline]
    pub(crate) fn push_back(&mut self, flow: u32) {
        if self.len() == self.ring.len() {
            self.grow();
        }
        let at = self.at(self.tail);
        self.ring[at] = flow;
        self.tail = self.tail.wrapping_add(1);
    }

    /// Removes the first flow. The ring must not be empty.
    #[inline]
    pub(crate) fn pop_front(&mut self) {
        self.head = self.head.wrapping_add(1);
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
    }

    #[cold]
    fn grow(&mut self) {
        let len = self.len();
        let mut ring: Vec<u32> = self.iter().collect();
        ring.resize(2 * len, 0);
        (self.ring, self.head, self.tail) = (ring.into(), 0, len);
    }

    /// Returns three flows that will be served soon, or `None` if the ring contains few flows. The
    /// caller prefetches the state of the first flow, the data to which the state of the second
    /// flow points (such as its queue), and what the same data of the third flow points to (such as
    /// its packets).
    #[inline]
    pub(crate) fn look_ahead(&self) -> Option<[u32; 3]> {
        (self.len() >= SEVERAL).then(|| AHEAD.map(|turns| self.ahead(turns)))
    }

    /// Removes a flow from wherever it is in the ring. Does nothing if it is not there. Takes time
    /// in proportion to the length of the ring.
    #[cold]
    pub(crate) fn remove(&mut self, flow: u32) {
        for turns in 0..self.len() {
            if self.ahead(turns) == flow {
                for turns in (0..turns).rev() {
                    let (from, to) =
                        (self.head.wrapping_add(turns), self.head.wrapping_add(turns + 1));
                    self.ring[self.at(to)] = self.ring[self.at(from)];
                }
                return self.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Random operations on the ring give the same results as on a `VecDeque`.
        #[test]
        fn turns_keep_their_order(steps in prop::collection::vec(0_u8..8, 0..500)) {
            let (mut turns, mut model) = (Turns::default(), VecDeque::new());
            for (step, flow) in steps.into_iter().zip(0..) {
                match step {
                    0..=4 => {
                        turns.push_back(flow);
                        model.push_back(flow);
                    }
                    6 if !model.is_empty() => {
                        let flow = model.remove(usize::try_from(flow).unwrap() % model.len());
                        turns.remove(flow.unwrap());
                    }
                    7 if flow % 50 == 0 => {
                        turns.clear();
                        model.clear();
                    }
                    _ if model.pop_front().is_some() => turns.pop_front(),
                    _ => {}
                }
                prop_assert_eq!(turns.first(), model.front().copied());
                prop_assert_eq!((turns.len(), turns.is_empty()), (model.len(), model.is_empty()));
                let all: Vec<_> = turns.iter().collect();
                prop_assert_eq!(all, model.make_contiguous());
            }
        }
    }

    /// With at least 64 flows in the ring, `look_ahead` returns the flows whose turns come 18, 12
    /// and 6 turns later. With fewer, it returns nothing.
    #[test]
    fn there_is_something_to_look_ahead_to() {
        let mut turns = Turns::default();
        for flow in 100..163 {
            turns.push_back(flow);
            assert_eq!(turns.look_ahead(), None, "{flow}");
        }
        turns.push_back(163);
        assert_eq!(turns.look_ahead(), Some([118, 112, 106]));
        turns.pop_front();
        assert_eq!(turns.look_ahead(), None);
        turns.push_back(164);
        assert_eq!(turns.look_ahead(), Some([119, 113, 107]));
    }
}
