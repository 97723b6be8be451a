//! Tests of `onramp lab aqm`, and of `docs/aqm`, which the command writes.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{assert_documented_keys, assert_fails, read_json, run, stderr};

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/aqm");
/// If this environment variable is set, the test writes the pages that it would otherwise compare.
const WRITE: &str = "ONRAMP_WRITE_DOCS";

/// Runs `line`, which must succeed, and returns what it prints.
fn done(line: &str) -> String {
    let output = run(line);
    assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
    assert!(stderr(&output).is_empty(), "{line}: {}", stderr(&output));
    String::from_utf8(output.stdout).expect("tables are UTF-8")
}

/// Returns `page` with the fenced blocks of the type `text` brought up to date: each block is
/// replaced by the block of `printed` that has the same words before its first colon, comma or line
/// end.
fn renewed(page: &str, printed: &str) -> String {
    let name = |text: &str| text.split([':', ',', '\n']).next().map(str::to_owned);
    // Empty lines divide `printed` into blocks. The first two are the settings and the qdiscs that
    // all runs share; the page shows them as one block.
    let (first, rest) = printed.split_once("\n\n").expect("blocks");
    let (second, rest) = rest.split_once("\n\n").expect("blocks");
    let common = format!("{first}\n\n{second}");
    let blocks = || std::iter::once(common.as_str()).chain(rest.trim_end().split("\n\n"));
    let mut used = 0;
    let parts: Vec<String> = page
        .split("```")
        .map(|part| match part.strip_prefix("text\n") {
            Some(old) => {
                let block = blocks().find(|block| name(block) == name(old)).expect("it is printed");
                used += 1;
                format!("text\n{block}\n")
            }
            None => part.to_owned(),
        })
        .collect();
    assert_eq!(used, blocks().count(), "each block is shown");
    parts.join("```")
}

#[test]
fn the_documentation_is_what_the_command_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let printed = done(&format!("lab aqm --charts {}", folder.path().display()));
    let write = std::env::var_os(WRITE).is_some();
    let page_path = Path::new(DOCS).join("README.md");
    let page = fs::read_to_string(&page_path).expect("the page");
    let fresh = renewed(&page, &printed);
    if write {
        fs::write(&page_path, &fresh).expect("the page can be written");
    } else {
        assert!(page == fresh, "docs/aqm/README.md is stale: set {WRITE}=1 and run this test");
    }
    let mut charts = 0;
    for entry in fs::read_dir(folder.path()).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|end| end != "svg") {
            continue;
        }
        charts += 1;
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(page.contains(&format!("({name})")), "{name} is not shown");
        let svg = fs::read_to_string(&path).expect("a chart");
        assert!(svg.len() < 30_000, "{name}: {} bytes", svg.len());
        let kept = Path::new(DOCS).join(name);
        if write {
            fs::write(kept, svg).expect("a chart can be written");
        } else {
            let kept = fs::read_to_string(kept).unwrap_or_default();
            assert!(kept == svg, "docs/aqm/{name} is stale: set {WRITE}=1 and run this test");
        }
    }
    let kept = fs::read_dir(DOCS).expect("the folder").count();
    assert_eq!((charts, kept), (22, 23), "nothing else lies there");
}

#[test]
fn every_key_is_documented_and_the_same_command_writes_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let json = at("aqm.json");
    let line =
        "lab aqm --kinds pfifo,fq_codel --scenarios unresponsive,bursts --seconds 8 --seed 7";
    let line = format!("{line} --json {} --html {}", json.display(), at("aqm.html").display());
    let table = done(&line);
    let text = fs::read_to_string(&json).expect("the JSON");
    assert_eq!(table, done(&line));
    assert_eq!(text, fs::read_to_string(&json).expect("the JSON"));

    let document = read_json(&json);
    assert_eq!(document["schema"], "onramp.lab.aqm");
    assert_eq!((&document["version"], document.get("machine")), (&1.into(), None));
    let rows = document["rows"].as_array().expect("rows");
    let cells: Vec<_> =
        rows.iter().map(|row| (row["scenario"].as_str(), row["design"].as_str())).collect();
    let cell = |scenario, design| (Some(scenario), Some(design));
    let [first, second] = ["unresponsive", "bursts"];
    let want = [first, second].map(|one| [cell(one, "pfifo"), cell(one, "fq_codel")]);
    assert_eq!(cells, want.concat());
    let tables = "onramp.lab.aqm";
    let parameters = format!("### `parameters` of `{tables}`");
    assert_documented_keys(&parameters, &document["parameters"]);
    for row in rows {
        assert_documented_keys(&format!("### Each row of `{tables}`"), row);
        assert_documented_keys("### Each of `bulk_flows`", &row["bulk_flows"][0]);
        let there = |key: &str| !row[key].is_null();
        let bursts = row["scenario"] == "bursts";
        for key in ["completion_ns", "voice_sojourn_ns", "video_dropped_share"] {
            assert_eq!(there(key), bursts, "{key}: {row}");
        }
        assert_eq!((there("jain"), there("share_of_fair")), (!bursts, !bursts), "{row}");
        assert!(row["sojourn_ns"]["p99"].as_u64() >= row["sojourn_ns"]["p50"].as_u64());
        let parts = row["sojourn_parts"]["mean_ns"].as_array().map(Vec::len);
        assert_eq!(parts, Some(120));
    }
    assert!(table.starts_with("10Mbit, 8 s after 4 s of warm-up, seed 7\n"), "{table}");

    // `onramp lab report` makes the same page from the run's JSON as the run itself has written.
    let page = fs::read_to_string(at("aqm.html")).expect("the page");
    assert_eq!(page, done(&format!("lab report {} --html -", json.display())));
    for part in ["<h3>unresponsive</h3>", "Short flows, median", "Time is virtual"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("Machine"), "there is none");
}

