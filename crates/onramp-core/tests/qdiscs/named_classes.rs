//! Filters that select a class. In `hfsc`, if the class is an inner class, the filters that are
//! attached to it select next. In `cake`, the class stands for a queue and a host.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};

const NOW: Instant = Instant(20_000_000_000);

fn tree(lines: &[&str]) -> Tree {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    Tree::of(&setup, 1_514, 7).expect("a root")
}

fn push(tree: &mut Tree, flow: u64, priority: u32) {
    let mut pkt = Packet::new(500);
    (pkt.flow, pkt.priority, pkt.enqueued_ns) = (flow, priority, NOW.0);
    let _ = tree.enqueue(NOW, pkt);
}

/// Returns the minor numbers of the leaf classes that hold packets, and the reasons of all drops so
/// far.
fn holding(tree: &mut Tree) -> (Vec<u16>, Vec<Option<DropReason>>) {
    let drops = tree.drops().map(|pkt| pkt.drop_reason).collect();
    let views = tree.views();
    let leaves = views[0].classes.iter().filter(|class| class.backlog.packets > 0);
    (leaves.map(|class| class.handle.minor).collect(), drops)
}

/// A tree with two inner classes 1:10 and 1:20, each with leaf classes, and a leaf class 1:2, which
/// is the default.
const HFSC: &[&str] = &[
    "qdisc add dev e root handle 1: hfsc default 2",
    "class add dev e parent 1: classid 1:2 hfsc sc rate 1mbit",
    "class add dev e parent 1: classid 1:10 hfsc sc rate 1mbit",
    "class add dev e parent 1:10 classid 1:11 hfsc sc rate 1mbit",
    "class add dev e parent 1:10 classid 1:12 hfsc sc rate 1mbit",
    "class add dev e parent 1: classid 1:20 hfsc sc rate 1mbit",
    "class add dev e parent 1:20 classid 1:21 hfsc sc rate 1mbit",
];

#[test]
fn filters_of_hfsc_point_downwards() {
    let add = |parent: &str, class: &str| {
        format!("filter add dev e parent {parent} matchall classid {class}")
    };
    for (filters, minor) in [
        (vec![], 2),
        (vec![add("1:", "1:11")], 0x11),
        // If a filter selects an inner class, the filters that are attached to this inner class
        // apply next.
        (vec![add("1:", "1:10"), add("1:10", "1:12")], 0x12),
        (vec![add("1:", "1:10"), add("1:10", "1:21")], 0x21),
        // In these cases, the packet goes to the default class: the selected inner class has no
        // filters of its own, or its filters select a class at the same level or higher, or a class
        // that does not exist in this qdisc.
        (vec![add("1:", "1:10")], 2),
        (vec![add("1:", "1:10"), add("1:10", "1:20"), add("1:20", "1:21")], 2),
        (vec![add("1:", "1:10"), add("1:10", "1:10")], 2),
        (vec![add("1:", "1:99")], 2),
        (vec![add("1:", "2:11")], 2),
    ] {
        let lines: Vec<&str> = HFSC.iter().copied().chain(filters.iter().map(|f| &**f)).collect();
        let mut tree = tree(&lines);
        push(&mut tree, 1, 0);
        assert_eq!(holding(&mut tree), (vec![minor], vec![]), "{filters:?}");
        assert!(matches!(tree.dequeue(NOW), Dequeue::Ready(_)));
    }
}

#[test]
fn a_class_of_hfsc_that_is_gone_has_no_name() {
    let mut tree = tree(HFSC);
    push(&mut tree, 1, 0x1_0012);
    assert_eq!(holding(&mut tree).0, [0x12]);
    tree.apply(NOW, "class del dev e classid 1:12").expect("a leaf goes");
    assert_eq!(holding(&mut tree), (vec![], vec![Some(DropReason::Purged)]));
    push(&mut tree, 1, 0x1_0012);
    assert_eq!(holding(&mut tree).0, [2], "the default");
    assert!(matches!(tree.dequeue(NOW), Dequeue::Ready(_)));
    let add = "class add dev e parent 1:10 classid 1:12 hfsc sc rate 1mbit";
    tree.apply(NOW, add).expect("the name is free");
    push(&mut tree, 1, 0x1_0012);
    assert_eq!(holding(&mut tree).0, [0x12]);
    // An inner class whose leaf classes were all removed is a leaf itself.
    tree.apply(NOW, "class del dev e classid 1:21").expect("a leaf goes");
    assert!(matches!(tree.dequeue(NOW), Dequeue::Ready(_)));
    push(&mut tree, 1, 0x1_0020);
    assert_eq!(holding(&mut tree).0, [0x20]);
}

/// `cake` reads the class that a filter selects as follows: the minor number is the number of a
/// queue, counted from 1, and the major number selects the host.
#[test]
fn a_filter_of_cake_names_the_flow() {
    let plain = "qdisc add dev e root handle 1: cake besteffort flows";
    for (filter, count) in [("1:5", 1), ("1:0", 20), ("0:7", 1), ("1:400", 1), ("1:401", 20)] {
        let filter = format!("filter add dev e parent 1: matchall classid {filter}");
        let mut tree = tree(&[plain, &filter]);
        (0..20).for_each(|flow| push(&mut tree, flow, 0));
        let (minors, drops) = holding(&mut tree);
        // Twenty flows are spread over 1,024 queues, so one pair of flows may share a queue.
        assert!(minors.len() == count || minors.len() + 1 == count, "{filter}: {minors:?}");
        assert!(drops.is_empty());
    }
    let mut tree = tree(&[plain, "filter add dev e parent 1: matchall action drop"]);
    push(&mut tree, 1, 0);
    assert_eq!(holding(&mut tree), (vec![], vec![Some(DropReason::Filter)]));
}

#[test]
fn the_default_class_of_hfsc_changes() {
    let mut tree = tree(HFSC);
    push(&mut tree, 1, 0);
    assert_eq!(holding(&mut tree).0, [2]);
    let line = "qdisc change dev e root handle 1: hfsc default 11";
    tree.apply(NOW, line).expect(line);
    assert!(matches!(tree.dequeue(NOW), Dequeue::Ready(_)));
    push(&mut tree, 1, 0);
    assert_eq!(holding(&mut tree).0, [0x11]);
}

/// `wash` clears the class of service (DSCP) and keeps the two ECN bits.
#[test]
fn cake_washes() {
    for (word, v4, v6) in [("wash", 0x02, [0x60, 0x20]), ("nowash", 0xba, [0x6b, 0xa0])] {
        let mut tree = tree(&[&format!("qdisc add dev e root handle 1: cake {word}")]);
        let mut four = [0_u8; 40];
        (four[0], four[1], four[9]) = (0x45, 0xba, 17);
        let mut six = [0_u8; 60];
        (six[0], six[1], six[6]) = (0x6b, 0xa0, 17);
        for (bytes, first, second) in [(&four[..], 0x45, v4), (&six[..], v6[0], v6[1])] {
            let mut pkt = Packet::with_payload(bytes);
            pkt.set_layer(onramp_queue::Layer::Ip);
            pkt.enqueued_ns = NOW.0;
            let _ = tree.enqueue(NOW, pkt);
            let Dequeue::Ready(pkt) = tree.dequeue(NOW) else { panic!("it holds one") };
            assert_eq!((pkt.payload()[0], pkt.payload()[1]), (first, second), "{word}");
        }
    }
}
