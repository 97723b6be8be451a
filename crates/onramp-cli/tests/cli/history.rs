//! Tests of `onramp lab loopback`, `softirq`, `instances`, `layout`, `qdisc`, `control` and `full`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{assert_documented_keys, assert_fails, read_json, run, stderr};

/// Runs the experiment `name` with `options`. Returns the JSON document that it wrote and the table
/// that it printed.
fn results(name: &str, options: &str) -> (Value, String) {
    results_of(0.2, name, options)
}

/// Runs the experiment `name` with `options`, in two rounds of `seconds` seconds each. Returns the
/// JSON document that it wrote and the table that it printed.
fn results_of(seconds: f64, name: &str, options: &str) -> (Value, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out.json");
    let file_name = file.display();
    let line = format!("lab {name} --seconds {seconds} --rounds 2 {options} --json {file_name}");
    let output = run(&line);
    assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
    assert!(stderr(&output).is_empty(), "{line}: {}", stderr(&output));
    let document = read_json(&file);
    assert_eq!(document["schema"], format!("onramp.lab.{name}"));
    assert_eq!((&document["version"], &document["parameters"]["rounds"]), (&1.into(), &2.into()));
    assert!(document["machine"]["cpus"].as_u64() > Some(0), "{document}");
    let heading = format!("### Each row of `onramp.lab.{name}`");
    for row in rows(&document) {
        assert!(assert_documented_keys(&heading, row) > 5);
    }
    (document, String::from_utf8(output.stdout).expect("a table is UTF-8"))
}

fn rows(document: &Value) -> &Vec<Value> {
    document["rows"].as_array().expect("rows")
}

/// Returns the value of `key` in each row.
fn column<'a>(document: &'a Value, key: &str) -> Vec<&'a Value> {
    rows(document).iter().map(|row| &row[key]).collect()
}

/// Asserts that the median at `key` lies between the least and the greatest value.
fn assert_spread(row: &Value, key: &str) {
    let [min, median, max] = ["_min", "", "_max"].map(|end| {
        let value = &row[format!("{key}{end}")];
        value.as_f64().unwrap_or_else(|| panic!("{key}{end} is {value}"))
    });
    assert!(min <= median && median <= max, "{key}: {row}");
}

/// Asserts that `ratios` is an object in which the median at `key`, the least and the greatest
/// value are all `null`, as in a row that is compared with nothing.
fn assert_no_spread(ratios: Option<&Value>, key: &str) {
    let none = ["", "_min", "_max"].map(|end| (format!("{key}{end}"), Value::Null));
    assert_eq!(ratios, Some(&Value::Object(none.into_iter().collect())));
}

#[test]
fn loopback() {
    let (document, table) = results("loopback", "--pairs 2,1,2");
    assert_eq!(column(&document, "pairs"), [2, 2, 2, 1, 1, 1]);
    let designs = ["spinlock", "mutex", "per-queue"];
    assert_eq!(column(&document, "design"), designs.repeat(2));
    for row in rows(&document) {
        assert_spread(row, "packets_per_second");
        assert_spread(&row["ratios_to_spinlock"], "packets_per_second");
        if row["design"] == "per-queue" {
            assert!(row["lock"].is_null(), "{row}");
        } else {
            assert_documented_keys("### `lock`", &row["lock"]);
            assert!(row["lock"]["acquired"].as_u64() > Some(0), "{row}");
        }
    }
    assert!(table.contains("no lock") && table.contains("xmit_lock 2 pairs, mutex"), "{table}");
}

/// Asserts that every row of `document` has figures about transactions if the threads sent in
/// bursts, and that no row has any if the threads sent in a stream.
fn assert_transactions(document: &Value, load: &str, burst: Option<u64>) {
    let parameters = &document["parameters"];
    assert_eq!((&parameters["load"], &parameters["burst"]), (&load.into(), &burst.into()));
    for row in rows(document) {
        match burst {
            Some(_) => assert_spread(row, "transactions_per_second"),
            None => assert!(row["transactions_per_second"].is_null(), "{row}"),
        }
        assert!(burst.is_some() || row["latency_ns"].is_null(), "{row}");
    }
}

