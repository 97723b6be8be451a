//! Random cases, put to a real kernel and to our qdiscs.
//!
//! `cargo xtask differential` starts it: see `docs/conformance.md`.
#![forbid(unsafe_code)]

pub mod draw;
pub mod generate;
pub mod judge;
pub mod kinds;
pub mod oracle;
pub mod plan;
pub mod pool;
pub mod shrink;
pub mod statistic;
