//! Fair queue with PIE (`fq_pie`): a queue for each flow; the queues are served in turn, and each
//! is kept short by dropping packets at random when they are enqueued.
//!
//! Source: RFC 8033 and RFC 8290; `tc-fq_pie(8)`; behaviour of Linux 7.2 `net/sched/sch_fq_pie.c`.
//! Differs: in the same points as `pie` and `fq_codel`. A flow's drop probability is updated when a
//! packet of the flow comes or leaves, for all intervals that have passed since the last update. A
//! packet that would exceed `memory_limit` is dropped; Linux only counts it.
//! Invariant: those of `pie`, for each flow, and those of `fq_codel`.

use onramp_queue::{DropReason, Packet, PacketList};

use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict, peek_by_dequeue, shown};
use crate::base::params::{Default, Param, Unit, Values};
use crate::base::show::Out;
use crate::base::{Errno, Extra, Fault, Instant, ecn};
use crate::law::codel;
use crate::law::cost::memory;
use crate::law::pie::{self, Law, ONE};
use crate::law::wheel::Rounds;
use crate::sched::Shown;
use crate::sched::buckets::Buckets;
use crate::sched::flows::{Flow, Flows, NEW, OLD};

/// Number of flows in a part. The update intervals of all flows in a part end at the same time;
/// those of the flows in the next part end 10 ms (one jiffy of Linux) later.
const PART: usize = 2048;

pub(super) const FQ_PIE: Kind = Kind {
    id: "fq_pie",
    about: "a queue for each flow, served in turn and kept short by random drops",
    params: &[
        Param::new("limit", Unit::Packets, Default::Number(10_240), "packets held at most")
            .zero_is_unsaid(),
        Param::new("flows", Unit::Count, Default::Number(1024), "queues that flows are hashed to")
            .within(1, 65_536)
            .refused(invalid("sch_fq_pie: Number of flows must range in [1..65536]"))
            .zero_is_unsaid()
            .once(invalid("sch_fq_pie: Number of flows cannot be changed")),
        pie::TARGET,
        pie::TUPDATE,
        pie::ALPHA,
        pie::BETA,
        Param::new("quantum", Unit::Size, Default::Mtus(1), "bytes a flow may send in a round")
            .within(1, 1 << 20)
            .refused(Fault::Kernel(Errno::Range, Some("integer out of range")))
            .zero_is_unsaid(),
        Param::new("memory_limit", Unit::Size, Default::Number(32 << 20), "memory used at most")
            .zero_is_unsaid(),
        Param::new(
            "ecn_prob",
            Unit::Count,
            Default::Number(10),
            "drop probability, in percent, up to which packets are marked",
        )
        .within(1, 99)
        .refused(Fault::Usage)
        .zero_is_unsaid(),
        pie::ECN,
        pie::BYTEMODE,
        pie::ESTIMATOR,
    ],
    build: |values| Box::new(FqPie::new(values)),
    shown: Shown { options: show, extra: show_stats, ..Shown::TABLE },
    ..Kind::LEAF
};

const fn invalid(said: &'static str) -> Fault {
    Fault::Kernel(Errno::Invalid, Some(said))
}

/// Returns the quantum in bytes, at least 256: with a very small quantum, a packet would take many
/// rounds.
fn quantum(values: &Values<'_>) -> u32 {
    values.number32("quantum").max(256)
}

/// Returns the number of the part to which the flow `index` belongs. The drop probabilities of all
/// flows in a part are updated at the same time.
#[inline]
fn part(index: usize) -> u64 {
    (index / PART) as u64
}

fn law(values: &Values<'_>) -> Law {
    Law::new(values, values.number("flows").div_ceil(PART as u64))
}

fn mark_most(values: &Values<'_>) -> u64 {
    ONE / 100 * values.number("ecn_prob")
}

fn show(values: &Values<'_>, _: &Extra, out: &mut Out) {
    shown::packets(out, "limit", values.number("limit"));
    shown::number(out, "flows", values.number("flows"));
    pie::show_aim(values, out);
    shown::size(out, "quantum", quantum(values).into());
    shown::size(out, "memory_limit", values.number("memory_limit"));
    shown::number(out, "ecn_prob", values.number("ecn_prob"));
    pie::show_switches(values, out);
}

