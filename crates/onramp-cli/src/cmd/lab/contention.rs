//! The command `onramp lab contention`: compares designs of the transmit path under contention.

mod json;
mod table;

use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;
use onramp::Spec;
use onramp_lab::contention::{self, Design, Manners, Plan, Row};
use onramp_lab::memory::Memory;

use super::common::{LoadArgs, Reports, Run, counts, once};
use crate::cmd::bench::seconds;
use crate::cmd::values::whole;
use crate::error::usage;
use crate::limits;

/// Compare designs of the transmit path: many threads, one queue, the same qdisc and device
///
/// Each design runs twice in a round: once for rates and CPU time, and once while locks and calls
/// are timed, for the tables of locks and the percentiles. Rates are medians over the rounds, with
/// the extremes. CPU is the user and system time of the whole process for each packet that left the
/// device.
///
/// By default, designs run with two kinds of manners. First, they drain queues and yield the
/// processor as they originally did: designs of Linux never yield, and each queue of another crate
/// has a thread that drains it. Second, they do so as Onramp does: the senders drain the queue, and
/// if there are more senders than processors, a sender yields after 300 us. Onramp is the same in
/// both cases, so its two rows show how well two runs agree.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab contention
  onramp lab contention --designs busylock,llist,onramp --threads 16,240 --qdisc pfifo
  onramp lab contention --designs all --threads 1,2,4,16,64,240 --json out.json --html out.html
  onramp lab contention --designs llist,onramp --manners equal --qdisc 'pfifo limit 10000'
  onramp lab contention --designs onramp-intake,std-mpsc --memory pool,malloc
  onramp lab contention --threads 16 --load rr --burst 64 --histograms")]
