//! Tests of how a browser lays out the pages that the program writes. Without Chromium they print
//! that they are skipped.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::replay::files::{MSEC, frame, pcap};
use super::{root, run, skip, stderr};

const WIDTHS: [u32; 3] = [400, 1100, 1920];

/// Designs of the simulator, of which some have locks.
const DESIGNS: &str = "queued,busylock-queued,llist-queued,percpu-queue,onramp";

/// A script that looks at each frame, and writes down everything that is cut or sticks out.
const LOOK: &str = "\
onload = () => {
  const told = [];
  for (const frame of document.querySelectorAll('iframe')) {
    const width = frame.clientWidth, page = frame.contentDocument;
    const tell = (text) => told.push(`${frame.title} at ${width}: ${text}`);
    if (page.documentElement.scrollWidth > width) tell('the page is wider than the window');
    if (!page.querySelector('.meaning')) tell('it has no words to begin with');
    for (const table of page.querySelectorAll('table')) {
      const box = table.closest('.wide');
      if (!box) tell('a table has no box');
      else if ((width > 1000 || box.matches('.cards')) && box.scrollWidth > box.clientWidth) {
        tell('a table is wider than its box: ' + table.tHead.textContent);
      }
    }
    for (const text of page.querySelectorAll('svg text')) {
      const [inner, outer] = [text, text.closest('svg')].map((one) => one.getBoundingClientRect());
      if (inner.left < outer.left - 1 || inner.right > outer.right + 1) {
        tell('a chart cuts: ' + text.textContent);
      }
    }
  }
  document.getElementById('told').textContent = told.join('\\n') + '\\nlooked';
};";

/// Shows the pages at all widths in Chromium. Returns a line for each thing that is cut or sticks
/// out; `None` if there is no Chromium.
fn look(folder: &Path, pages: &[(&str, String)]) -> Option<Vec<String>> {
    let chromium = || Command::new("chromium");
    let quiet = chromium().arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if quiet.is_err() {
        skip("no program `chromium`: install the package chromium");
        return None;
    }
    let mut all = "<!DOCTYPE html><meta charset=\"utf-8\">".to_owned();
    write!(all, "<pre id=\"told\"></pre><script>{LOOK}</script>").expect("a text grows");
    for (name, page) in pages {
        let page = page.replace('&', "&amp;").replace('"', "&quot;");
        for width in WIDTHS {
            let size = format!("width:{width}px;height:900px;border:0");
            write!(all, "<iframe title=\"{name}\" style=\"{size}\" srcdoc=\"{page}\"></iframe>")
                .expect("a text grows");
        }
    }
    let file = folder.join("all.html");
    fs::write(&file, all).expect("a file");
    let output = chromium()
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--hide-scrollbars", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("file://{}", file.display()))
        .env("TMPDIR", folder)
        .stderr(Stdio::null())
        .output()
        .expect("it runs");
    let shown = String::from_utf8(output.stdout).expect("text");
    let told =
        shown.split_once("<pre id=\"told\">").and_then(|(_, rest)| rest.split_once("looked"));
    let (told, _) = told.expect("the script has run");
    Some(told.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// Returns the page that the command `line` writes.
fn page(line: &str) -> String {
    let output = run(&format!("{line} --html -"));
    assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
    String::from_utf8(output.stdout).expect("a page is UTF-8")
}

#[test]
fn nothing_is_cut_at_any_width() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = folder.path().join("in.pcap");
    let frames = (0..60).map(|n| (u64::from(n) * MSEC / 3, frame(1_000, 50_000 + n % 3, 0)));
    fs::write(&capture, pcap(1, 1, &frames.collect())).expect("a capture");
    let short = "--seconds 0.02 --rounds 2";
    let scenario = folder.path().join("small.toml");
    fs::write(&scenario, super::sim::SMALL).expect("a scenario");
    let pages = [
        ("bench", page("bench udp --threads 2 --seconds 0.3 --rounds 2")),
        (
            "verify",
            page("bench udp --threads 2 --methods send,onramp --verify --seconds 0.3 --rounds 2"),
        ),
        ("contention", page(&format!("lab contention --designs all --threads 1,2 {short}"))),
        ("kernel", page(&format!("lab kernel --cpus 1 {short}"))),
        (
            "pacing",
            page(&format!(
                "lab pacing --rates 1k,10k --slack 0,1ms --spin 0,20us {short} --without-kernel"
            )),
        ),
        ("loopback", page(&format!("lab loopback --pairs 1,2 {short}"))),
        ("softirq", page(&format!("lab softirq {short}"))),
        ("instances", page(&format!("lab instances --threads 1,2 {short}"))),
        ("layout", page(&format!("lab layout --threads 1,2 {short}"))),
        ("control", page(&format!("lab control {short}"))),
        ("qdisc", page(&format!("lab qdisc --flows 1,1000 --kinds fq,pfifo,cake {short}"))),
        ("full", page(&format!("lab full --ports 1,16 {short}"))),
        ("aqm", page("lab aqm --seconds 4 --kinds pfifo,fq_codel --scenarios bursts")),
        ("replay", page(&format!("replay {} --qdisc fq --rate 8mbit", capture.display()))),
        ("sim", page(&format!("sim run {} --draws 3", scenario.display()))),
        ("designs", page(&format!("sim run {} --draws 2 --designs {DESIGNS}", scenario.display()))),
    ];
    let mut pages = Vec::from(pages);
    if root() {
        let pacing = "lab pacing --kinds tbf --rates 1k --slack 0,1ms --spin 0,20us";
        pages.push(("pacing beside the kernel", page(&format!("{pacing} {short}"))));
        let wire = "lab wire --traffic 64 --shapers none,tbf --seconds 0.1 --rounds 1";
        pages.push(("wire", page(wire)));
    }
    let Some(told) = look(folder.path(), &pages) else { return };
    assert_eq!(told, [] as [&str; 0]);
}

#[test]
fn what_is_cut_is_seen() {
    let folder = tempfile::tempdir().expect("a folder");
    let cells = "<td>a long cell</td>".repeat(60);
    let table = format!("<table><thead><tr><th>head</th></tr></thead><tr>{cells}</tr></table>");
    let wide = "overflow-x:auto;white-space:nowrap";
    let text =
        "<svg width=\"50\" style=\"overflow:visible\"><text y=\"9\">far too long</text></svg>";
    let words = "<p class=\"meaning\">words</p>";
    let pages = [
        ("bare", format!("{words}{table}")),
        ("boxed", format!("{words}<div class=\"wide\" style=\"{wide}\">{table}</div>")),
        ("chart", format!("{words}{text}")),
        ("cards", format!("{words}<div class=\"wide cards\" style=\"{wide}\">{table}</div>")),
        ("silent", "<p>nothing</p>".to_owned()),
    ];
    let Some(told) = look(folder.path(), &pages) else { return };
    for line in [
        "bare at 400: the page is wider than the window",
        "bare at 1920: a table has no box",
        "boxed at 1100: a table is wider than its box: head",
        "chart at 400: a chart cuts: far too long",
        "cards at 400: a table is wider than its box: head",
        "silent at 1920: it has no words to begin with",
    ] {
        assert!(told.iter().any(|found| found == line), "{line}: {told:?}");
    }
    assert!(!told.iter().any(|line| line.starts_with("boxed at 400")), "it scrolls: {told:?}");
}