#[test]
fn loads() {
    for (name, options) in [
        ("loopback", "--pairs 1,3"),
        ("instances", "--threads 1,3 --designs llist,onramp"),
        ("layout", "--threads 1,3"),
    ] {
        let (document, table) = results_of(0.03, name, options);
        assert_transactions(&document, "stream", None);
        assert!(!table.contains("bursts/s") && !table.contains("p99.9"), "{table}");
        for burst in [1, 5, 64] {
            let given = if burst == 64 { String::new() } else { format!("--burst {burst}") };
            let (document, table) = results_of(0.03, name, &format!("{options} --load rr {given}"));
            assert_transactions(&document, "rr", Some(burst));
            assert!(table.contains("bursts/s"), "{table}");
        }
    }
}

#[test]
fn loads_that_cannot_be() {
    for name in ["loopback", "instances", "layout", "contention"] {
        for (wrong, words) in [
            ("--load rr --burst 0", &["--burst", "0", "1 to 32768"][..]),
            ("--load rr --burst 100000", &["--burst", "100000", "1 to 32768"]),
            ("--load foo", &["--load", "foo", "stream", "rr"]),
            ("--burst 5", &["--burst 5", "--load rr"]),
        ] {
            assert_fails(&run(&format!("lab {name} {wrong}")), 2, words);
        }
    }
    let many = run("lab loopback --pairs 2,64 --load rr --burst 32768");
    assert_fails(&many, 2, &["--pairs 64", "--burst 32768", "4194304", "1048576", "smaller"]);
    for (wrong, words) in [
        ("--burst 0", &["--burst", "0", "1 to 4096"][..]),
        ("--burst 100000", &["--burst", "100000", "1 to 4096"]),
        ("--clients 3 --burst 4096", &["--clients 3", "--burst 4096", "8192"]),
        ("--load stream", &["--load"]),
    ] {
        assert_fails(&run(&format!("lab softirq {wrong}")), 2, words);
    }
}

#[test]
fn softirq() {
    let (document, table) = results("softirq", "--clients 2 --burst 8");
    let designs =
        ["wake-always", "in-place", "onramp", "onramp-flush", "onramp-inline", "onramp-dedicated"];
    assert_eq!(column(&document, "design"), designs);
    for row in rows(&document) {
        assert_eq!(row["requests"].as_u64().map(|requests| requests % 8), Some(0), "{row}");
        for key in ["transactions", "calls", "undone", "notifies", "wakeups", "idle_wakeups"] {
            assert_spread(row, &format!("{key}_per_second"));
        }
        assert_spread(row, "restarts_per_second");
        assert_spread(&row["ratios_to_wake_always"], "context_switches_per_second");
    }
    for words in ["bursts of 8", "per burst", "of wake-always", "notified", "restarts"] {
        assert!(table.contains(words), "{words:?} is missing: {table}");
    }
}

#[test]
fn instances() {
    let (document, table) = results("instances", "--threads 1,2 --designs mutex,onramp");
    assert_eq!(column(&document, "threads"), [1, 2, 1, 2]);
    assert_eq!(column(&document, "design"), ["mutex", "mutex", "onramp", "onramp"]);
    rows(&document).iter().for_each(|row| assert_spread(row, "scaling"));
    assert_eq!(document["parameters"]["warm_up_seconds"], 0.04, "a fifth of 0.2 seconds");
    assert!(table.contains("scaling") && table.contains("fairness"), "{table}");
}

#[test]
fn layout() {
    let (document, table) = results("layout", "--threads 2 --pin");
    assert_eq!(column(&document, "design"), ["grouped", "mixed"]);
    let bytes: Vec<_> = column(&document, "bytes").iter().map(|bytes| bytes.as_u64()).collect();
    assert!(bytes[0] > bytes[1], "lines of their own take more room");
    rows(&document).iter().for_each(|row| assert_spread(row, "retries_per_packet"));
    assert!(table.contains("CPU to grouped"), "{table}");
}

