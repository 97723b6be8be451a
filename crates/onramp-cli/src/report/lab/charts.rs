//! The charts of an experiment.

use serde_json::Value;

use super::aqm;
use super::chart::Chart;
use super::data::{Document, Row, is_quotient};
use super::words::{self, capital, count, label, words};
use crate::report::chart::{Across, Bar, Bars, Labels, Line, Lines, Point};

/// Returns all charts of an experiment, in the order of the page.
pub(super) fn all(document: &Document) -> Vec<Chart> {
    if document.kind() == aqm::KIND {
        return aqm::charts(document);
    }
    let (figures, places) = (document.figures(), document.places());
    let mut charts = Vec::new();
    let few = document.series().len() <= LINES;
    if let Some(axis) = document.axis().filter(|_| few) {
        charts.extend(figures.iter().filter_map(|key| scaling(document, key, axis)));
    }
    for at in &places {
        charts.extend(figures.iter().flat_map(|key| bars(document, key, *at)));
    }
    for key in histograms(document) {
        charts.extend(places.iter().filter_map(|at| histogram(document, key, *at)));
    }
    charts
}

/// Returns the chart that the page begins with, and the other charts. The first chart shows the
/// most important figure: over the axis, or else at the last place of the axis.
pub(super) fn first_and_rest(document: &Document) -> (Option<Chart>, Vec<Chart>) {
    let mut charts = all(document);
    let lines = charts.first().is_some_and(|chart| chart.name.starts_with(SCALING));
    let last = document.places().last().copied().flatten();
    let name = document.figures().first().map(|key| bars_name(document, key, last));
    let wanted = charts.iter().position(|chart| Some(&chart.name) == name.as_ref());
    let at = wanted.filter(|_| !lines).unwrap_or(0);
    let first = (at < charts.len()).then(|| charts.remove(at));
    (first, charts)
}

/// Splits the charts into groups of neighbours that have the same heading.
pub(super) fn grouped(charts: &[Chart]) -> impl Iterator<Item = (&str, &[Chart])> {
    let groups = charts.chunk_by(|one, next| one.heading == next.heading);
    groups.map(|group| (group[0].heading.as_str(), group))
}

/// Draws the chart of the figure `key`, with a line for each design, over the axis (such as the
/// number of threads).
fn scaling(document: &Document, key: &str, axis: &str) -> Option<Chart> {
    let line = |series: &str| Line {
        name: series.to_owned(),
        points: document
            .places()
            .into_iter()
            .map(|at| point(document.row(series, at)?, key))
            .collect(),
        highlighted: document.is_ours(series),
    };
    let lines = Lines {
        title: capital(&document.label(key)),
        across: Across {
            name: label(axis),
            words: words::plain,
            ticks: Some(document.places().into_iter().flatten().map(|at| at as f64).collect()),
        },
        lines: document.series().into_iter().map(line).collect(),
        words: words(key),
        labels: Labels::Ends,
    };
    let by = if axis == "rate" { "By" } else { "By number of" };
    let (name, heading) = (format!("{SCALING}{}", slug(key)), format!("{by} {}", label(axis)));
    Some(Chart { name, heading, scene: lines.draw()? })
}

fn point(row: &Row, key: &str) -> Option<Point> {
    let figure = row.figure(key)?;
    Some(Point { at: row.at? as f64, figure: figure.median, range: figure.range })
}

/// Draws the chart of the figure `key` at the place `at` of the axis (such as 16 threads), with a
/// bar for each design, the oldest design first. If there are many bars, rows that are compared
/// with each other stand together, and the rows that are compared with nothing get a chart of their
/// own.
fn bars(document: &Document, key: &str, at: Option<u64>) -> Vec<Chart> {
    let rows = document.series().into_iter().filter_map(|series| document.row(series, at));
    let mut rows: Vec<&Row> = rows.collect();
    let name = bars_name(document, key, at);
    // A figure that is divided by that at the first place is 1 there.
    if is_quotient(key) && at.is_some() && at == document.first_place() {
        return Vec::new();
    }
    if rows.len() <= LINES || !document.has_pairs() {
        return bars_of(document, key, at, &rows, (name, "")).into_iter().collect();
    }
    rows.sort_by_cached_key(|row| document.pair_number(row));
    let (pairs, alone): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| document.has_partner(row));
    let others = (format!("{name}-others"), if pairs.is_empty() { "" } else { ", the others" });
    let charts = [
        bars_of(document, key, at, &pairs, (name, "")),
        bars_of(document, key, at, &alone, others),
    ];
    charts.into_iter().flatten().collect()
}

