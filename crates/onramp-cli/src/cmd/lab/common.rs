//! Parts that the commands of the laboratory share: options, figures, and the writing of results.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use onramp_lab::lockstat::{LockRow, time};
use onramp_lab::measure::{Latency, Percentiles, Rounds, Spread, Steps};
use onramp_lab::{BURST_MAX, Load};
use serde_json::{Map, Value, json};

use crate::cmd::bench::seconds;
use crate::cmd::values::whole;
use crate::error::usage;
use crate::machine::Machine;
use crate::output::{self, Folder, Output};
use crate::report::chart;
use crate::report::json::{number, pretty};
use crate::report::lab::{self, Document};
use crate::report::table::{align, dash};
use crate::watch::{self, Outcome};

/// Number of packets in a transaction (a burst that is sent and waited for), unless the user gives
/// another number.
const BURST: u32 = 64;

/// Options that all experiments have.
#[derive(Debug, clap::Args)]
pub(super) struct Common {
    /// Seconds for which each variant is measured in a round, after a warm-up (docs/json.md says
    /// how long that is)
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub(super) seconds: Duration,
    /// Number of rounds; the variants take turns in each round
    #[arg(long, value_name = "R", default_value_t = 3,
          value_parser = whole::<u32>(1..=1_000))]
    pub(super) rounds: u32,
    #[command(flatten)]
    pub(super) reports: Reports,
}

/// The options for reports: JSON, the HTML page and the charts.
#[derive(Debug, clap::Args)]
pub(super) struct Reports {
    /// Write the results as JSON (docs/json.md says what each key means); - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    pages: Pages,
}

/// The options for reports that people look at: the HTML page and the charts.
#[derive(Debug, clap::Args)]
pub(super) struct Pages {
    /// Write an HTML page with charts, for a browser; - is standard output
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each chart of the page as SVG and as PNG into this folder
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,
}

/// The outputs for reports that people look at: the HTML page and the folder of charts.
#[derive(Debug)]
pub(super) struct Looks {
    html: Option<Output>,
    charts: Option<Folder>,
}

impl Looks {
    /// Creates the outputs, and checks that they can be written.
    pub(super) fn new(pages: &Pages, json: Option<&Output>) -> Result<Self> {
        let html = pages.html.as_deref().map(Output::new).transpose()?;
        // An output file must not have the path of the folder of charts, or of a folder above it.
        // Check this before the folder is made, because then the file could not be written.
        for (option, output) in [("--json", json), ("--html", html.as_ref())] {
            let mut paths = pages.charts.iter().zip(output);
            if paths.any(|(folder, output)| output.is_on_the_way_to(folder)) {
                return Err(usage(format!(
                    "{option} names a file where --charts needs a folder: name another file"
                )));
            }
        }
        let charts = pages.charts.as_deref().map(Folder::new).transpose()?;
        Ok(Self { html, charts })
    }

    /// Whether the user asked for neither a page nor charts.
    pub(super) fn is_empty(&self) -> bool {
        self.html.is_none() && self.charts.is_none()
    }

    /// Whether the HTML page goes to the file at `path`.
    pub(super) fn is_page(&self, path: &Path) -> bool {
        self.html.as_ref().is_some_and(|html| html.is_file(path))
    }

    /// Writes the page and the charts. If one of them cannot be written, the other is written
    /// nevertheless.
    pub(super) fn write(&self, documents: &[Document]) -> Result<()> {
        let page = |html: &Output| html.write(&lab::page(documents));
        let charts = |folder: &Folder| {
            lab::charts(documents).iter().try_for_each(|(name, scene)| {
                folder.write(&format!("{name}.svg"), scene.svg().as_bytes())?;
                folder.write(&format!("{name}.png"), &chart::png(scene)?)
            })
        };
        output::all([
            self.html.as_ref().map_or(Ok(()), page),
            self.charts.as_ref().map_or(Ok(()), charts),
        ])
    }
}

