//! Tests the functions that read the description of a tree.

use super::super::*;
use super::{setup, told, with_facts};
use crate::base::params::Value;
use crate::sched::Verdict;
use onramp_queue::Packet;

const TREE: [&str; 8] = [
    "qdisc add dev e root handle 1: htb default 20",
    "class add dev e parent 1:0 classid 1:1 htb rate 1mbit",
    "class add dev e parent 1:1 classid 1:20 htb rate 500kbit ceil 1mbit",
    "class add dev e parent 1:1 classid 1:30 htb rate 500kbit",
    "qdisc add dev e parent 1:20 handle 20: fq_codel limit 100 flows 64",
    "qdisc add dev e parent 1:30 handle 30: prio",
    "qdisc add dev e parent 30:2 handle 40: pfifo limit 7",
    "filter add dev e parent 1: protocol ip pref 3 chain 0 handle 0x1 matchall classid 1:20",
];

#[test]
fn a_tree_is_its_lines() {
    let tree = setup(&TREE);
    let lines = tree.lines();
    // In the lines that `lines` returns, each class has its full handle, and a filter has all words
    // that the user left out.
    let expected = TREE.map(|line| line.replace("parent 1:0 ", "parent 1: "));
    assert_eq!(lines[..7], expected[..7]);
    assert!(lines[7].starts_with(&expected[7]), "{lines:?}");
    assert_eq!(lines.len(), 8);
    let alone = Setup::of("pfifo limit 5".parse().expect("right"));
    assert_eq!(alone.lines(), ["qdisc add dev any root handle 8001: pfifo limit 5"]);
    assert_eq!(
        (alone.root(), alone.root_id(), alone.device()),
        (Some(0x8001), Some("pfifo"), None)
    );
    assert!(Setup::default().lines().is_empty());
    let ingress = setup(&["qdisc add dev e clsact"]);
    assert_eq!(ingress.lines(), ["qdisc add dev e clsact"]);
}

#[test]
fn a_tree_knows_its_parts() {
    let tree = setup(&TREE);
    let class = |major, minor| Handle::new(major, minor);
    for (place, there) in [
        (class(1, 1), true),
        (class(1, 0x20), true),
        (class(1, 0x21), false),
        (class(0x30, 1), false),
        (class(7, 1), false),
    ] {
        assert_eq!(tree.has_class(place), there, "{place}");
    }
    let kinds = [1, 0x20, 0x30, 0x40, 2].map(|major| tree.kind_of(major));
    assert_eq!(kinds, [Some("htb"), Some("fq_codel"), Some("prio"), Some("pfifo"), None]);
    assert_eq!((tree.device(), tree.root(), tree.root_id()), (Some("e"), Some(1), Some("htb")));
    assert_eq!(tree.specs().count(), 4);
    let paths = [1, 0x20, 0x40].map(|major| tree.path(major));
    assert_eq!(paths, [vec![], vec![0x20], vec![0x30, 2]]);
    assert_eq!(tree.parent(0x40), Some(class(0x30, 2)));
    assert_eq!(tree.qdisc_below(class(0x30, 2)), Some(0x40));
    assert_eq!(tree.qdisc_below(class(0x30, 1)), None);
    assert_eq!(tree.children(1).collect::<Vec<_>>(), [(0x20, 0x20), (0x30, 0x30)]);
    let rows: Vec<_> = tree.class_rows(1).collect();
    assert_eq!(rows, [(1, None), (0x20, Some(1)), (0x30, Some(1))]);
    assert_eq!(tree.class_rows(0x30).count(), 0);
    let site = tree.site(1, 1_514, 0);
    let (above, values) = tree.class_values(class(1, 0x20), site).expect("it is there");
    assert_eq!((above, values.number("rate")), (1, 62_500));
    assert!(values.is_given("ceil") && !values.is_given("burst"));
    assert!(tree.class_values(class(1, 0x21), site).is_none());
    let of = |id: &str| -> Spec { id.parse().expect(id) };
    let counts =
        ["prio bands 5", "htb", "pfifo", "tbf rate 1mbit burst 5k limit 5k", "ets bands 3"]
            .map(|id| tree.fixed_classes(&of(id)));
    assert_eq!(counts, [5, 0, 0, 1, 3]);
    let queues = with_facts(Facts { queues: 6, ..Facts::default() });
    assert_eq!((queues.fixed_classes(&of("mq")), queues.fixed_classes(&of("prio"))), (6, 3));
}

