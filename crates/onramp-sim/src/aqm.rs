//! What queue management does to those who share a link, by the guidelines of RFC 7928.
//!
//! A [`Scenario`] says who sends. All of them pass one link of a given rate, in front of which lies
//! a [`Subject`]: a qdisc. What they send and how they answer is the same for each qdisc, to the
//! seed. Nothing comes back late or not at all: the way back has no queue.
//!
//! Figures are of `seconds` of virtual time behind a warm-up; only [`Measurement::parts`] begin with it.

mod cell;
mod scenario;
mod subject;

use std::num::NonZeroU64;

use onramp_core::{ConfigError, Rate, Tree};

pub use self::cell::{Flow, Measurement, PARTS};
pub use self::scenario::{BULK_HEAVY, BULK_MILD, Role, Scenario, TRIP_MS, TRIPS_MS};
pub use self::subject::Subject;
use crate::{BEGIN, SEC, Sim, Wire};

/// Largest packet of the link, link header included: Ethernet's.
pub const MTU: u32 = 1514;
/// What a packet takes over the link, behind the queue: half of the shortest round trip.
const WIRE_NS: u64 = 10_000_000;

/// What is the same for all qdiscs and scenarios.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The link's rate.
    pub rate: Rate,
    /// Seconds that count.
    pub seconds: NonZeroU64,
    /// Where chance begins.
    pub seed: u64,
}

impl Plan {
    /// Seconds before those that count: half as many, for a slow start may fill a deep queue.
    #[must_use]
    pub fn warm_up_seconds(&self) -> u64 {
        self.seconds.get().div_ceil(2)
    }

    /// All of them.
    fn whole_ns(&self) -> u64 {
        (self.seconds.get() + self.warm_up_seconds()) * SEC
    }
}

/// Runs one scenario through one qdisc.
///
/// # Errors
///
/// [`ConfigError`]: the qdisc's parameters do not fit the link.
pub fn run(plan: &Plan, scenario: Scenario, subject: &Subject) -> Result<Measurement, ConfigError> {
    let setup = subject.setup(scenario.marks(), plan.rate)?;
    let tree = Tree::of(&setup, MTU, plan.seed).unwrap_or_else(|| unreachable!("it has a root"));
    let mut sim = Sim::new(Wire::new(tree, Some(plan.rate), WIRE_NS));
    let members = scenario::members(plan, scenario);
    for member in &members {
        member.join(&mut sim, plan);
    }
    // Half open: the first instant is part of it, the last is not.
    sim.stop_at(BEGIN.after(plan.whole_ns() - 1));
    let mut cell = Measurement::new(plan, scenario, subject, &members);
    for fate in &mut sim {
        cell.note(&fate);
    }
    Ok(cell)
}
