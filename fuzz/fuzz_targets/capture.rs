//! Reads random bytes as a packet capture (pcap or pcapng). The reader must return packets, or an
//! error that names the byte at which it happened, and must use little memory.
#![no_main]

use std::alloc::System;

#[path = "../../crates/onramp-sim/tests/ops/capture.rs"]
mod ops;

/// Bytes of memory that this program may allocate at a time, whatever lengths the capture claims.
/// In fuzzing, the reader accepts blocks of at most 16 KiB, so this is plenty.
const MEMORY: usize = 1 << 20;

#[global_allocator]
static ALLOCATOR: cap::Cap<System> = cap::Cap::new(System, MEMORY);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(ops::played(bytes)));
