//! Tests whether two samples come from the same distribution.
//!
//! The statistic is the rank sum of Wilcoxon, Mann and Whitney (H. B. Mann and D. R. Whitney, "On a
//! test of whether one of two random variables is stochastically larger than the other", 1947), in
//! units of its standard deviation, with the correction for ties. The test assumes nothing about
//! the shape of the distributions, and an extreme value counts no more than its rank.

/// Returns how far the ranks of `a` lie above those expected if `a` and `b` came from the same
/// distribution, in standard deviations. If they do come from the same distribution, the result is
/// about normal, with mean 0 and deviation 1. Returns 0 if all values are equal.
#[must_use]
pub fn rank_sum(a: &[f64], b: &[f64]) -> f64 {
    let (count_a, count_b) = (a.len() as f64, b.len() as f64);
    let total = count_a + count_b;
    let mut all: Vec<(f64, bool)> = a.iter().map(|value| (*value, true)).collect();
    all.extend(b.iter().map(|value| (*value, false)));
    all.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let (mut sum, mut ties, mut before) = (0.0, 0.0, 0.0);
    for same in all.chunk_by(|(one, _), (other, _)| one == other) {
        let count = same.len() as f64;
        // Equal values all get the mean of their ranks.
        let rank = before + (count + 1.0) / 2.0;
        sum += rank * same.iter().filter(|(_, of_a)| *of_a).count() as f64;
        ties += count.powi(3) - count;
        before += count;
    }
    let mean = count_a * (total + 1.0) / 2.0;
    let variance = count_a * count_b / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance <= 0.0 { 0.0 } else { (sum - mean) / variance.sqrt() }
}

/// Returns the probability that a normal variable lies further than `z` deviations from its mean,
/// on either side (Abramowitz and Stegun, 7.1.26, with the tail of 26.2.12 beyond 4).
#[must_use]
pub fn two_sided(z: f64) -> f64 {
    let z = z.abs();
    if z > 4.0 {
        let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        return 2.0 * density / z * (1.0 - 1.0 / (z * z) + 3.0 / z.powi(4) - 15.0 / z.powi(6));
    }
    let x = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let sum = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592]
        .iter()
        .fold(0.0, |sum, factor| sum * t + factor);
    sum * t * (-x * x).exp()
}

/// Returns the mean of `values`, or 0 if there are none.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / (values.len() as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;

    /// Compares results with values that were calculated by hand. In the first pair of samples, `a`
    /// has the ranks 1, 2 and 4. Their sum is 7, where chance gives a mean of 9 and a variance of
    /// 3. The second pair has a tie: the ranks of all values are 1, 2.5, 2.5 and 4.
    #[test]
    fn small_samples_by_hand() {
        assert_eq!(rank_sum(&[1.0, 2.0, 4.0], &[3.0, 5.0]), -2.0 / 3.0_f64.sqrt());
        let z = rank_sum(&[1.0, 2.0], &[2.0, 3.0]);
        assert!((z - (3.5 - 5.0) / (4.0_f64 / 12.0 * (5.0 - 6.0 / 12.0)).sqrt()).abs() < 1e-12);
        assert_eq!(rank_sum(&[1.0, 1.0], &[1.0; 7]), 0.0);
    }

    #[test]
    fn tails_are_those_of_the_normal_distribution() {
        for (z, p) in [
            (0.0, 1.0),
            (1.0, 0.317_310_5),
            (1.959_964, 0.05),
            (3.0, 0.002_699_8),
            (4.5, 6.795_3e-6),
            (6.0, 1.973_2e-9),
        ] {
            let error = (two_sided(z) - p).abs() / p;
            assert!(error < 1e-3, "{z}: {} for {p}", two_sided(z));
        }
    }

    /// Tests 10,000 pairs of samples, each pair from one distribution. For only about one pair in a
    /// hundred, `two_sided` may return a probability below 1 %, even if the distribution is skewed
    /// or has many ties.
    #[test]
    fn equal_distributions_pass_at_the_stated_rate() {
        let shapes: [fn(&mut Draw) -> f64; 3] = [
            |draw| (0..12).map(|_| draw.part()).sum(),
            |draw| draw.exponential(1000) as f64,
            |draw| draw.between(0, 3) as f64,
        ];
        for (at, shape) in shapes.into_iter().enumerate() {
            let mut draw = Draw::new(at as u64);
            let mut sample = |count| (0..count).map(|_| shape(&mut draw)).collect::<Vec<_>>();
            let beyond =
                (0..10_000).filter(|_| two_sided(rank_sum(&sample(5), &sample(20))) < 0.01).count();
            assert!((20..=140).contains(&beyond), "{at}: {beyond} of 10,000");
        }
    }
}
