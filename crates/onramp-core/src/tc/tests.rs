//! Tests how the counters of several transmit queues are summed up, and how a listing shows
//! counters.

use onramp_queue::{DropReason, Packet};

use super::*;
use crate::base::params::Param;
use crate::base::show::{Out, Style};
use crate::base::stats::BUCKETS;
use crate::base::{Counters, Extra, Handle, Instant};
use crate::qdisc::KINDS;
use crate::sched::{Backlog, ClassView, Kind, QdiscView};
use crate::tree::Tree;

fn kind(id: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.id == id).expect(id)
}

/// Returns counters whose fields have consecutive values, beginning with `first`.
fn counters(first: u64) -> Counters {
    Counters {
        bytes: first,
        packets: first + 1,
        drops: first + 2,
        overlimits: first + 3,
        requeues: first + 4,
    }
}

/// Returns the view (the state and counters) of a qdisc whose counters all follow from `first`.
fn view(handle: &str, parent: Option<&str>, id: &str, first: u64) -> QdiscView {
    let mut sojourn = [0; BUCKETS];
    (sojourn[3], sojourn[BUCKETS - 1]) = (first, 2 * first);
    let extra = i64::try_from(first).expect("small");
    QdiscView {
        handle: handle.parse().expect(handle),
        parent: parent.map(|parent| parent.parse().expect(parent)),
        kind: kind(id),
        counters: counters(first),
        backlog: backlog(first),
        drops: vec![(DropReason::Purged, first)],
        sojourn_ns: Some(Box::new(sojourn)),
        extra: Extra(vec![("count", extra), ("other", -extra)]),
        classes: vec![ClassView {
            handle: Handle::new(1, 1),
            parent: None,
            leaf: None,
            counters: counters(first),
            backlog: backlog(first),
            extra: Extra(vec![("deficit", extra)]),
        }],
    }
}

fn backlog(first: u64) -> Backlog {
    Backlog { packets: u32::try_from(first).expect("small") + 5, bytes: first + 6 }
}

/// If the same tree stands in front of each transmit queue, `whole` returns the views of one tree,
/// with the sums of the counters of all queues.
#[test]
fn queues_of_one_tree_are_added_up() {
    let tree = |first| vec![view("1:", None, "prio", first), view("2:", Some("1:1"), "fq", first)];
    let (mut one, mut other) = (tree(100), tree(1_000));
    one[1].sojourn_ns = None;
    other[0].drops.push((DropReason::Overlimit, 7));
    other[0].sojourn_ns = None;
    let sum = whole([one, Vec::new(), other, tree(10_000)]);
    assert_eq!(sum.len(), 2);
    for (view, sojourn) in sum.iter().zip([10_100, 11_000]) {
        // The three trees have 100, 1,000 and 10,000 in their first field, so the sum has 11,100
        // there. In each tree, the n-th field after the first is larger by n, so in the sum it is
        // larger by 3 n.
        let (added, first) = (Counters { bytes: 11_100, ..counters(11_100) }, 11_100);
        let expected = Counters {
            packets: first + 3,
            drops: first + 6,
            overlimits: first + 9,
            requeues: first + 12,
            ..added
        };
        assert_eq!(view.counters, expected);
        let held = Backlog { packets: 11_115, bytes: 11_118 };
        assert_eq!(view.backlog, held);
        assert_eq!(view.extra, Extra(vec![("count", 11_100), ("other", -11_100)]));
        assert_eq!(view.classes.len(), 1);
        assert_eq!((view.classes[0].counters, view.classes[0].backlog), (expected, held));
        assert_eq!(view.classes[0].extra, Extra(vec![("deficit", 11_100)]));
        let waited = view.sojourn_ns.as_ref().expect("somebody measured");
        assert_eq!((waited[3], waited[BUCKETS - 1]), (sojourn, 2 * sojourn));
        assert_eq!(waited.iter().sum::<u64>(), 3 * sojourn, "the others stay empty");
    }
    assert_eq!(sum[0].drops, [(DropReason::Purged, 11_100), (DropReason::Overlimit, 7)]);
    assert_eq!(sum[1].drops, [(DropReason::Purged, 11_100)]);
    assert_eq!((sum[0].handle, sum[1].parent), (Handle::new(1, 0), Some(Handle::new(1, 1))));
    assert!(whole([]).is_empty() && whole([Vec::new()]).is_empty());
}

