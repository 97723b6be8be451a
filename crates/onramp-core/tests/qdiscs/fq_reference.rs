//! Compares `fq` with a simple, slow model written from its description: the same packets leave at
//! the same times, with the same marks, drops and waits, under random parameters and traffic.

use std::collections::VecDeque;

use onramp_core::Spec;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Tree};
use onramp_queue::{DropReason, Packet};
use proptest::prelude::*;

const SEC: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const US: u64 = 1_000;
const TICK: u64 = 10 * MS;
const START: u64 = 20 * SEC;

/// The parameters of `fq`, for the qdisc and for the model.
#[derive(Clone, Debug)]
struct Params {
    limit: usize,
    flow_limit: usize,
    priomap: Vec<usize>,
    weights: Vec<i64>,
    pacing: bool,
    quantum: i64,
    initial_quantum: i64,
    /// The rate limit of each flow, in bytes per second. `None` means no limit.
    maxrate: Option<u64>,
    low_rate_threshold: u64,
    refill_delay: u64,
    ce_threshold: Option<u64>,
    timer_slack: u64,
    horizon: u64,
    horizon_drop: bool,
    offload_horizon: u64,
}

impl Params {
    fn line(&self) -> String {
        let words = |numbers: Vec<String>| numbers.join(" ");
        let priomap = words(self.priomap.iter().map(ToString::to_string).collect());
        let weights = words(self.weights.iter().map(ToString::to_string).collect());
        let mut line = format!(
            "fq limit {} flow_limit {} bands 3 priomap {priomap} weights {weights} quantum {} \
             initial_quantum {} low_rate_threshold {}bps refill_delay {}us timer_slack {}ns \
             horizon {}us {} {} offload_horizon {}us",
            self.limit,
            self.flow_limit,
            self.quantum,
            self.initial_quantum,
            self.low_rate_threshold,
            self.refill_delay / US,
            self.timer_slack,
            self.horizon / US,
            if self.horizon_drop { "horizon_drop" } else { "horizon_cap" },
            if self.pacing { "pacing" } else { "nopacing" },
            self.offload_horizon / US,
        );
        if let Some(rate) = self.maxrate {
            line += &format!(" maxrate {rate}bps");
        }
        if let Some(threshold) = self.ce_threshold {
            line += &format!(" ce_threshold {}us", threshold / US);
        }
        line
    }
}

/// A packet in the model's queues.
#[derive(Clone, Debug)]
struct Waiting {
    cookie: u64,
    time: u64,
    len: u32,
    band: usize,
    ecn: u8,
    rate: u64,
    txtime: u64,
}

impl Waiting {
    /// Sets the time from which this packet may leave, if the packet has no departure time. It is
    /// the time at which the packet was pushed, but no earlier than the times of the packets before
    /// it in its queue, and no later than `now`.
    fn settle(&mut self, queue: &[Self], pushed: u64, now: u64) {
        if self.txtime == 0 {
            let newest = queue.iter().map(|pkt| pkt.time).max().unwrap_or(0);
            let pushed = if pushed == 0 { now } else { pushed };
            self.time = pushed.max(newest).min(now);
        }
    }
}

#[derive(Debug)]
struct Flow {
    key: u64,
    /// The packets of the flow in the order in which they arrived.
    packets: Vec<Waiting>,
    credit: i64,
    time_next: u64,
    band: usize,
    /// The time at which the flow left all lists (of new, old and waiting flows), in ticks.
    detached: u64,
}

/// A model that follows the description of `fq` and uses linear searches.
#[derive(Debug)]
struct Model {
    p: Params,
    fast: Vec<Waiting>,
    flows: Vec<Flow>,
    /// For each band, the keys of its new flows, then the keys of its old flows.
    lists: [[VecDeque<u64>; 2]; 3],
    /// Keys of flows that wait for their time, in the order in which they began to wait.
    throttled: Vec<u64>,
    credits: [i64; 3],
    band: usize,
    timer: u64,
    marks: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Out {
    Packet { cookie: u64, ecn: u8, txtime: u64 },
    NotBefore(u64),
    Empty,
}

const NEW: usize = 0;
const OLD: usize = 1;

/// Returns the index of the packet that leaves first: the packet with the earliest time, and among
/// packets with the same time the one that arrived first.
fn earliest(packets: &[Waiting]) -> Option<usize> {
    (0..packets.len()).min_by_key(|i| packets[*i].time)
}

impl Model {
    fn new(p: Params) -> Self {
        Self {
            p,
            fast: Vec::new(),
            flows: Vec::new(),
            lists: Default::default(),
            throttled: Vec::new(),
            credits: [0; 3],
            band: 0,
            timer: 0,
            marks: 0,
        }
    }

