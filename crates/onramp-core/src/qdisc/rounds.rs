//! Deficit round robin among children: what `drr` and `ets` have in common.
//!
//! Source: M. Shreedhar and G. Varghese, "Efficient Fair Queuing Using Deficit Round-Robin", 1995.

use std::ops::IndexMut;

use onramp_queue::Packet;

use super::classes::{Links, List};
use super::{Backlog, Cx, Dequeue, Peek, Verdict};
use crate::Child;

/// A child that takes part in rounds.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) child: Child,
    /// Bytes it may send more in each round.
    pub(super) quantum: u64,
    /// Bytes it may still send.
    pub(super) deficit: u64,
}

impl Turn {
    pub(super) fn new(quantum: u64) -> Self {
        Self { child: Child::pfifo(), quantum: bounded(quantum), deficit: 0 }
    }
}

/// As Linux does, takes a very small quantum for a larger one, so that a packet waits for a few
/// rounds only, and a very large one for a smaller.
pub(super) fn bounded(quantum: u64) -> u64 {
    quantum.clamp(256, 1 << 20)
}

/// The children that hold something, in the order they are served; each by a number.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    links: Links,
    active: List,
}

impl Rounds {
    /// Makes room for child `number`.
    pub(super) fn grow(&mut self, number: usize) {
        self.links.grow(number);
    }

    #[inline]
    pub(super) fn enqueue(
        &mut self,
        number: usize,
        turn: &mut Turn,
        pkt: Packet,
        cx: &mut Cx<'_>,
        sum: &mut Backlog,
    ) -> Verdict {
        let verdict = turn.child.enqueue(pkt, cx, sum);
        self.look(number, turn);
        verdict
    }

    /// Lets a child in that holds something now, and one out that does not.
    #[inline]
    pub(super) fn look(&mut self, number: usize, turn: &mut Turn) {
        match (turn.child.held().packets > 0, self.links.has(number)) {
            (true, false) => {
                self.active.push_back(&mut self.links, number);
                turn.deficit = turn.quantum;
            }
            (false, true) => self.active.remove(&mut self.links, number),
            _ => {}
        }
    }

    /// Lets the first one send whose deficit allows it. One that has to wait keeps all others back.
    #[inline]
    pub(super) fn dequeue(
        &mut self,
        turns: &mut impl IndexMut<usize, Output = Turn>,
        cx: &mut Cx<'_>,
        sum: &mut Backlog,
    ) -> Dequeue {
        while let Some(number) = self.active.first() {
            let turn = &mut turns[number];
            match turn.child.peek(cx, sum) {
                Peek::Ready(len) if u64::from(len) <= turn.deficit => {
                    turn.deficit -= u64::from(len);
                    let answer = turn.child.dequeue(cx, sum);
                    self.look(number, turn);
                    return answer;
                }
                Peek::Ready(_) => {
                    turn.deficit += turn.quantum;
                    self.active.move_back(&mut self.links, number);
                }
                Peek::NotBefore(then) => return Dequeue::NotBefore(then),
                // All that it held has died as it was asked.
                Peek::Empty => self.active.remove(&mut self.links, number),
            }
        }
        Dequeue::Empty
    }
}
