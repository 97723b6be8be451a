//! The command `onramp lab aqm`: compares active queue management (AQM) in virtual time.

mod json;
mod table;

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use onramp_core::Rate;
use onramp_lab::measure::{Steps, is_stopped};
use onramp_sim::aqm::{self, Measurement, Plan, Scenario, Subject};

use super::common::{Reports, Run, cpus, once};
use crate::cmd::values::{seed, whole};
use crate::error::usage;
use crate::setup;

/// The allowed rates of the link, in bytes per second. At 100 kbit/s, a packet of 1,500 bytes
/// already takes 120 ms, far more than the queueing delay that the qdiscs aim at. At 10 Gbit/s, the
/// simulation already takes long.
const RATES: std::ops::RangeInclusive<u64> = 12_500..=1_250_000_000;
/// About how many packets the simulation handles in a second of real time. The progress line uses
/// this number to estimate how long the run takes.
const PACE: u64 = 500_000;

/// Compare queue management as RFC 7928 proposes: rates of flows, and delays of their packets
///
/// Flows that answer to congestion as TCP Reno does, and flows that do not, send through one qdisc
/// to one link. Time is virtual: the same command always prints the same bytes.
/// docs/aqm/README.md describes the scenarios and what they show.
///
/// A kind alone has its default parameters, but for these: pfifo holds 1,000 packets; red has the
/// numbers of tc-red(8), scaled to the rate, but at high rates it averages over fewer packets, and
/// above about 7.2 Gbit/s its probability is 3 % instead of 2 %, because it keeps both in 32 bits;
/// codel, pie and red mark packets in the scenario ecn, and fq_codel
/// only there. A qdisc with parameters of its own, and a tree, are measured as given.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Unless stated otherwise, figures are those of the flows that answer to congestion. They are taken
after a warm-up half as long as the measurement.
  goodput      rate of the bits that arrived; link: share of the link that all flows used
  delay        time from the arrival of a packet at the qdisc until its first bit left
  dropped      share of the packets that were dropped; marked: share that were marked with CE
  Jain         Jain's index of fairness of the rates of the bulk flows: 1 is even
  of fair      rate beside the flow that never answers, as a part of the fair share
  short flow   how long a flow of 30 packets took, from its beginning until its last bit arrived
  call, video  delay of the call's packets; share of the video's packets that were dropped

Examples:
  onramp lab aqm
  onramp lab aqm --kinds pfifo,codel,fq_codel --scenarios bursts
  onramp lab aqm --kinds 'fq_codel,fq_codel target 2ms,cake' --setup shaper.tc
  onramp lab aqm --rate 100mbit --seconds 20 --json aqm.json --html aqm.html")]
pub(crate) struct Args {
    /// Qdiscs to compare, each a kind alone or with its parameters, such as 'fq_codel target 2ms'
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "pfifo,red,codel,fq_codel,pie,cake"
    )]
    kinds: Vec<String>,
    /// A file that describes a tree of qdiscs in lines of tc (qdisc, class and filter add), to
    /// compare with the qdiscs of --kinds. May be given more than once
    #[arg(long, value_name = "FILE")]
    setup: Vec<PathBuf>,
    /// Scenarios of traffic: mild, heavy, unresponsive, bursts, rtt-mix, ecn or all
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "all")]
    scenarios: Vec<String>,
    /// The link's rate, 100kbit to 10gbit
    #[arg(long, value_name = "RATE", default_value = "10mbit", value_parser = rate)]
    rate: Rate,
    /// Seconds of virtual time that are measured, after the warm-up
    #[arg(long, value_name = "S", default_value = "30",
          value_parser = whole::<u64>(1..=3_600))]
    seconds: u64,
    /// Seed of the random numbers
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = seed)]
    seed: u64,
    #[command(flatten)]
    reports: Reports,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let subjects = once(args.kinds.iter().map(String::as_str));
    let mut subjects = subjects.into_iter().map(subject).collect::<Result<Vec<_>>>()?;
    for file in once(&args.setup) {
        let tree = tree(file)?;
        if subjects.iter().any(|subject| subject.name() == tree.name()) {
            return Err(usage(format!(
                "--setup {0}: it is also a name in --kinds: name the file ./{0}",
                tree.name()
            )));
        }
        subjects.push(tree);
    }
    let scenarios = scenarios(&args.scenarios)?;
    let seconds = NonZeroU64::new(args.seconds).ok_or_else(|| anyhow!("no seconds"))?;
    let plan = Plan { rate: args.rate, seconds, seed: args.seed };
    let count = subjects.len() * scenarios.len();
    let each = plan.rate.as_bytes_per_second() / u64::from(aqm::MTU) * args.seconds * 3 / 2;
    let expected = Duration::from_secs(count as u64 * each / PACE / cpus() as u64);
    let run = Run::in_virtual_time(&args.reports, count, expected)?;
    measured(run, &plan, &scenarios, &subjects)
}

