//! With thousands of flows and classes, qdiscs prefetch those whose turn is near. While flows and
//! classes come and go, no packet is lost, and removed classes are not accessed.

use std::collections::BTreeSet;

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{Packet, PacketList};
use proptest::prelude::*;

const START: Instant = Instant(1_000_000_000);
/// More classes than a qdisc prefetches (loads into the cache ahead of their turn).
const CLASSES: u16 = 4_500;

/// Checks that each packet that was enqueued has been sent or dropped, or is still held.
fn balanced(tree: &mut Tree, line: &str) {
    drop(tree.drops());
    let (totals, held) = (tree.totals(), u64::from(tree.backlog().packets));
    let gone = totals.sent_packets + totals.dropped_packets();
    assert_eq!(totals.enqueued_packets, gone + held, "{line}");
}

/// Dequeues until the tree is empty, and checks the counts.
fn drain(tree: &mut Tree, mut now: Instant, line: &str) {
    while tree.backlog().packets > 0 {
        match tree.dequeue(now) {
            Dequeue::Ready(_) => {}
            Dequeue::NotBefore(then) => {
                assert!(then > now, "{line} asks to be asked at once");
                now = then;
            }
            Dequeue::Empty => assert_eq!(tree.backlog().packets, 0, "{line} says it is empty"),
        }
    }
    balanced(tree, line);
}

fn some(count: u16) -> impl Iterator<Item = (u64, u32)> {
    (0..count).map(|n| (n.into(), 60 + u32::from(n) * 31 % 1_400))
}

fn classes(steps: &[(u8, u16)]) {
    let class = |minor| format!("class add dev x parent 1: classid 1:{minor:x} drr quantum 500");
    let mut setup = Setup::default();
    setup.apply("qdisc add dev x root handle 1: drr").expect("a root");
    let mut there: BTreeSet<u16> = (1..=CLASSES).collect();
    there.iter().for_each(|minor| setup.apply(&class(*minor)).expect("a class"));
    let mut tree = Tree::of(&setup, 1_514, 1).expect("a root");
    let mut now = START;
    for &(step, number) in steps {
        let minor = 1 + number % CLASSES;
        let mut apply = |line: &str| tree.apply(now, line).expect(line);
        match step % 8 {
            3 if there.remove(&minor) => apply(&format!("class del dev x classid 1:{minor:x}")),
            // The new class takes the memory slot of a removed class, but has another class number.
            4 if there.insert(minor) => apply(&class(minor)),
            5 if there.contains(&minor) => {
                let kind =
                    ["pfifo", "fq maxrate 1mbit", "fq_codel limit 300"][usize::from(number % 3)];
                let handle = 0x1000 + minor;
                apply(&format!("qdisc replace dev x parent 1:{minor:x} handle {handle:x}: {kind}"));
            }
            0 | 1 => {
                let packet = |((flow, len), minor): (_, &u16)| {
                    let mut pkt = Packet::new(len);
                    (pkt.flow, pkt.priority) = (flow, 0x10000 | u32::from(*minor));
                    pkt
                };
                let these = there.range(minor..);
                let list: PacketList = some(200).zip(these).map(packet).collect();
                tree.enqueue_list(now, list);
            }
            2 => drop(tree.dequeue_list(now, (number % 300).into(), &mut PacketList::new())),
            6 => now = now.after(u64::from(number) * 1_000),
            7 if number < 2_000 => tree.reset(now),
            _ => {}
        }
        balanced(&mut tree, "drr");
    }
    drain(&mut tree, now, "drr");
}

fn flows(line: &str, steps: &[(u8, u16)]) {
    let mut tree = Tree::new(&line.parse().expect(line), 1_514);
    let mut now = START;
    for &(step, number) in steps {
        match step % 8 {
            0..=3 => {
                let packet = |(n, len)| {
                    let mut pkt = Packet::new(len);
                    pkt.flow = (u64::from(number) * 77 + n * 13) % 9_000;
                    (pkt.enqueued_ns, pkt.priority) = (now.0, len % 5);
                    pkt.txtime_ns = if n % 40 == 1 { now.0 + n * 1_000_000 } else { 0 };
                    pkt.pacing_rate = if n % 41 == 1 { n * 1_000 } else { 0 };
                    pkt
                };
                tree.enqueue_list(now, some(400).map(packet).collect());
            }
            4 | 5 => drop(tree.dequeue_list(now, (number % 600).into(), &mut PacketList::new())),
            6 => now = now.after(u64::from(number) * 100_000),
            _ if number < 3_000 => tree.reset(now),
            _ => {}
        }
        balanced(&mut tree, line);
    }
    drain(&mut tree, now, line);
}

fn steps(most: usize) -> impl Strategy<Value = Vec<(u8, u16)>> {
    prop::collection::vec((any::<u8>(), any::<u16>()), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn classes_come_and_go(steps in steps(200)) {
        classes(&steps);
    }

    #[test]
    fn flows_come_and_go(steps in steps(60)) {
        for line in [
            "fq limit 100000",
            "fq maxrate 1mbit buckets 1024 limit 100000",
            "fq_codel flows 65536 limit 100000",
            "fq_codel limit 3000 flows 8192 drop_batch 64",
            "fq_pie flows 65536 limit 100000",
            "sfq divisor 65536 flows 65408 limit 100000",
            "sfq divisor 16384 flows 8000 limit 5000 perturb 1",
        ] {
            flows(line, &steps);
        }
    }
}
