//! Tests of the pages and charts that are made of documents written by hand.

mod bases;
mod pairs;

use std::collections::{BTreeMap, BTreeSet};

use roxmltree::{Document as Xml, Node};
use serde_json::{Value, json};

use super::{Document, charts, page};
use crate::report::chart::png;

/// Returns the document of an experiment with two designs, each with one thread and with 16
/// threads.
fn contention() -> Value {
    let row = |design: &str, threads: u64, rate: f64, cpu: f64, p999: u64| {
        json!({
            "design": design, "threads": threads, "qdisc": "fq",
            "packets_per_second": rate, "packets_per_second_min": rate * 0.9,
            "packets_per_second_max": rate * 1.1,
            "cpu_ns_per_packet": cpu, "cpu_ns_per_packet_min": cpu - 1.0,
            "cpu_ns_per_packet_max": cpu + 1.0,
            "send_ns": {"p50": 100, "p99": 200, "p999": p999, "max": 90_000, "samples": 40},
            "wait_ns": null,
            "drops": {"burst_cap": 3},
            "batch": {"intake_mean": null, "device_mean": 2.5, "device_histogram": []},
            "send_histogram": [{"from": 64, "below": 128, "count": 30},
                               {"from": 128, "below": 256, "count": 0},
                               {"from": 256, "below": 512, "count": 10}],
            "locks": if design == "onramp" { json!([]) } else { json!([lock()]) },
        })
    };
    json!({
        "schema": "onramp.lab.contention", "version": 1,
        "command": ["onramp", "lab", "contention", "--qdisc", "fq limit 7"],
        "machine": {"kernel": "Linux 7", "cpu": "A <b>&fast</b> one", "cpus": 2,
                    "memory_bytes": 17_179_869_184_u64, "load_1m": 0.5, "started_unix": 0},
        "parameters": {"threads": [1, 16], "qdisc": "fq \"limit\" <7>", "pin": false},
        "rows": [row("onramp", 1, 8e6, 125.0, 900), row("busylock", 1, 6e6, 165.0, 1_100),
                 row("onramp", 16, 5e6, 380.0, 1_900), row("busylock", 16, 5e5, 3_800.0, 15_000)],
        "ratios_to_busylock": [
            {"design": "onramp", "threads": 16, "cpu_ns_per_packet": 0.125,
             "cpu_ns_per_packet_min": 0.1, "cpu_ns_per_packet_max": 0.15}],
    })
}

fn lock() -> Value {
    json!({"name": "root", "kind": "spinlock", "acquired": 1_000, "contended": 250,
           "wait_total_ns": 500_000, "wait_max_ns": 9_000, "wait_avg_ns": 2_000.0,
           "hold_mean_ns": 500.0, "hold_max_ns": 7_000, "utilisation": 0.5,
           "contended_share": 0.25, "watched_ns": 1_000_000})
}

fn document(value: &Value) -> Document {
    Document::of(value.clone()).expect("a document")
}

/// Parses the page as XML. The page is XML except for tags that HTML does not close.
fn as_xml(page: &str) -> String {
    let body = page.strip_prefix("<!DOCTYPE html>").expect("the type of the document");
    let metas =
        ["<meta charset=\"utf-8\">", "<meta name=\"viewport\" content=\"width=device-width\">"];
    metas.iter().fold(body.to_owned(), |text, meta| {
        assert!(text.contains(meta), "{meta}");
        text.replace(meta, "")
    })
}

/// Returns, for each series in a chart, the values that its shapes show (`data-figure`), in the
/// order of the shapes.
fn marks(svg: &str) -> BTreeMap<String, Vec<f64>> {
    let xml = Xml::parse(svg).expect("a chart is XML");
    let mut marks: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for node in xml.descendants() {
        if let Some((series, figure)) =
            node.attribute("data-series").zip(node.attribute("data-figure"))
        {
            let figure = figure.parse().expect("a figure");
            marks.entry(series.to_owned()).or_default().push(figure);
        }
    }
    marks
}

/// Returns the texts in a chart.
fn texts(svg: &str) -> Vec<String> {
    let xml = Xml::parse(svg).expect("a chart is XML");
    let texts = xml.descendants().filter(|node| node.has_tag_name("text"));
    texts.filter_map(|node| node.text().map(str::to_owned)).collect()
}

