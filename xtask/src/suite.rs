//! The command `cargo xtask test`: installs what tests need, runs all tests, and says which were
//! skipped.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::num::NonZero;
use std::process::{Command, Stdio};
use std::thread;

use crate::programs::{self, Program};
use crate::shell::{cargo, run as shell, show, succeeds};
use crate::tally::{SKIP, Tally, mendable};
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
    ("pasta", "passt"),
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

/// Runs every test. As many test programs as there are processors run at a time, because most tests
/// wait more than they compute. If there are arguments, they go to `cargo test`, which runs the
/// programs one by one.
pub(crate) fn run(args: &[String]) -> Outcome {
    let skipped = set_up();
    let says = |why| format!("{SKIP} {why}");
    let mut skipped: Vec<String> = skipped.into_iter().map(says).collect();
    for why in &skipped {
        eprintln!("xtask: {why}");
    }
    let (bad, tally) = if args.is_empty() { all()? } else { some(args)? };
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
    if let Some(bad) = bad {
        return Err(Failure::Failed(format!("{} tests failed: {bad}", tally.failed)));
    }
    let in_ci = std::env::var_os("CI").is_some();
    match mendable(&skipped) {
        1.. if in_ci => Err(Failure::Unable("the tests need what is listed above".into())),
        _ => Ok(()),
    }
}

/// Runs all test programs. Returns which of them failed, if any did, and the counts.
fn all() -> Result<(Option<String>, Tally), Failure> {
    let programs = programs::compile()?;
    let folder = tempfile::tempdir()
        .map_err(|err| Failure::Unable(format!("a folder for the output of tests: {err}")))?;
    let jobs = thread::available_parallelism().map_or(1, NonZero::get);
    let file = |of: &Program| folder.path().join(&of.name);
    let ran = programs::run(&programs, jobs, file, |ran, file| {
        let mut said = format!("\n     Ran {} ({} s)\n", ran.name, ran.took.as_secs()).into_bytes();
        said.extend(fs::read(file).unwrap_or_default());
        // If the output of xtask cannot be written any more, the tests go on all the same.
        let _ = std::io::stdout().write_all(&said);
    });
    let (mut bad, mut tally) = (Vec::new(), Tally::default());
    for ran in ran {
        bad.extend(ran.failure.map(|why| format!("{} ({why})", ran.name)));
        tally.add(ran.tally);
    }
    Ok(((!bad.is_empty()).then(|| bad.join(", ")), tally))
}

/// Runs `cargo test` with arguments. Returns why it failed, if it did, and the counts.
fn some(args: &[String]) -> Result<(Option<String>, Tally), Failure> {
    let mut all = vec!["test", "--workspace", "--no-fail-fast"];
    all.extend(args.iter().map(String::as_str));
    let (passed, tally) = tee(&mut cargo(&all))?;
    Ok(((!passed).then(|| "see above".to_owned()), tally))
}

/// Installs the programs of [`TOOLS`] that are missing, if xtask runs as root. Returns a message
/// for each program that is still missing, and for missing root rights.
pub(crate) fn set_up() -> Vec<String> {
    let missing: Vec<_> = TOOLS.iter().filter(|(tool, _)| !have(tool)).collect();
    let mut lacks = Vec::new();
    let is_root = succeeds(Command::new("sh").args(["-c", "test \"$(id -u)\" = 0"]));
    if !is_root {
        lacks.push("not root: tests that need a network namespace are skipped".to_owned());
    } else if !succeeds(Command::new("unshare").args(["--net", "--mount", "true"])) {
        let why = "root may not make namespaces here: tests that need some are skipped";
        lacks.push(why.to_owned());
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
