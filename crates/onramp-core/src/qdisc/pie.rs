//! Proportional integral controller enhanced (`pie`): drops arriving packets at random, with a
//! probability that keeps the waiting time of the others near `target`.
//!
//! Source: RFC 8033; `tc-pie(8)`; behaviour of Linux 7.2 `net/sched/sch_pie.c`.
//! Differs: random numbers come from a seed; the drop probability is updated as often as in Linux
//! (every `tupdate`, rounded up to whole jiffies of 10 ms, plus one jiffy: see
//! [`wheel`](crate::law::wheel)), but always at the times of a qdisc that was created at time 0 of
//! the clock (at multiples of 30 ms with the default `tupdate`, at odd multiples of 10 ms with
//! `tupdate 10ms`); the waiting time of a packet starts when the packet is pushed (below `netem`:
//! when `netem` hands it over), and not when this qdisc enqueues it: see
//! [`enqueued_ns`](onramp_queue::Meta::enqueued_ns). This holds also for a packet that came before
//! `dq_rate_estimator` was switched off; in Linux, such a packet counts as waiting since the
//! machine started.
//! Invariant: nothing is dropped at random in the first 150 ms after the queue became busy, nor
//! while the queue holds fewer bytes than two packets of the largest size.

use onramp_queue::{DropReason, Packet, PacketList};

use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict, peek_by_dequeue, shown};
use crate::base::params::{Default, Param, Unit, Values};
use crate::base::show::{General, Out};
use crate::base::{Extra, ecn};
use crate::law::codel;
use crate::law::pie::{self, Law, ONE};
use crate::law::wheel::Rounds;
use crate::sched::Shown;

pub(super) const PIE: Kind = Kind {
    id: "pie",
    about: "one queue, kept short by random drops",
    params: &[
        Param::new("limit", Unit::Packets, Default::Number(1000), "packets held at most")
            .zero_is_unsaid(),
        pie::TARGET,
        pie::TUPDATE,
        pie::ALPHA,
        pie::BETA,
        pie::ECN,
        pie::BYTEMODE,
        pie::ESTIMATOR,
    ],
    build: |values| {
        Box::new(Pie {
            limit: values.number32("limit"),
            law: Law::new(values, 1),
            state: pie::Pie::default(),
            rounds: Rounds::default(),
            updates: 0,
            list: PacketList::new(),
            peeked: None,
            stats: Stats::default(),
        })
    },
    shown: Shown {
        options: |values, _, out| {
            shown::packets(out, "limit", values.number("limit"));
            pie::show_aim(values, out);
            pie::show_switches(values, out);
        },
        extra: show_stats,
        ..Shown::TABLE
    },
    ..Kind::LEAF
};

fn show_stats(extra: &Extra, out: &mut Out) {
    #[expect(clippy::cast_precision_loss, reason = "six digits of it are written")]
    let probability = extra.get("prob") as f64 / ONE as f64;
    out.float("prob", probability, format_args!("  prob {}", General(probability)));
    let us = extra.get("delay_ns").unsigned_abs() / 1_000;
    out.uint("delay", us, format_args!(" delay {}", shown::micros(us)));
    if extra.find("avg_dq_rate").is_some() {
        shown::row(out, extra, " ", &["avg_dq_rate"]);
    }
    shown::row(out, extra, "\n  ", &["pkts_in", "overlimit", "dropped", "maxq", "ecn_mark"]);
    out.text(format_args!("\n"));
}

#[derive(Debug)]
struct Pie {
    limit: u32,
    law: Law,
    state: pie::Pie,
    rounds: Rounds,
    /// Number of intervals for which the probability has been updated so far.
    updates: u64,
    list: PacketList,
    /// A packet that was dequeued because the parent called `peek`.
    peeked: Option<Packet>,
    stats: Stats,
}

#[derive(Debug, std::default::Default)]
struct Stats {
    pkts_in: u64,
    overlimit: u64,
    dropped: u64,
    maxq: u32,
    ecn_mark: u64,
}

impl Pie {
    /// Decides whether a packet may enter the queue; the packet may get a mark instead of being
    /// dropped. Returns the drop reason as an error if the packet may not enter.
    #[inline]
    fn admits(&mut self, pkt: &mut Packet, held: Backlog) -> Result<(), DropReason> {
        if held.packets >= self.limit {
            self.stats.overlimit += 1;
            return Err(DropReason::Overlimit);
        }
        if !self.state.drops(&mut self.law, pkt, held.bytes) {
            return Ok(());
        }
        if self.law.ecn && self.state.probability <= ONE / 10 && ecn::mark(pkt) {
            self.stats.ecn_mark += 1;
            return Ok(());
        }
        Err(DropReason::Congested)
    }

    /// Updates the drop probability once for each interval that has ended since the last update.
    #[inline]
    fn update(&mut self, cx: &Cx<'_>) {
        let rounds = self.rounds.count(&self.law.timer, cx.now);
        if rounds > self.updates {
            self.state.update(&self.law, self.backlog().bytes, rounds - self.updates);
            self.updates = rounds;
        }
    }
}

impl Qdisc for Pie {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.update(cx);
        let held = self.backlog();
        if let Err(reason) = self.admits(&mut pkt, held) {
            self.stats.dropped += 1;
            self.state.dropped();
            cx.drop(pkt, reason);
            return Verdict::Dropped;
        }
        codel::stamp(&mut pkt, cx.now);
        self.stats.pkts_in += 1;
        self.stats.maxq = self.stats.maxq.max(held.packets);
        self.list.push_back(pkt);
        Verdict::Queued
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        self.update(cx);
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        let Some(pkt) = self.list.pop_front() else { return Dequeue::Empty };
        self.state.learn(&self.law, &pkt, self.list.bytes(), cx.now);
        Dequeue::Ready(pkt)
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = Backlog::of(&self.list);
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    fn accepts(&self, _pkt: &Packet) -> bool {
        self.backlog().packets < self.limit
    }

    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        self.update(cx);
        self.limit = values.number32("limit");
        self.law.change(Law::new(values, 1), &mut self.rounds, cx.now);
        while self.backlog().packets > self.limit {
            let Some(pkt) = self.peeked.take().or_else(|| self.list.pop_front()) else { break };
            cx.drop(pkt, DropReason::Overlimit);
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        cx.purge(&mut self.list);
        cx.purge_one(&mut self.peeked);
        self.state = pie::Pie::default();
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.state.stats(&self.law, out);
        out("pkts_in", self.stats.pkts_in);
        out("overlimit", self.stats.overlimit);
        out("dropped", self.stats.dropped);
        out("maxq", self.stats.maxq.into());
        out("ecn_mark", self.stats.ecn_mark);
    }
}
