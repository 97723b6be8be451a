//! Points in time, in nanoseconds. The functions of this crate that need the present time take it
//! as an argument.

use std::ops::Add;
use std::time::Duration;

/// A point in time, in nanoseconds since a fixed but arbitrary moment (on Linux:
/// `CLOCK_MONOTONIC`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The latest possible time, later than every event.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the nanoseconds from `earlier` to `self`, or zero if `earlier` is later than `self`.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time `ns` nanoseconds later, but at most [`Instant::MAX`].
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

/// A clock. This crate never reads the time by itself: its callers read a clock, once per burst of
/// packets.
pub trait Clock {
    /// Returns the present time.
    fn now(&self) -> Instant;
}

/// A clock that always shows the same time.
impl Clock for Instant {
    fn now(&self) -> Instant {
        *self
    }
}
