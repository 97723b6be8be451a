//! Tests of `onramp lab --html`, `--charts` and `onramp lab report`.

use std::fs;
use std::path::Path;

use super::{assert_fails, read_json, run, stderr};

/// A short run with two designs and two numbers of threads.
const SHORT: &str =
    "lab contention --designs busylock,onramp --threads 1,2 --seconds 0.03 --rounds 1";

/// Runs `line`, which must succeed and print nothing on standard error. Returns what it prints on
/// standard output.
fn done(line: &str) -> String {
    let output = run(line);
    assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
    assert!(stderr(&output).is_empty(), "{line}: {}", stderr(&output));
    String::from_utf8(output.stdout).expect("tables are UTF-8")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("a name");
    let mut names: Vec<_> = entries.map(|entry| name(entry.expect("an entry"))).collect();
    names.sort();
    names
}

#[test]
fn the_page_of_a_run_is_the_page_of_its_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().display();
    let table = done(&format!(
        "{SHORT} --json {inside}/run.json --html {inside}/run.html --charts {inside}/a/charts"
    ));
    assert!(table.contains("2 thread(s)"), "{table}");
    let printed = done(&format!(
        "lab report {inside}/run.json --html {inside}/later.html --charts {inside}/b"
    ));
    assert!(printed.is_empty(), "{printed}");
    let page = |name: &str| fs::read_to_string(folder.path().join(name)).expect("a page");
    assert_eq!(page("run.html"), page("later.html"));
    assert!(page("run.html").contains("onramp lab contention --designs 'busylock,onramp' --thr"));

    let command = &read_json(&folder.path().join("run.json"))["command"];
    assert_eq!((&command[0], &command[2]), (&"onramp".into(), &"contention".into()));

    let charts = names(&folder.path().join("a/charts"));
    assert_eq!(charts, names(&folder.path().join("b")));
    // Each chart is written twice, as SVG and as PNG. For each of three figures there is one chart
    // over the numbers of threads and one chart for each of the two numbers; and there are two
    // histograms.
    assert_eq!(charts.len(), 2 * (3 + 3 * 2 + 2), "{charts:?}");
    assert!(charts.contains(&"contention-bars-cpu-ns-per-packet-2-threads.png".to_owned()));
    for name in charts {
        let bytes = fs::read(folder.path().join("b").join(&name)).expect("a chart");
        let start: &[u8] = if name.ends_with(".png") { b"\x89PNG\r\n" } else { b"<svg xmlns=" };
        assert!(bytes.starts_with(start), "{name}");
    }
}

#[test]
fn every_experiment_has_a_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().display();
    let lines = [
        ("loopback --pairs 1,2", "By number of pairs"),
        ("softirq --clients 1 --burst 4", "Burst to last answer, p99"),
        ("instances --designs llist,onramp --threads 1,2", "By number of threads"),
        ("layout --threads 1,2", "Side by side, 2 threads"),
        ("qdisc --flows 1,300", "Side by side, 1 flow"),
        ("full --ports 1,16", "try-send with 16 ports: own work of a call, p50 "),
        ("kernel --cpus 1 --qdiscs pfifo", "onramp, pfifo with 1 CPU: "),
    ];
    let mut files = Vec::new();
    for (line, part) in lines {
        let name = line.split(' ').next().expect("a name");
        let file = format!("{inside}/{name}.json");
        let options = format!("--seconds 0.05 --rounds 1 --json {file}");
        let output = run(&format!("lab {line} {options} --html -"));
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{line}: {told}");
        let half = name == "kernel" && told.contains("warning: only Onramp's side is measured");
        let without_sfq = name == "qdisc" && told.contains("warning: --flows 1 leaves sfq out");
        assert!(told.is_empty() || half || without_sfq, "{line}: {told}");
        let page = String::from_utf8(output.stdout).expect("a page is UTF-8");
        assert!(!page.contains("of kernel, noqueue"), "floors are not compared: {page}");
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "{page}");
        assert!(page.contains(part) && page.contains("<svg class=\"chart\""), "{line}: {page}");
        files.push(file);
    }
    let page = done(&format!("lab report {} --html -", files.join(" ")));
    for (line, part) in lines {
        let name = line.split(' ').next().expect("a name");
        assert!(page.contains(&format!("href=\"#{name}\"")), "{name} is not in the contents");
        assert!(
            page.contains(&format!("<section id=\"{name}\">")) && page.contains(part),
            "{name}"
        );
    }
}

#[test]
fn what_cannot_be_read_or_written_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().display();
    let file = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).expect("a file");
        format!("{inside}/{name}")
    };
    let good = file("good", r#"{"schema": "onramp.lab.layout", "version": 1, "rows": []}"#);
    let newer = file("newer", r#"{"schema": "onramp.lab.layout", "version": 2, "rows": []}"#);
    let other = file("other", r#"{"schema": "onramp.send", "version": 1}"#);
    let text = file("text", "no JSON");
    let refused: &[(&str, i32, &[&str])] = &[
        (&format!("{good} {newer} --html -"), 1, &["/newer: its version is 2", "reads 1"]),
        (&format!("{other} --html -"), 1, &["/other: its schema is onramp.send"]),
        (&format!("{text} --html -"), 1, &["/text: it is not JSON"]),
        (&format!("{inside}/missing --html -"), 1, &["cannot read", "/missing", "No such file"]),
        (&good, 2, &["--html FILE, --charts DIR or both"]),
        (&format!("{good} --html {good}"), 2, &["--html names", "which is an input"]),
        (&format!("{good} --html {inside}/no/page"), 1, &["cannot write", "make it"]),
        (&format!("{good} --charts {good}"), 1, &["cannot make folder", "a file is in its place"]),
        (&format!("{good} --charts {good}/below"), 1, &["cannot make folder", "name another"]),
        (&format!("{good} --charts /proc/charts"), 1, &["cannot make folder /proc/charts"]),
    ];
    for (line, code, words) in refused {
        assert_fails(&run(&format!("lab report {line}")), *code, words);
    }
    // Each of these runs would take a minute if the program did not refuse it before it starts.
    let long = "lab layout --seconds 60";
    assert_fails(&run(&format!("{long} --charts {good}")), 1, &["cannot make folder"]);
    assert_fails(&run(&format!("{long} --html {inside}")), 1, &["cannot write", "directory"]);
    let same = format!("{long} --html {inside}/x --json {inside}/x");
    assert_fails(&run(&same), 2, &["--json and --html name the same file"]);
    for (json, charts) in [("new", "new"), ("new", "./new/"), ("new", "new/below/it")] {
        for option in ["--json", "--html"] {
            let line = format!("{long} {option} {inside}/{json} --charts {inside}/{charts}");
            assert_fails(&run(&line), 2, &[&format!("{option} names a file where --charts")]);
        }
    }
    assert_eq!(names(folder.path()), ["good", "newer", "other", "text"]);
    let kept = fs::read_to_string(&good).expect("the file");
    assert!(kept.starts_with("{\"schema\""), "{kept}");
}
