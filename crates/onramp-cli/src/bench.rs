//! The benchmark: runs every method of sending once in each round, one method after another.

mod gaps;
mod kind;
mod method;
mod plan;
#[cfg(test)]
pub(crate) mod planted;
mod receive;
mod round;
mod sink;
mod stamp;
mod summary;
mod usage;
mod verify;

use anyhow::Result;

use crate::machine::Machine;
use crate::netns::Wire;
use crate::progress::Progress;

pub(crate) use self::kind::Kind;
pub(crate) use self::method::BATCH;
pub(crate) use self::plan::{Parameters, Plan, SinkKind, payload_max};
pub(crate) use self::round::Round;
pub(crate) use self::stamp::LEN as STAMP_LEN;
pub(crate) use self::summary::{MethodSummary, Percentiles, Ratios, Spread, summarize};
pub(crate) use self::verify::{Checked, OVERFLOW, WIRE_OVERFLOW};

/// The results of a benchmark.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) parameters: Parameters,
    /// The rounds, in the order in which they ran.
    pub(crate) rounds: Vec<Round>,
}

/// Runs the benchmark `plan`.
pub(crate) fn run(plan: &Plan) -> Result<Results> {
    let machine = Machine::here();
    let wire = (plan.sink == SinkKind::Veth).then(Wire::lay).transpose()?;
    let mut progress = Progress::new(plan.expected());
    let mut rounds = Vec::with_capacity(plan.rounds * plan.methods.len());
    let mut counting = None;
    for round in 0..plan.rounds {
        for kind in rotated(&plan.methods, round) {
            progress.show(&format!("round {} of {}: {}", round + 1, plan.rounds, kind.name()));
            // A round with verification opens new sinks, so that its counts begin at zero. Other
            // rounds share the sinks.
            let fresh = counting.take().filter(|_| !plan.verify);
            let mut sinks = match fresh {
                Some(sinks) => sinks,
                None => sink::Sinks::open(plan, wire.as_ref())?,
            };
            rounds.push(round::run(plan, kind, &mut sinks)?);
            counting = Some(sinks);
        }
    }
    drop(progress);
    Ok(Results { machine, parameters: plan.parameters(), rounds })
}

/// Returns the methods in the order for round number `round`. The first method of one round is the
/// last of the next round, so that no method always runs first.
fn rotated(methods: &[Kind], round: usize) -> impl Iterator<Item = Kind> {
    methods.iter().copied().cycle().skip(round % methods.len()).take(methods.len())
}
