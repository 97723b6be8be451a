//! Latencies: a histogram in steps of 1 % for percentiles, and one by powers of two for printing.

use std::fmt;

use hdrhistogram::Histogram;

use super::Octaves;

/// Longest duration, in nanoseconds, that the histogram distinguishes from longer ones.
const LONGEST_NS: u64 = 60_000_000_000;

/// A histogram of durations in nanoseconds. Its percentiles are exact to 1 %.
#[derive(Clone)]
pub struct Latency {
    fine: Histogram<u64>,
    octaves: Octaves,
}

impl Default for Latency {
    fn default() -> Self {
        let fine = Histogram::new_with_bounds(1, LONGEST_NS, 2);
        Self { fine: fine.expect("bounds that the crate accepts"), octaves: Octaves::default() }
    }
}

impl Latency {
    /// Records one duration, nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.fine.saturating_record(ns);
        self.octaves.record(ns);
    }

    /// Adds all durations that `other` recorded to this histogram.
    pub fn merge(&mut self, other: &Self) {
        // All histograms have the same bounds, so adding one to another cannot fail.
        let _ = self.fine.add(&other.fine);
        self.octaves.merge(&other.octaves);
    }

    /// Removes all recorded durations.
    pub fn clear(&mut self) {
        self.fine.clear();
        self.octaves = Octaves::default();
    }

    /// Returns the number of recorded durations.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.fine.len()
    }

    /// Returns the same durations as a histogram by powers of two.
    #[must_use]
    pub fn octaves(&self) -> &Octaves {
        &self.octaves
    }

    /// Returns the percentiles; `None` if nothing was recorded.
    #[must_use]
    pub fn percentiles(&self) -> Option<Percentiles> {
        (!self.fine.is_empty()).then(|| Percentiles {
            samples: self.fine.len(),
            p50: self.fine.value_at_quantile(0.5),
            p99: self.fine.value_at_quantile(0.99),
            p999: self.fine.value_at_quantile(0.999),
            max: self.fine.max(),
        })
    }
}

impl fmt::Debug for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Latency").field(&self.percentiles()).finish()
    }
}

/// Percentiles of a latency, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentiles {
    /// Number of durations that the percentiles are computed from.
    pub samples: u64,
    /// The median duration.
    pub p50: u64,
    /// The 99th percentile of the durations.
    pub p99: u64,
    /// The 99.9th percentile of the durations.
    pub p999: u64,
    /// The longest duration.
    pub max: u64,
}

/// Picks events at random, on average one in a given number. Regular picks might always or never
/// hit an event that recurs periodically; random picks do not.
#[derive(Debug)]
pub struct Sampler {
    mask: u64,
    state: u64,
}

impl Sampler {
    /// Makes a sampler that picks one event in `period`, a power of two. Samplers with different
    /// seeds pick different events.
    ///
    /// # Panics
    ///
    /// Panics if `period` is not a power of two.
    #[must_use]
    pub fn one_in(period: u64, seed: usize) -> Self {
        assert!(period.is_power_of_two(), "one in a power of two");
        Self { mask: period - 1, state: (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    /// Returns whether to pick the current event.
    ///
    /// Source of the generator: Marsaglia, Xorshift RNGs, 2003.
    #[inline]
    pub fn picks(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 32) & self.mask == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_values() {
        let mut latency = Latency::default();
        assert_eq!(latency.percentiles(), None);
        (1..=100).for_each(|value| latency.record(value));
        let mut sum = Latency::default();
        sum.merge(&latency);
        let found = sum.percentiles().expect("values");
        assert_eq!((found.samples, found.p50, found.p99, found.max), (100, 50, 99, 100));
        assert_eq!(sum.octaves().total(), 100);
        sum.clear();
        assert_eq!((sum.samples(), sum.octaves().total()), (0, 0));
    }

    #[test]
    fn a_duration_beyond_all_bounds_is_counted() {
        let mut latency = Latency::default();
        latency.record(0);
        latency.record(u64::MAX);
        let found = latency.percentiles().expect("values");
        assert!(found.max >= LONGEST_NS, "{found:?}");
    }

    #[test]
    fn a_sampler_picks_about_its_share() {
        let mut sampler = Sampler::one_in(16, 3);
        let picked = (0..16_000).filter(|_| sampler.picks()).count();
        assert!((800..1_200).contains(&picked), "{picked} of 16000");
    }
}
