//! Any bytes as a packet: what is found is there, and another crate finds the same.
#![no_main]

#[path = "../../crates/onramp-core/tests/ops/dissect.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
