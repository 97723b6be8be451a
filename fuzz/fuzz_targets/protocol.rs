//! Sends random bytes to the daemon's protocol, as requests and as command lines. Each must get a
//! reply, and the host must still execute commands afterwards.
#![no_main]

#[path = "../../crates/onramp-daemon/tests/ops/protocol.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
