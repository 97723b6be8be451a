//! How exactly a link keeps the instants of its qdiscs.

use onramp_core::{CATCH_UP_NS, REST_NS};

/// How exactly a link keeps the instants of its qdiscs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// How much lateness a port catches up on, nanoseconds.
    pub(crate) catch_up_ns: u64,
    /// How long after the instant that is due a port wakes its runner, nanoseconds.
    pub(crate) slack_ns: u64,
    /// How often, at most, a port wakes its runner for instants: once in this time, nanoseconds.
    pub(crate) rest_ns: u64,
    /// How much earlier than the instant for which it waits a runner ends its sleep, to spin for
    /// the rest, nanoseconds.
    pub(crate) spin_ns: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self { catch_up_ns: CATCH_UP_NS, slack_ns: 0, rest_ns: REST_NS, spin_ns: 0 }
    }
}
