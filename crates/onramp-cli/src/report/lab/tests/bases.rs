//! Tests of which rows are divided by which, in experiments in which not all rows have the same
//! base.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::reading;
use super::{assert_whole, charts, document, texts};

/// Returns a document such as `onramp lab control --json` writes: the sender's link is one of many
/// queues in three designs, and a tree in two others, which is much slower.
fn control() -> Value {
    let row = |design: &str, rate: f64, stall: f64, ratio: f64, elsewhere: Option<f64>| {
        let reads = !matches!(design, "queues" | "tree");
        let operation =
            json!({"p50": 1_000, "p99": 9_000, "p999": 9_500, "max": 9_900, "samples": 50});
        let spread = |ratio: f64| {
            json!({"packets_per_second": ratio, "packets_per_second_min": ratio - 0.01,
                   "packets_per_second_max": ratio + 0.01})
        };
        let none = json!({"packets_per_second": null, "packets_per_second_min": null,
                          "packets_per_second_max": null});
        json!({
            "design": design,
            "packets_per_second": rate, "packets_per_second_min": rate - 1.0,
            "packets_per_second_max": rate + 1.0,
            "stall_max_ns": stall, "stall_max_ns_min": stall, "stall_max_ns_max": stall,
            "operation_ns": if reads { operation } else { Value::Null },
            "packets": 1_000,
            "ratios_to_undisturbed": spread(ratio),
            "ratios_to_elsewhere": elsewhere.map_or(none, spread),
        })
    };
    json!({
        "schema": "onramp.lab.control", "version": 1, "command": ["onramp", "lab", "control"],
        "machine": {"cpus": 2}, "parameters": {"queues": 10_000, "seconds": 1.0, "rounds": 3},
        "rows": [row("queues", 4e6, 1e6, 1.0, None),
                 row("queues-elsewhere", 3e6, 2e6, 0.76, None),
                 row("queues-read", 2e6, 4e6, 0.52, Some(0.67)),
                 row("tree", 1e6, 2e6, 1.0, None),
                 row("tree-changed", 1.6e5, 8e6, 0.161, None)],
    })
}

/// Returns a document such as `onramp lab wire --json` writes, with one kind of traffic more than
/// there are shapers, and losses.
fn wire() -> Value {
    let row = |path: &str, shaper: Value, rate: f64, ratios: Option<(f64, f64)>| {
        let traffic = if path == "direct" { "tcp" } else { "64" };
        let lost = if traffic == "tcp" { Value::Null } else { 0.25.into() };
        let (to_rate, to_cpu) = ratios.unzip();
        json!({
            "path": path, "traffic": traffic, "shaper": shaper,
            "packets_per_second": rate, "packets_per_second_min": rate - 1.0,
            "packets_per_second_max": rate + 1.0,
            "cpu_ns_per_packet": 2_000.0, "cpu_ns_per_packet_min": 1_900.0,
            "cpu_ns_per_packet_max": 2_100.0,
            "lost_share": lost, "lost_share_min": lost, "lost_share_max": lost,
            "idle_ns": null,
            "rate_to_bridge": to_rate, "rate_to_bridge_min": to_rate,
            "rate_to_bridge_max": to_rate,
            "cpu_to_bridge": to_cpu, "cpu_to_bridge_min": to_cpu, "cpu_to_bridge_max": to_cpu,
            "equal_load_cpu_to_bridge": null, "equal_load_cpu_to_bridge_min": null,
            "equal_load_cpu_to_bridge_max": null,
        })
    };
    json!({
        "schema": "onramp.lab.wire", "version": 1, "command": ["onramp", "lab", "wire"],
        "machine": {"cpus": 2}, "lacking": [],
        "parameters": {"paths": ["direct", "bridge", "onramp"], "traffic": ["64", "tcp"],
                       "shapers": [null, "tbf"], "seconds": 1.0, "rounds": 3},
        "rows": [row("direct", Value::Null, 2e6, None),
                 row("bridge", Value::Null, 8e5, None),
                 row("bridge", "tbf".into(), 1e5, None),
                 row("onramp", Value::Null, 4e5, Some((0.53, 1.9))),
                 row("onramp", "tbf".into(), 1e5, Some((0.97, 1.2)))],
    })
}

