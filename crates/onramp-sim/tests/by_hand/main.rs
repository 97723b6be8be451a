//! Tests with small cases of sources, wires, counts and recordings. The expected numbers were
//! calculated by hand, or by a simple model in the test.

mod aqm;
mod case_files;
mod case_runs;
mod case_verdicts;
mod chance;
mod counts;
mod fates;
mod sources;
mod window;
mod world;

use onramp_core::Instant;
use onramp_sim::BEGIN;

const MS: u64 = 1_000_000;

fn at(ns: u64) -> Instant {
    BEGIN.after(ns)
}
