//! Tests of `onramp sim`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{
    assert_documented_keys, assert_fails, onramp, read_json, run, stderr, wait_until, words,
};

/// A scenario that is simulated fast: a small machine, and 400 microseconds.
pub(crate) const SMALL: &str = r#"
name = "small"
title = "Four senders, two ports"
machine = "desktop-amd"
threads = 4
placement = "pinned"
ports = 2
qdisc = "fq"
payload = 120
warm_up_us = 100
measure_us = 300
"#;

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn small(folder: &Path) -> String {
    let path = folder.join("small.toml");
    fs::write(&path, SMALL).expect("a file");
    path.display().to_string()
}

#[test]
fn a_prediction_is_repeatable_and_documented() {
    let folder = tempfile::tempdir().expect("a folder");
    let scenario = small(folder.path());
    let predict = |options: &str| {
        let output = run(&format!("sim run {scenario} {options} --json -"));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        output.stdout
    };
    let text = predict("--draws 3 --seed 5");
    assert_eq!(text, predict("--draws 3 --seed 5"), "the same seed, the same bytes");
    let results: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!((&results["schema"], &results["version"]), (&"onramp.sim.run".into(), &1.into()));
    assert_documented_keys("## `onramp.sim.run`, version 1", &results);
    assert_documented_keys("### The scenario", &results["scenario"]);
    let draws = results["draws"].as_array().expect("a list");
    assert_eq!(draws.len(), 3);
    let mut rates = Vec::new();
    for draw in draws {
        assert_documented_keys("### Each of `draws`", draw);
        assert_documented_keys("### Each of `sites`", &draw["sites"][0]);
        assert_documented_keys("### Each of `fields`", &draw["fields"][0]);
        assert!(draw["paced"].is_null() && draw["changes"].is_null(), "{draw}");
        let shares = draw["time_share"].as_object().expect("an object");
        let sum: f64 = shares.values().filter_map(Value::as_f64).sum();
        assert!((sum - 1.0).abs() < 1e-3, "{draw}");
        let in_octaves: u64 = draw["send_ns_octaves"]
            .as_object()
            .expect("counts")
            .values()
            .filter_map(Value::as_u64)
            .sum();
        assert_eq!(Some(in_octaves), draw["send_ns"]["samples"].as_u64());
        let packets = draw["packets"].as_f64().expect("a number");
        assert!(packets > 10.0, "{draw}");
        rates.push(draw["packets_per_second"].as_f64().expect("a number"));
    }
    assert_ne!(rates[1], rates[2], "each draw has other values");
    rates.sort_by(f64::total_cmp);
    assert_eq!(results["summary"]["packets_per_second"]["median"], json!(rates[1]));
    assert_ne!(text, predict("--draws 3 --seed 6"));
}

#[test]
fn designs_are_compared_under_one_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let scenario = small(folder.path());
    let compare =
        |designs: &str| run(&format!("sim run {scenario} --draws 2 --designs {designs} --json -"));
    let output = compare("onramp,queued");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(output.stdout, compare("onramp,queued").stdout, "the same seed, the same bytes");
    let results: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_documented_keys("## `onramp.sim.run`, version 1", &results);
    let rows = results["designs"].as_array().expect("rows");
    for (row, (design, locks)) in rows.iter().zip([("onramp", 0), ("queued", 2)]) {
        assert_eq!(row["design"], design);
        let draws = row["draws"].as_array().expect("draws");
        assert_eq!(draws.len(), 2);
        for draw in draws {
            assert_documented_keys("### Each of `draws`", draw);
            assert!(draw["packets"].as_u64() > Some(10) && draw["accepted"].as_u64() > Some(10));
            assert_eq!(draw["locks"].as_array().map(Vec::len), Some(locks), "{draw}");
        }
        assert!(row["summary"]["packets_per_second"]["median"].as_f64() > Some(1e5));
    }
    assert_eq!(rows.len(), 2);
    assert_fails(&compare("onramp,mutex"), 2, &["--designs", "\"mutex\"", "llist-queued"]);
    let near = SMALL.replace("ports = 2", "ports = 2\nspread = \"near\"");
    fs::write(&scenario, near).expect("a file");
    assert_fails(&compare("onramp"), 2, &["--designs", "spread = \"turn\""]);
}