pub(crate) struct Args {
    #[arg(
        long,
        help = designs_help(),
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "busylock,llist,onramp"
    )]
    designs: Vec<String>,
    /// Whether designs drain queues and yield the processor as they originally did, or as Onramp
    /// does
    #[arg(long, value_enum, default_value = "both")]
    manners: MannersName,
    /// Numbers of sending threads
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,16,240",
          value_parser = whole::<u32>(1..=10_000))]
    threads: Vec<u32>,
    /// Queues of the device, each with a qdisc of its own [default: 1]. The designs of peers and
    /// intakes have neither qdisc nor device
    #[arg(long, value_name = "N",
          value_parser = whole::<u32>(1..=1_024))]
    queues: Option<u32>,
    /// The qdisc of each queue, in the syntax of tc [default: fq]
    #[arg(long, value_name = "QDISC")]
    qdisc: Option<String>,
    /// The device that packets are sent to [default: null]
    #[arg(long, value_enum)]
    device: Option<DeviceName>,
    /// Nanoseconds for which the device is busy with each packet [default: 0]
    #[arg(long, value_name = "N",
          value_parser = whole::<u64>(0..=1_000_000_000))]
    device_ns: Option<u64>,
    /// Bind threads to processors, in turn
    #[arg(long)]
    pin: bool,
    /// Length of each run in seconds, after a warm-up of a fifth of that, but of at least 0.02 and
    /// at most 0.5 seconds
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    seconds: Duration,
    /// Number of rounds; the designs take turns in each round
    #[arg(long, value_name = "R", default_value_t = 3,
          value_parser = whole::<u32>(1..=1_000))]
    rounds: u32,
    #[command(flatten)]
    load: LoadArgs,
    /// Numbers of packets that each thread may have in flight; each number is measured. A link
    /// shares 8192 packets per queue among its senders, and allows none more than its share
    /// [default: the design's own number]
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          value_parser = whole::<u32>(1..=32_768))]
    credits: Vec<u32>,
    /// Where packets come from: a pool of each thread, or the system allocator (only for designs
    /// that are a bare queue)
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "pool")]
    memory: Vec<MemoryName>,
    /// Also show histograms of the duration of the send call, in powers of two
    #[arg(long)]
    histograms: bool,
    #[command(flatten)]
    reports: Reports,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DeviceName {
    /// Takes every packet and sends none
    Null,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MannersName {
    /// As each design originally did: senders never yield, and queues of other crates have a thread
    /// that drains them
    Linux,
    /// As Onramp does: senders yield to other threads, and drain the queue
    Equal,
    /// Both, one after the other
    Both,
}

impl MannersName {
    fn manners(self) -> Vec<Manners> {
        match self {
            Self::Linux => vec![Manners::Linux],
            Self::Equal => vec![Manners::Equal],
            Self::Both => Manners::ALL.to_vec(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MemoryName {
    /// A pool of each thread, as in Onramp
    Pool,
    /// The sender allocates each packet, and the thread that drains the queue frees it
    Malloc,
}

/// The results of the experiment.
#[derive(Debug)]
struct Results {
    /// Number of processors that the experiment ran on.
    cpus: usize,
    plan: Plan,
    rows: Vec<Row>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let plan = plan(args)?;
    let mut run = Run::expecting(&args.reports, plan.runs(), plan.expected())?;
    let most = plan.threads.iter().copied().max().unwrap_or(0);
    limits::check(most + 1, 0)?;
    let rows = run.measure(|steps| contention::run(&plan, steps))?;
    let results = Results { cpus: run.cpus(), plan, rows };
    let table = table::contention(&results, args.histograms);
    run.conclude("contention", json::parameters(&results.plan), json::results(&results), &table)
}

fn plan(args: &Args) -> Result<Plan> {
    let qdisc = args.qdisc.as_deref().unwrap_or("fq");
    let qdisc =
        Spec::with_units(qdisc).map_err(|error| usage(format!("--qdisc {qdisc}: {error}")))?;
    let DeviceName::Null = args.device.unwrap_or(DeviceName::Null);
    let Ok(queues) = usize::try_from(args.queues.unwrap_or(1)) else { bail!("--queues: too many") };
    let designs = designs(&args.designs)?;
    check_used(args, &designs)?;
    Ok(Plan {
        memory: memory(&args.memory, &designs)?,
        designs,
        manners: args.manners.manners(),
        threads: counts(&args.threads),
        queues,
        qdisc,
        device_ns: args.device_ns.unwrap_or(0),
        pin: args.pin,
        window: args.seconds,
        rounds: args.rounds as usize,
        load: args.load.load()?,
        credits: if args.credits.is_empty() {
            vec![None]
        } else {
            once(args.credits.iter().copied().map(Some))
        },
    })
}

/// Checks that at least one of `designs` uses the qdisc and the device that the user gave.
fn check_used(args: &Args, designs: &[Design]) -> Result<()> {
    let given = [
        ("--queues", args.queues.is_some()),
        ("--qdisc", args.qdisc.is_some()),
        ("--device", args.device.is_some()),
        ("--device-ns", args.device_ns.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) if designs.iter().all(|design| design.is_peer()) => {
            let paths: Vec<_> = Design::ALL.iter().map(|design| design.name()).collect();
            Err(usage(format!(
                "{option}: the designs in --designs are bare queues, without qdisc and device; \
                 leave {option} out, or add a design that has them: {}",
                paths.join(", ")
            )))
        }
        _ => Ok(()),
    }
}

/// Returns where packets come from, as the user asked. The system allocator is allowed only if each
/// of `designs` works with it.
fn memory(names: &[MemoryName], designs: &[Design]) -> Result<Vec<Memory>> {
    let path = designs.iter().find(|design| !design.is_peer());
    if let (true, Some(path)) = (names.contains(&MemoryName::Malloc), path) {
        let path = path.name();
        return Err(usage(format!(
            "--memory malloc: {path} needs pools, because it counts credits by them; use designs \
             that are a bare queue, such as --designs peers"
        )));
    }
    let memory = |name: &MemoryName| match name {
        MemoryName::Pool => Memory::Pool,
        MemoryName::Malloc => Memory::Malloc,
    };
    Ok(once(names.iter().map(memory)))
}

/// Returns the designs with these `names`, each of them once.
pub(super) fn designs(names: &[String]) -> Result<Vec<Design>> {
    let mut designs = Vec::new();
    for name in names {
        let named: &[Design] = match name.as_str() {
            "all" => Design::ALL,
            "peers" => Design::PEERS,
            "intakes" => Design::INTAKES,
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

fn designs_help() -> String {
    let names = |designs: &[Design]| {
        let names: Vec<_> = designs.iter().map(|design| design.name()).collect();
        names.join(", ")
    };
    format!(
        "Names of designs [possible: {}]; or all, for all of these; or {}, with the queued \
         spinlock of Linux; or {}; or peers, for queues of other crates and Onramp's intake; or \
         intakes, for other ways to build that intake",
        names(Design::ALL),
        names(Design::QUEUED),
        names(Design::OTHERS)
    )
}

fn unknown(name: &str) -> anyhow::Error {
    let known: Vec<_> = Design::every().map(Design::name).collect();
    let known = known.join(", ");
    usage(format!("--designs {name}: unknown design; expected {known}, all, peers or intakes"))
}
