//! Links whose qdiscs are of a kind of the program's own.

use onramp::dev::Null;
use onramp::params::{Default, Param, Unit};
use onramp::qdisc::{Changes, Kind};
use onramp::{BuildError, Device, Facts, Kinds, Link, PortError, Setup, Spec};

const LIMIT: Param = Param::new("limit", Unit::Packets, Default::Number(5), "packets held at most");

/// A `pfifo` with another default under another name.
static SMALL: Kind = small("small");

const fn small(id: &'static str) -> Kind {
    let kind = Kind::new(id, "a small pfifo", &[LIMIT], |values| {
        let text = format!("pfifo limit {}", values.number("limit"));
        text.parse::<Spec>().expect("a kind").build_at(values.site)
    });
    Kind { changes: Changes::Yes, ..kind }
}

fn null() -> Box<dyn Device> {
    Box::new(Null::default())
}

/// Returns the names of the kinds in front of each port, parents first.
fn kinds(link: &Link) -> Vec<Vec<&'static str>> {
    let views = link.all_views().into_iter().map(|(_, views)| views.expect("the port answers"));
    views.map(|views| views.iter().map(|view| view.kind.id).collect()).collect()
}

#[test]
fn a_link_names_the_kind() {
    let before = Link::devices([null()]).kind(&SMALL).qdisc("small limit 7").build().unwrap();
    let after = Link::devices([null()]).qdisc("small limit 7").kind(&SMALL).build().unwrap();
    for link in [before, after] {
        assert_eq!(kinds(&link), [["small"]]);
        assert!(link.setup().lines()[0].ends_with("small limit 7"));
        // Ports that come later, changes and new trees know the kind.
        link.add_port(null()).unwrap();
        assert_eq!(kinds(&link), [["small"], ["small"]]);
        link.change("qdisc change root small limit 9").unwrap();
        assert!(link.setup().lines()[0].ends_with("small limit 9"));
        for line in [
            "qdisc replace root handle 1: htb default 1",
            "class add parent 1: classid 1:1 htb rate 8mbit",
            "qdisc add parent 1:1 small limit 3",
        ] {
            link.change(line).expect(line);
        }
        link.add_port(null()).unwrap();
        assert_eq!(kinds(&link), [["htb", "small"], ["htb", "small"], ["htb", "small"]]);
        link.set_qdisc("fq").unwrap();
        link.set_qdisc("small").unwrap();
        let mut tree = Setup::default();
        tree.apply("qdisc add dev link root handle 1: prio").unwrap();
        link.set_tree(&tree).unwrap();
        link.change("qdisc add parent 1:2 small limit 3").unwrap();
        let error = link.change("qdisc add parent 1:3 small limt 3").unwrap_err().to_string();
        assert_eq!(error, r#"qdisc small: unexpected "limt": small takes limit"#);
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.send(&flow, b"hello").unwrap();
        assert!(sender.flush(crate::common::LONG));
    }
}

/// A link of a tree knows the kinds of the tree.
#[test]
fn a_link_of_a_tree_knows_its_kinds() {
    let mut tree = Setup::with_kinds(Kinds::new([&SMALL]).unwrap());
    tree.apply("qdisc add dev any root handle 1: mq").unwrap();
    tree.apply("qdisc add dev any parent 1:1 small").unwrap();
    let link = Link::devices([null(), null()]).tree(&tree).kind(&SMALL).build().unwrap();
    assert_eq!(kinds(&link), [["small"], ["pfifo_fast"]]);
    link.change("qdisc replace parent 1:2 small limit 1").unwrap();
    assert_eq!(kinds(&link), [["small"], ["small"]]);
}

#[test]
fn wrong_kinds_are_refused() {
    static FQ: Kind = small("fq");
    static OTHER: Kind = small("small");
    let builder = || Link::devices([null()]);
    let why = |answer: Result<Link, BuildError>| match answer {
        Err(BuildError::Qdisc(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let built_in = r#"kind: unexpected "fq": a built-in kind has this name; choose another"#;
    assert_eq!(why(builder().kind(&FQ).build()), built_in);
    let twice = why(builder().kind(&SMALL).kind(&OTHER).build());
    assert!(twice.contains("two kinds of the program have this name"), "{twice}");
    assert!(why(builder().qdisc("small").build()).contains("expected a qdisc kind: "));
    let limt = why(builder().kind(&SMALL).qdisc("small limt 3").build());
    assert_eq!(limt, r#"qdisc small: unexpected "limt": small takes limit"#);
    let tree = Setup::with_kinds(Kinds::new([&OTHER]).unwrap());
    assert!(why(builder().kind(&SMALL).tree(&tree).build()).contains("two kinds"));
    let link = builder().kind(&SMALL).build().unwrap();
    let mut tree = Setup::with_kinds(Kinds::new([&OTHER]).unwrap());
    tree.apply("qdisc add dev any root small").unwrap();
    let error = link.set_tree(&tree).unwrap_err();
    assert!(matches!(&error, PortError::Config(error) if error.value == "small"), "{error}");
    assert_eq!(kinds(&link), [["fq"]]);
}

/// A new qdisc leaves what the link knows of its device: the default qdisc, the MTU, the ports.
#[test]
fn a_new_qdisc_leaves_the_device_as_it_was() {
    let link = Link::devices([null()]).build().unwrap();
    let mtu = link.setup().facts().mtu;
    link.set_qdisc("blackhole").unwrap();
    assert_eq!(link.setup().facts().mtu, mtu);
    let mqprio = "qdisc replace root handle 1: mqprio num_tc 1 map 0 queues 1@0 hw 0";
    assert!(matches!(link.change(mqprio), Err(PortError::Config(_))));
    assert!(matches!(link.change("qdisc del dev other root"), Err(PortError::Config(_))));
    link.change("qdisc del root").unwrap();
    let mut sender = link.sender();
    let flow = sender.flow(None);
    sender.send(&flow, b"x").unwrap();
    assert!(sender.flush(crate::common::LONG));
    assert_eq!(link.stats().sent, 1, "the blackhole was deleted");
    assert_eq!(link.add_port(null()).unwrap(), 1);
    // A tree may say something of the device, but the link knows its ports.
    let mut tree = Setup::default();
    tree.of_device("d0", Facts { mtu: 1_514, txqueuelen: 50, ..Facts::default() });
    tree.apply("qdisc add dev d0 root pfifo").unwrap();
    link.set_tree(&tree).unwrap();
    assert_eq!((link.setup().facts().txqueuelen, link.setup().device()), (50, Some("d0")));
    link.change("qdisc del root").unwrap();
    assert_eq!(link.add_port(null()).unwrap(), 2);
}
