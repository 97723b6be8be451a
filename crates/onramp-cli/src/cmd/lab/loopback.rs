//! The command `onramp lab loopback`: pairs of a sending and a receiving thread over a loopback,
//! with one queue behind a lock or a queue for each sender.

use std::fmt::Write;

use anyhow::Result;
use onramp_lab::lockstat::{LockRow, lockmeter_table};
use onramp_lab::loopback::{self, CREDITS, Design, Measurement, PACKETS_MAX, PAYLOAD, Plan, Round};
use serde_json::{Map, Value, json};

use super::common::{
    self, Column, Common, Figure, LoadArgs, Run, counts, cpus, insert_all, latencies, lock,
    percentiles,
};
use crate::cmd::values::whole;
use crate::error::usage;
use crate::limits;
use crate::report::json::number;

/// Experiment of 2004: pairs of threads over a loopback, with one locked queue or one per sender
///
/// Every sender sends to a receiver of its own, one packet of 120 bytes at a time, with up to 64
/// packets in flight. With a lock, all senders share one transmit queue and its counters, as in
/// Linux's loopback of 2004; without a lock, each sender has its own queue. Everything else is the
/// same code. Rates are those of packets received. What happened at the locks is measured in a
/// round of its own, because recording it takes time.
///
/// With --load rr, as in netperf, the receiver of a pair answers each packet over the same path,
/// and the sender sends its next burst when all answers have arrived. A spinlock then suffers from
/// something that a kernel forbids: a packet wakes its receiver while the lock is held, the
/// receiver may preempt the thread that holds the lock, and then spins for the lock until its time
/// slice ends. Under `chrt --batch 0`, a thread that wakes does not preempt another.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab loopback
  onramp lab loopback --pairs 8 --rounds 3
  onramp lab loopback --pairs 1,8 --load rr --burst 1
  onramp lab loopback --pairs 1,2,8,31,64 --seconds 2 --rounds 5 --json loopback.json")]
pub(crate) struct Args {
    /// Numbers of pairs of a sender and a receiver
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,8,31,64",
          value_parser = whole::<u32>(1..=10_000))]
    pairs: Vec<u32>,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    common: Common,
}

const FIGURES: [Figure<Round>; 4] = [
    Figure::new("packets_per_second", "Mpps", (1e6, 2), |round| Some(round.packets_per_second)),
    Figure::new("cpu_ns_per_packet", "CPU ns/packet", (1.0, 0), |r| Some(r.cpu_ns_per_packet)),
    Figure::new("transactions_per_second", "bursts/s", (1.0, 0), |r| r.transactions_per_second),
    Figure::new("context_switches_per_second", "switches/s", (1.0, 0), |round| {
        Some(round.switches_per_second)
    }),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let pairs = counts(&args.pairs);
    let most = pairs.iter().copied().max().unwrap_or(0);
    let (rounds, load) = (args.common.rounds as usize, args.load.load()?);
    let in_flight = 2 * most * load.burst().map_or(0, |burst| burst as usize);
    if in_flight > PACKETS_MAX {
        return Err(usage(format!(
            "--pairs {most} --burst {}: up to {in_flight} packets would be in flight, more than \
             {PACKETS_MAX}; use fewer pairs or a smaller burst",
            in_flight / (2 * most)
        )));
    }
    let plan = Plan { pairs, window: args.common.seconds, rounds, load };
    let run = Run::new(&args.common, plan.pairs.len() * Design::ALL.len() * (rounds + 1))?;
    limits::check(2 * most, 0)?;
    measured(run, &plan)
}

/// Measures, and writes and prints the results.
fn measured(mut run: Run, plan: &Plan) -> Result<()> {
    let load = plan.load;
    let cells = run.measure(|steps| loopback::run(plan, steps))?;
    let mut results = Map::new();
    results.insert("rows".into(), cells.iter().map(|cell| json(cell, &cells)).collect());
    let parameters = json!({
        "pairs": plan.pairs,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": plan.rounds,
        "payload": PAYLOAD,
        "credits": load.burst().unwrap_or(CREDITS),
        "load": load.name(),
        "burst": load.burst(),
    });
    run.conclude("loopback", parameters, results, &table(&cells))
}

/// Returns the measurement of the spinlock with as many pairs as the measurement `cell`.
fn base<'a>(cells: &'a [Measurement], cell: &Measurement) -> Option<&'a Measurement> {
    let base = (Design::Spinlock, cell.pairs);
    cells.iter().find(|other| (other.design, other.pairs) == base)
}

fn json(cell: &Measurement, cells: &[Measurement]) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), cell.design.name().into());
    map.insert("pairs".into(), cell.pairs.into());
    insert_all(&mut map, &FIGURES, |figure| figure.spread(cell));
    map.insert("latency_ns".into(), percentiles(cell.latency.percentiles()));
    map.insert("packets".into(), cell.packets.into());
    map.insert("lock".into(), cell.lock.as_ref().map_or(Value::Null, |row| lock(row, cpus())));
    let mut ratios = Map::new();
    insert_all(&mut ratios, &FIGURES[..2], |figure| figure.ratio(cell, base(cells, cell)?));
    map.insert("ratios_to_spinlock".into(), ratios.into());
    Value::Object(map)
}

fn table(cells: &[Measurement]) -> String {
    let mut columns = vec![
        Column::new("design", |cell: &Measurement| cell.design.name().to_owned()),
        Column::new("pairs", |cell: &Measurement| cell.pairs.to_string()),
    ];
    columns.extend(FIGURES.iter().map(Figure::column));
    columns.extend(latencies(|cell: &Measurement| &cell.latency));
    columns.push(Column::new("contended", |cell: &Measurement| {
        let share = |lock: &LockRow| format!("{:.2} %", 100.0 * lock.contended_share());
        let none = if cell.design == Design::PerQueue { "no lock" } else { "-" };
        cell.lock.as_ref().map_or_else(|| none.to_owned(), share)
    }));
    columns.push(FIGURES[0].ratio_column("Mpps to spinlock", |cell| base(cells, cell)));
    let mut text = common::table(cells, &columns);
    text.push_str("\nThe locks, in the columns of lockmeter (2004):\n\n");
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use onramp_lab::Load;

    use super::*;

    /// A network needs a place.
    #[test]
    fn a_failed_cell_leaves_the_rest() {
        let window = Duration::from_millis(20);
        let plan = Plan { pairs: vec![0, 1], window, rounds: 2, load: Load::Stream };
        let document = Run::failed(|run| measured(run, &plan));
        let failures = document["failures"].as_array().expect("failures");
        let cells: Vec<_> = failures.iter().map(|failure| failure["cell"].as_str()).collect();
        assert_eq!(cells, ["spinlock, 0 pairs", "mutex, 0 pairs", "per-queue, 0 pairs"].map(Some));
        assert_eq!(document["interrupted"], false);
        let rows = document["rows"].as_array().expect("rows");
        let designs: Vec<_> = rows.iter().map(|row| row["design"].as_str()).collect();
        assert_eq!(designs, ["spinlock", "mutex", "per-queue"].map(Some));
    }
}
