//! Tests that qdiscs and classes keep the defaults that the device gave them.

use super::super::*;
use super::{setup, with_facts};
use crate::base::params::Value;
use crate::base::show::{Out, Style};
use crate::tc::{Listed, Query};

fn facts(mtu: u32, txqueuelen: u32) -> Facts {
    Facts { mtu, txqueuelen, ..Facts::default() }
}

/// Creates a tree on a device with an mtu of 1,514 bytes and a `txqueuelen` of 1,000 packets.
fn on_device(lines: &[&str]) -> Setup {
    let mut tree = with_facts(facts(1_514, 1_000));
    lines.iter().for_each(|line| tree.apply(line).expect(line));
    tree
}

/// Returns what `tc qdisc show` prints for the qdisc `major`.
fn shown(tree: &Setup, major: u16) -> String {
    let mut out = Out::new(Style::default());
    let query = Query { handle: Some(major.into()), ..Query::default() };
    Listed::new(None, tree, tree.facts().mtu, []).qdiscs(query, &mut out);
    out.finish().trim_end().to_owned()
}

/// Returns the value that the option `key` of a class has.
fn of_class(tree: &Setup, class: Handle, key: &str) -> u64 {
    let site = tree.site(class.major, tree.facts().mtu, 0);
    tree.class_values(class, site).expect("it is there").1.number(key)
}

/// On Linux 7.2, a device got an mtu of 9,000 bytes and a `txqueuelen` of 50 after these qdiscs had
/// been added. `tc qdisc show` then listed the second column of this table. A qdisc of the same
/// kind that was added afterwards is listed as the third column says.
const KINDS: [(&str, &str, &str); 8] = [
    ("bfifo", "limit 1514000b", "limit 450700b"),
    ("pfifo", "limit 1000p", "limit 50p"),
    ("pfifo_head_drop", "limit 1000p", "limit 50p"),
    ("fq", "quantum 3028b initial_quantum 15140b", "quantum 18028b initial_quantum 90140b"),
    ("sfq", "quantum 1514b", "quantum 9014b"),
    ("fq_codel", "quantum 1514 ", "quantum 9014 "),
    ("fq_pie", "quantum 1514b", "quantum 9014b"),
    ("ets bands 3", "quanta 1514 1514 1514", "quanta 9014 9014 9014"),
];

#[test]
fn qdiscs_keep_what_the_device_gave_them() {
    for (kind, before, after) in KINDS {
        let add = format!("qdisc add dev e root handle 1: {kind}");
        let mut tree = on_device(&[&add]);
        assert!(shown(&tree, 1).contains(before), "{}", shown(&tree, 1));
        // A new name changes nothing, and a description that stays the same keeps its lines.
        let lines = tree.lines();
        tree.device_changed("e", facts(1_514, 1_000));
        assert_eq!(tree.lines(), lines, "{kind}");
        tree.device_changed("e", facts(9_014, 50));
        assert!(shown(&tree, 1).contains(before), "{}", shown(&tree, 1));
        // The lines make the same tree on the new device.
        let mut again = with_facts(facts(9_014, 50));
        tree.lines().iter().for_each(|line| again.apply(line).expect(line));
        assert_eq!(shown(&again, 1), shown(&tree, 1));
        tree.apply(&add.replace("add", "replace").replace("1:", "2:")).expect("it may");
        assert!(shown(&tree, 2).contains(after), "{}", shown(&tree, 2));
    }
}

#[test]
fn a_change_leaves_what_the_device_gave() {
    let mut tree = on_device(&[
        "qdisc add dev e root handle 1: drr",
        "class add dev e parent 1: classid 1:1 drr",
        "class add dev e parent 1: classid 1:2 drr",
        "qdisc add dev e parent 1:1 handle 2: fq",
        "qdisc add dev e parent 1:2 handle 3: ets bands 2",
    ]);
    tree.device_changed("e", facts(9_014, 1_000));
    tree.apply("qdisc change dev e parent 1:1 handle 2: fq limit 5").expect("it may");
    assert!(shown(&tree, 2).contains("limit 5p") && shown(&tree, 2).contains(" quantum 3028b"));
    // As in Linux, a change of an `ets` sets all quanta anew.
    tree.apply("qdisc change dev e parent 1:2 handle 3: ets bands 2").expect("it may");
    assert!(shown(&tree, 3).contains("quanta 9014 9014"), "{}", shown(&tree, 3));
}

#[test]
fn classes_keep_what_the_device_gave_them() {
    for (kind, key) in [("drr", "quantum"), ("qfq", "maxpkt")] {
        let add = |minor: u16| format!("class add dev e parent 1: classid 1:{minor:x} {kind}");
        let root = format!("qdisc add dev e root handle 1: {kind}");
        let mut tree = on_device(&[&root, &add(1)]);
        tree.device_changed("e", facts(9_014, 1_000));
        tree.apply(&add(2)).expect("it may");
        let sizes = [1, 2].map(|minor| of_class(&tree, Handle::new(1, minor), key));
        assert_eq!(sizes, [1_514, 9_014], "{kind}");
    }
}

