//! The command `cargo xtask test`: installs what tests need, runs all tests, and says which were
//! skipped.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use crate::shell::{cargo, run as shell, show, succeeds};
use crate::{Failure, Outcome};

/// Programs that tests use, with the Debian package of each.
const TOOLS: &[(&str, &str)] = &[
    ("c++", "g++"),
    ("cc", "gcc"),
    ("chromium", "chromium"),
    ("fish", "fish"),
    ("groff", "groff"),
    ("ip", "iproute2"),
    ("gcc", "gcc"),
    ("iperf3", "iperf3"),
    ("make", "make"),
    ("nc", "netcat-openbsd"),
    ("node", "nodejs"),
    ("nm", "binutils"),
    ("ping", "iputils-ping"),
    ("pkg-config", "pkg-config"),
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("python3", "python3"),
    ("redis-server", "redis-server"),
    ("tcpdump", "tcpdump"),
    ("valgrind", "valgrind"),
    ("zsh", "zsh"),
];

/// The beginning of the line that a test writes to standard error if it skips itself because
/// something is missing.
pub(crate) const SKIP: &str = "SKIP:";

/// The beginning of the line of a test that skips itself because the machine's kernel lacks
/// something, which no installation can provide.
const KERNEL: &str = "SKIP: kernel:";

/// The beginning of the line of a test that skips itself because a recording of Linux's behaviour
/// is missing. Tests that need no recording cover the same code.
const REFERENCE: &str = "SKIP: reference:";

/// Runs every test. The arguments after `cargo xtask test` go to `cargo test`.
pub(crate) fn run(args: &[String]) -> Outcome {
    let skipped = set_up();
    let says = |why| format!("{SKIP} {why}");
    let mut skipped: Vec<String> = skipped.into_iter().map(says).collect();
    for why in &skipped {
        eprintln!("xtask: {why}");
    }
    let mut all = vec!["test", "--workspace", "--no-fail-fast"];
    all.extend(args.iter().map(String::as_str));
    let (passed, tally) = tee(&mut cargo(&all))?;
    skipped.extend(tally.skipped);
    eprintln!();
    eprintln!("tests: {} passed, {} failed", tally.passed, tally.failed);
    match skipped.len() {
        0 => eprintln!("tests: nothing was skipped"),
        count => eprintln!("tests: {count} skipped:"),
    }
    for why in &skipped {
        eprintln!("  {why}");
    }
    if !passed {
        return Err(Failure::Failed(format!("{} tests failed, or did not build", tally.failed)));
    }
    let in_ci = std::env::var_os("CI").is_some();
    match mendable(&skipped) {
        1.. if in_ci => Err(Failure::Unable("the tests need what is listed above".into())),
        _ => Ok(()),
    }
}

/// Builds the program `onramp` in the folder `target/debug` just as [`run`] does, with the same
/// features of all crates, so that CI compiles it once.
pub(crate) fn make_program() -> Outcome {
    shell(&mut cargo(&["test", "--workspace", "--no-run", "--test", "cli"]))
}

/// Counts the messages of tests that were skipped because something is missing that could be
/// installed. Any such message makes the command fail in CI, and makes `cargo xtask repeat` fail.
pub(crate) fn mendable(skipped: &[String]) -> usize {
    let mends = |why: &&String| !why.starts_with(KERNEL) && !why.starts_with(REFERENCE);
    skipped.iter().filter(mends).count()
}

/// Installs the programs of [`TOOLS`] that are missing, if xtask runs as root. Returns a message
/// for each program that is still missing, and for missing root rights.
pub(crate) fn set_up() -> Vec<String> {
    let missing: Vec<_> = TOOLS.iter().filter(|(tool, _)| !have(tool)).collect();
    let mut lacks = Vec::new();
    let is_root = succeeds(Command::new("sh").args(["-c", "test \"$(id -u)\" = 0"]));
    if !is_root {
        lacks.push("not root: tests that need a network namespace are skipped".to_owned());
    }
    if is_root && !missing.is_empty() {
        let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
        packages.dedup();
        install(&packages);
    }
    for (tool, package) in missing.iter().filter(|(tool, _)| !have(tool)) {
        lacks.push(format!("no program `{tool}`: install the package {package}"));
    }
    lacks
}

