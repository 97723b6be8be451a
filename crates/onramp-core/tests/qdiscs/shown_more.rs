//! How `tc` shows the kinds of qdiscs that divide packets among classes, limit rates, or drop
//! packets at random. The expected texts are in `shown_more/`, as `tc` 6.1 printed them on Linux
//! 7.2.

use onramp_core::Spec;
use onramp_core::params::Site;
use onramp_core::qdisc::{Dequeue, KINDS, Kind};
use onramp_core::show::{Out, Style};
use onramp_core::view::{Extra, Listed, Query};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const MTU: u32 = 1514;

/// Returns what `write` writes, as plain text or as the content of a JSON object.
fn written(style: Style, write: impl FnOnce(&mut Out)) -> String {
    let mut out = Out::new(style);
    out.open(None);
    write(&mut out);
    out.close();
    let all = out.finish();
    match style.json {
        true => {
            let object = all.trim_end().strip_prefix("[{").and_then(|all| all.strip_suffix("}]"));
            object.expect("an object in an array").to_owned()
        }
        false => all,
    }
}

fn options(line: &str, style: Style) -> String {
    let spec: Spec = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
    let values = spec.values_at(Site { mtu: MTU, ..Site::default() });
    let show = spec.kind().shown.options;
    written(style, |out| show(&values, &Extra::default(), out))
}

#[test]
fn options_are_shown_as_tc_shows_them() {
    let plain = Style::default();
    let json = Style { json: true, ..plain };
    let (mut line, mut shown) = ("", 0);
    for fact in include_str!("shown_more/options.txt").lines().filter(|l| !l.starts_with('#')) {
        if let Some(next) = fact.strip_prefix("> ") {
            line = next;
        } else if let Some((flags, text)) = fact.split_at_checked(4) {
            let style = if flags.contains('j') { json } else { plain };
            let style = Style { details: flags.contains('d'), ..style };
            let expected = match style.json {
                true => &text[1..text.len() - 1],
                false => text.strip_suffix('|').expect(fact),
            };
            assert_eq!(options(line, style), expected, "{line} {flags}");
            shown += 1;
        }
    }
    assert!(shown > 150, "{shown}");
}

/// As in iproute2, the statistics of the RED of `sfq` are shown among its options.
#[test]
fn sfq_has_its_statistics_among_its_options() {
    let spec: Spec = "sfq redflowlimit 100000 ecn".parse().expect("right");
    let values = spec.values_at(Site { mtu: MTU, ..Site::default() });
    let show = |json| {
        let style = Style { stats: true, json, ..Style::default() };
        let extra = Extra(vec![("prob_drop", 14), ("forced_mark", 2)]);
        written(style, |out| (spec.kind().shown.options)(&values, &extra, out))
    };
    let text = "limit 127p quantum 1514b depth 127 divisor 1024 ewma 3 min 8333b max 25000b \
        probability 0.02 ecn \n  prob_mark 0 prob_mark_head 0 prob_drop 14\n  \
        forced_mark 2 forced_mark_head 0 forced_drop 0";
    assert_eq!(show(false), text);
    let json = r#""prob_mark":0,"prob_mark_head":0,"prob_drop":14,"forced_mark":2"#;
    assert!(show(true).contains(json), "{}", show(true));
}

#[test]
fn details_alone_add_to_it() {
    let details = Style { details: true, ..Style::default() };
    for line in ["pie", "cake", "ets bands 3", "fq_pie", "dualpi2"] {
        assert_eq!(options(line, details), options(line, Style::default()), "{line}");
    }
}

#[test]
fn who_refuses_says_so() {
    for fact in include_str!("shown_more/refused.txt").lines().filter(|l| !l.starts_with('#')) {
        let (code, rest) = fact.split_at(4);
        let (line, said) = rest.split_once(" | ").map_or((rest, None), |(l, s)| (l, Some(s)));
        let error = line.parse::<Spec>().expect_err(line);
        assert_eq!(error.fault.code().to_string(), code.trim(), "{line}: {error}");
        assert_eq!(error.fault.kernel_text().as_deref(), said, "{line}: {error}");
    }
}

