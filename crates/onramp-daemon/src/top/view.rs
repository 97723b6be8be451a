//! The state of `onramp top`: everything except drawing on the terminal.

use std::collections::{HashMap, HashSet};

use ratatui::crossterm::event::KeyCode;

use crate::snapshot::{Query, Row, Sort, Stats, What};

/// If a device has more queues than this number, its queues are collapsed at first.
const FEW_QUEUES: usize = 4;

/// The table of `onramp top`, and the user's position in it.
#[derive(Debug, Default)]
pub struct View {
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// The filter as it was before the user began to edit it; `None` if the user is not editing the
    /// filter.
    typed: Option<String>,
    stats: Option<Stats>,
    lines: Vec<Line>,
    /// The rows that the user opened (true) or closed (false), by the row's `id`.
    by_hand: HashMap<String, bool>,
    all_open: bool,
    /// The `id` of the selected row; its index in `lines` is the field `at`.
    chosen: Option<String>,
    pub(super) at: usize,
    /// Index of the first row that the screen shows.
    pub(super) from: usize,
}

/// A row of the table, in the form in which it is shown.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) row: Row,
    pub(super) depth: usize,
    /// Whether the rows below this row in the tree are shown; `None` if there are no rows below it.
    pub(super) open: Option<bool>,
}

/// The sums over all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sum {
    pub(super) devices: usize,
    pub(super) queues: usize,
    pub(super) bytes_per_second: Option<f64>,
    pub(super) packets_per_second: Option<f64>,
    pub(super) drops_per_second: Option<f64>,
}

impl View {
    /// Makes a view that has no statistics to show yet.
    #[must_use]
    pub fn new(sort: Sort, filter: &str) -> Self {
        Self { sort, filter: filter.to_owned(), ..Self::default() }
    }

    /// Shows new statistics, unless the view is paused.
    pub fn take(&mut self, stats: Stats) {
        if !self.paused || self.stats.is_none() {
            self.stats = Some(stats);
            self.refresh();
        }
    }

    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(super) const fn has_looked(&self) -> bool {
        self.stats.is_some()
    }