/// Asserts that the page of the document `value` is well-formed and that all coordinates in it are
/// numbers. Returns the page.
fn assert_whole(value: &Value) -> String {
    let documents = [document(value)];
    let page = page(&documents);
    let xml = as_xml(&page);
    let xml = Xml::parse(&xml).unwrap_or_else(|error| panic!("{error}: {page}"));
    for node in xml.descendants() {
        for attribute in node.attributes() {
            let text = attribute.value();
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
    page
}

#[test]
fn every_figure_in_the_charts_is_that_of_the_json() {
    let value = contention();
    let charts: BTreeMap<_, _> = charts(&[document(&value)]).into_iter().collect();
    let rows = value["rows"].as_array().expect("rows");
    let figures = ["/cpu_ns_per_packet", "/packets_per_second", "/send_ns/p999"];
    for path in figures {
        let slug = path[1..].replace(['_', '/'], "-");
        let scaling = marks(&charts[&format!("contention-scaling-{slug}")].svg());
        for design in ["onramp", "busylock"] {
            let of = |row: &&Value| row["design"] == design;
            let want: Vec<_> = rows
                .iter()
                .filter(of)
                .map(|row| row.pointer(path).and_then(Value::as_f64))
                .collect();
            let got: Vec<_> = scaling[design].iter().copied().map(Some).collect();
            assert_eq!(got, want, "{path} of {design}");
        }
        for row in rows {
            let (design, threads) = (row["design"].as_str().expect("a name"), &row["threads"]);
            let bars = marks(&charts[&format!("contention-bars-{slug}-{threads}-threads")].svg());
            let want = row.pointer(path).and_then(Value::as_f64).expect("a figure");
            assert_eq!(bars[design], [want], "{path} of {design}, {threads}");
        }
    }
    let histogram = marks(&charts["contention-send-histogram-16-threads"].svg());
    assert_eq!(histogram["onramp"], [0.75, 0.25], "empty buckets have no mark");
    assert_eq!(charts.len(), 3 + 3 * 2 + 2, "{:?}", charts.keys());
}

#[test]
fn a_page_is_well_formed_complete_and_needs_nothing_else() {
    let page = assert_whole(&contention());
    for outside in ["http", "src=", "<script", "url(", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let xml = as_xml(&page);
    let xml = Xml::parse(&xml).expect("XML");
    let charts: Vec<_> = xml.descendants().filter(|node| node.has_tag_name("svg")).collect();
    assert_eq!(charts.len(), 11);
    for chart in charts {
        assert_eq!(chart.attribute("role"), Some("img"));
        assert!(chart.attribute("aria-label").is_some_and(|label| !label.is_empty()));
        let words = chart.children().find(|node| node.has_tag_name("desc"));
        assert!(words.and_then(|node| node.text()).is_some_and(|text| text.contains("onramp: ")));
    }
    let headings: Vec<_> = xml
        .descendants()
        .filter(|node| node.has_tag_name("th"))
        .filter_map(|th| th.text())
        .collect();
    let perf = ["contended", "total wait", "max wait", "avg wait", "type", "where"];
    assert!(headings.windows(perf.len()).any(|columns| columns == perf), "{headings:?}");
    let whole = |td: Node<'_, '_>| -> String {
        td.descendants().filter(Node::is_text).filter_map(|node| node.text()).collect()
    };
    let cells: Vec<_> = xml.descendants().filter(|n| n.has_tag_name("td")).map(whole).collect();
    for cell in
        ["3.8 µs (3.8 µs – 3.8 µs)", "0.125 (0.1 – 0.15)", "15 µs", "30", "25 %", "75 %", "3"]
    {
        assert!(cells.iter().any(|found| found == cell), "{cell}: {cells:?}");
    }
    for text in ["'fq limit 7'", "1970-01-01T00:00:00Z", "scheme:dark", "@media print"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn markup_in_text_stays_text() {
    let mut value = contention();
    value["rows"][0]["design"] = "<script>alert(\"&\")</script>".into();
    let page = assert_whole(&value);
    assert!(!page.contains("<script") && !page.contains("<b>"));
    for text in ["&lt;script&gt;alert", "A &lt;b&gt;&amp;fast&lt;/b&gt; one", "&lt;7&gt;"] {
        assert!(page.contains(text), "{text}");
    }
    for (name, scene) in charts(&[document(&value)]) {
        Xml::parse(&scene.svg()).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn a_chart_is_a_file_of_its_own() {
    for (name, scene) in charts(&[document(&contention())]) {
        let svg = scene.svg();
        let xml = Xml::parse(&svg).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(xml.root_element().tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
        assert_eq!(svg.matches("http").count(), 1, "nothing but the namespace");
        assert!(svg.contains("prefers-color-scheme:dark"));
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(name.chars().all(plain), "{name}");
        if name.contains("p999") {
            png(&scene).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

#[test]
fn odd_documents_make_pages_too() {
    let rows = |keep: &dyn Fn(&Value) -> bool| {
        let mut value = contention();
        value["rows"].as_array_mut().expect("rows").retain(|row| keep(row));
        value
    };
    assert_whole(&rows(&|row| row["design"] == "onramp"));
    assert_whole(&rows(&|row| row["design"] == "busylock"));
    assert_whole(&rows(&|row| row["threads"] == 16));
    assert_whole(&rows(&|row| row["threads"] == 16 && row["design"] == "onramp"));
    assert!(assert_whole(&rows(&|_| false)).contains("Nothing was measured."));
    // The page must stay well-formed when each figure in turn is replaced by `null`, zero, a
    // negative number, a number too large or too small to draw, a text, and an empty list.
    let replacements =
        [Value::Null, json!(0), json!(-5.0), json!(1e300), json!(1e-300), json!("text"), json!([])];
    for key in contention()["rows"][0].as_object().expect("a row").keys() {
        for replacement in &replacements {
            let mut one = contention();
            one["rows"][0][key] = replacement.clone();
            assert_whole(&one);
            let mut all = contention();
            for row in all["rows"].as_array_mut().expect("rows") {
                row[key] = replacement.clone();
            }
            assert_whole(&all);
        }
    }
    for key in ["machine", "parameters", "command", "ratios_to_busylock"] {
        for replacement in &replacements {
            let mut value = contention();
            value[key] = replacement.clone();
            assert_whole(&value);
        }
    }
    let few = json!({"schema": "onramp.lab.contention", "version": 1, "rows": [{}]});
    assert!(assert_whole(&few).contains("The command line was not recorded."));
}

#[test]
fn many_long_names_fit() {
    let mut value = contention();
    let row = value["rows"][0].clone();
    let row = |n: u64| {
        let mut row = row.clone();
        row["design"] = format!("a-design-with-a-very-long-name-{n}").into();
        row["threads"] = (1 + n % 2).into();
        row
    };
    value["rows"] = (0..80).map(row).collect();
    assert_whole(&value);
}

#[test]
fn an_experiment_that_is_not_known_gets_a_page_of_what_its_rows_have() {
    let row = |path: &str, cpus: u64, ns: f64| {
        json!({"path": path, "cpus": cpus, "ns_per_packet": ns, "ns_per_packet_min": ns,
               "ns_per_packet_max": ns, "mode": if cpus == 1 { "one" } else { "many" }})
    };
    let rows =
        [row("old", 1, 50.0), row("old", 2, 90.0), row("onramp", 1, 40.0), row("onramp", 2, 41.0)];
    let mut value = json!({"schema": "onramp.lab.paths", "version": 1, "rows": rows});
    let page = assert_whole(&value);
    assert!(page.contains("onramp, many with 2 CPUs"), "what differs is part of the name");
    for row in value["rows"].as_array_mut().expect("rows") {
        row["mode"] = "same".into();
    }
    let page = assert_whole(&value);
    assert!(page.contains("onramp with 2 CPUs"), "what does not differ is not");
    let names: BTreeSet<_> =
        charts(&[document(&value)]).into_iter().map(|(name, _)| name).collect();
    let want = ["paths-bars-ns-per-packet-1-cpus", "paths-bars-ns-per-packet-2-cpus"];
    assert!(names.iter().take(2).eq(want.iter()), "{names:?}");
    assert!(names.contains("paths-scaling-ns-per-packet"), "{names:?}");
}

#[test]
fn ratios_stand_at_the_bars_as_they_were_measured() {
    let charts: BTreeMap<_, _> = charts(&[document(&contention())]).into_iter().collect();
    let has = |name: &str, text: &str| {
        let texts = texts(&charts[name].svg());
        assert!(texts.iter().any(|found| found == text), "{text}: {texts:?}");
    };
    let cpu = "contention-bars-cpu-ns-per-packet-16-threads";
    has(cpu, "CPU per packet, 16 threads; × busylock");
    has(cpu, "380 ns, 0.125×");
    has(cpu, "3.8 µs, 1×");
    // The document has no ratios of packet rates, so the report shows the ratios of the medians.
    has("contention-bars-packets-per-second-16-threads", "5 M/s, 10×");
    has("contention-bars-packets-per-second-1-threads", "8 M/s, 1.33×");
}

#[test]
fn a_busy_machine_is_told() {
    let told = "The machine was busy before the run (load 1.5 on 2 CPUs): trust ratios more than";
    let mut value = contention();
    assert!(!assert_whole(&value).contains("was busy"), "0.5 of 2 CPUs");
    value["machine"]["load_1m"] = 1.0.into();
    assert!(!assert_whole(&value).contains("was busy"), "half of them");
    value["machine"]["load_1m"] = 1.5.into();
    assert!(assert_whole(&value).contains(told));
}

#[test]
fn a_build_without_optimisation_is_told() {
    let told = "The program was built without optimisation";
    let mut value = contention();
    assert!(!assert_whole(&value).contains(told), "an older version did not say");
    value["machine"]["optimised"] = true.into();
    assert!(!assert_whole(&value).contains(told));
    value["machine"]["optimised"] = false.into();
    assert!(assert_whole(&value).contains(told));
}

#[test]
fn buckets_stand_at_their_middle() {
    let mut value = contention();
    let bucket = |from: u64, below: u64| json!({"from": from, "below": below, "count": 5});
    // On a logarithmic axis, the middle of a bucket is the geometric mean of its bounds. For these
    // three buckets, which are not equally wide, that is 8, 16 and (rounded) 32.
    let buckets = json!([bucket(4, 16), bucket(8, 32), bucket(31, 33)]);
    value["rows"][2]["send_histogram"] = buckets;
    let charts: BTreeMap<_, _> = charts(&[document(&value)]).into_iter().collect();
    let svg = charts["contention-send-histogram-16-threads"].svg();
    let xml = Xml::parse(&svg).expect("XML");
    let told: Vec<_> = xml
        .descendants()
        .filter(|node| node.attribute("data-series") == Some("onramp"))
        .filter_map(|node| node.children().find_map(|title| title.text()))
        .map(|words| words.split(": ").next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(told, ["onramp, 8 ns", "onramp, 16 ns", "onramp, 32 ns"]);
}

#[test]
fn several_experiments_have_a_table_of_contents_and_names_of_their_own() {
    let mut other = contention();
    other["schema"] = "onramp.lab.loopback".into();
    let documents = [document(&contention()), document(&other), document(&contention())];
    let page = page(&documents);
    let xml = as_xml(&page);
    let xml = Xml::parse(&xml).expect("XML");
    let links = xml.descendants().filter_map(|node| node.attribute("href"));
    let ids: Vec<_> = xml.descendants().filter_map(|node| node.attribute("id")).collect();
    assert_eq!(ids, ["contention", "loopback", "contention-2"]);
    let words = xml.descendants().find(|node| node.attribute("class") == Some("meaning"));
    let words = words.and_then(|node| node.text()).expect("a sentence");
    assert!(words.starts_with("This page shows 3 experiments."), "{words}");
    assert!(links.eq(["#contention", "#loopback", "#contention-2"]));
    let charts = charts(&documents);
    let names: BTreeSet<_> = charts.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), charts.len(), "no file is written twice");
}

#[test]
fn sentences_follow_the_figures() {
    let sentences = |value: &Value| super::reading::sentences(&document(value));
    let mut value = contention();
    let [most, fewest] = &sentences(&value)[..] else { panic!("two sentences") };
    assert!(most.starts_with("onramp with 16 threads: CPU per packet 380 ns, 0.125 times that"));
    assert!(most.contains("of busylock (3.8 µs); packets a second 5 M/s, 10 times"), "{most}");
    assert!(fewest.starts_with("onramp with 1 thread: "), "{fewest}");
    value["rows"][2]["cpu_ns_per_packet"] = 7_600.0.into();
    value["ratios_to_busylock"][0]["cpu_ns_per_packet"] = 2.0.into();
    let worse = &sentences(&value)[0];
    assert!(worse.contains("CPU per packet 7.6 µs, 2 times that of busylock"), "{worse}");
    value["ratios_to_busylock"][0]["cpu_ns_per_packet"] = 0.0125.into();
    let far = &sentences(&value)[0];
    assert!(far.contains("CPU per packet 7.6 µs (busylock: 3.8 µs, 80 times as much)"), "{far}");
}

#[test]
fn a_page_begins_with_what_was_measured_and_what_came_out_and_a_chart() {
    let page = assert_whole(&contention());
    let begin = page.split_once("</h1>").expect("a heading").1;
    let (before, begin) = begin.split_once("<p class=\"meaning\">").expect("a text");
    assert_eq!(before.trim(), "<section id=\"contention\">");
    let (text, rest) = begin.split_once("</p>").expect("its end");
    assert!(text.starts_with("Many threads put packets into one queue at the same time"), "{text}");
    let came_out = "CPU per packet with 16 threads (less is better): busylock (3.8 µs), 8 times \
                    that of onramp (380 ns).";
    assert!(text.ends_with(came_out), "{text}");
    assert!(rest.trim_start().starts_with("<div class=\"charts\">"), "{rest}");
}

#[test]
fn a_ratio_of_millions_is_told_in_words_a_person_uses() {
    let mut value = contention();
    for (row, p999) in [(2, 100), (3, 340_983_300)] {
        value["rows"][row]["send_ns"]["p999"] = p999.into();
    }
    let page = assert_whole(&value);
    assert!(page.contains("100 ns (busylock: 341 ms, 3.41 million times as much)"), "{page}");
    assert!(page.contains("100 ns, &lt;0.001×") && !page.contains("1/"), "{page}");
}

/// Returns the contention document with `count` designs, the last of which takes `last` nanoseconds
/// per packet, and the others 100.
fn crowd(count: u64, last: f64) -> Value {
    let mut value = contention();
    let row = value["rows"][0].clone();
    let row = |n: u64| {
        let mut row = row.clone();
        row["design"] = format!("design-{}", n / 2).into();
        row["threads"] = (1 + n % 2).into();
        let cpu = if n / 2 + 1 == count { last } else { 100.0 };
        for key in ["cpu_ns_per_packet", "cpu_ns_per_packet_min", "cpu_ns_per_packet_max"] {
            row[key] = cpu.into();
        }
        row
    };
    value["rows"] = (0..2 * count).map(row).collect();
    value["ratios_to_busylock"] = json!([]);
    value
}

#[test]
fn many_lines_that_no_reader_can_tell_apart_are_bars() {
    let names = |count| {
        let charts = charts(&[document(&crowd(count, 100.0))]);
        charts.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let lines = |names: &[String]| names.iter().any(|name| name.contains("-scaling-"));
    assert!(lines(&names(12)) && !lines(&names(13)), "{:?}", names(13));
    let page = assert_whole(&crowd(13, 5_000.0));
    let first = page.split_once("<svg").and_then(|(_, rest)| rest.split_once("</svg>"));
    let (first, _) = first.expect("a chart");
    assert!(first.contains(">CPU per packet, 2 threads"), "{first}");
    assert!(first.contains(">5 µs, 50× (cut)</text>"), "{first}");
}

#[test]
fn what_cannot_be_read_is_refused() {
    let told = |value: Value| Document::of(value).expect_err("it is refused");
    assert!(told(json!([])).contains("not a JSON object"));
    assert!(told(json!({"version": 1})).contains("no schema"));
    let other = told(json!({"schema": "onramp.bench.udp", "version": 1, "rows": []}));
    assert!(
        other.contains("onramp.bench.udp") && other.contains("onramp lab wrote with --json"),
        "{other}"
    );
    assert!(told(json!({"schema": "onramp.lab.../etc", "version": 1})).contains("its schema"));
    let newer = told(json!({"schema": "onramp.lab.contention", "version": 2, "rows": []}));
    assert!(newer.contains("version is 2") && newer.contains("reads 1"), "{newer}");
    assert!(told(json!({"schema": "onramp.lab.layout", "rows": []})).contains("version is none"));
    assert!(told(json!({"schema": "onramp.lab.layout", "version": 1})).contains("no rows"));
    let row = json!({"schema": "onramp.lab.layout", "version": 1, "rows": [7]});
    assert!(told(row).contains("not an object"));
    assert!(Document::read("{\"schema\": ").expect_err("cut off").contains("not JSON"));
}
