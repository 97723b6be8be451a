//! Virtual time.

use onramp_core::Instant;

/// The virtual time at which each simulation begins: 20 seconds, the same as in the recordings of a
/// real kernel.
pub const BEGIN: Instant = Instant(20 * SEC);
/// Nanoseconds in a second.
pub const SEC: u64 = 1_000_000_000;
