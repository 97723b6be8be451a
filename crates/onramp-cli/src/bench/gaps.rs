//! A histogram of the gaps between datagrams, which shows how evenly datagrams arrive.

/// Gaps between the arrivals of datagrams of the same flow, counted by powers of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gaps {
    /// The number of gaps in each bucket. Bucket `i` counts gaps of 2^i to 2^(i+1) - 1 nanoseconds;
    /// bucket 0 also counts gaps of zero.
    buckets: [u64; 64],
}

impl Default for Gaps {
    fn default() -> Self {
        Self { buckets: [0; 64] }
    }
}

impl Gaps {
    /// Counts a gap of `gap_ns` nanoseconds.
    pub(crate) fn record(&mut self, gap_ns: u64) {
        self.buckets[gap_ns.max(1).ilog2() as usize] += 1;
    }

    /// Adds the counts of `other` to those of `self`.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += more;
        }
    }

    /// Returns each bucket that is not empty: its lower end and its upper end (exclusive), in
    /// nanoseconds, and its count.
    pub(crate) fn filled(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let buckets = (0u32..).zip(&self.buckets).filter(|(_, count)| **count > 0);
        buckets.map(|(power, count)| {
            let from = if power == 0 { 0 } else { 1 << power };
            (from, 1u64.checked_shl(power + 1).unwrap_or(u64::MAX), *count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two() {
        let mut gaps = Gaps::default();
        for gap in [0, 1, 2, 3, 4, 1_000, u64::MAX] {
            gaps.record(gap);
        }
        let filled: Vec<_> = gaps.filled().collect();
        let (high, top) = (1 << 63, u64::MAX);
        assert_eq!(filled, [(0, 2, 2), (2, 4, 2), (4, 8, 1), (512, 1024, 1), (high, top, 1)]);
    }
}
