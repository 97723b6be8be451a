//! The laws by which qdiscs and filters decide: token buckets, CoDel, PIE, RED, and their timers.
//!
//! None of them holds a packet.

pub(crate) mod bucket;
pub(crate) mod codel;
pub(crate) mod cost;
pub(crate) mod pie;
pub(crate) mod red;
pub(crate) mod wheel;
