//! Stochastic fairness queueing (`sfq`): a short queue for each flow; the queues are served in
//! turn, and a full qdisc drops from the longest queue.
//!
//! Source: McKenney, "Stochastic Fairness Queueing", 1990; `tc-sfq(8)`; behaviour of Linux 7.2
//! `net/sched/sch_sfq.c`, with its choice between queues of the same length (it drops from the one
//! that reached that length last) and its order of flows after a perturbation (a change of the hash
//! function).
//! Differs: flows are hashed by [`flow`](onramp_queue::Meta::flow). A perturbation happens with the
//! first call after its time; these times are those at which the clock reaches a multiple of the
//! interval `perturb`, as if the qdisc had been created when the machine started.
//! Invariant: packets of a flow leave in order, unless the flow is hashed anew; when a packet must
//! be dropped, no queue is longer than the queue from which it is dropped.

mod slots;

use onramp_queue::{DropReason, Packet, PacketList};

use self::slots::{NONE, Slots};
use super::{Backlog, Changes, Cx, Dequeue, Kind, Peek, Qdisc, Verdict, peek_by_dequeue, shown};
use crate::base::params::{Default, Param, U32_MAX, Unit, Values};
use crate::base::rng::Rng;
use crate::base::show::Out;
use crate::base::{Clash, Errno, Extra, Fault, Instant, ecn};
use crate::filter::Filters;
use crate::law::red::{self, Average, Red, Shape};
use crate::law::wheel::{Rounds, TICK_NS, Timer};
use crate::sched::buckets::Buckets;
use crate::sched::{FlowView, Shown};

/// The greatest number of packets in a queue, even if the user gives a greater `depth`.
const DEPTH_MAX: u32 = 127;
const FLOWS_MAX: u32 = 65_408;
/// The greatest number of seconds that the kernel's timer can count, with `HZ=100`.
const PERTURB_MAX: u64 = i32::MAX as u64 / TICKS_PER_SEC;
const TICKS_PER_SEC: u64 = 1_000_000_000 / TICK_NS;
/// The largest quantum, in bytes.
const QUANTUM_MAX: u64 = 1 << 20;
const AVERAGE_PACKET: u64 = 1000;

/// The error with which the kernel refuses any change of parameters.
const FIXED: Fault =
    Fault::Kernel(Errno::NotSupported, Some("Change operation not supported by specified qdisc"));

/// Defines a parameter that cannot be changed.
const fn param(key: &'static str, unit: Unit, default: Default, help: &'static str) -> Param {
    Param::new(key, unit, default, help).once(FIXED)
}

const fn invalid(said: &'static str) -> Fault {
    Fault::Kernel(Errno::Invalid, Some(said))
}

