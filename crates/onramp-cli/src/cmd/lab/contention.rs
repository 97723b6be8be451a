//! `onramp lab contention`.

mod json;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use onramp::qdisc::Spec;
use onramp_lab::Error;
use onramp_lab::contention::{self, Design, Load, Plan, Row};

use crate::cmd::bench::seconds;
use crate::error::usage;
use crate::limits;
use crate::machine::Machine;
use crate::output::{self, Output};
use crate::progress::Progress;

/// Compare designs of the transmit path: many threads, one queue, the same qdisc and device
///
/// Each design runs twice a round: without clocks, for rates and CPU time, and with clocks at locks
/// and calls, for the tables and percentiles. Rates are medians over the rounds, with the extremes;
/// CPU is user and system time of the whole process for each packet that came out.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab contention
  onramp lab contention --designs busylock,llist,onramp --threads 16,240 --qdisc pfifo
  onramp lab contention --designs all --threads 1,2,4,16,64,240 --qdisc fq --json out.json
  onramp lab contention --threads 16 --load rr --burst 64 --histograms")]
pub(crate) struct Args {
    /// Designs: names, or all [possible: spinlock, ticket, busylock, handicap, adaptive, mutex,
    /// percpu-queue, llist, onramp]; or peers, for queues of other crates beside Onramp's intake
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "busylock,llist,onramp"
    )]
    designs: Vec<String>,
    /// Numbers of sending threads
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,16,240",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    threads: Vec<u32>,
    /// Queues of the device, each with a qdisc of its own
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1_024))]
    queues: u32,
    /// The qdisc of each queue, in the syntax of tc
    #[arg(long, value_name = "QDISC", default_value = "fq")]
    qdisc: String,
    /// The device: null takes everything at once
    #[arg(long, value_enum, default_value = "null")]
    device: DeviceName,
    /// Time that the device is busy with a packet, nanoseconds
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    device_ns: u64,
    /// Bind threads to processors, in turn
    #[arg(long)]
    pin: bool,
    /// Length of each run, seconds; a fifth more before it warms up
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    seconds: Duration,
    /// Rounds; the designs take turns in each
    #[arg(long, value_name = "R", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// What threads do
    #[arg(long, value_enum, default_value = "stream")]
    load: LoadName,
    /// Packets that a thread has in flight with --load rr
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    burst: u32,
    /// Show histograms of the send call too, in powers of two
    #[arg(long)]
    histograms: bool,
    /// Write the results as JSON (docs/json.md says what each key means); - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DeviceName {
    /// Takes everything
    Null,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LoadName {
    /// Each thread sends as fast as its credits come back
    Stream,
    /// Each sends a burst, waits until all of it has left, and sends the next
    Rr,
}

/// What was measured, and on what.
#[derive(Debug)]
struct Results {
    machine: Machine,
    plan: Plan,
    rows: Vec<Row>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let json = args.json.as_deref().map(Output::new).transpose()?;
    let plan = plan(args)?;
    let most = plan.threads.iter().copied().max().unwrap_or(0);
    limits::check(most + 1, 0)?;
    let machine = Machine::here();
    let mut progress = Progress::new(plan.expected());
    let rows = contention::run(&plan, &mut |what| progress.show(what)).map_err(told)?;
    drop(progress);
    let results = Results { machine, plan, rows };
    if let Some(json) = &json {
        json.write(&json::contention(&results))?;
        if json.is_stdout() {
            return Ok(());
        }
    }
    output::print(&table::contention(&results, args.histograms))
}

fn told(error: Error) -> anyhow::Error {
    anyhow::Error::new(error)
}

fn plan(args: &Args) -> Result<Plan> {
    let qdisc = Spec::with_units(&args.qdisc)
        .map_err(|error| usage(format!("--qdisc {}: {error}", args.qdisc)))?;
    let DeviceName::Null = args.device;
    let Ok(queues) = usize::try_from(args.queues) else { bail!("--queues: too many") };
    let mut threads = Vec::new();
    for count in &args.threads {
        let Ok(count) = usize::try_from(*count) else { bail!("--threads: too many") };
        if !threads.contains(&count) {
            threads.push(count);
        }
    }
    Ok(Plan {
        designs: designs(&args.designs)?,
        threads,
        queues,
        qdisc,
        device_ns: args.device_ns,
        pin: args.pin,
        window: args.seconds,
        rounds: args.rounds as usize,
        load: match args.load {
            LoadName::Stream => Load::Stream,
            LoadName::Rr => Load::Rr(args.burst),
        },
    })
}

/// The designs that `names` name, each once.
pub(super) fn designs(names: &[String]) -> Result<Vec<Design>> {
    let mut designs = Vec::new();
    for name in names {
        let named: &[Design] = match name.as_str() {
            "all" => Design::ALL,
            "peers" => Design::PEERS,
            name => &[Design::named(name).ok_or_else(|| unknown(name))?],
        };
        for design in named {
            if !designs.contains(design) {
                designs.push(*design);
            }
        }
    }
    Ok(designs)
}

fn unknown(name: &str) -> anyhow::Error {
    let known = Design::ALL.iter().chain(Design::PEERS);
    let known: Vec<_> = known.map(|design| design.name()).collect();
    let known = known.join(", ");
    usage(format!("--designs {name}: there is no such design; there are {known}; all, and peers"))
}
