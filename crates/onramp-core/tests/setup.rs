//! Trees from lines of `tc`, built and changed while they run.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};

const NOW: Instant = Instant(1_000);

const PRIO: [&str; 4] = [
    "tc qdisc add dev eth0 root handle 1: prio bands 3",
    "tc qdisc add dev eth0 parent 1:1 handle 11: pfifo limit 2",
    "# a comment",
    "tc qdisc add dev eth0 parent 1:2 handle 12: prio   # below another",
];

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    setup
}

fn tree(lines: &[&str]) -> Tree {
    Tree::of(&setup(lines), 1514, 0).expect("a root")
}

fn packet(cookie: u64, priority: u32) -> Packet {
    let mut pkt = Packet::new(100);
    (pkt.cookie, pkt.priority) = (cookie, priority);
    pkt
}

fn out(tree: &mut Tree) -> Vec<u64> {
    let next = || match tree.dequeue(NOW) {
        Dequeue::Ready(pkt) => Some(pkt.cookie),
        _ => None,
    };
    std::iter::from_fn(next).collect()
}

/// Each `>` is typed behind the lines above, and answered by what follows.
const MISTAKES: &str = r#"
> qdisc add dev eth0 root pfifo
qdisc: "root": 1: is there already; use replace
> qdisc add dev eth1 root pfifo
qdisc: illegal "dev" "eth1": there is one device, and lines before named it eth0
> qdisc add dev eth0 parent 1:4 pfifo
qdisc: illegal "parent" "1:4": its classes are 1:1 to 1:3
> qdisc add dev eth0 parent 2:1 pfifo
qdisc: illegal "parent" "2:1": there is no qdisc 2:
> qdisc add dev eth0 parent 11:1 pfifo
qdisc: illegal "parent" "11:1": pfifo has no classes
> qdisc add dev eth0 parent 1:3 handle 11: pfifo
qdisc: illegal "handle" "11:": a qdisc of the tree has this handle already
> qdisc add dev eth0 parent 1:3 handle 11:2 pfifo
qdisc: illegal "handle" "11:2": expected a qdisc's handle such as 1:, hexadecimal, 1: to ffff:
> qdisc add dev eth0 parent one pfifo
qdisc: illegal "parent" "one": expected a handle such as 1: or 1:20, hexadecimal, 1 to ffff
> qdisc add dev eth0 pfifo
qdisc: what is "pfifo"? expected `root` or `parent MAJOR:MINOR`
> qdisc add root pfifo
qdisc: what is "root"? expected `dev NAME`
> qdisc change dev eth0 parent 1:3 pfifo
qdisc: "parent 1:3": no qdisc is there; use add
> qdisc change dev eth0 parent 1:1 fq
qdisc: "fq": a qdisc cannot change its kind; use replace
> qdisc replace dev eth0 parent 1:1 pfifo limit many
qdisc pfifo: illegal "limit" "many": expected a number such as 100 or 1k, 0 to 4294967295 packets
> qdisc add dev eth0 root handle 1: prio bands 17
qdisc: "root": 1: is there already; use replace
> qdisc replace dev eth0 root handle 1: prio bands 17
qdisc prio: illegal "bands" "17": expected a whole number, 2 to 16
> qdisc replace dev eth0 root handle 1: prio bands 2
qdisc prio: "priomap": it names band 2: there are 2, 0 to 1
> qdisc show dev eth0
qdisc: what is "show"? expected add, replace, change or delete
> qdisc replace dev eth0 root parent 1:1 pfifo
qdisc: "parent": expected one place, root or a parent
> qdisc replace dev eth0 root handle 1: handle 2: pfifo
qdisc: "handle": given twice
> class add dev eth0 parent 1: classid 1:1 classid 1:2 prio
class: "classid": given twice
> class add dev eth0 root parent 1: classid 1:1 prio
class: "parent": given twice
> class del dev eth0 classid 3:1
class 3:1: there is no qdisc 3:
> class add dev eth0 parent 1: classid 1:1 prio
class 1:1: illegal "classid" "1:1": the classes of prio follow from its parameters
> class add dev eth0 parent 1: classid 3:1 prio
class 3:1: illegal "classid" "3:1": there is no qdisc 3:
> class add dev eth0 parent 1: prio
class: "classid": expected `classid MAJOR:MINOR`
> link add dev eth0 root
tc: what is "link"? expected qdisc, class or filter
> link set eth0 up
tc: what is "link"? expected qdisc, class or filter
> filter add dev eth0 parent 7: matchall classid 7:1
filter: illegal "parent" "7:": there is no qdisc 7:
"#;