/// Returns the title of the chart `name` of the document, and the texts in it that end with a
/// ratio.
fn noted(value: &Value, name: &str) -> (String, Vec<String>) {
    let charts: BTreeMap<_, _> = charts(&[document(value)]).into_iter().collect();
    let chart = charts.get(name).unwrap_or_else(|| panic!("{name}: {:?}", charts.keys()));
    let texts = texts(&chart.svg());
    let (title, rest) = texts.split_first().expect("a title");
    let noted = rest.iter().filter(|text| text.ends_with('×')).cloned().collect();
    (title.clone(), noted)
}

/// Returns the rows of the table with this heading: the texts of the cells, without the ranges.
fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
    let heading = format!("<h3>{heading}</h3>");
    let (_, table) =
        page.split_once(&heading).unwrap_or_else(|| panic!("no heading {heading}: {page}"));
    let (table, _) = table.split_once("</table>").expect("its end");
    let rows = table.split("<tr>").skip(2);
    let text = |cell: &str| {
        let (_, text) = cell.split_once('>').expect("a tag");
        text.split(['<', '\n']).next().unwrap_or_default().trim().to_owned()
    };
    rows.map(|row| row.split("<td").skip(1).map(text).collect()).collect()
}

#[test]
fn a_link_is_compared_with_itself_undisturbed() {
    let value = control();
    let (title, notes) = noted(&value, "control-bars-packets-per-second");
    assert_eq!(title, "Packets a second; × its own link, undisturbed");
    let want = ["4 M/s, 1×", "3 M/s, 0.76×", "2 M/s, 0.52×", "1 M/s, 1×", "160 k/s, 0.161×"];
    assert_eq!(notes, want);
    let (_, notes) = noted(&value, "control-bars-stall-max-ns");
    assert_eq!(notes, ["1 ms, 1×", "2 ms, 2×", "4 ms, 4×", "2 ms, 1×", "8 ms, 4×"]);

    let page = assert_whole(&value);
    let own = table(&page, "Divided by the figure of its own link, undisturbed, in the same round");
    let cells = |name: &str, ratio: &str| vec![name.to_owned(), ratio.to_owned()];
    let want = [("queues-elsewhere", "0.76"), ("queues-read", "0.52"), ("tree-changed", "0.161")];
    assert_eq!(own, want.map(|(name, ratio)| cells(name, ratio)));
    let elsewhere = table(&page, "Divided by the figure of queues-elsewhere, in the same round");
    assert_eq!(elsewhere, [cells("queues-read", "0.67")]);
}

#[test]
fn every_disturbed_link_gets_a_sentence() {
    let sentences = reading::sentences(&document(&control()));
    let want = [
        "queues-elsewhere: packets a second 3 M/s, 0.76 times that of queues (4 M/s); a reading \
         or a change, p99 9 µs; longest stall 2 ms, 2 times that of queues (1 ms).",
        "queues-read: packets a second 2 M/s, 0.52 times that of queues (4 M/s); a reading or a \
         change, p99 9 µs; longest stall 4 ms, 4 times that of queues (1 ms).",
        "tree-changed: packets a second 160 k/s, 0.161 times that of tree (1 M/s); a reading or \
         a change, p99 9 µs; longest stall 8 ms, 4 times that of tree (2 ms).",
    ];
    assert_eq!(sentences, want);
    let headline = "Packets a second (more is better): queues (4 M/s), 1.92 times that of \
                    queues-read (2 M/s).";
    assert_eq!(reading::headline(&document(&control())), headline);
}

/// A link whose undisturbed design was not measured is compared with nothing, above all not with
/// another link.
#[test]
fn a_link_is_not_compared_with_another_link() {
    let mut value = control();
    value["rows"].as_array_mut().expect("rows").retain(|row| row["design"] != "tree");
    let (_, notes) = noted(&value, "control-bars-packets-per-second");
    assert_eq!(notes, ["4 M/s, 1×", "3 M/s, 0.76×", "2 M/s, 0.52×"]);
    let page = assert_whole(&value);
    assert!(page.contains("tree-changed: packets a second 160 k/s; a reading"), "{page}");
}

