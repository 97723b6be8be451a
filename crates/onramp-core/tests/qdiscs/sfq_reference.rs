//! Compares `sfq` with a simple model: both send the same packets and drop the same packets.

use std::collections::{BTreeMap, VecDeque};

use onramp_core::Spec;
use onramp_core::params::Site;
use onramp_core::qdisc::{Cx, Dequeue, Qdisc, Verdict};
use onramp_core::{Handle, Instant};
use onramp_queue::{DropReason, Packet, PacketList};
use proptest::prelude::*;

/// The packets of one flow, each with its number and its length in bytes.
#[derive(Default)]
struct Flow {
    packets: VecDeque<(u64, u32)>,
    credit: i64,
    /// The time, as the number of the operation, at which the length of the flow's queue last
    /// changed.
    changed: u64,
}

struct Model {
    flows: BTreeMap<u32, Flow>,
    /// The keys of the flows that have packets, in the order in which they are served.
    ring: VecDeque<u32>,
    limit: usize,
    depth: usize,
    most_flows: usize,
    headdrop: bool,
    quantum: i64,
    clock: u64,
}

impl Model {
    fn held(&self) -> usize {
        self.flows.values().map(|flow| flow.packets.len()).sum()
    }

    /// Enqueues a packet into the model. If a packet is dropped, returns its number and the reason.
    fn enqueue(&mut self, key: u32, number: u64, len: u32) -> Option<(u64, DropReason)> {
        self.clock += 1;
        if !self.flows.contains_key(&key) {
            if self.flows.len() == self.most_flows {
                return Some((number, DropReason::Overlimit));
            }
            self.flows.insert(key, Flow { credit: self.quantum, ..Flow::default() });
            self.ring.push_back(key);
        }
        let flow = self.flows.get_mut(&key)?;
        if flow.packets.len() == self.depth {
            if !self.headdrop {
                return Some((number, DropReason::FqFlowLimit));
            }
            flow.packets.push_back((number, len));
            return flow.packets.pop_front().map(|(old, _)| (old, DropReason::FqFlowLimit));
        }
        flow.packets.push_back((number, len));
        flow.changed = self.clock;
        if self.held() <= self.limit {
            return None;
        }
        let longest = self.flows.values().map(|flow| flow.packets.len()).max()?;
        let victim = match longest {
            1 => *self.ring.front()?,
            _ => {
                let of_them = self.flows.iter().filter(|(_, flow)| flow.packets.len() == longest);
                *of_them.max_by_key(|(_, flow)| flow.changed)?.0
            }
        };
        let flow = self.flows.get_mut(&victim)?;
        let dropped =
            if self.headdrop { flow.packets.pop_front() } else { flow.packets.pop_back() };
        self.clock += 1;
        flow.changed = self.clock;
        self.forget_if_empty(victim);
        dropped.map(|(number, _)| (number, DropReason::Overlimit))
    }

    fn dequeue(&mut self) -> Option<u64> {
        self.clock += 1;
        loop {
            let key = *self.ring.front()?;
            let flow = self.flows.get_mut(&key)?;
            if flow.credit <= 0 {
                flow.credit += self.quantum;
                self.ring.rotate_left(1);
                continue;
            }
            let (number, len) = flow.packets.pop_front()?;
            flow.credit -= i64::from(len);
            flow.changed = self.clock;
            self.forget_if_empty(key);
            return Some(number);
        }
    }

