//! Trees of qdiscs that are described by lines of `tc`, built, and changed while they run.

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, Query};
use onramp_core::{ConfigError, Facts, Instant, Setup, Tree};
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

/// A script of `tc` lines and of the answers to them. A line after `>` is applied after all lines
/// above it. Below each line are our error message, the exit status of `tc`, and the message of
/// Linux.
const MISTAKES: &str = r#"
> qdisc add dev eth0 root prio
qdisc: "root": 1: is there already; use replace
2 Error: Exclusivity flag on, cannot modify.
> qdisc add dev eth0 root handle 2: pfifo
qdisc: illegal "root" "2:": 1: is there already; use replace
2 Error: NLM_F_REPLACE needed to override.
> qdisc add dev eth1 root pfifo
qdisc: illegal "dev" "eth1": expected eth0, the only device, as named in an earlier line
1
> qdisc add dev eth0 parent 1:4 pfifo
qdisc: illegal "parent" "1:4": its classes are 1:1 to 1:3
2 Error: Specified class not found.
> qdisc add dev eth0 parent 2:1 pfifo
qdisc: illegal "parent" "2:1": there is no qdisc 2:
2 Error: Failed to find specified qdisc.
> qdisc add dev eth0 parent 11:1 pfifo
qdisc: illegal "parent" "11:1": pfifo has no classes
2 Error: Parent qdisc is not classful.
> qdisc add dev eth0 parent 1:3 handle 11: pfifo
qdisc: illegal "handle" "11:": this qdisc is elsewhere; delete it, and add a new one here
2 Error: Cannot move an existing qdisc to a different parent.
> qdisc add dev eth0 root handle 10000: pfifo
qdisc: illegal "handle" "10000:": expected a qdisc's handle such as 1:, hexadecimal, 1: to ffff:
255
> qdisc add dev eth0 parent one pfifo
qdisc: illegal "parent" "one": expected root, a class such as 1:20, hexadecimal, or a qdisc: 1:
255
> qdisc add dev eth0 pfifo
qdisc: expected `root` or `parent MAJOR:MINOR`, or the handle of a qdisc
2 Error: Handle cannot be zero.
> qdisc add root pfifo
qdisc: "dev": expected `dev NAME`
2 RTNETLINK answers: No such device
> qdisc change dev eth0 parent 1:3 pfifo
qdisc: "parent 1:3": no qdisc is there; use add
2 Error: Qdisc not found. To create specify NLM_F_CREATE flag.
> qdisc link dev eth0 parent 1:3 handle 11:
qdisc: illegal "handle" "11:": this qdisc is elsewhere; delete it, and add a new one here
2 Error: Cannot move an existing qdisc to a different parent.
> qdisc replace dev eth0 parent 1:3 handle 11: pfifo
qdisc: illegal "handle" "11:": this qdisc is elsewhere; delete it, and add a new one here
2 Error: Cannot move an existing qdisc to a different parent.
> qdisc replace dev eth0 root handle 1: pfifo
qdisc: illegal "root" "pfifo": a prio is there; use replace with another handle
2 Error: Invalid qdisc name: must match existing qdisc.
> qdisc change dev eth0 root handle 7: prio
qdisc: illegal "root" "7:": 1: is there already; use replace
2 Error: NLM_F_REPLACE needed to override.
> qdisc replace dev eth0 parent 1:1 pfifo limit many
qdisc pfifo: illegal "limit" "many": expected a number such as 100 or 1k, 0 to 4294967295 packets
1
> qdisc add dev eth0 root handle 1: prio bands 17
qdisc prio: illegal "bands" "17": expected a whole number, 2 to 16
2 RTNETLINK answers: Invalid argument
> qdisc replace dev eth0 root handle 1: prio bands 17
qdisc prio: illegal "bands" "17": expected a whole number, 2 to 16
2 RTNETLINK answers: Invalid argument
> qdisc replace dev eth0 root handle 1: prio bands 2
qdisc prio: "priomap": there is no band 2: the bands are 0 to 1
2 RTNETLINK answers: Invalid argument
> qdisc replace dev eth0 parent 1:1 mq
qdisc: illegal "parent 1:1" "mq": mq can only be the root, because its classes are transmit queues
2 RTNETLINK answers: Operation not supported
> qdisc best dev eth0
qdisc: unexpected "best": expected add, replace, change or delete
255
> qdisc replace dev eth0 root parent 1:1 pfifo
qdisc: "parent": expected one place: root, parent CLASS, ingress or clsact
255
> qdisc replace dev eth0 root handle 1: handle 2: pfifo
qdisc: "handle": given twice
255
> qdisc replace dev eth0 root handle
qdisc: "handle": the value is missing at the end of the line
255
> qdisc del dev eth0 root handle 2:
qdisc: illegal "root" "2:": the qdisc there is 1:
2 Error: Invalid handle.
> qdisc del dev eth0 root pfifo
qdisc: illegal "root" "pfifo": a prio is there; use replace with another handle
2 Error: Invalid qdisc name: must match existing qdisc.
> qdisc del dev eth0 parent 1:3
qdisc: "parent 1:3": there is no qdisc to delete
2 Error: Cannot delete qdisc with handle of zero.
> qdisc del dev eth0 parent 5:1
qdisc: illegal "parent" "5:1": there is no qdisc 5:
2 Error: Failed to find qdisc with specified classid.
> qdisc del dev eth0 handle 7:
qdisc: illegal "handle" "7:": there is no such qdisc
2 Error: Failed to find qdisc with specified handle.
> qdisc del dev eth0 handle 11:
qdisc: "parent": expected the place of the qdisc: root or parent CLASS
2 Error: Classid cannot be zero.
> qdisc del dev eth0 ingress
qdisc: "parent ffff:fff1": there is none
2 Error: Cannot find specified qdisc on specified device.
> class add dev eth0 parent 1: classid 1:1 classid 1:2 drr
class: "classid": given twice
255
> class add dev eth0 root parent 1: classid 1:1 drr
class: "parent": given twice
255
> class add dev eth0 parent 1: classid zz drr
class: illegal "classid" "zz": expected root, a class such as 1:20, hexadecimal, or a qdisc: 1:
255
> class del dev eth0 classid 3:1
class 3:1: there is no qdisc 3:
2 RTNETLINK answers: No such file or directory
> class del dev eth0 classid 1:1
class 1:1: classes of prio cannot be added or deleted, because its parameters determine them
2 RTNETLINK answers: Operation not supported
> class del dev eth0 classid 1:7
class 1:7: there is no such class
2 RTNETLINK answers: No such file or directory
> class add dev eth0 parent 1: classid 1:1 prio
class: unexpected "prio": classes can be added only to qdiscs of the kinds htb, drr, qfq, hfsc
1
> class add dev eth0 parent 1: classid 1:9 drr
class 1:9: classes of prio cannot be added or deleted, because its parameters determine them
2 RTNETLINK answers: Operation not supported
> class add dev eth0 parent 1: classid 3:1 drr
class: illegal "parent" "1:": expected a parent that belongs to qdisc 3:
2 RTNETLINK answers: Invalid argument
> class add dev eth0 parent 1: drr
class 1:: classes of prio cannot be added or deleted, because its parameters determine them
2 RTNETLINK answers: Operation not supported
> class add dev eth0 parent 1: classid ffff:ffff drr
class: illegal "parent" "1:": expected a parent that belongs to qdisc ffff:
2 RTNETLINK answers: Invalid argument
> link add dev eth0 root
tc: unexpected "link": expected qdisc, class or filter
255
> filter add dev eth0 parent 7: matchall classid 7:1
filter: illegal "parent" "7:": there is no qdisc 7:
2 Error: Parent Qdisc doesn't exists.
"#;

