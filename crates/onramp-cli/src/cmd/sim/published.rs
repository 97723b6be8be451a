//! The command `onramp sim published`: simulates measurements that were published, and compares.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use onramp_multicore::{EXPERIMENTS, Experiment, Published, Says};
use serde_json::{Value, json};

use super::draws::{self, Common, Job, Subject};
use super::summary::{Spread, spread};
use crate::error::usage;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::report::json::{number, pretty};

/// Repeat published measurements on the simulated machine, and compare
///
/// The laboratory's designs, and the transmit paths of older kernels, run under the load of each
/// measurement. The parameters come from other sources, and none is adjusted to the result. A
/// prediction is the median of the draws, with the interval in which nine tenths of them lie.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp sim published
  onramp sim published --only 2025-before-pinned,2025-after-pinned
  onramp sim published --only 2004-loopback,2009-udp
  onramp sim published --draws 50 --json published.json")]
pub(crate) struct Args {
    /// Names of measurements; all by default
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    common: Common,
    /// Write the results as JSON to this file, or to standard output with -
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A figure that was published, and what the simulation says.
struct Row {
    experiment: &'static Experiment,
    published: Published,
    predicted: Spread,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let experiments = experiments(&args.only)?;
    let json_output = args.json.as_deref().map(Output::new).transpose()?;
    let draws = usize::try_from(args.common.draws).unwrap_or(usize::MAX);
    let steps = draws.saturating_mul(experiments.len());
    let expected = Duration::from_secs(5) * u32::try_from(steps).unwrap_or(u32::MAX);
    let mut progress = Progress::begin(steps, expected);
    let mut rows = Vec::new();
    for experiment in experiments {
        let subject = Subject::Experiment(experiment);
        let jobs: Vec<_> = args.common.seeds().map(|seed| Job { subject, seed }).collect();
        let mut results = Vec::new();
        draws::simulate(&jobs, |_, result| {
            progress.step(experiment.name);
            results.push(result);
            Ok(())
        })?;
        rows.extend(experiment.published.iter().filter_map(|published| {
            let predicted = spread(&results, published.name)?;
            Some(Row { experiment, published: *published, predicted })
        }));
    }
    drop(progress);
    if !json_output.as_ref().is_some_and(Output::is_stdout) {
        output::print(&rows.iter().map(text).collect::<String>())?;
    }
    let document = json!({
        "schema": "onramp.sim.published",
        "version": 1,
        "onramp": env!("CARGO_PKG_VERSION"),
        "seed": args.common.seed,
        "draws": args.common.draws,
        "rows": rows.iter().map(json_row).collect::<Vec<_>>(),
    });
    json_output.map_or(Ok(()), |output| output.write(&pretty(&document)))
}

fn experiments(only: &[String]) -> Result<Vec<&'static Experiment>> {
    if only.is_empty() {
        return Ok(EXPERIMENTS.iter().collect());
    }
    let named =
        |name: &String| Experiment::named(name).map_err(|why| usage(format!("--only: {why}")));
    only.iter().map(named).collect()
}

fn name(row: &Row) -> String {
    format!("{}, {}", row.experiment.title, row.published.name)
}

fn json_row(row: &Row) -> Value {
    let Spread { median, low, high } = row.predicted;
    json!({
        "source": row.experiment.source,
        "name": name(row),
        "published": number(row.published.value),
        "says": row.published.says.word(),
        "predicted": number(median),
        "low": number(low),
        "high": number(high),
    })
}

fn text(row: &Row) -> String {
    let Spread { median, low, high } = row.predicted;
    let published = row.published.value;
    let (than, is_right) = match row.published.says {
        Says::Value => ("", (low..=high).contains(&published)),
        Says::More => (" >", median > published),
        Says::Less => (" <", median < published),
    };
    let verdict = match (row.published.says, is_right) {
        (Says::Value, true) => "inside",
        (Says::Value, false) => "OUTSIDE",
        (_, true) => "as published",
        (_, false) => "NOT as published",
    };
    let scale = if published >= 1e6 { 1e6 } else { 1.0 };
    let [published, median, low, high] = [published, median, low, high].map(|n| n / scale);
    let unit = if scale > 1.0 { " (millions)" } else { "" };
    format!(
        "{} {:<50} published{than} {published:>8.2}, predicted {median:>8.2} \
         ({low:.2} to {high:.2}){unit}, {verdict}\n",
        row.experiment.source,
        name(row),
    )
}
