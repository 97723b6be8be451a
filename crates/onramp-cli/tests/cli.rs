//! Tests that run the program as its users do.

#[path = "cli/aqm.rs"]
mod aqm;
#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/completions.rs"]
mod completions;
#[path = "cli/daemon.rs"]
mod daemon;
#[path = "cli/examples.rs"]
mod examples;
#[path = "cli/exec.rs"]
mod exec;
#[path = "cli/fleet.rs"]
mod fleet;
#[path = "cli/front.rs"]
mod front;
#[path = "cli/history.rs"]
mod history;
#[path = "cli/kernel.rs"]
mod kernel;
#[path = "cli/lab.rs"]
mod lab;
#[path = "cli/pages.rs"]
mod pages;
#[path = "cli/replay.rs"]
mod replay;
#[path = "cli/report.rs"]
mod report;
#[path = "cli/send.rs"]
mod send;
#[path = "cli/shape.rs"]
mod shape;
#[path = "cli/sim.rs"]
mod sim;
#[path = "cli/tdc.rs"]
mod tdc;
#[path = "cli/traffic.rs"]
mod traffic;
#[path = "cli/unfinished.rs"]
mod unfinished;
#[path = "cli/watch.rs"]
mod watch;
#[path = "cli/wire.rs"]
mod wire;
#[path = "cli/xdp.rs"]
mod xdp;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// Waits until `is` returns true. Panics with `what` if that takes more than two minutes.
fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    const LOOK: Duration = Duration::from_millis(5);
    let looks = Duration::from_secs(120).as_millis() / LOOK.as_millis();
    let seen = (0..looks).any(|_| {
        is() || {
            thread::sleep(LOOK);
            false
        }
    });
    assert!(seen, "never: {what}");
}

/// Waits until a process has opened the file at `path`.
fn wait_until_open(process: &Child, path: &str) {
    wait_until("the program opens the file", || {
        let open = fs::read_dir(format!("/proc/{}/fd", process.id())).into_iter().flatten();
        let mut open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        open.any(|file| file == Path::new(path))
    });
}

/// Returns a command that runs the program with these arguments. A shell that started the tests in
/// the background made them ignore SIGINT. The program would inherit that and, as it should, go on
/// when a test interrupts it; so `env` gives the signals their usual effect again.
fn onramp<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal=HUP,INT,TERM", env!("CARGO_BIN_EXE_onramp")]);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the program with a line of arguments. A word in single quotes may contain spaces.
fn run(line: &str) -> Output {
    onramp(words(line)).output().expect("the program runs")
}

/// Splits a line at its spaces, but not at those between single quotes.
fn words(line: &str) -> Vec<&str> {
    let quoted = line.split('\'').enumerate();
    quoted
        .flat_map(|(i, part)| if i % 2 == 1 { vec![part] } else { part.split(' ').collect() })
        .filter(|word| !word.is_empty())
        .collect()
}

/// Prints that a test is skipped because the machine lacks something. In CI nothing may be missing,
/// so there this function panics and the test fails.
fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI has all that tests need: {why}");
    // The line goes directly to standard error, because the test harness hides what passing tests
    // print.
    writeln!(std::io::stderr(), "SKIP: {why}").expect("it is open");
}

/// Returns the folder `name` with recordings of Linux, which are not part of the project. The
/// folder is looked for in `shared` beside the repository, or in `$ONRAMP_SHARED` if that variable
/// is set. If there is no such folder, prints that the test is skipped and returns `None`. Panics
/// if `$ONRAMP_SHARED` is set but does not have the folder.
fn reference(name: &str) -> Option<PathBuf> {
    let told = std::env::var_os("ONRAMP_SHARED");
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let folder = told.as_ref().map_or_else(beside, PathBuf::from).join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    let why = format!("no folder {} (set ONRAMP_SHARED)", folder.display());
    assert!(told.is_none(), "{why}");
    writeln!(std::io::stderr(), "SKIP: reference: {why}").expect("it is open");
    None
}