    fn forget_if_empty(&mut self, key: u32) {
        if self.flows.get(&key).is_some_and(|flow| flow.packets.is_empty()) {
            self.flows.remove(&key);
            self.ring.retain(|other| *other != key);
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Enqueue { flow: u32, len: u32 },
    Dequeue,
}

/// Returns the flow of packet `number`. A packet has the number of the operation that enqueues it.
fn of(ops: &[Op], number: u64) -> Option<u32> {
    match ops[usize::try_from(number).ok()?] {
        Op::Enqueue { flow, .. } => Some(flow),
        Op::Dequeue => None,
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let flow = prop_oneof![3 => 0_u32..40, 2 => 0_u32..4];
    let len = prop_oneof![60_u32..1515, Just(1000)];
    let op = prop_oneof![
        3 => (flow, len).prop_map(|(flow, len)| Op::Enqueue { flow, len }),
        2 => Just(Op::Dequeue),
    ];
    prop::collection::vec(op, 0..800)
}

fn build(line: &str) -> Box<dyn Qdisc> {
    let site = Site { mtu: 1514, seed: 1, handle: Handle::new(1, 0), ..Site::default() };
    line.parse::<Spec>().expect(line).build_at(site)
}

fn packet(flow: u32, number: u64, len: u32) -> Packet {
    let mut pkt = Packet::new(len);
    (pkt.cookie, pkt.priority, pkt.flow) = (number, 0x1_0001 + flow, flow.into());
    pkt
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn sfq_does_as_described(
        limit in 2_usize..150,
        depth in 1_usize..128,
        flows in 1_usize..50,
        quantum in 256_u32..3000,
        headdrop: bool,
        ops in ops(),
    ) {
        // Linux refuses parameters that leave room for less than two packets.
        prop_assume!(flows * depth > 1);
        let word = if headdrop { "headdrop" } else { "" };
        let mut qdisc = build(&format!(
            "sfq limit {limit} depth {depth} flows {flows} quantum {quantum} divisor 64 {word}"
        ));
        let mut model = Model {
            flows: BTreeMap::new(),
            ring: VecDeque::new(),
            limit: limit.min(flows * depth),
            depth,
            most_flows: flows.min(limit).min(flows * depth),
            headdrop,
            quantum: quantum.into(),
            clock: 0,
        };
        for (number, op) in (0..).zip(&ops) {
            let mut drops = PacketList::new();
            let mut cx = Cx::new(Instant(0), &mut drops);
            match *op {
                Op::Enqueue { flow, len } => {
                    let expected = model.enqueue(flow, number, len);
                    let verdict = qdisc.enqueue(packet(flow, number, len), &mut cx);
                    let fate = match expected {
                        None => Verdict::Queued,
                        Some((dropped, _)) if dropped == number => Verdict::Dropped,
                        Some((dropped, _)) if of(&ops, dropped) == Some(flow) => Verdict::Congested,
                        Some(_) => Verdict::Queued,
                    };
                    let ours = drops.pop_front();
                    let ours = ours.and_then(|pkt| Some((pkt.cookie, pkt.drop_reason?)));
                    prop_assert_eq!(ours, expected);
                    prop_assert_eq!(verdict, fate);
                }
                Op::Dequeue => {
                    let ours = match qdisc.dequeue(&mut cx) {
                        Dequeue::Ready(pkt) => Some(pkt.cookie),
                        Dequeue::Empty => None,
                        Dequeue::NotBefore(_) => panic!("sfq does not wait"),
                    };
                    prop_assert_eq!(ours, model.dequeue());
                }
            }
            prop_assert!(drops.is_empty(), "one at most");
            prop_assert_eq!(qdisc.backlog().packets as usize, model.held());
        }
    }

    /// When `perturb` moves flows to other buckets, only packets that find no room there are lost.
    #[test]
    fn a_perturbation_keeps_the_books(
        limit in 2_u32..100,
        steps in prop::collection::vec((0_u32..30, 0_u64..900), 1..300),
    ) {
        let mut qdisc = build(&format!("sfq limit {limit} perturb 1 divisor 16 depth 9"));
        let mut drops = PacketList::new();
        let (mut now, mut sent, mut number) = (Instant(0), 0, 0);
        for (pushes, wait_ms) in steps {
            now = now.after(wait_ms * 1_000_000);
            let mut cx = Cx::new(now, &mut drops);
            for flow in 0..pushes {
                let mut pkt = packet(flow, number, 100);
                pkt.priority = 0;
                number += 1;
                let _ = qdisc.enqueue(pkt, &mut cx);
            }
            for _ in 0..pushes / 2 {
                sent += u64::from(matches!(qdisc.dequeue(&mut cx), Dequeue::Ready(_)));
            }
            let held = u64::from(qdisc.backlog().packets);
            prop_assert_eq!(number, sent + held + u64::from(drops.len()));
        }
        let mut cx = Cx::new(now, &mut drops);
        while let Dequeue::Ready(_) = qdisc.dequeue(&mut cx) {}
        prop_assert_eq!(qdisc.backlog().packets, 0);
    }
}

fn stat(qdisc: &dyn Qdisc, name: &str) -> u64 {
    let mut found = None;
    qdisc.stats(&mut |key, value| {
        if key == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("{name} is a statistic"))
}

/// RED in `sfq` marks or drops packets of a flow that always has at least 10 packets of 1,000
/// bytes, so that its average queue length exceeds `max`.
#[test]
fn red_watches_each_flow() {
    let red = "redflowlimit 30000 min 2000 max 6000 burst 6 probability 0.1";
    for (options, stats) in [
        ("", ["forced_drop", "prob_drop"]),
        ("ecn", ["forced_mark", "prob_mark"]),
        ("ecn headdrop", ["forced_mark_head", "prob_mark_head"]),
        ("ecn harddrop", ["forced_drop", "prob_mark"]),
    ] {
        let mut qdisc = build(&format!("sfq {red} {options}"));
        let mut drops = PacketList::new();
        let mut cx = Cx::new(Instant(0), &mut drops);
        for number in 0..2_000 {
            // The second flow has a single packet now and then, which leaves before the next one
            // arrives.
            for flow in [1, 2].into_iter().take(if number % 20 == 0 { 2 } else { 1 }) {
                let mut pkt = packet(flow, number, 1000);
                pkt.ecn = 2;
                let _ = qdisc.enqueue(pkt, &mut cx);
            }
            if number % 2 == 0 || qdisc.backlog().packets > 10 {
                let _ = qdisc.dequeue(&mut cx);
            }
        }
        for name in stats {
            assert!(stat(&*qdisc, name) > 0, "{options}: {name}");
        }
        assert!(drops.all(|pkt| pkt.priority == 0x1_0002), "the sparse flow loses nothing");
    }
}