/// Measures, and writes and prints the results.
fn measured(mut run: Run, plan: &Plan, scenarios: &[Scenario], subjects: &[Subject]) -> Result<()> {
    let cells = run.measure(|steps| cells(plan, scenarios, subjects, steps))?;
    let rows = cells.iter().map(json::row).collect();
    let results = [("rows".to_owned(), rows)].into_iter().collect();
    let parameters = json::parameters(plan, scenarios, subjects);
    run.conclude("aqm", parameters, results, &table::all(plan, scenarios, subjects, &cells))
}

/// Runs all scenarios with all qdiscs and returns the measurements, scenario by scenario. Each run
/// is an independent simulation, so runs may take place in parallel.
fn cells(
    plan: &Plan,
    scenarios: &[Scenario],
    subjects: &[Subject],
    steps: &mut Steps<'_>,
) -> Vec<Measurement> {
    let jobs: Vec<_> =
        scenarios.iter().flat_map(|s| subjects.iter().map(move |q| (*s, q))).collect();
    let workers = cpus().min(jobs.len()).max(1);
    let (next, steps) = (AtomicUsize::new(0), Mutex::new(steps));
    let work = || {
        let mut done = Vec::new();
        // Relaxed: the number only has to be taken once.
        while let Some((scenario, subject)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let cell = format!("{}, {}", subject.name(), scenario.name());
            let lock = || steps.lock().unwrap_or_else(PoisonError::into_inner);
            if !lock().begin(&cell, format!("{} s", plan.seconds)) {
                continue;
            }
            let found = aqm::run_unless(plan, *scenario, subject, &is_stopped);
            done.extend(lock().end(cell, found).flatten());
        }
        done
    };
    let mut cells: Vec<Measurement> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().flat_map(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect()
    });
    let place = |cell: &Measurement| {
        let same = |(scenario, subject): &(Scenario, &Subject)| {
            (*scenario, subject.name()) == (cell.scenario, cell.subject.name())
        };
        jobs.iter().position(same)
    };
    cells.sort_by_key(place);
    cells
}

fn subject(name: &str) -> Result<Subject> {
    Subject::new(name).map_err(|error| {
        usage(format!(
            "--kinds {name}: {error}; expected {}, or any other kind with the parameters that it \
             needs",
            Subject::KINDS.join(", ")
        ))
    })
}

/// Returns the tree that a file describes. Its name is the path of the file.
fn tree(file: &Path) -> Result<Subject> {
    let (tree, lines) = setup::read(file)?;
    let name = file.display().to_string();
    Subject::tree(&name, tree, lines.join("; ")).ok_or_else(|| setup::rootless(file))
}

fn scenarios(names: &[String]) -> Result<Vec<Scenario>> {
    if names.iter().any(|name| name == "all") {
        return Ok(Scenario::ALL.into());
    }
    let find = |name: &String| {
        Scenario::ALL.into_iter().find(|scenario| scenario.name() == name).ok_or_else(|| {
            let known = Scenario::ALL.map(Scenario::name).join(", ");
            usage(format!("--scenarios {name}: unknown scenario; expected {known} or all"))
        })
    };
    Ok(once(names.iter().map(find).collect::<Result<Vec<_>>>()?))
}

/// Parses the rate of the link.
fn rate(text: &str) -> Result<Rate, String> {
    let rate = text.parse::<Rate>().ok().filter(|rate| RATES.contains(&rate.as_bytes_per_second()));
    let unit = text.parse::<f64>().is_err();
    rate.filter(|_| unit).ok_or_else(|| {
        "expected a rate with its unit, such as 10mbit, 100kbit to 10gbit".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At a rate far beyond those of the command, `red` refuses the bandwidth.
    #[test]
    fn a_failed_cell_leaves_the_rest() {
        let rate = Rate::bytes_per_second(8_000_000_000);
        let plan = Plan { rate, seconds: NonZeroU64::MIN, seed: 1 };
        let subjects = ["red", "pfifo"].map(|name| Subject::new(name).expect("a kind"));
        let document =
            Run::failed(|run| measured(run, &plan, &[Scenario::Mild, Scenario::Ecn], &subjects));
        let failures = document["failures"].as_array().expect("failures");
        let mut cells: Vec<_> = failures.iter().map(|it| it["cell"].as_str()).collect();
        cells.sort_unstable();
        assert_eq!(cells, ["red, ecn", "red, mild"].map(Some));
        assert_eq!(document["rows"].as_array().map(Vec::len), Some(2));
    }
}