/// Prints that a test is skipped because this machine's kernel lacks a feature.
fn skip_kernel(why: &str) {
    writeln!(std::io::stderr(), "SKIP: kernel: {why}").expect("it is open");
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are UTF-8")
}

/// Asserts that the program failed with exit code `code` and printed one line that contains all of
/// `words`.
fn assert_fails(output: &Output, code: i32, words: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert_eq!(message.lines().count(), 1, "one line: {message}");
    assert!(message.starts_with("onramp: "), "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is missing: {message}");
    }
}

fn read_json(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("the file was written");
    serde_json::from_str(&text).expect("it is JSON")
}

/// Asserts that `object` has exactly the keys that docs/json.md documents: those in the table under
/// `heading`, and the keys that end with `_min` or `_max` in the table's texts. Returns the number
/// of these keys. A key with a dot is a path into an object.
fn assert_documented_keys(heading: &str, object: &Value) -> usize {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let document = fs::read_to_string(path).expect("docs/json.md");
    let mut lines = document.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "docs/json.md has no {heading}");
    let rows = lines.take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with('|'));
    let mut documented: Vec<&str> = Vec::new();
    for row in rows {
        let (first, text) = row[1..].split_once('|').expect("two columns");
        let extremes = quoted(text).filter(|key| key.ends_with("_min") || key.ends_with("_max"));
        for key in quoted(first).chain(extremes) {
            let pointer = format!("/{}", key.replace('.', "/"));
            let there = object.pointer(&pointer).is_some();
            assert!(there, "docs/json.md tells of {key}, but it is not in {object}");
            documented.push(key);
        }
    }
    for key in object.as_object().expect("an object").keys() {
        let below = format!("{key}.");
        let told = documented.iter().any(|told| told == key || told.starts_with(&below));
        assert!(told, "docs/json.md does not tell of {key} under {heading}: {object}");
    }
    documented.len()
}

/// Returns the parts of `text` that stand in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether this process is root and may make namespaces, as root in many containers may not.
fn root() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    let try_it = || {
        let tried = Command::new("unshare").args(["--net", "--mount", "true"]).output();
        rustix::process::geteuid().is_root() && tried.is_ok_and(|tried| tried.status.success())
    };
    *MAY.get_or_init(try_it)
}

/// Copies a program that a test will start, so that every user may read and run it.
///
/// A process of its own writes the copy. If this process wrote it, a child that another test starts
/// at that moment would keep the file open for writing until the child runs its own program, and
/// until then Linux would refuse to run the copy (`ETXTBSY`).
fn install(from: &Path, to: &Path) {
    let status = Command::new("install").arg("--mode=755").args([from, to]).status();
    assert!(status.expect("there is `install`").success(), "{}", to.display());
}

