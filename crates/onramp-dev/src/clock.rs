//! The crate's clock: all other files read the time through [`MonotonicClock`].

use onramp_core::{Clock, Instant};

use crate::sys;

/// The clock `CLOCK_MONOTONIC`, which `SO_TXTIME` and Linux's fq also use.
///
/// Reading the clock goes through the vDSO and costs about 20 ns, so read it once per burst.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Instant {
        #[cfg(sim)]
        if let Some(now) = onramp_machine::hook::clock() {
            return Instant(now);
        }
        Instant(sys::monotonic_ns())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn goes_forward() {
        let clock = MonotonicClock;
        let first = clock.now();
        assert!(first > Instant(0));
        assert!(clock.now() >= first);
    }

    /// `/proc/uptime` shows the same clock plus the time that the machine was suspended. So the
    /// clock is never ahead of `/proc/uptime` by more than the file's resolution of 10 ms.
    #[test]
    fn counts_nanoseconds_since_boot() {
        let before = MonotonicClock.now();
        let uptime = fs::read_to_string("/proc/uptime").expect("Linux has /proc/uptime");
        let seconds: f64 = uptime
            .split(' ')
            .next()
            .and_then(|first| first.parse().ok())
            .expect("its first word is seconds since boot");
        #[expect(clippy::cast_precision_loss, reason = "a comparison to 10 ms")]
        let ours = before.0 as f64 / 1e9;
        assert!(ours <= seconds + 0.02, "{ours} s by our clock, {seconds} s since boot");
        assert!(ours > 0.0);
    }
}
