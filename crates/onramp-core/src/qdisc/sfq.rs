//! Stochastic fairness: a short queue for each flow, served in turn; the longest gives way.
//!
//! Source: McKenney, "Stochastic Fairness Queueing", 1990; `tc-sfq(8)`; behaviour of Linux 7.2
//! `net/sched/sch_sfq.c`, with its choice among queues of the same length (the one that came to it
//! last) and its order of flows after a perturbation.
//! Differs: flows are hashed by [`flow`](onramp_queue::Meta::flow). A perturbation happens with the
//! first call after its time; the first period begins with the first call.
//! Invariant: packets of a flow leave in order, unless it is hashed anew; when a packet is one too
//! many, none of the queues is longer than the one it is dropped from.

mod slots;

use onramp_queue::{DropReason, Packet, PacketList};

use self::slots::{NONE, Slots};
use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict};
use crate::Instant;
use crate::buckets::Buckets;
use crate::ecn;
use crate::filter::Filters;
use crate::params::{Default, Param, U32_MAX, Unit, Values};
use crate::red::{self, Average, Red, Shape};
use crate::rng::Rng;

/// Packets a queue holds at most, whatever the user says.
const DEPTH_MAX: u32 = 127;
const FLOWS_MAX: u64 = 65_408;
const AVERAGE_PACKET: u64 = 1000;

pub(super) const SFQ: Kind = Kind {
    id: "sfq",
    about: "a short queue for each flow, served in turn",
    params: &[
        Param::new("limit", Unit::Packets, Default::Number(127), "packets held at most")
            .within(2, U32_MAX),
        Param::new("quantum", Unit::Size, Default::Mtus(1), "bytes a flow may send in a round")
            .within(256, i32::MAX as u64),
        Param::new("depth", Unit::Packets, Default::Number(127), "packets held at most of a flow")
            .within(1, DEPTH_MAX as u64),
        Param::new("headdrop", Unit::Words(&["headdrop"]), Default::Off, "old packets go first"),
        Param::new("flows", Unit::Count, Default::Number(128), "flows held at most")
            .within(1, FLOWS_MAX),
        Param::new("divisor", Unit::Count, Default::Number(1024), "buckets flows are hashed to")
            .within(1, 65_536),
        Param::new("perturb", Unit::Count, Default::Off, "seconds after which flows are rehashed")
            .within(0, i32::MAX as u64 / 1000),
        Param::new(
            "redflowlimit",
            Unit::Bytes,
            Default::Off,
            "a flow's bytes from which RED's defaults follow; RED is on if it is given",
        )
        .within(1, U32_MAX),
        Param::new("min", Unit::Bytes, Default::Off, "average of a flow from which RED drops"),
        Param::new("max", Unit::Bytes, Default::Off, "average of a flow from which all goes"),
        Param::new("avpkt", Unit::Bytes, Default::Number(AVERAGE_PACKET), "usual packet")
            .within(1, U32_MAX),
        Param::new("burst", Unit::Packets, Default::Off, "packets RED lets pass at once"),
        red::PROBABILITY,
        Param::new("ecn", Unit::Words(&["ecn"]), Default::Off, "RED marks where it can"),
        Param::new("harddrop", Unit::Words(&["harddrop"]), Default::Off, "but not beyond `max`"),
    ],
    check: |values| {
        if !values.number32("divisor").is_power_of_two() {
            return Err(("divisor", "expected a power of two, 1 to 65536".into()));
        }
        match values.is_given("redflowlimit") {
            true => shape(values).map(|_| ()),
            false => Ok(()),
        }
    },
    build: |values| Box::new(Sfq::new(values)),
    ..Kind::LEAF
};

/// What RED does to each flow, and its weight.
fn shape(values: &Values<'_>) -> Result<(Shape, u32), (&'static str, String)> {
    let limit = values.number32("redflowlimit");
    let or = |key, default| if values.number(key) == 0 { default } else { values.number32(key) };
    let max = or("max", limit / 4);
    let min = or("min", max / 3);
    let avpkt = values.number32("avpkt");
    let burst = or("burst", red::usual_burst(min, max, avpkt));
    let shape = Shape { min, max, burst, probability: values.number32("probability") };
    red::check(&shape, limit, avpkt).map(|weight| (shape, weight))
}

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
    /// Dequeued for a parent that looked, or passed by; not counted in `backlog`.
    peeked: Option<Packet>,
}