#[test]
fn usage_errors_say_what_is_wrong_and_exit_with_2() {
    let wrong: &[(&str, &[&str])] = &[
        ("bench udp --threads 0", &["--threads", "0"]),
        ("bench udp --threads many", &["--threads", "many"]),
        ("bench udp --size 65508", &["--size", "65508"]),
        ("bench udp --size 0", &["--size"]),
        ("bench udp --seconds 0", &["--seconds", "0.01"]),
        ("bench udp --seconds 5s", &["--seconds", "0.5"]),
        ("bench udp --methods send,fax", &["fax", "onramp"]),
        ("bench udp --to 127.0.0.1:many", &["--to", "192.0.2.7:4000"]),
        ("bench udp --to 127.0.0.1:0", &["--to", "port 0"]),
        ("bench udp --to 127.0.0.1 --verify", &["--verify"]),
        ("bench udp --to 127.0.0.1 --sink veth", &["--sink"]),
        ("bench udp --stall 1", &["--verify"]),
        ("bench udp --verify --seconds 1 --stall 1", &["--stall", "less"]),
        ("bench udp --verify --size 23", &["--size 23", "24"]),
        ("bench udp --qdisc wfq", &["--qdisc", "wfq", "fq"]),
        ("bench udp --qdisc 'fq maxrate 8miles'", &["--qdisc", "8miles"]),
        ("bench udp --qdisc 'fq speed 8mbit'", &["--qdisc", "speed"]),
        ("bench udp --qdisc 'pfifo limit'", &["--qdisc", "limit"]),
        ("bench udp --queues 0", &["--queues"]),
        ("bench udp --rounds 0", &["--rounds"]),
        ("bench udp --frobnicate", &["--frobnicate"]),
        ("send udp://127.0.0.1:9 --from -x", &["unexpected argument '-x' found; try --help"]),
        ("send udp://a@b:9 --from -", &["\"a@b\" is not a host", "udp://HOST:PORT"]),
        ("bench tcp", &["tcp"]),
        ("lab tcp", &["tcp"]),
        ("lab contention --designs spinlock,fifo", &["--designs fifo", "llist", "peers"]),
        ("lab contention --threads 0", &["--threads", "0"]),
        ("lab contention --threads 2,many", &["--threads", "many"]),
        ("lab contention --queues 0", &["--queues"]),
        ("lab contention --qdisc wfq", &["--qdisc", "wfq", "fq"]),
        ("lab contention --device eth0", &["--device", "eth0", "null"]),
        ("lab contention --device-ns long", &["--device-ns", "long"]),
        ("lab contention --seconds 0", &["--seconds", "0.01"]),
        ("lab contention --rounds 0", &["--rounds"]),
        ("lab contention --load rr --burst 0", &["--burst"]),
        ("lab contention --load flood", &["--load", "stream", "rr"]),
        ("send", &["--from", "<URL>"]),
        ("send udp://127.0.0.1 --from -", &["the port is missing"]),
        ("send udp://127.0.0.1:0 --from -", &["port 0"]),
        ("send 127.0.0.1:80 --from -", &["udp://HOST:PORT"]),
        ("send udp://127.0.0.1:9 --from - --loop 2", &["--loop", "standard input"]),
        ("send udp://127.0.0.1:9 --from - --loop 0", &["--loop"]),
        ("send udp://127.0.0.1:9 --from - --rate fast", &["--rate", "10mbit"]),
        ("send udp://127.0.0.1:9 --from - --rate 1mbit --qdisc pfifo", &["--rate", "pfifo"]),
        ("send udp://127.0.0.1:9 --from - --qdisc wfq", &["--qdisc", "wfq"]),
        ("lab loopback --pairs 0", &["--pairs", "0"]),
        ("lab loopback --pairs 1,two", &["--pairs", "two"]),
        ("lab loopback --seconds 0", &["--seconds", "0.01"]),
        ("lab loopback --rounds 0", &["--rounds"]),
        ("lab softirq --clients 0", &["--clients"]),
        ("lab softirq --burst 0", &["--burst"]),
        ("lab softirq --clients 100 --burst 64", &["12800", "8192", "fewer clients"]),
        ("lab instances --designs fax", &["--designs", "fax", "onramp"]),
        ("lab instances --qdisc wfq", &["--qdisc", "wfq"]),
        ("lab instances --threads 1,-2", &["--threads"]),
        ("lab layout --threads many", &["--threads", "many"]),
        ("lab full --ports 0", &["--ports", "0", "16384"]),
        ("lab full --ports 1,many", &["--ports", "many"]),
        ("lab full --seconds 3001", &["--seconds 3001", "3000", "more rounds"]),
        ("lab full --rounds 0", &["--rounds"]),
    ];
    for (line, words) in wrong {
        let output = run(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert_fails(&output, 2, words);
        assert!(output.stdout.is_empty(), "{line}");
    }
}

#[test]
fn help_has_examples_and_is_no_failure() {
    let labs =
        ["contention", "control", "full", "loopback", "softirq", "instances", "layout", "aqm"];
    let labs = labs.map(|lab| format!("lab {lab} --help"));
    let others = ["--help", "demo --help", "bench udp --help", "send --help", "replay --help"];
    for line in others.into_iter().chain(labs.iter().map(String::as_str)) {
        let output = run(line);
        let help = String::from_utf8(output.stdout).expect("help is UTF-8");
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(help.contains("Examples:\n  onramp "), "{line}: {help}");
        let (_, examples) = help.split_once("Examples:\n").expect("examples");
        let wanted = if line.starts_with("demo") { 2 } else { 3 };
        assert!(examples.lines().count() >= wanted, "{line}: {examples}");
    }
    assert_eq!(run("").status.code(), Some(2));
    assert_eq!(run("bench").status.code(), Some(2));
    assert_eq!(run("lab").status.code(), Some(2));
}

#[test]
fn reports_that_cannot_be_written_are_told_before_anything_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().display();
    // Each of these runs would take a minute if the program did not refuse it before it starts.
    for option in ["--json", "--html"] {
        let missing = format!("bench udp --seconds 60 {option} {inside}/missing/out");
        assert_fails(&run(&missing), 1, &["cannot write", "/missing; make it"]);
        let directory = format!("bench udp --seconds 60 {option} {inside}");
        assert_fails(&run(&directory), 1, &["cannot write", "directory"]);
    }
    fs::write(folder.path().join("file"), "kept").expect("a file");
    let long = "n".repeat(256);
    let wrong: &[(&str, &str)] = &[
        ("/proc/onramp.html", "no file can be made in folder /proc; name a file in another"),
        (&format!("{inside}/file/out"), "file is not a folder; name a file in a folder"),
        (&format!("{inside}/new/"), "it names a directory; name a file"),
        (&format!("{inside}/{long}"), "the name is too long; give a shorter one"),
    ];
    for (path, told) in wrong {
        assert_fails(&run(&format!("demo --html {path}")), 1, &["cannot write", told]);
    }
    let left = fs::read_dir(folder.path()).expect("the folder");
    assert_eq!(left.count(), 1, "nothing was made");
}

