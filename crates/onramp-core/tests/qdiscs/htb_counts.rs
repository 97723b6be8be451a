//! `htb`: the counters of a class, the largest debt of tokens that a class may have, and the tokens
//! that a class keeps when its rates change.
//!
//! Source: `tc-htb(8)`; M. Devera, "HTB Linux queuing discipline manual: theory", 2002,
//! "statistics" (`lended`: packets sent with tokens of the class's own, `borrowed`: with the
//! parent's); Linux' `net/sched/sch_htb.c`: `overlimits` counts how often a class came to a state
//! in which it may not send, and the debt of a class is at most a minute's worth of tokens
//! (`mbuffer`).

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, Query};
use onramp_core::{Handle, Instant, Setup, Tree};
use onramp_queue::Packet;

const SEC: u64 = 1_000_000_000;
const START_NS: u64 = 20 * SEC;

fn tree(lines: &[&str]) -> Tree {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev e root handle 1: htb").expect("a root");
    for line in lines {
        setup.apply(line).unwrap_or_else(|why| panic!("{line}: {why}"));
    }
    Tree::of(&setup, 1514, 0).expect("a root")
}

fn push(tree: &mut Tree, ns: u64, minor: u32, len: u32) -> Verdict {
    let mut pkt = Packet::new(len);
    pkt.priority = 0x1_0000 + minor;
    tree.enqueue(Instant(START_NS + ns), pkt)
}

/// Dequeues from `ns` on until a packet leaves. Returns when it leaves. Both times are in
/// nanoseconds after the start.
fn leaves(tree: &mut Tree, ns: u64) -> u64 {
    let mut now = Instant(START_NS + ns);
    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(_) => return now.0 - START_NS,
            Dequeue::NotBefore(then) => now = then,
            Dequeue::Empty => panic!("it holds one"),
        }
    }
}

fn class(tree: &mut Tree, minor: u16) -> onramp_core::view::ClassView {
    let classes = &tree.views()[0].classes;
    let found = classes.iter().find(|class| class.handle == Handle::new(1, minor));
    found.expect("there is such a class").clone()
}

#[test]
fn a_class_counts_its_limits_and_its_drops() {
    let mut tree = tree(&[
        "class add dev e parent 1: classid 1:1 htb rate 8mbit burst 1000 cburst 1000",
        "qdisc add dev e parent 1:1 handle 10: pfifo limit 4",
    ]);
    for n in 0..6 {
        assert_eq!(push(&mut tree, 0, 1, 1000) == Verdict::Dropped, n >= 4);
    }
    assert_eq!(class(&mut tree, 1).counters.drops, 2);
    // The class's bucket holds tokens for one packet. Each further packet leaves the class with a
    // debt of a millisecond's tokens, and the class must wait until the debt is paid.
    let times: Vec<_> = (0..4).map(|_| leaves(&mut tree, 0)).collect();
    assert_eq!(times, [0, 0, 1_000_000, 2_000_000]);
    let view = class(&mut tree, 1);
    let counters = view.counters;
    assert_eq!((counters.packets, counters.bytes, counters.overlimits), (4, 4_000, 3));
    assert_eq!((view.extra.get("lended"), view.extra.get("borrowed")), (4, 0));
    let root = &tree.views()[0];
    assert_eq!((root.counters.overlimits, root.extra.get("direct_packets_stat")), (3, 0));
}

/// At one byte per second, a packet of 1,000 bytes costs tokens for a quarter of an hour, which a
/// class without tokens owes as a debt. `htb` limits the debt to the tokens of one minute.
#[test]
fn a_debt_is_a_minute_at_most() {
    let mut alone =
        tree(&["class add dev e parent 1: classid 1:1 htb rate 8bit burst 1000 cburst 1000"]);
    let _ = push(&mut alone, 0, 1, 1000);
    let _ = push(&mut alone, 0, 1, 1000);
    let _ = push(&mut alone, 0, 1, 1000);
    assert_eq!((leaves(&mut alone, 0), leaves(&mut alone, 0)), (0, 0));
    let minute = leaves(&mut alone, 0);
    assert!(minute.abs_diff(60 * SEC) <= 10, "{minute}");
    // `htb` limits the debt to a minute also if a class has a debt at its rate, but still has
    // tokens for its ceil. Until the minute is over, the class borrows from its parent.
    let mut child = tree(&[
        "class add dev e parent 1: classid 1:1 htb rate 8mbit burst 9000 cburst 9000",
        "class add dev e parent 1:1 classid 1:2 htb rate 8bit ceil 8mbit burst 1000 cburst 9000",
    ]);
    let mut sends = |at_sec: u64| {
        let _ = push(&mut child, at_sec * SEC, 2, 1000);
        assert_eq!(leaves(&mut child, at_sec * SEC), at_sec * SEC);
        let view = class(&mut child, 2);
        (view.extra.get("lended"), view.extra.get("borrowed"))
    };
    assert_eq!((sends(0), sends(0)), ((1, 0), (2, 0)));
    assert_eq!((sends(1), sends(59)), ((2, 1), (2, 2)));
    assert_eq!(sends(61), (3, 2));
}