#[test]
fn a_path_with_a_shaper_is_compared_with_the_bridge_with_that_shaper() {
    let value = wire();
    let (title, notes) = noted(&value, "wire-bars-packets-per-second");
    assert_eq!(title, "Packets a second; × bridge with the same traffic and shaper");
    assert_eq!(notes, ["400 k/s, 0.53×", "100 k/s, 0.97×"]);
    let sentences = reading::sentences(&document(&value));
    let want = [
        "onramp, 64, no shaper: packets a second 400 k/s, 0.53 times that of bridge, 64, no \
         shaper (800 k/s); CPU per packet 2 µs, 1.9 times that of bridge, 64, no shaper (2 µs).",
        "onramp, 64, tbf: packets a second 100 k/s, 0.97 times that of bridge, 64, tbf \
         (100 k/s); CPU per packet 2 µs, 1.2 times that of bridge, 64, tbf (2 µs).",
    ];
    assert_eq!(sentences, want);
    let page = assert_whole(&value);
    let heading =
        "Divided by the figure of bridge with the same traffic and shaper, in the same round";
    let want = [["onramp, 64, no shaper", "0.53", "1.9"], ["onramp, 64, tbf", "0.97", "1.2"]];
    assert_eq!(table(&page, heading), want.map(|row| row.map(str::to_owned).to_vec()));
    assert!(!page.contains("to bridge") && !page.contains("number 2"), "{page}");
}

#[test]
fn without_the_bridge_the_base_is_the_pair_of_devices() {
    let mut value = wire();
    let rows = value["rows"].as_array_mut().expect("rows");
    rows.retain(|row| row["path"] != "bridge" && row["shaper"].is_null());
    for row in rows {
        row["traffic"] = "64".into();
        for key in ["rate_to_bridge", "rate_to_bridge_min", "rate_to_bridge_max"] {
            row[key] = Value::Null;
        }
    }
    let (title, notes) = noted(&value, "wire-bars-packets-per-second");
    assert_eq!(title, "Packets a second; × direct");
    assert_eq!(notes, ["2 M/s, 1×", "400 k/s, 0.2×"]);
    let page = assert_whole(&value);
    assert!(page.contains("Divided by the figure of direct, median by median"), "{page}");
}

#[test]
fn a_share_that_was_lost_is_told_by_what_was_lost() {
    let late = "time lost by late runners";
    let page = assert_whole(&wire());
    assert!(page.contains("datagrams that did not arrive") && !page.contains(late), "{page}");
    let row = json!({"path": "onramp", "kind": "tbf", "rate": 1_000, "lost_share": 0.5,
                     "lost_share_min": 0.4, "lost_share_max": 0.6});
    let pacing = json!({"schema": "onramp.lab.pacing", "version": 1, "rows": [row]});
    assert!(assert_whole(&pacing).contains(late));
}

/// A qdisc of `onramp lab qdisc` has one line, although more flows hold more packets, unless the
/// user names the backlogs. The run wrote no ratios to the binary heap, which it did not measure,
/// so the page computes those to another kind.
#[test]
fn a_backlog_that_follows_the_flows_names_no_line() {
    let row = |design: &str, flows: u64, ns: f64| {
        json!({"design": design, "flows": flows, "backlog": flows.max(256), "classes": null,
               "ns_per_packet": ns, "ns_per_packet_min": ns, "ns_per_packet_max": ns,
               "ratios_to_binary_heap": {"ns_per_packet": null}})
    };
    let rows = [row("pfifo", 1, 10.0), row("fq", 1, 40.0), row("pfifo", 1_000, 20.0)];
    let value = |backlog: Value| {
        json!({"schema": "onramp.lab.qdisc", "version": 1, "command": ["onramp"],
               "machine": {}, "rows": rows,
               "parameters": {"backlog": backlog, "flows": [1, 1_000]}})
    };
    let without = value(json!([]));
    assert_eq!(document(&without).series(), ["pfifo", "fq"]);
    assert_eq!(document(&value(json!([256, 1_000]))).series().len(), 3);
    let page = assert_whole(&without);
    let heading = "Divided by the figure of pfifo, median by median";
    assert_eq!(table(&page, heading), [["fq", "1", "4"].map(str::to_owned).to_vec()]);
}
