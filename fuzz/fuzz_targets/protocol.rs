//! Any bytes as requests, and any lines as commands: a reply to each, and the host lives on.
#![no_main]

#[path = "../../crates/onramp-daemon/tests/ops/protocol.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
