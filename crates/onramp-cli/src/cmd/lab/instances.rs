//! `onramp lab instances`.

use std::fmt::Write;

use anyhow::Result;
use onramp::qdisc::Spec;
use onramp_lab::instances::{self, Cell, Plan, Round};
use serde_json::{Map, Value, json};

use super::common::{Common, Run, counts, figure, insert};
use super::contention::designs;
use crate::error::usage;
use crate::limits;
use crate::report::json::number;

/// 2009: what each design gives as senders are added
///
/// The designs, packets and way of measuring are those of `onramp lab contention`, with one queue
/// and senders that send as fast as their credits come back. Scaling is the rate divided by that
/// of the first number of threads, in the same round.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab instances
  onramp lab instances --designs llist,onramp --threads 1,2
  onramp lab instances --threads 1,2,4,8,16 --designs all --qdisc pfifo --json instances.json")]
pub(crate) struct Args {
    /// Numbers of senders; the others are compared with the first
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4,8",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    threads: Vec<u32>,
    /// Designs, as of `onramp lab contention`: names, or all
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "spinlock,handicap,busylock,llist,onramp"
    )]
    designs: Vec<String>,
    /// The qdisc, in the syntax of tc
    #[arg(long, value_name = "QDISC", default_value = "pfifo_fast")]
    qdisc: String,
    /// Time that the device is busy with a packet, nanoseconds
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    device_ns: u64,
    /// Bind threads to processors, in turn
    #[arg(long)]
    pin: bool,
    #[command(flatten)]
    common: Common,
}

/// A figure of a round, and its key.
type Figure = (&'static str, fn(&Round) -> Option<f64>);

const FIGURES: [Figure; 4] = [
    ("packets_per_second", |round| Some(round.packets_per_second)),
    ("cpu_ns_per_packet", |round| round.cpu_ns_per_packet),
    ("scaling", |round| Some(round.scaling)),
    ("jain", |round| Some(round.jain)),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let qdisc = Spec::with_units(&args.qdisc)
        .map_err(|error| usage(format!("--qdisc {}: {error}", args.qdisc)))?;
    let rounds = args.common.rounds as usize;
    let plan = Plan {
        designs: designs(&args.designs)?,
        threads: counts(&args.threads),
        qdisc,
        device_ns: args.device_ns,
        pin: args.pin,
        window: args.common.seconds,
        rounds,
    };
    // Each cell runs with and without clocks.
    let windows = 2 * plan.designs.len() * plan.threads.len() * rounds;
    let mut run = Run::new(&args.common, windows)?;
    limits::check(plan.threads.iter().copied().max().unwrap_or(0) + 2, 0)?;
    let cells = instances::run(&plan, |text| run.show(text))?;
    let mut results = Map::new();
    results.insert("rows".into(), cells.iter().map(json).collect());
    let parameters = json!({
        "threads": plan.threads,
        "designs": plan.designs.iter().map(|design| design.name()).collect::<Vec<_>>(),
        "qdisc": args.qdisc,
        "device_ns": plan.device_ns,
        "pin": plan.pin,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": rounds,
    });
    run.conclude("instances", parameters, results, &table(&cells, &plan))
}

fn json(cell: &Cell) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), cell.design.name().into());
    map.insert("threads".into(), cell.threads.into());
    for (name, of) in FIGURES {
        insert(&mut map, name, cell.spread(of));
    }
    Value::Object(map)
}

fn table(cells: &[Cell], plan: &Plan) -> String {
    let mut text = String::new();
    let columns: [(&str, usize, f64, usize); 3] =
        [("Mpps", 0, 1e6, 2), ("scaling", 2, 1.0, 2), ("CPU ns/packet", 1, 1.0, 0)];
    for (name, at, unit, digits) in columns {
        // Writing into a string cannot fail.
        let _ = write!(text, "{name:<14}");
        for threads in &plan.threads {
            let _ = write!(text, " {:>20}", format!("{threads} threads"));
        }
        text.push('\n');
        for row in cells.chunks(plan.threads.len()) {
            let _ = write!(text, "{:<14}", row[0].design.name());
            for cell in row {
                let spread = cell.spread(FIGURES[at].1);
                let _ = write!(text, " {:>20}", figure(spread, unit, digits));
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}