/// Each qdisc of a tree makes other random choices: its seed is the tree's seed, with the upper
/// sixteen bits combined with the qdisc's major number by exclusive or.
#[test]
fn a_qdisc_knows_where_it_stands() {
    let site = |major, seed| Setup::default().site(major, 1_514, seed);
    let expected = Site {
        keeps_bytes: false,
        said: 0,
        mtu: 1_514,
        txqueuelen: 0,
        seed: 0x8003_0000_0000_1234,
        handle: Handle::new(0x8003, 0),
    };
    assert_eq!(site(0x8003, 0x1234), expected);
    assert_eq!(site(3, 0x0003_0000_0000_0000).seed, 0, "seeds that differ stay different");
    assert_eq!(site(3, 0x0001_0000_0000_0000).seed, 0x0002_0000_0000_0000);
}

#[test]
fn what_goes_takes_along_what_stands_below_it() {
    let mut tree = setup(&TREE);
    tree.apply("qdisc del dev e parent 1:30").expect("it is there");
    let taken = |handle: u16, kind, parent: Option<Handle>| Taken {
        handle: Handle::new(handle, 0),
        kind,
        parent,
    };
    let expected = [
        taken(0x30, "prio", Some(Handle::new(1, 0x30))),
        taken(0x40, "pfifo", Some(Handle::new(0x30, 2))),
    ];
    assert_eq!(tree.taken(), expected);
    assert_eq!((tree.kind_of(0x30), tree.kind_of(0x40)), (None, None));
    assert_eq!(tree.listed().collect::<Vec<_>>(), [0x20]);
    tree.apply("qdisc change dev e root htb").expect_err("htb does not change");
    assert!(tree.taken().is_empty());
    tree.apply("qdisc add dev e parent 1:30 handle 40: pfifo").expect("the number is free");
    assert!(tree.taken().is_empty());
    // Deleting the root also deletes its filters. They do not come back with a new qdisc that has
    // the same handle.
    tree.apply("qdisc del dev e root").expect("it is there");
    assert_eq!(tree.taken().len(), 3);
    assert_eq!((tree.root(), tree.specs().count(), tree.lines().len()), (None, 0, 0));
    for line in &TREE[..3] {
        tree.apply(line).expect(line);
    }
    assert_eq!(tree.lines(), setup(&TREE[..3]).lines());
    assert_eq!(tree.listed().count(), 0);
    // Replacing the root qdisc also deletes its filters. A later root qdisc with the same handle
    // does not get them back.
    let mut tree = setup(&TREE);
    tree.apply("qdisc replace dev e root handle 2: prio").expect("another");
    assert_eq!(tree.lines(), ["qdisc add dev e root handle 2: prio"]);
    tree.apply("qdisc replace dev e root handle 1: htb").expect("another");
    assert_eq!(tree.lines(), ["qdisc add dev e root handle 1: htb"]);
}

