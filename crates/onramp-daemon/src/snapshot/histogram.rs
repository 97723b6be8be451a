//! Histograms with power-of-two buckets.

use serde::{Deserialize, Serialize};

/// A histogram: bucket `i` counts values in `2^(i-1) .. 2^i`, and bucket 0 counts zeros. Empty
/// buckets at the end are not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram(Vec<u64>);

impl Histogram {
    /// Makes a histogram from the counts of its buckets.
    #[must_use]
    pub fn new(counts: &[u64]) -> Self {
        let used = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        Self(counts[..used].to_vec())
    }

    /// Returns the counts of the buckets, up to the last bucket that is not empty.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.0
    }

    /// Returns the number of values counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (sum, count) in self.0.iter_mut().zip(&other.0) {
            *sum += count;
        }
    }

    /// Returns the values counted since `before`; all values, if `before` is not an earlier state
    /// of this histogram.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        if before.0.len() > self.0.len() {
            return self.clone();
        }
        let earlier = before.0.iter().copied().chain(std::iter::repeat(0));
        let gained: Option<Vec<u64>> =
            self.0.iter().zip(earlier).map(|(now, then)| now.checked_sub(then)).collect();
        gained.map_or_else(|| self.clone(), |counts| Self::new(&counts))
    }

    /// Returns the `q`-quantile: the value that a share `q` of all counted values do not exceed.
    /// The estimate assumes that the values of a bucket are spread evenly over the bucket. `None`
    /// if nothing was counted.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q.clamp(0.0, 1.0) * as_f64(self.total());
        let mut below = 0.0;
        for (bucket, &count) in self.0.iter().enumerate() {
            let count = as_f64(count);
            if count > 0.0 && below + count >= rank {
                let (from, to) = bounds(bucket);
                let part = ((rank - below) / count).clamp(0.0, 1.0);
                return Some(from + (to - from) * part);
            }
            below += count;
        }
        None
    }

    /// Returns an estimate of the sum of all counted values; each value is taken as the middle of
    /// its bucket.
    #[must_use]
    pub fn sum(&self) -> f64 {
        let middle = |bucket| {
            let (from, to) = bounds(bucket);
            f64::midpoint(from, to)
        };
        self.0.iter().enumerate().map(|(bucket, &count)| as_f64(count) * middle(bucket)).sum()
    }

    /// Returns the number of values below `2^power`.
    #[must_use]
    pub fn below(&self, power: usize) -> u64 {
        self.0.iter().take(power + 1).sum()
    }
}

/// Returns the smallest value that a bucket counts, and the first value above the bucket.
fn bounds(bucket: usize) -> (f64, f64) {
    let power = |exponent: usize| 2f64.powi(i32::try_from(exponent).unwrap_or(i32::MAX));
    match bucket {
        0 => (0.0, 0.0),
        bucket => (power(bucket - 1), power(bucket)),
    }
}

/// Converts a count to a float. Counts are far below 2^53, up to which the conversion is exact.
#[expect(clippy::cast_precision_loss, reason = "figures for people have six digits")]
pub(crate) const fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(values: &[u64]) -> Histogram {
        let mut counts = [0; 40];
        for value in values {
            counts[(u64::BITS - value.leading_zeros()) as usize] += 1;
        }
        Histogram::new(&counts)
    }

    #[test]
    fn empty_buckets_at_the_end_are_left_out() {
        assert_eq!(Histogram::new(&[0; 40]), Histogram::default());
        assert_eq!(counted(&[1, 5]).counts(), [0, 1, 0, 1]);
    }

    #[test]
    fn quantiles_lie_in_their_bucket() {
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert_eq!(counted(&[0]).quantile(0.99), Some(0.0));
        let one = counted(&[1500]);
        assert_eq!(one.quantile(0.0), Some(1024.0));
        assert_eq!(one.quantile(0.5), Some(1536.0));
        assert_eq!(one.quantile(1.0), Some(2048.0));
        // Three of the four values lie in the bucket 1024..2048, and the fourth is larger. So the
        // median (the second value) lies two thirds into that bucket.
        let four = counted(&[1500, 1600, 1700, 1 << 20]);
        assert_eq!(four.quantile(0.5), Some(1024.0 + 1024.0 * 2.0 / 3.0));
        assert_eq!(four.quantile(0.75), Some(2048.0));
        assert!(four.quantile(0.76).is_some_and(|value| value >= f64::from(1 << 20)));
    }

    #[test]
    fn differences_and_sums() {
        let (before, after) = (counted(&[3, 1500]), counted(&[3, 1500, 1600, 1 << 20]));
        assert_eq!(after.since(&before), counted(&[1600, 1 << 20]));
        assert_eq!(after.since(&Histogram::default()), after);
        assert_eq!(after.since(&after), Histogram::default());
        // If a counter has decreased, it was reset, so everything that it shows has been counted
        // since.
        assert_eq!(before.since(&after), before);
        let mut sum = before.clone();
        sum.add(&after.since(&before));
        assert_eq!(sum, after);
        let mut small = counted(&[1]);
        small.add(&after);
        assert_eq!(small.total(), 5);
        assert!((counted(&[1500, 3]).sum() - 1539.0).abs() < 1e-9);
        assert_eq!((after.below(2), after.below(11), after.below(39)), (1, 3, 4));
    }
}