/// The options for the way in which threads send, for experiments that offer a choice.
#[derive(Debug, clap::Args)]
pub(super) struct LoadArgs {
    /// How the threads send
    #[arg(long, value_enum, default_value = "stream")]
    load: LoadName,
    /// Number of packets in a transaction, with --load rr [default: 64]
    #[arg(long, value_name = "N",
          value_parser = whole::<u32>(1..=u64::from(BURST_MAX)))]
    burst: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LoadName {
    /// Each thread sends as fast as its credits come back to it
    Stream,
    /// Each thread sends a burst, waits until the burst is complete, and sends the next; a burst is
    /// a transaction
    Rr,
}

impl LoadArgs {
    /// Returns the load that the user asked for.
    pub(super) fn load(&self) -> Result<Load> {
        match (self.load, self.burst) {
            (LoadName::Rr, burst) => Ok(Load::Rr(burst.unwrap_or(BURST))),
            (LoadName::Stream, None) => Ok(Load::Stream),
            (LoadName::Stream, Some(burst)) => {
                Err(usage(format!("--burst {burst}: a stream has no bursts; add --load rr")))
            }
        }
    }
}

/// Time that a measurement takes besides its warm-up and its window, such as for starting threads.
const OVERHEAD: Duration = Duration::from_millis(20);

/// An experiment that is about to run: where its results go, the machine that it runs on, how long
/// it will take, and what kept it from measuring everything.
#[derive(Debug)]
pub(super) struct Run {
    json: Option<Output>,
    looks: Looks,
    /// The machine that the experiment runs on; `None` if the results do not depend on it.
    machine: Option<Machine>,
    steps: usize,
    expected: Duration,
    outcome: Outcome,
}

impl Run {
    /// Prepares an experiment that takes `steps` measurements of equal length. Checks the outputs
    /// and describes the machine before anything is measured.
    pub(super) fn new(common: &Common, steps: usize) -> Result<Self> {
        let each = common.seconds + common.seconds / 5 + OVERHEAD;
        let count = u32::try_from(steps).unwrap_or(u32::MAX);
        Self::expecting(&common.reports, steps, each.saturating_mul(count))
    }

    /// Prepares an experiment of `steps` measurements that is expected to take as long as
    /// `expected`.
    pub(super) fn expecting(reports: &Reports, steps: usize, expected: Duration) -> Result<Self> {
        let run = Self::in_virtual_time(reports, steps, expected)?;
        Ok(Self { machine: Some(Machine::here()), ..run })
    }

    /// Prepares an experiment in virtual time, whose results depend on no machine and no clock. The
    /// run has `steps` measurements, and is expected to take as long as `expected` in real time.
    pub(super) fn in_virtual_time(
        reports: &Reports,
        steps: usize,
        expected: Duration,
    ) -> Result<Self> {
        let json = reports.json.as_deref().map(Output::new).transpose()?;
        let looks = Looks::new(&reports.pages, json.as_ref())?;
        output::distinct(&[("--json", json.as_ref()), ("--html", looks.html.as_ref())])?;
        let outcome = Outcome::default();
        Ok(Self { json, looks, machine: None, steps, expected, outcome })
    }

    /// Returns the number of processors that the experiment may use.
    pub(super) fn cpus(&self) -> usize {
        self.machine.as_ref().map_or_else(cpus, |machine| machine.cpus)
    }

