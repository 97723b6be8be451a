//! Stages with a qdisc each, one behind the other: a packet that leaves a stage enters the next.
//!
//! In a tree of Linux's qdiscs, a qdisc stands inside another. So a queue management inside `netem`
//! stands behind the delay and never sees the packets that wait for netem's rate. In a series, a
//! link can be built as it is: first the bottleneck with its queue, then the distance.
//!
//! ```text
//! tc qdisc add dev d0 root handle 1: series stages 2
//! tc qdisc add dev d0 parent 1:1 cake bandwidth 20mbit
//! tc qdisc add dev d0 parent 1:2 netem delay 20ms
//! ```
//!
//! A packet passes to the next stage at the moment at which its stage lets it go; the clock is the
//! one clock of the tree. To the next stage, the packet has just arrived: its
//! [`enqueued_ns`](onramp_queue::Meta::enqueued_ns) is that moment, so queue management sees the
//! time in its own stage only. A stage takes packets from the stage before it without bound, so the
//! slowest stage should be the first that has a queue management.
//!
//! Source: none; Linux has no such qdisc (there, two devices stand one behind the other).
//! Invariant: packets leave a stage in the order in which the stage's qdisc lets them go, and enter
//! the next in this order.

use onramp_queue::Packet;

use super::{Backlog, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Verdict};
use crate::base::params::{Default, Param, Unit, Values};
use crate::qdisc::pfifo_child;
use crate::sched::{Child, Classes};

const STAGES_MAX: u64 = 16;

pub(super) const SERIES: Kind = Kind {
    id: "series",
    about: "stages with a qdisc each: a packet that leaves a stage enters the next",
    params: &[Param::new("stages", Unit::Count, Default::Number(2), "number of stages")
        .within(1, STAGES_MAX)],
    classes: ClassKind::Fixed(|values| u16::try_from(values.number("stages")).expect("at most 16")),
    build: |values| {
        Box::new(Series {
            stages: (0..values.number("stages")).map(|_| pfifo_child(values.site)).collect(),
            held: Backlog::default(),
        })
    },
    ..Kind::LEAF
};

#[derive(Debug)]
struct Series {
    /// The stages, at least one.
    stages: Vec<Child>,
    held: Backlog,
}

impl Series {
    /// Moves every packet that may leave its stage, except the last, into the next. Returns when
    /// the next packet may move.
    #[inline]
    fn advance(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let mut wait = Dequeue::Empty;
        for next in 1..self.stages.len() {
            let (before, after) = self.stages.split_at_mut(next);
            let (stage, next) = (&mut before[next - 1], &mut after[0]);
            while !stage.is_idle() {
                match stage.dequeue(cx, &mut self.held) {
                    Dequeue::Ready(mut pkt) => {
                        pkt.enqueued_ns = cx.now.0;
                        // If the next stage drops the packet, it counts the drop.
                        let _: Verdict = next.enqueue(pkt, cx, &mut self.held);
                    }
                    later => {
                        wait = wait.or_sooner(later);
                        break;
                    }
                }
            }
        }
        wait
    }
}

impl Qdisc for Series {
    #[inline]
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.stages[0].enqueue(pkt, cx, &mut self.held)
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let wait = self.advance(cx);
        let last = self.stages.last_mut().expect("a series has at least one stage");
        match last.dequeue(cx, &mut self.held) {
            Dequeue::Ready(pkt) => Dequeue::Ready(pkt),
            later => wait.or_sooner(later),
        }
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        let wait = match self.advance(cx) {
            Dequeue::NotBefore(at) => Peek::NotBefore(at),
            _ => Peek::Empty,
        };
        let last = self.stages.last_mut().expect("a series has at least one stage");
        match last.peek(cx, &mut self.held) {
            Peek::Ready(len) => Peek::Ready(len),
            later => wait.or_sooner(later),
        }
    }

    fn backlog(&self) -> Backlog {
        self.held
    }

    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        let count = usize::try_from(values.number("stages")).expect("at most 16");
        let new = || pfifo_child(values.site);
        super::multiq::resize(&mut self.stages, count, new, &mut self.held, cx);
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        for stage in &mut self.stages {
            stage.reset(cx, &mut self.held);
        }
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }
}

impl Classes for Series {
    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        self.stages.get_mut(usize::from(minor).wrapping_sub(1))
    }

    fn recount(&mut self, minor: u16) {
        if let Some(stage) = self.stages.get_mut(usize::from(minor).wrapping_sub(1)) {
            stage.recount(&mut self.held);
        }
    }
}
