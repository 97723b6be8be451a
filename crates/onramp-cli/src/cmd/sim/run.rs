//! The command `onramp sim run`: simulates one scenario.

use std::path::PathBuf;

use anyhow::Result;
use onramp_multicore::{Description, Scenario};
use serde_json::{Map, Value, json};

use super::draws::{self, Common, Job, Subject};
use super::summary::{self, Spread};
use crate::error::usage;
use crate::output::{self, Output};
use crate::report::json::{number, pretty};
use crate::report::simulated::{self, Row, Simulated};
use crate::watch;

/// Simulate one load on a machine of many processors
///
/// The simulated machine runs Onramp's own code. Each draw takes other values for what memory and
/// software cost, within intervals that have public sources; the result is the median of the draws,
/// and an interval in which at least nine tenths of them lie: with up to 19 draws, from the least
/// to the greatest.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp sim run udp-480
  onramp sim run one-port --draws 1
  onramp sim run udp-480 --designs llist-queued,onramp --html designs.html
  onramp sim run paced-240
  onramp sim run my-load.toml --draws 20 --seed 7 --json prediction.json")]
pub(crate) struct Args {
    /// A scenario: change-240, one-port, paced-240, udp-240, udp-480, or a file (docs/scaling.md
    /// says what it contains)
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
    /// Write an HTML page with charts to this file, or to standard output with -
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let scenario = draws::scenario(&args.scenario)?;
    for name in &args.designs {
        scenario.check_design(name).map_err(|why| usage(format!("--designs: {why}")))?;
    }
    let json_output = args.json.as_deref().map(Output::new).transpose()?;
    let html_output = args.html.as_deref().map(Output::new).transpose()?;
    output::distinct(&[("--json", json_output.as_ref()), ("--html", html_output.as_ref())])?;
    let subjects: Vec<_> = match &args.designs[..] {
        [] => vec![(None, Subject::Scenario(&scenario))],
        designs => {
            designs.iter().map(|name| (Some(name), Subject::Design(&scenario, name))).collect()
        }
    };
    let draws = usize::try_from(args.common.draws).unwrap_or(usize::MAX);
    let steps = draws.saturating_mul(subjects.len());
    let expected = draws::expected(draws::EACH, subjects.len(), args.common.draws);
    let (parts, outcome) = watch::measure(steps, expected, |steps| {
        let mut parts: Vec<Part<'_>> = Vec::new();
        for (name, subject) in subjects {
            let jobs: Vec<_> = args.common.seeds().map(|seed| Job { subject, seed }).collect();
            let draws = draws::in_steps(name.map_or("link", |name| name), &jobs, steps);
            if !draws.is_empty() {
                parts.push((name, draws));
            }
        }
        parts
    })?;
    outcome.has_results(parts.len())?;
    let mut done = vec![outcome.verdict()];
    if ![&json_output, &html_output].into_iter().flatten().any(Output::is_stdout) {
        let titled = |design: Option<&String>| {
            design.map_or_else(
                || scenario.title.clone(),
                |name| format!("{}, {name}", scenario.title),
            )
        };
        let report = parts.iter().map(|(design, draws)| text(&titled(*design), draws));
        done.push(output::print(&format!("{}{}", report.collect::<String>(), outcome.text())));
    }
    if let Some(output) = json_output {
        let mut document = document(args, &scenario, &parts);
        outcome.insert(&mut document);
        done.push(output.write(&pretty(&Value::Object(document))));
    }
    if let Some(output) = html_output {
        let missing = outcome.sentences();
        done.push(output.write(&page(args, &scenario, &parts, &missing)?));
    }
    output::all(done)
}

/// The results of each design, with its name; without a name those of a link.
type Part<'a> = (Option<&'a String>, Vec<Value>);

fn document(args: &Args, scenario: &Scenario, parts: &[Part<'_>]) -> Map<String, Value> {
    let row = |(design, draws): &Part<'_>| {
        let design = (*design)?;
        Some(json!({ "design": design, "summary": summary::json(draws), "draws": draws }))
    };
    let rows: Vec<_> = parts.iter().filter_map(row).collect();
    let link =
        parts.iter().find(|(design, _)| design.is_none()).map_or(&[][..], |(_, draws)| draws);
    let entries = [
        ("schema", json!("onramp.sim.run")),
        ("version", json!(1)),
        ("onramp", json!(env!("CARGO_PKG_VERSION"))),
        ("scenario", json!(scenario)),
        ("seed", json!(args.common.seed)),
        ("designs", json!(rows)),
        ("summary", summary::json(link)),
        ("draws", json!(link)),
    ];
    entries.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
}

/// Returns what the page shows of one design.
fn row<'a>((design, draws): &'a Part<'_>) -> Row<'a> {
    let rate = summary::spread(draws, "packets_per_second");
    Row {
        name: design.map_or(simulated::LINK, |design| design),
        draws,
        // With as many digits as in JSON.
        rate: rate.map_or([0.0; 3], |Spread { median, low, high }| {
            [median, low, high].map(|rate| number(rate).as_f64().unwrap_or(rate))
        }),
        figures: summary::cells(draws).collect(),
        warning: summary::unsteady(draws).trim().to_owned(),
    }
}

fn page(
    args: &Args,
    scenario: &Scenario,
    parts: &[Part<'_>],
    missing: &[String],
) -> Result<String> {
    let machine = Description::find(&scenario.machine)?.title;
    Ok(simulated::page(&Simulated {
        title: &scenario.title,
        scenario: &json!(scenario),
        machine: &machine,
        command: &command(args),
        missing,
        rows: parts.iter().map(row).collect(),
    }))
}

/// Returns the command that makes the same results again.
fn command(args: &Args) -> String {
    let Common { draws, seed } = &args.common;
    let name = shlex::try_quote(&args.scenario).unwrap_or_else(|_| (&*args.scenario).into());
    let designs = match &args.designs[..] {
        [] => String::new(),
        designs => format!(" --designs {}", designs.join(",")),
    };
    format!("onramp sim run {name}{designs} --draws {draws} --seed {seed}")
}

fn text(title: &str, draws: &[Value]) -> String {
    let mut text = format!("{title}: the median of {} draws", draws.len());
    if draws.len() > 1 {
        text.push_str(", with an interval of at least nine tenths of them");
    }
    text.push('\n');
    for (heading, cell) in summary::cells(draws) {
        text.push_str(&format!("  {heading:<18} {cell}\n"));
    }
    text.push_str(&summary::unsteady(draws));
    let fields = draws.first().and_then(|draw| draw["fields"].as_array());
    text.push_str("fields that processors waited longest for, with the middle of each interval:\n");
    for field in fields.into_iter().flatten() {
        let figure = |key: &str| field[key].as_f64().unwrap_or_default();
        text.push_str(&format!(
            "  {:<28} {:>7.1} ns/packet, {:.3} transfers/packet, {:.3} contended\n",
            field["field"].as_str().unwrap_or_default(),
            figure("stalled_ns_per_packet"),
            figure("transfers_per_packet"),
            figure("contended_per_packet"),
        ));
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
