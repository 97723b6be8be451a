//! Random trees of qdiscs, and random calls.
#![no_main]
// It shares its file with lines of `tc`.
#![allow(dead_code)]

#[path = "../../crates/onramp-core/tests/ops/mod.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
