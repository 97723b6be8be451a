//! Kinds of qdiscs of a program's own, named in the text of one qdisc and in lines of `tc`.

use onramp_core::params::{Default, Param, Unit, Value, Values};
use onramp_core::qdisc::{
    Backlog, Changes, ClassOption, Cx, Dequeue, KINDS, Kind, Peek, Qdisc, Quirks, Verdict,
};
use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, Query};
use onramp_core::{Change, Instant, Kinds, Setup, Spec, Tree};
use onramp_queue::{DropReason, Packet};

const NOW: Instant = Instant(1_000_000_000);

const LIMIT: Param =
    Param::new("limit", Unit::Packets, Default::Number(50), "packets held at most").within(1, 1000);

/// Sends its newest packet first.
static NEWEST: Kind = Kind {
    changes: Changes::Yes,
    ..Kind::new("newest", "sends its newest packet first", &[LIMIT], newest)
};
/// The same, but its qdiscs cannot be changed.
static FIXED: Kind = Kind::new("fixed", "sends its newest packet first", &[LIMIT], newest);

fn newest(values: &Values<'_>) -> Box<dyn Qdisc> {
    Box::new(Newest { limit: values.number("limit"), packets: Vec::new(), drops: 0 })
}

#[derive(Debug)]
struct Newest {
    limit: u64,
    packets: Vec<Packet>,
    drops: u64,
}

