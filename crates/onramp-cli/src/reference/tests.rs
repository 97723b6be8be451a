//! Tests that check whether the pages in `docs` match the current tables, and which words are
//! offered to complete a command line.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use onramp_host::Host;

use super::complete::candidates;
use super::{man, markdown};

/// If this environment variable is set, the tests write the generated pages into `docs`. Otherwise
/// they only check that the pages there are up to date.
const WRITE: &str = "ONRAMP_WRITE_DOCS";

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// Compares the file `name` in `docs` with `fresh`, the content that it should have. If the
/// environment variable [`WRITE`] is set, writes the file first.
fn renew(name: &str, fresh: &[u8]) {
    let path = docs(name);
    if std::env::var_os(WRITE).is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        fs::write(&path, fresh).expect("it can be written");
    }
    let there = fs::read(&path).unwrap_or_default();
    assert!(there == fresh, "docs/{name} is stale: set {WRITE}=1 and run this test");
}

#[test]
fn the_page_has_the_tables() {
    let page = fs::read_to_string(docs("tc-reference.md")).expect("the page");
    let fresh = markdown::renew(&page).expect("a place for the tables");
    renew("tc-reference.md", fresh.as_bytes());
}

#[test]
fn the_manual_pages_are_those_of_the_tables() {
    let pages = man::pages().expect("pages");
    for (name, page) in &pages {
        renew(&format!("man/{name}"), page);
    }
    let names: BTreeSet<_> = pages.iter().map(|(name, _)| name.clone()).collect();
    let kept = fs::read_dir(docs("man")).expect("the folder").flatten();
    let kept: BTreeSet<_> =
        kept.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(kept, names, "nothing else lies there");
}

#[test]
fn manual_pages_are_sound() {
    for (name, _) in man::pages().expect("pages") {
        let path = docs("man").join(&name);
        let groff = Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(path).output();
        let Ok(groff) = groff else {
            assert!(std::env::var_os("CI").is_none(), "there is no groff");
            // The line goes directly to standard error, because the test harness hides what passing
            // tests print, and nobody would see that this test was skipped.
            writeln!(std::io::stderr(), "SKIP: manual pages: there is no groff").expect("open");
            return;
        };
        let said = String::from_utf8_lossy(&groff.stderr);
        assert!(groff.status.success() && said.is_empty(), "{name}: {said}");
    }
}

/// Returns the words that may come next on a command line, on a host that has devices.
fn next(line: &str) -> Vec<String> {
    let mut host = Host::new();
    let mut exec = |words: &[&str]| {
        let reply = host.exec(words, Path::new("/"));
        assert_eq!(reply.code, 0, "{words:?}: {}", reply.err);
        Some(reply.out)
    };
    for line in [
        "ip link add d0 type dummy",
        "ip link add v0 type veth peer name v1",
        "tc qdisc add dev d0 root handle 1: htb",
        "tc class add dev d0 parent 1: classid 1:10 htb rate 1mbit",
        "tc qdisc add dev d0 parent 1:10 handle a: fq",
    ] {
        exec(&line.split(' ').collect::<Vec<_>>());
    }
    let (program, words) = line.split_once(' ').expect("a program");
    let found = candidates(program, &words.split(' ').collect::<Vec<_>>(), &mut exec);
    found.into_iter().map(|(word, _)| word).collect()
}

#[track_caller]
fn assert_next(line: &str, all: &str) {
    assert_eq!(next(line).join(" "), all, "{line}");
}

#[track_caller]
fn assert_among(line: &str, some: &str, none: &str) {
    let found = next(line);
    let has = |word: &str| found.iter().any(|other| other == word);
    assert!(some.split_whitespace().all(has), "{line}: {found:?}");
    assert!(!none.split_whitespace().any(has), "{line}: {found:?}");
}

#[test]
fn objects_verbs_and_heads_come_first() {
    assert_next("tc q", "qdisc");
    assert_among("tc ", "qdisc class filter -s -j", "");
    assert_next("tc -s -j c", "class");
    assert_next("tc -b ", "");
    assert_next("tc qdisc ", "add change delete link replace show");
    assert_next("tc cl d", "delete");
    assert_among("tc qdisc add ", "dev root parent handle ingress fq htb clsact", "invisible");
    assert_among("tc qdisc add dev d0 root ", "handle fq", "dev root");
    assert_among("tc qdisc sh ", "dev invisible", "fq");
    assert_among("tc class add dev d0 parent 1: classid 1:1 ", "htb hfsc drr qfq", "fq prio");
    assert_next("tc frob ", "");
    assert_next("tc qdisc frob ", "");
    assert_next("ip link ", "add delete set show");
}

#[test]
fn the_daemon_knows_names() {
    assert_next("tc qdisc add dev ", "d0 v0 v1");
    assert_next("tc qdisc add dev v", "v0 v1");
    assert_next("tc qdisc add dev d0 parent ", "1: 1:10 a:");
    assert_next("tc qdisc del dev d0 handle ", "1: a:");
    assert_next("tc class show dev d0 classid 1:1", "1:10");
    assert_next(
        "tc filter add dev d0 parent 1: u32 match ip dport 53 0xffff classid 1:",
        "1: 1:10",
    );
    assert_next("tc qdisc add parent ", "");
    assert_among("ip link set ", "d0 v0 dev up", "type");
    assert_among("ip link set d0 ", "up down mtu", "d0 dev");
}

#[test]
fn options_are_those_of_the_kind() {
    assert_among("tc qdisc add dev d0 root fq ", "limit pacing nopacing help", "ecn dev");
    assert_among("tc qdisc add dev d0 root fq limit 10 ", "flow_limit", "limit help");
    assert_next("tc qdisc add dev d0 root fq limit ", "");
    assert_among("tc class add dev d0 parent 1: classid 1:2 htb rate 1mbit ", "ceil prio", "rate");
    assert_among("tc class add dev d0 parent 1: classid 1:2 hfsc sc ", "m1 m2 d", "rt");
    assert_among("tc class add dev d0 parent 1: classid 1:2 hfsc sc m1 1mbit ", "d m2 ul", "m1");
    assert_next("tc filter add dev d0 parent 1: flower ip_proto ", "icmp icmpv6 sctp tcp udp");
    assert_among("tc filter add dev d0 parent 1: matchall action ", "police skbedit drop", "");
    assert_among("tc filter add dev d0 parent 1: matchall action police ", "rate mtu", "");
    assert_among("tc filter add dev d0 parent 1: protocol ", "ip ipv6", "");
    assert_next("ip link add u0 type ", "detour dummy loopback packet pcap tap udp veth xdp");
    assert_next("ip link add u0 type udp ", "clients idle listen local peer remote");
    assert_next("ip link add u0 type udp local ", "");
    assert_among("ip link add v2 type veth peer ", "name mtu up", "type");
    assert_among("ip link add u0 type udp local ::1 peer ", "name mtu up", "type");
}

#[test]
fn a_daemon_that_does_not_answer_knows_no_names() {
    let mut asked = 0;
    let mut ask = |_: &[&str]| {
        asked += 1;
        None
    };
    assert!(candidates("tc", &["qdisc", "add", "dev", ""], &mut ask).is_empty());
    assert_eq!(asked, 1);
}