    fn flow(&mut self, key: u64) -> &mut Flow {
        self.flows.iter_mut().find(|flow| flow.key == key).expect("listed flows exist")
    }

    fn time_next(&self, key: u64) -> u64 {
        self.flows.iter().find(|flow| flow.key == key).expect("listed flows exist").time_next
    }

    fn is_listed(&self, key: u64) -> bool {
        self.lists.iter().flatten().any(|list| list.contains(&key))
    }

    fn held(&self) -> usize {
        self.fast.len() + self.flows.iter().map(|flow| flow.packets.len()).sum::<usize>()
    }

    fn inactive(&self) -> usize {
        self.flows.iter().filter(|flow| flow.packets.is_empty()).count()
    }

    fn next_throttled(&self) -> Option<u64> {
        self.throttled.iter().copied().min_by_key(|key| self.time_next(*key))
    }

    fn takes_fast_path(&self, txtime: u64, rate: u64, now: u64) -> bool {
        let ahead = now + self.p.offload_horizon;
        let idle = self.flows.len() == self.inactive() + self.throttled.len();
        let due = self.next_throttled().is_some_and(|key| self.time_next(key) <= ahead);
        txtime <= ahead
            && (rate == 0 || rate == u64::MAX)
            && self.p.maxrate.is_none()
            && (self.held() == 0 || idle && self.fast.len() < 8 && !due)
    }

    fn enqueue(&mut self, pkt: &Packet, now: u64) -> Result<(), DropReason> {
        let band = self.p.priomap[(pkt.priority % 16) as usize];
        let in_band = |flow: &Flow| flow.packets.iter().filter(|pkt| pkt.band == band).count();
        if self.flows.iter().map(in_band).sum::<usize>() >= self.p.limit {
            return Err(DropReason::FqBandLimit);
        }
        let mut txtime = pkt.txtime_ns;
        if txtime > now + self.p.horizon {
            if self.p.horizon_drop {
                return Err(DropReason::FqHorizonLimit);
            }
            txtime = now + self.p.horizon;
        }
        let mut new = Waiting {
            cookie: pkt.cookie,
            time: txtime,
            len: pkt.len,
            band,
            ecn: pkt.ecn,
            rate: pkt.pacing_rate,
            txtime,
        };
        if self.takes_fast_path(txtime, pkt.pacing_rate, now) {
            new.settle(&self.fast, pkt.enqueued_ns, now);
            self.fast.push(new);
            return Ok(());
        }
        if !self.flows.iter().any(|flow| flow.key == pkt.flow) {
            self.flows.push(Flow {
                key: pkt.flow,
                packets: Vec::new(),
                credit: self.p.initial_quantum,
                time_next: 0,
                band: 0,
                detached: (now / TICK) | 1,
            });
        }
        let (quantum, refill) = (self.p.quantum, self.p.refill_delay.div_ceil(TICK));
        let limit = self.p.flow_limit;
        let waits = self.throttled.contains(&pkt.flow);
        let detached = !waits && !self.is_listed(pkt.flow);
        let flow = self.flow(pkt.flow);
        if flow.packets.len() >= limit {
            return Err(DropReason::FqFlowLimit);
        }
        let list = flow.band;
        if detached && now / TICK > flow.detached + refill {
            flow.credit = flow.credit.max(quantum);
        }
        flow.band = band;
        new.settle(&flow.packets, pkt.enqueued_ns, now);
        flow.packets.push(new);
        if detached {
            self.lists[list][NEW].push_back(pkt.flow);
        }
        if waits && txtime != 0 && txtime < self.time_next(pkt.flow) && self.p.maxrate.is_none() {
            self.flow(pkt.flow).time_next = txtime;
            self.throttled.retain(|key| *key != pkt.flow);
            if txtime > now + self.p.offload_horizon {
                self.throttled.push(pkt.flow);
            } else {
                self.lists[band][OLD].push_back(pkt.flow);
            }
        }
        Ok(())
    }

