//! Tests of runs that cannot measure or write everything: a cell fails, a signal comes, or a disk
//! is full. What was measured is shown and written all the same.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{assert_fails, onramp, read_json, root, run, skip, stderr, words};

/// Returns the names of the files in a folder.
fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder");
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = entries.map(|entry| name(entry.expect("an entry"))).collect();
    names.sort();
    names
}

/// In each of these runs some cells fail, and the others are kept.
#[test]
fn a_failed_cell_leaves_the_rest() {
    // The bare queue `floor` has no qdisc. With any other design, the qdisc makes packets that
    // nobody has sent.
    let copies = "--qdisc 'netem duplicate 100%' --designs floor,llist --threads 1";
    let runs = [
        (format!("lab contention {copies} --manners equal"), &["llist"][..], &["floor"][..]),
        (format!("lab instances {copies}"), &["llist"], &["floor"]),
        (
            "lab kernel --cpus 1 --qdiscs 'netem duplicate 100%'".to_owned(),
            &["onramp netem duplicate 100%"],
            &["onramp"],
        ),
    ];
    for (line, failed, kept) in runs {
        assert_kept(&format!("{line} --seconds 0.02 --rounds 2"), failed, kept);
    }
}

/// Asserts that cells whose names begin with the words in `failed` fail in the run `line`, and that
/// its results are those of the designs in `kept`.
fn assert_kept(line: &str, failed: &[&str], kept: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (json, html) = (at("out.json"), at("out.html"));
    let output = run(&format!("{line} --json {} --html {}", json.display(), html.display()));
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{line}: {told}");
    let last = told.lines().last().expect("a message");
    assert!(last.starts_with(&format!("onramp: {} of ", failed.len())), "{line}: {last}");
    let document = read_json(&json);
    let table = String::from_utf8(output.stdout).expect("a table is UTF-8");
    let page = fs::read_to_string(&html).expect("the page");
    let failures = document["failures"].as_array().expect("failures");
    assert_eq!(failures.len(), failed.len(), "{line}: {failures:?}");
    for failure in failures {
        let text = |key: &str| failure[key].as_str().expect("a text");
        let (cell, why) = (text("cell"), text("why"));
        assert!(failed.iter().any(|failed| cell.starts_with(failed)), "{line}: {cell}");
        assert!(table.contains(&format!("\nfailed: {cell}: {why}\n")), "{line}: {table}");
        assert!(page.contains(&format!("Failed: {cell}: ")), "{line}");
    }
    assert_eq!(document["interrupted"], false);
    let name =
        |row: &Value| row["design"].as_str().or_else(|| row["path"].as_str()).map(str::to_owned);
    let rows = document["rows"].as_array().expect("rows");
    let designs: Vec<_> = rows.iter().filter_map(name).filter(|name| name != "kernel").collect();
    assert_eq!(designs, kept, "{line}");
    assert_eq!(files(folder.path()), ["out.html", "out.json"], "{line}");
}

/// Runs `line` with reports in `folder`, and sends it `signal` when step number `step` begins. The
/// run must end and say why. Returns what it printed, and the last line on standard error.
fn stopped(line: &str, step: u32, signal: Signal, folder: &Path) -> (String, String) {
    let at = |name: &str| folder.join(name);
    let (json, html, charts) = (at("out.json"), at("out.html"), at("charts"));
    let mut words: Vec<_> = words(line).into_iter().map(str::to_owned).collect();
    let options = [("--json", &json), ("--html", &html)];
    // The demo writes no JSON.
    for (option, path) in options.into_iter().filter(|it| line != "demo" || it.0 == "--html") {
        words.extend([option.to_owned(), path.display().to_string()]);
    }
    if line.starts_with("lab") {
        words.extend(["--charts".to_owned(), charts.display().to_string()]);
    }
    let mut command = onramp(words.iter().map(String::as_str));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().expect("the program runs");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut told = Vec::new();
    let begun = |line: &str| {
        let (number, _) = line.strip_prefix("onramp: ")?.split_once(" of ")?;
        number.parse::<u32>().ok()
    };
    loop {
        let next = lines.next().expect("a progress line").expect("it is UTF-8");
        told.push(next.clone());
        if begun(&next).is_some_and(|number| number >= step) {
            break;
        }
    }
    assert!(told[0].contains("this run takes about "), "{told:?}");
    let pid = Pid::from_child(&child);
    kill_process(pid, signal).expect("it runs");
    told.extend(lines.map(|line| line.expect("it is UTF-8")));
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(128 + signal.as_raw()), "{line}: {told:?}");
    let last = told.last().expect("a message");
    assert!(last.starts_with("onramp: interrupted by SIG"), "{line}: {told:?}");
    (String::from_utf8(output.stdout).expect("a table is UTF-8"), last.clone())
}