/// Runs the small scenario with these fields in addition, and returns its only draw.
fn with(folder: &Path, fields: &str, measure_us: u32) -> Value {
    let path = folder.join("with.toml");
    let text = SMALL.replace("measure_us = 300", &format!("measure_us = {measure_us}\n{fields}"));
    fs::write(&path, text).expect("a file");
    let line = format!("sim run {} --draws 1", path.display());
    let output = run(&format!("{line} --json -"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(output.stdout, run(&format!("{line} --json -")).stdout, "the same seed and bytes");
    let results: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_documented_keys("### The scenario", &results["scenario"]);
    assert_documented_keys("### Each of `draws`", &results["draws"][0]);
    results["draws"][0].clone()
}

/// Four flows at 10 Mbit/s send a packet of 162 bytes every 129.6 us.
#[test]
fn paced_flows_send_at_their_rate() {
    let folder = tempfile::tempdir().expect("a folder");
    let draw = with(folder.path(), "pacing_bits_per_second = 10_000_000", 3_000);
    let paced = &draw["paced"];
    assert_documented_keys("### `paced`", paced);
    assert_eq!((&paced["gap_ns"], &draw["dropped"]), (&json!(129_600), &json!(0)));
    let near = |value: &Value, want: f64, part: f64| {
        let value = value.as_f64().expect("a number");
        assert!((value / want - 1.0).abs() < part, "{value}, not {want}: {draw}");
    };
    near(&paced["share"], 1.0, 0.05);
    near(&paced["packets_per_second"], 4e9 / 129_600.0, 1e-4);
    near(&draw["packets_per_second"], 4e9 / 129_600.0, 0.05);
    near(&paced["gap_mean_ns"], 129_600.0, 0.01);
    assert!(draw["timers_per_second"].as_f64() > Some(1_000.0), "ports sleep: {draw}");
    let text = stdout(&run(&format!("sim run {}/with.toml --draws 1", folder.path().display())));
    assert!(text.contains("of pacing rate %") && text.contains("timers/s"), "{text}");
}

/// In the measured 300 us and the 100 us before them, four changes are due.
#[test]
fn a_command_under_load_takes_effect() {
    let folder = tempfile::tempdir().expect("a folder");
    let draw = with(folder.path(), "changes_per_second = 10_000", 300);
    let changes = &draw["changes"];
    assert_documented_keys("### `changes`", changes);
    assert_eq!((&changes["all"], &changes["per_second"]), (&json!(4), &json!(10_000.0)));
    assert_eq!(changes["change_ns"]["samples"], 3);
    assert!(changes["change_ns"]["p50"].as_u64() > Some(1_000), "{changes}");
    assert!(draw["packets"].as_u64() > Some(100), "the others send on: {draw}");
    let text = stdout(&run(&format!("sim run {}/with.toml --draws 1", folder.path().display())));
    assert!(text.contains("changes/s") && text.contains("change p50 us"), "{text}");
}

#[test]
fn the_page_needs_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let scenario = small(folder.path());
    let line = format!(
        "sim run {scenario} --draws 2 --designs queued,onramp --json {} --html {}",
        at("out.json").display(),
        at("out.html").display()
    );
    let output = run(&line);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (page, results) =
        (fs::read_to_string(at("out.html")).expect("the page"), read_json(&at("out.json")));
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "{page}");
    for outside in ["http:", "https:", "src=", "href=", "<script", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside} is there");
    }
    let (before, _) = page.split_once("<svg ").expect("a chart");
    assert!(before.contains("A simulation predicts") && !before.contains("<table"), "{before}");
    for row in results["designs"].as_array().expect("rows") {
        let rate = &row["summary"]["packets_per_second"]["median"];
        let design = row["design"].as_str().expect("a name");
        let mark =
            format!("data-series=\"{design}\" data-figure=\"{}\"", rate.as_f64().expect("one"));
        assert!(page.contains(&mark), "{mark}: {page}");
        let field = row["draws"][0]["fields"][0]["field"].as_str().expect("a name");
        assert!(page.contains(&format!(">{field}</td>")), "{field}: {page}");
    }
    assert!(page.contains("No thread waits for a lock with onramp."), "{page}");
    // The page of the same command is the same, and then nothing else is printed.
    let again = run(&line.replace(&at("out.html").display().to_string(), "-"));
    assert_eq!(stdout(&again), page);
}

