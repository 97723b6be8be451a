//! Two queues that one control law keeps short: the L-queue for packets whose senders respond to
//! each mark (L4S), and the classic queue (C) for all other packets.
//!
//! ```text
//! enqueue   ECT(1) and CE go to the L-queue (L), all others to the classic queue (C)
//! dequeue   L first, but C gets its part of the bytes; C drops with the square of the law's
//!           probability; L marks with a multiple of that probability, and marks each packet that
//!           waited for longer than `step_thresh`
//! ```
//!
//! When the multiple of the law's probability exceeds 1, there is an overload: both queues drop
//! with the square of the probability, and C drops even packets that could be marked.
//!
//! Source: RFC 9332; `tc-dualpi2(8)`; behaviour of Linux 7.2 `net/sched/sch_dualpi2.c`.
//! Differs: random numbers come from a seed; the probability is updated at multiples of `tupdate`
//! of the clock, as in a qdisc that was created when the machine started; the waiting time of a
//! packet starts when the packet is pushed (below `netem`: when `netem` hands it over), and not
//! when this qdisc enqueues it: see [`enqueued_ns`](onramp_queue::Meta::enqueued_ns). It is an
//! error to give `max_rtt` together with options that it overrides.
//! Invariant: packets of a queue leave in order; while C holds packets, C sends
//! `classic_protection` percent of the bytes, give or take the largest packet; nothing is dropped
//! or marked at random while less than two of the largest packets are held.

mod law;
mod show;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use onramp_queue::{DropReason, Packet, PacketList};

use self::law::Law;
use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict, peek_by_dequeue};
use crate::base::params::{Default, Param, U32_MAX, Unit, Values};
use crate::base::{Handle, Instant, ecn};
use crate::filter::{Decision, Filters};
use crate::law::codel;
use crate::law::cost::memory;
use crate::sched::segments;

use Default::{Number, Off};

pub(super) const DUALPI2: Kind = Kind {
    id: "dualpi2",
    about: "two queues coupled by one law: a short one for L4S packets (L), and a classic one",
    params: &[
        Param::new("limit", Unit::Packets, Number(10_000), "packets held at most").zero_is_unsaid(),
        Param::new(
            "memlimit",
            Unit::Bytes,
            Off,
            "memory used at most: two MTUs for each packet; a change of `limit` resets it",
        )
        .zero_is_unsaid(),
        law::TARGET,
        law::TUPDATE,
        law::ALPHA,
        law::BETA,
        law::MAX_RTT,
        law::TYPICAL_RTT,
        Param::new(
            "step_thresh",
            Unit::TimeOrPackets,
            Number(2 * 1_000_000),
            "waiting time or number of packets above which the L-queue marks all packets",
        )
        .within(1, 2 * U32_MAX + 1),
        Param::new(
            "min_qlen_step",
            Unit::Packets,
            Number(0),
            "packets that the L-queue must hold before `step_thresh` applies",
        ),
        Param::new(
            "coupling_factor",
            Unit::Count,
            Number(2),
            "marking probability of the L-queue, as a multiple of the base probability",
        )
        .within(1, 255),
        Param::new(
            "overload",
            Unit::Words(&["drop_on_overload", "overflow"]),
            Number(0),
            "under overload, drops packets, or lets the queues overflow",
        ),
        Param::new(
            "drop",
            Unit::Words(&["drop_dequeue", "drop_enqueue"]),
            Number(0),
            "whether packets are dropped or marked when they leave or when they arrive",
        ),
        Param::new(
            "classic_protection",
            Unit::Percent,
            Number(PERCENT * 10),
            "smallest share of the bytes that the classic queue gets",
        ),
        Param::new(
            "ect",
            Unit::Words(&["l4s_ect", "any_ect"]),
            Number(0),
            "which packets go to the L-queue",
        ),
        Param::new(
            "gso",
            Unit::Words(&["split_gso", "no_split_gso"]),
            Number(0),
            "splits large packets, or leaves them whole",
        ),
    ],
    check: law::check,
    build: |values| Box::new(DualPi2::new(values)),
    shown: show::SHOWN,
    quirks: Quirks {
        change: |said, options| {
            law::change(said, options);
            // A new `limit` brings the memory limit that follows from it.
            if said.is_given("limit") && !said.is_given("memlimit") {
                options.set("memlimit", None);
            }
        },
        ..Quirks::NONE
    },
    ..Kind::LEAF
};

