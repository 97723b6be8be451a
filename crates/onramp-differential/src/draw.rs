//! Random choices, from a seed.

use onramp_sim::Chance;

/// Makes choices; the same seed makes the same ones.
#[derive(Clone, Debug)]
pub struct Draw(Chance);

impl Draw {
    /// Begins at `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Chance::new(seed))
    }

    /// A number from `least` to `most`.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.0.below(most - least + 1)
    }

    /// As [`between`](Self::between), of a number that has 16 bits at most.
    pub fn small(&mut self, least: u16, most: u16) -> u16 {
        u16::try_from(self.between(least.into(), most.into())).unwrap_or(most)
    }

    /// As [`between`](Self::between), as likely between 1 and 10 as between 10 and 100.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    pub fn spread(&mut self, least: u64, most: u64) -> u64 {
        let (from, to) = ((least.max(1) as f64).ln(), (most.max(1) as f64).ln());
        let at = from + (to - from) * self.part();
        (at.exp().round() as u64).clamp(least, most)
    }

    /// From 0 to 1.
    pub fn part(&mut self) -> f64 {
        self.0.below(1 << 32) as f64 / f64::from(u32::MAX)
    }

    /// Yes, in so many of a hundred cases.
    pub fn likely(&mut self, percent: u64) -> bool {
        self.0.below(100) < percent
    }

    /// One of these.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.0.below(from.len() as u64)).unwrap_or(0)]
    }

    /// An exponentially distributed number of this mean.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        self.0.exponential(mean)
    }

    /// A seed for somebody else.
    pub fn seed(&mut self) -> u64 {
        self.0.below(u64::MAX)
    }
}
