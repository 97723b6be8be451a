//! Whole listings of trees that saw recorded traffic, word by word against those of the real ones:
//! `tc -s -d qdisc show`, then `tc -s -d class show`.
//!
//! The recordings lie outside the project: see `shared/mod.rs`.

mod shared;

use std::fs;

use onramp_core::Setup;
use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, QdiscView, Query};
use onramp_sim::recording::{Case, Mode};

/// What a listing may have that ours cannot: packets that the recorded device did not take at once
/// (its bypass is on), and flows under the numbers of a hash whose key is the kernel's own.
const OTHERWISE: [&str; 2] = ["-bypass", "htb-fq_codel"];

fn listing(tc: &str, views: &[QdiscView]) -> String {
    let mut setup = Setup::default();
    tc.lines().for_each(|line| setup.apply(line).expect(line));
    let style = Style { stats: true, details: true, ..Style::default() };
    let listed = Listed::new(None, &setup, 1514, views);
    let mut qdiscs = Out::new(style);
    listed.qdiscs(Query::default(), &mut qdiscs);
    let mut classes = Out::new(style);
    listed.classes(Query::default(), &mut classes);
    qdiscs.finish() + &classes.finish()
}

#[test]
fn listings_are_those_of_linux() {
    let Some(golden) = shared::golden() else { return };
    let entries = fs::read_dir(&golden).expect("readable");
    let mut compared = Vec::new();
    for path in entries.map(|entry| entry.expect("readable").path()) {
        let Ok(stats) = fs::read_to_string(path.join("stats.txt")) else { continue };
        let case = Case::read(&path).expect("a case");
        let recorded = stats.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>();
        let otherwise = OTHERWISE.iter().any(|name| case.name.contains(name));
        if case.mode() == Mode::Exact && !otherwise {
            let tc = fs::read_to_string(path.join("tc.txt")).expect("readable");
            let ours = listing(&tc, &case.views(1));
            assert_eq!(ours.lines().collect::<Vec<_>>(), recorded, "{}", case.name);
            compared.push(case.name);
        }
    }
    assert!(!compared.is_empty(), "{} has no such cases", golden.display());
    println!("{} listings are equal: {}", compared.len(), compared.join(", "));
}
