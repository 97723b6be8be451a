//! Deficit round robin among the child qdiscs of a qdisc, as `drr` and `ets` use it.
//!
//! Source: M. Shreedhar and G. Varghese, "Efficient Fair Queuing Using Deficit Round-Robin", 1995.

use std::ops::IndexMut;

use onramp_queue::{Packet, prefetch};

use super::classes::Table;
use crate::sched::call::{Backlog, Cx, Dequeue, Peek, Verdict};
use crate::sched::qdisc::Child;
use crate::sched::turns::Turns;

const _: () = assert!(size_of::<Option<Turn>>() == 128);

/// A child qdisc that takes part in the rounds. A `Turn` fills two cache lines, which processors
/// fetch together.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Turn {
    pub(crate) child: Child,
    /// How many bytes the child may send in each round.
    pub(crate) quantum: u64,
    /// How many bytes the child may still send in this round.
    pub(crate) deficit: u64,
    /// Whether the child holds packets, and so is in the list of [`Rounds`].
    active: bool,
}

impl Turn {
    pub(crate) fn new(child: Child, quantum: u64) -> Self {
        Self { child, quantum: bounded(quantum), deficit: 0, active: false }
    }
}

/// The children of a qdisc, each at a place (an index) of its own.
pub(crate) trait Places: IndexMut<usize, Output = Turn> {
    /// Asks the processor to prefetch the child at the place `number`, without reading the child.
    fn prefetch(&self, number: usize);
}

impl Places for Vec<Turn> {
    #[inline]
    fn prefetch(&self, number: usize) {
        prefetch(&self[number]);
    }
}

impl Places for Table<Turn> {
    #[inline]
    fn prefetch(&self, number: usize) {
        self.prefetch(number);
    }
}

/// Limits a quantum (bytes per round) to the range from 256 bytes to 1 MiB, as Linux does. With a
/// smaller quantum, a packet would have to wait for many rounds.
pub(crate) fn bounded(quantum: u64) -> u64 {
    quantum.clamp(256, 1 << 20)
}

/// Converts the place of a child to 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "there are at most 65,536 of these")]
#[inline]
const fn short(number: usize) -> u32 {
    number as u32
}

/// The places of the children that hold packets, in the order in which they are served.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    active: Turns,
}

impl Rounds {
    /// Empties the list of the children that hold packets. `turns` are all children of the qdisc;
    /// none of them may hold packets.
    pub(crate) fn clear<'a>(&mut self, turns: impl Iterator<Item = &'a mut Turn>) {
        self.active.clear();
        turns.for_each(|turn| turn.active = false);
    }

    /// Asks the processor to prefetch the children at the places `numbers`, because packets for
    /// these children are about to be enqueued.
    pub(crate) fn prefetch_flows(
        turns: &impl Places,
        numbers: impl Iterator<Item = usize> + Clone,
    ) {
        numbers.clone().for_each(|number| turns.prefetch(number));
        numbers.clone().for_each(|number| turns[number].child.prefetch());
        numbers.for_each(|number| turns[number].child.prefetch_packets());
    }

    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        number: usize,
        turn: &mut Turn,
        pkt: Packet,
        cx: &mut Cx<'_>,
        sum: &mut Backlog,
    ) -> Verdict {
        let verdict = turn.child.enqueue(pkt, cx, sum);
        self.update_active(number, turn);
        verdict
    }

    /// Updates the list of the children that hold packets: adds the child if it holds packets now,
    /// or removes it if it holds none.
    #[inline]
    pub(crate) fn update_active(&mut self, number: usize, turn: &mut Turn) {
        match (turn.child.held().packets > 0, turn.active) {
            (true, false) => {
                self.active.push_back(short(number));
                (turn.deficit, turn.active) = (turn.quantum, true);
            }
            (false, true) => self.retire(number, turn),
            _ => {}
        }
    }

    /// Removes a child from the list of the children that hold packets, because the child has
    /// become a strict band, which the qdisc serves before all children in the list.
    pub(crate) fn leave(&mut self, number: usize, turn: &mut Turn) {
        if turn.active {
            self.retire(number, turn);
        }
    }

    /// Removes a child from the list of the children that hold packets. The child must be in the
    /// list, and is mostly the first.
    #[inline]
    fn retire(&mut self, number: usize, turn: &mut Turn) {
        turn.active = false;
        if self.active.first() == Some(short(number)) {
            self.active.pop_front();
        } else {
            self.active.remove(short(number));
        }
    }

    /// Dequeues a packet from the first child in the list whose next packet is not longer than the
    /// bytes that the child may still send in this round. If the child whose turn it is has
    /// packets, but none that may leave now, the other children must wait too.
    #[inline]
    pub(crate) fn dequeue(
        &mut self,
        turns: &mut impl Places,
        cx: &mut Cx<'_>,
        sum: &mut Backlog,
    ) -> Dequeue {
        while let Some(first) = self.active.first() {
            if let Some([far, nearer, near]) = self.active.look_ahead() {
                turns.prefetch(far as usize);
                turns[nearer as usize].child.prefetch();
                turns[near as usize].child.prefetch_packets();
            }
            let number = first as usize;
            let turn = &mut turns[number];
            match turn.child.peek(cx, sum) {
                Peek::Ready(len) if u64::from(len) <= turn.deficit => {
                    turn.deficit -= u64::from(len);
                    let answer = turn.child.dequeue(cx, sum);
                    self.update_active(number, turn);
                    return answer;
                }
                Peek::Ready(_) => {
                    turn.deficit += turn.quantum;
                    self.active.pop_front();
                    self.active.push_back(first);
                }
                Peek::NotBefore(then) => return Dequeue::NotBefore(then),
                // The child was in the list, but the peek has dropped all of its packets.
                Peek::Empty => self.retire(number, turn),
            }
        }
        Dequeue::Empty
    }
}
