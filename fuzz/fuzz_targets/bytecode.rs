//! Any bytes as a program, classic or eBPF: what is accepted ends, and answers as others do.
#![no_main]

#[path = "../../crates/onramp-core/tests/ops/bytecode.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
