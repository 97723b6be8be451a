//! Qdiscs that hold no packets (`blackhole` and `noop`, which drop all packets) or at most one
//! (`noqueue`).
//!
//! Source: behaviour of Linux 7.2 `net/sched/sch_blackhole.c` and `sch_generic.c`.
//! Differs: Onramp accepts the name `noop`, which `tc` does not know. A sender learns which of its
//! packets `blackhole` dropped. A qdisc of Onramp does not know whether its device is free. So
//! `noqueue` keeps one packet while the device is busy; Linux drops the packet. `noqueue` may be
//! the child of another qdisc, which Linux forbids, and works there in the same way.
//! Invariant: `blackhole` and `noop` hold nothing, `noqueue` holds one packet at most.

use onramp_queue::{DropReason, Packet};

use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict};

pub(super) const BLACKHOLE: Kind = Kind {
    id: "blackhole",
    about: "drops everything",
    build: |_| Box::new(Blackhole),
    ..Kind::LEAF
};

pub(super) const NOOP: Kind = Kind { id: "noop", ..BLACKHOLE };

pub(super) const NOQUEUE: Kind = Kind {
    id: "noqueue",
    about: "has no queue: drops packets that the device does not take at once",
    build: |_| Box::new(NoQueue(None)),
    quirks: Quirks { holds_nothing: true, ..Quirks::NONE },
    ..Kind::LEAF
};

#[derive(Debug)]
struct Blackhole;

#[derive(Debug)]
struct NoQueue(Option<Packet>);

impl Qdisc for Blackhole {
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        cx.drop(pkt, DropReason::Blackhole);
        Verdict::Dropped
    }

    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
        Dequeue::Empty
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        Peek::Empty
    }

    fn backlog(&self) -> Backlog {
        Backlog::default()
    }

    fn reset(&mut self, _cx: &mut Cx<'_>) {}
}

impl Qdisc for NoQueue {
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if self.0.is_some() {
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        self.0 = Some(pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
        self.0.take().map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        Peek::at(self.0.as_ref())
    }

    fn backlog(&self) -> Backlog {
        let mut held = Backlog::default();
        self.0.iter().for_each(|pkt| held.add(pkt));
        held
    }

    fn accepts(&self, _pkt: &Packet) -> bool {
        self.0.is_none()
    }

    fn can_bypass(&self) -> bool {
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        if let Some(pkt) = self.0.take() {
            cx.drop(pkt, DropReason::Purged);
        }
    }
}
