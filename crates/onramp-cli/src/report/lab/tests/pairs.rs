//! Tests of which rows are compared with each other if the rows of one design differ in their
//! settings.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{assert_whole, charts, contention, document, marks, texts};

/// Returns a document such as `onramp lab kernel --json` writes, with rows of the kernel's path and
/// of Onramp's path. Only Onramp's path has rows with `fq`. The entries of `ratios_to_kernel` lack
/// the key `path`, because all of them are about Onramp's path.
fn kernel() -> Value {
    let row = |path: &str, qdisc: &str, cpus: u64, rate: f64, cpu: f64, above: Option<f64>| {
        let above = |add: f64| above.map_or(Value::Null, |above| (above + add).into());
        let scaling = if cpus == 1 { 1.0 } else { rate / 1e6 };
        json!({
            "path": path, "qdisc": qdisc, "cpus": cpus,
            "packets_per_second": rate, "packets_per_second_min": rate * 0.9,
            "packets_per_second_max": rate * 1.1,
            "cpu_ns_per_packet": cpu, "cpu_ns_per_packet_min": cpu - 1.0,
            "cpu_ns_per_packet_max": cpu + 1.0,
            "above_floor_ns": above(0.0), "above_floor_ns_min": above(-1.0),
            "above_floor_ns_max": above(1.0),
            "scaling": scaling, "scaling_min": scaling, "scaling_max": scaling,
            "cpu_share": 1.0, "cpu_share_min": 1.0, "cpu_share_max": 1.0,
            "packets": 1_000_000 + cpus, "dropped": cpus,
        })
    };
    let ratio = |cpus: u64, rate: f64, above: Option<f64>| {
        json!({"qdisc": "pfifo", "cpus": cpus, "packets_per_second": rate,
               "packets_per_second_min": rate * 0.8, "packets_per_second_max": rate * 1.2,
               "above_floor_ns": above})
    };
    json!({
        "schema": "onramp.lab.kernel", "version": 1, "command": ["onramp", "lab", "kernel"],
        "machine": {"cpus": 2}, "device": "ifb", "why_no_device": null,
        "parameters": {"cpus": [1, 2], "qdiscs": ["pfifo", "fq"], "packet": 120, "seconds": 1.0,
                       "rounds": 2},
        "lacking": [{"path": "kernel", "qdisc": "fq", "why": "unknown"}],
        "rows": [row("kernel", "noqueue", 1, 1e6, 900.0, None),
                 row("kernel", "noqueue", 2, 1.8e6, 910.0, None),
                 row("kernel", "pfifo", 1, 1e6, 1_000.0, Some(100.0)),
                 row("kernel", "pfifo", 2, 0.8e6, 2_110.0, Some(1_200.0)),
                 row("onramp", "none", 1, 1e7, 50.0, None),
                 row("onramp", "none", 2, 2e7, 51.0, None),
                 row("onramp", "pfifo", 1, 1e6, 110.0, Some(60.0)),
                 row("onramp", "pfifo", 2, 1.5e6, 131.0, Some(80.0)),
                 row("onramp", "fq", 1, 4e6, 150.0, Some(100.0)),
                 row("onramp", "fq", 2, 4.5e6, 171.0, Some(120.0))],
        "ratios_to_kernel": [ratio(1, 1.02, None), ratio(2, 1.9, Some(0.0667))],
    })
}

