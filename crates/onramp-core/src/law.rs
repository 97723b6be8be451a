//! The laws by which qdiscs and filters decide: token buckets, CoDel, PIE and RED, and the timers
//! that these need.
//!
//! A law holds state and makes decisions, but holds no packets.

pub(crate) mod bucket;
pub(crate) mod codel;
pub(crate) mod cost;
pub(crate) mod pie;
pub(crate) mod red;
pub(crate) mod wheel;