    fn dequeue(&mut self, now: u64) -> Out {
        if self.held() == 0 {
            return Out::Empty;
        }
        if let Some(i) = earliest(&self.fast) {
            let pkt = self.fast.remove(i);
            let txtime = pkt.txtime;
            return Out::Packet { cookie: pkt.cookie, ecn: pkt.ecn, txtime };
        }
        let ahead = now + self.p.offload_horizon;
        while let Some(key) = self.next_throttled().filter(|key| self.time_next(*key) <= ahead) {
            self.throttled.retain(|other| *other != key);
            let band = self.flow(key).band;
            self.lists[band][OLD].push_back(key);
        }
        let mut barren = 0;
        loop {
            let lists = &self.lists[self.band];
            let age = if lists[NEW].is_empty() { OLD } else { NEW };
            if self.credits[self.band] > 0 && !lists[age].is_empty() {
                barren = 0;
                if let Some(out) = self.serve(age, now) {
                    return out;
                }
                continue;
            }
            if barren == 3 {
                return Out::NotBefore(self.next_ask());
            }
            self.band = (self.band + 1) % 3;
            let weight = self.p.weights[self.band];
            self.credits[self.band] = (self.credits[self.band] + weight).min(weight);
            barren = if self.credits[self.band] > 0 { barren + 1 } else { 0 };
        }
    }

    fn next_ask(&mut self) -> u64 {
        let key = self.next_throttled().expect("what is held and not listed waits");
        let end = self.time_next(key).saturating_sub(self.p.offload_horizon);
        if self.timer < end || self.timer > end + self.p.timer_slack {
            self.timer = end;
        }
        self.timer + self.p.timer_slack
    }