/// With an `mq` at the root, `whole` returns the views of the qdiscs of all transmit queues, and
/// the view of the `mq`, which has the sums of the counters of the queues' topmost qdiscs.
#[test]
fn an_mq_stands_above_its_queues() {
    let first = vec![view("10:", Some("1:1"), "fq", 100), view("11:", Some("10:1"), "pfifo", 5)];
    let second = vec![view("0:", Some("1:2"), "pfifo_fast", 1_000)];
    let sum = whole([first, second]);
    let places: Vec<_> = sum.iter().map(|view| (view.kind.id, view.handle.major)).collect();
    assert_eq!(places, [("mq", 1), ("fq", 0x10), ("pfifo", 0x11), ("pfifo_fast", 0)]);
    let mq = &sum[0];
    assert_eq!((mq.handle, mq.parent), (Handle::new(1, 0), None));
    let both =
        Counters { bytes: 1_100, packets: 1_102, drops: 1_104, overlimits: 1_106, requeues: 1_108 };
    assert_eq!((mq.counters, mq.backlog), (both, Backlog { packets: 1_110, bytes: 1_112 }));
    assert_eq!(mq.drops, [(DropReason::Purged, 1_100)]);
    assert_eq!(mq.sojourn_ns.as_ref().map(|waited| waited[3]), Some(1_100));
    assert_eq!(mq.extra, Extra::default());
    let classes: Vec<_> = mq.classes.iter().map(|c| (c.handle, c.parent, c.leaf)).collect();
    let class = |minor| Handle::new(1, minor);
    assert_eq!(classes, [(class(1), None, Some(0x10)), (class(2), None, None)]);
    assert_eq!((mq.classes[0].counters, mq.classes[0].backlog), (counters(100), backlog(100)));
    assert_eq!((mq.classes[1].counters, mq.classes[1].backlog), (counters(1_000), backlog(1_000)));
    assert!(mq.classes.iter().all(|class| class.extra == Extra::default()));
    assert!(super::mq([]).is_none());
    assert!(super::mq([&view("1:", None, "prio", 1)]).is_none(), "it stands at the root");
}

#[test]
fn statistics_have_names() {
    let extra = Extra(vec![("up", 5), ("down", -5), ("none", 0), ("one", 1)]);
    assert_eq!((extra.get("up"), extra.get("down"), extra.get("other")), (5, -5, 0));
    assert_eq!((extra.find("none"), extra.find("other")), (Some(0), None));
    assert_eq!((extra.count("up"), extra.count("down"), extra.count("other")), (5, 0, 0));
    let shown = |json, name, some: bool| {
        let mut out = Out::new(Style { json, ..Style::default() });
        out.open(None);
        let shown = match some {
            true => extra.show_some(&mut out, " ", name),
            false => {
                extra.show(&mut out, " ", name);
                true
            }
        };
        out.close();
        (out.finish(), shown)
    };
    assert_eq!(shown(false, "up", false), (" up 5".into(), true));
    assert_eq!(shown(true, "up", false), ("[{\"up\":5}]\n".into(), true));
    assert_eq!(shown(false, "other", false), (" other 0".into(), true));
    for (name, text) in [("up", " up 5"), ("one", " one 1")] {
        assert_eq!(shown(false, name, true), (text.into(), true));
    }
    for name in ["none", "down", "other"] {
        assert_eq!(shown(false, name, true), (String::new(), false));
        assert_eq!(shown(true, name, true), ("[{}]\n".into(), false));
    }
}

fn listed(
    device: Option<&str>,
    setup: &Setup,
    tree: &mut Tree,
    style: Style,
    classes: bool,
) -> String {
    let mut out = Out::new(style);
    let views = tree.views();
    let listed = Listed::new(device, setup, 1_514, &views);
    match classes {
        false => listed.qdiscs(Query::default(), &mut out),
        true => listed.classes(Query::default(), &mut out),
    }
    out.finish()
}

const STATS: Style = Style { stats: true, details: false, json: false, pretty: false, iec: false };
const JSON: Style = Style { json: true, ..STATS };