/// One percent, in the units of [`Unit::Percent`].
const PERCENT: u64 = (U32_MAX + 50) / 100;

/// How a packet of the L-queue is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Treatment {
    /// The packet is neither marked nor dropped.
    Spared,
    /// The packet is marked at random. If `step` is true, the packet is also marked when it has
    /// waited for too long.
    Scalable { step: bool },
}

/// The queue that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Classic,
    L(Treatment),
}

#[derive(Debug)]
struct Config {
    handle: Handle,
    mtu: u32,
    limit: u32,
    memory_limit: u64,
    /// The step threshold: packets of the L-queue that waited for longer are marked. In
    /// nanoseconds, or in packets if `step_in_packets` is true.
    step: u64,
    step_in_packets: bool,
    min_qlen_step: u32,
    drop_overload: bool,
    drop_early: bool,
    split_gso: bool,
    /// The ECN bits that make a packet an L4S packet.
    ecn_mask: u8,
    /// The percentage of bytes that the classic queue gets.
    weight: i64,
}

impl Config {
    fn new(values: &Values<'_>) -> Self {
        let mtu = values.site.mtu;
        let limit = values.number32("limit");
        let step = values.number("step_thresh");
        let percent = (values.number("classic_protection") + PERCENT / 2) / PERCENT;
        Self {
            handle: values.site.handle,
            mtu,
            limit,
            memory_limit: match values.number("memlimit") {
                0 => u64::from(limit).saturating_mul(2 * u64::from(mtu)).min(U32_MAX),
                given => given,
            },
            step: step / 2,
            step_in_packets: step % 2 == 1,
            min_qlen_step: values.number32("min_qlen_step"),
            drop_overload: values.number("overload") == 0,
            drop_early: values.number("drop") == 1,
            split_gso: values.number("gso") == 0,
            ecn_mask: if values.number("ect") == 0 { 1 } else { 3 },
            weight: percent.min(100).cast_signed(),
        }
    }

    /// Returns the credit that the classic queue has in the weighted round robin (WRR) of the two
    /// queues when both are empty. It lets the queue with the greater weight send first.
    fn first_credit(&self) -> i64 {
        i64::from(self.mtu) * (2 * self.weight - 100)
    }
}

#[derive(Debug)]
struct DualPi2 {
    config: Config,
    law: Law,
    filters: Filters,
    classic: PacketList,
    l_queue: PacketList,
    /// How each packet of the L-queue is treated, in the same order as the packets.
    treatments: VecDeque<Treatment>,
    /// The credit of the classic queue in the weighted round robin (WRR) of the two queues, in
    /// bytes times percent. If both queues hold packets, the classic queue sends next while this
    /// credit is above zero.
    credit: i64,
    memory: u64,
    /// The time at which this qdisc was last called.
    seen: Instant,
    /// A packet that was dequeued because the parent called `peek`; `memory` does not count this
    /// packet.
    peeked: Option<Packet>,
    stats: Stats,
}

#[derive(Debug, std::default::Default)]
struct Stats {
    packets_in_c: u64,
    packets_in_l: u64,
    maxq: u32,
    ecn_mark: u64,
    step_marks: u64,
    overlimits: u64,
    max_memory: u64,
}

impl DualPi2 {
    fn new(values: &Values<'_>) -> Self {
        let config = Config::new(values);
        Self {
            law: Law::new(values, config.drop_overload),
            credit: config.first_credit(),
            config,
            filters: Filters::default(),
            classic: PacketList::new(),
            l_queue: PacketList::new(),
            treatments: VecDeque::new(),
            memory: 0,
            seen: Instant(0),
            peeked: None,
            stats: Stats::default(),
        }
    }

    /// Returns the queue to which a packet goes, or `None` if a filter's action drops the packet.
    #[inline]
    fn classify(&mut self, pkt: &mut Packet, now: Instant) -> Option<Queue> {
        const SCALABLE: Treatment = Treatment::Scalable { step: true };
        if pkt.ecn & self.config.ecn_mask != 0 {
            return Some(Queue::L(SCALABLE));
        }
        let class = Handle::from_priority(pkt.priority);
        let minor = if class.major == self.config.handle.major && class.minor < 3 {
            class.minor
        } else {
            match self.filters.classify(pkt, now) {
                Decision::Drop => return None,
                Decision::Class(class) => class.minor,
                Decision::Unknown => 0,
            }
        };
        Some(match minor {
            1 => Queue::L(SCALABLE),
            2 => Queue::L(Treatment::Spared),
            _ => Queue::Classic,
        })
    }

