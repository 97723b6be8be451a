//! Controlled delay: one queue; while the queueing delay stays too long, packets are dropped from
//! the head.
//!
//! Source: RFC 8289; `tc-codel(8)`; behaviour of Linux 7.2 `net/sched/sch_codel.c`.
//! Differs: the waiting time of a packet starts when the packet is pushed (below `netem`: when
//! `netem` hands it over), and not when this qdisc enqueues it: see
//! [`enqueued_ns`](onramp_queue::Meta::enqueued_ns).
//! Invariant: packets leave in the order they came; no packet is dropped directly after a packet
//! that waited less than `target`, or while the queue holds at most as many bytes as the largest
//! packet seen so far.

use onramp_queue::{DropReason, Packet, PacketList};

use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict, peek_by_dequeue};
use crate::base::params::{Default, Param, Unit, Values, look};
use crate::base::show::Out;
use crate::base::{Extra, Instant};
use crate::law::codel::{self, Law, Source};
use crate::sched::Shown;

pub(super) const CODEL: Kind = Kind {
    id: "codel",
    about: "one queue, kept short by drops when packets wait too long",
    params: &[
        Param::new("limit", Unit::Packets, Default::Number(1000), "packets held at most")
            .zero_is_unsaid(),
        codel::TARGET,
        codel::CE_THRESHOLD,
        codel::INTERVAL,
        Param::new(
            "ecn",
            Unit::Words(&["noecn", "ecn"]),
            Default::Off,
            "marks packets instead of dropping them",
        )
        .shown(look::flag),
    ],
    build: |values| {
        Box::new(Codel {
            limit: values.number32("limit"),
            list: PacketList::new(),
            peeked: None,
            state: codel::Codel::default(),
            law: law(values),
            drop_overlimit: 0,
            asked_at: Instant(0),
        })
    },
    shown: Shown { extra: show_extra, ..Shown::TABLE },
    ..Kind::LEAF
};

fn law(values: &Values<'_>) -> Law {
    Law::new(values, values.number("ecn") == 1)
}

fn show_extra(extra: &Extra, out: &mut Out) {
    codel::show_state(extra, out);
    extra.show(out, "  ", "maxpacket");
    extra.show(out, " ", "ecn_mark");
    extra.show(out, " ", "drop_overlimit");
    extra.show_some(out, " ", "ce_mark");
    out.text(format_args!("\n"));
}

#[derive(Debug)]
struct Codel {
    limit: u32,
    list: PacketList,
    /// A packet that has left the queue but not the qdisc: the parent called `peek`, or the device
    /// refused a packet that had bypassed the queue.
    peeked: Option<Packet>,
    state: codel::Codel,
    law: Law,
    drop_overlimit: u64,
    /// The time of the last `dequeue` that looked into the queue.
    asked_at: Instant,
}

/// Gives the CoDel law access to the head of the queue.
struct Head<'a, 'c> {
    list: &'a mut PacketList,
    cx: &'a mut Cx<'c>,
}

impl Source for Head<'_, '_> {
    #[inline]
    fn pop(&mut self) -> Option<Packet> {
        self.list.pop_front()
    }

    #[inline]
    fn bytes(&self) -> u64 {
        self.list.bytes()
    }

    fn drop(&mut self, pkt: Packet) {
        self.cx.drop(pkt, DropReason::Congested);
    }
}

impl Qdisc for Codel {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if !self.accepts(&pkt) {
            self.drop_overlimit += 1;
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        codel::stamp(&mut pkt, cx.now);
        self.list.push_back(pkt);
        Verdict::Queued
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        let now = cx.now;
        self.asked_at = now;
        let mut head = Head { list: &mut self.list, cx };
        let pkt = self.state.dequeue(&mut self.law, now, &mut head);
        pkt.map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = Backlog::of(&self.list);
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    #[inline]
    fn accepts(&self, _pkt: &Packet) -> bool {
        self.list.len() + u32::from(self.peeked.is_some()) < self.limit
    }

    fn can_bypass(&self) -> bool {
        true
    }

    fn keep_passing(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.peeked = Some(pkt);
        Verdict::Queued
    }

    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        self.limit = values.number32("limit");
        self.law.change(law(values));
        while self.backlog().packets > self.limit {
            let Some(pkt) = self.peeked.take().or_else(|| self.list.pop_front()) else { break };
            cx.drop(pkt, DropReason::Overlimit);
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        cx.purge(&mut self.list);
        cx.purge_one(&mut self.peeked);
        self.state = codel::Codel::default();
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.state.stats(self.asked_at, out);
        out("maxpacket", self.law.max_packet.into());
        out("ecn_mark", self.law.ecn_mark);
        out("ce_mark", self.law.ce_mark);
        out("drop_overlimit", self.drop_overlimit);
    }
}