fn bars_of(
    document: &Document,
    key: &str,
    at: Option<u64>,
    rows: &[&Row],
    (name, which): (String, &str),
) -> Option<Chart> {
    let bar = |row: &&Row| {
        let figure = row.figure(key);
        let ratio = document.ratio(row, key);
        Bar {
            name: row.series.clone(),
            figure: figure.map(|figure| figure.median),
            range: figure.and_then(|figure| figure.range),
            note: ratio.map_or_else(String::new, |ratio| times(ratio.median)),
            highlighted: document.is_ours(&row.series),
        }
    };
    let (place, _) = place(document, at);
    let bars: Vec<Bar> = rows.iter().map(bar).collect();
    let compared = bars.iter().any(|bar| !bar.note.is_empty());
    let base = document.base().filter(|_| compared);
    let base = base.map_or_else(String::new, |base| format!("; × {}", base.called));
    let with = if place.is_empty() { String::new() } else { format!(", {place}") };
    let bars = Bars {
        title: format!("{}{with}{which}{base}", capital(&document.label(key))),
        bars,
        words: words(key),
    };
    let heading = format!("Side by side{with}");
    Some(Chart { name, heading, scene: bars.draw()? })
}

fn bars_name(document: &Document, key: &str, at: Option<u64>) -> String {
    format!("bars-{}{}", slug(key), place(document, at).1)
}

/// Draws the chart of a histogram, with a line for each design: the share of values in each bucket
/// (a range between two powers of two).
fn histogram(document: &Document, key: &str, at: Option<u64>) -> Option<Chart> {
    let line = |series: &str| {
        let buckets = buckets(document.row(series, at)?.values.get(key)?)?;
        let total: u64 = buckets.iter().map(|bucket| bucket.count).sum();
        let point = |bucket: &Bucket| {
            (bucket.count > 0).then(|| Point {
                at: bucket.middle(),
                figure: bucket.count as f64 / total as f64,
                range: None,
            })
        };
        let points = buckets.iter().map(point).collect();
        Some(Line { name: series.to_owned(), points, highlighted: document.is_ours(series) })
    };
    let (place, suffix) = place(document, at);
    let with = if place.is_empty() { String::new() } else { format!(", {place}") };
    let lines = Lines {
        title: format!("{}: share of the calls{with}", capital(&document.label(key))),
        across: Across {
            name: "duration, powers of two".to_owned(),
            words: words::nanoseconds,
            ticks: None,
        },
        lines: document.series().into_iter().filter_map(line).collect(),
        words: words::percent,
        labels: Labels::List,
    };
    let heading = format!("Histograms: {}", document.label(key));
    let name = format!("{}{suffix}", slug(key));
    Some(Chart { name, heading, scene: lines.draw()? })
}

/// The largest number of lines in a chart whose lines a reader can tell apart.
const LINES: usize = 12;
const SCALING: &str = "scaling-";

/// A bucket of a histogram: a range of values, and the number of values in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    pub(super) from: u64,
    pub(super) below: u64,
    pub(super) count: u64,
}

impl Bucket {
    /// Returns the value in the middle of the bucket on a logarithmic axis. If the bucket begins at
    /// zero, it is taken to begin at one.
    fn middle(&self) -> f64 {
        (self.from.max(1) as f64 * self.below.max(1) as f64).sqrt()
    }
}

/// Returns the buckets of the histogram `value`; `None` if `value` is not a histogram.
pub(super) fn buckets(value: &Value) -> Option<Vec<Bucket>> {
    let bucket = |value: &Value| {
        let number = |key: &str| value.get(key)?.as_u64();
        Some(Bucket { from: number("from")?, below: number("below")?, count: number("count")? })
    };
    let buckets: Vec<_> = value.as_array()?.iter().map(bucket).collect::<Option<_>>()?;
    (!buckets.is_empty()).then_some(buckets)
}

/// Returns the keys of the histograms of durations.
fn histograms(document: &Document) -> Vec<&str> {
    let mut keys: Vec<&str> = Vec::new();
    for (key, value) in document.rows().iter().flat_map(|row| &row.values) {
        if key.ends_with("_histogram") && buckets(value).is_some() && !keys.contains(&key.as_str())
        {
            keys.push(key);
        }
    }
    keys
}

/// Returns a place on the axis in words, such as "16 threads", and as the end of a file name, such
/// as "-16-threads".
fn place(document: &Document, at: Option<u64>) -> (String, String) {
    match document.axis().zip(at) {
        Some((axis, at)) => (count(at, axis), format!("-{at}-{}", slug(axis))),
        None => (String::new(), String::new()),
    }
}

/// Returns the text for a ratio beside a bar.
fn times(ratio: f64) -> String {
    match ratio {
        ratio if 0.0 < ratio && ratio < 0.001 => "<0.001×".to_owned(),
        ratio => format!("{}×", words::large(ratio)),
    }
}

fn slug(key: &str) -> String {
    key.replace(['_', '.'], "-")
}
