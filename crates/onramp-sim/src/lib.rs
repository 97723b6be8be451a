//! Qdiscs in virtual time.
//!
//! Nothing here reads a clock, and chance comes from seeds: the same run gives the same packets.
#![forbid(unsafe_code)]

pub mod recording;