/// Runs `line`, sends it `signal` when step number `step` begins, and returns its JSON. The run
/// must end with what was measured, and leave whole files.
fn interrupted(line: &str, step: u32, signal: Signal) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (json, html, charts) = (at("out.json"), at("out.html"), at("charts"));
    let (table, _) = stopped(line, step, signal, folder.path());
    assert!(table.contains("\ninterrupted by SIG"), "{line}: {table}");
    let page = fs::read_to_string(&html).expect("the page");
    assert!(page.ends_with("</html>\n") && page.contains("The run was interrupted"), "{line}");
    let document = read_json(&json);
    assert_eq!(document["interrupted"], true, "{line}");
    assert_eq!(document["failures"].as_array().map(Vec::len), Some(0), "{line}");
    let charted = charts.exists();
    assert!(!charted || !files(&charts).is_empty(), "{line}: an empty folder is left");
    let left = files(folder.path()).len();
    assert_eq!(left, 2 + usize::from(charted), "{line}: nothing else is left");
    document
}

/// Each of these runs but the demo would last for hours in its first measurement, which has to be
/// cut off. The reports of an earlier run stay.
#[test]
fn every_run_ends_in_the_middle_of_a_measurement() {
    let labs =
        ["contention", "loopback", "softirq", "instances", "layout", "kernel", "control", "full"];
    let labs = labs.map(|lab| format!("lab {lab} --seconds 3000 --rounds 3"));
    let others = [
        "lab qdisc --kinds fq,pfifo --flows 1 --seconds 3000",
        "lab aqm --kinds pfifo,codel --rate 10gbit --seconds 3600 --scenarios heavy",
        "bench udp --threads 2 --seconds 3000",
        "demo",
        "bench udp --threads 2 --seconds 3000 --verify --stall 1000",
        "lab pacing --kinds tbf --rates 1k --without-kernel --seconds 60 --rounds 3",
        "lab wire --paths bridge --traffic 64 --seconds 60 --rounds 3",
    ];
    for line in labs.iter().map(String::as_str).chain(others) {
        if line.starts_with("lab wire") && !root() {
            skip("only root makes the devices of `lab wire`");
            continue;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let reports = ["out.json", "out.html"].map(|name| folder.path().join(name));
        reports.iter().for_each(|path| fs::write(path, "an earlier one").expect("a file"));
        let (table, last) = stopped(line, 1, Signal::INT, folder.path());
        assert!(table.is_empty(), "{line}: {table}");
        assert!(last.contains("nothing was measured to its end, so no report"), "{line}: {last}");
        for path in &reports {
            assert_eq!(fs::read_to_string(path).expect("a file"), "an earlier one", "{line}");
        }
        assert_eq!(files(folder.path()).len(), 2, "{line}");
    }
}

/// The program tells how far it has come every five seconds, so each of these runs lasts that long.
/// A slow qdisc lets the senders sleep for most of that time.
#[test]
fn finished_rounds_of_an_interrupted_run_are_shown() {
    let slow = "--qdisc 'tbf rate 8mbit burst 2kb limit 1mb'";
    let line = "lab contention --designs llist,onramp --manners equal --threads 1 --seconds 0.02";
    let document = interrupted(&format!("{line} --rounds 500 {slow}"), 5, Signal::TERM);
    let rows = document["rows"].as_array().expect("rows");
    let designs: Vec<_> = rows.iter().map(|row| row["design"].as_str()).collect();
    assert_eq!(designs, ["llist", "onramp"].map(Some));
    assert!(rows.iter().all(|row| row["packets_per_second"].is_number()), "{rows:?}");

    let line = "bench udp --threads 2 --methods onramp-inline,onramp --seconds 0.04 --rounds 1000";
    let document = interrupted(&format!("{line} {slow}"), 3, Signal::INT);
    let methods = document["methods"].as_array().expect("methods");
    assert_eq!(methods.len(), 2);
    let rounds = |at: usize| methods[at]["rounds"].as_array().map_or(0, Vec::len);
    let (one, other) = (rounds(0), rounds(1));
    assert!((1..1_000).contains(&one) && one.abs_diff(other) <= 1, "{one} and {other} rounds");
}

/// Runs the program with standard output to /dev/full, on which every write fails.
fn to_full(line: &str) -> Output {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    onramp(line.split(' ')).stdout(full).output().expect("the program runs")
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().display();
    let short = "--seconds 0.02 --rounds 1";
    // Long enough for the thread to get a processor, even beside many others: that it got none
    // would be a second line on standard error.
    let bench = "bench udp --threads 1 --methods send --seconds 0.5 --rounds 1";
    let lines = [
        "--help".to_owned(),
        "--version".to_owned(),
        "lab aqm --help".to_owned(),
        "completions bash".to_owned(),
        "complete tc qd".to_owned(),
        "wire --profiles".to_owned(),
        "replay ../../examples/uplink.pcap --qdisc fq".to_owned(),
        format!("man {folder}/man"),
        bench.to_owned(),
        format!("{bench} --json -"),
        format!("lab layout --threads 1 {short}"),
        format!("lab layout --threads 1 {short} --html -"),
    ];
    for line in lines {
        assert_fails(&to_full(&line), 1, &["cannot write to standard output: No space left"]);
    }
    let output = run(&format!("lab layout --threads 1 {short} --json /dev/full"));
    assert_fails(&output, 1, &["cannot write /dev/full: No space left"]);
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    for line in ["completions bash", "completions zsh", "--help", "lab qdisc --help"] {
        let mut command = onramp(line.split(' '));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().expect("the program runs");
        drop(child.stdout.take());
        let mut told = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut told).expect("it is UTF-8");
        assert_eq!((child.wait().expect("it ends").code(), told), (Some(0), String::new()));
    }
}