    /// Enqueues one datagram, or drops it.
    #[inline]
    fn take(&mut self, mut pkt: Packet, queue: Queue, cx: &mut Cx<'_>) -> Verdict {
        if !self.accepts(&pkt) {
            self.stats.overlimits += 1;
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        let held = self.backlog();
        if self.config.drop_early && self.must_drop(&mut pkt, queue, held.bytes) {
            cx.drop(pkt, DropReason::Congested);
            return Verdict::Dropped;
        }
        codel::stamp(&mut pkt, cx.now);
        self.memory += memory(pkt.len);
        self.stats.max_memory = self.stats.max_memory.max(self.memory);
        self.stats.maxq = self.stats.maxq.max(held.packets);
        match queue {
            Queue::Classic => {
                self.stats.packets_in_c += 1;
                self.classic.push_back(pkt);
            }
            Queue::L(treatment) => {
                let step = self.l_queue.len() >= self.config.min_qlen_step;
                self.treatments.push_back(match treatment {
                    Treatment::Spared => Treatment::Spared,
                    Treatment::Scalable { .. } => Treatment::Scalable { step },
                });
                self.stats.packets_in_l += 1;
                self.l_queue.push_back(pkt);
            }
        }
        Verdict::Queued
    }

    fn mark(&mut self, pkt: &mut Packet) -> bool {
        let marked = ecn::mark(pkt);
        self.stats.ecn_mark += u64::from(marked);
        marked
    }

    /// Decides at random whether to drop a packet, to mark it, or neither, and marks it if so
    /// decided. Returns true if the caller must drop the packet. `held` is the number of bytes that
    /// the qdisc holds besides this packet.
    #[inline]
    fn must_drop(&mut self, pkt: &mut Packet, queue: Queue, held: u64) -> bool {
        if held < 2 * u64::from(self.config.mtu) {
            return false;
        }
        let overload = self.law.is_overloaded();
        match queue {
            Queue::L(Treatment::Spared) => false,
            Queue::Classic => self.law.roll_square() && (overload || !self.mark(pkt)),
            Queue::L(_) if overload => {
                let drops = self.config.drop_overload && self.law.roll_square();
                // In an overload, an L4S packet that is not dropped is marked if it can carry a
                // mark, and stays even if it cannot.
                if !drops {
                    self.mark(pkt);
                }
                drops
            }
            Queue::L(_) => self.law.roll(self.law.coupled()) && !self.mark(pkt),
        }
    }

    /// Removes the next packet. Returns the packet, the queue from which it came, and by how much
    /// the classic queue's credit in the weighted round robin (WRR) changes if the packet is sent.
    #[inline]
    fn next(&mut self) -> Option<(Packet, Queue, i64)> {
        let (l, c) = (!self.l_queue.is_empty(), !self.classic.is_empty());
        let (pkt, queue, credit) = if l && (!c || self.credit <= 0) {
            let pkt = self.l_queue.pop_front()?;
            let treatment = self.treatments.pop_front()?;
            (pkt, Queue::L(treatment), if c { self.config.weight } else { 0 })
        } else {
            let pkt = self.classic.pop_front()?;
            (pkt, Queue::Classic, if l { self.config.weight - 100 } else { 0 })
        };
        self.memory -= memory(pkt.len);
        let credit = credit * i64::from(pkt.len);
        Some((pkt, queue, credit))
    }

    /// Marks a packet of the L-queue if it has waited longer than the step threshold. Returns `Err`
    /// if the packet waited for too long but cannot carry a mark: then it must be dropped.
    #[inline]
    fn step(&mut self, pkt: &mut Packet, now: Instant) -> Result<(), DropReason> {
        let wait = if self.config.step_in_packets {
            self.l_queue.len().into()
        } else {
            now.since(Instant(pkt.enqueued_ns))
        };
        if wait <= self.config.step {
            return Ok(());
        }
        if !self.mark(pkt) {
            return Err(DropReason::L4sStepNonEcn);
        }
        self.stats.step_marks += 1;
        Ok(())
    }

    /// Returns the time at which the oldest of all packets held came, in nanoseconds.
    #[inline]
    fn oldest(&self) -> Option<u64> {
        let came = |list: &PacketList| list.front().map(|pkt| pkt.enqueued_ns);
        match (came(&self.classic), came(&self.l_queue)) {
            (Some(c), Some(l)) => Some(c.min(l)),
            (c, l) => c.or(l),
        }
    }

    #[inline]
    fn update(&mut self, now: Instant) {
        self.seen = now;
        let oldest = self.oldest();
        self.law.update(oldest, now);
    }
}

impl Qdisc for DualPi2 {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.update(cx.now);
        let Some(queue) = self.classify(&mut pkt, cx.now) else {
            cx.drop(pkt, DropReason::Filter);
            return Verdict::Dropped;
        };
        if !self.config.split_gso || !segments::is_several(&pkt) {
            return self.take(pkt, queue, cx);
        }
        segments::each(pkt, cx, |part, cx| self.take(part, queue, cx))
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        self.update(cx.now);
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        while let Some((mut pkt, queue, credit)) = self.next() {
            let held = self.classic.bytes() + self.l_queue.bytes();
            if !self.config.drop_early && self.must_drop(&mut pkt, queue, held) {
                cx.drop(pkt, DropReason::Congested);
                continue;
            }
            if queue == Queue::L(Treatment::Scalable { step: true })
                && let Err(reason) = self.step(&mut pkt, cx.now)
            {
                cx.drop(pkt, reason);
                continue;
            }
            self.credit += credit;
            return Dequeue::Ready(pkt);
        }
        self.credit = self.config.first_credit();
        Dequeue::Empty
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    #[inline]
    fn backlog(&self) -> Backlog {
        let (c, l) = (&self.classic, &self.l_queue);
        let mut held = Backlog { packets: c.len() + l.len(), bytes: c.bytes() + l.bytes() };
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    #[inline]
    fn accepts(&self, pkt: &Packet) -> bool {
        self.backlog().packets < self.config.limit
            && self.memory + memory(pkt.len) <= self.config.memory_limit
    }

    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        self.update(cx.now);
        self.config = Config::new(values);
        self.law.change(Law::new(values, self.config.drop_overload));
        if values.is_said("classic_protection") {
            self.credit = self.config.first_credit();
        }
        // Drop packets that exceed the new limits: first classic packets, the oldest first; then
        // packets of the L-queue, the oldest first.
        while self.backlog().packets > self.config.limit || self.memory > self.config.memory_limit {
            let oldest = self.classic.pop_front().or_else(|| {
                self.treatments.pop_front();
                self.l_queue.pop_front()
            });
            let Some(pkt) = oldest else { break };
            self.memory -= memory(pkt.len);
            cx.drop(pkt, DropReason::Overlimit);
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.update(cx.now);
        cx.purge(&mut self.classic);
        cx.purge(&mut self.l_queue);
        cx.purge_one(&mut self.peeked);
        self.treatments.clear();
        self.law.reset();
        self.credit = self.config.first_credit();
        self.memory = 0;
        self.stats = Stats::default();
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        (minor == 0).then_some(&mut self.filters)
    }

    fn overlimits(&self) -> u64 {
        self.stats.overlimits
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        let stats = &self.stats;
        out("prob", self.law.probability.into());
        out("prob_ppm", u64::from(self.law.probability) * 1_000_000 / U32_MAX);
        for (name, list) in [("delay_c_ns", &self.classic), ("delay_l_ns", &self.l_queue)] {
            out(name, list.front().map_or(0, |pkt| self.seen.since(Instant(pkt.enqueued_ns))));
        }
        out("packets_in_c", stats.packets_in_c);
        out("packets_in_l", stats.packets_in_l);
        out("maxq", stats.maxq.into());
        out("ecn_mark", stats.ecn_mark);
        out("step_marks", stats.step_marks);
        out("credit_c", self.credit.max(0).unsigned_abs());
        out("credit_l", self.credit.min(0).unsigned_abs());
        out("memory_used", self.memory);
        out("max_memory_used", stats.max_memory);
        out("memory_limit", self.config.memory_limit);
    }
}
