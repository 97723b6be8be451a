//! A host whose commands name a kind of qdisc of the program's own.

use std::path::Path;

use onramp_core::params::{Default, Param, Unit};
use onramp_core::qdisc::{Changes, Kind};
use onramp_core::{Instant, Kinds, Setup, Spec, Tree};
use onramp_host::{Host, tc_tree};

use crate::{all, out, refused};

const LIMIT: Param =
    Param::new("limit", Unit::Packets, Default::Number(50), "packets held at most");

/// A `pfifo` with another default, under another name.
static OWN: Kind = Kind {
    changes: Changes::Yes,
    ..Kind::new("own", "a short fifo", &[LIMIT], |values| {
        let text = format!("pfifo limit {}", values.number("limit"));
        text.parse::<Spec>().expect("a kind").build_at(values.site)
    })
};

fn host() -> Host {
    let mut host = Host::with_kinds(Kinds::new([&OWN]).expect("a good name"));
    all(&mut host, &["ip link add d0 up type dummy"]);
    host
}

#[test]
fn commands_name_the_kind() {
    let host = &mut host();
    all(host, &["tc qdisc add dev d0 root handle 1: own limit 100"]);
    let shown = out(host, "tc qdisc show dev d0");
    assert_eq!(shown, "qdisc own 1: root refcnt 2 limit 100p \n");
    let stats = out(host, "tc -s qdisc show dev d0");
    assert!(stats.starts_with("qdisc own 1: root refcnt 2 limit 100p \n Sent 0 bytes"), "{stats}");
    all(
        host,
        &[
            "tc qdisc replace dev d0 root handle 2: htb default 1",
            "tc class add dev d0 parent 2: classid 2:1 htb rate 1mbit",
            "tc qdisc add dev d0 parent 2:1 handle 3: own",
        ],
    );
    assert!(out(host, "tc qdisc show dev d0").contains("qdisc own 3: parent 2:1 limit 50p"));
    assert!(out(host, "save").contains("tc qdisc add dev d0 parent 2:1 handle 3: own\n"));
}

/// Wrong options, help texts and unknown devices are answered as for built-in kinds.
#[test]
fn the_kind_is_answered_for_as_a_built_in_one() {
    let host = &mut host();
    let (code, why) = refused(host, "tc qdisc add dev d0 root own limt 100");
    assert_eq!((code, &*why), (1, "qdisc own: unexpected \"limt\": own takes limit\n"));
    let (code, why) = refused(host, "tc qdisc add dev gone root own");
    assert_eq!((code, &*why), (1, "Cannot find device \"gone\"\n"));
    let (code, help) = refused(host, "tc qdisc add dev d0 root own help");
    assert_eq!(code, 1);
    assert!(help.starts_with("own: a short fifo\n  limit "), "{help}");
    let (_, help) = refused(host, "tc qdisc help");
    assert!(help.contains(" mqprio | series | own\n"), "{help}");
}

/// A text of commands may name the kind, which the trial of the commands knows too.
#[test]
fn a_configuration_names_the_kind() {
    let mut host = host();
    let text = "ip link add d1 up type dummy\ntc qdisc add dev d1 root handle 1: own limit 7\n";
    host.configure(text, Path::new("/")).expect("a good text");
    assert_eq!(out(&mut host, "tc qdisc show dev d1"), "qdisc own 1: root refcnt 2 limit 7p \n");
    let changed = host.configure(&text.replace('7', "8"), Path::new("/")).expect("a good text");
    assert_eq!(changed, ["tc qdisc change dev d1 root handle 1: own limit 8"]);
}

#[test]
fn commands_on_a_tree_name_the_kind() {
    let mut setup = Setup::with_kinds(Kinds::new([&OWN]).expect("a good name"));
    setup.apply("qdisc add dev t root handle 1: prio").expect("a kind");
    let mut tree = Tree::of(&setup, 1514, 0).expect("it has a root");
    let mut tc = |line: &str| tc_tree(&mut tree, Instant(0), line).expect(line);
    tc("qdisc add parent 1:1 handle 2: own limit 9");
    assert!(tc("qdisc show").contains("qdisc own 2: parent 1:1 limit 9p"));
}
