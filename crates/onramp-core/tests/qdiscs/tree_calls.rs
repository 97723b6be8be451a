//! Which counters each call of a tree of qdiscs changes, and how a tree lists its qdiscs and
//! classes.

use onramp_core::Spec;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::view::QdiscView;
use onramp_core::{Facts, Handle, Instant, Setup, Stopped, Totals, Tree};
use onramp_queue::{DropReason, Packet, PacketList};

const NOW: Instant = Instant(20_000_000_000);
const MTU: u32 = 1_514;

fn tree(lines: &[&str]) -> Tree {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    Tree::of(&setup, MTU, 0).expect("a root")
}

fn bare(line: &str) -> Tree {
    Tree::new(&line.parse::<Spec>().expect(line), MTU)
}

/// Returns the tree's counters: packets enqueued, packets made by qdiscs, packets sent, bytes sent,
/// and packets dropped.
fn counts(totals: Totals) -> [u64; 5] {
    let Totals { enqueued_packets, made_packets, sent_packets, sent_bytes, .. } = totals;
    [enqueued_packets, made_packets, sent_packets, sent_bytes, totals.dropped_packets()]
}

#[test]
fn a_packet_passes_a_tree_that_holds_nothing() {
    let mut tree = bare("pfifo limit 3");
    assert_eq!(tree.pass_or_enqueue(NOW, Packet::new(70)).map(|pkt| pkt.len), Ok(70));
    assert_eq!(tree.pass_or_enqueue(NOW, Packet::new(30)).map(|pkt| pkt.len), Ok(30));
    assert_eq!(counts(tree.totals()), [2, 0, 2, 100, 0]);
    let root = tree.views()[0].counters;
    assert_eq!((root.packets, root.bytes), (2, 100), "it counts for the root, as in Linux");
    // If even a single packet waits in the tree, no other packet may bypass it.
    assert_eq!(tree.enqueue(NOW, Packet::new(50)), Verdict::Queued);
    assert_eq!(tree.pass_or_enqueue(NOW, Packet::new(60)).err(), Some(Verdict::Queued));
    assert_eq!((tree.backlog().packets, tree.backlog().bytes), (2, 110));
    assert_eq!(counts(tree.totals()), [4, 0, 2, 100, 0]);
    assert_eq!(tree.keep_or_enqueue(NOW, Packet::new(1)), Verdict::Queued);
    assert_eq!(tree.pass_or_enqueue(NOW, Packet::new(60)).err(), Some(Verdict::Dropped));
    assert_eq!(counts(tree.totals()), [6, 0, 2, 100, 1]);
    // No packet may bypass a tree whose root is a `tbf`, even if the `tbf` is empty.
    let mut tree = bare("tbf rate 1mbit burst 3000 limit 9000");
    assert_eq!(tree.pass_or_enqueue(NOW, Packet::new(60)).err(), Some(Verdict::Queued));
    assert_eq!(counts(tree.totals()), [1, 0, 0, 0, 0]);
}

#[test]
fn lists_are_counted_as_what_they_hold() {
    let mut tree = bare("pfifo limit 5");
    let list: PacketList = (1..=8).map(|n| Packet::new(n * 10)).collect();
    assert_eq!(tree.enqueue_list(NOW, list), 3);
    assert_eq!(counts(tree.totals()), [8, 0, 0, 0, 3]);
    assert_eq!(tree.totals().dropped(DropReason::Overlimit), 3);
    assert_eq!(tree.drops().map(|pkt| pkt.len).collect::<Vec<_>>(), [60, 70, 80]);
    // `dequeue_list` appends packets to `out`. The two packets that are in `out` already do not
    // count towards the limit, which is the second argument.
    let mut out: PacketList = [Packet::new(1_000), Packet::new(2_000)].into_iter().collect();
    assert_eq!(tree.dequeue_list(NOW, 0, &mut out), Stopped::Full);
    assert_eq!((out.len(), counts(tree.totals())), (2, [8, 0, 0, 0, 3]));
    assert_eq!(tree.dequeue_list(NOW, 2, &mut out), Stopped::Full);
    assert_eq!(counts(tree.totals()), [8, 0, 2, 30, 3]);
    assert_eq!(tree.dequeue_list(NOW, 9, &mut out), Stopped::Empty);
    assert_eq!(counts(tree.totals()), [8, 0, 5, 150, 3]);
    assert_eq!(out.map(|pkt| pkt.len).collect::<Vec<_>>(), [1_000, 2_000, 10, 20, 30, 40, 50]);
}

