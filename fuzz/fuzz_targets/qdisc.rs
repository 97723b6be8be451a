//! Random trees of qdiscs, and random calls.
#![no_main]

#[path = "../../crates/onramp-core/tests/ops/mod.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
