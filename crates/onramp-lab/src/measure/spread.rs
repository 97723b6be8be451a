//! Figures over several rounds, and fairness between threads.

/// Median and extremes of a figure over several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle value; for an even number of rounds, the mean of the two middle values.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Spread {
    /// Computes the spread of `values`; `None` if there are no values.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, min, max })
    }
}

/// A measurement that consists of several rounds with one result each.
pub trait Rounds {
    /// The result of one round.
    type Round;

    /// Returns the results of the rounds, in order.
    fn rounds(&self) -> &[Self::Round];

    /// Returns the median and extremes of a figure over the rounds; `None` if there are no rounds.
    fn spread(&self, figure: impl Fn(&Self::Round) -> f64) -> Option<Spread> {
        Spread::of(self.rounds().iter().map(figure))
    }

    /// Divides a figure of each round by the same figure of `other` in the same round, and returns
    /// the median and extremes of the quotients. Quotients that are not finite are left out; `None`
    /// if none remains.
    fn ratio(&self, other: &Self, figure: impl Fn(&Self::Round) -> f64) -> Option<Spread> {
        let rounds = self.rounds().iter().zip(other.rounds());
        let quotients = rounds.map(|(mine, theirs)| figure(mine) / figure(theirs));
        Spread::of(quotients.filter(|quotient| quotient.is_finite()))
    }
}

/// Returns Jain's fairness index: 1 if all shares are equal, 1/n if one of n has everything, 0 if
/// all shares are zero.
///
/// Source: Jain, Chiu, Hawe: A quantitative measure of fairness, 1984.
#[must_use]
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Iterates over `items`, in each round starting one item later than in the round before, so that
/// an item does not always run after the same other item.
pub fn rotated<T>(items: &[T], round: usize) -> impl Iterator<Item = &T> {
    items.iter().cycle().skip(round % items.len().max(1)).take(items.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_extremes() {
        let spread = Spread::of([3.0, 1.0, 2.0]).expect("three values");
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0 });
        let spread = Spread::of([4.0, 1.0]).expect("two values");
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn jain_of_known_shares() {
        assert!((jain(&[5, 5, 5, 5]) - 1.0).abs() < 1e-12);
        assert!((jain(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-12);
        assert!((jain(&[1, 2]) - 0.9).abs() < 1e-12);
        assert!(jain(&[0, 0]).abs() < 1e-12);
    }

    #[test]
    fn rounds_begin_with_another_each_time() {
        let round = |n| rotated(&['a', 'b', 'c'], n).collect::<String>();
        assert_eq!([0, 1, 2, 3].map(round), ["abc", "bca", "cab", "abc"]);
        assert_eq!(rotated::<u8>(&[], 3).count(), 0);
    }
}