fn kind(id: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.id == id).expect(id)
}

/// Parses counters of the form `name=value`. The names are leaked (never freed), because counters
/// need names that live as long as the program.
fn counted(words: &str) -> Extra {
    let pairs = words.split_ascii_whitespace().filter_map(|word| word.split_once('='));
    Extra(pairs.map(|(name, value)| (&*name.to_owned().leak(), value.parse().unwrap())).collect())
}

#[test]
fn statistics_are_shown_as_tc_shows_them() {
    let (mut head, mut text) = ("", String::new());
    let show = |head: &str, json| {
        let (deep, words) = head.split_once(' ').expect(head);
        let (id, words) = words.split_once(' ').expect(head);
        let shown = kind(id).shown;
        let write = if deep == ">>" { shown.class_extra } else { shown.extra };
        written(Style { json, stats: true, ..Style::default() }, |out| write(&counted(words), out))
    };
    let compare = |head: &str, text: &str| {
        if !head.is_empty() {
            let shown = show(head, false);
            assert!(shown.starts_with(text) && !text.is_empty(), "{head}\n{shown}\n{text}");
        }
    };
    for fact in include_str!("shown_more/stats.txt").lines().filter(|l| !l.starts_with('#')) {
        if fact.starts_with('>') {
            compare(head, &text);
            (head, text) = (fact, String::new());
        } else if let Some(json) = fact.strip_prefix("-j  ") {
            assert_eq!(show(head, true), json, "{head}");
        } else {
            text += fact.strip_suffix('|').expect(fact);
            text.push('\n');
        }
    }
    compare(head, &text);
}

