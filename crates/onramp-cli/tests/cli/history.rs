//! `onramp lab loopback`, `softirq`, `instances` and `layout`.

use serde_json::Value;

use super::{assert_documented_keys, assert_fails, read_json, run, stderr};

/// Runs experiment `name` with `options`; gives the document and the table it printed.
fn results(name: &str, options: &str) -> (Value, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out.json");
    let line = format!("lab {name} --seconds 0.2 --rounds 2 {options} --json {}", file.display());
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

/// Values of a key, row by row.
fn column<'a>(document: &'a Value, key: &str) -> Vec<&'a Value> {
    rows(document).iter().map(|row| &row[key]).collect()
}

/// A median and its extremes are in order.
fn assert_spread(row: &Value, key: &str) {
    let [min, median, max] = ["_min", "", "_max"].map(|end| {
        let value = &row[format!("{key}{end}")];
        value.as_f64().unwrap_or_else(|| panic!("{key}{end} is {value}"))
    });
    assert!(min <= median && median <= max, "{key}: {row}");
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

#[test]
fn softirq() {
    let (document, table) = results("softirq", "--clients 2 --burst 8");
    let designs = ["wake-always", "in-place", "onramp", "onramp-flush"];
    assert_eq!(column(&document, "design"), designs);
    for row in rows(&document) {
        assert_eq!(row["requests"].as_u64().map(|requests| requests % 8), Some(0), "{row}");
        let ours = row["design"].as_str().is_some_and(|design| design.starts_with("onramp"));
        assert_eq!(row["undone_per_second"].is_null(), ours, "{row}");
        assert_spread(row, "transactions_per_second");
    }
    assert!(table.contains("bursts of 8"), "{table}");
}

#[test]
fn instances() {
    let (document, table) = results("instances", "--threads 1,2 --designs mutex,onramp");
    assert_eq!(column(&document, "threads"), [1, 2, 1, 2]);
    assert_eq!(column(&document, "design"), ["mutex", "mutex", "onramp", "onramp"]);
    rows(&document).iter().for_each(|row| assert_spread(row, "scaling"));
    assert!(table.contains("scaling") && table.contains("2 threads"), "{table}");
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
fn json_may_be_standard_output_and_is_all_of_it() {
    let output = run("lab layout --threads 1 --seconds 0.05 --rounds 1 --json -");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_eq!(document["schema"], "onramp.lab.layout");
    // A minute, if it were to run.
    let missing = run("lab softirq --seconds 60 --json /proc/nowhere/out.json");
    assert_fails(&missing, 1, &["cannot write", "/proc/nowhere"]);
}
