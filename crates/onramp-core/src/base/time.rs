//! Time, in nanoseconds. It enters every call as an argument.

use std::ops::Add;
use std::time::Duration;

/// Nanoseconds since an arbitrary epoch (on Linux: `CLOCK_MONOTONIC`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The end of time: later than every event.
    pub const MAX: Self = Self(u64::MAX);

    /// Nanoseconds from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// `ns` nanoseconds later, at most the end of time.
    #[must_use]
    #[inline]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        self.after(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A clock. Read only by the shell around the core, once a burst.
pub trait Clock {
    /// The present.
    fn now(&self) -> Instant;
}

/// A frozen clock.
impl Clock for Instant {
    fn now(&self) -> Instant {
        *self
    }
}
