//! Compares `fq_codel` with a simple model of RFC 8290: as long as CoDel drops nothing, both send
//! the same packets and drop the same packets.

use std::collections::VecDeque;

use onramp_core::Spec;
use onramp_core::params::Site;
use onramp_core::qdisc::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};
use onramp_core::{Handle, Instant};
use onramp_queue::{DropReason, Packet, PacketList};
use proptest::prelude::*;

const FLOWS: usize = 70;

/// The packets of one flow, each with its number and its length in bytes.
#[derive(Default)]
struct Queue {
    packets: VecDeque<(u64, u32)>,
    credit: i64,
    listed: bool,
}

impl Queue {
    fn bytes(&self) -> u64 {
        self.packets.iter().map(|(_, len)| u64::from(*len)).sum()
    }
}

struct Model {
    queues: Vec<Queue>,
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    quantum: i64,
    limit: usize,
    batch: usize,
    peeked: Option<(u64, u32)>,
}

impl Model {
    fn held(&self) -> usize {
        let listed: usize = self.queues.iter().map(|queue| queue.packets.len()).sum();
        listed + usize::from(self.peeked.is_some())
    }

    /// Enqueues a packet into the model. Returns the numbers of the dropped packets.
    fn enqueue(&mut self, bucket: usize, number: u64, len: u32) -> Vec<u64> {
        let queue = &mut self.queues[bucket];
        queue.packets.push_back((number, len));
        if !std::mem::replace(&mut queue.listed, true) {
            queue.credit = self.quantum;
            self.new.push_back(bucket);
        }
        if self.held() <= self.limit {
            return Vec::new();
        }
        let most = self.queues.iter().map(Queue::bytes).max().unwrap_or(0);
        let longest = self.queues.iter_mut().find(|queue| queue.bytes() == most).expect("one");
        let (mut dropped, mut bytes) = (Vec::new(), 0);
        while dropped.len() < self.batch && (dropped.is_empty() || bytes < most / 2) {
            let Some((number, len)) = longest.packets.pop_front() else { break };
            dropped.push(number);
            bytes += u64::from(len);
        }
        dropped
    }

    fn dequeue(&mut self) -> Option<(u64, u32)> {
        if let Some(packet) = self.peeked.take() {
            return Some(packet);
        }
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let index = *list.front()?;
            let queue = &mut self.queues[index];
            if queue.credit <= 0 {
                queue.credit += self.quantum;
                list.pop_front();
                self.old.push_back(index);
                continue;
            }
            if let Some(packet) = queue.packets.pop_front() {
                queue.credit -= i64::from(packet.1);
                return Some(packet);
            }
            list.pop_front();
            if is_new && !self.old.is_empty() {
                self.old.push_back(index);
            } else {
                queue.listed = false;
            }
        }
    }

    fn peek(&mut self) -> Option<u32> {
        self.peeked = self.dequeue();
        self.peeked.map(|(_, len)| len)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Enqueue { bucket: usize, len: u32 },
    Dequeue,
    Peek,
}