#[test]
fn two_reports_in_one_file_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().display();
    fs::write(folder.path().join("file"), "kept").expect("a file");
    std::os::unix::fs::symlink("file", folder.path().join("link")).expect("a link");
    for (json, html) in [("file", "file"), ("file", "./file"), ("link", "file"), ("new", "./new")] {
        let line = format!("bench udp --seconds 60 --json {inside}/{json} --html {inside}/{html}");
        assert_fails(&run(&line), 2, &["--json and --html name the same file"]);
    }
    assert_fails(&run("bench udp --seconds 60 --json - --html -"), 2, &["the same file"]);
    let line = format!("send udp://127.0.0.1:9 --from {inside}/file --json {inside}/link");
    assert_fails(&run(&line), 2, &["--json and --from", "the same file"]);
    let kept = fs::read(folder.path().join("file")).expect("the file");
    assert_eq!(kept, b"kept");
}

#[test]
fn words_without_end_are_cut_for_display() {
    let endless = "a".repeat(4_000);
    let lines = [
        (2, format!("bench udp --threads {}", "9".repeat(4_000))),
        (2, format!("bench udp --qdisc 'fq {endless}'")),
        (2, format!("send udp://127.0.0.1:{endless} --from -")),
        (1, format!("bench udp --seconds 60 --json /tmp/{endless}/out.json")),
        (1, format!("send udp://127.0.0.1:9 --from /tmp/{endless}")),
    ];
    for (code, line) in lines {
        let output = run(&line);
        assert_fails(&output, code, &["[...]"]);
        assert!(output.stderr.len() < 1_100, "{}", stderr(&output));
    }
}
