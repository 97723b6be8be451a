//! Counts by powers of two.

use serde::{Deserialize, Serialize};

/// Bucket `i` counts values in `2^(i-1) .. 2^i`, bucket 0 counts zeros. Empty buckets at the end
/// are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram(Vec<u64>);

impl Histogram {
    /// From counts by bucket.
    #[must_use]
    pub fn new(counts: &[u64]) -> Self {
        let used = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        Self(counts[..used].to_vec())
    }

    /// The counts by bucket, up to the last that is not empty.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.0
    }

    /// All values counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds what `other` counted.
    pub fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (sum, count) in self.0.iter_mut().zip(&other.0) {
            *sum += count;
        }
    }

    /// What was counted since `before`; everything, if that is not an earlier state of this one.
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

    /// The value that a part `q` of all values do not exceed, as if those of a bucket lay evenly
    /// in it; none if nothing was counted.
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

    /// The sum of all values, each taken as the middle of its bucket.
    #[must_use]
    pub fn sum(&self) -> f64 {
        let middle = |bucket| {
            let (from, to) = bounds(bucket);
            f64::midpoint(from, to)
        };
        self.0.iter().enumerate().map(|(bucket, &count)| as_f64(count) * middle(bucket)).sum()
    }

    /// How many values lie below `2^power`.
    #[must_use]
    pub fn below(&self, power: usize) -> u64 {
        self.0.iter().take(power + 1).sum()
    }
}

/// The least value of a bucket, and the one that is too great for it.
fn bounds(bucket: usize) -> (f64, f64) {
    let power = |exponent: usize| 2f64.powi(i32::try_from(exponent).unwrap_or(i32::MAX));
    match bucket {
        0 => (0.0, 0.0),
        bucket => (power(bucket - 1), power(bucket)),
    }
}

/// Counts are far below the 2^53 up to which this is exact.
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
        // Three of four lie in 1024..2048, so the median is two thirds on.
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
        // A counter that went back has begun anew.
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
