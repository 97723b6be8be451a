//! The command `onramp sim published`: simulates measurements that were published, and compares.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use onramp_lab::measure::Steps;
use onramp_multicore::{EXPERIMENTS, Experiment, Published, Says};
use serde_json::{Map, Value, json};

use super::draws::{self, Common, Job, Subject};
use super::summary::{Spread, spread};
use crate::error::usage;
use crate::output::{self, Output};
use crate::report::json::{number, pretty};
use crate::watch;

/// Repeat published measurements on the simulated machine, and compare
///
/// The laboratory's designs, and the transmit paths of older kernels, run under the load of each
/// measurement. The parameters come from other sources, and none is adjusted to the result. A
/// prediction is the median of the draws, with an interval in which at least nine tenths of them
/// lie: with up to 19 draws, from the least to the greatest.
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
    /// Number of draws that have ended.
    draws: usize,
}

/// How long a draw takes.
const EACH: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let experiments = experiments(&args.only)?;
    let json_output = args.json.as_deref().map(Output::new).transpose()?;
    let draws = usize::try_from(args.common.draws).unwrap_or(usize::MAX);
    let steps = draws.saturating_mul(experiments.len());
    let expected = draws::expected(EACH, experiments.len(), args.common.draws);
    let (rows, outcome) =
        watch::measure(steps, expected, |steps| rows(&experiments, &args.common, steps))?;
    outcome.has_results(rows.len())?;
    let mut done = vec![outcome.verdict()];
    if !json_output.as_ref().is_some_and(Output::is_stdout) {
        let lines = rows.iter().map(|row| text(row, draws)).collect::<String>();
        done.push(output::print(&format!("{lines}{}", outcome.text())));
    }
    if let Some(output) = json_output {
        let mut document = Map::new();
        document.insert("schema".into(), "onramp.sim.published".into());
        document.insert("version".into(), 1.into());
        document.insert("onramp".into(), env!("CARGO_PKG_VERSION").into());
        document.insert("seed".into(), args.common.seed.into());
        document.insert("draws".into(), args.common.draws.into());
        document.insert("rows".into(), rows.iter().map(json_row).collect());
        outcome.insert(&mut document);
        done.push(output.write(&pretty(&Value::Object(document))));
    }
    output::all(done)
}

/// Simulates the measurements, with all draws of each.
fn rows(experiments: &[&'static Experiment], common: &Common, steps: &mut Steps<'_>) -> Vec<Row> {
    let rows = experiments.iter().flat_map(|experiment| {
        let subject = Subject::Experiment(experiment);
        let jobs: Vec<_> = common.seeds().map(|seed| Job { subject, seed }).collect();
        let results = draws::in_steps(experiment.name, &jobs, steps);
        let row = move |published: &Published| {
            let predicted = spread(&results, published.name)?;
            Some(Row { experiment, published: *published, predicted, draws: results.len() })
        };
        experiment.published.iter().filter_map(row)
    });
    rows.collect()
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
        "draws": row.draws,
        "predicted": number(median),
        "low": number(low),
        "high": number(high),
    })
}

/// Returns the line about a figure. It tells the number of draws if that is not `draws`.
fn text(row: &Row, draws: usize) -> String {
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
    let few = match row.draws {
        some if some < draws => format!(", {some} of {draws} draws"),
        _ => String::new(),
    };
    format!(
        "{} {:<50} published{than} {published:>8.2}, predicted {median:>8.2} \
         ({low:.2} to {high:.2}){unit}, {verdict}{few}\n",
        row.experiment.source,
        name(row),
    )
}
