//! Serves the packets of the highest priority first (`skbprio`); when full, drops a packet of the
//! lowest priority to make room.
//!
//! Source: N. Alves et al., "SKB Priority Queue", 2018, for Gatekeeper (M. Doucette's thesis, "An
//! Architectural Approach for Mitigating Next-Generation Denial of Service Attacks");
//! `tc-skbprio(8)`; behaviour of Linux 7.2 `net/sched/sch_skbprio.c`.
//! Invariant: a packet leaves only when no packet of a higher priority is held, and is dropped only
//! when the qdisc is full and holds no packet of a lower priority; within a priority, the newest
//! packet is dropped first.

use std::collections::VecDeque;

use onramp_queue::{DropReason, Packet};

use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict, shown};
use crate::base::params::{Default, Param, Unit, Values};
use crate::sched::{FlowView, Shown};

/// Number of priorities. A packet with a greater priority counts as having the highest one, which
/// is this number minus one.
const PRIORITIES: usize = 64;

pub(super) const SKBPRIO: Kind = Kind {
    id: "skbprio",
    about: "sends the highest priority first; when full, drops the lowest",
    params: &[Param::new(
        "limit",
        Unit::ScaledPackets,
        Default::Number(64),
        "packets held at most",
    )],
    build: |values| {
        Box::new(SkbPrio {
            limit: values.number32("limit"),
            queues: std::array::from_fn(|_| VecDeque::new()),
            bytes: [0; PRIORITIES],
            drops: [0; PRIORITIES],
            used: 0,
            held: Backlog::default(),
            peeked: None,
        })
    },
    shown: Shown {
        options: |values, _, out| shown::number(out, "limit", values.number("limit")),
        ..Shown::TABLE
    },
    ..Kind::LEAF
};

#[derive(Debug)]
struct SkbPrio {
    limit: u32,
    queues: [VecDeque<Packet>; PRIORITIES],
    /// Number of bytes that the queue of each priority holds.
    bytes: [u64; PRIORITIES],
    /// Number of packets dropped from each priority.
    drops: [u64; PRIORITIES],
    /// A bit for each priority, which is set if the queue of that priority is not empty.
    used: u64,
    /// Packets and bytes held, including a packet taken out by a `peek`.
    held: Backlog,
    peeked: Option<Packet>,
}

fn priority(pkt: &Packet) -> usize {
    (pkt.priority as usize).min(PRIORITIES - 1)
}

impl SkbPrio {
    /// Returns the lowest priority of which packets are held, or the highest priority if no packet
    /// is held.
    #[inline]
    fn lowest(&self) -> usize {
        (self.used.trailing_zeros() as usize).min(PRIORITIES - 1)
    }

    #[inline]
    fn put(&mut self, priority: usize, pkt: Packet) {
        self.held.add(&pkt);
        self.bytes[priority] += u64::from(pkt.len);
        self.queues[priority].push_back(pkt);
        self.used |= 1 << priority;
    }

    /// Removes a packet from the queue of a priority: the first or the last one, as the function
    /// `end` decides.
    #[inline]
    fn take(
        &mut self,
        priority: usize,
        end: impl FnOnce(&mut VecDeque<Packet>) -> Option<Packet>,
    ) -> Option<Packet> {
        let queue = &mut self.queues[priority];
        let pkt = end(queue);
        self.bytes[priority] -= pkt.as_ref().map_or(0, |pkt| u64::from(pkt.len));
        if queue.is_empty() {
            self.used &= !(1 << priority);
        }
        pkt
    }
}

impl Qdisc for SkbPrio {
    #[inline]
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let (priority, lowest) = (priority(&pkt), self.lowest());
        if self.held.packets < self.limit {
            self.put(priority, pkt);
            return Verdict::Queued;
        }
        self.drops[priority.min(lowest)] += 1;
        if priority <= lowest {
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        self.put(priority, pkt);
        if let Some(victim) = self.take(lowest, VecDeque::pop_back) {
            self.held.sub(&victim);
            cx.drop(victim, DropReason::Overlimit);
        }
        Verdict::Congested
    }

    #[inline]
    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
        let next = match self.peeked.take() {
            None if self.used != 0 => {
                let highest = PRIORITIES - 1 - self.used.leading_zeros() as usize;
                self.take(highest, VecDeque::pop_front)
            }
            peeked => peeked,
        };
        let Some(pkt) = next else { return Dequeue::Empty };
        self.held.sub(&pkt);
        Dequeue::Ready(pkt)
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        if self.peeked.is_none()
            && let Dequeue::Ready(pkt) = self.dequeue(cx)
        {
            self.held.add(&pkt);
            self.peeked = Some(pkt);
        }
        Peek::at(self.peeked.as_ref())
    }

    fn backlog(&self) -> Backlog {
        self.held
    }

    #[inline]
    fn accepts(&self, _pkt: &Packet) -> bool {
        self.held.packets < self.limit
    }

    /// Sets the new limit and, like Linux, drops nothing: packets beyond a smaller limit leave when
    /// their turn comes.
    fn change(&mut self, values: &Values<'_>, _cx: &mut Cx<'_>) -> bool {
        self.limit = values.number32("limit");
        true
    }

    fn flows(&self, out: &mut dyn FnMut(FlowView<'_>)) {
        for (minor, priority) in (1..).zip(0..PRIORITIES) {
            let packets = u32::try_from(self.queues[priority].len()).unwrap_or(u32::MAX);
            let drops = self.drops[priority];
            out(FlowView {
                minor,
                backlog: Backlog { packets, bytes: self.bytes[priority] },
                drops,
                overlimits: drops,
                extra: &[],
            });
        }
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        while let Dequeue::Ready(pkt) = self.dequeue(cx) {
            cx.drop(pkt, DropReason::Purged);
        }
    }
}
