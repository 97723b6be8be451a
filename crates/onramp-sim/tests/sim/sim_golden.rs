//! Compares what leaves the wire of [`Sim`](onramp_sim::Sim) with recordings of a real Linux 7.2.
//!
//! Only kinds of qdiscs without timers are compared, because the timers of a real machine do not
//! run exactly when they are due. The recordings are not part of this repository; `shared.rs`
//! says where they are.

use std::fs;
use std::path::Path;

use onramp_core::{Rate, Setup, Tree};
use onramp_sim::source::{Records, rows};
use onramp_sim::{BEGIN, Sim, Wire};

use super::shared;

/// Names of the cases in which packets may bypass an empty qdisc, as they may on the wire of `Sim`.
const CASES: &[&str] = &["pfifo100-bypass", "codel-bypass", "fq_codel-bypass"];

/// The time, the number and the ECN code point of each packet that left.
type Left = Vec<(u64, u64, u8)>;

fn ours(case: &Path, opts: &str) -> Left {
    let mut setup = Setup::default();
    let tc = fs::read_to_string(case.join("tc.txt")).expect("tc.txt");
    tc.lines().for_each(|line| setup.apply(line).map(drop).expect(line));
    let link = opts.split("LINK=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let rate = Rate::bytes_per_second(link.expect("LINK").parse::<u64>().expect("bits") / 8);
    let tree = Tree::of(&setup, 1514, 1).expect("it has a root");
    let text = fs::read_to_string(case.join("workload.csv")).expect("workload.csv");
    let mut sim = Sim::new(Wire::new(tree, Some(rate), 0));
    sim.add(Records::new(rows(&text).expect("columns").map(|row| row.expect("a row"))));
    let left = sim.filter(|fate| fate.arrives.is_some());
    left.map(|f| (f.at.since(BEGIN), f.packet.cookie, f.packet.ecn)).collect()
}

fn theirs(case: &Path) -> Left {
    let text = fs::read_to_string(case.join("kernel.csv")).expect("kernel.csv");
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let place = |name| head.iter().position(|column| *column == name).expect("a column");
    let (time, idx, ecn) = (place("time_ns"), place("idx"), place("ecn"));
    let number = |fields: &[&str], at: usize| fields[at].parse::<u64>().expect("a number");
    let rows = lines.map(|line| line.split(',').collect::<Vec<_>>());
    rows.filter(|fields| fields[0] == "deq")
        .map(|f| (number(&f, time), number(&f, idx), f[ecn].parse().expect("a code point")))
        .collect()
}

#[test]
fn the_plain_wire_is_as_linux() {
    let Some(golden) = shared::golden() else { return };
    for name in CASES {
        let case = golden.join(name);
        let opts = fs::read_to_string(case.join("opts")).expect("a recording");
        let ours = ours(&case, &opts);
        let theirs = theirs(&case);
        let same = ours.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs).count();
        let at = (ours.get(same), theirs.get(same));
        assert_eq!((ours.len(), same), (theirs.len(), theirs.len()), "{name}: {at:?}");
    }
}