fn show_stats(extra: &Extra, out: &mut Out) {
    let rows: [(&str, &[&str]); 2] = [
        ("  ", &["pkts_in", "overlimit", "overmemory", "dropped", "ecn_mark"]),
        ("\n  ", &["new_flow_count", "new_flows_len", "old_flows_len", "memory_used"]),
    ];
    rows.iter().for_each(|(begin, names)| shown::row(out, extra, begin, names));
    out.text(format_args!("\n"));
}

/// The PIE state of a flow, and the number of intervals for which this state has been updated.
#[derive(Debug, std::default::Default)]
struct State {
    pie: pie::Pie,
    periods: u64,
}

impl Flow<State> {
    /// Updates the drop probability once for each interval that has ended since the last call;
    /// `periods` intervals have ended so far.
    #[inline]
    fn update(&mut self, law: &Law, periods: u64) {
        let due = periods - self.law.periods;
        if due > 0 {
            self.law.pie.update(law, self.queue.bytes(), due);
            self.law.periods = periods;
        }
    }
}

#[derive(Debug)]
struct FqPie {
    limit: u32,
    memory_limit: u64,
    /// While the drop probability is at most this, packets are marked instead of dropped, if they
    /// can carry a mark.
    mark_most: u64,
    law: Law,
    rounds: Rounds,
    buckets: Buckets,
    flows: Flows<State>,
    backlog: Backlog,
    memory: u64,
    /// A packet that was dequeued because the parent called `peek`; `backlog` does not count this
    /// packet.
    peeked: Option<Packet>,
    stats: Stats,
}

#[derive(Debug, std::default::Default)]
struct Stats {
    pkts_in: u64,
    overlimit: u64,
    overmemory: u64,
    dropped: u64,
    ecn_mark: u64,
}

impl FqPie {
    fn new(values: &Values<'_>) -> Self {
        let count = values.number32("flows");
        Self {
            limit: values.number32("limit"),
            memory_limit: values.number("memory_limit"),
            mark_most: mark_most(values),
            law: law(values),
            rounds: Rounds::default(),
            buckets: Buckets::new(values, count),
            flows: Flows::new(count, quantum(values)),
            backlog: Backlog::default(),
            memory: 0,
            peeked: None,
            stats: Stats::default(),
        }
    }

    /// Updates the drop probabilities of all flows up to the time `now`. Called before the
    /// parameters change.
    fn settle(&mut self, now: Instant) {
        self.rounds.count(&self.law.timer, now);
        for index in 0..self.flows.all().len() {
            let periods = self.rounds.of_part(part(index), now);
            self.flows.get_mut(index).update(&self.law, periods);
        }
    }

    /// Returns the number of packets that this qdisc holds, including a packet taken out by a
    /// `peek`.
    #[inline]
    fn packets(&self) -> u32 {
        self.backlog.packets + u32::from(self.peeked.is_some())
    }

    /// Decides whether a packet may enter a flow; the packet may get a mark instead of being
    /// dropped. Returns the drop reason as an error if the packet may not enter.
    #[inline]
    fn admits(&mut self, index: usize, pkt: &mut Packet, now: Instant) -> Result<(), DropReason> {
        if self.packets() >= self.limit {
            self.stats.overlimit += 1;
            return Err(DropReason::Overlimit);
        }
        if self.memory + memory(pkt.len) > self.memory_limit {
            self.stats.overmemory += 1;
            return Err(DropReason::Overlimit);
        }
        let flow = self.flows.get_mut(index);
        flow.update(&self.law, self.rounds.of_part(part(index), now));
        if !flow.law.pie.drops(&mut self.law, pkt, flow.queue.bytes()) {
            return Ok(());
        }
        if self.law.ecn && flow.law.pie.probability <= self.mark_most && ecn::mark(pkt) {
            self.stats.ecn_mark += 1;
            return Ok(());
        }
        Err(DropReason::Congested)
    }
}

