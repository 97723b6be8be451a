//! Random choices that are fully determined by a seed.

use onramp_sim::Chance;

/// A generator of random choices. Two generators with the same seed make the same choices.
#[derive(Clone, Debug)]
pub struct Draw(Chance);

impl Draw {
    /// Creates a generator of random choices with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Chance::new(seed))
    }

    /// Returns a random number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.0.below(most - least + 1)
    }

    /// Like [`between`](Self::between), for numbers of at most 16 bits.
    pub fn small(&mut self, least: u16, most: u16) -> u16 {
        u16::try_from(self.between(least.into(), most.into())).unwrap_or(most)
    }

    /// Returns a random number from `least` to `most` on a logarithmic scale: a number between 1
    /// and 10 is as likely as a number between 10 and 100.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    pub fn spread(&mut self, least: u64, most: u64) -> u64 {
        let (from, to) = ((least.max(1) as f64).ln(), (most.max(1) as f64).ln());
        let at = from + (to - from) * self.part();
        (at.exp().round() as u64).clamp(least, most)
    }

    /// Returns a random fraction from 0 to 1.
    pub fn part(&mut self) -> f64 {
        self.0.below(1 << 32) as f64 / f64::from(u32::MAX)
    }

    /// Returns true in `percent` of a hundred calls, on average.
    pub fn likely(&mut self, percent: u64) -> bool {
        self.0.below(100) < percent
    }

    /// Returns a random element of `from`.
    ///
    /// # Panics
    ///
    /// Panics if `from` is empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.0.below(from.len() as u64)).unwrap_or(0)]
    }

    /// Returns an exponentially distributed random number with this mean.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        self.0.exponential(mean)
    }

    /// Returns a random number that seeds another generator.
    pub fn seed(&mut self) -> u64 {
        self.0.below(u64::MAX)
    }
}