#[test]
fn a_qdisc_is_compared_with_the_same_one_of_the_kernel() {
    let document = document(&kernel());
    let sentences = super::super::reading::sentences(&document);
    let want = [
        "onramp, pfifo with 2 CPUs: packets a second 1.5 M/s, 1.9 times that of kernel, pfifo \
         (800 k/s); CPU per packet above the floor 80 ns (kernel, pfifo: 1.2 µs, 15 times as \
         much); rate divided by that with 1 CPU 1.5 (kernel, pfifo: 0.8); CPU per packet 131 ns \
         (kernel, pfifo: 2.11 µs, 16.1 times as much).",
        "onramp, pfifo with 1 CPU: packets a second 1 M/s, 1.02 times that of kernel, pfifo \
         (1 M/s); CPU per packet above the floor 60 ns (kernel, pfifo: 100 ns); CPU per packet \
         110 ns, 0.11 times that of kernel, pfifo (1 µs).",
    ];
    assert_eq!(sentences, want, "no floor, and not fq, which the kernel lacks");

    let charts: BTreeMap<_, _> = charts(&[document]).into_iter().collect();
    let noted = |name: &str| {
        let texts = texts(&charts[name].svg());
        let (title, rest) = texts.split_first().expect("a title");
        let noted: Vec<_> = rest.iter().filter(|text| text.contains('×')).cloned().collect();
        (title.clone(), noted)
    };
    let (title, notes) = noted("kernel-bars-packets-per-second-2-cpus");
    assert_eq!(title, "Packets a second, 2 CPUs; × kernel with the same qdisc");
    assert_eq!(notes, ["1.5 M/s, 1.9×"], "the kernel's bars have no ratio");
    let (_, notes) = noted("kernel-bars-above-floor-ns-2-cpus");
    assert_eq!(notes, ["80 ns, 0.067×"]);
    let (title, notes) = noted("kernel-bars-above-floor-ns-1-cpus");
    assert_eq!(title, "CPU per packet above the floor, 1 CPU", "null is no ratio");
    assert!(notes.is_empty(), "{notes:?}");
    let (title, notes) = noted("kernel-bars-scaling-2-cpus");
    assert_eq!(
        (title.as_str(), notes.len()),
        ("Rate divided by that of the first number, 2 CPUs", 0)
    );

    let page = assert_whole(&kernel());
    let how = "× is the figure divided by that of kernel with the same qdisc, in the same round; \
               CPU per packet above the floor and CPU per packet median by median.";
    assert!(page.contains(how), "{page}");
    let (_, table) = page
        .split_once("<h3>Divided by the figure of kernel with the same qdisc, in")
        .expect("a table of ratios");
    let (table, _) = table.split_once("</table>").expect("its end");
    assert_eq!(table.matches("onramp, pfifo").count(), 2, "{table}");
    for other in ["kernel,", "onramp, none", "onramp, fq"] {
        assert!(!table.contains(other), "{other} has nothing to be compared with: {table}");
    }
}

#[test]
fn with_many_qdiscs_those_that_both_sides_have_stand_together() {
    let mut value = kernel();
    let rows = value["rows"].as_array().expect("rows").clone();
    let two = |row: &Value| row["path"] == "onramp" && row["qdisc"] == "fq";
    let more = (0..10).flat_map(|n| {
        rows.iter().filter(|row| two(row)).cloned().map(move |mut row| {
            row["qdisc"] = format!("other-{n}").into();
            row
        })
    });
    value["rows"] = rows.iter().cloned().chain(more).collect();
    let charts: BTreeMap<_, _> = charts(&[document(&value)]).into_iter().collect();
    let bars = |name: &str| marks(&charts[name].svg()).into_keys().collect::<Vec<_>>();
    let both = bars("kernel-bars-packets-per-second-2-cpus");
    assert_eq!(both, ["kernel, pfifo", "onramp, pfifo"]);
    let others = bars("kernel-bars-packets-per-second-2-cpus-others");
    assert_eq!(others.len(), 13, "two floors, fq and ten others: {others:?}");
    assert!(!charts.keys().any(|name| name.contains("bars-scaling-1-cpus")), "all would be 1");
    let page = assert_whole(&value);
    let first =
        page.find("<svg").and_then(|at| page[at..].split_once("</title>")).expect("a chart");
    assert!(first.0.contains("Packets a second, 2 CPUs; × kernel with the same qdisc"), "{page}");
    assert_eq!(page.matches("<p class=\"meaning\">").count(), 1, "{page}");
}

