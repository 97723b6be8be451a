//! The clock of measurements.

use onramp_core::Instant;

/// Reads the clock for a measurement. On the simulated machine this costs nothing, because the
/// program under test does not read the clock here: only the experiment does.
#[inline]
pub(crate) fn stopwatch() -> Instant {
    #[cfg(sim)]
    if let Some(ps) = onramp_machine::hook::time_ps() {
        return Instant(ps / 1_000);
    }
    onramp_core::Clock::now(&onramp_dev::MonotonicClock)
}
