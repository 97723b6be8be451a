//! Makes random test cases, runs them on a real Linux kernel and on our qdiscs, and compares the
//! results.
//!
//! `cargo xtask differential` starts the comparison: see `docs/conformance.md`.
#![cfg_attr(not(reach), forbid(unsafe_code))]

pub mod draw;
pub mod generate;
pub mod judge;
pub mod keep;
pub mod kinds;
pub mod oracle;
pub mod plan;
pub mod pool;
pub mod reach;
pub mod shrink;
pub mod statistic;
