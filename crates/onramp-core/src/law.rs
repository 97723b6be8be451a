//! The laws by which qdiscs and filters decide: token buckets, CoDel, PIE and RED, and the timers
//! that these need.
//!
//! A law keeps state and makes decisions, but the packets stay in the qdisc.

pub(crate) mod bucket;
pub(crate) mod codel;
pub(crate) mod cost;
pub(crate) mod pie;
pub(crate) mod red;
pub(crate) mod wheel;