    /// Serves the first flow of a list once: sends a packet, or moves the flow to the list where it
    /// belongs next and returns `None`.
    fn serve(&mut self, age: usize, now: u64) -> Option<Out> {
        let p = self.p.clone();
        let key = self.lists[self.band][age][0];
        let flow = self.flow(key);
        if flow.credit <= 0 {
            flow.credit += p.quantum;
            let band = flow.band;
            self.lists[self.band][age].pop_front();
            self.lists[band][OLD].push_back(key);
            return None;
        }
        let Some(first) = earliest(&flow.packets) else {
            let band = flow.band;
            flow.detached = (now / TICK) | 1;
            self.lists[self.band][age].pop_front();
            if age == NEW {
                self.lists[band][OLD].push_back(key);
            }
            return None;
        };
        let due = flow.packets[first].time.max(flow.time_next);
        if due > now + p.offload_horizon {
            flow.time_next = due;
            self.lists[self.band][age].pop_front();
            self.throttled.push(key);
            return None;
        }
        let pkt = flow.packets.remove(first);
        flow.credit -= i64::from(pkt.len);
        pace(flow, &pkt, &p, now, due);
        self.credits[self.band] -= i64::from(pkt.len);
        let mut ecn = pkt.ecn;
        let waited = now.saturating_sub(due);
        if p.ce_threshold.is_some_and(|most| waited > most) {
            // Like Linux, count attempts to mark, even if the packet's ECN bits say that it cannot
            // be marked.
            ecn = if ecn == 1 || ecn == 2 { 3 } else { ecn };
            self.marks += 1;
        }
        let txtime = if pkt.txtime == 0 && due > now { due } else { pkt.txtime };
        Some(Out::Packet { cookie: pkt.cookie, ecn, txtime })
    }
}

/// Sets the time at which a flow that has just sent `pkt` may send again.
fn pace(flow: &mut Flow, pkt: &Waiting, p: &Params, now: u64, due: u64) {
    if !p.pacing {
        return;
    }
    let asks = pkt.txtime == 0 && pkt.rate != 0 && pkt.rate != u64::MAX;
    let asked = asks.then_some(pkt.rate);
    let rate = match (asked, p.maxrate) {
        (Some(asked), Some(most)) => Some(asked.min(most)),
        (asked, most) => asked.or(most),
    };
    let mut bytes = u64::from(pkt.len);
    if pkt.txtime == 0 {
        if rate.is_some_and(|rate| rate <= p.low_rate_threshold) {
            flow.credit = 0;
        } else if flow.credit > 0 {
            return;
        } else {
            bytes = bytes.max(u64::try_from(p.quantum).expect("positive"));
        }
    }
    let Some(rate) = rate else { return };
    let mut gap = (bytes * SEC / rate.max(1)).min(SEC);
    if flow.time_next != 0 {
        gap -= (gap / 2).min(now.saturating_sub(flow.time_next));
    }
    flow.time_next = now.max(due) + gap;
}

#[derive(Clone, Debug)]
struct NewPacket {
    flow: u64,
    len: u32,
    priority: u32,
    ecn: u8,
    /// Departure time, in nanoseconds from now. `None` if the packet has no departure time.
    txtime: Option<i64>,
    rate: u64,
    /// Nanoseconds between the push of the packet by its sender and its enqueue. `None` if the
    /// packet does not know when it was pushed.
    lag: Option<u64>,
}

#[derive(Clone, Debug)]
enum Op {
    Wait(u64),
    /// Advances the clock to the time that the last dequeue announced.
    WaitUntilAsked,
    Enqueue(NewPacket),
    Dequeue(u8),
    Reset,
}

fn params() -> impl Strategy<Value = Params> {
    let limits =
        (prop_oneof![Just(3_usize), Just(20), Just(1000)], prop_oneof![1_usize..6, Just(100)]);
    let priomap = prop_oneof![Just(vec![0; 16]), prop::collection::vec(0_usize..3, 16)];
    let weights =
        prop_oneof![Just(vec![589_824, 196_608, 65_536]), Just(vec![16_384, 16_384, 16_384]),];
    let quanta = (
        prop_oneof![Just(256_i64), Just(1514), Just(3028), Just(20_000)],
        prop_oneof![Just(0_i64), Just(100), Just(1514), Just(15_140)],
    );
    let maxrate = (1_000_u64..10_000_000).prop_map(Some);
    let rates = (
        prop_oneof![2 => Just(None), 1 => Just(Some(0)), 3 => maxrate],
        prop_oneof![Just(0_u64), Just(68_750), Just(1_000_000)],
        any::<bool>(),
    );
    let times = (
        prop_oneof![Just(0), Just(US), Just(40 * MS)],
        prop_oneof![Just(None), Just(Some(0)), Just(Some(MS))],
        prop_oneof![Just(0), Just(10 * US), Just(MS)],
        prop_oneof![Just(0), Just(5 * MS), Just(10 * SEC)],
        any::<bool>(),
        prop_oneof![4 => Just(0), 1 => Just(100 * US)],
    );
    (limits, priomap, weights, quanta, rates, times).prop_map(
        |(limits, priomap, weights, quanta, rates, times)| Params {
            limit: limits.0,
            flow_limit: limits.1,
            priomap,
            weights,
            pacing: rates.2 || rates.0.is_some(),
            quantum: quanta.0,
            initial_quantum: quanta.1,
            maxrate: rates.0,
            low_rate_threshold: rates.1,
            refill_delay: times.0,
            ce_threshold: times.1,
            timer_slack: times.2,
            horizon: times.3,
            horizon_drop: times.4,
            offload_horizon: times.5,
        },
    )
}

fn new_packet() -> impl Strategy<Value = NewPacket> {
    let times = (-5_000_000_i64..20_000_000).prop_map(Some);
    let round_times = prop::sample::select(&[0, 1_000_000, 5_000_000][..]).prop_map(Some);
    (
        0_u64..6,
        prop_oneof![Just(1514_u32), 60_u32..1514, Just(65_000)],
        any::<u32>(),
        0_u8..4,
        prop_oneof![3 => Just(None), 2 => times, 1 => round_times],
        prop_oneof![3 => Just(0_u64), 2 => 10_000_u64..50_000_000, 1 => Just(u64::MAX)],
        prop_oneof![2 => Just(None), 1 => (0_u64..MS).prop_map(Some)],
    )
        .prop_map(|(flow, len, priority, ecn, txtime, rate, lag)| NewPacket {
            flow,
            len,
            priority,
            ecn,
            txtime,
            rate,
            lag,
        })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        24 => new_packet().prop_map(Op::Enqueue),
        12 => (0_u8..6).prop_map(Op::Dequeue),
        6 => (0..2 * MS).prop_map(Op::Wait),
        1 => (0..100 * MS).prop_map(Op::Wait),
        6 => Just(Op::WaitUntilAsked),
        1 => Just(Op::Reset),
    ];
    prop::collection::vec(op, 0..300)
}