#[test]
fn a_folder_into_which_nothing_was_written_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().display();
    // The folder of charts is made first, and then the program refuses the documents.
    fs::write(folder.path().join("text"), "text").expect("a file");
    let report = format!("lab report {inside}/text --html {inside}/page --charts {inside}/a/b");
    assert_fails(&run(&report), 1, &["cannot use", "text: it is not JSON"]);
    assert_eq!(files(folder.path()), ["text"]);
    fs::create_dir(folder.path().join("a")).expect("a folder");
    assert_fails(&run(&report), 1, &["cannot use"]);
    assert_eq!(files(folder.path()), ["a", "text"], "the folder that was there stays");
    assert_eq!(files(&folder.path().join("a")), [""; 0]);
}

/// Runs `script` in a folder on a disk of 64 KiB, which has the file `fill`. Returns what the
/// script printed; `None` if this machine does not allow such a disk.
fn on_a_small_disk(script: &str) -> Option<String> {
    if !root() {
        skip("a small disk needs root");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mount = "mount -t tmpfs -o size=64k none \"$0\" && cd \"$0\" && echo ready";
    let script = format!("{mount} && {script}");
    let words = ["-m", "sh", "-c", &script];
    let mut command = Command::new("unshare");
    command.args(words).arg(folder.path()).env("ONRAMP", env!("CARGO_BIN_EXE_onramp"));
    let output = command.output().expect("util-linux has unshare");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let Some(text) = text.strip_prefix("ready\n") else {
        skip(&format!("a small disk: {}", String::from_utf8_lossy(&output.stderr)));
        return None;
    };
    Some(text.to_owned())
}

#[test]
fn a_full_disk_keeps_what_was_there_and_gets_nothing() {
    // The first run is refused before it measures. The second finds room for a block, but not for
    // the whole page.
    let script = r#"
        echo old >page
        dd if=/dev/zero of=fill bs=4k count=64 2>/dev/null
        "$ONRAMP" lab layout --seconds 3000 --html page --charts new/charts 2>&1
        echo "exit $?"
        rm fill
        dd if=/dev/zero of=fill bs=4k count=14 2>/dev/null
        "$ONRAMP" lab layout --threads 1 --seconds 0.02 --rounds 1 --html page --json - 2>&1 |
            grep '^onramp'
        ls -A; cat page
    "#;
    let Some(printed) = on_a_small_disk(script) else { return };
    let lines: Vec<_> = printed.lines().collect();
    let [first, code, second, rest @ ..] = &lines[..] else { panic!("{lines:?}") };
    let full = "No space left on device";
    assert!(first.starts_with("onramp: cannot write page: ") && first.contains(full), "{first}");
    assert_eq!(*code, "exit 1");
    assert!(second.starts_with("onramp: cannot write ") && second.contains(full), "{second}");
    assert_eq!(rest, ["fill", "page", "old"]);
}