pub(super) const SFQ: Kind = Kind {
    id: "sfq",
    about: "a short queue for each flow, served in turn",
    params: &[
        param("limit", Unit::Packets, Default::Number(127), "packets held at most")
            .within(2, U32_MAX)
            .refused(Fault::Usage),
        param("quantum", Unit::Size, Default::Mtus(1), "bytes a flow may send in a round")
            .within(1, QUANTUM_MAX)
            .refused(invalid("sch_sfq: quantum too large"))
            .zero_is_unsaid(),
        param("depth", Unit::Packets, Default::Number(127), "packets held at most of each flow")
            .zero_is_unsaid(),
        param(
            "headdrop",
            Unit::Words(&["headdrop"]),
            Default::Off,
            "drops the oldest packet of a flow, not the newest",
        ),
        param("flows", Unit::Count, Default::Number(128), "flows held at most").zero_is_unsaid(),
        param("divisor", Unit::Count, Default::Number(1024), "buckets flows are hashed to")
            .within(1, 65_536)
            .zero_is_unsaid(),
        param("perturb", Unit::Signed, Default::Off, "seconds after which flows are rehashed")
            .within(0, PERTURB_MAX)
            .refused(invalid("sch_sfq: invalid perturb period")),
        param(
            "redflowlimit",
            Unit::Bytes,
            Default::Off,
            "applies RED to each flow; bytes from which RED's defaults follow",
        )
        .at_least(1)
        .refused(Fault::Usage),
        param(
            "min",
            Unit::Bytes,
            Default::Off,
            "average length of a flow's queue from which RED drops packets",
        ),
        param(
            "max",
            Unit::Bytes,
            Default::Off,
            "average length of a flow's queue from which RED drops all packets",
        ),
        param(
            "avpkt",
            Unit::Bytes,
            Default::Number(AVERAGE_PACKET),
            "size of a usual packet, bytes",
        )
        .at_least(1)
        .refused(Fault::Usage),
        param(
            "burst",
            Unit::Packets,
            Default::Off,
            "packets of a flow that may arrive at once without drops by RED",
        ),
        red::PROBABILITY.once(FIXED),
        param(
            "ecn",
            Unit::Words(&["ecn"]),
            Default::Off,
            "RED marks packets instead of dropping them",
        ),
        param(
            "harddrop",
            Unit::Words(&["harddrop"]),
            Default::Off,
            "with `ecn`: RED drops packets when the average exceeds `max`",
        ),
    ],
    changes: Changes::Bare,
    check,
    build: |values| Box::new(Sfq::new(values)),
    shown: Shown {
        options: show,
        class_extra: |extra, out| {
            shown::row(out, extra, "  ", &["allot"]);
            out.text(format_args!("\n"));
        },
        ..Shown::TABLE
    },
    ..Kind::LEAF
};

/// Options that only RED uses.
const OF_RED: [&str; 7] = ["min", "max", "avpkt", "burst", "probability", "ecn", "harddrop"];

fn check(values: &Values<'_>) -> Result<(), Clash> {
    if values.is_given("redflowlimit") {
        let (shape, limit) = (shape(values), values.number32("redflowlimit"));
        shape.check_limit(limit)?;
        shape.check()?;
        shape.check_bits()?;
    } else if let Some(key) = OF_RED.into_iter().find(|key| values.is_given(key)) {
        return Err(Clash::usage(key, "it needs redflowlimit"));
    }
    if !values.number32("divisor").is_power_of_two() {
        return Err(("divisor", "expected a power of two, 1 to 65536").into());
    }
    if Limits::new(values).limit < 2 {
        let clash = Clash::from(("limit", "flows and depth leave room for fewer than two packets"));
        return Err(clash.said(Errno::Invalid, "sch_sfq: invalid limit"));
    }
    Ok(())
}

/// The limits in effect, which may be smaller than the parameters given: the product of `depth` and
/// `flows` bounds `limit`, and `limit` and `divisor` bound `flows`.
#[derive(Clone, Copy, Debug)]
struct Limits {
    limit: u32,
    depth: u32,
    flows: u32,
}

impl Limits {
    fn new(values: &Values<'_>) -> Self {
        let depth = values.number32("depth").min(DEPTH_MAX);
        let mut flows = values.number32("flows").min(FLOWS_MAX);
        let mut limit = values.number32("limit");
        if values.is_given("divisor") {
            flows = flows.min(values.number32("divisor"));
        }
        if values.is_given("limit") {
            limit = limit.min(flows * depth);
            flows = flows.min(limit);
        }
        Self { limit, depth, flows }
    }
}

/// Returns the quantum in bytes, at least 256: with a very small quantum, a packet would take many
/// rounds.
fn quantum(values: &Values<'_>) -> u64 {
    values.number("quantum").max(256)
}

/// Returns the RED parameters of each flow that follow from the qdisc's parameters.
fn shape(values: &Values<'_>) -> Shape {
    Shape::of(values, values.number32("redflowlimit"), values.number32("avpkt"))
}

