//! A running tree that single lines of `tc` have edited is the tree that is built from the whole
//! description, and a line that is refused changes nothing.

use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, Query};
use onramp_core::{Handle, Instant, Setup, Tree};
use proptest::prelude::*;

const MTU: u32 = 1_514;
const NOW: Instant = Instant(1_000_000_000);
const ROOTS: &[&str] = &["htb default 2", "hfsc default 2", "drr", "qfq", "prio"];

/// Lines about the classes of a root of this kind. `@` stands for the minor number of a class, `%`
/// for another one.
fn classes(root: &'static str) -> &'static [&'static str] {
    match root.split(' ').next() {
        Some("htb") => &[
            "class add dev x parent 1: classid 1:@ htb rate 1mbit",
            "class add dev x parent 1:% classid 1:@ htb rate 2mbit",
            "class change dev x parent 1: classid 1:@ htb rate 3mbit ceil 4mbit",
        ],
        Some("hfsc") => &[
            "class add dev x parent 1: classid 1:@ hfsc sc rate 1mbit",
            "class add dev x parent 1:% classid 1:@ hfsc ls rate 2mbit",
            "class replace dev x parent 1: classid 1:@ hfsc rt rate 1mbit ls rate 3mbit",
        ],
        Some("drr") => &[
            "class add dev x parent 1: classid 1:@ drr",
            "class replace dev x parent 1: classid 1:@ drr quantum 2000",
        ],
        Some("qfq") => &[
            "class add dev x parent 1: classid 1:@ qfq weight 2",
            "class replace dev x parent 1: classid 1:@ qfq weight 3 maxpkt 1000",
        ],
        _ => &["qdisc change dev x root handle 1: prio bands 4"],
    }
}

/// Lines about anything but the classes of the root.
const OTHERS: &[&str] = &[
    "class del dev x classid 1:@",
    "class del dev x classid 1:@",
    "qdisc add dev x parent 1:@ handle 1%: fq_codel limit 100",
    "qdisc replace dev x parent 1:@ pfifo limit 5",
    "qdisc change dev x parent 1:@ handle 1%: fq_codel limit 200",
    "qdisc add dev x parent 1:@ handle 1%: prio",
    "qdisc del dev x parent 1:@",
    "qdisc del dev x root",
    "qdisc add dev x clsact",
    "qdisc add dev x ingress",
    "qdisc del dev x ingress",
    "filter add dev x ingress protocol ip pref 1 matchall action pass",
    "filter add dev x egress protocol ip pref % handle @ fw action drop",
    "filter del dev x egress pref @",
    "filter add dev x parent 1: protocol ip pref 1 u32 match u32 @ @ classid 1:@",
    "filter add dev x parent 1: protocol ip pref % handle @ fw classid 1:%",
    "filter add dev x parent 1: protocol ip flower ip_proto tcp dst_port @ classid 1:@",
    "filter replace dev x parent 1: protocol ip pref 4 handle @ basic classid 1:%",
    "filter add dev x parent 1:@ protocol ip pref 1 handle % fw classid 1:%",
    "filter add dev x parent 1%: protocol ip pref 1 handle @ fw classid 1%:1",
    "filter del dev x parent 1: pref @",
    "filter del dev x parent 1: pref % handle @ fw",
    "filter del dev x parent 1:",
    "filter del dev x parent 1:@",
];

fn line(root: &'static str) -> impl Strategy<Value = String> {
    let of = |lines| prop::sample::select::<&'static str>(lines);
    let line = prop_oneof![of(classes(root)), of(OTHERS)];
    (line, 1..5_u8, 1..5_u8).prop_map(|(line, this, that)| {
        line.replace('@', &this.to_string()).replace('%', &that.to_string())
    })
}

fn lines() -> impl Strategy<Value = (&'static str, Vec<String>)> {
    prop::sample::select(ROOTS).prop_flat_map(|root| {
        let lines = prop::collection::vec(line(root), 1..30);
        (Just(root), lines)
    })
}

/// Returns the listings of the qdiscs and classes with their statistics, and the filters at all
/// qdiscs and classes.
fn all(tree: &mut Tree, setup: &Setup) -> String {
    let views = tree.views();
    let listed = Listed::new(None, setup, MTU, &views);
    let mut out = Out::new(Style { stats: true, ..Style::default() });
    listed.qdiscs(Query { invisible: true, ..Query::default() }, &mut out);
    listed.classes(Query::default(), &mut out);
    // A class of htb that is changed keeps its tokens, so these depend on what was there before.
    let listing = out.finish();
    let lines = listing.lines().filter(|line| !line.starts_with(" tokens: "));
    let mut all = lines.collect::<Vec<_>>().join("\n");
    for major in [1, 0x11, 0x12, 0x13, 0x14, 0x8001, 0xffff] {
        for minor in (0..6).chain(0xfff2..0xfff4) {
            let place = Handle::new(major, minor);
            for filter in tree.filters(NOW, place) {
                all += &format!("{place}: {filter:?}\n");
            }
        }
    }
    all
}

fn built(setup: &Setup) -> Tree {
    Tree::of(setup, MTU, 0).expect("there is a root")
}

/// The filters for incoming packets are stored under ffff:fff2, which is no class of the tree.
#[test]
fn filters_for_incoming_packets_reach_no_class() {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev x root handle 1: htb").expect("a root");
    let mut tree = built(&setup);
    for line in [
        "class add dev x parent 1: classid 1:fff2 htb rate 1mbit",
        "qdisc add dev x clsact",
        "filter add dev x ingress protocol ip pref 1 matchall action drop",
    ] {
        tree.apply(NOW, line).expect(line);
    }
    assert!(tree.filters(NOW, Handle::new(1, 0xfff2)).is_empty());
}

proptest! {
    #[test]
    fn edits_lead_to_the_tree_that_is_described((root, lines) in lines()) {
        let mut setup = Setup::default();
        setup.apply(&format!("qdisc add dev x root handle 1: {root}")).expect("a root");
        let mut tree = built(&setup);
        for line in lines {
            let before = all(&mut tree, &setup);
            let mut next = setup.clone();
            let told = next.apply(&line).map_err(|error| error.to_string());
            let done = tree.apply(NOW, &line).map_err(|error| error.to_string());
            if told.is_ok() && next.root_id().is_none() {
                prop_assert!(done.is_err_and(|why| why.contains("needs a root")), "{}", line);
                next = setup.clone();
            } else {
                prop_assert_eq!(&done, &told, "{}", line);
            }
            if told.is_err() {
                prop_assert_eq!(next.lines(), setup.lines(), "{}", line);
                prop_assert_eq!(all(&mut tree, &setup), before, "{}", line);
            }
            setup = next;
            prop_assert_eq!(all(&mut tree, &setup), all(&mut built(&setup), &setup), "{}", line);
        }
    }
}