#[test]
fn a_class_that_gets_a_child_loses_its_qdisc() {
    for (kind, options) in [("htb", "htb rate 1mbit"), ("hfsc", "hfsc ls rate 1mbit")] {
        let lines = [
            format!("qdisc add dev e root handle 1: {kind}"),
            format!("class add dev e parent 1: classid 1:6 {options}"),
            "qdisc add dev e parent 1:6 handle 10: prio".into(),
            "qdisc add dev e parent 10:2 handle 20: pfifo limit 7".into(),
            format!("class add dev e parent 1:6 classid 1:7 {options}"),
        ];
        let mut tree = setup(&lines.each_ref().map(String::as_str));
        assert_eq!(tree.taken().len(), 2, "{options}");
        assert_eq!((tree.spec(0x10), tree.spec(0x20)), (None, None), "{options}");
        let lines = tree.lines();
        let again = setup(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(again.lines(), lines);
        tree.apply("qdisc add dev e parent 1:7 handle 10: pfifo").expect("the number is free");
    }
}

/// All filters of an `ingress` are stored under one handle, whatever parent the commands give.
/// Filters of a `clsact` are stored under two: for incoming and for outgoing packets.
#[test]
fn filters_stand_where_packets_come_in_and_go_out() {
    let filters = |tree: &Setup| {
        let lines = tree.lines().into_iter().filter(|line| line.starts_with("filter "));
        let place = |line: String| {
            let words: Vec<&str> = line.split(' ').collect();
            format!("{} pref {}", words[5], words[9])
        };
        lines.map(place).collect::<Vec<_>>().join(", ")
    };
    let add = |tree: &mut Setup, place: &str, pref: u16| {
        let line = format!("filter add dev e {place} protocol ip pref {pref} matchall action ok");
        tree.apply(&line).expect(&line);
    };
    let mut tree = setup(&["qdisc add dev e root handle 1: prio", "qdisc add dev e ingress"]);
    add(&mut tree, "parent 1:", 9);
    assert_eq!(filters(&tree), "1: pref 9");
    add(&mut tree, "parent ffff:", 1);
    assert_eq!(filters(&tree), "1: pref 9, ffff: pref 1");
    add(&mut tree, "parent ffff:fff2", 2);
    assert_eq!(filters(&tree), "1: pref 9, ffff:fff2 pref 1, ffff:fff2 pref 2");
    add(&mut tree, "parent 1:", 8);
    assert_eq!(filters(&tree), "1: pref 8, 1: pref 9, ffff:fff2 pref 1, ffff:fff2 pref 2");
    // When one of two filters of an `ingress` is deleted, the listing still shows the same parent
    // for the other filter.
    tree.apply("filter del dev e parent ffff: pref 1").expect("it is there");
    assert_eq!(filters(&tree), "1: pref 8, 1: pref 9, ffff:fff2 pref 2");
    tree.apply("qdisc del dev e ingress").expect("it is there");
    assert_eq!(filters(&tree), "1: pref 8, 1: pref 9");
    // A new `ingress` has none of the filters of the deleted one, and lists no filters.
    tree.apply("qdisc add dev e ingress").expect("again");
    assert_eq!(filters(&tree), "1: pref 8, 1: pref 9");
    tree.apply("qdisc del dev e ingress").expect("it is there");
    let mut tree = setup(&["qdisc add dev e root handle 1: prio", "qdisc add dev e clsact"]);
    add(&mut tree, "ingress", 1);
    add(&mut tree, "egress", 2);
    assert_eq!(filters(&tree), "ffff:fff2 pref 1, ffff:fff3 pref 2");
    // A filter for which the command gives no parent is at the root qdisc.
    add(&mut tree, "", 3);
    assert_eq!(filters(&tree), "1: pref 3, ffff:fff2 pref 1, ffff:fff3 pref 2");
    assert_eq!(tree.ingress_spec().map(|spec| spec.kind().id), Some("clsact"));
    let mut empty = Setup::default();
    let error = told(&mut empty, "filter add dev e protocol ip pref 1 matchall action ok");
    assert_eq!(error, r#"filter: unexpected "matchall": there is no root qdisc"#);
    assert_eq!(empty.device(), None);
}

/// The transmit queues of a link are its ports. Since each flow stays on one port, a `mqprio`,
/// which chooses the queue of a packet, is refused.
#[test]
fn nothing_chooses_among_ports() {
    let line = "qdisc add dev e root handle 1: mqprio num_tc 1 map 0 queues 1@0 hw 0";
    let mut tree = with_facts(Facts { queues: 2, ports: true, ..Facts::default() });
    let error = tree.apply(line).expect_err("ports");
    let why = "the transmit queues of a link are its ports, and a flow stays on its port, so a \
               qdisc cannot choose the queue; use mq, with prio or ets below its classes";
    assert_eq!(error.to_string(), format!("qdisc: illegal \"root\" \"mqprio\": {why}"));
    assert_eq!(error.fault, crate::base::Fault::Kernel(Errno::NotSupported, None));
    tree.apply("qdisc add dev e root handle 1: prio").expect("any other");
    let mut tree = with_facts(Facts { queues: 2, ..Facts::default() });
    tree.apply(line).expect("a device of another kind");
    assert_eq!(tree.for_ports().expect_err("mqprio").why, why);
}

/// A `multiq` has one band for each transmit queue if no number of bands is given.
#[test]
fn bands_are_queues() {
    for (queues, line, bands) in [
        (0, "multiq", None),
        (2, "multiq", Some(2)),
        (7, "multiq", Some(7)),
        (7, "multiq bands 3", Some(3)),
        (1, "multiq bands 3", Some(3)),
        (2, "prio", None),
    ] {
        let mut tree = with_facts(Facts { queues, ..Facts::default() });
        tree.apply(&format!("qdisc add dev e root handle 1: {line}")).expect(line);
        let spec = tree.spec(1).expect("it is there");
        let given = spec.is_given("bands").then(|| spec.values_anywhere().number("bands"));
        assert_eq!(given, bands, "{queues} {line}");
    }
    let mut tree = with_facts(Facts { queues: 1, ..Facts::default() });
    let error = told(&mut tree, "qdisc add dev e root multiq");
    let why = "the device has one transmit queue; expected the number of bands";
    assert_eq!(error, format!("qdisc: illegal \"root\" \"multiq\": {why}"));
    for kind in ["mq", "mqprio num_tc 1 map 0 queues 1@0 hw 0"] {
        let error = told(&mut tree, &format!("qdisc add dev e root {kind}"));
        assert!(
            error.ends_with(
                "the device has one transmit queue, and \
            mq needs several"
            ) || error.ends_with("and mqprio needs several"),
            "{error}"
        );
    }
}

/// Setting the quantum of a class of `ets` also sets the quantum of the bands before that class
/// that have none: to the size of the largest packet, or to one byte if that size is unknown.
#[test]
fn a_class_of_ets_has_a_quantum() {
    for (mtu, quanta) in [(1_514, [1_514, 1_514, 700]), (0, [1, 1, 700])] {
        let mut tree = with_facts(Facts { mtu, ..Facts::default() });
        tree.apply("qdisc add dev e root handle 1: ets bands 5 strict 2").expect("right");
        tree.apply("class change dev e classid 1:5 ets quantum 700").expect("the last one");
        let given = tree.spec(1).expect("it is there").given().to_vec();
        assert!(given.contains(&Some(Value::List(quanta.to_vec()))), "{mtu}: {given:?}");
        let change = tree.change("class change dev e classid 1:3 ets quantum 9");
        assert_eq!(change, Ok(Change::Parameters(1)));
        let mut quanta = quanta.to_vec();
        quanta[0] = 9;
        assert!(tree.spec(1).expect("it is there").given().contains(&Some(Value::List(quanta))));
        assert_eq!(tree.change("class change dev e classid 1:3 ets"), Ok(Change::Nothing));
    }
}

/// Builds the qdisc in front of each transmit queue, and recognizes each by the number of packets
/// that it accepts.
#[test]
fn each_queue_of_an_mq_has_its_own() {
    let takes = |tree: &Setup, queue: Option<usize>| {
        let mut qdisc = tree.build_queue(queue, 1_514, 0)?;
        let mut drops = PacketList::new();
        let mut cx = Cx::new(Instant(1), &mut drops);
        let all = (0..5).map(|_| qdisc.enqueue(Packet::new(100), &mut cx));
        Some(all.filter(|verdict| *verdict == Verdict::Queued).count())
    };
    let lines = [
        "qdisc add dev e root handle 1: mq",
        "qdisc add dev e parent 1:1 handle 10: pfifo limit 1",
        "qdisc add dev e parent 1:2 handle 20: prio",
        "qdisc add dev e parent 20:2 handle 21: pfifo limit 2",
    ];
    let mq = setup(&lines);
    assert!(mq.is_mq() && !mq.has_one_root());
    // The `prio` in front of the second queue puts packets of priority 0 into its second band,
    // whose limit is 2 packets.
    assert_eq!([0, 1, 2].map(|queue| takes(&mq, Some(queue))), [Some(1), Some(2), Some(5)]);
    assert_eq!(mq.path(0x21), [2, 2]);
    for (queue, path) in
        [(None, Some(vec![2, 2])), (Some(0), None), (Some(1), Some(vec![2])), (Some(2), None)]
    {
        assert_eq!(mq.path_in(0x21, queue), path);
    }
    assert_eq!(mq.path_in(1, Some(0)), None, "it stands in front of all");
    let prio = setup(&["qdisc add dev e root handle 1: pfifo limit 3"]);
    assert!(!prio.is_mq() && prio.has_one_root());
    assert_eq!(takes(&prio, Some(4)), Some(3));
    assert_eq!((takes(&prio, None), prio.path_in(1, Some(4))), (Some(3), Some(vec![])));
    // A `noqueue` accepts one packet, the one that the device does not take at once.
    for (fallback, takes_in, one) in
        [("pfifo limit 2", Some(2), true), ("mq", Some(5), false), ("noqueue", Some(1), false)]
    {
        let facts = Facts { fallback: fallback.parse().ok(), queues: 2, ..Facts::default() };
        let tree = with_facts(facts);
        assert_eq!(takes(&tree, Some(1)), takes_in, "{fallback}");
        assert_eq!(tree.has_one_root(), one, "{fallback}");
        assert!(tree.with_root().is_ok() && tree.for_ports().is_ok());
        assert_eq!((tree.root_id(), tree.is_mq()), (None, fallback == "mq"));
    }
    let none = Setup::default();
    assert_eq!(
        (takes(&none, None), takes(&none, Some(0)), none.has_one_root()),
        (None, None, false)
    );
    let error = none.with_root().expect_err("no root").to_string();
    assert_eq!(error, "qdisc: the tree has no root; add one: `qdisc add dev NAME root KIND`");
    assert!(none.for_ports().is_err());
}

/// An automatic handle is the lowest free one from 8001: on. The last is fffe:.
#[test]
fn handles_are_given_out_in_order() {
    let mut tree = setup(&["qdisc add dev e root handle 1: prio bands 16"]);
    let mut add = |class: u16, handle: &str| {
        let line = format!("qdisc add dev e parent 1:{class:x} {handle} pfifo");
        match tree.change(&line).expect(&line) {
            Change::Qdisc(major) => major,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(add(1, "handle 8003:"), 0x8003);
    assert_eq!([2, 3, 4, 5].map(|class| add(class, "")), [0x8001, 0x8002, 0x8004, 0x8005]);
    assert_eq!(add(6, "handle ffff:"), 0xFFFF);
    assert_eq!([7, 8].map(|class| add(class, "")), [0x8006, 0x8007]);
    for class in [2, 4] {
        tree.apply(&format!("qdisc del dev e parent 1:{class}")).expect("it is there");
    }
    let mut add = |class: u16| tree.change(&format!("qdisc add dev e parent 1:{class:x} pfifo"));
    assert_eq!([2, 4, 9].map(&mut add), [0x8001, 0x8004, 0x8008].map(|it| Ok(Change::Qdisc(it))));
}

/// The commands that change one tree into another contain only options that were given and whose
/// values differ.
#[test]
fn what_leads_from_one_tree_to_another() {
    let before = setup(&TREE);
    let with = |from: &str, to: &str| {
        let lines = TREE.map(|line| line.replace(from, to));
        setup(&lines.each_ref().map(String::as_str))
    };
    assert_eq!(before.changes_to(&before), Some(vec![]));
    for (from, to, change) in [
        (
            "limit 100 flows 64",
            "limit 200 flows 64",
            "qdisc change dev e parent 1:20 handle 20: fq_codel limit 200 flows 64",
        ),
        ("limit 7", "limit 8", "qdisc change dev e parent 30:2 handle 40: pfifo limit 8"),
        ("prio", "prio bands 4", "qdisc change dev e parent 1:30 handle 30: prio bands 4"),
        (
            "ceil 1mbit",
            "ceil 2mbit",
            "class change dev e parent 1:1 classid 1:20 htb rate 500kbit ceil 2mbit",
        ),
        // As in Linux, a change without `ceil` sets it back.
        (" ceil 1mbit", "", "class change dev e parent 1:1 classid 1:20 htb rate 500kbit"),
    ] {
        let after = with(from, to);
        assert_eq!(before.changes_to(&after), Some(vec![change.to_owned()]), "{to}");
    }
    for (from, to) in [
        // Each of the next two replacements removes the only option, or changes an option that can
        // only be given when the qdisc is added. No change command can do so, and the tree must be
        // replaced.
        (" limit 7", ""),
        ("flows 64", "flows 128"),
        // Each of the next five replacements changes a kind, a parent or a handle of a qdisc, the
        // parent of a class, or a filter. Here too the tree must be replaced.
        ("pfifo limit 7", "bfifo limit 7"),
        ("parent 30:2", "parent 30:3"),
        ("handle 40:", "handle 41:"),
        ("parent 1:1 classid 1:30", "parent 1: classid 1:30"),
        ("pref 3", "pref 4"),
    ] {
        assert_eq!(before.changes_to(&with(from, to)), None, "{to}");
    }
    let more = |line: &str| {
        let mut tree = before.clone();
        tree.apply(line).expect(line);
        tree
    };
    for line in [
        "qdisc add dev e parent 30:1 handle 50: pfifo",
        "qdisc del dev e parent 30:2",
        "class add dev e parent 1: classid 1:40 htb rate 1mbit",
        "qdisc add dev e clsact",
        "filter add dev e parent 1: protocol ip pref 4 matchall classid 1:20",
    ] {
        let other = more(line);
        assert_eq!((before.changes_to(&other), other.changes_to(&before)), (None, None), "{line}");
    }
    // If two qdiscs differ, their commands come in the order of the qdiscs' major numbers.
    let both = more("class change dev e classid 1:30 htb rate 600kbit");
    let mut both = both.clone();
    both.apply("qdisc change dev e handle 40: pfifo limit 9").expect("it is there");
    let expected = [
        "class change dev e parent 1:1 classid 1:30 htb rate 600kbit",
        "qdisc change dev e parent 30:2 handle 40: pfifo limit 9",
    ];
    assert_eq!(before.changes_to(&both).expect("parameters"), expected);
}

/// If a change reduces the number of bands, the qdiscs below the bands that no longer exist are
/// removed.
#[test]
fn bands_that_go_take_their_qdiscs_along() {
    let mut tree = setup(&[
        "qdisc add dev e root handle 1: prio bands 4 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
        "qdisc add dev e parent 1:2 handle 2: pfifo",
        "qdisc add dev e parent 1:3 handle 3: prio",
        "qdisc add dev e parent 3:1 handle 31: pfifo",
        "qdisc add dev e parent 1:4 handle 4: pfifo",
    ]);
    let map = "priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";
    tree.apply(&format!("qdisc change dev e root prio bands 3 {map}")).expect("one band less");
    assert_eq!(tree.children(1).collect::<Vec<_>>(), [(2, 2), (3, 3)]);
    tree.apply(&format!("qdisc change dev e root prio bands 2 {map}")).expect("one band less");
    assert_eq!(tree.children(1).collect::<Vec<_>>(), [(2, 2)]);
    assert_eq!(tree.taken().len(), 2);
}