fn show(values: &Values<'_>, extra: &Extra, out: &mut Out) {
    let Limits { limit, depth, flows } = Limits::new(values);
    shown::packets(out, "limit", limit.into());
    shown::size(out, "quantum", quantum(values));
    shown::number(out, "depth", depth.into());
    if values.is_given("headdrop") {
        shown::flag(out, "headdrop");
    }
    if out.style.details {
        shown::number(out, "flows", flows.into());
    }
    shown::number(out, "divisor", values.number("divisor"));
    let perturb = values.number("perturb");
    if perturb > 0 {
        out.uint("perturb", perturb, format_args!("perturb {perturb}sec "));
    }
    if values.is_given("redflowlimit") {
        red::show_flows(values, shape(values).checked(), out);
        if out.style.stats {
            shown::row(out, extra, "\n  ", &NAMES[0]);
            shown::row(out, extra, "\n  ", &NAMES[1]);
        }
    }
}

/// Names of RED's statistics: first for packets marked or dropped at random, then for packets
/// marked or dropped because the average queue length was beyond `max`.
const NAMES: [[&str; 3]; 2] = [
    ["prob_mark", "prob_mark_head", "prob_drop"],
    ["forced_mark", "forced_mark_head", "forced_drop"],
];

#[derive(Debug)]
struct Sfq {
    limit: u32,
    depth: usize,
    quantum: i32,
    headdrop: bool,
    buckets: Buckets,
    slots: Slots,
    red: Option<Box<FlowRed>>,
    perturb: Option<Box<Perturb>>,
    backlog: Backlog,
    /// A packet that was dequeued because the parent called `peek`, or a packet that bypassed the
    /// queue and was then refused by the device; `backlog` does not count this packet.
    peeked: Option<Packet>,
}

/// The state of RED, which decides separately for each flow.
#[derive(Debug)]
struct FlowRed {
    law: Red,
    /// The average queue length of the flow in each slot (the queue of a flow).
    averages: Box<[Average]>,
    ecn: bool,
    harddrop: bool,
    /// Numbers of packets marked on arrival, marked at the head of the queue, and dropped: first of
    /// the packets that RED chose at random, then of those that it chose because the average queue
    /// length was beyond `max`.
    stats: [[u64; 3]; 2],
}

/// Perturbation: the hash of flows is changed at regular intervals.
#[derive(Debug)]
struct Perturb {
    timer: Timer,
    rounds: Rounds,
    /// Number of intervals `perturb` that had ended at the last check.
    done: u64,
    rng: Rng,
}

impl Perturb {
    fn new(seconds: u64, seed: u64) -> Self {
        let timer = Timer::new(seconds * TICKS_PER_SEC, 1, seconds * 1_000_000_000);
        Self { timer, rounds: Rounds::default(), done: 0, rng: Rng::new(seed) }
    }
}

impl Sfq {
    fn new(values: &Values<'_>) -> Self {
        let divisor = values.number32("divisor");
        let Limits { limit, depth, flows } = Limits::new(values);
        let flows = flows.min(divisor);
        let seed = values.site.seed;
        let red = values.is_given("redflowlimit").then(|| {
            let (shape, weight) = shape(values).checked();
            Box::new(FlowRed {
                law: Red::new(&shape, weight, seed),
                averages: vec![Average::EMPTY; flows as usize].into(),
                ecn: values.is_given("ecn"),
                harddrop: values.is_given("harddrop"),
                stats: [[0; 3]; 2],
            })
        });
        let seconds = values.number("perturb");
        let perturb = || Box::new(Perturb::new(seconds, seed));
        Self {
            limit,
            depth: depth as usize,
            quantum: i32::try_from(quantum(values)).unwrap_or(i32::MAX),
            headdrop: values.is_given("headdrop"),
            buckets: Buckets::new(values, divisor),
            slots: Slots::new(flows, divisor, depth),
            red,
            perturb: (seconds > 0).then(perturb),
            backlog: Backlog::default(),
            peeked: None,
        }
    }

