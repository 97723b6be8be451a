//! Builds random trees of qdiscs and makes random calls on them. No qdisc may break its contract.
#![no_main]
// The module `ops` has functions that only the target `setup` uses.
#![allow(dead_code)]

#[path = "../../crates/onramp-core/tests/ops/mod.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
