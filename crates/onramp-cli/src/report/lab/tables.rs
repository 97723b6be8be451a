//! Shows all figures of an experiment in HTML tables.

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::at;
use super::charts::{Bucket, buckets};
use super::data::{Document, Figure, RATE, Row};
use super::words::{self, count, label, words};
use crate::report::page;
use crate::report::table::dash;

/// Returns all tables of an experiment that have rows.
pub(super) fn all(document: &Document) -> Markup {
    html! {
        h3 { "Figures" }
        (figures(document))
        (ratios(document))
        (beside_elsewhere(document))
        @for group in groups(document) { (percentiles(document, group)) }
        (locks(document))
        @for key in histogram_paths(document) { (histogram(document, &key)) }
    }
}

/// Returns a table whose first columns name the row.
fn table(document: &Document, head: &[String], rows: &[Vec<String>]) -> Markup {
    page::tables(1 + usize::from(document.axis().is_some()), head, rows)
}

/// Returns the headers of a table: those of the first columns, which name the row, followed by
/// `columns`.
fn head(document: &Document, columns: impl IntoIterator<Item = String>) -> Vec<String> {
    let axis = document.axis().map(label);
    ["design".to_owned()].into_iter().chain(axis).chain(columns).collect()
}

/// Returns the cells of the first columns, which name the row.
fn names(document: &Document, row: &Row) -> Vec<String> {
    let at = document.axis().map(|_| row.at.map_or_else(dash, |at| at.to_string()));
    [row.series.clone()].into_iter().chain(at).collect()
}

/// Returns the table of figures. The columns with medians and their least and greatest values come
/// first, then the figures that have a single value.
fn figures(document: &Document) -> Markup {
    let spreads = document.spreads();
    let plain = plain_paths(document);
    let labels = spreads
        .iter()
        .map(|key| document.label(key))
        .chain(plain.iter().map(|key| document.label(key)));
    let head = head(document, labels);
    let row = |row: &Row| {
        let mut cells = names(document, row);
        cells.extend(spreads.iter().map(|key| cell(key, row.figure(key))));
        let value = |key: &String| at(row, key).map_or_else(dash, |value| words::value(key, value));
        cells.extend(plain.iter().map(value));
        cells
    };
    table(document, &head, &document.rows().iter().map(row).collect::<Vec<_>>())
}

/// Returns the table of ratios to the base (the design that others are compared with).
fn ratios(document: &Document) -> Markup {
    let Some(base) = document.base() else { return html! {} };
    let spread = |ratios: &Map<String, Value>, key: &str| {
        ratios.get(&format!("{key}_min")).is_some_and(Value::is_number)
    };
    let mut keys: Vec<&str> = Vec::new();
    for ratios in document.rows().iter().filter_map(|row| document.ratios(row)) {
        let story = |key: &str| document.figures().contains(&key) && ratios.contains_key(key);
        for key in ratios.keys().filter(|key| spread(ratios, key) || story(key)) {
            if !keys.contains(&key.as_str()) {
                keys.push(key);
            }
        }
    }
    if !base.measured || keys.is_empty() {
        keys = document.figures();
    }
    let row = |row: &Row| {
        let mut cells = names(document, row);
        cells.extend(keys.iter().map(|key| cell("", document.ratio(row, key))));
        cells
    };
    let others = document.rows().iter().filter(|row| !document.is_base(row));
    let others = others.filter(|row| document.base_of(row).is_some());
    let rows: Vec<_> = others.map(row).collect();
    if rows.is_empty() {
        return html! {};
    }
    html! {
        h3 { "Divided by the figure of " (base.called) ", " (how_compared(document, &keys)) }
        (table(document, &head(document, keys.iter().map(|key| document.label(key))), &rows))
    }
}

