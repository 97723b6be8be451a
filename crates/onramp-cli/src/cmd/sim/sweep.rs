//! The command `onramp sim sweep`: simulates a scenario with several numbers of threads and ports.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use onramp_lab::measure::Steps;
use onramp_multicore::Scenario;
use serde_json::{Value, json};

use super::draws::{self, Common, Job, Subject};
use super::summary;
use crate::cmd::values::whole;
use crate::error::usage;
use crate::output::{self, Output};
use crate::report::json::pretty;
use crate::watch;

/// Simulate a load with several numbers of threads and ports
///
/// Each combination is simulated as by `onramp sim run`. With --json, the file is written anew
/// after each combination; --resume goes on after the last combination that is there. Ctrl-C ends
/// the command, which prints the draws that have ended.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp sim sweep udp-480 --threads 1,8,64,240,480 --ports 1,8,30,240
  onramp sim sweep udp-480 --threads 480 --ports 1,30 --draws 1 --json sweep.json
  onramp sim sweep udp-480 --threads 480 --ports 1,30 --draws 1 --json sweep.json --resume")]
pub(crate) struct Args {
    /// A scenario: change-240, one-port, paced-240, udp-240, udp-480, or a file
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Numbers of sending threads; that of the scenario by default
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = whole::<u16>(1..=65_535))]
    threads: Vec<u16>,
    /// Numbers of ports; that of the scenario by default
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = whole::<u16>(1..=65_535))]
    ports: Vec<u16>,
    #[command(flatten)]
    common: Common,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Take over the combinations that the file of --json has already
    #[arg(long, requires = "json")]
    resume: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let base = draws::scenario(&args.scenario)?;
    let cells = cells(&base, args);
    let mut rows = if args.resume { known(args, &cells)? } else { Vec::new() };
    let json_output = args.json.as_deref().map(Output::new).transpose()?;
    if json_output.as_ref().is_some_and(Output::is_stdout) {
        return Err(usage("--json: a sweep writes its file again and again; name a file"));
    }
    let rest = &cells[rows.len()..];
    let draws = usize::try_from(args.common.draws).unwrap_or(usize::MAX);
    let expected = draws::expected(draws::EACH, rest.len(), args.common.draws);
    let simulate = |steps: &mut Steps<'_>| -> Result<()> {
        for cell in rest {
            let subject = Subject::Scenario(cell);
            let jobs: Vec<_> = args.common.seeds().map(|seed| Job { subject, seed }).collect();
            let name = format!("{} threads, {} ports", cell.threads, cell.ports);
            let results = draws::in_steps(&name, &jobs, steps);
            let is_whole = results.len() == draws;
            if !results.is_empty() {
                let summary = summary::json(&results);
                rows.push(json!({ "scenario": cell, "summary": summary, "draws": results }));
            }
            if !is_whole {
                break;
            }
            if let Some(output) = &json_output {
                output.write(&pretty(&document(args, &rows)))?;
            }
        }
        Ok(())
    };
    let (simulated, outcome) =
        watch::measure(rest.len().saturating_mul(draws), expected, simulate)?;
    outcome.has_results(rows.len())?;
    let printed = output::print(&format!("{}{}", text(&base, draws, &rows), outcome.text()));
    output::all([outcome.verdict(), simulated, printed])
}

/// Returns the combinations in the order in which they are simulated.
fn cells(base: &Scenario, args: &Args) -> Vec<Scenario> {
    let or = |given: &[u16], own: u16| if given.is_empty() { vec![own] } else { given.to_vec() };
    let (threads, ports) = (or(&args.threads, base.threads), or(&args.ports, base.ports));
    let with = |threads, ports| Scenario { threads, ports, ..base.clone() };
    threads.iter().flat_map(|n| ports.iter().map(move |ports| with(*n, *ports))).collect()
}

fn document(args: &Args, rows: &[Value]) -> Value {
    json!({
        "schema": "onramp.sim.sweep",
        "version": 1,
        "onramp": env!("CARGO_PKG_VERSION"),
        "seed": args.common.seed,
        "draws": args.common.draws,
        "rows": rows,
    })
}

/// Returns the rows of an earlier run of the same sweep; none if there is no file.
fn known(args: &Args, cells: &[Scenario]) -> Result<Vec<Value>> {
    let Some(path) = args.json.as_deref().filter(|path| path.exists()) else {
        return Ok(Vec::new());
    };
    let named = || format!("--resume {}", path.display());
    let text = fs::read_to_string(path).with_context(named)?;
    let mut found: Value = serde_json::from_str(&text).with_context(named)?;
    let Value::Array(rows) = found["rows"].take() else {
        return Err(usage(format!("{}: it is no result of a sweep", named())));
    };
    let mut same = document(args, &[]);
    same["rows"] = Value::Null;
    let fits = cells.len() >= rows.len()
        && rows.iter().zip(cells).all(|(row, cell)| row["scenario"] == json!(cell));
    if found != same || !fits {
        let why = "it is the result of another sweep: remove it, or repeat that sweep's options";
        return Err(usage(format!("{}: {why}", named())));
    }
    Ok(rows)
}

/// Returns the results for people. It tells the number of draws of a row if that is not `wanted`.
fn text(base: &Scenario, wanted: usize, rows: &[Value]) -> String {
    let mut text = format!("{}\n", base.title);
    for row in rows {
        let draws = row["draws"].as_array().map_or(&[][..], Vec::as_slice);
        let scenario = &row["scenario"];
        text.push_str(&format!("{} threads, {} ports", scenario["threads"], scenario["ports"]));
        if draws.len() < wanted {
            text.push_str(&format!(", {} of {wanted} draws", draws.len()));
        }
        text.push(':');
        let figures = summary::cells(draws);
        let figures: Vec<_> = figures.map(|(heading, cell)| format!(" {heading} {cell}")).collect();
        text.push_str(&figures.join(","));
        text.push('\n');
        text.push_str(&summary::unsteady(draws));
    }
    text
}
