//! Reads the packet headers in random bytes. Each header field must be at the place that our code
//! reports, and the crate `etherparse` must find the same fields.
#![no_main]

#[path = "../../crates/onramp-core/tests/ops/dissect.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
