//! What the commands of the laboratory share: options, figures, and how results are written.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use onramp_lab::lockstat::LockRow;
use onramp_lab::measure::{Percentiles, Spread};
use serde_json::{Map, Value, json};

use crate::cmd::bench::seconds;
use crate::machine::Machine;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::report::json::{number, pretty};

/// Options that all experiments have.
#[derive(Debug, clap::Args)]
pub(super) struct Common {
    /// How long each variant is measured in a round, seconds; a fifth more before it warms up
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub(super) seconds: Duration,
    /// Rounds; the variants take turns in each
    #[arg(long, value_name = "R", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) rounds: u32,
    /// Write the results as JSON (docs/json.md says what each key means); - is standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// An experiment that is about to run.
#[derive(Debug)]
pub(super) struct Run {
    json: Option<Output>,
    machine: Machine,
    progress: Progress,
}

impl Run {
    /// Looks at where the results go and at the machine, before anything is measured; `windows`
    /// is how many will be.
    pub(super) fn new(common: &Common, windows: usize) -> Result<Self> {
        let json = common.json.as_deref().map(Output::new).transpose()?;
        let windows = u32::try_from(windows).unwrap_or(u32::MAX);
        let expected = common.seconds.saturating_mul(windows);
        Ok(Self { json, machine: Machine::here(), progress: Progress::new(expected) })
    }

    /// Shows what is being done.
    pub(super) fn show(&mut self, text: &str) {
        self.progress.show(text);
    }

    /// Writes the JSON, if asked for, and the table, unless standard output is taken.
    pub(super) fn conclude(
        self,
        schema: &str,
        parameters: Value,
        results: Map<String, Value>,
        table: &str,
    ) -> Result<()> {
        let Self { json, machine, progress } = self;
        drop(progress);
        if let Some(output) = &json {
            let mut document = Map::new();
            document.insert("schema".into(), format!("onramp.lab.{schema}").into());
            document.insert("version".into(), 1.into());
            document.insert("machine".into(), json!(machine));
            document.insert("parameters".into(), parameters);
            document.extend(results);
            output.write(&pretty(&Value::Object(document)))?;
            if output.is_stdout() {
                return Ok(());
            }
        }
        let busy = machine.was_busy().map_or_else(String::new, |warning| format!("{warning}\n"));
        output::print(&format!("{}\n{busy}\n{table}", machine.summary()))
    }
}

/// The median under the plain name, the extremes beside it; `null` where nothing was measured.
pub(super) fn insert(map: &mut Map<String, Value>, name: &str, spread: Option<Spread>) {
    let value = |figure: fn(Spread) -> f64| spread.map_or(Value::Null, |s| number(figure(s)));
    map.insert(name.into(), value(|s| s.median));
    map.insert(format!("{name}_min"), value(|s| s.min));
    map.insert(format!("{name}_max"), value(|s| s.max));
}

/// What happened at a lock.
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

/// Percentiles, nanoseconds; `null`: nothing was measured.
pub(super) fn percentiles(ns: Option<Percentiles>) -> Value {
    ns.map_or(Value::Null, |ns| {
        json!({"p50": ns.p50, "p99": ns.p99, "p999": ns.p999, "max": ns.max, "samples": ns.samples})
    })
}

/// Median, least and greatest with `digits` decimals, after division by `unit`.
pub(super) fn figure(spread: Option<Spread>, unit: f64, digits: usize) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |Spread { median, min, max }| {
            let [median, min, max] = [median, min, max].map(|value| value / unit);
            format!("{median:.digits$} ({min:.digits$}-{max:.digits$})")
        },
    )
}

/// Numbers of threads, each once.
pub(super) fn counts(given: &[u32]) -> Vec<usize> {
    let mut counts = Vec::new();
    for &count in given {
        if !counts.contains(&(count as usize)) {
            counts.push(count as usize);
        }
    }
    counts
}

/// Processors that threads may run on.
pub(super) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
