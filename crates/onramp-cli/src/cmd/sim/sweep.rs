//! The command `onramp sim sweep`: simulates a scenario with several numbers of threads and ports,
//! and several designs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use onramp_lab::measure::Steps;
use onramp_multicore::{Scenario, Unknown};
use serde_json::{Value, json};

use super::draws::{self, Common, Job, Subject};
use super::summary;
use crate::cmd::values::whole;
use crate::error::usage;
use crate::output::{self, Output};
use crate::report::json::pretty;
use crate::watch;

/// Simulate a load with several numbers of threads and ports, and several designs
///
/// Each combination is simulated as by `onramp sim run`. With --json, the file is written anew
/// after each combination; --resume goes on after the last combination that is there. Ctrl-C ends
/// the command, which prints the draws that have ended.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp sim sweep udp-480 --threads 1,8,64,240,480 --ports 1,8,30,240
  onramp sim sweep udp-480 --threads 64,480 --designs llist-queued,onramp
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
    /// Compare these designs of the laboratory (`onramp lab contention`) in each combination, each
    /// with the same credits; `onramp` is Onramp in the same frame
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    designs: Vec<String>,
    #[command(flatten)]
    common: Common,
    /// Write the results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Take over the combinations that the file of --json has already
    #[arg(long, requires = "json")]
    resume: bool,
}

/// What a row names instead of a design if packets go through a link.
const LINK: &str = "link";

/// A combination.
struct Cell {
    scenario: Scenario,
    /// `None`: packets go through a link.
    design: Option<String>,
}

impl Cell {
    fn name(&self) -> String {
        let Scenario { threads, ports, .. } = self.scenario;
        let design = self.design.iter().map(|design| format!(", {design}"));
        format!("{threads} threads, {ports} ports{}", design.collect::<String>())
    }

    fn subject(&self) -> Subject<'_> {
        match &self.design {
            None => Subject::Scenario(&self.scenario),
            Some(design) => Subject::Design(&self.scenario, design),
        }
    }

    /// Returns the row with the results of the draws.
    fn row(&self, draws: &[Value]) -> Value {
        json!({
            "scenario": self.scenario,
            "design": self.design.as_deref().unwrap_or(LINK),
            "summary": summary::json(draws),
            "draws": draws,
        })
    }

    /// Whether a row is about this combination.
    fn is_of(&self, row: &Value) -> bool {
        let own = self.row(&[]);
        ["scenario", "design"].iter().all(|key| own[key] == row[key])
    }

    /// Checks that the combination can be simulated. A simulation reads the scenario from the same
    /// text.
    fn check(&self) -> Result<()> {
        let wrong = |option: &str, why: Unknown| usage(format!("{option}{}: {why}", self.name()));
        Scenario::read(&self.scenario.text()).map_err(|why| wrong("", why))?;
        let Some(design) = &self.design else { return Ok(()) };
        self.scenario.check_design(design).map_err(|why| wrong("--designs: ", why))
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let base = draws::scenario(&args.scenario)?;
    let cells = cells(&base, args);
    cells.iter().try_for_each(Cell::check)?;
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
            let subject = cell.subject();
            let jobs: Vec<_> = args.common.seeds().map(|seed| Job { subject, seed }).collect();
            let results = draws::in_steps(&cell.name(), &jobs, steps);
            let is_whole = results.len() == draws;
            if !results.is_empty() {
                rows.push(cell.row(&results));
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
    let names: Vec<_> = cells.iter().map(Cell::name).collect();
    let text = format!("{}\n{}{}", base.title, text(&names, draws, &rows), outcome.text());
    let printed = output::print(&text);
    output::all([outcome.verdict(), simulated, printed])
}

/// Returns the combinations in the order in which they are simulated: the designs of one load one
/// after another.
fn cells(base: &Scenario, args: &Args) -> Vec<Cell> {
    let or = |given: &[u16], own: u16| if given.is_empty() { vec![own] } else { given.to_vec() };
    let designs = match &args.designs[..] {
        [] => vec![None],
        designs => designs.iter().cloned().map(Some).collect(),
    };
    let mut cells = Vec::new();
    for threads in or(&args.threads, base.threads) {
        for ports in or(&args.ports, base.ports) {
            let scenario = Scenario { threads, ports, ..base.clone() };
            let cell = |design: &Option<String>| Cell {
                scenario: scenario.clone(),
                design: design.clone(),
            };
            cells.extend(designs.iter().map(cell));
        }
    }
    cells
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
fn known(args: &Args, cells: &[Cell]) -> Result<Vec<Value>> {
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
    let fits =
        cells.len() >= rows.len() && rows.iter().zip(cells).all(|(row, cell)| cell.is_of(row));
    if found != same || !fits {
        let why = "it is the result of another sweep: remove it, or repeat that sweep's options";
        return Err(usage(format!("{}: {why}", named())));
    }
    Ok(rows)
}

/// Returns the results for people: the rows of the combinations of these `names`. It tells the
/// number of draws of a row if that is not `wanted`.
fn text(names: &[String], wanted: usize, rows: &[Value]) -> String {
    let mut text = String::new();
    for (name, row) in names.iter().zip(rows) {
        let draws = row["draws"].as_array().map_or(&[][..], Vec::as_slice);
        text.push_str(name);
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
