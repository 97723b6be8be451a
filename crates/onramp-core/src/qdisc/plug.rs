//! Holds packets until a command releases them.
//!
//! The command `block` sets a mark behind the newest packet: the packets between the previous mark
//! and this one form the last buffer. The command `release` lets the packets of the last buffer
//! leave. The command `release_indefinite` lets all packets leave, until the next `block`. A new
//! `plug` is blocked.
//!
//! Source: B. Cully et al., "Remus: High Availability via Asynchronous Virtual Machine
//! Replication", 2008; the help of `tc`; behaviour of Linux 7.2 `net/sched/sch_plug.c`.
//! Differs: `limit` can be given together with a command. A reset forgets the buffers with their
//! packets.
//! Invariant: packets leave in the order they came, and no packet leaves that came after the mark
//! of the last buffer that was released.

use onramp_queue::{DropReason, Packet, PacketList};

use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict, peek_by_dequeue};
use crate::base::Instant;
use crate::base::params::{Default, Param, Unit, Values, look};

const BLOCK: u64 = 0;
const RELEASE: u64 = 1;
const RELEASE_INDEFINITE: u64 = 2;

pub(super) const PLUG: Kind = Kind {
    id: "plug",
    about: "holds packets until a command releases them",
    params: &[
        Param::new(
            "block",
            Unit::Words(&["block", "release", "release_indefinite"]),
            Default::Off,
            "marks the end of a buffer; releases packets before the last mark; releases all",
        )
        .reset()
        .shown(look::never),
        Param::new("limit", Unit::Size, Default::QueueBytes, "bytes held at most")
            .shown(look::never),
    ],
    build: |values| {
        let mut plug = Plug { limit: values.number("limit"), ..Plug::default() };
        plug.command(values);
        Box::new(plug)
    },
    ..Kind::LEAF
};

#[derive(Debug, Default)]
struct Plug {
    limit: u64,
    list: PacketList,
    /// Whether all packets may leave (after `release_indefinite`).
    open: bool,
    /// Number of packets that came since `block` last set a mark.
    current: u32,
    /// Number of packets in the last buffer (the packets between the last two marks); 0 if that
    /// buffer was released.
    last: u32,
    /// Number of packets that were released and have not left yet.
    released: u32,
    peeked: Option<Packet>,
}

impl Plug {
    fn command(&mut self, values: &Values<'_>) {
        if !values.is_given("block") {
            return;
        }
        match values.number("block") {
            BLOCK => {
                self.last = self.current;
                self.current = 0;
                self.open = false;
            }
            RELEASE => {
                self.released += self.last;
                self.last = 0;
            }
            RELEASE_INDEFINITE => {
                self.open = true;
                (self.released, self.last, self.current) = (0, 0, 0);
            }
            _ => {}
        }
    }
}

impl Qdisc for Plug {
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if !self.accepts(&pkt) {
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        if !self.open {
            self.current += 1;
        }
        self.list.push_back(pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        if self.list.is_empty() {
            return Dequeue::Empty;
        }
        if !self.open {
            if self.released == 0 {
                return Dequeue::NotBefore(Instant(u64::MAX));
            }
            self.released -= 1;
        }
        self.list.pop_front().map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = Backlog::of(&self.list);
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    fn accepts(&self, pkt: &Packet) -> bool {
        self.backlog().bytes + u64::from(pkt.len) <= self.limit
    }

    fn change(&mut self, values: &Values<'_>, _cx: &mut Cx<'_>) -> bool {
        if values.is_given("limit") {
            self.limit = values.number("limit");
        }
        self.command(values);
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        cx.purge(&mut self.list);
        cx.purge_one(&mut self.peeked);
        // No command releases packets of before.
        (self.current, self.last, self.released) = (0, 0, 0);
    }
}