    pub(super) fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        let rows = self.stats.iter().flat_map(|stats| &stats.rows);
        for row in rows.filter(|row| row.what == What::Device) {
            sum.devices += 1;
            sum.queues += row.queues.unwrap_or_default();
            for (sum, figure) in [
                (&mut sum.bytes_per_second, row.bytes_per_second),
                (&mut sum.packets_per_second, row.packets_per_second),
                (&mut sum.drops_per_second, row.drops_per_second),
            ] {
                if let Some(figure) = figure {
                    *sum = Some(sum.unwrap_or(0.0) + figure);
                }
            }
        }
        sum
    }

    /// Rebuilds the lines of the table from the latest statistics.
    fn refresh(&mut self) {
        let Some(stats) = &self.stats else { return };
        let mut stats = stats.clone();
        let filter = Some(self.filter.clone()).filter(|filter| !filter.trim().is_empty());
        stats.select(&Query { filter, sort: self.sort, ..Query::default() });
        let lines = self.shown(stats.rows);
        self.lines = lines;
        let chosen = self.chosen.as_deref();
        let found = self.lines.iter().position(|line| Some(line.row.id.as_str()) == chosen);
        self.at = found.unwrap_or(self.at).min(self.lines.len().saturating_sub(1));
        self.chosen = self.lines.get(self.at).map(|line| line.row.id.clone());
    }

    /// Returns the rows that are not hidden below a closed row. A device's only queue is left out,
    /// because it would repeat what the device's row shows.
    fn shown(&self, rows: Vec<Row>) -> Vec<Line> {
        let devices = rows.iter().filter(|row| row.what == What::Device);
        let (mut alone, mut many) = (HashSet::new(), HashSet::new());
        for row in devices {
            match row.queues.unwrap_or_default() {
                1 => drop(alone.insert(row.device.clone())),
                count if count > FEW_QUEUES => drop(many.insert(row.device.clone())),
                _ => {}
            }
        }
        let mut lines: Vec<Line> = Vec::with_capacity(rows.len());
        for row in rows {
            let is_alone = alone.contains(&row.device);
            if is_alone && row.what == What::Queue {
                continue;
            }
            let depth = row.depth.saturating_sub(usize::from(is_alone));
            lines.push(Line { row, depth, open: None });
        }
        let deeper: Vec<bool> =
            lines.windows(2).map(|pair| pair[1].depth > pair[0].depth).chain([false]).collect();
        let mut closed = usize::MAX;
        let mut deeper = deeper.into_iter();
        lines.retain_mut(|line| {
            let has_more = deeper.next() == Some(true);
            if line.depth > closed {
                return false;
            }
            line.open = has_more.then(|| self.opens(&line.row, &many));
            closed = if line.open == Some(false) { line.depth } else { usize::MAX };
            true
        });
        lines
    }

    fn opens(&self, row: &Row, many: &HashSet<String>) -> bool {
        let by_itself = self.all_open
            || !self.filter.trim().is_empty()
            || row.what != What::Queue
            || !many.contains(&row.device);
        self.by_hand.get(&row.id).copied().unwrap_or(by_itself)
    }

    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.refresh();
    }

    pub(super) fn open_all(&mut self) {
        self.all_open = !self.all_open;
        self.by_hand.clear();
        self.refresh();
    }

    pub(super) fn go(&mut self, by: isize) {
        let last = self.lines.len().saturating_sub(1);
        self.at = self.at.saturating_add_signed(by).min(last);
        self.chosen = self.lines.get(self.at).map(|line| line.row.id.clone());
    }

    /// Opens or closes the selected row. If the row is already open, opening moves the selection to
    /// the row below; if the row is already closed, closing moves the selection to the row above it
    /// in the tree.
    pub(super) fn open(&mut self, open: bool) {
        let Some(line) = self.lines.get(self.at) else { return };
        match line.open {
            Some(was) if was != open => {
                self.by_hand.insert(line.row.id.clone(), open);
                self.refresh();
            }
            Some(_) if open => self.go(1),
            _ if !open => {
                let depth = line.depth;
                let above = self.lines[..self.at].iter().rposition(|line| line.depth < depth);
                self.at = above.unwrap_or(self.at);
                self.go(0);
            }
            _ => {}
        }
    }

    pub(super) fn toggle(&mut self) {
        if let Some(was) = self.lines.get(self.at).and_then(|line| line.open) {
            self.open(!was);
        }
    }

    /// Whether the user is editing the filter.
    pub(super) const fn typing(&self) -> bool {
        self.typed.is_some()
    }

    pub(super) fn begin_typing(&mut self) {
        self.typed = Some(self.filter.clone());
    }

    pub(super) fn type_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) => self.filter.push(c),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.typed = None,
            KeyCode::Esc => self.filter = self.typed.take().unwrap_or_default(),
            _ => return,
        }
        self.refresh();
    }

    /// Removes the filter, because the user pressed escape. Returns whether there was a filter to
    /// remove.
    pub(super) fn clear_filter(&mut self, key: KeyCode) -> bool {
        let clears = key == KeyCode::Esc && !self.filter.is_empty();
        if clears {
            self.filter.clear();
            self.refresh();
        }
        clears
    }
}

/// Returns the reasons for which packets are dropped at present, with their rates, highest rate
/// first.
pub(super) fn reasons(row: &Row) -> String {
    let mut now: Vec<_> = row
        .drops
        .iter()
        .filter_map(|(name, drops)| Some((name, drops.per_second.filter(|&rate| rate > 0.0)?)))
        .collect();
    now.sort_by(|a, b| b.1.total_cmp(&a.1));
    let words: Vec<String> = now
        .iter()
        .map(|(name, rate)| format!("{name} {}", crate::figures::count(Some(*rate))))
        .collect();
    words.join(", ")
}