#[test]
fn single_packets_are_counted_by_their_bytes() {
    let mut tree = bare("netem duplicate 100%");
    assert_eq!(tree.enqueue(NOW, Packet::new(700)), Verdict::Queued);
    assert_eq!(counts(tree.totals()), [2, 1, 0, 0, 0]);
    for sent in [1, 2] {
        assert!(matches!(tree.dequeue(NOW), Dequeue::Ready(_)));
        assert_eq!(counts(tree.totals()), [2, 1, sent, 700 * sent, 0]);
    }
    assert!(matches!(tree.dequeue(NOW), Dequeue::Empty));
    assert_eq!(counts(tree.totals()), [2, 1, 2, 1_400, 0]);
    let root = tree.views()[0].counters;
    assert_eq!((root.packets, root.bytes, root.drops), (2, 1_400, 0));
}

/// Returns the hash buckets of the root into which the packets of twenty flows fall. Which buckets
/// these are depends on the seed of the qdisc's hash.
fn buckets(mut tree: Tree) -> Vec<Handle> {
    for flow in 0..20 {
        let mut pkt = Packet::new(100);
        pkt.flow = flow << 20;
        let _ = tree.enqueue(NOW, pkt);
    }
    tree.views()[0].classes.iter().map(|class| class.handle).collect()
}

/// `Tree::new` gives the root qdisc the hash seed 0. A qdisc that later replaces the root also gets
/// the seed 0.
#[test]
fn a_tree_without_a_seed_has_that_of_zero() {
    let line = "qdisc replace dev x root handle 5: fq_codel";
    let seeded = |seed| {
        let mut setup = Setup::default();
        setup.apply(line).expect(line);
        buckets(Tree::of(&setup, MTU, seed).expect("a root"))
    };
    let mut replaced = bare("pfifo");
    replaced.apply(NOW, line).expect(line);
    let found = buckets(replaced);
    assert!(found.len() > 10, "few share one");
    assert_eq!(found, seeded(0));
    assert!((1..9).all(|seed| seeded(seed) != found));
}

/// Returns the handle, parent and kind of each qdisc.
fn told(views: &[QdiscView]) -> Vec<String> {
    let row = |view: &QdiscView| {
        let place = view.parent.map_or_else(|| "root".to_owned(), |parent| parent.to_string());
        format!("{} {place} {}", view.handle, view.kind.id)
    };
    views.iter().map(row).collect()
}

/// Returns the number of each class of the root, its parent class, and the qdisc below it.
fn classes(tree: &mut Tree) -> Vec<(u16, Option<Handle>, Option<u16>)> {
    let rows = |view: &QdiscView| -> Vec<_> {
        let row = |class: &onramp_core::view::ClassView| {
            assert_eq!(class.handle.major, view.handle.major);
            (class.handle.minor, class.parent, class.leaf)
        };
        view.classes.iter().map(row).collect()
    };
    rows(&tree.views()[0])
}

#[test]
fn what_a_device_has_by_itself_has_no_handle() {
    let mut setup = Setup::default();
    let fallback = Some("fq_codel".parse().expect("a qdisc"));
    setup.of_device("x", Facts { fallback, ..Facts::default() });
    let mut tree = Tree::of(&setup, MTU, 0).expect("there is a fallback");
    let views = tree.views();
    assert_eq!((views[0].handle, views[0].parent), (Handle::new(0, 0), None));
    assert_eq!((views.len(), views[0].kind.id), (1, "fq_codel"));
}