#[test]
fn qdisc() {
    let (document, table) = results_of(0.02, "qdisc", "--flows 1,300 --backlog 64,120");
    let designs: BTreeSet<_> =
        column(&document, "design").iter().filter_map(|name| name.as_str()).collect();
    for name in ["pfifo", "fq", "fq-paced", "prio", "binary-heap", "btree-map"] {
        assert!(designs.contains(name), "{name} is missing: {designs:?}");
    }
    assert_eq!(rows(&document).len(), 4 * designs.len());
    for row in rows(&document) {
        assert_spread(row, "ns_per_packet");
        assert!(row["ns_per_packet_min"].as_f64() > Some(0.0), "{row}");
        assert_eq!(row["dropped_share"], 0.0, "the limits leave room: {row}");
        let ratio = row["ratios_to_binary_heap"]["ns_per_packet"].as_f64();
        assert_eq!(row["design"] == "binary-heap", ratio == Some(1.0), "{row}");
    }
    assert!(table.contains("x binary heap"), "{table}");
    let alone = results_of(0.02, "qdisc", "--flows 1 --kinds pfifo").0;
    assert_no_spread(alone["rows"][0].get("ratios_to_binary_heap"), "ns_per_packet");
    // Without `--kinds`, a kind that cannot hold the backlog is left out, and the run succeeds.
    let output = run("lab qdisc --flows 1 --seconds 0.02 --rounds 1");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let warned = "warning: --flows 1 leaves sfq out: sfq holds at most 127 packets";
    assert!(stderr(&output).contains(warned), "{}", stderr(&output));
    assert_fails(&run("lab qdisc --kinds pfifo,foo"), 2, &["--kinds foo", "pfifo, ", "btree-map"]);
}

#[test]
fn control() {
    let (document, table) = results("control", "--queues 50 --readings 300 --changes 200");
    let designs = ["queues", "queues-elsewhere", "queues-read", "tree", "tree-changed"];
    assert_eq!(column(&document, "design"), designs);
    for row in rows(&document) {
        let disturbed = !["queues", "tree"].contains(&row["design"].as_str().unwrap());
        match row["design"] == "queues-read" {
            true => assert_spread(&row["ratios_to_elsewhere"], "packets_per_second"),
            false => assert_no_spread(row.get("ratios_to_elsewhere"), "packets_per_second"),
        }
        assert_spread(row, "packets_per_second");
        assert_spread(row, "stall_max_ns");
        assert_spread(&row["ratios_to_undisturbed"], "packets_per_second");
        assert_eq!(row["operation_ns"].is_null(), !disturbed, "{row}");
        assert_eq!(row["operations_per_second"].is_null(), !disturbed, "{row}");
        assert!(row["packets"].as_u64() > Some(0), "{row}");
    }
    assert!(table.contains("stall us") && table.contains("x undisturbed"), "{table}");
    assert_fails(&run("lab control --queues 0"), 2, &["--queues"]);
    assert_fails(&run("lab control --changes 0"), 2, &["--changes"]);
}

#[test]
fn full() {
    let (document, table) = results_of(0.05, "full", "--ports 16,1,16");
    assert_eq!(column(&document, "ports"), [16, 16, 1, 1]);
    assert_eq!(column(&document, "design"), ["try-send", "busy"].repeat(2));
    let parameters = &document["parameters"];
    assert_eq!(parameters["ports"], serde_json::json!([16, 1]));
    for key in ["qdisc", "payload", "credits", "busy_turns"] {
        assert!(!parameters[key].is_null(), "{key}: {parameters}");
    }
    for row in rows(&document) {
        let (calls, tries) = (row["calls"].as_u64(), row["design"] == "try-send");
        assert!(calls >= Some(4), "two in each round at least: {row}");
        assert_eq!(row["refused"].as_u64(), calls.filter(|_| tries), "{row}");
        for durations in ["own_ns", "took_ns"] {
            assert_eq!(row[durations]["samples"].as_u64(), calls, "{row}");
            let parts = ["p50", "p99", "p999", "max"].map(|part| row[durations][part].as_u64());
            assert!(parts[0].is_some() && parts.is_sorted(), "{durations}: {row}");
        }
        assert_spread(row, "own_max_ns");
        assert_spread(row, "long_per_cpu_second");
        match tries {
            true => assert_spread(row, "ports_per_call"),
            false => assert!(row["ports_per_call"].is_null(), "{row}"),
        }
    }
    let readings = |key| column(&document, key).chunks(2).all(|pair| pair[0] == pair[1]);
    assert!(readings("readings_cpu_ns") && readings("readings_took_ns"), "one for both designs");
    for words in ["own p50", "own max", "max/round us", ">20us/s", "ports/call", "readings"] {
        assert!(table.contains(words), "{words:?} is missing: {table}");
    }
    assert_eq!(table.matches("try-send").count(), 2, "{table}");
}

#[test]
fn json_may_be_standard_output_and_is_all_of_it() {
    let output = run("lab layout --threads 1 --seconds 0.05 --rounds 1 --json -");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_eq!(document["schema"], "onramp.lab.layout");
    // This run would take a minute if the program did not refuse it before it starts.
    let missing = run("lab softirq --seconds 60 --json /proc/nowhere/out.json");
    assert_fails(&missing, 1, &["cannot write", "/proc/nowhere"]);
}
