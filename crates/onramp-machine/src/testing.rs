//! Tests in a simulation.

use crate::{Caches, Costs, Machine, Setup, Topology, simulate};

/// A machine of two sockets with two clusters of two cores with two hardware threads, whose costs
/// are round numbers that tell apart what was charged.
pub const SMALL: Machine = Machine {
    topology: Topology { sockets: 2, clusters: 2, cores: 2, threads: 2 },
    caches: Caches { line_bytes: 64, l1_lines: 8, l2_lines: 32 },
    costs: Costs {
        l1: 1_000,
        l2: 4_000,
        llc: 20_000,
        near: 30_000,
        far: 60_000,
        remote: 100_000,
        remote_clean: 90_000,
        memory: 80_000,
        memory_remote: 130_000,
        atomic: 5_000,
        fence: 6_000,
        pause: 40_000,
        clock: 15_000,
        context_switch: 1_000_000,
        wake: 2_000_000,
        wake_call: 500_000,
        slice: 3_000_000_000,
        smt: 1_500,
        smt_spin: 1_100,
    },
};

/// Runs a test as the first thread of the machine [`SMALL`]. The twins' `#[test]` calls it.
///
/// # Panics
///
/// Panics as the test does, and if threads of the test wait for ever, or still run after an hour of
/// simulated time.
pub fn simulated<R: 'static>(test: impl FnOnce() -> R + 'static) -> R {
    let hour_ns = 3_600_000_000_000;
    let setup = Setup { machine: SMALL, limit_ns: hour_ns, measure_ns: 0..hour_ns };
    match simulate(&setup, test) {
        Ok((result, _)) => result,
        Err(failed) => panic!("{failed}"),
    }
}
