//! Simulates scenarios with several draws each, in processes beside each other.

use std::env;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, bail};
use onramp_dev::tie_child;
use onramp_lab::measure::{Steps, pause};
use onramp_multicore::{Experiment, Scenario};
use serde_json::Value;

use crate::cmd::values::whole;
use crate::error::usage;

/// The pause between two looks whether a simulation, which takes seconds, has ended.
const LOOK: Duration = Duration::from_millis(10);

/// How long a draw of a load on hundreds of processors takes.
pub(crate) const EACH: Duration = Duration::from_secs(20);

/// What a process simulates.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    /// A load through Onramp.
    Scenario(&'a Scenario),
    /// The same load through a design of the laboratory.
    Design(&'a Scenario, &'a str),
    /// A measurement that was published.
    Experiment(&'static Experiment),
}

/// One simulation, with one draw of all parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) seed: u64,
}

/// Options that all commands have which simulate.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// Number of simulations, each with other values of all parameters within their intervals
    #[arg(long, value_name = "N", default_value_t = 9,
          value_parser = whole::<u64>(1..=10_000))]
    pub(crate) draws: u64,
    /// Seed of the draws: the same seed gives the same results
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = whole::<u64>(1..=1_000_000_000))]
    pub(crate) seed: u64,
}

impl Common {
    /// Returns the seeds of the draws. The first draw takes the middle of each interval.
    pub(crate) fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let seed = self.seed;
        (0..self.draws).map(move |draw| if draw == 0 { 0 } else { seed * 100_000 + draw })
    }
}

/// Reads a scenario: that of a name, or that of a file.
pub(crate) fn scenario(name: &str) -> Result<Scenario> {
    if !name.contains(['/', '.']) {
        return Scenario::named(name).map_err(|why| usage(why.to_string()));
    }
    let text =
        fs::read_to_string(Path::new(name)).with_context(|| format!("cannot read {name}"))?;
    Scenario::read(&text).map_err(|why| usage(format!("{name}: {why}")))
}

/// Returns how long it takes to simulate `cells` subjects one after another, with so many draws of
/// each beside each other, if a draw takes as long as `each`.
pub(crate) fn expected(each: Duration, cells: usize, draws: u64) -> Duration {
    let turns = draws.div_ceil(cpus() as u64).saturating_mul(cells as u64);
    each.saturating_mul(u32::try_from(turns).unwrap_or(u32::MAX))
}

/// Simulates all jobs, which are draws of the same `cell`, like [`simulate`]. Each draw is one of
/// `steps`. Returns the results, in the order of the jobs. If a draw fails or the run is stopped,
/// some are missing.
pub(crate) fn in_steps(cell: &str, jobs: &[Job<'_>], steps: &mut Steps<'_>) -> Vec<Value> {
    let mut results = Vec::new();
    let mut begin = |draw: usize| steps.begin(cell, format!("draw {draw} of {}", jobs.len()));
    if !begin(1) {
        return results;
    }
    let simulated = simulate(jobs, |_, result| {
        results.push(result);
        // The next step is as long as the time until the next draw ends.
        if results.len() < jobs.len() {
            begin(results.len() + 1);
        }
        Ok(())
    });
    steps.end(cell.to_owned(), simulated.map_err(|error| format!("{error:#}")));
    results
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Simulates all jobs, as many at a time as there are processors. Calls `done` with each result, in
/// the order of the jobs. If the run is stopped ([`onramp_lab::measure::stop`]), ends the
/// simulations in progress, and calls `done` for those that have come to their end, up to the first
/// that has not.
pub(crate) fn simulate(
    jobs: &[Job<'_>],
    mut done: impl FnMut(usize, Value) -> Result<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let (tell, told) = std::sync::mpsc::channel();
    let workers = cpus().min(jobs.len());
    thread::scope(|scope| {
        for _ in 0..workers {
            let (tell, next) = (tell.clone(), &next);
            scope.spawn(move || {
                loop {
                    // Relaxed: the number only shares the jobs out.
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(number) else { return };
                    // Without a result, the run was stopped.
                    let Some(result) = draw(job).transpose() else { return };
                    if tell.send((number, result)).is_err() {
                        return; // The command has failed.
                    }
                }
            });
        }
        drop(tell);
        let mut waiting = std::collections::BTreeMap::new();
        let mut due = 0;
        for (number, result) in told {
            waiting.insert(number, result);
            while let Some(result) = waiting.remove(&due) {
                done(due, result?)?;
                due += 1;
            }
        }
        // If the run was stopped, draws may have ended whose predecessors have not. Without these,
        // a later draw could be taken for the first one, the middle of all intervals.
        waiting.into_values().try_for_each(|result| result.map(drop))
    })
}

/// Simulates one job in a process of its own, whose memory does not depend on the environment.
/// Returns `None` if the run is stopped before the process has ended.
fn draw(job: &Job<'_>) -> Result<Option<Value>> {
    let program = env::current_exe().context("cannot find the program onramp")?;
    let mut command = Command::new(program);
    command.args(["sim", "draw", "--seed", &job.seed.to_string()]).env_clear();
    // Without its name and title, whose lengths would change where things lie in memory.
    let text = |scenario: &Scenario| {
        Scenario { name: String::new(), title: String::new(), ..scenario.clone() }.text()
    };
    let text = match job.subject {
        Subject::Scenario(scenario) => text(scenario),
        Subject::Design(scenario, design) => {
            command.args(["--design", design]);
            text(scenario)
        }
        Subject::Experiment(experiment) => {
            command.args(["--experiment", experiment.name]);
            String::new()
        }
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C is for this program, which ends the simulations.
    command.process_group(0);
    tie_child(&mut command);
    let mut child = command.spawn().context("cannot start a simulation")?;
    if let Some(mut input) = child.stdin.take() {
        // If the simulation has ended already, its status says why.
        let _ = input.write_all(text.as_bytes());
    }
    let (Some(mut out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) else {
        bail!("a simulation has no pipes");
    };
    let (status, result, said) = thread::scope(|scope| {
        let result = scope.spawn(move || {
            let mut bytes = Vec::new();
            out.read_to_end(&mut bytes).map(|_| bytes)
        });
        let said = scope.spawn(move || {
            let mut bytes = Vec::new();
            err.read_to_end(&mut bytes).map(|_| bytes)
        });
        let status = await_or_kill(&mut child);
        let [result, said] = [result, said]
            .map(|reader| reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        (status, result, said)
    });
    let lost = "a simulation was lost";
    let Some(status) = status.context(lost)? else { return Ok(None) };
    let (result, said) = (result.context(lost)?, said.context(lost)?);
    if !status.success() {
        bail!("a simulation failed ({status}): {}", String::from_utf8_lossy(&said).trim());
    }
    serde_json::from_slice(&result).map(Some).context("a simulation gave no result")
}

/// Waits until a simulation has ended, and returns how. If the run is stopped, kills it, and
/// returns `None`.
fn await_or_kill(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if pause(LOOK).is_err() {
            child.kill()?;
            return child.wait().map(|_| None);
        }
    }
}
