//! Linux's own test cases of `tc`, against the daemon.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Suites of qdiscs that Linux tests its own `tc` with. They are not part of the project.
const RUNNER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/tdc/run.py");

#[test]
fn every_case_of_linux_that_can_run_passes() {
    let python = Command::new("python3").arg("--version").output().is_ok();
    if !Path::new(RUNNER).exists() || !python {
        let why = "SKIP: Linux's cases for tc: ../shared/tdc and python3 are needed";
        // Past the test harness, which hides what passing tests print.
        return writeln!(std::io::stderr(), "{why}").expect("it is open");
    }
    let mut command = Command::new("python3");
    command.args([RUNNER, "--json", "--onramp", env!("CARGO_BIN_EXE_onramp")]);
    let output = command.output().expect("python3 runs");
    let text = String::from_utf8(output.stdout).expect("it prints text");
    let suites: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let sum = |key: &str| suites.iter().filter_map(|suite| suite[key].as_u64()).sum::<u64>();
    let failures: Vec<&Value> = suites.iter().map(|suite| &suite["failures"]).collect();
    assert_eq!(sum("failed"), 0, "{failures:#?}");
    assert!(sum("passed") > 100, "{text}");
}