/// Returns the table of ratios to the design of `onramp lab control` whose second thread reads
/// another link.
fn beside_elsewhere(document: &Document) -> Markup {
    let Some((base, rows)) = document.beside_elsewhere() else { return html! {} };
    let cells = |(row, ratio): &(&Row, Figure)| {
        let mut cells = names(document, row);
        cells.push(cell("", Some(*ratio)));
        cells
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    html! {
        h3 { "Divided by the figure of " (base) ", in the same round" }
        (table(document, &head(document, [document.label(RATE)]), &rows))
    }
}

/// Returns a text that says how the ratios of `keys` were computed.
pub(super) fn how_compared(document: &Document, keys: &[&str]) -> String {
    let (rounds, medians): (Vec<&str>, Vec<&str>) =
        keys.iter().copied().partition(|key| document.compares_rounds(key));
    match (&rounds[..], &medians[..]) {
        (_, []) => "in the same round".to_owned(),
        ([], _) => "median by median".to_owned(),
        (_, medians) => {
            let labels: Vec<_> = medians.iter().map(|key| document.label(key)).collect();
            format!("in the same round; {} median by median", labels.join(" and "))
        }
    }
}

/// Returns the keys of the objects that contain percentiles.
fn groups(document: &Document) -> Vec<&str> {
    let mut keys: Vec<&str> = Vec::new();
    for (key, value) in document.rows().iter().flat_map(|row| &row.values) {
        if value.get("p50").is_some() && !keys.contains(&key.as_str()) {
            keys.push(key);
        }
    }
    keys
}

fn percentiles(document: &Document, group: &str) -> Markup {
    let parts = ["p50", "p99", "p999", "max"];
    let row = |row: &Row| {
        let mut cells = names(document, row);
        let cell = |part| cell(group, row.figure(&format!("{group}.{part}")));
        cells.extend(parts.map(cell));
        let samples = at(row, &format!("{group}.samples"));
        cells.push(samples.map_or_else(dash, Value::to_string));
        cells
    };
    let measured = document.rows().iter().filter(|row| at(row, group).is_some());
    let columns = parts.map(label).into_iter().chain(["samples".to_owned()]);
    html! {
        h3 { "Latency: " (document.label(group)) }
        (table(document, &head(document, columns), &measured.map(row).collect::<Vec<_>>()))
    }
}

/// Returns the tables about locks. Their columns are those of `perf lock contention` and of
/// lockmeter.
fn locks(document: &Document) -> Markup {
    let mut perf = Vec::new();
    let mut lockmeter = Vec::new();
    for row in document.rows() {
        let many = row.values.get("locks").and_then(Value::as_array).into_iter().flatten();
        let one = row.values.get("lock").filter(|lock| lock.is_object());
        for lock in many.chain(one) {
            let number = |key: &str| lock.get(key).and_then(Value::as_f64);
            let text =
                |key: &str| lock.get(key).map_or_else(dash, |value| words::value(key, value));
            if number("contended").is_some_and(|contended| contended > 0.0) {
                let mut cells = names(document, row);
                let columns = ["contended", "wait_total_ns", "wait_max_ns", "wait_avg_ns"];
                cells.extend(columns.into_iter().chain(["kind", "name"]).map(text));
                perf.push((number("wait_total_ns").unwrap_or(0.0), cells));
            }
            let share = number("contended_share");
            let mut cells = names(document, row);
            let columns = ["utilisation", "contended_share", "hold_mean_ns", "hold_max_ns"];
            cells.extend(columns.map(text));
            cells.extend(["wait_avg_ns", "wait_max_ns"].map(text));
            cells.push(wait_share(document, lock).map_or_else(dash, words::percent));
            cells.push(share.map_or_else(dash, |share| words::percent(1.0 - share)));
            cells.push(share.map_or_else(dash, words::percent));
            cells.extend(["acquired", "kind", "name"].map(text));
            lockmeter.push(cells);
        }
    }
    if lockmeter.is_empty() {
        return html! {};
    }
    perf.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let perf: Vec<_> = perf.into_iter().map(|(_, cells)| cells).collect();
    let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let waits = ["contended", "total wait", "max wait", "avg wait", "type", "where"];
    let holds = [
        "util",
        "con",
        "hold mean",
        "hold max",
        "wait mean",
        "wait max",
        "wait, of CPU",
        "no wait",
        "spin",
        "total",
        "type",
        "name",
    ];
    html! {
        h3 { "Locks, in the columns of perf lock contention, longest total wait first" }
        (table(document, &head(document, strings(&waits)), &perf))
        h3 { "Locks, in the columns of lockmeter (2004)" }
        (table(document, &head(document, strings(&holds)), &lockmeter))
    }
}

/// Returns the time that threads spent waiting for a lock, as a share of the time of all
/// processors.
fn wait_share(document: &Document, lock: &Value) -> Option<f64> {
    let number = |key: &str| lock.get(key).and_then(Value::as_f64);
    number("wait_cpu_share").or_else(|| {
        let cpus = document.part("machine").get("cpus")?.as_f64()?;
        let share = number("wait_total_ns")? / (number("watched_ns")? * cpus);
        share.is_finite().then_some(share)
    })
}

/// Returns the table of a histogram: a row for each bucket at each place of the axis, and a column
/// for each design.
fn histogram(document: &Document, path: &str) -> Markup {
    let series = document.series();
    let mut rows = Vec::new();
    for place in document.places() {
        let found: Vec<Vec<Bucket>> = series
            .iter()
            .map(|name| at(document.row(name, place)?, path).and_then(buckets))
            .map(Option::unwrap_or_default)
            .collect();
        let mut edges: Vec<_> = found.iter().flatten().map(|one| (one.from, one.below)).collect();
        edges.sort_unstable();
        edges.dedup();
        for (from, below) in edges {
            let words = if path.starts_with("batch") { words::plain } else { words::nanoseconds };
            let mut cells = vec![format!("{} to {}", words(from as f64), words(below as f64))];
            cells.extend(document.axis().zip(place).map(|(axis, at)| count(at, axis)));
            let count = |buckets: &Vec<Bucket>| {
                let here = |one: &&Bucket| (one.from, one.below) == (from, below);
                buckets.iter().find(here).map_or_else(dash, |bucket| bucket.count.to_string())
            };
            cells.extend(found.iter().map(count));
            rows.push(cells);
        }
    }
    let axis = document.axis().map(label);
    let designs = series.iter().map(|name| (*name).to_owned());
    let head: Vec<_> = ["from, below".to_owned()].into_iter().chain(axis).chain(designs).collect();
    html! {
        h3 { "Histogram: " (document.label(path)) }
        (table(document, &head, &rows))
    }
}

/// Returns the paths (keys joined by dots) at which rows have histograms.
fn histogram_paths(document: &Document) -> Vec<String> {
    paths(document, &|value| buckets(value).is_some())
}

/// Returns the paths (keys joined by dots) of figures with a single value that are not in another
/// table.
fn plain_paths(document: &Document) -> Vec<String> {
    let paths = paths(document, &|value| value.is_number() || value.is_boolean());
    let spreads = document.spreads();
    let elsewhere = |path: &String| {
        let extreme = path.strip_suffix("_min").or_else(|| path.strip_suffix("_max"));
        Some(path.as_str()) == document.axis()
            || spreads.contains(&path.as_str())
            || extreme.is_some_and(|plain| spreads.contains(&plain))
    };
    paths.into_iter().filter(|path| !elsewhere(path)).collect()
}

/// Returns the paths (keys joined by dots) of the values in rows, and in objects inside rows, for
/// which `wanted` returns true. Percentiles, ratios and locks are left out, because they have
/// tables of their own.
fn paths(document: &Document, wanted: &dyn Fn(&Value) -> bool) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    let mut add = |path: String| {
        if !paths.contains(&path) {
            paths.push(path);
        }
    };
    for (key, value) in document.rows().iter().flat_map(|row| &row.values) {
        if wanted(value) {
            add(key.clone());
        }
        let own = value.get("p50").is_some() || key.starts_with("ratios_to_") || key == "lock";
        for (part, value) in value.as_object().into_iter().flatten() {
            if !own && wanted(value) {
                add(format!("{key}.{part}"));
            }
        }
    }
    paths
}

/// Returns a median with its extremes as text.
fn cell(key: &str, figure: Option<Figure>) -> String {
    let words = words(key);
    figure.map_or_else(dash, |figure| match figure.range {
        Some((least, most)) => {
            format!("{}\n({} – {})", words(figure.median), words(least), words(most))
        }
        None => words(figure.median),
    })
}
