//! The HTML page of `onramp sim run`.

use maud::{Markup, html};
use serde_json::Value;

use super::chart::{Across, Bar, Bars, Labels, Line, Lines, Point, Scene, Stack, Stacks, percent};
use super::page;
use super::table::{dash, duration};

/// The name of what is simulated without designs.
pub(crate) const LINK: &str = "Onramp";

/// What the page shows.
#[derive(Debug)]
pub(crate) struct Simulated<'a> {
    /// The title of the scenario.
    pub(crate) title: &'a str,
    /// The scenario as the JSON document has it.
    pub(crate) scenario: &'a Value,
    /// The title of the simulated machine.
    pub(crate) machine: &'a str,
    /// The command that wrote the page.
    pub(crate) command: &'a str,
    /// Sentences about draws that are missing.
    pub(crate) missing: &'a [String],
    pub(crate) rows: Vec<Row<'a>>,
}

/// What was simulated of one design.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    /// Name of the design; [`LINK`] for a link.
    pub(crate) name: &'a str,
    /// One result for each draw. The first takes the middle of each interval.
    pub(crate) draws: &'a [Value],
    /// Packets per second: the median of the draws, and an interval of at least nine tenths of
    /// them.
    pub(crate) rate: [f64; 3],
    /// The figures of all draws together, each with its heading.
    pub(crate) figures: Vec<(&'static str, String)>,
    /// A sentence if the figures are those of a start; otherwise empty.
    pub(crate) warning: String,
}

impl Row<'_> {
    fn is_ours(&self) -> bool {
        self.name.to_ascii_lowercase().starts_with("onramp")
    }

    /// Returns the result whose parameters are the middle of their intervals.
    fn middle(&self) -> &Value {
        self.draws.first().unwrap_or(&Value::Null)
    }

    fn share(&self, part: &str) -> f64 {
        self.middle()["time_share"][part].as_f64().unwrap_or(0.0)
    }

    fn list(&self, key: &str) -> impl Iterator<Item = &Value> {
        self.middle()[key].as_array().into_iter().flatten()
    }

    /// Returns how many calls took at least so many nanoseconds, and less than twice as many.
    fn octaves(&self) -> Vec<(u64, u64)> {
        let counts = self.middle()["send_ns_octaves"].as_object();
        let octave = |(from, count): (&String, &Value)| Some((from.parse().ok()?, count.as_u64()?));
        let mut octaves: Vec<_> = counts.into_iter().flatten().filter_map(octave).collect();
        octaves.sort_unstable();
        octaves
    }
}

/// What processors do, as a result names it, and as the page does.
const PARTS: [(&str, &str); 5] = [
    ("useful", "useful work"),
    ("spinning", "spinning: waits for a lock"),
    ("stalled", "coherence stalls: waits for memory that another core used"),
    ("scheduling", "scheduler"),
    ("idle", "idle"),
];

/// Returns the page.
pub(crate) fn page(run: &Simulated<'_>) -> String {
    let rows = &run.rows;
    let warnings = rows.iter().filter(|row| !row.warning.is_empty());
    let body = html! {
        p class="meaning" { (lead(run)) }
        "\n"
        @for sentence in run.missing { p class="failed" { (sentence) } "\n" }
        @for row in warnings { p class="failed" { (row.name) ": " (row.warning) } "\n" }
        (page::charts(&rates(rows)))
        (intervals(rows))
        h2 { "What the processors did" }
        (page::charts(&split(rows)))
        p class="soft" {
            "Shares of the time of all processors. A thread that spins runs, but only looks again "
            "and again whether a lock is free. A core stalls while a cache line comes from another "
            "core or from memory."
        }
        "\n"
        h2 { "How long a send took" }
        (page::charts(&histogram(rows)))
        (octaves(rows))
        h2 { "Locks" }
        (locks(rows))
        h2 { "The fields that processors waited longest for" }
        @for row in rows { (fields(row, rows.len() > 1)) }
        p class="soft" {
            "A field is named as the source names it. Its cache line has to be transferred when "
            "another core has written it; a contended transfer waited for other transfers of the "
            "same line. The places are in the sources of the simulated program."
        }
        "\n"
        h2 { "Figures" }
        (figures(rows))
        h2 { "How it was simulated" }
        p { code { (run.command) } }
        "\n"
        p class="soft" {
            "The production sources run on a simulated machine whose memory costs what public "
            "measurements say. What the machine, the program and the driver cost is drawn from "
            "intervals that have sources; the first draw takes the middle of each. The shares, the "
            "send times, the locks and the fields are those of the first draw. docs/scaling.md "
            "says how far to trust such a prediction."
        }
        "\n"
        (page::list(&entries(run)))
    };
    page::page(&format!("Onramp: {}", run.title), &body)
}