#[test]
fn outputs_that_cannot_be_written_are_named_before_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().display();
    let scenario = small(folder.path());
    // Each of these runs would take minutes if the program did not refuse it before it starts.
    let long = format!("sim run {scenario} --draws 10000");
    assert_fails(&run(&format!("{long} --html {inside}/no/page")), 1, &["cannot write", "make it"]);
    assert_fails(&run(&format!("{long} --html {inside}")), 1, &["cannot write", "directory"]);
    let same = format!("{long} --html {inside}/x --json {inside}/x");
    assert_fails(&run(&same), 2, &["--json and --html name the same file"]);
    // A disk that fills while the page is written: the other file is whole, and the error is told.
    let full = format!("sim run {scenario} --draws 1 --json {inside}/out.json --html /dev/full");
    let output = run(&full);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write /dev/full") && said.contains("free some space"), "{said}");
    assert_eq!(
        read_json(&folder.path().join("out.json"))["draws"].as_array().map(Vec::len),
        Some(1)
    );
    let mut left: Vec<_> = fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["out.json", "small.toml"], "no half file is left");
}

#[test]
fn a_sweep_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let (scenario, file) = (small(folder.path()), folder.path().join("sweep.json"));
    let sweep = |options: &str| {
        let options = format!("--draws 1 --json {} {options}", file.display());
        run(&format!("sim sweep {scenario} --threads 1,4 {options}"))
    };
    let output = sweep("--ports 1,2");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let all = read_json(&file);
    assert_documented_keys("## `onramp.sim.sweep`, version 1", &all);
    let rows = all["rows"].as_array().expect("rows");
    rows.iter().for_each(|row| {
        assert_documented_keys("### Each row of `onramp.sim.sweep`", row);
    });
    let cells: Vec<_> = rows
        .iter()
        .map(|row| json!([row["scenario"]["threads"], row["scenario"]["ports"]]))
        .collect();
    assert!(rows.iter().all(|row| row["design"] == "link"), "{rows:?}");
    assert_eq!(json!(cells), json!([[1, 1], [1, 2], [4, 1], [4, 2]]));
    // An earlier run had done one row, in which one figure is not what it would be again.
    let mut interrupted = all.clone();
    interrupted["rows"].as_array_mut().expect("rows").truncate(1);
    interrupted["rows"][0]["summary"]["packets_per_second"]["median"] = 7.into();
    fs::write(&file, interrupted.to_string()).expect("a file");
    let output = sweep("--ports 1,2 --resume");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let resumed = read_json(&file);
    assert_eq!(resumed["rows"][0], interrupted["rows"][0], "it is not simulated again");
    assert_eq!(resumed["rows"][1], all["rows"][1]);
    assert_eq!(resumed["rows"].as_array().map(Vec::len), Some(4));
    assert_fails(&sweep("--ports 2,1 --resume"), 2, &["another sweep"]);
    fs::write(&file, "{}").expect("a file");
    assert_fails(&sweep("--ports 1,2 --resume"), 2, &["no result of a sweep"]);
}

