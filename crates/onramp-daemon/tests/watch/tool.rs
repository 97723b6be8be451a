//! External programs that tests need.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Returns whether the program `tool` can be run. If not, prints a message; in CI, fails.
pub(crate) fn have(tool: &str, package: &str) -> bool {
    let quiet = || Stdio::null();
    let there = Command::new(tool).arg("--version").stdout(quiet()).stderr(quiet()).status();
    if there.is_ok() {
        return true;
    }
    let why = format!("no program `{tool}`: install the package {package}");
    assert!(std::env::var_os("CI").is_none(), "{why}");
    // Write to standard error directly, because the test harness hides what passing tests print.
    writeln!(std::io::stderr(), "SKIP: {why}").expect("it is open");
    false
}

/// A program that runs until this value is dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls `ask` again and again until it returns a value. Panics after two minutes.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1_200 {
        if let Some(found) = ask() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("waited two minutes for {what}");
}
