//! Many threads in front of one queue: one design of the transmit path after another.
//!
//! Every cell (a design with so many threads) runs twice a round: once with nothing measured but
//! the process's account and the packets sent, for rates and CPU time; once with clocks at locks
//! and calls, for tables and histograms. All designs run in each round, beginning with another in
//! each, so that what else the machine does meets all of them.

#[cfg(test)]
mod conformance;
mod design;
mod drive;
mod row;
mod trial;

use std::time::Duration;

use onramp_core::qdisc::Spec;

use crate::Error;
use crate::measure::rotated;

pub use design::Design;
pub use row::{Ratio, Row};

/// What threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Each sends as fast as its credits come back.
    Stream,
    /// Each sends so many packets, waits until all have left, and sends the next.
    Rr(u32),
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Designs, in the order of the first round.
    pub designs: Vec<Design>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Queues of the device, each with a qdisc of its own.
    pub queues: usize,
    /// The qdisc.
    pub qdisc: Spec,
    /// Time that the device takes for a packet, nanoseconds.
    pub device_ns: u64,
    /// Threads are bound to processors, in turn.
    pub pin: bool,
    /// Length of a run, without its warm-up.
    pub window: Duration,
    /// Rounds.
    pub rounds: usize,
    /// What threads do.
    pub load: Load,
}

impl Plan {
    /// What threads do before they are measured.
    #[must_use]
    pub fn warm_up(&self) -> Duration {
        (self.window / 5).clamp(Duration::from_millis(20), Duration::from_millis(500))
    }

    /// How long it will take, about.
    #[must_use]
    pub fn expected(&self) -> Duration {
        let runs = 2 * self.rounds * self.designs.len() * self.threads.len();
        (self.window + self.warm_up()) * u32::try_from(runs).unwrap_or(u32::MAX)
    }
}

/// Measures; tells `progress` before each run what it is about to do.
///
/// Rows come by number of threads, then in the order of the designs asked for.
///
/// # Errors
///
/// [`Error`]: threads could not be started or bound, or packets do not add up.
///
/// # Panics
///
/// Panics when the plan has no rounds or no queues.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Vec<Row>, Error> {
    assert!(plan.rounds > 0 && plan.queues > 0, "at least one round, and one queue");
    let mut rows = Vec::new();
    for &threads in &plan.threads {
        let mut found: Vec<Row> =
            plan.designs.iter().map(|design| Row::new(*design, threads)).collect();
        for round in 0..plan.rounds {
            for design in rotated(&plan.designs, round) {
                for timed in [false, true] {
                    let (name, round, of) = (design.name(), round + 1, plan.rounds);
                    progress(&format!("{threads} threads, round {round} of {of}: {name}"));
                    let trial = trial::run(plan, *design, threads, timed)?;
                    let row = found.iter_mut().find(|row| row.design == *design);
                    if let Some(row) = row {
                        row.add(trial);
                    }
                }
            }
        }
        rows.extend(found);
    }
    Ok(rows)
}
