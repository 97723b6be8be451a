//! Tools for measuring: CPU time, context switches, latencies, the spread of a figure over rounds,
//! a gate at which threads start together, a guard that ends them, and the steps of a run.

#[cfg(sim)]
mod departed;
#[cfg(feature = "full")]
mod finally;
mod gate;
mod latency;
mod octaves;
#[cfg(feature = "full")]
mod spread;
#[cfg(feature = "full")]
mod steps;
mod stopwatch;
#[cfg(feature = "full")]
mod usage;

#[cfg(sim)]
pub(crate) use departed::Departed;
#[cfg(feature = "full")]
pub use finally::Finally;
pub use gate::{Gate, Phase, PhaseCell};
pub use latency::{Latency, Percentiles, Sampler};
pub use octaves::Octaves;
#[cfg(feature = "full")]
pub use spread::{Rounds, Spread, jain, rotated};
#[cfg(feature = "full")]
pub use steps::{Failure, Steps, is_stopped, pause, stop};
pub(crate) use stopwatch::stopwatch;
#[cfg(feature = "full")]
pub use usage::{Usage, process_cpu_ns, thread_cpu_ns};
