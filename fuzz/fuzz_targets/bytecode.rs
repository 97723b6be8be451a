//! Reads random bytes as a filter program in classic BPF or eBPF. A program that our checks accept
//! must end, and give the same result as a reference interpreter.
#![no_main]

#[path = "../../crates/onramp-core/tests/ops/bytecode.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