    /// Returns whether RED lets a packet into the slot `slot` (the queue of a flow); the packet, or
    /// the oldest packet of that queue, may be marked.
    #[cold]
    fn spares(&mut self, slot: u32, pkt: &mut Packet, now: Instant) -> bool {
        let Some(red) = &mut self.red else { return true };
        let slot_now = self.slots.get(slot);
        let average = &mut red.averages[slot as usize];
        let forced = match red.law.judge(average, slot_now.bytes, now) {
            red::Verdict::Spare => return true,
            red::Verdict::Early => false,
            red::Verdict::Forced => true,
        };
        let [marked, marked_head, dropped] = &mut red.stats[usize::from(forced)];
        if red.ecn && !(forced && red.harddrop) {
            if self.headdrop && slot_now.queue.front_mut().is_some_and(|head| ecn::mark(head)) {
                *marked_head += 1;
                return true;
            }
            if ecn::mark(pkt) {
                *marked += 1;
                return true;
            }
        }
        *dropped += 1;
        false
    }

    /// Drops `pkt`; with the option `headdrop`, drops the oldest packet of the same queue instead
    /// and keeps `pkt`.
    #[cold]
    fn refuse(&mut self, slot: u32, pkt: Packet, reason: DropReason, cx: &mut Cx<'_>) -> Verdict {
        if !self.headdrop {
            cx.drop(pkt, reason);
            return Verdict::Dropped;
        }
        let slot = self.slots.get(slot);
        let Some(head) = slot.queue.pop_front() else {
            cx.drop(pkt, reason);
            return Verdict::Dropped;
        };
        slot.bytes = slot.bytes + u64::from(pkt.len) - u64::from(head.len);
        self.backlog.sub(&head);
        self.backlog.add(&pkt);
        slot.queue.push_back(pkt);
        cx.drop(head, reason);
        Verdict::Congested
    }

    /// Drops a packet from the longest queue. Returns the slot of that queue.
    #[cold]
    fn drop_one(&mut self, cx: &mut Cx<'_>) -> u32 {
        let slot = self.slots.longest();
        let Some(pkt) = self.slots.pop(slot, !self.headdrop) else { return NONE };
        if self.slots.get(slot).queue.is_empty() {
            self.slots.leave();
        }
        self.backlog.sub(&pkt);
        cx.drop(pkt, DropReason::Overlimit);
        slot
    }

    /// Returns the slot (the queue of a flow) that belongs to a bucket, giving the bucket a free
    /// slot if it has none; [`NONE`] if no slot is free.
    #[inline]
    fn slot_of(&mut self, bucket: usize) -> u32 {
        let slot = self.slots.of_bucket(bucket);
        if slot != NONE {
            return slot;
        }
        let slot = self.slots.take(bucket);
        if let Some(red) = self.red.as_mut().filter(|_| slot != NONE) {
            red.averages[slot as usize] = Average::EMPTY;
        }
        slot
    }

    /// Changes the hash of flows if an interval `perturb` has ended.
    #[inline]
    fn perturb(&mut self, cx: &mut Cx<'_>) {
        let Some(perturb) = &mut self.perturb else { return };
        let rounds = perturb.rounds.count(&perturb.timer, cx.now);
        if std::mem::replace(&mut perturb.done, rounds) == rounds {
            return;
        }
        let seed = perturb.rng.next_u64();
        self.buckets.reseed(seed);
        if self.buckets.filters.is_empty() {
            self.rehash(cx);
        }
    }

    /// Sorts all packets into queues again, by the new hash of their flows. Drops packets that find
    /// no room.
    #[cold]
    fn rehash(&mut self, cx: &mut Cx<'_>) {
        let mut held = PacketList::new();
        for slot in 0..self.slots.count() {
            self.slots.clear(slot, |pkt| held.push_back(pkt));
        }
        self.slots.disband();
        for pkt in held {
            let bucket = self.buckets.hash(pkt.flow);
            let slot = self.slot_of(bucket);
            if slot == NONE || self.slots.get(slot).queue.len() >= self.depth {
                self.backlog.sub(&pkt);
                cx.drop(pkt, DropReason::Overlimit);
                continue;
            }
            if let Some(red) = &mut self.red {
                let bytes = self.slots.get(slot).bytes;
                red.law.update(&mut red.averages[slot as usize], bytes, cx.now);
            }
            self.slots.push(slot, pkt, self.quantum);
        }
    }