impl Qdisc for Newest {
    fn enqueue(&mut self, packet: Packet, cx: &mut Cx<'_>) -> Verdict {
        if self.packets.len() as u64 >= self.limit {
            self.drops += 1;
            cx.drop(packet, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        self.packets.push(packet);
        Verdict::Queued
    }

    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
        self.packets.pop().map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        self.packets.last().map_or(Peek::Empty, |packet| Peek::Ready(packet.len))
    }

    fn backlog(&self) -> Backlog {
        let bytes = self.packets.iter().map(|packet| u64::from(packet.len)).sum();
        Backlog { packets: u32::try_from(self.packets.len()).expect("few"), bytes }
    }

    fn change(&mut self, values: &Values<'_>, _cx: &mut Cx<'_>) -> bool {
        self.limit = values.number("limit");
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.packets.drain(..).for_each(|packet| cx.drop(packet, DropReason::Purged));
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("limit_drops", self.drops);
    }
}

fn kinds() -> Kinds {
    Kinds::new([&NEWEST, &FIXED]).expect("good names")
}

/// Returns the tree that lines describe, which may name the kinds of this file.
fn tree(lines: &[&str]) -> Tree {
    let mut setup = Setup::with_kinds(kinds());
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    Tree::of(&setup, 1514, 0).expect("it has a root")
}

/// Enqueues packets of these sizes, and returns the sizes in the order in which they leave.
fn passed(tree: &mut Tree, sizes: &[u32]) -> Vec<u32> {
    for size in sizes {
        let _ = tree.enqueue(NOW, Packet::new(*size));
    }
    std::iter::from_fn(|| match tree.dequeue(NOW) {
        Dequeue::Ready(packet) => Some(packet.len),
        _ => None,
    })
    .collect()
}

fn listing(tree: &mut Tree, style: Style) -> String {
    let (views, mut out) = (tree.views(), Out::new(style));
    Listed::new(Some("d0"), tree.setup(), 1514, &views).qdiscs(Query::default(), &mut out);
    out.finish()
}

#[test]
fn a_text_names_the_kind_with_its_options() {
    let spec = kinds().spec("newest limit 2").expect("a kind of the set");
    assert_eq!(spec.to_string(), "newest limit 2");
    assert_eq!(kinds().spec("newest").expect("the default").show(1514), "newest limit 50p");
    assert_eq!(passed(&mut Tree::new(&spec, 1514), &[100, 200, 300]), [200, 100]);
    for (text, why) in [
        ("newest limt 2", r#"qdisc newest: unexpected "limt": newest takes limit"#),
        (
            "newest limit 0",
            r#"qdisc newest: illegal "limit" "0": expected a whole number, 1 to 1000 packets"#,
        ),
        (
            "newest limit",
            "qdisc newest: \"limit\": the value is missing: expected a whole number, 1 to 1000 \
             packets",
        ),
    ] {
        assert_eq!(kinds().spec(text).expect_err(text).to_string(), why);
    }
    let error = kinds().spec("nevest").expect_err("a wrong name").to_string();
    assert!(error.ends_with(", mqprio, series, newest, fixed"), "{error}");
    assert!("newest".parse::<Spec>().is_err(), "only a set knows the kind");
}

/// A kind of the program's own stands at the root and below a class, is listed with its options and
/// statistics, and takes over new parameters with its packets.
#[test]
fn lines_name_the_kind_at_the_root_and_below_a_class() {
    let mut root = tree(&["tc qdisc add dev d0 root handle 1: newest limit 2"]);
    assert_eq!(passed(&mut root, &[100, 200, 300]), [200, 100]);
    let stats = Style { stats: true, ..Style::default() };
    assert_eq!(
        listing(&mut root, stats),
        "qdisc newest 1: dev d0 root refcnt 2 limit 2p \n \
         Sent 300 bytes 2 pkt (dropped 1, overlimits 0 requeues 0) \n \
         backlog 0b 0p requeues 0\n  limit_drops 1\n"
    );
    let json = listing(&mut root, Style { json: true, ..stats });
    assert!(json.contains(r#""kind":"newest""#) && json.contains(r#""limit_drops":1"#), "{json}");

    let mut below = tree(&[
        "qdisc add dev d0 root handle 1: htb default 10",
        "class add dev d0 parent 1: classid 1:10 htb rate 8gbit",
        "qdisc add dev d0 parent 1:10 handle 10: newest limit 2",
    ]);
    for size in [100, 200] {
        let _ = below.enqueue(NOW, Packet::new(size));
    }
    let change = below.change(NOW, "qdisc change dev d0 handle 10: newest limit 3");
    assert_eq!(change, Ok(Change::Parameters(0x10)));
    assert_eq!(passed(&mut below, &[300, 400]), [300, 200, 100]);
    let shown = listing(&mut below, Style::default());
    assert!(shown.contains("qdisc newest 10: dev d0 parent 1:10 limit 3p"), "{shown}");
    // The lines of the description make the same tree again.
    let lines = below.setup().lines();
    assert_eq!(tree(&lines.iter().map(String::as_str).collect::<Vec<_>>()).setup().lines(), lines);
}

#[test]
fn wrong_lines_are_refused_as_those_of_built_in_kinds() {
    let mut setup = Setup::with_kinds(kinds());
    for (own, built_in) in [
        ("qdisc add dev d0 root newest limt 2", "qdisc add dev d0 root pfifo limt 2"),
        ("qdisc add dev d0 root newest limit x", "qdisc add dev d0 root bfifo limit x"),
        (
            "class add dev d0 parent 1: classid 1:1 newest",
            "class add dev d0 parent 1: classid 1:1 pfifo",
        ),
    ] {
        let fault = |error: onramp_core::ConfigError| error.fault;
        let answers = [own, built_in].map(|line| setup.apply(line).map_err(fault));
        assert!(answers[0].is_err() && answers[0] == answers[1], "{own}: {answers:?}");
    }
    let error = Setup::default().apply("qdisc add dev d0 root newest limit 2").unwrap_err();
    assert!(error.to_string().starts_with(r#"qdisc: unexpected "newest": "#), "{error}");
    let mut fixed = tree(&["qdisc add dev d0 root handle 1: fixed"]);
    let error = fixed.apply(NOW, "qdisc change dev d0 root fixed limit 7").unwrap_err().to_string();
    assert!(error.contains("a fixed cannot be changed after it was added"), "{error}");
}

/// A tree of one qdisc knows the kind of that qdisc, so lines may change the qdisc.
#[test]
fn a_tree_of_one_qdisc_knows_its_kind() {
    let mut tree = Tree::new(&kinds().spec("newest limit 2").expect("a kind"), 1514);
    tree.apply(NOW, "qdisc change dev d0 root newest limit 3").expect("the kind of the tree");
    tree.apply(NOW, "qdisc replace dev d0 root handle 5: pfifo").expect("a built-in kind");
    tree.apply(NOW, "qdisc replace dev d0 root handle 6: newest limit 1").expect("known still");
    assert_eq!(passed(&mut tree, &[100, 200]), [100]);
    assert!(tree.apply(NOW, "qdisc replace dev d0 root handle 7: fixed").is_err());
}

#[test]
#[should_panic(expected = "`Changes` of stubborn allows a change, and its qdisc refuses it")]
fn a_kind_that_may_change_must_change() {
    fn stubborn(values: &Values<'_>) -> Box<dyn Qdisc> {
        #[derive(Debug)]
        struct Stubborn(Newest);
        impl Qdisc for Stubborn {
            fn enqueue(&mut self, packet: Packet, cx: &mut Cx<'_>) -> Verdict {
                self.0.enqueue(packet, cx)
            }
            fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
                self.0.dequeue(cx)
            }
            fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
                self.0.peek(cx)
            }
            fn backlog(&self) -> Backlog {
                self.0.backlog()
            }
            fn reset(&mut self, cx: &mut Cx<'_>) {
                self.0.reset(cx);
            }
        }
        Box::new(Stubborn(Newest { limit: values.number("limit"), packets: Vec::new(), drops: 0 }))
    }
    static STUBBORN: Kind =
        Kind { changes: Changes::Yes, ..Kind::new("stubborn", "", &[LIMIT], stubborn) };
    let spec = Kinds::new([&STUBBORN]).and_then(|kinds| kinds.spec("stubborn"));
    let mut tree = Tree::new(&spec.expect("a kind"), 1514);
    let _ = tree.apply(NOW, "qdisc change dev d0 root stubborn limit 5");
}

/// A kind may have classes, which lines add with the kind's own options.
#[test]
fn a_kind_may_have_classes() {
    fn build(values: &Values<'_>) -> Box<dyn Qdisc> {
        "drr".parse::<Spec>().expect("a kind").build_at(values.site)
    }
    let drr = KINDS.iter().find(|kind| kind.id == "drr").expect("a kind");
    let rounds = Kind { classes: drr.classes, ..Kind::new("rounds", "as drr", &[], build) };
    let kinds = Kinds::new([&*Box::leak(Box::new(rounds)), &NEWEST]).expect("good names");
    let mut setup = Setup::with_kinds(kinds);
    for line in [
        "qdisc add dev d0 root handle 1: rounds",
        "class add dev d0 parent 1: classid 1:1 rounds quantum 500",
        "qdisc add dev d0 parent 1:1 newest",
        "filter add dev d0 parent 1: matchall classid 1:1",
    ] {
        setup.apply(line).expect(line);
    }
    let error = setup.apply("class add dev d0 parent 1: classid 1:2 rounds rate 5mbit");
    let error = error.expect_err("drr has no rates").to_string();
    assert_eq!(error, r#"class rounds: unexpected "rate": rounds takes quantum"#);
    let mut tree = Tree::of(&setup, 1514, 0).expect("it has a root");
    assert_eq!(passed(&mut tree, &[100, 200]), [200, 100]);
}

#[test]
fn a_kind_that_no_text_could_name_is_refused() {
    let kind = |id, params: &'static [Param]| Kind::new(id, "", params, newest);
    let option = |key| Param::new(key, Unit::Count, Default::Off, "");
    let leak = |params: Vec<Param>| &*params.leak();
    let quirks = Quirks { stands_at_root: true, ..Quirks::NONE };
    let follows = Quirks { follows_txqueuelen: true, ..Quirks::NONE };
    let set_help = Quirks {
        class_option: Some(ClassOption {
            params: leak(vec![option("help")]),
            missing: "",
            no_class: "",
            set: |_, _, value| Ok(("limit", Value::Number(value))),
        }),
        ..Quirks::NONE
    };
    const LETTERS: &str = "expected letters, digits, `_`, `-` and `.`, the first of them a letter";
    for (wrong, why) in [
        (kind("", &[]), format!("kind: {LETTERS}")),
        (kind("two words", &[]), format!(r#"kind: unexpected "two words": {LETTERS}"#)),
        (kind("-s", &[]), format!(r#"kind: unexpected "-s": {LETTERS}"#)),
        (kind("fq#", &[]), format!(r#"kind: unexpected "fq#": {LETTERS}"#)),
        (
            kind("dev", &[]),
            "kind: unexpected \"dev\": this word has another meaning in lines of tc; choose \
             another name"
                .into(),
        ),
        (
            kind("fq", &[]),
            r#"kind: unexpected "fq": a built-in kind has this name; choose another"#.into(),
        ),
        (
            kind("ingress", &[]),
            r#"kind: unexpected "ingress": a built-in kind has this name; choose another"#.into(),
        ),
        (
            kind("newest", &[]),
            "kind: unexpected \"newest\": two kinds of the program have this name; give one of \
             them another"
                .into(),
        ),
        (
            kind("a", leak(vec![option("x"), option("y").or(&["x"])])),
            r#"kind a: "x": two options have this name"#.into(),
        ),
        (kind("a", leak(vec![option("x y")])), format!(r#"kind a: "x y": {LETTERS}"#)),
        (
            kind("a", leak(vec![option("help")])),
            r#"kind a: "help": this word asks for help; choose another name"#.into(),
        ),
        (
            Kind { quirks, ..kind("a", &[]) },
            "kind: unexpected \"a\": only built-in kinds may have the quirks stands_at_root, \
             has_queue_trees, chooses_queue, filters_only and shown_below"
                .into(),
        ),
        (
            Kind { quirks: follows, changes: Changes::No, ..kind("a", &[]) },
            "kind: unexpected \"a\": the quirk follows_txqueuelen changes a running qdisc, so it \
             needs `Changes::Yes`"
                .into(),
        ),
        (
            Kind { quirks: set_help, ..kind("a", &[]) },
            r#"kind a: "help": this word asks for help; choose another name"#.into(),
        ),
    ] {
        let kinds = Kinds::new([&NEWEST, &*Box::leak(Box::new(wrong))]);
        assert_eq!(kinds.expect_err(&why).to_string(), why);
    }
    assert_eq!(Kinds::new([&NEWEST, &NEWEST]).expect("the same kind twice").own().count(), 1);
}

/// A description takes in further kinds, or stays as it was if two have the same name.
#[test]
fn kinds_are_added_to_a_description() {
    let mut setup = Setup::default();
    setup.add_kinds(&kinds()).expect("good names");
    setup.apply("qdisc add dev d0 root newest").expect("a kind that was added");
    let other = Kind::new("fixed", "another kind of that name", &[], newest);
    let more = Kind::new("more", "", &[], newest);
    let clash = Kinds::new([more, other].map(|kind| &*Box::leak(Box::new(kind))));
    assert!(setup.add_kinds(&clash.expect("good names")).is_err());
    assert!(setup.kinds().find("more").is_none(), "nothing was added");
}