/// When the rates of a class change, the class keeps the tokens that it has: an empty bucket stays
/// empty.
#[test]
fn a_change_fills_no_bucket() {
    let mut tree =
        tree(&["class add dev e parent 1: classid 1:1 htb rate 8mbit burst 1000 cburst 1000"]);
    (0..4).for_each(|_| _ = push(&mut tree, 0, 1, 1000));
    assert_eq!((leaves(&mut tree, 0), leaves(&mut tree, 0)), (0, 0));
    let line = "class change dev e parent 1: classid 1:1 htb rate 8mbit burst 9000 cburst 9000";
    tree.apply(Instant(START_NS), line).expect(line);
    assert_eq!(leaves(&mut tree, 0), 1_000_000);
}

/// Classes that borrow get the same number of bytes, whatever the sizes of their packets: a class
/// that sent more than its quantum in one turn sends less in its next turn.
#[test]
fn borrowers_share_by_bytes() {
    let mut tree = tree(&[
        "class add dev e parent 1: classid 1:1 htb rate 80mbit burst 9000 cburst 9000",
        "class add dev e parent 1:1 classid 1:2 htb rate 8kbit ceil 80mbit burst 1 quantum 1500",
        "class add dev e parent 1:1 classid 1:3 htb rate 8kbit ceil 80mbit burst 1 quantum 1500",
    ]);
    for _ in 0..400 {
        let _ = push(&mut tree, 0, 2, 1000);
        let _ = push(&mut tree, 0, 3, 1500);
    }
    let mut ns = 0;
    for _ in 0..400 {
        ns = leaves(&mut tree, ns);
    }
    let bytes = [2, 3].map(|minor| class(&mut tree, minor).counters.bytes);
    assert!(bytes[0].abs_diff(bytes[1]) <= 6_000, "{bytes:?}");
}

/// As in Linux, a class with child classes keeps the priority and the quantum that it had as a
/// leaf, whatever a change names.
#[test]
fn an_inner_class_keeps_its_turn() {
    let mut tree = tree(&[
        "class add dev e parent 1: classid 1:1 htb rate 1mbit prio 2 quantum 5000",
        "class add dev e parent 1:1 classid 1:11 htb rate 1mbit",
    ]);
    let mut apply = |line: &str| tree.apply(Instant(START_NS), line).expect("a line");
    apply("class change dev e parent 1: classid 1:1 htb rate 2mbit prio 5 quantum 7000");
    apply("class del dev e classid 1:11");
    let list = |tree: &mut Tree| {
        let mut out = Out::new(Style { details: true, ..Style::default() });
        let views = tree.views();
        Listed::new(None, tree.setup(), 1514, &views).classes(Query::default(), &mut out);
        out.finish().split(" linklayer").next().unwrap_or_default().to_owned()
    };
    let first = "class htb 1:1 root prio 2 quantum 5000 rate 2Mbit ceil 2Mbit";
    assert_eq!(list(&mut tree), first);
    let mut built = Tree::of(tree.setup(), 1514, 0).expect("a root");
    assert_eq!(list(&mut built), first);
    let change = "class change dev e parent 1: classid 1:1 htb rate 2mbit prio 5 quantum 7000";
    tree.apply(Instant(START_NS), change).expect("a line");
    assert!(list(&mut tree).starts_with("class htb 1:1 root prio 5 quantum 7000 "));
}

/// As in Linux, a class that becomes a leaf again begins with a whole turn.
#[test]
fn a_class_that_becomes_a_leaf_again_has_no_turn_behind_it() {
    let class = "htb rate 1gbit burst 1mb cburst 1mb quantum 10000";
    let mut tree = tree(&[
        &format!("class add dev e parent 1: classid 1:1 {class}"),
        &format!("class add dev e parent 1: classid 1:2 {class}"),
    ]);
    let _ = push(&mut tree, 0, 1, 1000);
    let _ = leaves(&mut tree, 0);
    tree.apply(Instant(START_NS), &format!("class add dev e parent 1:1 classid 1:11 {class}"))
        .expect("a class");
    tree.apply(Instant(START_NS), "class del dev e classid 1:11").expect("a class");
    for minor in [1, 1, 1, 1, 1, 2, 2, 2, 2, 2] {
        let _ = push(&mut tree, 0, minor, 1000);
    }
    let order: Vec<u32> = (0..10)
        .map(|_| match tree.dequeue(Instant(START_NS)) {
            Dequeue::Ready(pkt) => pkt.priority & 0xf,
            _ => panic!("ten are held"),
        })
        .collect();
    assert_eq!(order, [1, 2, 1, 1, 1, 1, 2, 2, 2, 2]);
}