/// Installs the programs that are missing, if xtask runs as root. With each program stand the
/// Debian packages that it needs, divided by spaces.
///
/// # Errors
///
/// Names the first program that is still missing.
pub(crate) fn install_missing(tools: &[(&str, &str)]) -> Outcome {
    for (tool, package) in tools {
        if !have(tool) {
            install(&package.split(' ').collect::<Vec<_>>());
        }
        if !have(tool) {
            let why = format!("no program `{tool}`: install the package {package}");
            return Err(Failure::Unable(why));
        }
    }
    Ok(())
}

fn have(tool: &str) -> bool {
    let on_path = format!("PATH=\"$PATH:/usr/sbin:/sbin\" command -v {tool}");
    succeeds(Command::new("sh").args(["-c", &on_path]))
}

/// Tries to install Debian packages. Reports no error, because the caller checks afterwards which
/// programs are still missing.
fn install(packages: &[&str]) {
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(args).stdin(Stdio::null());
        shell(&mut command).is_ok()
    };
    let mut args = vec!["install", "--yes", "--quiet", "--no-install-recommends"];
    args.extend(packages);
    if !apt(&args) {
        let _ = apt(&["update", "--quiet"]) && apt(&args);
    }
}

/// Results that were read from the output of a test run: numbers of tests, and the messages about
/// skipped tests.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub passed: u64,
    pub failed: u64,
    /// Number of test programs that reported their results.
    pub results: u64,
    /// Each message about a skipped test once.
    pub skipped: Vec<String>,
}

impl Tally {
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result:") {
            self.results += 1;
            self.passed += number_before(result, " passed");
            self.failed += number_before(result, " failed");
        }
        // A program that runs its tests in one thread prints a test's name before it runs the test,
        // and the message follows on the same line.
        let line = match line.split_once(" ... ") {
            Some((test, message)) if test.starts_with("test ") => message.trim(),
            _ => line.trim(),
        };
        if line.starts_with(SKIP) && !self.skipped.iter().any(|seen| seen == line) {
            self.skipped.push(line.to_owned());
        }
    }
}

/// Whether a line is the result of a program that left out some of its tests. A program that runs
/// all its tests may start itself with one of them, in a namespace, and show what that one says.
pub(crate) fn is_partial(line: &str) -> bool {
    line.starts_with("test result:") && number_before(line, " filtered out") > 0
}

fn number_before(text: &str, word: &str) -> u64 {
    let before = text.split(word).next().unwrap_or("");
    before.rsplit(' ').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Runs a command, shows its output, and counts the test results in it. Returns whether the command
/// succeeded, and the counts.
fn tee(command: &mut Command) -> Result<(bool, Tally), Failure> {
    eprintln!("$ {}", show(command));
    let unable = |err| Failure::Unable(format!("`cargo test`: {err}"));
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().map_err(unable)?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let mut tally = Tally::default();
    thread::scope(|scope| {
        let errors = scope.spawn(|| {
            let mut tally = Tally::default();
            forward(err, &mut std::io::stderr(), &mut tally);
            tally
        });
        forward(out, &mut std::io::stdout(), &mut tally);
        tally.skipped.extend(errors.join().map(|tally| tally.skipped).unwrap_or_default());
    });
    let status = child.wait().map_err(unable)?;
    Ok((status.success(), tally))
}

fn forward(from: Option<impl Read>, to: &mut impl Write, tally: &mut Tally) {
    let Some(from) = from else { return };
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        tally.read(&line);
        // If the output of xtask cannot be written any more, the tests go on all the same.
        let _ = writeln!(to, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_skips_are_counted() {
        let mut tally = Tally::default();
        tally.read("test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured");
        tally.read("test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured");
        tally.read("SKIP: no root");
        tally.read("  SKIP: no root");
        tally.read("test skips ... ok");
        tally.read("test skips ... SKIP: no root");
        assert_eq!((tally.passed, tally.failed, tally.results), (19, 3, 2));
        tally.read("SKIP: kernel: no IPv6");
        tally.read("SKIP: reference: no folder");
        tally.read("test reads a file ... SKIP: reference: no file");
        let all = ["SKIP: no root", "SKIP: kernel: no IPv6", "SKIP: reference: no folder"];
        assert_eq!(tally.skipped[..3], all);
        assert_eq!(tally.skipped[3..], ["SKIP: reference: no file"]);
        let whole = "test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; f";
        assert!(!is_partial(whole) && is_partial(&whole.replace("0 filtered", "126 filtered")));
        assert_eq!(mendable(&tally.skipped), 1);
        assert_eq!(mendable(&tally.skipped[1..]), 0, "nobody can install a kernel's module here");
    }
}
