//! Compares, word for word, what Onramp and a real kernel show of trees of qdiscs after recorded
//! traffic: the output of `tc -s -d qdisc show`, of `tc -s -d class show`, and the filters.
//!
//! The recordings are not part of this repository; `shared.rs` says where they are.

use std::fs;

use onramp_sim::recording::{Case, Mode};

use super::shared;

#[test]
fn listings_are_those_of_linux() {
    let Some(golden) = shared::golden() else { return };
    let entries = fs::read_dir(&golden).expect("readable");
    let mut compared = Vec::new();
    for path in entries.map(|entry| entry.expect("readable").path()) {
        if !path.join("stats.txt").exists() {
            continue;
        }
        let case = Case::read(&path).expect("a case");
        if case.mode() == Mode::Exact {
            let told = case.exact(1);
            assert!(told.is_empty(), "{}: {told:#?}", case.name);
            compared.push(case.name);
        }
    }
    assert!(!compared.is_empty(), "{} has no such cases", golden.display());
    println!("{} listings are equal: {}", compared.len(), compared.join(", "));
}
