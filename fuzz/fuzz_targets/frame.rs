//! Reads random bytes as a virtio header and a frame. Frames are described, cut into segments,
//! marked and completed, and nothing may be lost, or change that must not.
#![no_main]

#[path = "../../crates/onramp-core/tests/ops/frame.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