/// Returns the sentence with which the page begins.
fn lead(run: &Simulated<'_>) -> String {
    let threads = run.scenario["threads"].as_u64().unwrap_or(0);
    let at_once = if threads == 1 {
        "one thread sends".to_owned()
    } else {
        format!("{threads} threads send at the same time")
    };
    let amount = |row: &Row<'_>| {
        let [median, low, high] = row.rate;
        let between = match row.draws.len() {
            0 | 1 => String::new(),
            _ => format!(" (probably between {} and {})", count(low), count(high)),
        };
        format!("{}{between}", count(median))
    };
    let rate = |row: &&Row<'_>| row.rate[0];
    let best = run.rows.iter().max_by(|one, other| rate(one).total_cmp(&rate(other)));
    let ours = run.rows.iter().find(|row| row.is_ours());
    let result = match (best, ours) {
        (None, _) => "nothing".to_owned(),
        (Some(only), _) if run.rows.len() == 1 => format!("{} with {}", amount(only), only.name),
        (Some(best), Some(ours)) if !std::ptr::eq(best, ours) => {
            format!("{} with {}, and {} with {}", amount(best), best.name, amount(ours), ours.name)
        }
        (Some(best), _) => {
            format!("{} with {}, the most of {}", amount(best), best.name, run.rows.len())
        }
    };
    format!(
        "A simulation predicts how many packets leave a computer ({}) in a second if {at_once}: \
         {result}.",
        run.machine
    )
}

/// Returns a number of packets in words.
fn count(packets: f64) -> String {
    match packets {
        many if many >= 1e6 => format!("{:.1} million", many / 1e6),
        some if some >= 1e3 => format!("{:.0} thousand", some / 1e3),
        few => format!("{few:.0}"),
    }
}

fn rates(rows: &[Row<'_>]) -> Option<Scene> {
    let bar = |row: &Row<'_>| {
        let [median, low, high] = row.rate;
        Bar {
            name: row.name.to_owned(),
            figure: Some(median),
            range: (row.draws.len() > 1).then_some((low, high)),
            note: String::new(),
            highlighted: row.is_ours(),
        }
    };
    let bars = rows.iter().map(bar).collect();
    Bars { title: "Packets per second, predicted".to_owned(), bars, words: count }.draw()
}