    /// Runs `experiment` and returns what it measured, even if measurements failed or a signal
    /// ended the run.
    pub(super) fn measure<T>(&mut self, experiment: impl FnOnce(&mut Steps<'_>) -> T) -> Result<T> {
        let (found, outcome) = watch::measure(self.steps, self.expected, experiment)?;
        self.outcome = outcome;
        Ok(found)
    }

    /// Writes the reports that the user asked for, and prints the table, unless a report goes to
    /// standard output. If the run was interrupted before it had a result, writes and prints
    /// nothing. Returns an error if a measurement failed or the run was interrupted.
    pub(super) fn conclude(
        self,
        schema: &str,
        parameters: Value,
        results: Map<String, Value>,
        table: &str,
    ) -> Result<()> {
        let Self { json, looks, machine, outcome, .. } = self;
        outcome.has_results(results.get("rows").and_then(Value::as_array).map_or(0, Vec::len))?;
        let mut document = Map::new();
        document.insert("schema".into(), format!("onramp.lab.{schema}").into());
        document.insert("version".into(), 1.into());
        document.insert("command".into(), command().into());
        document.extend(machine.as_ref().map(|machine| ("machine".into(), json!(machine))));
        document.insert("parameters".into(), parameters);
        document.extend(results);
        outcome.insert(&mut document);
        let document = Value::Object(document);
        let mut done = vec![outcome.verdict()];
        if let Some(json) = &json {
            done.push(json.write(&pretty(&document)));
        }
        if !looks.is_empty() {
            let document =
                Document::of(document).map_err(|why| anyhow!("cannot draw the results: {why}"));
            done.push(document.and_then(|document| looks.write(&[document])));
        }
        if ![&json, &looks.html].into_iter().flatten().any(Output::is_stdout) {
            let head = machine.map_or_else(String::new, |machine| {
                let warnings = machine.warnings().into_iter();
                let warnings: String = warnings.map(|line| format!("{line}\n")).collect();
                format!("{}\n{warnings}\n", machine.summary())
            });
            done.push(output::print(&format!("{head}{table}{}", outcome.text())));
        }
        output::all(done)
    }
}

#[cfg(test)]
impl Run {
    /// Calls `experiment` with a run whose results go to a JSON file. Asserts that it failed, and
    /// returns the JSON.
    pub(super) fn failed(experiment: impl FnOnce(Self) -> Result<()>) -> Value {
        let folder = tempfile::tempdir().expect("a folder");
        let (json, pages) = (folder.path().join("out.json"), Pages { html: None, charts: None });
        let reports = Reports { json: Some(json.clone()), pages };
        let run = Self::expecting(&reports, 1, Duration::ZERO).expect("it can be written");
        let error = experiment(run).expect_err("a cell failed");
        assert!(error.to_string().contains(" cells failed: "), "{error}");
        let text = std::fs::read(json).expect("it is written nevertheless");
        serde_json::from_slice(&text).expect("JSON")
    }
}

/// A figure (a measured value) of each round, with its key in JSON and its column in a table.
#[derive(Debug)]
pub(super) struct Figure<R> {
    key: &'static str,
    header: &'static str,
    /// The number by which a table divides the figure, and the number of decimals that the table
    /// shows.
    unit: f64,
    digits: usize,
    of: fn(&R) -> Option<f64>,
}

impl<R> Figure<R> {
    /// Creates a figure. A table shows the figure divided by `unit`, with `digits` decimals.
    pub(super) const fn new(
        key: &'static str,
        header: &'static str,
        (unit, digits): (f64, usize),
        of: fn(&R) -> Option<f64>,
    ) -> Self {
        Self { key, header, unit, digits, of }
    }

    /// Returns the median, the least and the greatest value of this figure over the rounds of the
    /// measurement `cell` (one combination of settings of the experiment). Leaves out rounds
    /// without a value.
    pub(super) fn spread(&self, cell: &impl Rounds<Round = R>) -> Option<Spread> {
        let values = cell.rounds().iter().filter_map(self.of);
        Spread::of(values.filter(|value| value.is_finite()))
    }

    /// Divides this figure in each round of the measurement `cell` by its value in the same round
    /// of the measurement `base` (each is one combination of settings of the experiment). Returns
    /// the median, the least and the greatest of these ratios. Leaves out rounds in which one of
    /// the two measurements has no value.
    pub(super) fn ratio<C: Rounds<Round = R>>(&self, cell: &C, base: &C) -> Option<Spread> {
        let rounds = cell.rounds().iter().zip(base.rounds());
        let quotients = rounds.filter_map(|(own, base)| Some((self.of)(own)? / (self.of)(base)?));
        Spread::of(quotients.filter(|quotient| quotient.is_finite()))
    }