/// `htb` takes only the length of its queue of direct packets from the device: the quantum of a
/// class follows from its rate.
#[test]
fn htb_keeps_its_direct_queue() {
    let class = "class add dev e parent 1: classid 1:1 htb rate 8mbit";
    let mut tree = on_device(&["qdisc add dev e root handle 1: htb", class]);
    let (before, rows) = (shown(&tree, 1), tree.lines()[1].clone());
    tree.device_changed("e", facts(9_014, 50));
    assert!(before.contains("direct_qlen 1000"), "{before}");
    assert_eq!((shown(&tree, 1), &tree.lines()[1]), (before, &rows));
    tree.apply("qdisc replace dev e root handle 2: htb").expect("it may");
    assert!(shown(&tree, 2).contains("direct_qlen 50"), "{}", shown(&tree, 2));
}

/// A `pfifo_fast` in front of a transmit queue follows the device, and one below a class does not.
#[test]
fn a_pfifo_fast_follows_in_front_of_a_queue() {
    let given = |tree: &Setup, major| tree.spec(major).expect("there").is_given("txqueuelen");
    let changed = |lines: &[&str]| {
        let mut tree = on_device(lines);
        tree.facts.queues = 2;
        tree.device_changed("e", Facts { queues: 2, ..facts(1_514, 50) });
        tree
    };
    let tree = changed(&["qdisc add dev e root handle 1: pfifo_fast"]);
    let length = |tree: &Setup, queue| {
        tree.front(queue, 1_514, 0).map(|(spec, site)| spec.values_at(site).number("txqueuelen"))
    };
    assert_eq!((given(&tree, 1), length(&tree, None)), (false, Some(50)));
    let below = "qdisc add dev e parent 1:1 handle 2: pfifo_fast";
    let tree = changed(&["qdisc add dev e root handle 1: prio", below]);
    assert_eq!((given(&tree, 2), length(&tree, None)), (true, None));
    assert_eq!(tree.spec(2).expect("there").values_anywhere().number("txqueuelen"), 1_000);
    let other = "qdisc add dev e parent 1:2 handle 3: pfifo";
    let tree = changed(&["qdisc add dev e root handle 1: mq", below, other]);
    assert!(!given(&tree, 2) && tree.spec(3).expect("there").is_given("limit"));
    assert_eq!([0, 1].map(|queue| length(&tree, Some(queue))), [Some(50), None]);
    let tree = changed(&["qdisc add dev e root handle 1: mq"]);
    assert_eq!([0, 1].map(|queue| length(&tree, Some(queue))), [Some(50); 2]);
}

/// A reloaded configuration gives a qdisc the values that the text describes, and leaves a qdisc
/// alone that has these values already.
#[test]
fn values_decide_whether_a_tree_changes() {
    let add = "qdisc add dev e root handle 1: fq";
    let mut kept = on_device(&[add]);
    kept.device_changed("e", facts(9_014, 1_000));
    let mut back = kept.clone();
    back.device_changed("e", facts(1_514, 1_000));
    assert_eq!(back.changes_to(&on_device(&[add])), Some(Vec::new()));
    assert_eq!(on_device(&[add]).changes_to(&back), Some(Vec::new()));
    let mut anew = with_facts(facts(9_014, 1_000));
    anew.apply(add).expect("it may");
    // The options of `kept` are gone, and the defaults are others.
    assert_eq!(kept.changes_to(&anew), None);
    let line = "qdisc change dev e root handle 1: fq quantum 3028 initial_quantum 15140";
    assert_eq!(anew.changes_to(&kept), Some(vec![line.to_owned()]));
}

/// A description that was made before anything was known of a device gets the device's values.
#[test]
fn a_device_that_is_not_known_gives_nothing() {
    let mut tree = setup(&["qdisc add dev e root handle 1: fq"]);
    tree.device_changed("e", facts(9_014, 50));
    assert!(!tree.spec(1).expect("there").is_given("quantum"));
    tree.of_device("f", facts(1_514, 50));
    assert!(!tree.spec(1).expect("there").is_given("quantum"), "another device");
    assert_eq!(
        tree.spec(1).expect("there").values(1_514).get("quantum"),
        Some(Value::Number(3_028))
    );
}

/// A default qdisc that stands at the root stays there, unless the device has never been up.
#[test]
fn a_default_qdisc_stays() {
    let with = |fallback: &str, dormant| Facts {
        fallback: fallback.parse().ok(),
        dormant,
        ..facts(1_514, 1_000)
    };
    let default = |tree: &Setup| tree.facts().fallback.as_ref().map(|spec| spec.kind().id);
    let mut tree = Setup::default();
    for (fallback, dormant, is_new, now) in [
        ("noqueue", true, true, "noqueue"),
        ("pfifo_fast", true, true, "pfifo_fast"),
        ("noqueue", false, true, "noqueue"),
        ("pfifo_fast", false, false, "noqueue"),
        ("noqueue", false, false, "noqueue"),
        ("mq", false, false, "noqueue"),
    ] {
        assert_eq!(tree.device_changed("e", with(fallback, dormant)), is_new, "{fallback}");
        assert_eq!(default(&tree), Some(now), "{fallback}");
    }
    tree.apply("qdisc add dev e root fq").expect("there is no root");
    assert_eq!(default(&tree), Some("mq"));
    assert!(!tree.device_changed("e", with("pfifo_fast", false)), "a root is there");
    tree.apply("qdisc del dev e root").expect("there is a root");
    assert_eq!(default(&tree), Some("pfifo_fast"));
}