/// Says what the thin lines in the chart of rates are.
fn intervals(rows: &[Row<'_>]) -> Markup {
    let draws = rows.iter().map(|row| row.draws.len());
    let (least, most) = (draws.clone().min().unwrap_or(0), draws.max().unwrap_or(0));
    let count = if least == most { most.to_string() } else { format!("{least} to {most}") };
    html! {
        @if most > 1 {
            p class="soft" {
                "A bar is the median of " (count) " simulations, each with other values of what "
                "memory and software cost. Nine of ten simulations lie on the thin line."
            }
            "\n"
        }
    }
}

fn split(rows: &[Row<'_>]) -> Option<Scene> {
    let stack = |row: &Row<'_>| Stack {
        name: row.name.to_owned(),
        shares: PARTS.iter().map(|(part, _)| row.share(part)).collect(),
        highlighted: row.is_ours(),
    };
    let parts = PARTS.iter().map(|(_, name)| (*name).to_owned()).collect();
    let title = "Time of all processors".to_owned();
    Stacks { title, parts, stacks: rows.iter().map(stack).collect() }.draw()
}

fn histogram(rows: &[Row<'_>]) -> Option<Scene> {
    let line = |row: &Row<'_>| {
        let octaves = row.octaves();
        let calls: u64 = octaves.iter().map(|(_, count)| count).sum();
        let point = |(from, count): &(u64, u64)| {
            (*count > 0).then(|| Point {
                at: (*from).max(1) as f64 * std::f64::consts::SQRT_2,
                figure: *count as f64 / calls as f64,
                range: None,
            })
        };
        let points = octaves.iter().map(point).collect();
        Line { name: row.name.to_owned(), points, highlighted: row.is_ours() }
    };
    let lines = Lines {
        title: "Time of a send: share of the calls".to_owned(),
        across: Across {
            name: "duration, powers of two".to_owned(),
            words: nanoseconds,
            ticks: None,
        },
        lines: rows.iter().map(line).collect(),
        words: percent,
        labels: Labels::List,
    };
    lines.draw()
}

/// Formats a time of so many nanoseconds.
fn nanoseconds(ns: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a duration")]
    let ns = ns.round() as u64;
    duration(ns)
}

/// Returns the table of the histogram: a row for each range of times, and a column for each design.
fn octaves(rows: &[Row<'_>]) -> Markup {
    let columns: Vec<_> = rows.iter().map(Row::octaves).collect();
    let mut edges: Vec<u64> = columns.iter().flatten().map(|(from, _)| *from).collect();
    edges.sort_unstable();
    edges.dedup();
    let head = ["from, below".to_owned()].into_iter();
    let head: Vec<_> = head.chain(rows.iter().map(|row| row.name.to_owned())).collect();
    let row = |from: &u64| {
        let count = |octaves: &Vec<(u64, u64)>| {
            let here = octaves.iter().find(|(edge, _)| edge == from);
            here.map_or_else(dash, |(_, count)| count.to_string())
        };
        let name = format!("{} to {}", duration(*from), duration(from.saturating_mul(2)));
        [name].into_iter().chain(columns.iter().map(count)).collect()
    };
    page::cards(1, &head, &edges.iter().map(row).collect::<Vec<_>>())
}

/// Returns the table of all locks, with the columns of `perf lock contention` and of lockmeter.
fn locks(rows: &[Row<'_>]) -> Markup {
    let columns = [
        ("contended", "contended"),
        ("total wait", "wait_total_ns"),
        ("max wait", "wait_max_ns"),
        ("avg wait", "wait_avg_ns"),
        ("total", "acquired"),
        ("hold mean", "hold_mean_ns"),
        ("hold max", "hold_max_ns"),
        ("util", "utilisation"),
    ];
    let cell = |key: &str, lock: &Value| match lock[key].as_f64() {
        None => dash(),
        Some(value) if key.ends_with("_ns") => nanoseconds(value),
        Some(value) if key == "utilisation" => percent(value),
        Some(value) => format!("{value:.0}"),
    };
    let mut table = Vec::new();
    for row in rows {
        for lock in row.list("locks") {
            let text = |key: &str| lock[key].as_str().unwrap_or_default().to_owned();
            let mut cells = vec![row.name.to_owned(), text("name"), text("kind")];
            cells.extend(columns.iter().map(|(_, key)| cell(key, lock)));
            table.push(cells);
        }
    }
    let names = ["design", "name", "type"];
    let head = names.into_iter().chain(columns.map(|(heading, _)| heading));
    let head: Vec<_> = head.map(str::to_owned).collect();
    let without: Vec<_> = rows.iter().filter(|row| row.list("locks").next().is_none()).collect();
    let without: Vec<_> = without.iter().map(|row| row.name).collect();
    html! {
        @if !table.is_empty() { (page::cards(3, &head, &table)) }
        @if without == [LINK] {
            p { "The locks of a link are not counted: --designs counts those of each design." }
            "\n"
        } @else if !without.is_empty() {
            p { "No thread waits for a lock with " (without.join(", ")) "." }
            "\n"
        }
    }
}

/// Returns the table of the fields that processors waited longest for.
fn fields(row: &Row<'_>, is_named: bool) -> Markup {
    let columns = [
        ("transfers per packet", "transfers_per_packet", 3),
        ("from another socket", "remote_per_packet", 3),
        ("contended", "contended_per_packet", 3),
        ("waited, ns per packet", "stalled_ns_per_packet", 1),
    ];
    let head = ["field", "costliest place"].into_iter().chain(columns.map(|(head, ..)| head));
    let head: Vec<_> = head.map(str::to_owned).collect();
    let cells = |field: &Value| {
        let text = |key: &str| field[key].as_str().unwrap_or_default().to_owned();
        let figure = |(_, key, digits): &(&str, &str, usize)| {
            field[*key].as_f64().map_or_else(dash, |value| format!("{value:.digits$}"))
        };
        let names = [text("field"), text("place")];
        names.into_iter().chain(columns.iter().map(figure)).collect::<Vec<_>>()
    };
    html! {
        @if is_named { h3 { (row.name) } }
        (page::cards(2, &head, &row.list("fields").map(cells).collect::<Vec<_>>()))
    }
}

/// Returns the table of all figures: a row for each design.
fn figures(rows: &[Row<'_>]) -> Markup {
    let mut headings: Vec<&str> = Vec::new();
    for (heading, _) in rows.iter().flat_map(|row| &row.figures) {
        if !headings.contains(heading) {
            headings.push(heading);
        }
    }
    let head = ["design"].into_iter().chain(headings.iter().copied());
    let head: Vec<_> = head.map(str::to_owned).collect();
    let row = |row: &Row<'_>| {
        let cell = |heading: &&str| {
            let found = row.figures.iter().find(|(known, _)| known == heading);
            found.map_or_else(dash, |(_, cell)| cell.replacen(" (", "\n(", 1))
        };
        let cells = headings.iter().map(cell);
        [row.name.to_owned()].into_iter().chain(cells).collect::<Vec<_>>()
    };
    page::cards(1, &head, &rows.iter().map(row).collect::<Vec<_>>())
}

/// Returns the fields of the scenario, and the machine, as names and values.
fn entries(run: &Simulated<'_>) -> Vec<(String, String)> {
    let machine = [("simulated machine".to_owned(), run.machine.to_owned())];
    let fields = run.scenario.as_object().into_iter().flatten();
    let fields = fields.filter(|(_, value)| !value.is_null());
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    machine.into_iter().chain(fields.map(|(key, value)| (key.clone(), plain(value)))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn draw() -> Value {
        json!({
            "time_share": {"useful": 0.25, "stalled": 0.25, "spinning": 0.0, "scheduling": 0.0,
                           "idle": 0.5},
            "send_ns_octaves": {"64": 30, "128": 10},
            "locks": [{"name": "root", "kind": "spinlock", "acquired": 9, "contended": 4,
                       "wait_total_ns": 4_000, "wait_max_ns": 2_000, "wait_avg_ns": 1_000.0,
                       "hold_mean_ns": 500.0, "hold_max_ns": 700, "utilisation": 0.125}],
            "fields": [{"field": "Intake.word", "place": "queue/intake.rs:187",
                        "transfers_per_packet": 1.25, "remote_per_packet": 0.5,
                        "contended_per_packet": 0.25, "stalled_ns_per_packet": 137.04}],
        })
    }

    fn shown(rows: &[(&str, f64)], draws: usize) -> String {
        let of_design = vec![draw(); draws];
        let mut of_link = of_design.clone();
        of_link.iter_mut().for_each(|draw| draw["locks"] = json!([]));
        let row = |&(name, rate)| Row {
            name,
            draws: if name == LINK { &of_link } else { &of_design },
            rate: [rate, rate / 2.0, rate * 2.0],
            figures: vec![("Mpps", "1.00 (0.50-2.00)".to_owned())],
            warning: String::new(),
        };
        let scenario = json!({"threads": 4, "qdisc": "fq", "pacing_bits_per_second": null});
        page(&Simulated {
            title: "Four",
            scenario: &scenario,
            machine: "a box",
            command: "onramp sim run x",
            missing: &["The run was interrupted.".to_owned()],
            rows: rows.iter().map(row).collect(),
        })
    }

    #[test]
    fn the_page_begins_with_a_sentence_and_one_chart() {
        let page = shown(&[("Onramp", 3e6)], 1);
        let sentence = "A simulation predicts how many packets leave a computer (a box) in a \
                        second if 4 threads send at the same time: 3.0 million with Onramp.";
        let (before, rest) = page.split_once("<svg ").expect("a chart");
        assert!(before.contains(&format!("<p class=\"meaning\">{sentence}</p>")), "{before}");
        assert!(!before.contains("<table"), "{before}");
        let (first, rest) = rest.split_once("</svg>").expect("its end");
        assert!(first.contains("Packets per second") && first.contains("data-figure=\"3000000\""));
        let next = rest.split_once("<svg ").expect("another chart").0;
        assert!(next.contains("<h2>What the processors did</h2>"), "one chart: {next}");
        assert!(before.contains("<p class=\"failed\">The run was interrupted.</p>"), "{before}");
        assert!(page.contains("The locks of a link are not counted"), "{page}");
        assert!(!page.contains("thin line"), "one draw has no interval");
        assert!(!page.contains("pacing_bits_per_second"), "what the scenario does not have");
    }

    #[test]
    fn designs_are_compared() {
        let page = shown(&[("llist", 70e6), ("onramp", 60e6)], 3);
        let result = "70.0 million (probably between 35.0 million and 140.0 million) with llist, \
                      and 60.0 million (probably between 30.0 million and 120.0 million) with \
                      onramp.";
        assert!(page.contains(result), "{page}");
        assert!(page.contains("median of 3 simulations"), "{page}");
        assert!(shown(&[("onramp", 9e3), ("llist", 5.0)], 1).contains("9 thousand with onramp"));
    }

    #[test]
    fn every_table_has_what_the_result_has() {
        let page = shown(&[("llist", 2e6), ("onramp", 1e6)], 2);
        for text in [
            "data-series=\"llist, useful work\" data-figure=\"0.25\"",
            "data-series=\"onramp, idle\" data-figure=\"0.5\"",
            "data-figure=\"0.75\"",
            ">64 ns to 128 ns</td>",
            ">spinlock</td>",
            ">4.0 us</td>",
            ">12.5 %</td>",
            ">Intake.word</td>",
            ">queue/intake.rs:187</td>",
            ">1.250</td>",
            ">137.0</td>",
            "(0.50-2.00)</span>",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        for heading in ["What the processors did", "How long a send took", "Locks", "Figures"] {
            assert_eq!(page.matches(&format!("<h2>{heading}</h2>")).count(), 1, "{heading}");
        }
    }
}