fn packet(new: &NewPacket, cookie: u64, now: u64) -> Packet {
    let mut pkt = Packet::new(new.len);
    pkt.cookie = cookie;
    pkt.flow = new.flow;
    pkt.priority = new.priority;
    pkt.ecn = new.ecn;
    pkt.txtime_ns = new.txtime.map_or(0, |ahead| now.saturating_add_signed(ahead));
    pkt.pacing_rate = new.rate;
    pkt.enqueued_ns = new.lag.map_or(0, |lag| now - lag);
    pkt
}

/// The qdisc and the model, which run side by side.
struct Pair {
    tree: Tree,
    model: Model,
    now: u64,
    asked: u64,
    cookie: u64,
}

impl Pair {
    fn new(p: Params) -> Self {
        let spec: Spec = p.line().parse().expect("a correct line");
        let (tree, model) = (Tree::new(&spec, 1514), Model::new(p));
        Self { tree, model, now: START, asked: START, cookie: 0 }
    }

    fn enqueue(&mut self, new: &NewPacket) -> Result<(), TestCaseError> {
        let pkt = packet(new, self.cookie, self.now);
        self.cookie += 1;
        let theirs = self.model.enqueue(&pkt, self.now);
        let verdict = self.tree.enqueue(Instant(self.now), pkt);
        let drop = self.tree.drops().next().and_then(|pkt| pkt.drop_reason);
        prop_assert_eq!(drop, theirs.err());
        prop_assert_eq!(verdict == Verdict::Dropped, drop.is_some());
        Ok(())
    }

    fn dequeue(&mut self) -> Result<bool, TestCaseError> {
        let ours = match self.tree.dequeue(Instant(self.now)) {
            Dequeue::Ready(pkt) => {
                Out::Packet { cookie: pkt.cookie, ecn: pkt.ecn, txtime: pkt.txtime_ns }
            }
            Dequeue::NotBefore(then) => Out::NotBefore(then.0),
            Dequeue::Empty => Out::Empty,
        };
        if let Out::NotBefore(then) = ours {
            prop_assert!(then > self.now, "or the caller would spin");
            self.asked = then;
        }
        let more = matches!(ours, Out::Packet { .. });
        prop_assert_eq!(ours, self.model.dequeue(self.now));
        Ok(more)
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let model = &self.model;
        prop_assert_eq!(self.tree.backlog().packets as usize, model.held());
        self.tree.stats(&mut |name, value| {
            let expected = match name {
                "flows" => model.flows.len() as u64,
                "inactive" => model.inactive() as u64,
                "throttled_flows" => model.throttled.len() as u64,
                "ce_mark" => model.marks,
                _ => return,
            };
            assert_eq!(value, expected, "{name}");
        });
        Ok(())
    }

    fn run(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Wait(ns) => self.now += ns,
            Op::WaitUntilAsked => self.now = self.now.max(self.asked),
            Op::Enqueue(new) => self.enqueue(new)?,
            Op::Dequeue(times) => {
                for _ in 0..*times {
                    self.dequeue()?;
                }
            }
            Op::Reset => {
                self.tree.reset(Instant(self.now));
                prop_assert_eq!(self.tree.drops().count(), self.model.held());
                let marks = self.model.marks;
                self.model = Model::new(self.model.p.clone());
                self.model.marks = marks;
            }
        }
        self.check()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn fq_does_as_described(params in params(), ops in ops()) {
        let mut pair = Pair::new(params);
        for op in &ops {
            pair.run(op)?;
        }
        // At the end, dequeue until all packets have left. Whenever no packet may leave, go on at
        // the time that the qdisc announces.
        while pair.tree.backlog().packets > 0 {
            if !pair.dequeue()? {
                pair.now = pair.asked;
            }
        }
        pair.check()?;
    }
}