    /// Returns the number of packets that this qdisc holds, including a packet taken out by a
    /// `peek`.
    #[inline]
    fn packets(&self) -> u32 {
        self.backlog.packets + u32::from(self.peeked.is_some())
    }
}

impl Qdisc for Sfq {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.perturb(cx);
        let bucket = match self.buckets.of(&mut pkt, cx.now) {
            Ok(bucket) => bucket,
            Err(reason) => {
                cx.drop(pkt, reason);
                return Verdict::Dropped;
            }
        };
        let slot = self.slot_of(bucket);
        if slot == NONE {
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        if self.red.is_some() && !self.spares(slot, &mut pkt, cx.now) {
            return self.refuse(slot, pkt, DropReason::Congested, cx);
        }
        if self.slots.get(slot).queue.len() >= self.depth {
            return self.refuse(slot, pkt, DropReason::FqFlowLimit, cx);
        }
        self.backlog.add(&pkt);
        self.slots.push(slot, pkt, self.quantum);
        if self.packets() <= self.limit {
            return Verdict::Queued;
        }
        match (self.drop_one(cx) == slot, self.headdrop) {
            (true, false) => Verdict::Dropped,
            (true, true) => Verdict::Congested,
            (false, _) => Verdict::Queued,
        }
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        self.perturb(cx);
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        loop {
            let first = self.slots.first();
            if first == NONE {
                return Dequeue::Empty;
            }
            self.slots.look_ahead();
            let slot = self.slots.get(first);
            if slot.credit <= 0 {
                slot.credit += self.quantum;
                self.slots.turn();
                continue;
            }
            let Some(pkt) = self.slots.pop(first, false) else { return Dequeue::Empty };
            self.backlog.sub(&pkt);
            let slot = self.slots.get(first);
            if slot.queue.is_empty() {
                self.slots.leave();
            } else {
                slot.credit = slot.credit.saturating_sub_unsigned(pkt.len);
            }
            return Dequeue::Ready(pkt);
        }
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
        let held = self.slots.held(self.buckets.hash(pkt.flow));
        self.packets() < self.limit && held < self.depth
    }

    fn can_bypass(&self) -> bool {
        self.buckets.filters.is_empty()
    }

    fn keep_passing(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.peeked = Some(pkt);
        Verdict::Queued
    }

    fn prefetch_flows(&self, coming: &PacketList, most: u32) {
        let flows = coming.metas().take(most as usize).map(|pkt| pkt.flow);
        self.slots.prefetch_flows(flows.map(|flow| self.buckets.hash(flow)));
    }

    /// Does nothing: none of the parameters can be changed.
    fn change(&mut self, _values: &Values<'_>, _cx: &mut Cx<'_>) -> bool {
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        for slot in 0..self.slots.count() {
            self.slots.clear(slot, |pkt| cx.drop(pkt, DropReason::Purged));
        }
        self.slots.disband();
        cx.purge_one(&mut self.peeked);
        self.backlog = Backlog::default();
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        (minor == 0).then_some(&mut self.buckets.filters)
    }

    fn overlimits(&self) -> u64 {
        self.red.as_ref().map_or(0, |red| red.stats.as_flattened().iter().sum())
    }

    fn flows(&self, out: &mut dyn FnMut(FlowView<'_>)) {
        self.slots.used(|slot| {
            let packets = u32::try_from(slot.queue.len()).unwrap_or(u32::MAX);
            out(FlowView {
                minor: u16::try_from(slot.bucket + 1).unwrap_or(u16::MAX),
                backlog: Backlog { packets, bytes: slot.bytes },
                drops: 0,
                overlimits: 0,
                extra: &[("allot", slot.credit.into())],
            });
        });
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        let Some(red) = &self.red else { return };
        for (names, values) in NAMES.into_iter().zip(red.stats) {
            names.into_iter().zip(values).for_each(|(name, value)| out(name, value));
        }
    }
}