/// Returns the bucket of packet `number`. A packet has the number of the operation that enqueues
/// it.
fn of(ops: &[Op], number: u64) -> Option<usize> {
    match ops[usize::try_from(number).ok()?] {
        Op::Enqueue { bucket, .. } => Some(bucket),
        _ => None,
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let bucket = prop_oneof![3 => 0..FLOWS, 2 => 30_usize..35];
    let len = prop_oneof![60_u32..1515, Just(1000)];
    let op = prop_oneof![
        6 => (bucket, len).prop_map(|(bucket, len)| Op::Enqueue { bucket, len }),
        4 => Just(Op::Dequeue),
        1 => Just(Op::Peek),
    ];
    prop::collection::vec(op, 0..800)
}

fn build(line: &str) -> Box<dyn Qdisc> {
    let site = Site { mtu: 1514, seed: 1, handle: Handle::new(1, 0), ..Site::default() };
    line.parse::<Spec>().expect(line).build_at(site)
}

fn packet(bucket: usize, number: u64, len: u32) -> Packet {
    let mut pkt = Packet::new(len);
    pkt.cookie = number;
    pkt.priority = 0x1_0001 + u32::try_from(bucket).expect("small");
    pkt
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn fq_codel_does_as_described(
        limit in 1_usize..120,
        batch in 1_usize..20,
        quantum in 256_u32..3000,
        ops in ops(),
    ) {
        let line = format!(
            "fq_codel limit {limit} flows {FLOWS} quantum {quantum} target 1000s drop_batch {batch}"
        );
        let mut qdisc = build(&line);
        let mut model = Model {
            queues: (0..FLOWS).map(|_| Queue::default()).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            quantum: quantum.into(),
            limit,
            batch,
            peeked: None,
        };
        let now = Instant(5_000_000_000);
        for (number, op) in (0..).zip(&ops) {
            let mut drops = PacketList::new();
            let mut cx = Cx::new(now, &mut drops);
            match *op {
                Op::Enqueue { bucket, len } => {
                    let expected = model.enqueue(bucket, number, len);
                    let verdict = qdisc.enqueue(packet(bucket, number, len), &mut cx);
                    let fate = match expected.last() {
                        None => Verdict::Queued,
                        Some(last) if *last == number => Verdict::Dropped,
                        Some(last) if of(&ops, *last) == Some(bucket) => Verdict::Congested,
                        Some(_) => Verdict::Queued,
                    };
                    prop_assert_eq!(verdict, fate);
                    let ours: Vec<u64> = drops.map(|pkt| pkt.cookie).collect();
                    prop_assert_eq!(ours, expected, "drops for packet {}", number);
                }
                Op::Dequeue => {
                    let ours = match qdisc.dequeue(&mut cx) {
                        Dequeue::Ready(pkt) => Some((pkt.cookie, pkt.len)),
                        Dequeue::Empty => None,
                        Dequeue::NotBefore(_) => panic!("fq_codel does not wait"),
                    };
                    prop_assert_eq!(ours, model.dequeue());
                }
                Op::Peek => {
                    let ours = match qdisc.peek(&mut cx) {
                        Peek::Ready(len) => Some(len),
                        _ => None,
                    };
                    prop_assert_eq!(ours, model.peek());
                }
            }
            prop_assert_eq!(qdisc.backlog().packets as usize, model.held());
        }
    }

    /// Flows that always have packets send the same number of bytes, to within one quantum and one
    /// packet.
    #[test]
    fn busy_flows_share_alike(
        quantum in 300_u32..4000,
        lens in prop::collection::vec(60_u32..1515, 2..20),
    ) {
        let mut qdisc = build(&format!("fq_codel quantum {quantum} target 1000s"));
        let mut drops = PacketList::new();
        let mut cx = Cx::new(Instant(5_000_000_000), &mut drops);
        for number in 0..400 {
            for (flow, len) in lens.iter().enumerate() {
                let _ = qdisc.enqueue(packet(flow, number, *len), &mut cx);
            }
        }
        let mut sent = vec![0_u64; lens.len()];
        // In this test no flow runs out of packets: even the shortest flow has 400 packets of 60
        // bytes.
        while sent.iter().all(|bytes| *bytes < 400 * 60 - 1514) {
            let Dequeue::Ready(pkt) = qdisc.dequeue(&mut cx) else { panic!("there is more") };
            sent[(pkt.priority & 0xFFFF) as usize - 1] += u64::from(pkt.len);
            let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
            prop_assert!(most - least <= u64::from(quantum) + 2 * 1514, "{sent:?}");
        }
    }
}

#[test]
fn memory_is_limited_too() {
    let mut qdisc = build("fq_codel memory_limit 20000 drop_batch 1");
    let mut drops = PacketList::new();
    let mut cx = Cx::new(Instant(0), &mut drops);
    // Like Linux, `fq_codel` counts 2,304 bytes for a datagram of 1,000 bytes, so eight datagrams
    // fit into the memory limit.
    for number in 0..8 {
        assert!(qdisc.accepts(&packet(1, number, 1000)));
        assert_eq!(qdisc.enqueue(packet(1, number, 1000), &mut cx), Verdict::Queued);
    }
    assert!(!qdisc.accepts(&packet(2, 8, 1000)));
    assert_eq!(qdisc.enqueue(packet(2, 8, 1000), &mut cx), Verdict::Queued, "another flow's went");
    let dropped = drops.pop_front().expect("one packet");
    assert_eq!((dropped.cookie, dropped.drop_reason), (0, Some(DropReason::Overlimit)));
    let mut found = Vec::new();
    qdisc.stats(&mut |name, value| {
        if name.starts_with("drop_over") || name == "memory_used" {
            found.push(value);
        }
    });
    assert_eq!(found, [1, 1, 8 * 2304]);
}

/// When a flow's queue runs empty, CoDel forgets since when packets of this flow have waited too
/// long.
#[test]
fn an_empty_flow_is_a_good_one() {
    let mut qdisc = build("fq_codel target 1ms interval 10ms noecn");
    let at = |ms: u64| Instant(20_000_000_000 + ms * 1_000_000);
    let push = |qdisc: &mut dyn Qdisc, ms: u64, bucket, number| {
        let mut none = PacketList::new();
        let mut cx = Cx::new(at(ms), &mut none);
        assert_eq!(qdisc.enqueue(packet(bucket, number, 1000), &mut cx), Verdict::Queued);
    };
    let pop = |qdisc: &mut dyn Qdisc, ms: u64| {
        let mut drops = PacketList::new();
        let mut cx = Cx::new(at(ms), &mut drops);
        let Dequeue::Ready(pkt) = qdisc.dequeue(&mut cx) else { panic!("there is more") };
        assert!(drops.is_empty());
        pkt.cookie
    };
    // Packets of another flow keep the whole qdisc from being almost empty, because CoDel drops
    // nothing from an almost empty qdisc.
    for number in 100..120 {
        push(&mut *qdisc, 0, 9, number);
    }
    push(&mut *qdisc, 0, 1, 0);
    assert_eq!([pop(&mut *qdisc, 2), pop(&mut *qdisc, 2), pop(&mut *qdisc, 2)], [100, 101, 0]);
    // Flow 1 gets its turn while its queue is empty. Later it has a packet again, which waits too
    // long, but is not dropped.
    assert_eq!([pop(&mut *qdisc, 3), pop(&mut *qdisc, 3)], [102, 103]);
    push(&mut *qdisc, 4, 1, 1);
    let cookies: Vec<u64> = (0..4).map(|_| pop(&mut *qdisc, 11)).collect();
    assert!(cookies.contains(&1), "{cookies:?}");
}

#[test]
fn backlog_and_reset() {
    let mut qdisc = build("fq_codel");
    let mut drops = PacketList::new();
    let mut cx = Cx::new(Instant(0), &mut drops);
    for number in 0..5 {
        let _ = qdisc.enqueue(packet(3, number, 100), &mut cx);
    }
    assert_eq!(qdisc.peek(&mut cx), Peek::Ready(100));
    assert_eq!(qdisc.backlog(), Backlog { packets: 5, bytes: 500 });
    qdisc.reset(&mut cx);
    assert_eq!(qdisc.backlog(), Backlog::default());
    assert_eq!(drops.len(), 5);
    assert!(drops.all(|pkt| pkt.drop_reason == Some(DropReason::Purged)));
}

/// If a packet waits longer than `ce_threshold`, it is marked only if its ECN bits match
/// `ce_threshold_selector`.
#[test]
fn the_threshold_may_be_for_some_only() {
    for (selector, marked) in [
        ("", [false, true, true]),
        ("ce_threshold_selector 0x1/0x3", [false, true, false]),
        ("ce_threshold_selector 2/2", [false, false, true]),
        ("ce_threshold_selector 4/4", [false, false, false]),
    ] {
        let mut qdisc = build(&format!("fq_codel ce_threshold 1ms {selector}"));
        for ecn in 0..3 {
            let mut pkt = packet(0, 0, 1000);
            (pkt.ecn, pkt.enqueued_ns) = (ecn, 20_000_000_000);
            let mut none = PacketList::new();
            let mut cx = Cx::new(Instant(20_000_000_000), &mut none);
            assert_eq!(qdisc.enqueue(pkt, &mut cx), Verdict::Queued);
        }
        let ours = [(); 3].map(|()| {
            let mut none = PacketList::new();
            let mut cx = Cx::new(Instant(20_002_000_000), &mut none);
            let Dequeue::Ready(pkt) = qdisc.dequeue(&mut cx) else { panic!("three are there") };
            pkt.ecn == 3
        });
        assert_eq!(ours, marked, "{selector}");
    }
}
