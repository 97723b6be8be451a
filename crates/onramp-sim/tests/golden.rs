//! What a real Linux 7.2 recorded, against ours.
//!
//! The traces lie outside the project, in `../shared/golden` beside the repository or in
//! `$ONRAMP_SHARED/golden`; without them the test says so and passes.

use std::fs;
use std::path::{Path, PathBuf};

use onramp_sim::recording::Case;

#[test]
fn as_linux_did() {
    let shared = std::env::var_os("ONRAMP_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let golden = shared.join("golden");
    let Ok(entries) = fs::read_dir(&golden) else {
        eprintln!("SKIPPED: no recordings at {} (set ONRAMP_SHARED)", golden.display());
        return;
    };
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
