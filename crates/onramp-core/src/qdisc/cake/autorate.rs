//! Estimates the rate at which packets come, for a link whose own rate changes, such as a mobile
//! link: `autorate-ingress`.
//!
//! Packets that come closely together form a window; a gap longer than the average gap ends the
//! window. The rate within a window moves the estimate: a higher rate moves it up fast, a lower
//! rate moves it down slowly. The shaper is set to 15/16 of the estimate.
//!
//! Source: `tc-cake(8)`; behaviour of Linux 7.2, where the first window begins at time 0 of the
//! clock.

const NS_PER_SEC: u64 = 1_000_000_000;

/// The least time between two changes of the shaper's rate, in nanoseconds.
const PAUSE_NS: u64 = NS_PER_SEC / 4;

/// The state of the estimation of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Estimate {
    /// The estimated rate, in bytes per second.
    pub(super) peak: u64,
    /// Moving average of the time between two packets, in nanoseconds.
    interval_ns: u64,
    last_ns: u64,
    window_bytes: u64,
    window_ns: u64,
    /// When the shaper's rate was last set from the estimate, in nanoseconds.
    followed_ns: u64,
}

/// Returns the moving average `average` after the value `new`, which has the weight 2^-shift.
fn follow(average: u64, new: u64, shift: u32) -> u64 {
    average - (average >> shift) + (new >> shift)
}

impl Estimate {
    /// Creates an estimate that begins with the rate that the user gave, in bytes per second.
    pub(super) fn new(rate: u64) -> Self {
        Self {
            peak: rate,
            interval_ns: 0,
            last_ns: 0,
            window_bytes: 0,
            window_ns: 0,
            followed_ns: 0,
        }
    }

    /// Notes that a packet has come while the rate is not estimated.
    #[inline]
    pub(super) fn pause(&mut self, now_ns: u64) {
        (self.window_bytes, self.last_ns) = (0, now_ns);
    }

    /// Notes that a packet of `bytes` bytes has come. Returns the new rate for the shaper, in bytes
    /// per second, or `None` if the shaper keeps its rate.
    #[inline]
    pub(super) fn came(&mut self, bytes: u64, now_ns: u64) -> Option<u64> {
        self.window_bytes = self.window_bytes.saturating_add(bytes);
        let interval_ns = now_ns.saturating_sub(self.last_ns).min(NS_PER_SEC);
        let shift = if interval_ns > self.interval_ns { 2 } else { 8 };
        self.interval_ns = follow(self.interval_ns, interval_ns, shift);
        self.last_ns = now_ns;
        (interval_ns > self.interval_ns).then(|| self.end_window(now_ns))?
    }

    fn end_window(&mut self, now_ns: u64) -> Option<u64> {
        let window_ns = now_ns.saturating_sub(self.window_ns).max(1);
        let rate = u128::from(self.window_bytes) * u128::from(NS_PER_SEC) / u128::from(window_ns);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        self.peak = follow(self.peak, rate, if rate > self.peak { 2 } else { 8 });
        (self.window_bytes, self.window_ns) = (0, now_ns);
        if now_ns <= self.followed_ns.saturating_add(PAUSE_NS) {
            return None;
        }
        self.followed_ns = now_ns;
        Some(self.peak / 16 * 15 + self.peak % 16 * 15 / 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty packets of 1,000 bytes come 1 ms apart in every 40 ms, so the rate is 1 MB/s during
    /// half of the time. The estimate must be the average over bursts and gaps, which is 500 kB/s.
    #[test]
    fn the_estimate_is_the_rate_of_what_comes() {
        let mut estimate = Estimate::new(2_000_000);
        let mut rate = 0;
        for step in 0..20_000 {
            let at_ms = 1_000 + step / 20 * 40 + step % 20;
            rate = estimate.came(1_000, at_ms * 1_000_000).unwrap_or(rate);
        }
        // A window lasts from one gap to the next: 40 ms, in which 20,000 bytes come.
        assert!((440_000..=540_000).contains(&rate), "{rate}");
    }

    #[test]
    fn it_rises_faster_than_it_falls() {
        let windows = |rate: u64, bytes: u64| {
            let mut estimate = Estimate::new(rate);
            estimate.came(0, 1_000_000_000);
            // Each gap is longer than the gap before, and so longer than the average gap. So each
            // gap ends a window.
            let mut now = 1_000_000_000;
            (1..=10_u64).for_each(|n| {
                let gap = 600_000_000 + n * 40_000_000;
                now += gap;
                estimate.came(bytes * gap / 1_000_000_000, now);
            });
            estimate.peak
        };
        assert!(windows(100_000, 1_000_000) > 800_000);
        assert!(windows(1_000_000, 100_000) > 900_000);
    }
}
