//! Compares the counters of every qdisc and class after a run of Onramp with those that `tc -s`
//! showed after the recorded run of Linux: bytes, packets, drops, overlimits and backlog.
//!
//! The recordings are not part of this repository; `shared.rs` says where they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use onramp_core::qdisc::Backlog;
use onramp_core::view::{Counters, QdiscView};
use onramp_sim::recording::{Case, Mode};

use super::shared;

/// The counters of each qdisc and class, by name. A name is such as `qdisc pfifo 12:` or `class htb
/// 1:10`. For a qdisc without a handle of its own (`0:`), the name ends with the qdisc's parent.
type Said = BTreeMap<String, Vec<u64>>;

const NAMES: [&str; 5] = ["bytes", "packets", "drops", "overlimits", "backlog"];

fn numbers(line: &str) -> Vec<u64> {
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// Kinds of qdiscs whose classes are flows. The counters of these classes are not compared.
const FLOWS: [&str; 4] = ["cake", "fq_codel", "sfq", "skbprio"];

fn recorded(stats: &str) -> Said {
    let mut said = Said::new();
    let mut at = None;
    for line in stats.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let ["qdisc" | "class", kind, handle, rest @ ..] = &words[..] {
            let parent = if *handle == "0:" { rest.get(1).copied().unwrap_or("") } else { "" };
            let known = words[0] == "qdisc" || !FLOWS.contains(kind);
            at = known.then(|| format!("{} {kind} {handle}{parent}", words[0]));
        } else if let (Some(name), ["Sent", ..]) = (&at, &words[..]) {
            said.insert(name.clone(), numbers(line)[..4].to_vec());
        } else if let (Some(name), ["backlog", _, packets, ..]) = (&at, &words[..])
            && let Some(counts) = said.get_mut(name)
        {
            counts.extend(numbers(packets));
        }
    }
    said
}

fn ours(views: &[QdiscView]) -> Said {
    let row = |counters: &Counters, held: &Backlog| {
        let Counters { bytes, packets, drops, overlimits, .. } = *counters;
        vec![bytes, packets, drops, overlimits, held.packets.into()]
    };
    let mut said = Said::new();
    for view in views {
        let parent = view.parent.filter(|_| view.handle.major == 0);
        let parent = parent.map_or_else(String::new, |parent| parent.to_string());
        let id = view.kind.id;
        let name = format!("qdisc {id} {:x}:{parent}", view.handle.major);
        said.insert(name, row(&view.counters, &view.backlog));
        for class in &view.classes {
            let name = format!("class {id} {}", class.handle);
            said.insert(name, row(&class.counters, &class.backlog));
        }
    }
    said
}

#[test]
fn counters_are_those_of_linux() {
    let Some(golden) = shared::golden() else { return };
    let entries = fs::read_dir(&golden).expect("readable");
    let mut cases: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    cases.retain(|path| path.join("stats.txt").exists());
    cases.sort();
    let (mut compared, mut failures) = (0, Vec::new());
    for path in &cases {
        let case = Case::read(path).expect("a case");
        let stats = fs::read_to_string(path.join("stats.txt")).expect("readable");
        let (said, ours) = (recorded(&stats), ours(&case.views(1)));
        for (name, theirs) in &said {
            let Some(counts) = ours.get(name) else {
                failures.push(format!("{}: no {name} among {:?}", case.name, ours.keys()));
                continue;
            };
            for (what, (ours, theirs)) in NAMES.iter().zip(counts.iter().zip(theirs)) {
                // If the outcome of a case is random, only one number is compared for each qdisc:
                // the sum of the packets sent, dropped and in the backlog.
                if case.mode() == Mode::Exact {
                    compared += 1;
                    if ours != theirs {
                        let told = format!("{}: {name}: {what} {ours}, Linux {theirs}", case.name);
                        failures.push(told);
                    }
                }
            }
            if case.mode() == Mode::Distribution && name.starts_with("qdisc") {
                compared += 1;
                let sum = |counts: &[u64]| counts[1] + counts[2] + counts[4];
                if sum(counts) != sum(theirs) {
                    failures.push(format!("{}: {name}: {counts:?}, Linux {theirs:?}", case.name));
                }
                println!("{}: {name}: {counts:?}, Linux {theirs:?}", case.name);
            }
        }
    }
    assert!(compared > 0, "{} has no cases", golden.display());
    assert!(failures.is_empty(), "{compared} compared\n  {}", failures.join("\n  "));
    println!("{compared} numbers of {} cases are equal", cases.len());
}
