//! `onramp lab layout`.

use std::fmt::Write;

use anyhow::Result;
use onramp_lab::layout::{self, Cell, Design, PREPARATION, Plan, Round, WORK};
use onramp_lab::measure::Rounds as _;
use serde_json::{Map, Value, json};

use super::common::{Common, Run, counts, figure, insert};
use crate::limits;
use crate::report::json::number;

/// 2009: a port's hot fields grouped by writer on their cache lines, against side by side
///
/// Threads push into an intake of numbers by Onramp's protocol; who finds it idle owns it and works
/// for all. There are no packets, no qdisc and no device: what differs is only on which lines the
/// fields lie. That Onramp's own fields are grouped is checked when it is compiled.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab layout
  onramp lab layout --threads 2 --pin
  onramp lab layout --threads 2,4,8 --pin --seconds 2 --rounds 7 --json layout.json")]
pub(crate) struct Args {
    /// Numbers of threads
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    threads: Vec<u32>,
    /// Bind threads to processors, in turn
    #[arg(long)]
    pin: bool,
    #[command(flatten)]
    common: Common,
}

/// A figure of a round, and its key.
type Figure = (&'static str, fn(&Round) -> f64);

const FIGURES: [Figure; 5] = [
    ("packets_per_second", |round| round.packets_per_second),
    ("cpu_ns_per_packet", |round| round.cpu_ns_per_packet),
    ("retries_per_packet", |round| round.retries_per_packet),
    ("owned_share", |round| round.owned_share),
    ("refused_per_packet", |round| round.refused_per_packet),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let threads = counts(&args.threads);
    let rounds = args.common.rounds as usize;
    let plan = Plan { threads, window: args.common.seconds, rounds, pin: args.pin };
    let mut run = Run::new(&args.common, plan.threads.len() * Design::ALL.len() * rounds)?;
    limits::check(plan.threads.iter().copied().max().unwrap_or(0), 0)?;
    let cells = layout::run(&plan, |text| run.show(text))?;
    let rows = cells.chunks(Design::ALL.len());
    let rows = rows.flat_map(|row| row.iter().map(|cell| json(cell, &row[0]))).collect();
    let mut results = Map::new();
    results.insert("rows".into(), rows);
    let parameters = json!({
        "threads": plan.threads,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": rounds,
        "pin": plan.pin,
        "work": WORK,
        "preparation": PREPARATION,
    });
    run.conclude("layout", parameters, results, &table(&cells))
}

fn json(cell: &Cell, base: &Cell) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), cell.design.name().into());
    map.insert("threads".into(), cell.threads.into());
    map.insert("bytes".into(), cell.design.bytes().into());
    for (name, of) in FIGURES {
        insert(&mut map, name, cell.spread(of));
    }
    map.insert("packets".into(), cell.packets.into());
    let mut ratios = Map::new();
    for (name, of) in &FIGURES[..2] {
        insert(&mut ratios, name, cell.ratio(base, of));
    }
    map.insert("ratios_to_grouped".into(), ratios.into());
    Value::Object(map)
}

fn table(cells: &[Cell]) -> String {
    let mut text = format!(
        "{:>7}  {:<8} {:>20} {:>20} {:>10} {:>8} {:>8} {:>18}\n",
        "threads",
        "layout",
        "Mpps",
        "CPU ns/packet",
        "retries",
        "owned",
        "refused",
        "CPU to grouped"
    );
    for row in cells.chunks(Design::ALL.len()) {
        for cell in row {
            let [rate, cpu, retries, owned, refused] = FIGURES.map(|(_, of)| cell.spread(of));
            let median = |spread: Option<onramp_lab::measure::Spread>, factor: f64| {
                spread.map_or(0.0, |spread| spread.median * factor)
            };
            // Writing into a string cannot fail.
            let _ = writeln!(
                text,
                "{:>7}  {:<8} {:>20} {:>20} {:>10.4} {:>6.1} % {:>8.4} {:>18}",
                cell.threads,
                cell.design.name(),
                figure(rate, 1e6, 2),
                figure(cpu, 1.0, 1),
                median(retries, 1.0),
                median(owned, 100.0),
                median(refused, 1.0),
                figure(cell.ratio(&row[0], FIGURES[1].1), 1.0, 2)
            );
        }
    }
    text.push_str("\nretries: exchanges of the word that failed, for each packet.\n");
    text
}
