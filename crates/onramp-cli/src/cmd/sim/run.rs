//! The command `onramp sim run`: simulates one scenario.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::draws::{self, Common, Job, Subject};
use super::summary;
use crate::error::usage;
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
  onramp sim run udp-480 --designs llist-queued,onramp
  onramp sim run my-load.toml --draws 20 --seed 7 --json prediction.json")]
pub(crate) struct Args {
    /// A scenario: one-port, udp-240, udp-480, or a file
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Compare these designs of the laboratory (`onramp lab contention`) under the same load, each
    /// with the same credits; `onramp` is Onramp in the same frame
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    designs: Vec<String>,
    #[command(flatten)]
    common: Common,
    /// Write the results as JSON to this file, or to standard output with -
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let scenario = draws::scenario(&args.scenario)?;
    for name in &args.designs {
        scenario.check_design(name).map_err(|why| usage(format!("--designs: {why}")))?;
    }
    let json_output = args.json.as_deref().map(Output::new).transpose()?;
    let mut subjects: Vec<_> =
        args.designs.iter().map(|design| Subject::Design(&scenario, design)).collect();
    if subjects.is_empty() {
        subjects.push(Subject::Scenario(&scenario));
    }
    let draws = usize::try_from(args.common.draws).unwrap_or(usize::MAX);
    let jobs = subjects
        .iter()
        .flat_map(|subject| args.common.seeds().map(|seed| Job { subject: *subject, seed }));
    let jobs: Vec<_> = jobs.collect();
    let mut progress = Progress::begin(jobs.len(), Duration::from_secs(20) * len(&jobs));
    let mut results = Vec::new();
    draws::simulate(&jobs, |number, result| {
        progress.step(&format!("draw {}", number + 1));
        results.push(result);
        Ok(())
    })?;
    drop(progress);
    let mut report = String::new();
    let rows = args.designs.iter().zip(results.chunks(draws));
    let row = |(design, draws): (&String, &[Value])| {
        report.push_str(&text(&format!("{}, {design}", scenario.title), draws));
        json!({ "design": design, "summary": summary::json(draws), "draws": draws })
    };
    let rows: Vec<_> = rows.map(row).collect();
    if rows.is_empty() {
        report = text(&scenario.title, &results);
    } else {
        results.clear();
    }
    let document = json!({
        "schema": "onramp.sim.run",
        "version": 1,
        "onramp": env!("CARGO_PKG_VERSION"),
        "scenario": scenario,
        "seed": args.common.seed,
        "designs": rows,
        "summary": summary::json(&results),
        "draws": results,
    });
    if !json_output.as_ref().is_some_and(Output::is_stdout) {
        output::print(&report)?;
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
    text.push_str(&summary::unsteady(draws));
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
