//! Selects, sorts and limits the rows of statistics.

use serde::{Deserialize, Serialize};

use super::{Row, Stats, What};

/// Which rows to show, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Query {
    /// Show only rows of this device.
    pub device: Option<String>,
    /// Show only rows whose description contains all of these words, and the rows above them in the
    /// tree.
    pub filter: Option<String>,
    /// The order in which rows with the same parent are sorted.
    pub sort: Sort,
    /// Maximum number of rows; rows left out are counted in [`Stats::omitted`].
    pub limit: Option<usize>,
    /// The `id` of a row that is shown even if it exceeds the limit.
    pub keep: Option<String>,
}

/// The column by which the rows are sorted, largest value first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// The order of the tree, unsorted.
    #[default]
    Tree,
    /// Bytes per second.
    Rate,
    /// Packets per second.
    Packets,
    /// Packets that wait.
    Backlog,
    /// 99th percentile of the packets' sojourn time.
    P99,
    /// Drops per second.
    Drops,
}

impl Sort {
    /// All sort orders.
    pub const ALL: [Self; 6] =
        [Self::Tree, Self::Rate, Self::Packets, Self::Backlog, Self::P99, Self::Drops];

    /// Returns the name of the order, as in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Rate => "rate",
            Self::Packets => "packets",
            Self::Backlog => "backlog",
            Self::P99 => "p99",
            Self::Drops => "drops",
        }
    }

    /// Returns the order with this name; `None` if there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.name() == name)
    }

    #[expect(clippy::cast_precision_loss, reason = "an order needs no last digit")]
    fn weight(self, row: &Row) -> f64 {
        let figure = match self {
            Self::Tree => None,
            Self::Rate => row.bytes_per_second,
            Self::Packets => row.packets_per_second,
            Self::Backlog => Some(row.backlog_packets as f64),
            Self::P99 => row.sojourn_p99_ns,
            Self::Drops => row.drops_per_second,
        };
        // A value that is unknown sorts after the value zero.
        figure.unwrap_or(-1.0)
    }
}

impl Stats {
    /// Keeps only the rows that `query` selects. Returns the number of rows that its device and its
    /// filter select, but that exceed its limit.
    pub fn select(&mut self, query: &Query) -> usize {
        let all = self.rows.len();
        if let Some(device) = &query.device {
            self.rows.retain(|row| row.device == *device);
        }
        if let Some(filter) = &query.filter {
            retain_matching(&mut self.rows, filter);
        }
        if query.sort != Sort::Tree {
            self.rows = sorted(std::mem::take(&mut self.rows), query.sort);
        }
        let matching = self.rows.len();
        if let Some(limit) = query.limit {
            cut(&mut self.rows, limit, query.keep.as_deref());
        }
        self.omitted = all - self.rows.len();
        matching - self.rows.len()
    }
}

/// Keeps the rows that match all words of `filter`, and all rows above them in the tree.
fn retain_matching(rows: &mut Vec<Row>, filter: &str) {
    let words: Vec<String> = filter.split_whitespace().map(str::to_lowercase).collect();
    let mut text = String::new();
    let mut wanted = vec![false; rows.len()];
    // The loop goes from the last row to the first. `above` is the depth of the row that the loop
    // kept last. The next row with a smaller depth is the parent of that row, and is kept, too.
    let mut above = 0;
    for (row, wanted) in rows.iter().zip(&mut wanted).rev() {
        describe(row, &mut text);
        let matches = words.iter().all(|word| text.contains(word.as_str()));
        if matches || row.depth < above {
            above = row.depth;
            *wanted = true;
        }
    }
    keep_wanted(rows, wanted);
}

/// Keeps each row whose entry in `wanted` is true.
fn keep_wanted(rows: &mut Vec<Row>, wanted: Vec<bool>) {
    let mut wanted = wanted.into_iter();
    rows.retain(|_| wanted.next() == Some(true));
}