#[test]
fn a_sweep_compares_designs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (scenario, file) = (small(folder.path()), folder.path().join("sweep.json"));
    let sweep = |options: &str| {
        run(&format!("sim sweep {scenario} --draws 1 --json {} {options}", file.display()))
    };
    let compare = "--ports 1,2 --designs llist,onramp";
    let output = sweep(compare);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = stdout(&output);
    assert!(table.contains("\n4 threads, 2 ports, llist: Mpps "), "{table}");
    let all = read_json(&file);
    let rows = all["rows"].as_array().expect("rows");
    for row in rows {
        assert_documented_keys("### Each row of `onramp.sim.sweep`", row);
        assert!(row["draws"][0]["packets"].as_u64() > Some(10), "{row}");
    }
    let cell = |row: &Value| json!([row["scenario"]["ports"], row["design"]]);
    let cells: Vec<_> = rows.iter().map(cell).collect();
    assert_eq!(json!(cells), json!([[1, "llist"], [1, "onramp"], [2, "llist"], [2, "onramp"]]));
    let locks = |row: &Value| row["draws"][0]["locks"].as_array().map(Vec::len);
    assert_eq!((locks(&rows[0]), locks(&rows[1])), (Some(2), Some(0)), "each is simulated");

    let mut interrupted = all.clone();
    interrupted["rows"].as_array_mut().expect("rows").truncate(1);
    fs::write(&file, interrupted.to_string()).expect("a file");
    let output = sweep(&format!("{compare} --resume"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(read_json(&file), all);
    for other in ["onramp,llist", "llist"] {
        let output = sweep(&format!("--ports 1,2 --resume --designs {other}"));
        assert_fails(&output, 2, &["another sweep"]);
    }
    assert_fails(&sweep("--ports 1,2 --resume"), 2, &["another sweep"]);
}

/// Of several combinations, the first one would be simulated for long.
#[test]
fn a_sweep_checks_all_combinations_before_the_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let scenario = small(folder.path());
    let sweep = |options: &str| {
        let file = folder.path().join("sweep.json");
        run(&format!("sim sweep {scenario} --draws 10000 --json {} {options}", file.display()))
    };
    let refused = |options: &str, words: &[&str]| {
        let output = sweep(options);
        assert_fails(&output, 2, words);
        assert!(!stderr(&output).contains("draw 1"), "nothing is simulated: {}", stderr(&output));
    };
    refused("--threads 1,99", &["99 threads, 2 ports: ", "99 pinned threads, 32 processors"]);
    let names = "--threads 1,2 --designs onramp,mutex";
    refused(names, &["--designs: 1 threads, 2 ports, mutex: ", "llist-queued"]);
    let near = SMALL.replace("ports = 2", "ports = 2\nspread = \"near\"");
    fs::write(&scenario, near).expect("a file");
    refused("--designs onramp", &["4 threads, 2 ports, onramp", "spread = \"turn\""]);
    assert!(!folder.path().join("sweep.json").exists());
}

#[test]
fn scenarios_with_mistakes_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("wrong.toml");
    let wrong = |from: &str, to: &str, code: i32, words: &[&str]| {
        assert!(SMALL.contains(from), "{from}");
        fs::write(&path, SMALL.replace(from, to)).expect("a file");
        let output = run(&format!("sim run {} --draws 1", path.display()));
        assert_fails(&output, code, words);
    };
    wrong("threads = 4", "threads = 0", 2, &["at least 1"]);
    wrong("threads = 4", "threads = 400", 2, &["400 pinned threads", "32 processors"]);
    wrong("desktop-amd", "desktop", 2, &["there is no machine", "desktop-intel"]);
    wrong("\"fq\"", "\"htb\"", 2, &["no qdisc \"htb\"", "pfifo, fq"]);
    wrong("desktop-amd", "./none.toml", 2, &["the machine ./none.toml"]);
    wrong("payload = 120", "payload = 65508", 2, &["payload 65508", "at most 65507"]);
    wrong("ports = 2", "port = 2", 2, &["wrong.toml: ", "port"]);
    wrong("ports = 2", "ports = two", 2, &["wrong.toml: line 7: ports: invalid "]);
    wrong("pinned", "nailed", 2, &["nailed"]);
    wrong("payload = 120", "payload = 120\npacing_bits_per_second = 1_000", 2, &["raise one"]);
    wrong("payload = 120", "payload = 120\npacing_bits_per_second = 0", 2, &["0 is not between"]);
    wrong("payload = 120", "payload = 120\npacing_bits_per_second = 'fast'", 2, &["fast"]);
    wrong("payload = 120", "payload = 120\nchanges_per_second = 0", 2, &["changes_per_second: 0"]);
    assert_fails(&run("sim run udp-24"), 2, &["no scenario", "udp-240"]);
    assert_fails(&run("sim run ./none.toml"), 1, &["cannot read ./none.toml"]);
    assert_fails(&run("sim sweep one-port --draws 1 --threads 1 --json -"), 2, &["name a file"]);
}

