//! The one clock that the program reads.

use onramp_core::{Clock, Instant};
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now(&self) -> Instant {
        let now = clock_gettime(ClockId::Monotonic);
        // The kernel's monotonic clock starts at boot and never yields negative fields.
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        Instant(seconds * 1_000_000_000 + nanos)
    }
}
