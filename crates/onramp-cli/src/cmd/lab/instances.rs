//! The command `onramp lab instances`: measures how each design scales as senders are added.

use anyhow::Result;
use onramp::Spec;
use onramp_lab::contention::warm_up;
use onramp_lab::instances::{self, Measurement, Plan, Round};
use serde_json::{Map, Value, json};

use super::common::{
    self, Column, Common, Figure, LoadArgs, Run, counts, insert_all, latencies, percentiles,
};
use super::contention::designs;
use crate::cmd::values::whole;
use crate::error::usage;
use crate::limits;
use crate::report::json::number;

/// Experiment of 2009: how the rate of each design changes as senders are added
///
/// The designs, packets, loads and way of measuring are those of `onramp lab contention`, with one
/// queue. Scaling is the rate divided by that of the first number of threads, in the same round.
/// Percentiles are those of transaction times, from separate runs, because timing slows the senders
/// down.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab instances
  onramp lab instances --designs llist,onramp --threads 1,2
  onramp lab instances --designs llist,onramp --load rr --burst 5
  onramp lab instances --threads 1,2,4,8,16 --designs all --qdisc pfifo --json instances.json")]
pub(crate) struct Args {
    /// Numbers of senders; rates are compared with those of the first number
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4,8",
          value_parser = whole::<u32>(1..=10_000))]
    threads: Vec<u32>,
    /// Names of designs, as for `onramp lab contention`; or all
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
    /// Nanoseconds for which the device is busy with each packet
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = whole::<u64>(0..=1_000_000_000))]
    device_ns: u64,
    /// Bind threads to processors, in turn
    #[arg(long)]
    pin: bool,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    common: Common,
}

const FIGURES: [Figure<Round>; 5] = [
    Figure::new("packets_per_second", "Mpps", (1e6, 2), |round| Some(round.packets_per_second)),
    Figure::new("transactions_per_second", "bursts/s", (1.0, 0), |r| r.transactions_per_second),
    Figure::new("scaling", "scaling", (1.0, 2), |round| round.scaling),
    Figure::new("cpu_ns_per_packet", "CPU ns/packet", (1.0, 0), |round| round.cpu_ns_per_packet),
    Figure::new("jain", "fairness", (1.0, 2), |round| Some(round.jain)),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let qdisc = Spec::with_units(&args.qdisc)
        .map_err(|error| usage(format!("--qdisc {}: {error}", args.qdisc)))?;
    let (rounds, load) = (args.common.rounds as usize, args.load.load()?);
    let plan = Plan {
        designs: designs(&args.designs)?,
        threads: counts(&args.threads),
        qdisc,
        device_ns: args.device_ns,
        pin: args.pin,
        window: args.common.seconds,
        rounds,
        load,
    };
    // Each combination of a design and a number of senders runs twice in a round: once to time
    // transactions, and once without timing, for the rates.
    let windows = 2 * plan.designs.len() * plan.threads.len() * rounds;
    let mut run = Run::new(&args.common, windows)?;
    limits::check(plan.threads.iter().copied().max().unwrap_or(0) + 2, 0)?;
    let cells = run.measure(|steps| instances::run(&plan, steps))?;
    let mut results = Map::new();
    results.insert("rows".into(), cells.iter().map(json).collect());
    let parameters = json!({
        "threads": plan.threads,
        "designs": plan.designs.iter().map(|design| design.name()).collect::<Vec<_>>(),
        "qdisc": args.qdisc,
        "device_ns": plan.device_ns,
        "pin": plan.pin,
        "load": load.name(),
        "burst": load.burst(),
        "seconds": number(plan.window.as_secs_f64()),
        "warm_up_seconds": number(warm_up(plan.window).as_secs_f64()),
        "rounds": rounds,
    });
    run.conclude("instances", parameters, results, &table(&cells))
}

fn json(cell: &Measurement) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), cell.design.name().into());
    map.insert("threads".into(), cell.threads.into());
    insert_all(&mut map, &FIGURES, |figure| figure.spread(cell));
    map.insert("latency_ns".into(), percentiles(cell.latency.percentiles()));
    Value::Object(map)
}

fn table(cells: &[Measurement]) -> String {
    let mut columns = vec![
        Column::new("design", |cell: &Measurement| cell.design.name().to_owned()),
        Column::new("threads", |cell: &Measurement| cell.threads.to_string()),
    ];
    columns.extend(FIGURES.iter().map(Figure::column));
    columns.extend(latencies(|cell: &Measurement| &cell.latency));
    common::table(cells, &columns)
}
