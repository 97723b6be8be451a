//! Reads random bytes as a capture, as a `pcap` device plays it, writes what comes into another
//! capture, and plays that one: the device must count what comes, name the byte of an error, use
//! little memory, and read back what it has written.
#![no_main]

use std::alloc::System;

#[path = "../../crates/onramp-dev/tests/ops/play.rs"]
mod play;

/// Bytes of memory that this program may allocate at a time, whatever lengths the capture claims.
const MEMORY: usize = 4 << 20;

#[global_allocator]
static ALLOCATOR: cap::Cap<System> = cap::Cap::new(System, MEMORY);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = std::env::temp_dir().join(format!("onramp-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    play::run(bytes, &folder);
});
