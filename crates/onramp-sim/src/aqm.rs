//! Scenarios that show what active queue management (AQM) does to flows that share a link, after
//! the guidelines of RFC 7928.
//!
//! A [`Scenario`] says which flows send. All flows share one link of a given rate, and in front of
//! the link is a [`Subject`], the qdisc to measure. With the same seed, the flows send the same
//! traffic and react in the same way to delays, losses and marks, whichever qdisc is measured. The
//! return path has no queue, so reports to senders are never delayed by a queue and never lost.
//!
//! The measurements cover `seconds` of virtual time after a warm-up; only [`Measurement::parts`]
//! include the warm-up.

mod cell;
mod scenario;
mod subject;

use std::num::NonZeroU64;

use onramp_core::{ConfigError, Rate, Tree};

pub use self::cell::{Flow, Measurement, PARTS};
pub use self::scenario::{BULK_HEAVY, BULK_MILD, Role, Scenario, TRIP_MS, TRIPS_MS};
pub use self::subject::Subject;
use crate::{BEGIN, SEC, Sim, Wire};

/// Size in bytes of the largest packet on the link, link header included, as on Ethernet.
pub const MTU: u32 = 1514;
/// Delay of a packet on the link, after it has left the queue, in nanoseconds. It is half of the
/// shortest round trip.
const WIRE_NS: u64 = 10_000_000;

/// Number of packets between two looks at whether to end early.
const FATES_PER_LOOK: u64 = 16_384;

/// The settings that all qdiscs and scenarios of an experiment have in common.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The rate of the link.
    pub rate: Rate,
    /// Length of the measured time in seconds, after the warm-up.
    pub seconds: NonZeroU64,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Plan {
    /// Returns the length of the warm-up in seconds: half of the measured time. The warm-up is that
    /// long because the slow start at a flow's beginning may fill a deep queue.
    #[must_use]
    pub fn warm_up_seconds(&self) -> u64 {
        self.seconds.get().div_ceil(2)
    }

    /// Returns the length of warm-up and measured time together, in nanoseconds.
    fn whole_ns(&self) -> u64 {
        (self.seconds.get() + self.warm_up_seconds()) * SEC
    }
}

/// Runs one scenario through one qdisc, and returns the measurements.
///
/// # Errors
///
/// [`ConfigError`]: the parameters of the qdisc do not fit the link.
pub fn run(plan: &Plan, scenario: Scenario, subject: &Subject) -> Result<Measurement, ConfigError> {
    let cell = run_unless(plan, scenario, subject, &|| false)?;
    Ok(cell.unwrap_or_else(|| unreachable!("nothing stops it")))
}

/// Runs one scenario through one qdisc, like [`run`], and asks `stopped` again and again whether to
/// end early. Returns `None` if so.
///
/// # Errors
///
/// [`ConfigError`]: the parameters of the qdisc do not fit the link.
pub fn run_unless(
    plan: &Plan,
    scenario: Scenario,
    subject: &Subject,
    stopped: &dyn Fn() -> bool,
) -> Result<Option<Measurement>, ConfigError> {
    let setup = subject.setup(scenario.marks(), plan.rate)?;
    let tree = Tree::of(&setup, MTU, plan.seed).unwrap_or_else(|| unreachable!("it has a root"));
    let mut sim = Sim::new(Wire::new(tree, Some(plan.rate), WIRE_NS));
    let members = scenario::members(plan, scenario);
    for member in &members {
        member.join(&mut sim, plan);
    }
    // The whole time ends just before the instant `whole_ns`, so events at that instant do not
    // happen any more.
    sim.stop_at(BEGIN.after(plan.whole_ns() - 1));
    let mut cell = Measurement::new(plan, scenario, subject, &members);
    for (number, fate) in (1_u64..).zip(&mut sim) {
        cell.note(&fate);
        if number.is_multiple_of(FATES_PER_LOOK) && stopped() {
            return Ok(None);
        }
    }
    Ok(Some(cell))
}
