//! Reads the packet headers in random bytes. Each field must be at the place that our code reports,
//! and another crate must find the same fields.
#![no_main]

#[path = "../../crates/onramp-core/tests/ops/dissect.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
