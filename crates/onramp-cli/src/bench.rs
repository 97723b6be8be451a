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
use onramp_lab::measure::Steps;

use crate::machine::Machine;
use crate::netns::Wire;
use crate::watch::{self, Outcome};

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
    /// What kept the benchmark from measuring everything.
    pub(crate) outcome: Outcome,
}

/// Runs the benchmark `plan`. If a method fails in a round, or a signal comes, the results are
/// those of the other rounds.
pub(crate) fn run(plan: &Plan) -> Result<Results> {
    let machine = Machine::here();
    let wire = (plan.sink == SinkKind::Veth).then(Wire::lay).transpose()?;
    let work = |steps: &mut Steps<'_>| rounds(plan, wire.as_ref(), steps);
    let (rounds, outcome) =
        watch::measure(plan.rounds * plan.methods.len(), plan.expected(), work)?;
    Ok(Results { machine, parameters: plan.parameters(), rounds, outcome })
}

fn rounds(plan: &Plan, wire: Option<&Wire>, steps: &mut Steps<'_>) -> Vec<Round> {
    let mut rounds = Vec::with_capacity(plan.rounds * plan.methods.len());
    let mut sinks = None;
    for round in 0..plan.rounds {
        for kind in rotated(&plan.methods, round) {
            let part = format!("round {} of {}", round + 1, plan.rounds);
            let measure = || {
                let found = one(plan, kind, wire, &mut sinks);
                found.map_err(|error| format!("{error:#}"))
            };
            rounds.extend(steps.step(kind.name(), part, measure));
        }
    }
    rounds
}

/// Runs one method in one round. Uses the sinks of the round before, and leaves them to the next
/// round.
fn one(
    plan: &Plan,
    kind: Kind,
    wire: Option<&Wire>,
    shared: &mut Option<sink::Sinks>,
) -> Result<Round> {
    let mut sinks = match shared.take() {
        Some(sinks) => sinks,
        None => sink::Sinks::open(plan, wire)?,
    };
    let round = round::run(plan, kind, &mut sinks)?;
    // The next round with verification opens new sinks, so that its counts begin at zero.
    *shared = Some(sinks).filter(|_| !plan.verify);
    Ok(round)
}

/// Returns the methods in the order for round number `round`. The first method of one round is the
/// last of the next round, so that no method always runs first.
fn rotated(methods: &[Kind], round: usize) -> impl Iterator<Item = Kind> {
    methods.iter().copied().cycle().skip(round % methods.len()).take(methods.len())
}
