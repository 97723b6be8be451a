//! `qfq`: up to eight classes with the same weight and largest packet are served as one aggregate.
//!
//! Source: Checconi, Rizzo, Valente, "QFQ: Efficient Packet Scheduling With Tight Guarantees",
//! 2013, and Valente, "Reducing the Execution Time of Fair-Queueing Packet Schedulers", 2014: an
//! aggregate in service keeps the link until it has sent its budget, which is the sum of the
//! largest packets of its classes; `MAX_AGG_CLASSES` is 8.

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Handle, Instant, Setup, Tree};
use onramp_queue::Packet;

const NOW: Instant = Instant(20_000_000_000);

/// Makes a tree with `classes` classes of weight 1, numbered from 1:10 on, and a class 1:1 of
/// weight `heavy`. Each class has 200 packets of 1,000 bytes, the largest size.
fn world(classes: u16, heavy: u32) -> Tree {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev e root handle 1: qfq").expect("a root");
    let mut class = |minor: u16, weight| {
        let line = format!("class add dev e parent 1: classid 1:{minor:x}");
        setup.apply(&format!("{line} qfq weight {weight} maxpkt 1000")).expect("a class");
    };
    class(1, heavy);
    (0..classes).for_each(|n| class(0x10 + n, 1));
    let mut tree = Tree::of(&setup, 1514, 0).expect("a root");
    for _ in 0..200 {
        for minor in (0x10..0x10 + u32::from(classes)).chain([1]) {
            let mut pkt = Packet::new(1000);
            pkt.priority = 0x1_0000 + minor;
            assert_eq!(tree.enqueue(NOW, pkt), Verdict::Queued);
        }
    }
    tree
}

/// Dequeues up to `packets` packets. Returns their classes in order.
fn order(tree: &mut Tree, packets: usize) -> Vec<u16> {
    let pop = || match tree.dequeue(NOW) {
        Dequeue::Ready(pkt) => Some(Handle::from_priority(pkt.priority).minor),
        _ => None,
    };
    std::iter::from_fn(pop).take(packets).collect()
}

/// Returns the number of packets that leave between each two packets of class 1:1.
fn rows(order: &[u16]) -> Vec<usize> {
    let rows = order.split(|minor| *minor == 1).map(<[u16]>::len);
    rows.filter(|len| *len > 0).collect()
}

/// In each turn of their aggregate, eight classes of weight 1 are served in a row, because the
/// aggregate's budget is eight packets. With four classes, the budget is four packets.
#[test]
fn an_aggregate_sends_its_budget_in_a_row() {
    for (classes, row) in [(4, 4), (8, 8)] {
        let order = order(&mut world(classes, u32::from(classes)), 400);
        let rows = rows(&order[50..350]);
        assert!(rows[1..rows.len() - 1].iter().all(|len| *len == row), "{rows:?}");
        for turn in order[50..350].split(|minor| *minor == 1).filter(|turn| turn.len() == row) {
            let mut classes = turn.to_vec();
            classes.sort_unstable();
            classes.dedup();
            assert_eq!(classes.len(), row, "each once");
        }
    }
}

/// Sixteen classes of weight 1 form two aggregates. Class 1:1 has half of the total weight, so it
/// sends as much as both aggregates together, and is served between them.
#[test]
fn more_than_eight_classes_are_two_aggregates() {
    let order = order(&mut world(16, 16), 400);
    let rows = rows(&order[50..350]);
    assert!(rows[1..rows.len() - 1].iter().all(|len| *len == 8), "{rows:?}");
    let heavy = order[50..350].iter().filter(|minor| **minor == 1).count();
    assert!(heavy.abs_diff(150) <= 16, "{heavy}");
}

/// Each class gets the share that its weight promises, whichever classes share its aggregate.
#[test]
fn classes_get_their_weights() {
    for (classes, heavy) in [(3, 1), (8, 4), (16, 8), (20, 60)] {
        let order = order(&mut world(classes, heavy), 240);
        let sent = order.iter().filter(|minor| **minor == 1).count();
        let all = u32::from(classes) + heavy;
        let expected = usize::try_from(240 * heavy / all).expect("small");
        // The tolerance is about one budget.
        assert!(sent.abs_diff(expected) <= 10, "{sent} of 240, expected {expected}");
        for minor in 0x10..0x10 + classes {
            let sent = order.iter().filter(|other| **other == minor).count();
            let expected = usize::try_from(240 / all).expect("small");
            assert!(sent.abs_diff(expected) <= 2, "{minor:x}: {sent}, expected {expected}");
        }
    }
}

/// Classes of an aggregate share by bytes, whatever the sizes of their packets: bytes that a class
/// did not use in one turn count for its next turn.
#[test]
fn classes_of_an_aggregate_share_by_bytes() {
    let mut tree = world(0, 100);
    let _ = order(&mut tree, 200);
    for minor in [0x10, 0x11_u32] {
        let line =
            format!("class add dev e parent 1: classid 1:{minor:x} qfq weight 1 maxpkt 1000");
        tree.apply(NOW, &line).expect("a class");
        for _ in 0..300 {
            let mut pkt = Packet::new(if minor == 0x10 { 600 } else { 1000 });
            pkt.priority = 0x1_0000 + minor;
            assert_eq!(tree.enqueue(NOW, pkt), Verdict::Queued);
        }
    }
    let order = order(&mut tree, 300);
    let small = order.iter().filter(|minor| **minor == 0x10).count();
    let (small, large) = (600 * small, 1000 * (300 - small));
    assert!(small.abs_diff(large) <= 3_000, "{small} and {large} bytes");
}

/// When a class leaves a full aggregate, a class that is added later takes its place there.
#[test]
fn a_class_that_leaves_makes_room() {
    let mut tree = world(8, 8);
    let apply = |tree: &mut Tree, line: &str| tree.apply(NOW, line).expect(line);
    apply(&mut tree, "class del dev e classid 1:17");
    apply(&mut tree, "class add dev e parent 1: classid 1:30 qfq weight 1 maxpkt 1000");
    for _ in 0..200 {
        let mut pkt = Packet::new(1000);
        pkt.priority = 0x1_0030;
        assert_eq!(tree.enqueue(NOW, pkt), Verdict::Queued);
    }
    let order = order(&mut tree, 300);
    let rows = rows(&order[50..250]);
    assert!(rows[1..rows.len() - 1].iter().all(|len| *len == 8), "{rows:?}");
}