/// Writes the description of a row, in which the words of the filter are searched.
fn describe(row: &Row, text: &mut String) {
    text.clear();
    text.push_str(&row.device);
    if let Some(queue) = row.queue {
        text.push_str(&format!(" queue {queue}"));
    }
    if row.what == What::Class {
        text.push_str(" class");
    }
    for part in [row.kind.as_deref(), row.handle.as_deref()].into_iter().flatten() {
        text.push(' ');
        text.push_str(part);
    }
    if let Some(parent) = &row.parent {
        text.push_str(" parent ");
        text.push_str(parent);
    }
    if row.up == Some(false) {
        text.push_str(" down");
    }
    for (reason, _) in row.drops.iter().filter(|(_, drops)| drops.packets > 0) {
        text.push(' ');
        text.push_str(reason);
    }
    text.make_ascii_lowercase();
}

/// Returns the same tree of rows, with the rows below each parent sorted.
fn sorted(rows: Vec<Row>, sort: Sort) -> Vec<Row> {
    let depths: Vec<usize> = rows.iter().map(|row| row.depth).collect();
    let weights: Vec<f64> = rows.iter().map(|row| sort.weight(row)).collect();
    let mut order = Vec::with_capacity(rows.len());
    siblings(&depths, &weights, 0..rows.len(), &mut order);
    let mut rows: Vec<Option<Row>> = rows.into_iter().map(Some).collect();
    order.into_iter().filter_map(|at| rows[at].take()).collect()
}

fn siblings(
    depths: &[usize],
    weights: &[f64],
    range: std::ops::Range<usize>,
    order: &mut Vec<usize>,
) {
    // `range` begins with the first of the siblings to sort. Each later row in `range` that is no
    // deeper counts as a sibling, too, even if it is less deep because a parent row is missing.
    let Some(&depth) = depths[range.clone()].first() else { return };
    let starts: Vec<usize> = range.clone().filter(|&at| depths[at] <= depth).collect();
    let ends = starts.iter().copied().skip(1).chain([range.end]);
    let mut groups: Vec<(usize, usize)> = starts.iter().copied().zip(ends).collect();
    groups.sort_by(|a, b| weights[b.0].total_cmp(&weights[a.0]));
    for (from, to) in groups {
        order.push(from);
        siblings(depths, weights, from + 1..to, order);
    }
}

/// Keeps `limit` rows, shared among the devices, and also the row whose `id` is `keep` and the rows
/// above that row in the tree.
fn cut(rows: &mut Vec<Row>, limit: usize, keep: Option<&str>) {
    let mut wanted = shares(rows, limit);
    let kept = keep.and_then(|keep| rows.iter().position(|row| row.id == keep));
    if let Some(at) = kept {
        let mut depth = rows[at].depth + 1;
        for above in (0..=at).rev() {
            if rows[above].depth < depth {
                depth = rows[above].depth;
                wanted[above] = true;
            }
        }
    }
    keep_wanted(rows, wanted);
}

/// Returns which rows to keep: the first rows of each device. Devices with few rows keep all of
/// them; the others share the remaining room equally.
fn shares(rows: &[Row], limit: usize) -> Vec<bool> {
    let begins = |at: &usize| *at == 0 || rows[*at].device != rows[*at - 1].device;
    let starts: Vec<usize> = (0..rows.len()).filter(begins).collect();
    let ends = starts.iter().copied().skip(1).chain([rows.len()]);
    let mut devices: Vec<(usize, usize)> =
        starts.iter().copied().zip(ends).map(|(from, to)| (to - from, from)).collect();
    devices.sort_unstable();
    let mut wanted = vec![false; rows.len()];
    let (mut room, mut left) = (limit, devices.len());
    for (count, from) in devices {
        let share = count.min(room / left);
        wanted[from..from + share].fill(true);
        room -= share;
        left -= 1;
    }
    wanted
}
