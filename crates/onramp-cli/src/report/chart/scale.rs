//! Scales, which map figures to places in a chart and choose the figures at which ticks stand.

/// A scale that maps figures to places along one direction of a chart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    kind: Kind,
    /// The figures at the two ends of the scale.
    from: f64,
    to: f64,
    /// The places of the two ends of the scale, in units of the chart.
    at: (f64, f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Linear,
    Log,
}

impl Scale {
    /// Returns a linear scale from zero to a little more than `most`.
    pub(super) fn linear(most: f64, at: (f64, f64)) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        Self { kind: Kind::Linear, from: 0.0, to: most * 1.03, at }
    }

    /// Returns a logarithmic scale from `least` to `most`, which must be positive. The scale spans
    /// at least a factor of two.
    pub(super) fn log(least: f64, most: f64, at: (f64, f64)) -> Self {
        debug_assert!(least > 0.0 && most >= least, "{least} to {most}");
        let widen = (2.0 * least / most).max(1.0).sqrt();
        Self { kind: Kind::Log, from: least / widen, to: most * widen, at }
    }

    /// Returns a linear scale if the figures contain zero or if the greatest is not many times the
    /// least; otherwise a logarithmic scale. The figures must not be negative.
    pub(super) fn fitting(figures: impl Iterator<Item = f64> + Clone, at: (f64, f64)) -> Self {
        let most = figures.clone().fold(0.0, f64::max);
        let least = figures.fold(most, f64::min);
        if least > 0.0 && most / least > SPAN {
            Self::log(least / 1.3, most * 1.3, at)
        } else {
            Self::linear(most, at)
        }
    }

    pub(super) fn is_log(&self) -> bool {
        self.kind == Kind::Log
    }

    /// Returns the place of `figure`. If the figure lies beyond an end of the scale, its place is
    /// that end.
    pub(super) fn place(&self, figure: f64) -> f64 {
        let share = match self.kind {
            Kind::Linear => (figure - self.from) / (self.to - self.from),
            Kind::Log => (figure.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
        };
        self.at.0 + share.clamp(0.0, 1.0) * (self.at.1 - self.at.0)
    }

    /// Returns round figures for the ticks of the scale, in ascending order.
    pub(super) fn ticks(&self) -> Vec<f64> {
        match self.kind {
            Kind::Linear => {
                let step = round_step(self.to / TICKS);
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "few")]
                let steps = (self.to / step) as u32;
                (0..=steps).map(|n| f64::from(n) * step).collect()
            }
            Kind::Log => self.log_ticks(),
        }
    }

    /// Returns the powers of ten on the scale, or some of them if there are many. If the scale is
    /// narrow, also returns two and five times these powers.
    fn log_ticks(&self) -> Vec<f64> {
        let decades = (self.to / self.from).log10();
        let factors: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        #[expect(clippy::cast_possible_truncation, reason = "an exponent of ten")]
        let (first, last) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let every = 1 + (last - first) / 9;
        let powers = (first..=last).filter(|power| power.rem_euclid(every) == 0);
        let ticks = powers.flat_map(|power| factors.iter().map(move |f| f * 10_f64.powi(power)));
        // The tolerance `near` keeps a round figure at the very end of the scale in spite of
        // rounding errors.
        let near = 1.0 + 1e-9;
        ticks.filter(|tick| tick * near >= self.from && *tick <= self.to * near).collect()
    }
}

/// Returns a step of 1, 2 or 5 times a power of ten that is at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|f| f * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

/// Largest number of ticks of a linear scale.
const TICKS: f64 = 6.0;
/// If the greatest figure is more than this many times the least, the scale is logarithmic.
const SPAN: f64 = 30.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(got: &[f64], want: &[f64]) {
        let near = |(got, want): (&f64, &f64)| (got - want).abs() <= want.abs() * 1e-9;
        assert!(got.len() == want.len() && got.iter().zip(want).all(near), "{got:?}, not {want:?}");
    }

    #[test]
    fn a_wide_log_scale_has_a_tick_at_each_power_of_ten() {
        let scale = Scale::log(64.0, 16_777_216.0, (0.0, 100.0));
        assert_near(&scale.ticks(), &[1e2, 1e3, 1e4, 1e5, 1e6, 1e7]);
        assert_near(&Scale::log(0.001, 1.0, (0.0, 1.0)).ticks(), &[1e-3, 1e-2, 1e-1, 1.0]);
    }

    #[test]
    fn a_narrow_log_scale_has_ticks_between() {
        assert_near(&Scale::log(3.0, 60.0, (0.0, 1.0)).ticks(), &[5.0, 10.0, 20.0, 50.0]);
        assert!(Scale::log(7.0, 7.0, (0.0, 1.0)).ticks().len() == 1, "5 to 10");
    }

    #[test]
    fn a_very_wide_log_scale_has_few_ticks() {
        let ticks = Scale::log(1.0, 1e19, (0.0, 1.0)).ticks();
        assert!((5..=10).contains(&ticks.len()), "{ticks:?}");
    }

    #[test]
    fn equal_factors_are_equal_distances() {
        let scale = Scale::log(1.0, 1e4, (100.0, 0.0));
        assert_near(&[1.0, 10.0, 100.0, 1e4].map(|f| scale.place(f)), &[100.0, 75.0, 50.0, 0.0]);
        assert_near(&[scale.place(0.0), scale.place(1e9)], &[100.0, 0.0]);
    }

    #[test]
    fn linear_ticks_are_round() {
        assert_near(&Scale::linear(7.3, (0.0, 1.0)).ticks(), &[0.0, 2.0, 4.0, 6.0]);
        assert_near(&Scale::linear(0.09, (0.0, 1.0)).ticks(), &[0.0, 0.02, 0.04, 0.06, 0.08]);
        assert_eq!(Scale::linear(0.0, (0.0, 1.0)).ticks().first(), Some(&0.0));
        assert!(Scale::linear(0.0, (0.0, 1.0)).place(0.0).is_finite());
    }

    #[test]
    fn figures_far_apart_get_a_log_scale() {
        assert!(Scale::fitting([1.0, 100.0].into_iter(), (0.0, 1.0)).is_log());
        assert!(!Scale::fitting([1.0, 20.0].into_iter(), (0.0, 1.0)).is_log());
        assert!(!Scale::fitting([0.0, 100.0].into_iter(), (0.0, 1.0)).is_log());
        assert!(!Scale::fitting([].into_iter(), (0.0, 1.0)).is_log());
    }
}
