//! Any bytes as a capture: packets or an error that says where, in little memory.
#![no_main]
// The program uses more of them.
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

/// What is read may take this much, whatever lengths it claims: blocks have 16 KiB at most here.
const MEMORY: usize = 1 << 20;

#[global_allocator]
static ALLOCATOR: cap::Cap<System> = cap::Cap::new(System, MEMORY);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(replay::any::played(bytes)));