/// Returns what `tc class show` prints for a tree, sorted.
fn classes(lines: &[&str]) -> Vec<String> {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    let mut out = Out::new(Style::default());
    Listed::new(None, &setup, MTU, []).classes(Query::default(), &mut out);
    let mut lines: Vec<String> = out.finish().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn classes_are_shown_as_tc_shows_them() {
    let drr = classes(&[
        "qdisc add dev eth0 root handle 1: drr",
        "class add dev eth0 parent 1: classid 1:1 drr",
        "class add dev eth0 parent 1: classid 1:2 drr quantum 20000",
        "class add dev eth0 parent 1: classid 1:4 drr quantum 10",
        "class add dev eth0 parent 1: classid 1:6 drr quantum 4294967295",
        "class change dev eth0 parent 1: classid 1:2 drr",
    ]);
    assert_eq!(
        drr,
        [
            "class drr 1:1 root quantum 1514b ",
            "class drr 1:2 root quantum 20000b ",
            "class drr 1:4 root quantum 256b ",
            "class drr 1:6 root quantum 1Mb ",
        ]
    );
    let qfq = classes(&[
        "qdisc add dev eth0 root handle 1: qfq",
        "class add dev eth0 parent 1: classid 1:2 qfq weight 10",
        "class add dev eth0 parent 1: classid 1:3 qfq weight 10 maxpkt 2048",
        "class change dev eth0 parent 1: classid 1:3 qfq",
    ]);
    assert_eq!(
        qfq,
        ["class qfq 1:2 root weight 10 maxpkt 1514 ", "class qfq 1:3 root weight 1 maxpkt 1514 "]
    );
}

/// Curves of a `hfsc` class that a change does not give stay as they were. If `rt` and `ls` of a
/// class are equal, they are shown as `sc`.
#[test]
fn curves_are_shown_as_tc_shows_them() {
    let mut lines = vec!["qdisc add dev eth0 root handle 1: hfsc default 10".to_owned()];
    let curves = [
        ("sc rate 10mbit", "sc m1 0bit d 0us m2 10Mbit "),
        (
            "rt m1 5mbit d 10ms m2 1mbit ls m2 3mbit ul rate 8mbit",
            "rt m1 5Mbit d 10ms m2 1Mbit ls m1 0bit d 0us m2 3Mbit ul m1 0bit d 0us m2 8Mbit ",
        ),
        (
            "sc umax 1500 dmax 10ms rate 1mbit ul rate 2mbit",
            "sc m1 1200Kbit d 10ms m2 1Mbit ul m1 0bit d 0us m2 2Mbit ",
        ),
        ("rt m2 1mbit ls m2 1mbit", "sc m1 0bit d 0us m2 1Mbit "),
        ("ls rate 1mbit", "ls m1 0bit d 0us m2 1Mbit "),
        ("sc m1 5mbit d 5s m2 1234567bit", "sc m1 5Mbit d 5s m2 1234Kbit "),
    ];
    let classid = |place: usize| format!("1:{:x}", place + 1);
    for (place, (given, _)) in curves.iter().enumerate() {
        let class = classid(place);
        lines.push(format!("class add dev eth0 parent 1: classid {class} hfsc {given}"));
    }
    lines.push("class change dev eth0 parent 1: classid 1:5 hfsc rt m1 0 d 100us m2 7kbit".into());
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let shown = classes(&lines);
    for (place, (given, text)) in curves.iter().enumerate() {
        let before = if place == 4 { "rt m1 0bit d 100us m2 7Kbit " } else { "" };
        let line = format!("class hfsc {} parent 1: {before}{text}", classid(place));
        assert!(shown.contains(&line), "{given}: {shown:#?}");
    }
}

/// A change of `ets` keeps the packets of the bands that stay, even if bands become strict or are
/// no longer strict.
#[test]
fn a_change_of_ets_keeps_packets() {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev eth0 root handle 1: ets bands 3 priomap 0 1 2").expect("right");
    let mut tree = Tree::of(&setup, MTU, 0).expect("a root");
    for priority in [0, 1, 2, 2, 1, 0] {
        let mut pkt = Packet::new(100);
        (pkt.priority, pkt.cookie) = (priority, priority.into());
        let _ = tree.enqueue(Instant(1), pkt);
    }
    let change = "qdisc change dev eth0 root handle 1: ets bands 2 strict 1 priomap 0 1";
    tree.apply(Instant(2), change).expect("right");
    let next = || match tree.dequeue(Instant(3)) {
        Dequeue::Ready(pkt) => Some(pkt.cookie),
        _ => None,
    };
    let order: Vec<u64> = std::iter::from_fn(next).collect();
    assert_eq!(order, [0, 0, 1, 1], "the third band has gone with its packets");
}

/// In some kinds, the flows that hold packets are listed as classes.
#[test]
fn flows_are_listed_as_classes() {
    let flow = |kind: &str, last: &str| {
        let mut setup = Setup::default();
        setup.apply(&format!("qdisc add dev eth0 root handle 10: {kind}")).expect("right");
        let mut tree = Tree::of(&setup, MTU, 0).expect("a root");
        for priority in [0x10_0007, 0x10_0007] {
            let mut pkt = Packet::new(1000);
            pkt.priority = priority;
            let _ = tree.enqueue(Instant(1), pkt);
        }
        let mut out = Out::new(Style { stats: true, ..Style::default() });
        let views = tree.views();
        Listed::new(None, &setup, MTU, &views).classes(Query::default(), &mut out);
        let id = kind.split(' ').next().expect("a kind");
        let shown = out.finish();
        // In `fq_codel` and `sfq`, a packet's priority may select a bucket, which is the class
        // number. In `cake`, it selects only a tin, and the bucket comes from a hash.
        let hashed = shown.split([':', ' ']).nth(3).expect("a number");
        let minor = if id == "cake" { hashed } else { "7" };
        let expected = format!(
            "class {id} 10:{minor} parent 10: \n (dropped 0, overlimits 0 requeues 0) \n \
             backlog 2000b 2p requeues 0\n{last}\n",
        );
        assert_eq!(shown, expected);
    };
    flow("fq_codel", "  deficit 1514 count 0 lastcount 0 ldelay 0us");
    flow("sfq", "  allot 1514");
    flow("cake besteffort flows", "  deficit 1514 count 0 blue_prob 0");
}
