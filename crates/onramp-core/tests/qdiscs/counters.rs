//! Tests the counters of every qdisc and class of a tree. `onramp-sim` compares these counters with
//! those of Linux.

use onramp_core::qdisc::Dequeue;
use onramp_core::view::QdiscView;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};

const NOW: Instant = Instant(1_000_000);

fn tree(lines: &[&str]) -> Tree {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    Tree::of(&setup, 1_514, 0).expect("a root")
}

fn enqueue(tree: &mut Tree, count: u32, class: u32) {
    for _ in 0..count {
        let mut pkt = Packet::new(100);
        (pkt.priority, pkt.enqueued_ns) = (class, NOW.0 - 1_000);
        // Dropped packets are counted, so the verdict does not matter here.
        let _ = tree.enqueue(NOW, pkt);
    }
    drop(tree.drops());
}

fn dequeue(tree: &mut Tree, count: u32) {
    for _ in 0..count {
        assert!(matches!(tree.dequeue(NOW), Dequeue::Ready(_)));
    }
}

/// Returns for each qdisc its handle, and four numbers: packets sent, bytes sent, packets dropped
/// and packets held.
fn counts(views: &[QdiscView]) -> Vec<(u16, [u64; 4])> {
    let row = |view: &QdiscView| {
        let all: u64 = view.drops.iter().map(|(_, n)| n).sum();
        assert_eq!(all, view.counters.drops, "by reason");
        let counters = &view.counters;
        let held = view.backlog.packets.into();
        (view.handle.major, [counters.packets, counters.bytes, counters.drops, held])
    };
    views.iter().map(row).collect()
}

const NESTED: [&str; 3] = [
    "qdisc add dev x root handle 1: prio",
    "qdisc add dev x parent 1:1 handle 2: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
    "qdisc add dev x parent 2:1 handle 3: pfifo limit 4",
];

#[test]
fn a_drop_counts_for_all_that_stand_above() {
    let mut tree = tree(&NESTED);
    enqueue(&mut tree, 7, 0x1_0001);
    dequeue(&mut tree, 1);
    let all = [1, 100, 3, 3];
    assert_eq!(counts(&tree.views()), [(1, all), (2, all), (3, all)]);
    // `views` returns parents before their children, and each qdisc with its own classes.
    let views = tree.views();
    assert_eq!(views[0].classes.len(), 3);
    assert_eq!((views[0].classes[0].leaf, views[0].classes[1].leaf), (Some(2), None));
    assert_eq!(views[0].classes[0].counters.drops, 3);
    assert_eq!(views[2].parent.map(|parent| parent.to_string()).as_deref(), Some("2:1"));
    assert_eq!(views[2].drops, [(DropReason::Overlimit, 3)]);
}

/// As in Linux, packets that are lost because their qdisc is replaced count as drops of the qdiscs
/// above that place, and of no other qdisc.
#[test]
fn what_is_purged_counts_above_it() {
    let mut tree = tree(&NESTED);
    enqueue(&mut tree, 4, 0x1_0001);
    tree.apply(NOW, "qdisc replace dev x parent 2:1 handle 4: pfifo").expect("a line");
    assert_eq!(tree.drops().len(), 4);
    let above = [0, 0, 4, 0];
    assert_eq!(counts(&tree.views()), [(1, above), (2, above), (4, [0; 4])]);
    enqueue(&mut tree, 2, 0x1_0001);
    tree.apply(NOW, "qdisc replace dev x root handle 5: pfifo").expect("a line");
    assert_eq!(tree.drops().len(), 2);
    assert_eq!(counts(&tree.views()), [(5, [0; 4])], "another root counts anew");
    assert_eq!(tree.totals().dropped(DropReason::Purged), 6, "the tree forgets nothing");
}

/// A class of `drr` has counters of its own, which stay when the qdisc below it is replaced, but a
/// class of `prio` shows those of the qdisc below it.
#[test]
fn a_class_may_outlive_its_qdisc() {
    for (kind, left) in [("drr", 3), ("prio", 1)] {
        let mut lines = vec![format!("qdisc add dev x root handle 1: {kind}")];
        if kind == "drr" {
            lines.push("class add dev x parent 1: classid 1:1 drr".into());
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let mut tree = tree(&lines);
        enqueue(&mut tree, 2, 0x1_0001);
        dequeue(&mut tree, 2);
        tree.apply(NOW, "qdisc add dev x parent 1:1 handle 2: pfifo limit 1").expect("a line");
        enqueue(&mut tree, 4, 0x1_0001);
        dequeue(&mut tree, 1);
        let views = tree.views();
        let class = &views[0].classes[0].counters;
        assert_eq!((class.packets, class.bytes, class.drops), (left, 100 * left, 3), "{kind}");
        assert_eq!(counts(&views), [(1, [3, 300, 3, 0]), (2, [1, 100, 3, 0])], "{kind}");
    }
}

#[test]
fn how_long_packets_stay_is_measured_if_asked_for() {
    let mut tree = tree(&NESTED);
    enqueue(&mut tree, 4, 0x1_0001);
    dequeue(&mut tree, 1);
    assert!(tree.views().iter().all(|view| view.sojourn_ns.is_none()));
    tree.measure(true);
    dequeue(&mut tree, 3);
    for view in tree.views() {
        let counts = view.sojourn_ns.expect("it is measured");
        // The sojourn time of each packet is 1,000 ns, which lies between 2^9 ns and 2^10 ns, so it
        // belongs to entry 10 of the histogram.
        assert_eq!((counts[10], counts.iter().sum::<u64>()), (3, 3));
    }
}

/// A class of `htb` keeps counting the packets that its qdiscs refused for as long as the class
/// exists (`htb_enqueue`, `net/sched/sch_htb.c`, 7.2). A class of `drr` shows the drops of the
/// qdisc below it, and so begins anew when that qdisc is replaced (`drr_dump_class_stats`,
/// `net/sched/sch_drr.c`).
#[test]
fn what_a_class_refused_when_another_qdisc_comes() {
    for (kind, options, adds_up) in [("htb", "rate 8gbit", true), ("drr", "", false)] {
        let mut tree = tree(&[
            &format!("qdisc add dev x root handle 1: {kind}"),
            &format!("class add dev x parent 1: classid 1:1 {kind} {options}"),
            "qdisc add dev x parent 1:1 handle 2: pfifo limit 1",
        ]);
        enqueue(&mut tree, 4, 0x1_0001);
        dequeue(&mut tree, 1);
        for (handle, sent) in [(3, 1), (4, 2)] {
            let line = format!("qdisc replace dev x parent 1:1 handle {handle}: pfifo limit 1");
            tree.apply(NOW, &line).expect("a line");
            let drops = if adds_up { 3 * sent } else { 0 };
            let class = tree.views()[0].classes[0].counters;
            assert_eq!((class.packets, class.drops), (sent, drops), "{kind}: before any came");
            enqueue(&mut tree, 4, 0x1_0001);
            dequeue(&mut tree, 1);
            let class = tree.views()[0].classes[0].counters;
            assert_eq!((class.packets, class.drops), (sent + 1, drops + 3), "{kind}");
        }
    }
}
