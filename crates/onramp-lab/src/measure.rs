//! Tools for measuring: CPU time, context switches, latencies, the spread of a figure over rounds,
//! and a gate at which threads start together.

mod gate;
mod latency;
mod octaves;
mod spread;
mod usage;

pub use gate::{Gate, Phase, PhaseCell};
pub use latency::{Latency, Percentiles, Sampler};
pub use octaves::Octaves;
pub use spread::{Rounds, Spread, jain, rotated};
pub use usage::{Usage, process_cpu_ns, thread_cpu_ns};
