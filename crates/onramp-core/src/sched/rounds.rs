//! Deficit round robin among children: what `drr` and `ets` have in common.
//!
//! Source: M. Shreedhar and G. Varghese, "Efficient Fair Queuing Using Deficit Round-Robin", 1995.

use std::ops::IndexMut;

use onramp_queue::{Packet, prefetch};

use super::classes::Table;
use super::{Backlog, Cx, Dequeue, Peek, Verdict};
use crate::sched::Child;
use crate::sched::turns::Turns;

const _: () = assert!(size_of::<Option<Turn>>() == 128);

/// A child that takes part in rounds; two cache lines, which processors fetch together.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Turn {
    pub(crate) child: Child,
    /// Bytes it may send more in each round.
    pub(crate) quantum: u64,
    /// Bytes it may still send.
    pub(crate) deficit: u64,
    /// It is among the [`Rounds`].
    active: bool,
}

impl Turn {
    pub(crate) fn new(child: Child, quantum: u64) -> Self {
        Self { child, quantum: bounded(quantum), deficit: 0, active: false }
    }
}

/// Where children lie, each at a place of its own.
pub(crate) trait Places: IndexMut<usize, Output = Turn> {
    /// Asks the processor for a child, and does not look at it.
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

/// As Linux does, takes a very small quantum for a larger one, so that a packet waits for a few
/// rounds only, and a very large one for a smaller.
pub(crate) fn bounded(quantum: u64) -> u64 {
    quantum.clamp(256, 1 << 20)
}

/// Numbers of children are places of classes or bands.
#[expect(clippy::cast_possible_truncation, reason = "there are at most 65,536 of these")]
#[inline]
const fn short(number: usize) -> u32 {
    number as u32
}

/// The children that hold something, in the order they are served; each by a number.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    active: Turns,
}

impl Rounds {
    /// None of these children holds anything any more.
    pub(crate) fn clear<'a>(&mut self, turns: impl Iterator<Item = &'a mut Turn>) {
        self.active.clear();
        turns.for_each(|turn| turn.active = false);
    }

    /// Packets for these children are about to come.
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

    /// Lets a child in that holds something now, and one out that does not.
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

    /// Lets a child out that is to be served otherwise.
    pub(crate) fn leave(&mut self, number: usize, turn: &mut Turn) {
        if turn.active {
            self.retire(number, turn);
        }
    }

    /// A child leaves: mostly the one whose turn it is.
    #[inline]
    fn retire(&mut self, number: usize, turn: &mut Turn) {
        turn.active = false;
        if self.active.first() == Some(short(number)) {
            self.active.pop_front();
        } else {
            self.active.remove(short(number));
        }
    }

    /// Lets the first one send whose deficit allows it. One that has to wait keeps all others back.
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
                // All that it held has died as it was asked.
                Peek::Empty => self.retire(number, turn),
            }
        }
        Dequeue::Empty
    }
}
