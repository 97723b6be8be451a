//! Predicts by simulation how Onramp and other designs behave on machines of many processors.
//!
//! The code under test is the production source, compiled for the simulated machine of
//! [`onramp_machine`]. What the simulation needs besides it are parameters: what the machine's
//! memory costs, and what the software around Onramp does. Each [`Parameter`] has a public source
//! and an interval. A prediction is the spread of many simulations, each with values drawn from the
//! intervals; no value is ever adjusted to a result.

mod calibrate;
mod card;
mod charged;
mod designs;
mod experiment;
mod field;
mod history;
mod load;
mod machines;
mod parameter;
#[cfg(test)]
mod prefetch;
mod scenario;
mod software;

pub use calibrate::{Check, LocalWork, NotMeasured, calibrate, checks, local_work};
pub use charged::QDISCS;
pub use designs::{DesignOutcome, LockRow};
pub use experiment::{EXPERIMENTS, Experiment, Published, Says};
pub use field::{HotField, fields, place};
pub use load::{Changes, Load, LoadError, Outcome, Pacing, Placement, Software, Spread};
pub use machines::{Description, MACHINES, Unknown};
pub use onramp_machine::Report;
pub use parameter::{Draw, Parameter};
pub use scenario::{SCENARIOS, Scenario};
