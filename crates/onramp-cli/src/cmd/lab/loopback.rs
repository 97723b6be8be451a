//! `onramp lab loopback`.

use std::fmt::Write;

use anyhow::Result;
use onramp_lab::lockstat::{LockRow, lockmeter_table};
use onramp_lab::loopback::{self, CREDITS, Cell, Design, PAYLOAD, Plan, Round};
use onramp_lab::measure::Rounds as _;
use serde_json::{Map, Value, json};

use super::common::{Common, Run, counts, cpus, figure, insert, lock};
use crate::limits;
use crate::report::json::number;

/// 2004: pairs over a loopback, one queue behind a lock against a queue for each sender
///
/// Every sender sends to a receiver of its own, one packet of 120 bytes at a time, with up to 64
/// on their way. With a lock, all share one transmit queue and its counters, as Linux's loopback
/// did; without, each has its own. Everything else is the same code. Rates are of packets
/// received; what happened at the locks is from a round of its own, because noting it takes time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab loopback
  onramp lab loopback --pairs 8 --rounds 3
  onramp lab loopback --pairs 1,2,8,31,64 --seconds 2 --rounds 5 --json loopback.json")]
pub(crate) struct Args {
    /// Numbers of pairs of a sender and a receiver
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,8,31,64",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pairs: Vec<u32>,
    #[command(flatten)]
    common: Common,
}

/// A figure of a round, and its key.
type Figure = (&'static str, fn(&Round) -> f64);

const FIGURES: [Figure; 3] = [
    ("packets_per_second", |round| round.packets_per_second),
    ("cpu_ns_per_packet", |round| round.cpu_ns_per_packet),
    ("context_switches_per_second", |round| round.switches_per_second),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let pairs = counts(&args.pairs);
    let most = pairs.iter().copied().max().unwrap_or(0);
    let rounds = args.common.rounds as usize;
    let plan = Plan { pairs, window: args.common.seconds, rounds };
    let mut run = Run::new(&args.common, plan.pairs.len() * Design::ALL.len() * (rounds + 1))?;
    limits::check(2 * most, 0)?;
    let cells = loopback::run(&plan, |text| run.show(text))?;
    let mut results = Map::new();
    let rows = cells.chunks(Design::ALL.len());
    results.insert(
        "rows".into(),
        rows.flat_map(|row| row.iter().map(|cell| json(cell, row))).collect(),
    );
    let parameters = json!({
        "pairs": plan.pairs,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": rounds,
        "payload": PAYLOAD,
        "credits": CREDITS,
    });
    run.conclude("loopback", parameters, results, &table(&cells))
}

/// The design that others are compared to.
fn baseline(row: &[Cell]) -> Option<&Cell> {
    row.iter().find(|cell| cell.design == Design::Spinlock)
}

fn json(cell: &Cell, row: &[Cell]) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), cell.design.name().into());
    map.insert("pairs".into(), cell.pairs.into());
    for (name, of) in FIGURES {
        insert(&mut map, name, cell.spread(of));
    }
    map.insert("packets".into(), cell.packets.into());
    map.insert("lock".into(), cell.lock.as_ref().map_or(Value::Null, |row| lock(row, cpus())));
    let mut ratios = Map::new();
    for (name, of) in &FIGURES[..2] {
        insert(&mut ratios, name, baseline(row).and_then(|base| cell.ratio(base, of)));
    }
    map.insert("ratios_to_spinlock".into(), ratios.into());
    Value::Object(map)
}

fn table(cells: &[Cell]) -> String {
    let mut text = format!(
        "{:>5}  {:<9} {:>22} {:>22} {:>12} {:>10} {:>18}\n",
        "pairs", "design", "Mpps", "CPU ns/packet", "switches/s", "contended", "Mpps to spinlock"
    );
    for row in cells.chunks(Design::ALL.len()) {
        for cell in row {
            let [rate, cpu, switches] = FIGURES.map(|(_, of)| cell.spread(of));
            let contended = cell.lock.as_ref().map_or_else(
                || "no lock".to_owned(),
                |lock| format!("{:.2} %", 100.0 * lock.contended_share()),
            );
            let ratio = baseline(row).and_then(|base| cell.ratio(base, FIGURES[0].1));
            // Writing into a string cannot fail.
            let _ = writeln!(
                text,
                "{:>5}  {:<9} {:>22} {:>22} {:>12} {:>10} {:>18}",
                cell.pairs,
                cell.design.name(),
                figure(rate, 1e6, 2),
                figure(cpu, 1.0, 0),
                switches.map_or_else(String::new, |spread| format!("{:.0}", spread.median)),
                contended,
                figure(ratio, 1.0, 2)
            );
        }
    }
    text.push_str("\nThe locks, in the columns of 2004:\n\n");
    for cell in cells {
        if let Some(row) = &cell.lock {
            let table = lockmeter_table(std::slice::from_ref::<LockRow>(row), cpus());
            let lines = table.lines().skip(if text.ends_with("\n\n") { 0 } else { 2 });
            for line in lines {
                let is_row = line.ends_with(row.name.as_str());
                let pairs = if is_row {
                    format!(" {} pairs, {}", cell.pairs, row.kind)
                } else {
                    String::new()
                };
                let _ = writeln!(text, "{line}{pairs}");
            }
        }
    }
    text
}
