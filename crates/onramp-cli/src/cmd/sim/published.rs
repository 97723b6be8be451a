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
/// lie: with up to 19 draws, from the least to the greatest. Figures that the simulation cannot
/// tell, such as interrupts a second, stand at the end, without a prediction.
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
        let lines = rows.iter().map(|row| text(row, draws));
        let lines = lines.chain(unpredicted(&experiments).map(|(of, it)| unpredicted_text(of, it)));
        done.push(output::print(&format!("{}{}", lines.collect::<String>(), outcome.text())));
    }
    if let Some(output) = json_output {
        let mut document = Map::new();
        document.insert("schema".into(), "onramp.sim.published".into());
        document.insert("version".into(), 1.into());
        document.insert("onramp".into(), env!("CARGO_PKG_VERSION").into());
        document.insert("seed".into(), args.common.seed.into());
        document.insert("draws".into(), args.common.draws.into());
        document.insert("rows".into(), rows.iter().map(json_row).collect());
        let others =
            unpredicted(&experiments).map(|(of, it)| Value::Object(published_json(of, it)));
        document.insert("unpredicted".into(), others.collect());
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

/// Returns the published figures without a prediction, each with its measurement.
fn unpredicted(
    experiments: &[&'static Experiment],
) -> impl Iterator<Item = (&'static Experiment, &'static Published)> {
    experiments.iter().flat_map(|of| of.unpredicted.iter().map(move |it| (*of, it)))
}

fn name(experiment: &Experiment, published: &Published) -> String {
    format!("{}, {}", experiment.title, published.name)
}

/// Returns what the JSON says of a published figure, without a prediction.
fn published_json(experiment: &Experiment, published: &Published) -> Map<String, Value> {
    let entries = [
        ("source", json!(experiment.source)),
        ("name", json!(name(experiment, published))),
        ("published", number(published.value)),
        ("says", json!(published.says.word())),
    ];
    entries.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
}

fn json_row(row: &Row) -> Value {
    let Spread { median, low, high } = row.predicted;
    let entries = [
        ("draws", json!(row.draws)),
        ("predicted", number(median)),
        ("low", number(low)),
        ("high", number(high)),
    ];
    let mut all = published_json(row.experiment, &row.published);
    all.extend(entries.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(all)
}

/// Returns the beginning of the line about a figure: what was published, divided by `scale`.
fn published_text(experiment: &Experiment, published: &Published, scale: f64) -> String {
    let than = match published.says {
        Says::Value => "",
        Says::More => " >",
        Says::Less => " <",
    };
    let name = name(experiment, published);
    let value = digits(published.value / scale);
    format!("{} {name:<60} published{than} {value:>8}", experiment.source)
}

/// Returns by what the figures of a line are divided, and the word for it.
fn scale(published: &Published) -> (f64, &'static str) {
    if published.value >= 1e6 { (1e6, " (millions)") } else { (1.0, "") }
}

/// Returns the text of a figure, which is not negative: with two decimals, if these say anything.
fn digits(value: f64) -> String {
    match value {
        0.0 => "0.00".to_owned(),
        small if small < 0.005 => format!("{small:.1e}"),
        large if large >= 1e3 => format!("{large:.0}"),
        _ => format!("{value:.2}"),
    }
}

/// Returns the line about a figure. It tells the number of draws if that is not `draws`.
fn text(row: &Row, draws: usize) -> String {
    let Spread { median, low, high } = row.predicted;
    let published = row.published.value;
    let is_right = match row.published.says {
        Says::Value => (low..=high).contains(&published),
        Says::More => median > published,
        Says::Less => median < published,
    };
    let verdict = match (row.published.says, is_right) {
        (Says::Value, true) => "inside",
        (Says::Value, false) => "OUTSIDE",
        (_, true) => "as published",
        (_, false) => "NOT as published",
    };
    let (scale, unit) = scale(&row.published);
    let [median, low, high] = [median, low, high].map(|value| digits(value / scale));
    let few = match row.draws {
        some if some < draws => format!(", {some} of {draws} draws"),
        _ => String::new(),
    };
    format!(
        "{}, predicted {median:>8} ({low} to {high}){unit}, {verdict}{few}\n",
        published_text(row.experiment, &row.published, scale),
    )
}

/// Returns the line about a figure without a prediction.
fn unpredicted_text(experiment: &Experiment, published: &Published) -> String {
    let (scale, unit) = scale(published);
    format!("{}{unit}, not predicted\n", published_text(experiment, published, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_say_something() {
        let said = [0.0, 9.0e-6, 0.0049, 0.52, 16.0, 487_745.0].map(digits);
        assert_eq!(said, ["0.00", "9.0e-6", "4.9e-3", "0.52", "16.00", "487745"]);
    }

    #[test]
    fn lines_say_what_was_published() {
        let experiment = Experiment::named("2009-udp").expect("there is one");
        let (published, draws) = (experiment.published[0], 3);
        let predicted = Spread { median: 1.26, low: 1.0, high: 1.56 };
        let line = text(&Row { experiment, published, predicted, draws }, 9);
        let end = "published >     1.00, predicted     1.26 (1.00 to 1.56), as published, \
                   3 of 9 draws\n";
        assert!(
            line.starts_with("2009 UDP, one queue, 2 senders ") && line.ends_with(end),
            "{line}"
        );
        let (of, it) = unpredicted(&[experiment]).next().expect("there is one");
        let line = unpredicted_text(of, it);
        assert!(line.ends_with("published     1200 (millions), not predicted\n"), "{line}");
    }
}
