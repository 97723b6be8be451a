//! Random numbers from a seed.

/// A random number generator: SplitMix64, from Steele, Lea and Flood, "Fast Splittable Pseudorandom
/// Number Generators", 2014.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Creates a generator. The same seed always gives the same numbers.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random number from 0 to `end - 1`.
    pub fn below(&mut self, end: u64) -> u64 {
        u64::try_from((u128::from(self.next()) * u128::from(end)) >> 64).unwrap_or(0)
    }

    /// Returns an exponentially distributed random number with the given mean. Gaps between
    /// independent events have this distribution.
    #[expect(clippy::cast_precision_loss, reason = "53 bits of chance")]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    pub fn exponential(&mut self, mean: u64) -> u64 {
        let even = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (-(1.0 - even).ln() * mean as f64).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_an_end_are_even() {
        let mut chance = Chance::new(7);
        let mut counts = [0_u32; 5];
        (0..50_000).for_each(|_| counts[usize::try_from(chance.below(5)).expect("small")] += 1);
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 400), "{counts:?}");
        assert_eq!(chance.below(1), 0);
    }

    #[test]
    fn gaps_are_exponential() {
        let mut chance = Chance::new(7);
        let mut gaps: Vec<u64> = (0..100_000).map(|_| chance.exponential(1_000_000)).collect();
        gaps.sort_unstable();
        let mean = gaps.iter().sum::<u64>() / 100_000;
        assert!(mean.abs_diff(1_000_000) < 15_000, "{mean}");
        // The median of an exponential distribution is ln 2 (0.693) times its mean.
        assert!(gaps[50_000].abs_diff(693_147) < 15_000, "{}", gaps[50_000]);
    }
}
