//! Flows in the order they are served, and a look ahead in it.
//!
//! With many flows, none of them is in a cache when its turn comes: its state, and then the packet
//! that the state points to, would each be waited for. So each turn asks the processor for the
//! state of a flow some turns ahead, and for the packet of a nearer one, whose state has come.
//!
//! Source: the prefetching of DPDK's `rte_sched`; Linux keeps such flows in linked lists, where
//! nothing can be seen ahead.

/// So many flows do not stay in the caches: whoever takes packets in asks for theirs beforehand.
pub(crate) const MANY: usize = 4096;
/// With fewer turns, there is nothing to look ahead to.
const SEVERAL: usize = 64;
/// Turns that there is room for from the start; more than that, and it grows.
const ROOM: usize = 16;
/// How many turns ahead it looks.
const AHEAD: [usize; 3] = [18, 12, 6];

/// The numbers of flows, the next to be served first: a ring.
///
/// A `VecDeque` does the same, in three times the time: its length need not be a power of two.
#[derive(Debug)]
pub(crate) struct Turns {
    /// As many as a power of two.
    ring: Box<[u32]>,
    /// Turns begun and flows appended, ever.
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

    /// The flow whose turn comes after so many others; there are more than that.
    #[inline]
    fn ahead(&self, turns: usize) -> u32 {
        self.ring[self.at(self.head.wrapping_add(turns))]
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

    /// The first, of which there is one, has had its turn.
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
        let mut ring: Vec<u32> = (0..len).map(|turns| self.ahead(turns)).collect();
        ring.resize(2 * len, 0);
        (self.ring, self.head, self.tail) = (ring.into(), 0, len);
    }

    /// Flows to ask the processor for, if there are several: for the state of the first one, for
    /// what that of the second points to, and for what lies behind that of the third.
    #[inline]
    pub(crate) fn look_ahead(&self) -> Option<[u32; 3]> {
        (self.len() >= SEVERAL).then(|| AHEAD.map(|turns| self.ahead(turns)))
    }

    /// Takes a flow out of its turn, if it is in here. Goes through all.
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
        /// The same as a `VecDeque`.
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
                let all: Vec<_> = (0..turns.len()).map(|at| turns.ahead(at)).collect();
                prop_assert_eq!(all, model.make_contiguous());
            }
        }
    }

    /// The flows whose turns come 18, 12 and 6 turns later, once there are 64.
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
