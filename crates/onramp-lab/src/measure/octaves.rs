//! A histogram by powers of two, printed in the format of bpftrace.

use std::fmt::Write;

/// Number of buckets: one per bit of a 64-bit value, and one for zero.
const BUCKETS: usize = 65;
/// Width of the longest bar in the printed histogram, characters.
const BAR: usize = 52;

/// A histogram by powers of two. Bucket `i` counts values from `2^(i-1)` to below `2^i`, bucket 0
/// counts zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Octaves {
    counts: [u64; BUCKETS],
    sum: u64,
}

impl Default for Octaves {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0 }
    }
}

impl Octaves {
    /// Makes a histogram from the counts of its buckets, in the form of `onramp_core::stats`.
    /// `counts` may have fewer buckets than the histogram.
    #[must_use]
    pub fn from_counts(counts: &[u64]) -> Self {
        let mut octaves = Self::default();
        octaves.counts.iter_mut().zip(counts).for_each(|(bucket, count)| *bucket = *count);
        octaves
    }

    /// Counts `value`.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.counts[(u64::BITS - value.leading_zeros()) as usize] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Adds all values that `other` counted.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(bucket, count)| *bucket += count);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Returns a histogram of the values counted since `earlier`, an older copy of this histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let count = |bucket| self.counts[bucket] - earlier.counts[bucket];
        Self { counts: std::array::from_fn(count), sum: self.sum - earlier.sum }
    }

    /// Returns the mean of the values counted by [`record`](Self::record); `None` if there are
    /// none.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        let total = self.total();
        (total > 0).then(|| self.sum as f64 / total as f64)
    }

    /// Returns the number of values counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns a bound below which the share `quantile` of all values lies. The bound is a power of
    /// two, so it may be up to twice the true quantile. `None` if nothing was counted.
    #[must_use]
    pub fn bound(&self, quantile: f64) -> Option<u64> {
        let total = self.total();
        let wanted = (total as f64 * quantile).ceil().max(1.0);
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            total > 0 && seen as f64 >= wanted
        })?;
        Some(edges(at).1)
    }

    /// Returns all buckets from the first to the last one that counted a value, each as (lower
    /// bound, exclusive upper bound, count).
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let used = |count: &u64| *count > 0;
        let first = self.counts.iter().position(used).unwrap_or(0);
        let end = self.counts.iter().rposition(used).map_or(first, |last| last + 1);
        (first..end).map(|at| {
            let (from, to) = edges(at);
            (from, to, self.counts[at])
        })
    }

    /// Returns the histogram as text in bpftrace's format. A line looks like
    /// `[1K, 2K)           27328 |@@@@      |`.
    #[must_use]
    pub fn render(&self) -> String {
        let most = self.counts.iter().copied().max().unwrap_or(0).max(1);
        let mut text = String::new();
        for (from, to, count) in self.buckets() {
            let bar = usize::try_from(u128::from(count) * BAR as u128 / u128::from(most));
            let bar = "@".repeat(bar.unwrap_or(BAR));
            let name = if to <= 2 { format!("[{from}]") } else { name(from, to) };
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{name:<16}{count:>8} |{bar:<BAR$}|");
        }
        text
    }
}

/// Returns the lower bound and the exclusive upper bound of a bucket.
fn edges(bucket: usize) -> (u64, u64) {
    match bucket {
        0 => (0, 1),
        64 => (1 << 63, u64::MAX),
        _ => (1 << (bucket - 1), 1 << bucket),
    }
}

fn name(from: u64, to: u64) -> String {
    format!("[{}, {})", short(from), short(to))
}

/// Shortens a number as bpftrace does: 1024 becomes `1K`.
fn short(value: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let unit = (value.max(1).ilog2() / 10) as usize;
    format!("{}{}", value >> (10 * unit), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        let mut octaves = Octaves::default();
        for value in [0, 1, 2, 3, 4, 1_023, 1_024, u64::MAX] {
            octaves.record(value);
        }
        let found: Vec<_> = octaves.buckets().filter(|bucket| bucket.2 > 0).collect();
        let want = [
            (0, 1, 1),
            (1, 2, 1),
            (2, 4, 2),
            (4, 8, 1),
            (512, 1_024, 1),
            (1_024, 2_048, 1),
            (1 << 63, u64::MAX, 1),
        ];
        assert_eq!(found, want);
        assert_eq!(octaves.total(), 8);
    }

    /// The output has bpftrace's layout: bounds at the left, then the count, then a bar; the
    /// largest count has a bar of 52 characters.
    #[test]
    fn renders_as_bpftrace_does() {
        let mut octaves = Octaves::default();
        (0..4).for_each(|_| octaves.record(200));
        (0..2).for_each(|_| octaves.record(600));
        octaves.record(1_500);
        let lines: Vec<_> = octaves.render().lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 4, "an empty bucket between is shown");
        assert_eq!(lines[0], format!("[128, 256)             4 |{}|", "@".repeat(52)));
        assert_eq!(lines[1], format!("[256, 512)             0 |{}|", " ".repeat(52)));
        let half = "@".repeat(26);
        assert_eq!(lines[2], format!("[512, 1K)              2 |{half:<52}|"));
        let quarter = "@".repeat(13);
        assert_eq!(lines[3], format!("[1K, 2K)               1 |{quarter:<52}|"));
        assert_eq!(Octaves::default().render(), "");
    }

    #[test]
    fn names() {
        assert_eq!(name(64, 128), "[64, 128)");
        assert_eq!(name(512, 1 << 10), "[512, 1K)");
        assert_eq!(name(512 << 10, 1 << 20), "[512K, 1M)");
        assert_eq!(name(1 << 30, 1 << 31), "[1G, 2G)");
        let mut small = Octaves::default();
        (0..2).for_each(|value| small.record(value));
        assert!(small.render().starts_with("[0] "), "{}", small.render());
        assert!(small.render().contains("\n[1] "), "{}", small.render());
    }

    #[test]
    fn bounds_of_quantiles() {
        let mut octaves = Octaves::default();
        assert_eq!(octaves.bound(0.5), None);
        (0..99).for_each(|_| octaves.record(100));
        octaves.record(5_000);
        assert_eq!(octaves.bound(0.5), Some(128));
        assert_eq!(octaves.bound(0.99), Some(128));
        assert_eq!(octaves.bound(0.999), Some(8_192));
    }

    #[test]
    fn differences_and_sums() {
        let earlier = Octaves::from_counts(&[1, 2, 3]);
        let mut later = earlier.clone();
        later.merge(&Octaves::from_counts(&[0, 5]));
        assert_eq!(later.since(&earlier), Octaves::from_counts(&[0, 5]));
        let mut values = Octaves::default();
        assert_eq!(values.mean(), None);
        [3, 5, 10].into_iter().for_each(|value| values.record(value));
        assert_eq!(values.mean(), Some(6.0));
    }
}