/// RED on each flow.
#[derive(Debug)]
struct FlowRed {
    law: Red,
    /// Of each slot.
    averages: Box<[Average]>,
    ecn: bool,
    harddrop: bool,
    /// Marked, marked at the head, dropped: by chance, and beyond `max`.
    stats: [[u64; 3]; 2],
}

/// Changes of the hash.
#[derive(Debug)]
struct Perturb {
    period_ns: u64,
    /// None before the first call.
    next: Option<Instant>,
    rng: Rng,
}

impl Sfq {
    fn new(values: &Values<'_>) -> Self {
        let (divisor, depth) = (values.number32("divisor"), values.number32("depth"));
        let flows = values.number32("flows").min(divisor);
        let limit = values.number32("limit").min(flows.saturating_mul(depth));
        let flows = flows.min(limit);
        let seed = values.site.seed;
        let red = shape(values).ok().filter(|_| values.is_given("redflowlimit"));
        let red = red.map(|(shape, weight)| {
            Box::new(FlowRed {
                law: Red::new(&shape, weight, seed),
                averages: vec![Average::EMPTY; flows as usize].into(),
                ecn: values.is_given("ecn"),
                harddrop: values.is_given("harddrop"),
                stats: [[0; 3]; 2],
            })
        });
        let period_ns = values.number("perturb") * 1_000_000_000;
        let perturb = || Box::new(Perturb { period_ns, next: None, rng: Rng::new(seed) });
        Self {
            limit,
            depth: depth as usize,
            quantum: i32::try_from(values.number("quantum")).unwrap_or(i32::MAX),
            headdrop: values.is_given("headdrop"),
            buckets: Buckets::new(values, divisor),
            slots: Slots::new(flows, divisor, depth),
            red,
            perturb: (period_ns > 0).then(perturb),
            backlog: Backlog::default(),
            peeked: None,
        }
    }

    /// Whether RED lets a packet into a slot; if it marks the oldest packet instead, it does.
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

    /// Drops `pkt`, or, from the head, the oldest packet of its flow for it.
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

    /// Drops a packet from the longest queue; says from which.
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

    /// The slot of a packet's bucket, perhaps a new one; [`NONE`] if there are no more.
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

    /// Hashes all flows anew when it is time.
    #[inline]
    fn perturb(&mut self, cx: &mut Cx<'_>) {
        let Some(perturb) = &mut self.perturb else { return };
        let next = *perturb.next.get_or_insert_with(|| cx.now.after(perturb.period_ns));
        if cx.now < next {
            return;
        }
        let periods = cx.now.since(next) / perturb.period_ns + 1;
        perturb.next = Some(next.after(periods * perturb.period_ns));
        let seed = perturb.rng.next_u64();
        self.buckets.reseed(seed);
        if self.buckets.filters.is_empty() {
            self.rehash(cx);
        }
    }

    /// Sorts all packets into queues again; those that find no room die.
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

    /// Packets held, that of a parent who looked included.
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
        let mine = self.drop_one(cx) == slot;
        if mine && !self.headdrop { Verdict::Dropped } else { Verdict::Congested }
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
        let mut peeked = self.peeked.take();
        let answer = Peek::stash(&mut peeked, || self.dequeue(cx));
        self.peeked = peeked;
        answer
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
        true
    }

    fn keep_passing(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.peeked = Some(pkt);
        Verdict::Queued
    }

    fn foresee(&self, coming: &PacketList, most: u32) {
        let flows = coming.metas().take(most as usize).map(|pkt| pkt.flow);
        self.slots.foresee(flows.map(|flow| self.buckets.hash(flow)));
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        for slot in 0..self.slots.count() {
            self.slots.clear(slot, |pkt| cx.drop(pkt, DropReason::Purged));
        }
        self.slots.disband();
        if let Some(pkt) = self.peeked.take() {
            cx.drop(pkt, DropReason::Purged);
        }
        self.backlog = Backlog::default();
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        (minor == 0).then_some(&mut self.buckets.filters)
    }

    fn overlimits(&self) -> u64 {
        self.red.as_ref().map_or(0, |red| red.stats.as_flattened().iter().sum())
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        let Some(red) = &self.red else { return };
        for (names, values) in [
            (["prob_mark", "prob_mark_head", "prob_drop"], red.stats[0]),
            (["forced_mark", "forced_mark_head", "forced_drop"], red.stats[1]),
        ] {
            names.into_iter().zip(values).for_each(|(name, value)| out(name, value));
        }
    }
}
