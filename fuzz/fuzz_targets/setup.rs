//! Any text as lines of `tc`: an error or a tree that can be built, and nothing else.
#![no_main]
// It shares its file with random trees.
#![allow(dead_code)]

#[path = "../../crates/onramp-core/tests/ops/mod.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|text: &str| ops::set_up(text));