#[test]
fn marks_are_drops_elsewhere_and_other_kinds_may_come_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("aqm.json");
    let line = "lab aqm --kinds codel,sfq,codel --scenarios ecn --rate 2mbit --seconds 4";
    let table = done(&format!("{line} --json {}", json.display()));
    assert!(table.contains("\ncodel ecn\nsfq\n\necn: "), "{table}");
    let document = read_json(&json);
    let rows = document["rows"].as_array().expect("rows");
    let designs: Vec<_> = rows.iter().map(|row| row["design"].as_str()).collect();
    assert_eq!(designs, [Some("codel"), Some("sfq")]);
    let share = |row: &Value, key: &str| row[key].as_f64().expect("a share");
    assert!(share(&rows[0], "marked_share") > 0.0 && share(&rows[1], "marked_share") == 0.0);
}

#[test]
fn qdiscs_with_parameters_and_trees_come_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (json, tree, rootless) = (at("aqm.json"), at("shaper.tc"), at("rootless.tc"));
    let lines = "# half of the link\n\
                 qdisc add dev eth0 root handle 1: tbf rate 1mbit burst 5kb limit 30kb\n\
                 qdisc add dev eth0 parent 1:1 fq_codel\n";
    fs::write(&tree, lines).expect("it can be written");
    fs::write(&rootless, "# nothing\n").expect("it can be written");
    let rest = "--scenarios mild --rate 2mbit --seconds 4";
    let line = format!("lab aqm --kinds 'fq_codel,fq_codel target 50ms' {rest}");
    let shown = tree.display();
    let table = done(&format!("{line} --setup {shown} --json {}", json.display()));
    let document = read_json(&json);
    let rows = document["rows"].as_array().expect("rows");
    let designs: Vec<_> = rows.iter().map(|row| row["design"].as_str().expect("text")).collect();
    let name = shown.to_string();
    assert_eq!(designs, ["fq_codel", "fq_codel target 50ms", &name]);
    let figure = |at: usize, key: &str| rows[at][key].as_f64().expect("a figure");
    let share = |at: usize| figure(at, "utilisation");
    assert!(share(0) > 0.8 && share(1) > 0.8 && (0.3..0.51).contains(&share(2)), "{table}");
    assert_ne!(rows[0]["sojourn_ns"], rows[1]["sojourn_ns"], "the parameters count");
    let told = document["parameters"]["qdiscs"][&name].as_str().expect("its lines");
    assert!(told.ends_with("; qdisc add dev eth0 parent 1:1 fq_codel"), "{told}");

    let wrong = run(&format!("lab aqm {rest} --setup {}", rootless.display()));
    assert_fails(&wrong, 1, &["rootless.tc: the tree has no root"]);
    let missing = run(&format!("lab aqm {rest} --setup {}", at("missing").display()));
    assert_fails(&missing, 1, &["cannot read", "missing"]);
    assert_fails(&run(&format!("lab aqm {rest} --kinds 'codel speed 1'")), 2, &["speed"]);
}

#[test]
fn what_cannot_be_is_told() {
    for (line, words) in [
        ("--kinds codel,foo", &["--kinds foo", "pfifo, red", "parameters that it needs"][..]),
        ("--kinds tbf", &["--kinds tbf", "rate"]),
        ("--scenarios mild,foo", &["--scenarios foo", "rtt-mix", "all"]),
        ("--rate 10", &["--rate", "100kbit to 10gbit"]),
        ("--rate 1kbit", &["--rate", "100kbit to 10gbit"]),
        ("--seconds 0", &["--seconds", "1"]),
    ] {
        assert_fails(&run(&format!("lab aqm {line}")), 2, words);
    }
}