impl Qdisc for FqPie {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.rounds.count(&self.law.timer, cx.now);
        let index = match self.buckets.of(&mut pkt, cx.now) {
            Ok(index) => index,
            Err(reason) => {
                cx.drop(pkt, reason);
                return Verdict::Dropped;
            }
        };
        if let Err(reason) = self.admits(index, &mut pkt, cx.now) {
            self.stats.dropped += 1;
            self.flows.get_mut(index).law.pie.dropped();
            cx.drop(pkt, reason);
            return Verdict::Dropped;
        }
        codel::stamp(&mut pkt, cx.now);
        self.stats.pkts_in += 1;
        self.backlog.add(&pkt);
        self.memory += memory(pkt.len);
        self.flows.push(index, pkt);
        Verdict::Queued
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        self.rounds.count(&self.law.timer, cx.now);
        while let Some((age, index)) = self.flows.turn() {
            let flow = self.flows.get_mut(index);
            if flow.queue.is_empty() {
                self.flows.retire(age);
                continue;
            }
            flow.update(&self.law, self.rounds.of_part(part(index), cx.now));
            let Some(pkt) = flow.queue.pop_front() else { break };
            flow.charge(&pkt);
            flow.law.pie.learn(&self.law, &pkt, flow.queue.bytes(), cx.now);
            self.backlog.sub(&pkt);
            self.memory -= memory(pkt.len);
            return Dequeue::Ready(pkt);
        }
        Dequeue::Empty
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.backlog;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    fn accepts(&self, pkt: &Packet) -> bool {
        self.packets() < self.limit && self.memory + memory(pkt.len) <= self.memory_limit
    }

    fn prefetch_next(&self, most: u32) {
        self.flows.prefetch_next(most);
    }

    fn prefetch_flows(&self, coming: &PacketList, most: u32) {
        let flows = coming.metas().take(most as usize).map(|meta| meta.flow);
        self.flows.prefetch_flows(flows.map(|flow| self.buckets.hash(flow)));
    }

    /// Sets new parameters. As in Linux, packets beyond the new `limit` are dequeued and dropped; a
    /// new `memory_limit` applies to packets that come later.
    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        self.settle(cx.now);
        self.limit = values.number32("limit");
        self.memory_limit = values.number("memory_limit");
        self.mark_most = mark_most(values);
        self.law.change(law(values), &mut self.rounds, cx.now);
        self.flows.set_quantum(quantum(values));
        while self.packets() > self.limit {
            let Dequeue::Ready(pkt) = self.dequeue(cx) else { break };
            cx.drop(pkt, DropReason::Overlimit);
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        cx.purge(&mut self.flows.reset());
        cx.purge_one(&mut self.peeked);
        self.backlog = Backlog::default();
        self.memory = 0;
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("pkts_in", self.stats.pkts_in);
        out("overlimit", self.stats.overlimit);
        out("overmemory", self.stats.overmemory);
        out("dropped", self.stats.dropped);
        out("ecn_mark", self.stats.ecn_mark);
        out("new_flow_count", self.flows.new_flow_count);
        out("new_flows_len", self.flows.listed(NEW));
        out("old_flows_len", self.flows.listed(OLD));
        out("memory_used", self.memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tc::Spec;

    const MS: u64 = 1_000_000;

    /// Drop probabilities are updated only when they are needed. Updates that were due before a
    /// change of the parameters must use the old parameters, even if nothing needed them before the
    /// change.
    #[test]
    fn what_was_due_before_a_change_goes_by_the_old_law() {
        let spec = |line: &str| line.parse::<Spec>().expect("a line");
        let (old, new) = (spec("fq_pie tupdate 20ms"), spec("fq_pie alpha 32 beta 1 target 1ms"));
        let probability = |asked: bool| {
            let mut drops = PacketList::new();
            let mut qdisc = FqPie::new(&old.values(1514));
            for ms in 0..600 {
                let mut cx = Cx::new(Instant(ms * MS), &mut drops);
                let mut pkt = Packet::new(1_000);
                pkt.enqueued_ns = cx.now.0;
                let _ = qdisc.enqueue(pkt, &mut cx);
                if ms % 2 == 0 {
                    let _ = qdisc.dequeue(&mut cx);
                }
            }
            let mut cx = Cx::new(Instant(900 * MS), &mut drops);
            let index = qdisc.buckets.of(&mut Packet::new(60), cx.now).expect("a bucket");
            let before = qdisc.flows.get(index).law.pie.probability;
            if asked {
                qdisc.settle(cx.now);
            }
            assert!(qdisc.change(&new.values(1514), &mut cx));
            qdisc.settle(Instant(900 * MS + 1));
            let after = qdisc.flows.get(index).law.pie.probability;
            assert!(after > before, "it was to be moved ten times");
            after
        };
        assert_eq!(probability(false), probability(true));
    }
}
