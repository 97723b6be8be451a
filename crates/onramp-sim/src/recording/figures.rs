//! Compares cases whose outcome is random: figures of several runs of the kernel with the same
//! figures of Onramp's runs with several seeds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::files::Files;
use super::{Case, CaseError, Totals, listing};

/// The name of the part with the kernel's figures in the text of a case.
pub(super) const NAME: &str = "figures";

/// The kernel's mean of a figure and Onramp's mean may differ by the sum of three terms: this many
/// standard deviations of the difference of the means, the share [`PART`] of the kernel's mean, and
/// a constant: [`COUNT`] or [`TIME_NS`].
const DEVIATIONS: f64 = 4.0;
/// The share of the kernel's mean by which the means may differ, in addition to the other terms.
const PART: f64 = 0.05;
/// The number of packets, or of other counted things, by which the means may differ, in addition to
/// the other terms.
const COUNT: f64 = 2.0;
/// The number of nanoseconds by which means of times may differ, in addition to the other terms.
const TIME_NS: f64 = 20_000.0;

/// Figures of several runs: for each name of a figure, the value in each run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(BTreeMap<String, Vec<f64>>);

impl Figures {
    /// Adds the figures of one run: its totals, and every counter in `listing`, the output of `tc`
    /// about its qdiscs.
    pub(super) fn add(&mut self, totals: &Totals, listing: &str) {
        let mut put = |name: String, figure: f64| self.0.entry(name).or_default().push(figure);
        for (name, figure) in [
            ("drops", totals.drops),
            ("marks", totals.marks),
            ("overtaken", totals.overtaken),
            ("mean sojourn, ns", totals.mean_ns),
            ("median sojourn, ns", totals.median_ns),
            ("95th percentile of sojourn, ns", totals.p95_ns),
        ] {
            put(name.into(), figure);
        }
        listing::counters(listing, &mut put);
    }

    /// Adds the values of the runs in `others` to those of `self`.
    pub fn join(&mut self, others: Self) {
        for (name, figures) in others.0 {
            self.0.entry(name).or_default().extend(figures);
        }
    }

    /// Returns the figures as text, one line for each name.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("== {NAME}\n");
        for (name, figures) in &self.0 {
            let _ = write!(text, "{name}:");
            for figure in figures {
                let _ = write!(text, " {figure:.0}");
            }
            text.push('\n');
        }
        text
    }

    /// Reads the figures that [`text`](Self::text) wrote. The result is empty if the case has no
    /// part with figures.
    pub(super) fn read(files: &Files) -> Result<Self, CaseError> {
        let Ok(text) = files.text(NAME) else { return Ok(Self::default()) };
        let line = |line: &str| {
            let (name, figures) = line.rsplit_once(':')?;
            let figures = figures.split_whitespace().map(|word| word.parse().ok());
            Some((name.to_owned(), figures.collect::<Option<Vec<f64>>>()?))
        };
        let read = |row: &str| {
            let why = || format!("{row}: expected a name and numbers");
            line(row).ok_or_else(|| CaseError::Broken { at: files.at(NAME), why: why() })
        };
        text.lines().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Returns a text for each figure that the runs of Onramp (`ours`) do not have, or whose mean
    /// in these runs differs from its mean in the kernel's runs (`self`) by more than the values'
    /// spread and a fixed tolerance explain.
    #[must_use]
    pub fn unlike(&self, ours: &Self) -> Vec<String> {
        let mut told = Vec::new();
        for (name, theirs) in &self.0 {
            let Some(ours) = ours.0.get(name) else {
                told.push(format!("{name}: ours has none"));
                continue;
            };
            let ((mine, my_square), (other, other_square)) = (spread(ours), spread(theirs));
            let least = if name.ends_with(", ns") { TIME_NS } else { COUNT };
            let may = DEVIATIONS * (my_square + other_square).sqrt() + PART * other + least;
            if (mine - other).abs() > may {
                told.push(format!(
                    "{name}: ours {mine:.0}, Linux {other:.0}, at most {may:.0} apart expected"
                ));
            }
        }
        told
    }
}

/// Returns the mean of `figures`, and the square of the standard deviation of that mean.
#[expect(clippy::cast_precision_loss, reason = "a few runs")]
fn spread(figures: &[f64]) -> (f64, f64) {
    let count = figures.len() as f64;
    let mean = figures.iter().sum::<f64>() / count;
    let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
    (mean, squares / (count - 1.0).max(1.0) / count)
}

impl Case {
    /// Plays the case once with each seed in `seeds`, and returns the figures of these runs.
    #[must_use]
    pub fn figures(&self, seeds: std::ops::Range<u64>) -> Figures {
        let mut figures = Figures::default();
        for seed in seeds {
            let played = self.replayed(seed);
            figures.add(&self.totals(&played.outcome), &listing::of(self, &played));
        }
        figures
    }

    /// Returns the figures of the one kernel run that the case contains.
    #[must_use]
    pub fn recorded_figures(&self) -> Figures {
        let mut figures = Figures::default();
        figures.add(&self.totals(&self.recorded), self.shown.as_deref().unwrap_or_default());
        figures
    }

    /// Plays the case once with each seed in `seeds`. Returns a text for each figure in which these
    /// runs differ from the kernel's runs, whose figures the case contains, by more than chance
    /// explains.
    #[must_use]
    pub fn unlike(&self, seeds: std::ops::Range<u64>) -> Vec<String> {
        self.figures.unlike(&self.figures(seeds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rows: &[(&str, [f64; 5])]) -> Figures {
        Figures(rows.iter().map(|(name, row)| ((*name).to_owned(), row.to_vec())).collect())
    }

    /// Returns figures of five kernel runs with a mean of 100 drops and a mean of 400,000 ns. The
    /// standard deviation of each mean is about 2 % of that mean.
    fn theirs() -> Figures {
        figures(&[
            ("drops", [94.0, 97.0, 100.0, 103.0, 106.0]),
            ("median sojourn, ns", [380e3, 390e3, 400e3, 410e3, 420e3]),
        ])
    }

    #[test]
    fn each_tolerance_has_an_end() {
        assert_eq!(theirs().unlike(&theirs()), [""; 0]);
        // In both lists of drops, the square of the standard deviation of the mean is 4.5. So the
        // means may differ by 4 times the square root of 4.5 + 4.5, plus 5 percent of 100, plus 2,
        // which is 19 packets.
        let drops = |mean: f64| {
            let mut ours = theirs();
            ours.0.insert("drops".into(), [-6.0, -3.0, 0.0, 3.0, 6.0].map(|by| mean + by).to_vec());
            theirs().unlike(&ours)
        };
        assert_eq!(drops(118.9).len() + drops(81.1).len(), 0);
        assert_eq!((drops(119.1).len(), drops(80.9).len()), (1, 1));
        // The square of the standard deviation of the mean is 5e7 in the kernel's runs, and zero in
        // Onramp's runs. So the means may differ by 4 times the square root of 5e7, plus 5 percent
        // of 400,000 ns, plus 20 us, which is 68,284 ns.
        let median = |mean: f64| {
            let mut ours = theirs();
            ours.0.insert("median sojourn, ns".into(), vec![mean; 5]);
            theirs().unlike(&ours)
        };
        assert_eq!(median(468e3).len() + median(332e3).len(), 0);
        assert_eq!((median(469e3).len(), median(331e3).len()), (1, 1));
    }

    #[test]
    fn a_figure_that_is_missing_is_told() {
        let mut ours = theirs();
        ours.0.remove("drops");
        assert_eq!(theirs().unlike(&ours), ["drops: ours has none"]);
    }
}