/// As in Linux, some kinds of qdisc list their default child qdiscs. The listing names as the
/// parent the class above the child or, if the qdisc has only one place for a child, the qdisc.
#[test]
fn some_defaults_are_listed() {
    let cbs = "qdisc add dev x root handle 1: cbs idleslope 800000 sendslope -200000 \
               hicredit 1000 locredit -1000";
    assert_eq!(told(&tree(&[cbs]).views()), ["1: root cbs", "0: 1: pfifo"]);
    let named = "qdisc add dev x parent 1:1 handle 2: pfifo limit 2";
    assert_eq!(told(&tree(&[cbs, named]).views()), ["1: root cbs", "2: 1:1 pfifo"]);
    let mut mq = tree(&[
        "qdisc add dev x root handle 1: mq queues 3",
        "qdisc add dev x parent 1:2 handle 2: tbf rate 1mbit burst 3000 limit 9000",
    ]);
    let fast = |n| format!("0: 1:{n} pfifo_fast");
    assert_eq!(told(&mq.views()), ["1: root mq".to_owned(), fast(1), "2: 1:2 tbf".into(), fast(3)]);
    let mut mqprio = tree(&["qdisc add dev x root handle 1: mqprio num_tc 2 \
                             map 0 1 queues 1@0 1@1 hw 0"]);
    assert_eq!(told(&mqprio.views()), ["1: root mqprio".to_owned(), fast(1), fast(2)]);
    // Other kinds do not list their default child qdiscs.
    for line in
        ["prio", "netem delay 1ms", "tbf rate 1mbit burst 3000 limit 9000", "multiq", "ets bands 2"]
    {
        let mut tree = tree(&[&format!("qdisc add dev x root handle 1: {line}")]);
        assert_eq!(tree.views().len(), 1, "{line}");
    }
}

/// As in Linux, `cbs` does not count the packets that its child drops.
#[test]
fn cbs_leaves_drops_to_its_child() {
    let mut tree = tree(&[
        "qdisc add dev x root handle 1: cbs idleslope 800000 sendslope -200000 \
         hicredit 1000 locredit -1000",
        "qdisc add dev x parent 1:1 handle 2: pfifo limit 2",
    ]);
    for _ in 0..5 {
        let _ = tree.enqueue(NOW, Packet::new(100));
    }
    let drops: Vec<u64> = tree.views().iter().map(|view| view.counters.drops).collect();
    assert_eq!((drops, tree.totals().dropped_packets()), (vec![0, 3], 3));
}

#[test]
fn classes_are_listed_with_what_stands_above_and_below() {
    // Each class is listed with its parent class and with the qdisc below it.
    let mut htb = tree(&[
        "qdisc add dev x root handle 1: htb",
        "class add dev x parent 1: classid 1:5 htb rate 9mbit",
        "class add dev x parent 1:5 classid 1:30 htb rate 3mbit",
        "class add dev x parent 1:5 classid 1:10 htb rate 3mbit",
        "class add dev x parent 1:5 classid 1:20 htb rate 3mbit",
        "qdisc add dev x parent 1:30 handle 33: pfifo",
        "qdisc add dev x parent 1:10 handle 11: pfifo",
        "qdisc add dev x parent 1:20 handle 22: pfifo",
    ]);
    let above = Some(Handle::new(1, 5));
    let mut rows = classes(&mut htb);
    rows.sort_unstable();
    let expected = [
        (5, None, None),
        (0x10, above, Some(0x11)),
        (0x20, above, Some(0x22)),
        (0x30, above, Some(0x33)),
    ];
    assert_eq!(rows, expected);
    let mut prio = tree(&[
        "qdisc add dev x root handle 1: prio",
        "qdisc add dev x parent 1:2 handle 2: pfifo",
    ]);
    assert_eq!(classes(&mut prio), [(1, None, None), (2, None, Some(2)), (3, None, None)]);
    // In `hfsc`, the root itself is listed as a class (number 0).
    let mut hfsc = tree(&[
        "qdisc add dev x root handle 1: hfsc",
        "class add dev x parent 1: classid 1:7 hfsc sc rate 1mbit",
        "class add dev x parent 1:7 classid 1:8 hfsc sc rate 1mbit",
    ]);
    let above = Some(Handle::new(1, 7));
    assert_eq!(classes(&mut hfsc), [(0, None, None), (7, None, None), (8, above, None)]);
}

/// A packet that holds several datagrams counts as that many packets, in all calls of a tree.
#[test]
fn a_packet_of_several_counts_as_these() {
    let mut tree = bare("pfifo");
    let mut pkt = Packet::with_payload(&[0; 5_000]);
    pkt.gso_size = 1_000;
    pkt.len = 5_210;
    let _ = tree.enqueue(NOW, pkt);
    assert!(matches!(tree.dequeue(NOW), Dequeue::Ready(_)));
    let root = tree.views()[0].counters;
    assert_eq!((root.packets, root.bytes), (5, 5_210));
}
