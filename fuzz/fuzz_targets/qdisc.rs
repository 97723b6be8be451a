//! Builds random trees of qdiscs and makes random calls on them. Every qdisc must keep the rules of
//! the trait `Qdisc`: for example, enqueued = dequeued + dropped + backlog.
#![no_main]
// Allow unused functions: only the target `setup` uses some functions of the module `ops`.
#![allow(dead_code)]

#[path = "../../crates/onramp-core/tests/ops/mod.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