/// One draw of two measurements, on 480 simulated processors.
#[test]
fn published_figures_stand_beside_predictions() {
    let output =
        run("sim published --only 2025-before-pinned,2025-after-pinned --draws 1 --json -");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let results: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_documented_keys("## `onramp.sim.published`, version 1", &results);
    let rows = results["rows"].as_array().expect("rows");
    rows.iter().for_each(|row| {
        assert_documented_keys("### Each row of `onramp.sim.published`", row);
    });
    let rate = |name: &str| {
        let name = format!("{name}, packets_per_second");
        let row = rows.iter().find(|row| row["name"] == *name).expect("a rate");
        ["published", "predicted"].map(|key| row[key].as_f64().expect("a number"))
    };
    let (before, after) = (rate("before, pinned"), rate("after, pinned"));
    assert_eq!((before[0], after[0]), (41e6, 57e6));
    assert!(before[1] < after[1], "the list is faster: {rows:?}");
    assert_eq!(rate("after, pinned, locks sampled"), [54e6, after[1]]);
    let waits = rows.iter().filter(|row| {
        row["name"].as_str().is_some_and(|name| name.ends_with("lock, contended_per_second"))
    });
    let waits: Vec<_> = waits.map(|row| row["predicted"].as_f64()).collect();
    assert_eq!(waits.len(), 3, "the busylock and the root lock before, the root lock after");
    assert!(waits.iter().all(|wait| *wait > Some(100.0)), "{waits:?}");
    let unpredicted = results["unpredicted"].as_array().expect("figures");
    unpredicted.iter().for_each(|figure| {
        assert_documented_keys("### Each of `unpredicted`", figure);
    });
    let first = &unpredicted[0];
    assert_eq!(first["name"], "after, pinned, slab allocator, contended_per_second");
    assert_eq!(first["published"], 6_559.0);
    let output = run("sim published --only 2009-udp --draws 1 --json -");
    let results: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let says = |row: &Value| (row["published"].as_f64(), row["says"].as_str().map(str::to_owned));
    let rows = results["rows"].as_array().expect("rows");
    let rises =
        rows.iter().find(|row| row["name"].as_str().is_some_and(|it| it.contains("2 send")));
    assert_eq!(rises.map(says), Some((Some(1.0), Some("more".to_owned()))), "{rows:?}");
    assert_fails(&run("sim published --only 2024"), 2, &["--only", "2025-after-free"]);
}

/// Runs `line` in `folder`, and sends it SIGINT as soon as draw number `draw` begins. Returns how
/// it ended, with all that it told.
fn interrupted(line: &str, draw: usize, folder: &Path) -> Output {
    let mut command = onramp(words(line));
    command.current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program runs");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut told = Vec::new();
    let number =
        |line: &str| line.strip_prefix("onramp: ")?.split_once(" of ")?.0.parse::<usize>().ok();
    loop {
        told.push(lines.next().expect("a progress line").expect("UTF-8"));
        if told.last().and_then(|line| number(line)).is_some_and(|number| number >= draw) {
            break;
        }
    }
    assert!(told[0].contains("this run takes about "), "{told:?}");
    assert_eq!(number(&told[1]), Some(1), "the first draw begins after that: {told:?}");
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    told.extend(lines.map(|line| line.expect("UTF-8")));
    let mut output = child.wait_with_output().expect("it ends");
    output.stderr = told.join("\n").into_bytes();
    assert_eq!(output.status.code(), Some(130), "{line}: {told:?}");
    output
}

