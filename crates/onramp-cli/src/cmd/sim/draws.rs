//! Simulates scenarios with several draws each, in processes beside each other.

use std::env;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use anyhow::{Context as _, Result, bail};
use onramp_multicore::{Experiment, Scenario};
use serde_json::Value;

use crate::cmd::values::whole;
use crate::error::usage;

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

/// Simulates all jobs, as many at a time as there are processors. Calls `done` with each result, in
/// the order of the jobs.
pub(crate) fn simulate(
    jobs: &[Job<'_>],
    mut done: impl FnMut(usize, Value) -> Result<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let (tell, told) = std::sync::mpsc::channel();
    let workers = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    thread::scope(|scope| {
        for _ in 0..workers {
            let (tell, next) = (tell.clone(), &next);
            scope.spawn(move || {
                loop {
                    // Relaxed: the number only shares the jobs out.
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(number) else { return };
                    if tell.send((number, draw(job))).is_err() {
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
        Ok(())
    })
}

/// Simulates one job in a process of its own, whose memory does not depend on the environment.
fn draw(job: &Job<'_>) -> Result<Value> {
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
    let mut child = command.spawn().context("cannot start a simulation")?;
    if let Some(mut input) = child.stdin.take() {
        // If the simulation has ended already, its status says why.
        let _ = input.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().context("a simulation was lost")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("a simulation failed ({}): {}", output.status, said.trim());
    }
    serde_json::from_slice(&output.stdout).context("a simulation gave no result")
}