    /// Returns the column that shows this figure's median, least and greatest value.
    pub(super) fn column<C: Rounds<Round = R>>(&self) -> Column<'_, C> {
        Column::new(self.header, |cell| figure(self.spread(cell), self.unit, self.digits))
    }

    /// Returns the header of this figure's column.
    pub(super) fn header(&self) -> &'static str {
        self.header
    }

    /// Returns a column that compares measurements: in the row of each measurement, the ratio of
    /// this figure to the same figure of the measurement that `base` returns.
    pub(super) fn ratio_column<'a, C: Rounds<Round = R> + 'a>(
        &'a self,
        header: &str,
        base: impl Fn(&C) -> Option<&'a C> + 'a,
    ) -> Column<'a, C> {
        Column::new(header, move |cell| {
            figure(base(cell).and_then(|base| self.ratio(cell, base)), 1.0, 2)
        })
    }
}

/// Inserts the values of all `figures` into `map`, each under its key.
pub(super) fn insert_all<'a, R: 'a>(
    map: &mut Map<String, Value>,
    figures: impl IntoIterator<Item = &'a Figure<R>>,
    spread: impl Fn(&Figure<R>) -> Option<Spread>,
) {
    for figure in figures {
        insert(map, figure.key, spread(figure));
    }
}

/// Returns the command line, with `onramp` in place of the program's path, because the path does
/// not matter to readers of a report.
fn command() -> Vec<String> {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    ["onramp".to_owned()].into_iter().chain(words).collect()
}

/// Inserts a figure into `map`: the median under `name`, the least value under `name` with `_min`,
/// and the greatest under `name` with `_max`. If nothing was measured, all three are `null`.
pub(super) fn insert(map: &mut Map<String, Value>, name: &str, spread: Option<Spread>) {
    let value = |figure: fn(Spread) -> f64| spread.map_or(Value::Null, |s| number(figure(s)));
    map.insert(name.into(), value(|s| s.median));
    map.insert(format!("{name}_min"), value(|s| s.min));
    map.insert(format!("{name}_max"), value(|s| s.max));
}

/// A column of a table of measurements: its header, and the function that returns the column's text
/// in the row of a measurement.
pub(super) struct Column<'a, C> {
    header: String,
    text: Box<dyn Fn(&C) -> String + 'a>,
}

impl<'a, C> Column<'a, C> {
    pub(super) fn new(header: impl Into<String>, text: impl Fn(&C) -> String + 'a) -> Self {
        Self { header: header.into(), text: Box::new(text) }
    }
}

/// Returns three columns with percentiles, 50, 99 and 99.9, of the times that `of` returns for the
/// measurement of a row.
pub(super) fn latencies<'a, C>(
    of: impl Fn(&C) -> &Latency + Copy + 'a,
) -> impl Iterator<Item = Column<'a, C>> {
    let column = move |header, part: fn(Percentiles) -> u64| {
        Column::new(header, move |cell| {
            of(cell).percentiles().map_or_else(dash, |ns| time(part(ns) as f64))
        })
    };
    [column("p50", |ns| ns.p50), column("p99", |ns| ns.p99), column("p99.9", |ns| ns.p999)]
        .into_iter()
}

/// Returns a table with one row for each of the measurements `cells` (each is one combination of
/// settings of the experiment). Leaves out columns in which no measurement has a value.
pub(super) fn table<C>(cells: &[C], columns: &[Column<'_, C>]) -> String {
    let column = |column: &Column<'_, C>| {
        let texts: Vec<String> = cells.iter().map(|cell| (column.text)(cell)).collect();
        let empty = texts.iter().all(|text| *text == dash());
        (!empty).then(|| [column.header.clone()].into_iter().chain(texts).collect())
    };
    let columns: Vec<Vec<String>> = columns.iter().filter_map(column).collect();
    let row = |row: usize| columns.iter().map(|column| column[row].clone()).collect();
    align(&(0..=cells.len()).map(row).collect::<Vec<_>>())
}