fn answer(error: &ConfigError) -> String {
    let linux = error.fault.kernel_text().unwrap_or_default();
    format!("{error}\n{} {linux}", error.fault.code()).trim_end().to_owned()
}

#[test]
fn mistakes_name_the_word_and_change_nothing() {
    let mut setup = setup(&PRIO);
    let mut tree = Tree::of(&setup, 1514, 0).expect("a root");
    let before = format!("{setup:?}");
    for case in MISTAKES.trim().split("> ").skip(1) {
        let (typed, answered) = case.trim_end().split_once('\n').expect("two lines at least");
        let error = setup.apply(typed).expect_err(typed);
        assert_eq!(answer(&error), answered, "{typed}");
        assert_eq!(tree.apply(NOW, typed).expect_err(typed), error);
        assert_eq!(format!("{setup:?}"), before, "{typed}");
    }
    let gone = tree.apply(NOW, "qdisc del dev eth0 root").expect_err("no root is left");
    assert_eq!(gone.to_string(), r#"qdisc: "root": a tree needs a root; replace it instead"#);
    assert!(tree.apply(NOW, "qdisc del dev eth0 parent 1:1").is_ok());
}

#[test]
fn an_unknown_kind_is_the_kernels_to_refuse_and_its_options_are_tcs() {
    let mut setup = setup(&PRIO);
    let error = setup.apply("qdisc add dev eth0 parent 1:3 best").expect_err("no such kind");
    assert!(error.to_string().starts_with("qdisc: unexpected \"best\": expected a qdisc kind: "));
    let said = error.fault.kernel_text();
    assert_eq!(said.as_deref(), Some("Error: Specified qdisc kind is unknown."));
    let error = setup.apply("qdisc add dev eth0 parent 1:3 best limit 7").expect_err("no options");
    assert_eq!(error.fault.code(), 1);
}

#[test]
fn a_change_keeps_what_it_does_not_give() {
    let mut setup = setup(&["qdisc add dev e root handle 1: fq_codel limit 1000 target 7ms"]);
    setup.apply("qdisc change dev e root fq_codel interval 50ms").expect("options");
    let root = setup.specs().next().expect("a root");
    assert_eq!(root.to_string(), "fq_codel limit 1000 target 7ms interval 50ms");
    // If a `change` line names another kind of qdisc and no handle, it is accepted as a new qdisc.
    setup.apply("qdisc change dev e root pfifo limit 7").expect("another kind");
    assert_eq!(setup.specs().next().expect("a root").to_string(), "pfifo limit 7");
}

/// Each entry has a change, and the options that `tc` on Linux showed after that change.
#[test]
fn a_change_of_netem_keeps_what_linux_keeps() {
    let mut setup = setup(&[
        "qdisc add dev e root handle 1: netem delay 2ms 1ms reorder 5% rate 1mbit ecn loss 1%",
    ]);
    for (change, left) in [
        ("delay 3ms", "netem delay 3ms reorder 5% gap 0 ecn rate 1mbit"),
        ("delay 1ms reorder 6%", "netem delay 1ms reorder 6% ecn rate 1mbit"),
        ("limit 5", "netem limit 5 reorder 6% gap 0 ecn rate 1mbit"),
        ("loss 4%", "netem reorder 6% gap 0 loss 4% ecn rate 1mbit"),
    ] {
        setup.apply(&format!("qdisc change dev e root netem {change}")).expect(change);
        assert_eq!(setup.specs().next().expect("a root").to_string(), left, "{change}");
    }
    // A `change` line must be valid by itself, because `tc` checks the line without knowing the
    // qdisc's current options.
    let error =
        setup.apply("qdisc change dev e root netem delay 1ms gap 4").expect_err("no chance");
    assert_eq!(error.fault.code(), 1);
}

/// As in Linux, the default qdiscs of classes are listed after the root. The default qdisc of the
/// last class is listed first.
#[test]
fn defaults_below_classes_are_listed_when_asked_for() {
    let mut setup = setup(&["qdisc add dev e root handle 1: htb default 3"]);
    let listed = |setup: &Setup| {
        let mut out = Out::new(Style::default());
        let query = Query { invisible: true, ..Query::default() };
        Listed::new(None, setup, 1514, &[]).qdiscs(query, &mut out);
        let text = out.finish();
        let word = |line: &str| line.split(' ').nth(4).map(str::to_owned);
        text.lines().skip(1).filter_map(word).collect::<Vec<_>>().join(" ")
    };
    for (line, shown) in [
        ("class add dev e parent 1: classid 1:1 htb rate 10mbit", "1:1"),
        ("class add dev e parent 1:1 classid 1:3 htb rate 1mbit", "1:3"),
        ("class add dev e parent 1:1 classid 1:4 htb rate 1mbit", "1:4 1:3"),
        ("class add dev e parent 1:1 classid 1:5 htb rate 1mbit", "1:5 1:4 1:3"),
        ("qdisc add dev e parent 1:4 handle 20: pfifo", "1:5 1:3 1:4"),
        ("class del dev e classid 1:5", "1:3 1:4"),
    ] {
        setup.apply(line).expect(line);
        assert_eq!(listed(&setup), shown, "{line}");
    }
}

/// Some refused lines get the same message as in Linux: for classes without options, for an
/// `ingress`, and for `etf` without a clock.
#[test]
fn what_is_refused_in_the_kernels_words() {
    let told = |setup: &mut Setup, line: &str| {
        setup.apply(line).err().map_or((0, String::new()), |error| {
            (error.fault.code(), error.fault.kernel_text().unwrap_or_default())
        })
    };
    for (kind, said) in [
        ("drr", "Error: DRR options are required for this operation."),
        ("qfq", "Error: sch_qfq: missing options."),
        ("htb", "RTNETLINK answers: Invalid argument"),
        ("hfsc", "RTNETLINK answers: Invalid argument"),
    ] {
        let mut setup = setup(&[&format!("qdisc add dev e0 root handle 1: {kind}")]);
        let line = "class add dev e0 parent 1: classid 1:6";
        assert_eq!(told(&mut setup, line), (2, said.to_owned()), "{kind}");
    }
    // In `drr`, a class cannot be below another class. The class that the line gives as parent is
    // not looked up, so the line is accepted even if that class does not exist.
    let lines = ["class add dev e0 parent 1:9 classid 1:2 drr"];
    setup(&["qdisc add dev e0 root handle 1: drr", lines[0]]);
    let mut setup = Setup::default();
    for (line, code, said) in [
        ("qdisc add dev e0 root etf delta 1000", 2, "Error: Dynamic clockids are not supported."),
        ("qdisc add dev e0 root etf clockid tai delta 1000", 0, ""),
        ("qdisc add dev e0 ingress", 0, ""),
        (
            "qdisc add dev e0 parent ffff:1 pfifo",
            2,
            "Error: Cannot add children to ingress/clsact qdisc.",
        ),
        ("qdisc del dev e0 ingress", 0, ""),
        ("qdisc del dev e0 ingress", 2, "Error: Invalid handle."),
        ("qdisc del dev e0 clsact", 2, "Error: Invalid handle."),
        ("qdisc add dev e0 clsact", 0, ""),
        (
            "filter add dev e0 parent ffff: matchall action ok",
            2,
            "RTNETLINK answers: Invalid argument",
        ),
    ] {
        assert_eq!(told(&mut setup, line), (code, said.to_owned()), "{line}");
    }
}

#[test]
fn some_kinds_do_not_change() {
    let none = "Error: Change operation not supported by specified qdisc.";
    for (kind, line, said) in [
        ("sfq", "sfq", None),
        ("sfq", "sfq limit 5", Some(none)),
        ("htb", "htb", Some(none)),
        ("htb", "htb default 5", Some(none)),
        ("etf clockid tai", "etf clockid tai", Some(none)),
        ("pfifo_fast", "pfifo_fast", None),
        ("drr", "drr", None),
        ("hfsc default 1", "hfsc default 2", None),
    ] {
        let mut setup = setup(&[&format!("qdisc add dev e root handle 1: {kind}")]);
        for verb in ["change", "replace"] {
            let done = setup.apply(&format!("qdisc {verb} dev e root {line}"));
            let text = done.err().and_then(|error| error.fault.kernel_text());
            assert_eq!(text.as_deref(), said, "{verb} {line}");
        }
        setup.apply("qdisc replace dev e root handle 1:").expect("nothing to change");
        setup.apply(&format!("qdisc replace dev e root handle 2: {kind}")).expect("another");
    }
}

#[test]
fn a_device_has_a_qdisc_of_its_own_when_nobody_gives_it_one() {
    let mut setup = Setup::default();
    let fallback = "pfifo limit 2".parse().ok();
    setup.of_device("e", Facts { fallback, ..Facts::default() });
    let refused = setup.apply("qdisc del dev e root").expect_err("it has no handle");
    let said = refused.fault.kernel_text();
    assert_eq!(said.as_deref(), Some("Error: Cannot delete qdisc with handle of zero."));
    let mut tree = Tree::of(&setup, 1514, 0).expect("the device's own");
    let fits = |tree: &mut Tree| {
        (0..5).filter(|cookie| tree.enqueue(NOW, packet(*cookie, 0)) == Verdict::Queued).count()
    };
    assert_eq!(fits(&mut tree), 2);
    tree.apply(NOW, "qdisc add dev e root handle 1: pfifo limit 4").expect("nobody added one");
    assert_eq!(fits(&mut tree), 4);
    tree.apply(NOW, "qdisc del dev e root").expect("it was added");
    assert_eq!((tree.backlog().packets, fits(&mut tree)), (0, 2));
}

#[test]
fn a_line_that_is_wrong_names_no_device() {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev eth1 root best").expect_err("no such kind");
    setup.apply("qdisc add dev eth0 root pfifo").expect("the first line that is right");
    let error = setup.apply("qdisc replace dev eth1 root pfifo").expect_err("another device");
    assert!(
        error.to_string().ends_with("expected eth0, the only device, as named in an earlier line"),
        "{error}"
    );
}

#[test]
fn packets_go_to_the_class_that_their_priority_names() {
    let mut tree = tree(&PRIO);
    // The first packet selects the third band of the root. The second selects the root's second
    // band, which is the inner `prio`. The last three select the root's first band, where the third
    // of them does not fit.
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
    // A filter sends all packets to the inner `prio`, whose band 0 takes packets with priority 6.
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

/// As in Linux, a qdisc with a single child accepts any class number as the child's parent.
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

/// Building trees with many lines is fast. It would take minutes if each line took time for each
/// line before it.
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
}

/// The numbers allow more levels, but each class counts for all classes above it. The stack is
/// small, so that code which calls itself for each level fails with 3,000 levels, as it would with
/// 10,000 in the 2 MiB of a thread.
#[test]
fn a_tree_may_be_deep() {
    let builder = std::thread::Builder::new().stack_size(640 << 10);
    builder.spawn(build_deep).expect("a thread").join().expect("no panic");
}

fn build_deep() {
    let mut deep = setup(&["qdisc add dev e root handle 1: hfsc default bb8"]);
    for minor in 1..=3_000 {
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
    assert_eq!(error.to_string(), "class 1:1: the class has child classes, or is the root");
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
