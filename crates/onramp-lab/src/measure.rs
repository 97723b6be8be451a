//! Tools for measuring: CPU time, context switches, latencies, the spread of a figure over rounds,
//! a gate at which threads start together, a guard that ends them, and the steps of a run.

mod finally;
mod gate;
mod latency;
mod octaves;
mod spread;
mod steps;
mod usage;

pub use finally::Finally;
pub use gate::{Gate, Phase, PhaseCell};
pub use latency::{Latency, Percentiles, Sampler};
pub use octaves::Octaves;
pub use spread::{Rounds, Spread, jain, rotated};
pub use steps::{Failure, Steps, is_stopped, pause, stop};
pub use usage::{Usage, process_cpu_ns, thread_cpu_ns};
