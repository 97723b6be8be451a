//! Percentiles of any number of values, in bounded memory.

/// Number of cells (counters for a range of values) between two successive powers of two.
const PARTS: u32 = 128;
const PART_BITS: u32 = PARTS.trailing_zeros();
const CELLS: usize = ((64 - PART_BITS + 1) * PARTS) as usize;

/// Counts values. Each value below 256 has a counter of its own; greater values share counters
/// (cells) whose ranges are narrower than a hundredth of the value. A histogram takes 58 KiB.
#[derive(Clone, Debug)]
pub struct Histogram {
    cells: Vec<u64>,
    count: u64,
    sum: u128,
    least: u64,
    most: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { cells: vec![0; CELLS], count: 0, sum: 0, least: u64::MAX, most: 0 }
    }
}

impl Histogram {
    /// Adds the value `figure` to the histogram.
    pub fn note(&mut self, figure: u64) {
        self.cells[cell(figure)] += 1;
        self.count += 1;
        self.sum += u128::from(figure);
        self.least = self.least.min(figure);
        self.most = self.most.max(figure);
    }

    /// Returns the number of values that were noted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the least of the values that were noted; `None` if no value was noted.
    #[must_use]
    pub fn least(&self) -> Option<u64> {
        (self.count > 0).then_some(self.least)
    }

    /// Returns the greatest of the values that were noted; `None` if no value was noted.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        (self.count > 0).then_some(self.most)
    }

    /// Returns the mean of the values that were noted; `None` if no value was noted.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// Returns the value that `part` thousandths of all noted values do not exceed; 500 gives the
    /// median. The result may be too large, by less than a hundredth. `None` if no value was noted.
    #[must_use]
    pub fn per_mille(&self, part: u32) -> Option<u64> {
        let rank = (u128::from(self.count) * u128::from(part)).div_ceil(1_000).max(1);
        let mut seen = 0;
        let place = self.cells.iter().position(|count| {
            seen += u128::from(*count);
            seen >= rank
        });
        place.map(|place| last_of(place).clamp(self.least, self.most))
    }
}

/// Returns the index of the cell (counter) in which a value is counted. Each value below twice
/// [`PARTS`] has a cell of its own. The cell of a greater value follows from the value's highest
/// bits.
fn cell(figure: u64) -> usize {
    let exponent = (figure | 1).ilog2().saturating_sub(PART_BITS);
    (exponent * PARTS) as usize + usize::try_from(figure >> exponent).unwrap_or(0)
}

/// Returns the upper end of a cell's range: the greatest value that the cell with this index can
/// count, whether or not such a value was noted.
fn last_of(cell: usize) -> u64 {
    let parts = PARTS as usize;
    let exponent = (cell / parts).saturating_sub(1);
    let first = ((cell - exponent * parts) as u64) << exponent;
    first + ((1 << exponent) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_narrow_and_cover_everything() {
        for figure in (0..2_000).chain((0..64).map(|bit| 1 << bit)).chain([u64::MAX, u64::MAX - 1])
        {
            let last = last_of(cell(figure));
            assert!(last >= figure && last - figure <= figure / 100, "{figure}: {last}");
            assert!(last == u64::MAX || cell(last + 1) == cell(figure) + 1, "{figure}");
        }
    }

    #[test]
    fn percentiles_are_ranks() {
        let mut all = Histogram::default();
        assert_eq!((all.per_mille(500), all.least(), all.mean()), (None, None, None));
        (1..=100).rev().for_each(|figure| all.note(figure));
        let parts = [0, 1, 500, 950, 990, 1_000].map(|part| all.per_mille(part));
        assert_eq!(parts, [1, 1, 50, 95, 99, 100].map(Some));
        assert_eq!((all.least(), all.most(), all.mean()), (Some(1), Some(100), Some(50.5)));
        all.note(1_000_000_007);
        assert_eq!(all.per_mille(1_000), Some(1_000_000_007), "not beyond the greatest");
    }
}