/// The draws that have ended are printed, and no simulation runs on.
#[test]
fn an_interrupted_simulation_prints_what_has_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    // A line of progress comes after each twentieth of the expected time, but not sooner than after
    // five seconds; so the number of draws depends on the number of processors.
    let draws = 20 * std::thread::available_parallelism().map_or(1, usize::from);
    let line = format!("sim published --only 2009-udp --draws {draws} --json out.json");
    let output = interrupted(&line, 2, folder.path());
    let table = stdout(&output);
    assert!(table.contains(&format!(" of {draws} draws\n")), "{table}");
    assert!(table.contains("\ninterrupted by SIGINT"), "{table}");
    let document = read_json(&folder.path().join("out.json"));
    assert_eq!(document["interrupted"], true);
    let rows = document["rows"].as_array().expect("rows");
    let ended = rows[0]["draws"].as_u64().expect("a number");
    assert!((1..draws as u64).contains(&ended), "{ended}");
    assert!(rows.iter().all(|row| row["draws"] == ended), "{rows:?}");

    let line = format!("sim published --only 2025-before-pinned --draws {draws} --json out.json");
    let output = interrupted(&line, 1, folder.path());
    assert!(stderr(&output).contains("nothing was measured to its end"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    assert_eq!(read_json(&folder.path().join("out.json")), document, "the earlier one stays");

    let output = interrupted("sim run udp-480 --json out.json", 1, folder.path());
    assert!(stderr(&output).contains("nothing was measured to its end"), "{}", stderr(&output));
    assert_eq!(read_json(&folder.path().join("out.json")), document, "the earlier one stays");
}

/// The combinations that are whole are in the file, from which the sweep goes on.
#[test]
fn an_interrupted_sweep_goes_on_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let (scenario, file) = (small(folder.path()), folder.path().join("sweep.json"));
    let file_name = file.display().to_string();
    let threads: Vec<_> = (1..=32).map(|threads| threads.to_string()).collect();
    let threads = threads.join(",");
    let line = format!("sim sweep {scenario} --threads {threads} --draws 3 --json {file_name}");
    let mut command = onramp(words(&line));
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the program runs");
    wait_until("the first combination is written", || file.exists());
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(table.contains("1 threads, 2 ports: ") && !table.contains("32 threads"), "{table}");
    let rows = read_json(&file)["rows"].take();
    let rows = rows.as_array().expect("rows");
    let draws = |row: &Value| row["draws"].as_array().map(Vec::len);
    assert!(rows.iter().all(|row| draws(row) == Some(3)), "only whole ones: {rows:?}");
    let threads: Vec<_> = (1..=rows.len() + 1).map(|threads| threads.to_string()).collect();
    let threads = threads.join(",");
    let line = format!("sim sweep {scenario} --threads {threads} --draws 3 --json {file_name}");
    let output = run(&format!("{line} --resume"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let resumed = read_json(&file)["rows"].take();
    let resumed = resumed.as_array().expect("rows");
    assert_eq!((&resumed[..rows.len()], resumed.len()), (&rows[..], rows.len() + 1));
}

/// Also where standard error is no terminal.
#[test]
fn calibration_says_how_long_it_takes() {
    let mut command = onramp(["sim", "calibrate"]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the program runs");
    let told = BufReader::new(child.stderr.take().expect("a pipe")).lines().next();
    let told = told.expect("a line").expect("UTF-8");
    // The measurement itself would take all processors.
    child.kill().expect("it can be ended");
    child.wait().expect("it ends");
    assert!(told.starts_with("onramp: measures this machine for some seconds"), "{told}");
}
