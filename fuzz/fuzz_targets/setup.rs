//! Reads random text as lines of `tc`. A line may be refused with an error, but the accepted lines
//! must describe a tree that can be built.
#![no_main]
// Allow unused functions: only the target `qdisc` uses some functions of the module `ops`.
#![allow(dead_code)]

#[path = "../../crates/onramp-core/tests/ops/mod.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|text: &str| ops::set_up(text));
