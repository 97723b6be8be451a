//! Random numbers from a seed.

/// The generator SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
/// Generators", 2014.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Returns an evenly distributed random number below `below`, or zero if `below` is zero
    /// (Lemire 2019, without the last correction: probabilities are off by less than 2^-32).
    pub(crate) fn below(&mut self, below: u32) -> u32 {
        ((u64::from(self.next_u32()) * u64::from(below)) >> 32) as u32
    }
}

/// Returns a hash of `key` in which every bit depends on every bit of `key`: David Stafford's "mix
/// 13", which SplitMix64 uses for its numbers.
#[inline]
pub(crate) const fn mix(key: u64) -> u64 {
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For the seed 1234567, the generator gives the same numbers as the reference implementation
    /// (`splitmix64.c`, Vigna 2015).
    #[test]
    fn the_sequence_is_the_published_one() {
        let mut rng = Rng::new(1_234_567);
        let first = [rng.next_u64(), rng.next_u64(), rng.next_u64()];
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn a_die_is_fair() {
        let mut rng = Rng::new(7);
        let mut faces = [0_u32; 6];
        (0..60_000).for_each(|_| faces[rng.below(6) as usize] += 1);
        assert!(faces.iter().all(|count| count.abs_diff(10_000) < 400), "{faces:?}");
    }
}