/// Returns, as JSON, how often and how long threads held one lock and waited for it.
pub(super) fn lock(row: &LockRow, cpus: usize) -> Value {
    json!({
        "name": row.name,
        "kind": row.kind,
        "acquired": row.counts.acquired,
        "contended": row.counts.contended,
        "contended_share": number(row.contended_share()),
        "utilisation": number(row.utilisation()),
        "hold_mean_ns": number(row.hold_mean_ns()),
        "hold_max_ns": row.counts.hold_max_ns,
        "wait_total_ns": row.counts.wait_total_ns,
        "wait_avg_ns": number(row.wait_avg_ns()),
        "wait_max_ns": row.counts.wait_max_ns,
        "wait_cpu_share": number(row.wait_share(cpus)),
    })
}

/// Returns percentiles in nanoseconds as JSON; `null` if nothing was measured.
pub(super) fn percentiles(ns: Option<Percentiles>) -> Value {
    ns.map_or(Value::Null, |ns| {
        json!({"p50": ns.p50, "p99": ns.p99, "p999": ns.p999, "max": ns.max, "samples": ns.samples})
    })
}

/// Returns the text for a figure in a table: the median, the least and the greatest value, each
/// divided by `unit` and with `digits` decimals.
pub(super) fn figure(spread: Option<Spread>, unit: f64, digits: usize) -> String {
    spread.map_or_else(dash, |Spread { median, min, max }| {
        let [median, min, max] = [median, min, max].map(|value| value / unit);
        format!("{median:.digits$} ({min:.digits$}-{max:.digits$})")
    })
}

/// Returns the given numbers of threads without repetitions.
pub(super) fn counts(given: &[u32]) -> Vec<usize> {
    once(given.iter().map(|count| *count as usize))
}

/// Returns the given values without repetitions, because a value that was measured twice would give
/// two rows with the same name.
pub(super) fn once<T: PartialEq>(given: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for one in given {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// Returns the number of processors that threads may run on.
pub(super) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Measurement(Vec<Option<f64>>);

    impl Rounds for Measurement {
        type Round = Option<f64>;

        fn rounds(&self) -> &[Option<f64>] {
            &self.0
        }
    }

    const RATE: Figure<Option<f64>> = Figure::new("rate", "k/s", (1e3, 1), |round| *round);
    const NEVER: Figure<Option<f64>> = Figure::new("never", "never", (1.0, 0), |_| None);

    #[test]
    fn a_table_has_the_columns_that_some_cell_has() {
        let cells = [Measurement(vec![Some(1e3), Some(2e3), Some(4e3)]), Measurement(vec![None])];
        let base = |_: &Measurement| Some(&cells[0]);
        let columns = [
            Column::new("cell", |cell: &Measurement| cell.0.len().to_string()),
            RATE.column(),
            NEVER.column(),
            RATE.ratio_column("to the first", base),
        ];
        let text = table(&cells, &columns);
        let words: Vec<Vec<_>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["cell", "k/s", "to", "the", "first"]);
        assert_eq!(words[1], ["3", "2.0", "(1.0-4.0)", "1.00", "(1.00-1.00)"]);
        assert_eq!(words[2], ["1", "-", "-"]);
    }

    #[test]
    fn what_was_not_measured_is_null_and_not_part_of_a_spread() {
        let cell = Measurement(vec![Some(3.0), None, Some(f64::INFINITY), Some(5.0)]);
        let mut map = Map::new();
        insert_all(&mut map, [&RATE, &NEVER], |figure| figure.spread(&cell));
        let found = Value::Object(map);
        let want = json!({
            "rate": 4.0, "rate_min": 3.0, "rate_max": 5.0,
            "never": null, "never_min": null, "never_max": null,
        });
        assert_eq!(found, want);
        let twice = Measurement(vec![Some(6.0), Some(1.0), Some(1.0), Some(0.0)]);
        let ratio = RATE.ratio(&twice, &cell).expect("two rounds have both");
        assert_eq!((ratio.min, ratio.max), (0.0, 2.0));
    }
}
