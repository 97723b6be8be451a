//! Tests of the class with the minor number 0, which has the same handle as its qdisc. The listings
//! are those of `tc` 6.1 on Linux 7.2.

use super::super::*;
use super::{setup, told};
use crate::base::show::{Out, Style};
use crate::sched::{Dequeue, Verdict};
use crate::tc::{Listed, Query};
use crate::tree::Tree;
use onramp_queue::Packet;

fn classes(tree: &Setup) -> String {
    let mut out = Out::new(Style::default());
    Listed::new(None, tree, 1_514, []).classes(Query::default(), &mut out);
    out.finish()
}

#[test]
fn drr_and_qfq_have_a_class_0() {
    for (kind, options) in [("drr", "quantum 1514b"), ("qfq", "weight 1 maxpkt 1514")] {
        let add = format!("class add dev e parent 1: classid 1:0 {kind}");
        let mut tree = setup(&[&format!("qdisc add dev e root handle 1: {kind}"), &add]);
        assert_eq!(classes(&tree), format!("class {kind} 1: root {options} \n"));
        for again in ["parent 1: classid 1:", "parent root classid 1:0", "root"] {
            let error = told(&mut tree, &format!("class add dev e {again} {kind}"));
            assert!(error.contains("the class exists already"), "{again}: {error}");
        }
        // A line that names no class does not mean the class 0.
        let error = told(&mut tree, &format!("class add dev e parent 1: {kind}"));
        assert!(error.contains("expected `classid MAJOR:MINOR`"), "{error}");
        for line in [
            "class add dev e parent 1: classid 1:5 KIND",
            "class change dev e parent 1: classid 1:0 KIND",
            "class replace dev e parent 1: classid 1:0 KIND",
            "qdisc add dev e parent 1:0 handle 7: pfifo limit 7",
            "filter add dev e parent 1: protocol ip matchall flowid 1:5",
        ] {
            tree.apply(&line.replace("KIND", kind)).expect(line);
        }
        let five = format!("class {kind} 1:5 root {options} \n");
        assert_eq!(classes(&tree), format!("class {kind} 1: root leaf 7: {options} \n{five}"));
        let again = setup(&tree.lines().iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((again.lines(), classes(&again)), (tree.lines(), classes(&tree)));
        // The filter at `1:` belongs to the qdisc and does not hold the class.
        tree.apply("class del dev e classid 1:0").expect("nothing needs it");
        assert_eq!((classes(&tree), tree.spec(7)), (five, None));
    }
}

#[test]
fn htb_has_a_class_0_below_which_others_stand() {
    let rate = "htb rate 1mbit";
    let add = |class: &str| format!("class add dev e {class} {rate}");
    let mut tree = setup(&[
        "qdisc add dev e root handle 1: htb",
        &add("parent 1: classid 1:4"),
        &add("parent 1: classid 1:0"),
        &add("parent 1: classid 1:5"),
    ]);
    let heads = |tree: &Setup| {
        let text = classes(tree);
        let heads = text.lines().map(|line| line.split(" prio").next().expect("words"));
        heads.map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = ["class htb 1: root", "class htb 1:4 root", "class htb 1:5 parent 1:"];
    assert_eq!(heads(&tree), expected);
    let again = setup(&tree.lines().iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((again.lines(), heads(&again)), (tree.lines(), heads(&tree)));
    let error = told(&mut tree, &add("parent 1:5 classid 1:0"));
    assert!(error.contains("the class exists already"), "{error}");
    let error = told(&mut tree, &add("root classid 1:6"));
    assert!(error.contains("cannot add a class beside the class 1:"), "{error}");
    let error = told(&mut tree, "class del dev e classid 1:0");
    assert!(error.contains("the class has child classes"), "{error}");
    let error = told(&mut tree, "qdisc add dev e parent 1:0 handle 7: pfifo");
    assert!(error.contains("the class has child classes"), "{error}");
    for gone in ["1:4", "1:5", "1:0"] {
        tree.apply(&format!("class del dev e classid {gone}")).expect("nothing needs it");
    }
    assert_eq!(classes(&tree), "");
}

/// Returns how many bytes each class of the root of a running tree holds, after packets with these
/// priorities and of as many bytes came.
fn held(lines: &[&str], packets: &[(u32, u32)]) -> Vec<(u16, u64)> {
    let mut tree = Tree::of(&setup(lines), 1_514, 0).expect("a root");
    for &(priority, len) in packets {
        let mut pkt = Packet::new(len);
        pkt.priority = priority;
        assert_eq!(tree.enqueue(Instant(1), pkt), Verdict::Queued);
    }
    let views = tree.views();
    let classes = views[0].classes.iter();
    classes.map(|class| (class.handle.minor, class.backlog.bytes)).collect()
}

/// As recorded on Linux 7.2, the class 0 of an `htb` gets the packets that belong to no class,
/// because 0 is the default class. A packet whose priority is the handle belongs to no class.
#[test]
fn packets_go_to_the_class_0() {
    let htb = |class: &str| format!("class add dev e {class} htb rate 8mbit");
    let (zero, five) = (htb("parent 1: classid 1:0"), htb("parent 1: classid 1:5"));
    let packets = [(0, 100), (0x1_0000, 200), (0x1_0005, 400)];
    let root = "qdisc add dev e root handle 1: htb";
    assert_eq!(held(&[root, &five, &zero], &packets), [(5, 400), (0, 100)]);
    // If the class 0 has children, it takes no packets.
    assert_eq!(held(&[root, &zero, &five], &packets), [(0, 0), (5, 400)]);
    for kind in ["drr", "qfq"] {
        let add = |minor| format!("class add dev e parent 1: classid 1:{minor} {kind}");
        let root = format!("qdisc add dev e root handle 1: {kind}");
        let (five, zero) = (add(5), add(0));
        assert_eq!(held(&[&root, &five, &zero], &packets[1..]), [(5, 400), (0, 200)], "{kind}");
    }
}

#[test]
fn hfsc_counts_as_its_class_0() {
    let mut tree = setup(&["qdisc add dev e root handle 1: hfsc"]);
    let error = told(&mut tree, "class add dev e parent 1: classid 1:0 hfsc sc rate 1mbit");
    assert!(error.contains("the class exists already"), "{error}");
    for verb in ["change", "replace"] {
        let line = format!("class {verb} dev e parent 1: classid 1:0 hfsc sc rate 1mbit");
        let error = told(&mut tree, &line);
        assert!(error.contains("expected `classid MAJOR:MINOR`"), "{error}");
    }
}

/// The parent `1:0` names no class, unless a command added the class 0 or the qdisc counts as that
/// class. A qdisc with exactly one place for a child takes any number for that place.
#[test]
fn a_qdisc_stands_below_a_class_0_only_if_there_is_one() {
    let added = ["htb", "drr", "qfq"];
    let fixed = ["prio", "multiq bands 3", "ets bands 3", "mq"];
    for kind in added.into_iter().chain(fixed) {
        let mut tree = setup(&[&format!("qdisc add dev e root handle 1: {kind}")]);
        let before = tree.lines();
        for line in ["add dev e parent 1:0 handle 7:", "replace dev e parent 1:"] {
            let error = tree.apply(&format!("qdisc {line} pfifo")).expect_err(kind);
            let linux = error.fault.kernel_text();
            assert_eq!(linux.as_deref(), Some("Error: Specified class not found."), "{kind}");
        }
        assert_eq!(tree.lines(), before);
    }
    for kind in ["tbf rate 1mbit burst 10k latency 50ms", "netem"] {
        let root = format!("qdisc add dev e root handle 1: {kind}");
        let tree = setup(&[&root, "qdisc add dev e parent 1:0 handle 7: pfifo"]);
        assert_eq!(tree.qdisc_below(Handle::new(1, 1)), Some(7), "{kind}");
    }
}

#[test]
fn a_qdisc_stands_below_an_hfsc_without_classes() {
    const CHILD: &str = "qdisc add dev e parent 1:0 handle 7: pfifo limit 1";
    const CLASS: &str = "class add dev e parent 1: classid 1:5 hfsc sc rate 1mbit";
    let mut tree = setup(&["qdisc add dev e root handle 1: hfsc", CHILD]);
    assert_eq!(classes(&tree), "class hfsc 1: root leaf 7: \n");
    let lines = tree.lines();
    assert_eq!(setup(&lines.iter().map(String::as_str).collect::<Vec<_>>()).lines(), lines);

    // The second packet does not fit into the child.
    let mut running = Tree::of(&tree, 1_514, 0).expect("a root");
    assert_eq!(running.enqueue(Instant(1), Packet::new(100)), Verdict::Queued);
    assert_eq!(running.enqueue(Instant(1), Packet::new(100)), Verdict::Dropped);
    assert!(matches!(running.dequeue(Instant(1)), Dequeue::Ready(_)));

    // The first class takes the place of the child.
    tree.apply(CLASS).expect(CLASS);
    assert_eq!(tree.spec(7), None);
    let error = told(&mut tree, CHILD);
    assert!(error.contains("the class has child classes"), "{error}");
    tree.apply("class del dev e classid 1:5").expect("nothing needs it");
    tree.apply(CHILD).expect(CHILD);
    tree.apply("qdisc del dev e parent 1:0").expect("it is there");
    assert_eq!(classes(&tree), "class hfsc 1: root \n");
}

/// Ten packets to the class that the lines call `ZERO`, and ten to 1:5, leave at the same instants
/// whether that class is 1:0 or another one.
#[test]
fn a_class_0_of_htb_has_its_turn_as_any_other() {
    let leaf = "class add dev e parent 1:9 classid 1:5 htb rate 100kbit ceil 1mbit";
    let top = "class add dev e root classid 1:9 htb rate 1mbit";
    let cases: [&[&str]; 3] = [
        &["class add dev e root classid 1:ZERO htb rate 1mbit ceil 2mbit"],
        &[top, leaf, "class add dev e parent 1:9 classid 1:ZERO htb rate 100kbit ceil 1mbit"],
        &[
            top,
            leaf,
            "class add dev e parent 1:9 classid 1:8 htb rate 100kbit ceil 1mbit",
            "class add dev e parent 1:8 classid 1:ZERO htb rate 100kbit ceil 1mbit",
        ],
    ];
    for lines in cases {
        let left = ["0", "4"].map(|minor| {
            let qdisc = "qdisc add dev e root handle 1: htb default 6".to_owned();
            let filter =
                "filter add dev e parent 1: protocol all pref 1 handle 1 fw classid 1:ZERO";
            let lines = lines.iter().chain([&filter]).map(|line| line.replace("ZERO", minor));
            let lines: Vec<_> = [qdisc].into_iter().chain(lines).collect();
            instants(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        });
        assert_eq!(left[0], left[1], "{lines:?}");
        assert_eq!(left[0].len(), 20, "{lines:?}");
    }
}

/// Returns when each packet leaves the tree: ten packets with mark 1, and ten for class 1:5.
fn instants(lines: &[&str]) -> Vec<Instant> {
    let mut tree = Tree::of(&setup(lines), 1_514, 1).expect("a tree");
    let mut now = Instant(1_000);
    for (mark, priority) in [(1, 0), (0, 0x1_0005)] {
        for _ in 0..10 {
            let mut packet = Packet::new(1_000);
            (packet.mark, packet.priority) = (mark, priority);
            assert_eq!(tree.enqueue(now, packet), Verdict::Queued);
        }
    }
    let mut left = Vec::new();
    for _ in 0..1_000 {
        match tree.dequeue(now) {
            Dequeue::Ready(_) => left.push(now),
            Dequeue::NotBefore(at) => now = at,
            Dequeue::Empty => return left,
        }
    }
    panic!("the tree does not run empty");
}
