//! What the experiments measure with: CPU time, context switches, latencies, spreads over rounds,
//! and the start line for threads.

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
