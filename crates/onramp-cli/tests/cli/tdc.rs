//! Runs Linux's own test cases of `tc` against the daemon.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{reference, skip};

/// Returns the name of each suite in `suites`, with the number of its test cases.
fn cases(suites: &Path) -> Vec<(String, u64)> {
    let folder = fs::read_dir(suites.join("cases")).expect("the cases");
    let mut cases: Vec<_> = folder
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| {
            let text = fs::read_to_string(&path).expect("readable");
            let suite: Value = serde_json::from_str(&text).expect("JSON");
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, suite.as_array().expect("cases").len() as u64)
        })
        .collect();
    cases.sort();
    cases
}

#[test]
fn every_case_of_linux_that_can_run_passes() {
    let Some(suites) = reference("tdc") else { return };
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("python3 is needed for Linux's cases for tc");
    }
    let mut command = Command::new("python3");
    command.arg(suites.join("run.py"));
    command.args(["--json", "--onramp", env!("CARGO_BIN_EXE_onramp")]);
    let output = command.output().expect("python3 runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("it prints text");
    let ran: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let count = |suite: &Value, key: &str| suite[key].as_u64().expect("a count");
    let sum = |key: &str| ran.iter().map(|suite| count(suite, key)).sum::<u64>();
    let failures: Vec<&Value> = ran.iter().map(|suite| &suite["failures"]).collect();
    assert_eq!(sum("failed"), 0, "{failures:#?}");
    let mut told: Vec<_> = ran
        .iter()
        .map(|suite| {
            let cases = ["passed", "failed", "skipped"].map(|key| count(suite, key));
            (suite["suite"].as_str().expect("a name").to_owned(), cases.iter().sum())
        })
        .collect();
    told.sort();
    assert_eq!(
        told,
        cases(&suites),
        "each case of each suite ran, or was told to need other programs"
    );
    assert!(sum("passed") > 0, "{text}");
    // Only a few cases are skipped because they need other programs than `tc` and `ip link`.
    assert!(sum("skipped") < sum("passed"), "{text}");
}
