//! `red`: which packets are dropped, and which are never dropped.

use onramp_core::Spec;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Tree};
use onramp_queue::{DropReason, Packet};
use proptest::prelude::*;

fn tree(options: &str) -> Tree {
    let line = format!("red limit 60000 avpkt 1000 {options}");
    Tree::new(&line.parse::<Spec>().expect(&line), 1514)
}

fn push(tree: &mut Tree, now: Instant, ecn: u8) -> Verdict {
    let mut pkt = Packet::new(1000);
    pkt.ecn = ecn;
    tree.enqueue(now, pkt)
}

fn stats(tree: &Tree) -> Vec<(&'static str, u64)> {
    let mut all = Vec::new();
    tree.stats(&mut |name, value| all.push((name, value)));
    all
}

/// Enqueues 1,000 packets. While more than 25 packets are held, one packet leaves for every two
/// that arrive.
fn overload(options: &str, ecn: u8) -> (Tree, Vec<Option<DropReason>>) {
    let mut tree = tree(options);
    for number in 0..1_000 {
        let _ = push(&mut tree, Instant(0), ecn);
        if number % 2 == 0 && tree.backlog().packets > 25 {
            let _ = tree.dequeue(Instant(0));
        }
    }
    let reasons = tree.drops().map(|pkt| pkt.drop_reason).collect();
    (tree, reasons)
}

#[test]
fn where_a_packet_can_be_marked_it_is() {
    let shape = "min 8000 max 24000 probability 0.1 ecn";
    let (tree, drops) = overload(shape, 2);
    let tail = drops.iter().filter(|reason| **reason == Some(DropReason::Overlimit)).count();
    assert_eq!(drops.len(), tail, "only the limit drops");
    assert!(matches!(stats(&tree)[..], [("marked", 300..), ("early", 0), ("pdrop", 1..)]));

    let (tree, drops) = overload(shape, 0);
    assert!(drops.contains(&Some(DropReason::Congested)));
    assert!(matches!(stats(&tree)[..], [("marked", 0), ("early", 300..), ("pdrop", 0)]));

    let (tree, _) = overload(&format!("{shape} nodrop"), 0);
    assert!(matches!(stats(&tree)[..], [("marked", 0), ("early", 0), ("pdrop", 1..)]));

    let (tree, _) = overload(&format!("{shape} harddrop"), 2);
    assert!(matches!(stats(&tree)[..], [("marked", 1..), ("early", 300..), ("pdrop", 0)]));
}

#[test]
fn mistakes_are_told() {
    for (line, said) in [
        ("red avpkt 1000", "qdisc red: \"limit\": is missing: expected bytes, 1 to 4294967295"),
        ("red limit 9000", "qdisc red: \"avpkt\": is missing: expected bytes, 1 to 4294967295"),
        (
            "red limit 100000 avpkt 1000 min 30000 max 20000",
            "qdisc red: \"min\": 30000 is more than max, 20000",
        ),
        (
            "red limit 100000 avpkt 1000 burst 2",
            "qdisc red: \"burst\": 2 is too small: expected 9 or more packets",
        ),
        (
            "red limit 100000 avpkt 1000 burst 100000000",
            "qdisc red: \"burst\": 100000000 is too large: so slow an average would never reach \
             min, 8333",
        ),
        ("red limit 90000 avpkt 1000 nodrop", "qdisc red: \"nodrop\": has a meaning only with ecn"),
    ] {
        assert_eq!(line.parse::<Spec>().expect_err(line).to_string(), said);
    }
}

proptest! {
    /// If the queue is never longer than `min`, the average length is never longer than `min`
    /// either, and `red` drops no packet.
    #[test]
    fn a_short_queue_loses_nothing(steps in prop::collection::vec((0_u32..10, 0_u64..3), 1..300)) {
        let mut tree = tree("min 10000 max 30000");
        let mut now = Instant(5_000_000_000);
        for (pushes, wait_ms) in steps {
            for _ in 0..pushes {
                prop_assert_eq!(push(&mut tree, now, 0), Verdict::Queued);
            }
            now = now.after(wait_ms * 1_000_000);
            while let Dequeue::Ready(_) = tree.dequeue(now) {}
        }
        prop_assert_eq!(stats(&tree), [("marked", 0), ("early", 0), ("pdrop", 0)]);
    }
}
