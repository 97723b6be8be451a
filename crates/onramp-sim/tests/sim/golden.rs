//! Compares Onramp's runs with recordings of a real Linux 7.2.
//!
//! The recordings are not part of this repository; `shared.rs` says where they are.

use std::fs;
use std::path::PathBuf;

use onramp_sim::recording::Case;

use super::shared;

#[test]
fn as_linux_did() {
    let Some(golden) = shared::golden() else { return };
    let entries = fs::read_dir(&golden).expect("readable");
    let mut cases: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    cases.retain(|path| path.join("tc.txt").exists());
    cases.sort();
    let (mut passed, mut failures) = (0, Vec::new());
    for path in &cases {
        let case = match Case::read(path) {
            Ok(case) => case,
            Err(error) => {
                failures.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        let verdict = case.replay();
        passed += usize::from(verdict.pass);
        failures.extend(verdict.differences.iter().map(|d| format!("{}: {d}", case.name)));
    }
    assert!(!cases.is_empty(), "{} has no cases", golden.display());
    assert!(failures.is_empty(), "{passed} pass\n  {}", failures.join("\n  "));
}