/// Builds a `prio` with a `pfifo` for two packets below it. Of five packets, one is sent, two are
/// queued and two are dropped.
fn running() -> (Setup, Tree) {
    let mut setup = Setup::default();
    for line in [
        "qdisc add dev e root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
        "qdisc add dev e parent 1:1 handle 10: pfifo limit 2",
    ] {
        setup.apply(line).expect(line);
    }
    let mut tree = Tree::of(&setup, 1_514, 0).expect("a root");
    for len in [100, 200, 300, 400] {
        let _ = tree.enqueue(Instant(1), Packet::new(len));
    }
    drop(tree.dequeue(Instant(2)));
    let _ = tree.enqueue(Instant(3), Packet::new(500));
    (setup, tree)
}

/// A listing shows what was counted: the packet of 100 bytes was sent, those of 200 and 500 bytes
/// are queued, and those of 300 and 400 bytes were dropped.
#[test]
fn a_listing_shows_what_was_counted() {
    let (setup, mut tree) = running();
    let counted = " Sent 100 bytes 1 pkt (dropped 2, overlimits 0 requeues 0) \n \
        backlog 700b 2p requeues 0\n";
    let none = " Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0) \n \
        backlog 0b 0p requeues 0\n";
    let text = listed(Some("e"), &setup, &mut tree, STATS, false);
    let map = "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";
    let root = format!("qdisc prio 1: dev e root refcnt 2 bands 2 priomap {map}\n");
    assert_eq!(
        text,
        format!("{root}{counted}qdisc pfifo 10: dev e parent 1:1 limit 2p\n{counted}")
    );
    let text = listed(Some("e"), &setup, &mut tree, STATS, true);
    let expected = format!(
        "class prio 1:1 dev e parent 1: leaf 10: \n{counted}class prio 1:2 dev e parent 1: \n{none}"
    );
    assert_eq!(text, expected);
    let json = listed(Some("e"), &setup, &mut tree, JSON, true);
    let zero =
        r#""bytes":0,"packets":0,"drops":0,"overlimits":0,"requeues":0,"backlog":0,"qlen":0"#;
    let some =
        r#""bytes":100,"packets":1,"drops":2,"overlimits":0,"requeues":0,"backlog":700,"qlen":2"#;
    let first =
        r#"{"class":"prio","handle":"1:1","dev":"e","parent":"1:","leaf":"10:","options":{},"#;
    let second = r#"{"class":"prio","handle":"1:2","dev":"e","parent":"1:","options":{},"#;
    assert_eq!(json, format!("[{first}{some}}},{second}{zero}}}]\n"));
    let json = listed(Some("e"), &setup, &mut tree, JSON, false);
    let second =
        r#"{"kind":"pfifo","handle":"10:","dev":"e","parent":"1:1","options":{"limit":2},"#;
    assert!(json.starts_with(r#"[{"kind":"prio","handle":"1:","dev":"e","root":true,"refcnt":2,"#));
    assert!(json.ends_with(&format!("{some}}},{second}{some}}}]\n")), "{json}");
    let quiet = listed(None, &setup, &mut tree, Style::default(), true);
    assert_eq!(quiet, "class prio 1:1 parent 1: leaf 10: \nclass prio 1:2 parent 1: \n");
}

/// Each counter is printed in its place, after its name.
#[test]
fn counters_are_written_as_tc_writes_them() {
    let written = |json, sent| {
        let mut out = Out::new(Style { json, ..STATS });
        out.open(None);
        counters(10).show(sent, Backlog { packets: 7, bytes: 15_360 }, &mut out);
        out.close();
        out.finish()
    };
    let rest = " (dropped 12, overlimits 13 requeues 14) \n backlog 15Kb 7p requeues 14\n";
    assert_eq!(written(false, true), format!(" Sent 10 bytes 11 pkt{rest}"));
    assert_eq!(written(false, false), rest);
    let rest = r#""drops":12,"overlimits":13,"requeues":14,"backlog":15360,"qlen":7}]"#;
    assert_eq!(written(true, true), format!("[{{\"bytes\":10,\"packets\":11,{rest}\n"));
    assert_eq!(written(true, false), format!("[{{{rest}\n"));
}

/// The default root of a device has no handle, and neither have its classes. The flows of such a
/// qdisc are not listed.
#[test]
fn a_device_that_nobody_configured_is_listed() {
    let of = |fallback: &str, queues, dormant| {
        let mut setup = Setup::default();
        let fallback = fallback.parse().ok();
        setup.of_device("e", Facts { fallback, queues, dormant, ..Facts::default() });
        setup
    };
    let both = |setup: &Setup| {
        let mut tree = Tree::of(setup, 1_514, 0).expect("the device's own");
        let _ = tree.enqueue(Instant(1), Packet::new(100));
        [false, true].map(|classes| listed(None, setup, &mut tree, Style::default(), classes))
    };
    let [qdiscs, classes] = both(&of("pfifo limit 3", 1, false));
    assert_eq!(
        (qdiscs.as_str(), classes.as_str()),
        ("qdisc pfifo 0: root refcnt 2 limit 3p\n", "")
    );
    let [qdiscs, _] = both(&of("pfifo limit 3", 4, false));
    assert_eq!(qdiscs, "qdisc pfifo 0: root refcnt 2 limit 3p\n");
    let [qdiscs, classes] = both(&of("pfifo limit 3", 1, true));
    assert_eq!((qdiscs.as_str(), classes.as_str()), ("", ""));
    let [qdiscs, classes] = both(&of("fq_codel", 1, false));
    assert!(qdiscs.starts_with("qdisc fq_codel 0: root refcnt 2 limit 10240p "), "{qdiscs}");
    assert_eq!(classes, "");
    let [qdiscs, classes] = both(&of("mq", 2, false));
    let below = "bands 3 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1";
    let lines = [
        "qdisc mq 0: root ".to_owned(),
        format!("qdisc pfifo_fast 0: parent :2 {below}"),
        format!("qdisc pfifo_fast 0: parent :1 {below}"),
    ];
    assert_eq!(qdiscs.lines().collect::<Vec<_>>(), lines);
    assert_eq!(classes, "class mq :1 root \nclass mq :2 root \n");
    // If the number of transmit queues is unknown, the listing is that of a device with one queue.
    let mut setup = Setup::default();
    setup.apply("qdisc add dev e root handle 1: pfifo limit 3").expect("right");
    let [qdiscs, _] = both(&setup);
    assert_eq!(qdiscs, "qdisc pfifo 1: root refcnt 2 limit 3p\n");
    assert_eq!(list::class_name(Handle::new(0, 0)), "none");
}

/// Flows are listed like classes, but without a count of sent packets.
#[test]
fn flows_of_a_qdisc_are_listed_below_it() {
    let mut setup = Setup::default();
    for line in ["qdisc add dev e root handle 1: prio", "qdisc add dev e parent 1:1 handle 2: sfq"]
    {
        setup.apply(line).expect(line);
    }
    let mut tree = Tree::of(&setup, 1_514, 0).expect("a root");
    let mut pkt = Packet::new(100);
    pkt.priority = 0x1_0001;
    let _ = tree.enqueue(Instant(1), pkt);
    let text = listed(None, &setup, &mut tree, STATS, true);
    let flow = text.lines().skip_while(|line| !line.starts_with("class sfq 2:"));
    let flow: Vec<&str> = flow.collect();
    assert!(flow[0].ends_with(" parent 2: "), "{text}");
    let counted = [" (dropped 0, overlimits 0 requeues 0) ", " backlog 100b 1p requeues 0"];
    assert_eq!(flow[1..3], counted);
    assert_eq!(flow[3], "  allot 1514");
    // A listing of one class contains a flow only if its number is the one that is asked for.
    let number = flow[0].split(' ').nth(2).expect("a number");
    let flow: Handle = number.parse().expect(number);
    let number = u32::from(flow.major) << 16 | u32::from(flow.minor);
    let views = tree.views();
    for (handle, shown) in [(number, 1), (number + 1, 0)] {
        let mut out = Out::new(Style::default());
        let query = Query { handle: Some(handle), ..Query::default() };
        Listed::new(None, &setup, 1_514, &views).classes(query, &mut out);
        assert_eq!(out.finish().lines().count(), shown);
    }
}

/// The default qdisc below a class is `pfifo`, and that of a transmit queue `pfifo_fast`, as in
/// Linux.
#[test]
fn defaults_are_those_of_linux() {
    assert_eq!(Spec::class_default().to_string(), "pfifo");
    assert_eq!(Spec::queue_default().to_string(), "pfifo_fast");
    let names = kind("pfifo_fast").params.iter().map(|param: &Param| param.key);
    assert_eq!(names.collect::<Vec<_>>(), ["txqueuelen"]);
}
