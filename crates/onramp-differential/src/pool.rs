//! Finds out whether a kind of qdisc differs from Linux on average over all cases, even if no
//! single case shows a difference.

use std::collections::BTreeMap;

use crate::judge::{FALSE_ALARM, MARGIN, Score};
use crate::statistic::two_sided;

/// The largest number of comparisons in a run of the program: for each of thirty kinds, six figures
/// (drops, marks, packets overtaken, and three of the sojourn time), and two tests of each figure
/// (sum and sum of squares).
pub const COMPARISONS: f64 = 360.0;
/// The smallest number of cases of a kind from which the kind is judged.
const CASES_MIN: usize = 8;
/// A kind counts as equal if the average difference is at most this fraction.
const POOLED_MARGIN: f64 = MARGIN / 2.0;

/// The scores of all cases, by the kind at the root and the name of the number that was compared.
#[derive(Debug, Default)]
pub struct Pool(BTreeMap<(String, String), Vec<Score>>);

impl Pool {
    /// Adds the scores of a case. Scores for the bytes of a flow are left out, because flows of
    /// different cases have nothing in common.
    pub fn add(&mut self, kind: &str, scores: &[Score]) {
        for score in scores.iter().filter(|score| !score.what.starts_with("bytes")) {
            let key = (kind.to_owned(), score.what.clone());
            self.0.entry(key).or_default().push(score.clone());
        }
    }

    /// Returns descriptions of the kinds that differ. Each case has, for each number compared, a
    /// deviation of our runs from the kernel's. Without a true difference, the sum of these
    /// deviations over all cases, divided by the square root of the number of cases, is about
    /// normal (S. A. Stouffer, "The American Soldier", 1949), and the sum of their squares exceeds
    /// chi-squared no more often than chance allows.
    #[must_use]
    pub fn differences(&self) -> Vec<String> {
        let likely = FALSE_ALARM / COMPARISONS;
        let mut told = Vec::new();
        for ((kind, what), scores) in &self.0 {
            // A score of exactly zero comes from numbers that are zero for both Linux and Onramp,
            // and says nothing.
            let scores: Vec<&Score> = scores.iter().filter(|score| score.z != 0.0).collect();
            let count = scores.len() as f64;
            if scores.len() < CASES_MIN {
                continue;
            }
            let sum: f64 = scores.iter().map(|score| score.z).sum::<f64>() / count.sqrt();
            let (ours, theirs) = scores.iter().fold((0.0, 0.0), |(ours, theirs), score| {
                (ours + score.ours, theirs + score.theirs)
            });
            let part = (ours - theirs) / f64::max(theirs, 1.0);
            if two_sided(sum) < likely && part.abs() > POOLED_MARGIN {
                told.push(format!(
                    "{kind}: {what}: over {count} cases, ours differs from Linux's by {:+.1} % \
                     ({sum:+.1} deviations)",
                    part * 100.0
                ));
            }
            let squares: f64 = scores.iter().map(|score| score.z * score.z).sum();
            // By Wilson and Hilferty, the cube root of chi-squared divided by its degrees of
            // freedom (`count`) has about a normal distribution.
            let spread = 2.0 / (9.0 * count);
            let z = ((squares / count).cbrt() - (1.0 - spread)) / spread.sqrt();
            let off = scores.iter().filter(|score| score.matters()).count();
            if z > 0.0 && two_sided(z) < likely && off * 4 > scores.len() {
                told.push(format!(
                    "{kind}: {what}: over {count} cases, ours is above Linux's in some and below \
                     in others, more than chance explains ({z:+.1} deviations)"
                ));
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;
    use crate::statistic::{mean, rank_sum};

    /// Simulates cases of about 200 drops, and returns the differences that the pool reports. Our
    /// mean is the kernel's mean times `more` in the cases 0, 2, 4, ..., and times `less` in the
    /// others.
    fn told(seed: u64, cases: usize, more: f64, less: f64) -> Vec<String> {
        let mut draw = Draw::new(seed);
        let mut pool = Pool::default();
        for case in 0..cases {
            // The sum of twelve uniform random numbers has a standard deviation of one.
            let mut run = |mean: f64| {
                let noise: f64 = (0..12).map(|_| draw.part() - 0.5).sum();
                (mean + 14.0 * noise).round()
            };
            let bias = if case % 2 == 0 { more } else { less };
            let theirs: Vec<f64> = (0..5).map(|_| run(200.0)).collect();
            let ours: Vec<f64> = (0..20).map(|_| run(200.0 * bias)).collect();
            let z = rank_sum(&ours, &theirs);
            let (ours, theirs) = (mean(&ours), mean(&theirs));
            pool.add("red", &[Score { what: "drops".into(), z, ours, theirs, least: 1.0 }]);
        }
        pool.differences()
    }

    #[test]
    fn equal_kinds_are_not_told_of() {
        let alarms: usize = (0..500).map(|seed| told(seed, 30, 1.0, 1.0).len()).sum();
        assert_eq!(alarms, 0, "of 1,000 comparisons, each is wrong once in 36,000 times");
    }

    /// Our mean is five percent too large or too small. Chance changes a single run by more than
    /// that, so the pool must find the difference by joining many cases.
    #[test]
    fn a_small_bias_shows_over_many_cases() {
        for seed in 0..20 {
            let above = told(seed, 40, 1.05, 1.05);
            assert!(above.iter().any(|told| told.contains("by +")), "{seed}: {above:?}");
            let below = told(seed, 40, 0.95, 0.95);
            assert!(below.iter().any(|told| told.contains("by -")), "{seed}: {below:?}");
            let both = told(seed, 60, 1.08, 0.92);
            assert!(
                both.iter().any(|told| told.contains("above Linux's in some")),
                "{seed}: {both:?}"
            );
            assert!(told(seed, 7, 1.5, 1.5).is_empty(), "too few cases to tell");
        }
    }
}