#[test]
fn a_headline_about_several_pairs_has_the_greater_side_first() {
    let headline = |fq: f64, pfifo: f64| {
        let mut value = kernel();
        let rows = value["rows"].as_array_mut().expect("rows");
        let mut row = rows[3].clone();
        row["qdisc"] = "fq".into();
        row["packets_per_second"] = fq.into();
        rows.push(row);
        rows[7]["packets_per_second"] = pfifo.into();
        value["ratios_to_kernel"] = json!([]);
        super::super::reading::headline(&document(&value))
    };
    let mixed = "Packets a second with 2 CPUs (more is better): onramp between 0.5 times (fq: \
                 4.5 M/s, not 9 M/s) and 1.88 times (pfifo: 1.5 M/s, not 800 k/s) as much as \
                 kernel.";
    assert_eq!(headline(9e6, 1.5e6), mixed);
    let slower = "Packets a second with 2 CPUs (more is better): kernel between 2 times (fq: \
                  9 M/s, not 4.5 M/s) and 4 times (pfifo: 800 k/s, not 200 k/s) as much as onramp.";
    assert_eq!(headline(9e6, 2e5), slower);
    let mut value = kernel();
    value["rows"].as_array_mut().expect("rows").retain(|row| row["qdisc"] != "pfifo");
    let alone = super::super::reading::headline(&document(&value));
    assert!(alone.ends_with("onramp, fq (4.5 M/s)."), "nothing to compare: {alone}");
}

#[test]
fn a_kernel_that_was_not_measured_is_compared_with_nothing() {
    let mut value = kernel();
    value["rows"].as_array_mut().expect("rows").retain(|row| row["path"] == "onramp");
    value["ratios_to_kernel"] = json!([]);
    let page = assert_whole(&value);
    assert!(page.contains("onramp, fq with 2 CPUs: "), "{page}");
    assert!(!page.contains('×') && !page.contains("Divided by"), "{page}");
}

#[test]
fn lists_of_numbers_that_were_asked_for_are_part_of_the_names() {
    let mut value = contention();
    let rows = value["rows"].as_array().expect("rows").clone();
    let with = |credits: u64| {
        let rows = rows.iter().cloned();
        rows.map(move |mut row| {
            row["credits"] = credits.into();
            row["cpu_ns_per_packet"] =
                (row["cpu_ns_per_packet"].as_f64().expect("a figure") + credits as f64).into();
            row
        })
    };
    value["rows"] = with(16).chain(with(96)).collect();
    value["parameters"]["credits"] = json!([16, 96]);
    value["ratios_to_busylock"] = json!([
        {"design": "onramp", "threads": 16, "credits": 96, "cpu_ns_per_packet": 0.5}]);
    let page = assert_whole(&value);
    for name in ["onramp, 16 credits with 16 threads: ", "onramp, 96 credits with 16 threads: "] {
        assert!(page.contains(name), "{name}: {page}");
    }
    assert!(page.contains("476 ns, 0.5 times that of busylock, 96 credits (3.9 µs)"), "{page}");
    assert!(page.contains("396 ns, 0.104 times that of busylock, 16 credits (3.82 µs)"), "{page}");
    let charts: BTreeMap<_, _> = charts(&[document(&value)]).into_iter().collect();
    let marks = marks(&charts["contention-scaling-cpu-ns-per-packet"].svg());
    assert_eq!(marks["onramp, 16 credits"], [141.0, 396.0]);
    assert_eq!(marks["onramp, 96 credits"], [221.0, 476.0]);
    assert_eq!(marks.len(), 4);
}

#[test]
fn rows_that_nothing_tells_apart_are_numbered() {
    let mut value = contention();
    let mut again = value["rows"][2].clone();
    again["cpu_ns_per_packet"] = 777.0.into();
    value["rows"].as_array_mut().expect("rows").push(again);
    let charts: BTreeMap<_, _> = charts(&[document(&value)]).into_iter().collect();
    let marks = marks(&charts["contention-bars-cpu-ns-per-packet-16-threads"].svg());
    assert_eq!(marks["onramp"], [380.0]);
    assert_eq!(marks["onramp, number 2"], [777.0]);
    assert!(assert_whole(&value).contains("divided by that of busylock, in the same round"));
}
