//! Parameters: numbers that are known only up to an interval, each with its source.

use serde::{Deserialize, Serialize};

/// A number that is known only up to an interval.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// The low end of the interval.
    pub low: f64,
    /// The high end of the interval.
    pub high: f64,
    /// The unit: `ns`, or none. Numbers are nanoseconds unless the name of the parameter has
    /// another unit (`slice_ms`) or it is a ratio (`smt`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Where the number comes from.
    pub source: String,
    /// How well the source is known: `read`, `remembered` (the source was not read again),
    /// `derived` (from the numbers of others, as the note says) or `measured` (on this machine).
    pub how: String,
    /// What the number is, and how the interval follows from the source.
    pub note: String,
}

/// Draws values from the intervals of parameters.
#[derive(Debug)]
pub enum Draw {
    /// The middle of each interval.
    Middle,
    /// A value between the ends of each interval, each as likely as another on a scale of ratios.
    Random(fastrand::Rng),
}

impl Draw {
    /// Makes draws that depend on nothing but the seed. Seed 0 draws the middle of each interval.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        if seed == 0 { Self::Middle } else { Self::Random(fastrand::Rng::with_seed(seed)) }
    }

    /// Draws a value from an interval.
    pub fn draw(&mut self, parameter: &Parameter) -> f64 {
        let Parameter { low, high, .. } = *parameter;
        let part = match self {
            Self::Middle => 0.5,
            Self::Random(random) => random.f64(),
        };
        // An interval that begins at zero has no ratios.
        if low > 0.0 { low * (high / low).powf(part) } else { low + (high - low) * part }
    }

    /// Draws a number of picoseconds from an interval of nanoseconds.
    pub fn picoseconds(&mut self, parameter: &Parameter) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float stays in range, and no cost is negative"
        )]
        let picoseconds = (self.draw(parameter) * 1_000.0).round() as u64;
        picoseconds
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn parameter(low: f64, high: f64) -> Parameter {
        let text = || String::new();
        Parameter { low, high, unit: None, source: text(), how: text(), note: text() }
    }

    #[test]
    fn draws_stay_in_their_interval_and_repeat() {
        let draws = |seed| {
            let mut draw = Draw::new(seed);
            [draw.draw(&parameter(1.0, 100.0)), draw.draw(&parameter(0.0, 8.0))]
        };
        assert_eq!(draws(0), [10.0, 4.0], "the middle of ratios, and of differences");
        for seed in 1..100 {
            let [wide, from_zero] = draws(seed);
            assert!((1.0..100.0).contains(&wide) && (0.0..8.0).contains(&from_zero));
            assert_eq!(draws(seed), [wide, from_zero]);
        }
        assert_ne!(draws(1), draws(2));
        assert_eq!(Draw::new(3).picoseconds(&parameter(1.5, 1.5)), 1_500);
    }
}