#[test]
fn mistakes_name_the_word_and_change_nothing() {
    let mut setup = setup(&PRIO);
    let mut tree = Tree::of(&setup, 1514, 0).expect("a root");
    let before = format!("{setup:?}");
    let mut lines = MISTAKES.trim().lines();
    while let (Some(typed), Some(answer)) = (lines.next(), lines.next()) {
        let typed = typed.strip_prefix('>').expect("typed lines are marked").trim();
        let error = setup.apply(typed).expect_err(typed);
        assert_eq!(error.to_string(), answer, "{typed}");
        assert_eq!(tree.apply(NOW, typed).expect_err(typed), error);
        assert_eq!(format!("{setup:?}"), before, "{typed}");
    }
    let gone = tree.apply(NOW, "qdisc del dev eth0 root").expect_err("no root is left");
    assert_eq!(gone.to_string(), r#"qdisc: "root": a tree has a root; replace it"#);
    assert!(tree.apply(NOW, "qdisc del dev eth0 parent 1:1").is_ok());
}

#[test]
fn a_line_that_is_wrong_names_no_device() {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev eth1 root best").expect_err("no such kind");
    setup.apply("qdisc add dev eth0 root pfifo").expect("the first line that is right");
    let error = setup.apply("qdisc replace dev eth1 root pfifo").expect_err("another device");
    assert!(error.to_string().ends_with("lines before named it eth0"), "{error}");
}

#[test]
fn packets_go_to_the_class_that_their_priority_names() {
    let mut tree = tree(&PRIO);
    // The third band, the inner prio's second and first, the first band twice; the third does not
    // fit. A priority of the inner qdisc means nothing to the root, whose band 0 it goes to then.
    for (cookie, priority) in [0x1_0003, 0x1_0002, 0x1_0001, 0x1_0001, 0x1_0001].iter().enumerate()
    {
        let _ = tree.enqueue(NOW, packet(cookie as u64, *priority));
    }
    assert_eq!(tree.drops().map(|pkt| pkt.cookie).collect::<Vec<_>>(), [4]);
    assert_eq!(tree.backlog().packets, 4);
    assert_eq!(out(&mut tree), [2, 3, 1, 0]);
    assert_eq!((tree.backlog().packets, tree.backlog().bytes), (0, 0));
}

#[test]
fn a_grafted_qdisc_takes_the_place_of_one_whose_packets_die() {
    let mut tree = tree(&PRIO);
    for cookie in 0..2 {
        let _ = tree.enqueue(NOW, packet(cookie, 0x1_0001));
        let _ = tree.enqueue(NOW, packet(cookie + 2, 0x1_0003));
    }
    tree.apply(NOW, "qdisc replace dev eth0 parent 1:1 handle 13: fq").expect("fq fits");
    let purged: Vec<_> = tree.drops().map(|pkt| (pkt.cookie, pkt.drop_reason)).collect();
    assert_eq!(purged, [0, 1].map(|cookie| (cookie, Some(DropReason::Purged))));
    assert_eq!((tree.backlog().packets, tree.totals().dropped(DropReason::Purged)), (2, 2));
    let _ = tree.enqueue(NOW, packet(9, 0x1_0001));
    assert_eq!(out(&mut tree), [9, 2, 3]);
}

#[test]
fn a_qdisc_below_another_is_reached_through_both() {
    let mut tree = tree(&PRIO);
    tree.apply(NOW, "qdisc add dev eth0 parent 12:1 handle 20: pfifo limit 1").expect("a leaf");
    tree.apply(NOW, "filter add dev eth0 parent 1: matchall classid 1:2").expect("a filter");
    // All go to the inner prio, whose band 0 is for priority 6.
    for cookie in 0..3 {
        let _ = tree.enqueue(NOW, packet(cookie, 6));
    }
    assert_eq!(tree.drops().count(), 2);
    tree.apply(NOW, "qdisc change dev eth0 parent 12:1 handle 20: pfifo limit 3").expect("room");
    for cookie in 3..6 {
        let _ = tree.enqueue(NOW, packet(cookie, 6));
    }
    assert_eq!(tree.drops().map(|pkt| pkt.cookie).collect::<Vec<_>>(), [5], "it kept packet 0");
    assert_eq!(tree.backlog().packets, 3);
    tree.apply(NOW, "qdisc del dev eth0 parent 1:2").expect("it was there");
    assert_eq!((tree.drops().count(), tree.backlog().packets), (3, 0));
}

/// As in Linux: such a qdisc has one child, wherever it is said to stand.
#[test]
fn a_place_for_one_child_is_found_by_any_number() {
    for kind in [
        "tbf rate 1mbit burst 3kb limit 9kb",
        "netem delay 1ms",
        "red limit 60kb avpkt 1000",
        "cbs idleslope 8000 sendslope -2000 hicredit 459 locredit -1071",
    ] {
        let root = format!("qdisc add dev e root handle 1: {kind}");
        for place in ["1:", "1:1", "1:5"] {
            let mut setup = setup(&[&root, &format!("qdisc add dev e parent {place} pfifo")]);
            let again = setup.apply("qdisc add dev e parent 1:1 handle 3: pfifo");
            assert!(again.is_err(), "{kind}: a second child");
            let limit = format!("qdisc change dev e parent {place} pfifo limit 1");
            setup.apply(&limit).unwrap_or_else(|error| panic!("{kind}, {place}: {error}"));
        }
    }
}

/// What would take minutes if a line took time for each before it.
#[test]
fn a_tree_may_be_as_large_as_its_numbers_allow() {
    let mut broad = setup(&["qdisc add dev e root handle 1: htb"]);
    let mut apply = |line: String| broad.apply(&line).expect(&line);
    for minor in 1..=u16::MAX {
        apply(format!("class add dev e parent 1: classid 1:{minor:x} htb rate 1mbit"));
    }
    for minor in 1..0x7ffe {
        apply(format!("qdisc add dev e parent 1:{minor:x} pfifo limit 1"));
    }
    let error = broad.apply("qdisc add dev e parent 1:9000 pfifo").map(|()| "no error");
    assert!(error.is_ok(), "{error:?}");
    let error = broad.apply("qdisc add dev e parent 1:9001 pfifo").expect_err("no handle is left");
    assert_eq!(error.to_string(), "qdisc: no handle is left: the tree has 32,766 qdiscs");
    let mut tree = Tree::of(&broad, 1514, 0).expect("a root");
    for (cookie, minor) in [(1, 1), (2, 0x7ffd), (3, 0xffff)] {
        let _ = tree.enqueue(NOW, packet(cookie, 1 << 16 | minor));
    }
    let mut left = out(&mut tree);
    left.sort_unstable();
    assert_eq!(left, [1, 2, 3]);

    let mut deep = setup(&["qdisc add dev e root handle 1: hfsc default 2710"]);
    for minor in 1..=10_000 {
        let above = if minor == 1 { String::new() } else { format!("{:x}", minor - 1) };
        let place = format!("parent 1:{above} classid 1:{minor:x}");
        deep.apply(&format!("class add dev e {place} hfsc ls rate 1mbit")).expect(&place);
    }
    let mut tree = Tree::of(&deep, 1514, 0).expect("a root");
    let _ = tree.enqueue(NOW, packet(7, 0));
    assert_eq!(out(&mut tree), [7]);
}

#[test]
fn handles_and_classes_that_went_come_again() {
    let mut setup = setup(&[
        "qdisc add dev e root handle 1: htb",
        "class add dev e parent 1: classid 1:1 htb rate 1mbit",
        "class add dev e parent 1:1 classid 1:2 htb rate 1mbit",
        "class add dev e parent 1: classid 1:3 htb rate 1mbit",
        "qdisc add dev e parent 1:2 pfifo",
        "qdisc add dev e parent 1:3 pfifo",
    ]);
    let before = format!("{setup:?}");
    let error = setup.apply("class del dev e classid 1:1").expect_err("a class stands below it");
    assert_eq!(error.to_string(), "class 1:1: classes stand below it");
    for line in [
        "class del dev e classid 1:2",
        "qdisc del dev e parent 1:3",
        "class del dev e classid 1:3",
        "class add dev e parent 1:1 classid 1:2 htb rate 1mbit",
        "class add dev e parent 1: classid 1:3 htb rate 1mbit",
        "qdisc add dev e parent 1:2 pfifo",
        "qdisc add dev e parent 1:3 pfifo",
    ] {
        setup.apply(line).expect(line);
    }
    assert_eq!(format!("{setup:?}"), before);
    setup.apply("class del dev e classid 1:2").expect("a leaf");
    setup.apply("class del dev e classid 1:1").expect("a leaf now");
    let tree = Tree::of(&setup, 1514, 0).expect("a root");
    assert_eq!(tree.backlog().packets, 0);
}
