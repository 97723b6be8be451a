//! The command `onramp sim run`: simulates one scenario.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::draws::{self, Common, Job, Subject};
use super::summary;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::report::json::pretty;

/// Simulate one load on a machine of many processors
///
/// The simulated machine runs Onramp's own code. Each draw takes other values for what memory and
/// software cost, within intervals that have public sources; the result is the median of the draws,
/// and the interval in which nine tenths of them lie.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp sim run udp-480
  onramp sim run one-port --draws 1
  onramp sim run my-load.toml --draws 20 --seed 7 --json prediction.json")]
pub(crate) struct Args {
    /// A scenario: one-port, udp-240, udp-480, or a file
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    #[command(flatten)]
    common: Common,
    /// Write the results as JSON to this file, or to standard output with -
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let scenario = draws::scenario(&args.scenario)?;
    let json_output = args.json.as_deref().map(Output::new).transpose()?;
    let jobs: Vec<_> = args
        .common
        .seeds()
        .map(|seed| Job { subject: Subject::Scenario(&scenario), seed })
        .collect();
    let mut progress = Progress::begin(jobs.len(), Duration::from_secs(3) * len(&jobs));
    let mut results = Vec::new();
    draws::simulate(&jobs, |number, result| {
        progress.step(&format!("draw {}", number + 1));
        results.push(result);
        Ok(())
    })?;
    drop(progress);
    let document = json!({
        "schema": "onramp.sim.run",
        "version": 1,
        "onramp": env!("CARGO_PKG_VERSION"),
        "scenario": scenario,
        "seed": args.common.seed,
        "summary": summary::json(&results),
        "draws": results,
    });
    let is_stdout = json_output.as_ref().is_some_and(Output::is_stdout);
    if !is_stdout {
        output::print(&text(&scenario.title, &results))?;
    }
    json_output.map_or(Ok(()), |output| output.write(&pretty(&document)))
}

fn len(jobs: &[Job<'_>]) -> u32 {
    u32::try_from(jobs.len()).unwrap_or(u32::MAX)
}

fn text(title: &str, draws: &[Value]) -> String {
    let mut text = format!("{title}: the median of {} draws", draws.len());
    if draws.len() > 1 {
        text.push_str(", with the interval of nine tenths of them");
    }
    text.push('\n');
    for (heading, cell) in summary::headings().zip(summary::cells(draws)) {
        text.push_str(&format!("  {heading:<18} {cell}\n"));
    }
    let sites = draws.first().and_then(|draw| draw["sites"].as_array());
    text.push_str("places that waited longest for memory, with the middle of each interval:\n");
    for site in sites.into_iter().flatten() {
        let figure = |key: &str| site[key].as_f64().unwrap_or_default();
        text.push_str(&format!(
            "  {:<28} {:>7.1} ns/packet, {:.3} transfers/packet, {:.3} contended\n",
            site["place"].as_str().unwrap_or_default(),
            figure("stalled_ns_per_packet"),
            figure("transfers_per_packet"),
            figure("contended_per_packet"),
        ));
    }
    text
}
