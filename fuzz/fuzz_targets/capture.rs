//! Reads random bytes as a packet capture (pcap or pcapng). The reader must return packets, or an
//! error that names the byte at which it happened, and must use little memory.
#![no_main]
// Allow unused functions: this target includes modules of the program `onramp`, and uses only a
// part of them.
#![allow(dead_code)]

use std::alloc::System;

#[path = "../../crates/onramp-cli/src/capture.rs"]
mod capture;
#[path = "../../crates/onramp-cli/src"]
mod replay {
    #[path = "replay/any.rs"]
    pub(crate) mod any;
    #[path = "replay/frame.rs"]
    mod frame;
    #[path = "replay/player.rs"]
    mod player;

    const FLOWS_MAX: usize = 1 << 16;
}

/// Bytes of memory that this program may allocate at a time, whatever lengths the capture claims.
/// In fuzzing, the reader accepts blocks of at most 16 KiB, so this is plenty.
const MEMORY: usize = 1 << 20;

#[global_allocator]
static ALLOCATOR: cap::Cap<System> = cap::Cap::new(System, MEMORY);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(replay::any::played(bytes)));
