//! Puts the most important figures of an experiment into sentences.

use super::data::{Document, Row, is_quotient};
use super::words::{capital, count, large, words};

/// Returns one sentence about the most important figure at the last place of the axis.
pub(super) fn headline(document: &Document) -> String {
    let at = document.places().last().copied().flatten();
    let (rows, key) = (subjects(document, at), document.figures().first().copied());
    let place = document.axis().zip(at);
    let place = place.map_or_else(String::new, |(axis, at)| format!(" with {}", count(at, axis)));
    let told = key.and_then(|key| {
        let pairs = rows.iter().filter_map(|&row| Some((row, document.base_of(row)?)));
        let pairs: Vec<_> = pairs.filter(|(row, base)| row.main != base.main).collect();
        let said = match pairs[..] {
            [] => {
                let last = || document.rows().iter().rfind(|row| row.at == at);
                alone(rows.first().copied().or_else(last)?, key)?
            }
            [(ours, base)] => both(document, ours, base, key)?,
            _ => range(document, &pairs, key)?,
        };
        Some(format!("{}{place}{}: {said}.", capital(&document.label(key)), better(key)))
    });
    told.unwrap_or_else(|| "Nothing was measured.".to_owned())
}

/// Says which figures are good ones, if the key tells.
fn better(key: &str) -> &'static str {
    let costs = ["_ns", "ns_per_", "context_switches", "retries"];
    match key {
        _ if costs.iter().any(|part| key.contains(part)) => " (less is better)",
        _ if key.ends_with("_per_second") => " (more is better)",
        _ => "",
    }
}

fn alone(row: &Row, key: &str) -> Option<String> {
    Some(format!("{} ({})", row.series, words(key)(row.figure(key)?.median)))
}

/// Returns the words for two figures and their ratio, the greater figure first.
fn both(document: &Document, ours: &Row, base: &Row, key: &str) -> Option<String> {
    let words = |row: &Row| alone(row, key);
    let (one, other) = (words(ours)?, words(base)?);
    Some(match document.ratio(ours, key).map(|ratio| ratio.median) {
        Some(ratio) if ratio >= 1.0 => format!("{one}, {} times that of {other}", large(ratio)),
        Some(ratio) if ratio > 0.0 => {
            format!("{other}, {} times that of {one}", large(1.0 / ratio))
        }
        _ => format!("{one}, {other}"),
    })
}

/// Returns the words for the least and the greatest ratio of several pairs of rows. If the base has
/// more in all of them, the ratios are those of the base.
fn range(document: &Document, pairs: &[(&Row, &Row)], key: &str) -> Option<String> {
    let ratios = pairs
        .iter()
        .filter_map(|&(ours, base)| Some((document.ratio(ours, key)?.median, (ours, base))));
    let mut ratios: Vec<_> = ratios.collect();
    if ratios.iter().all(|(ratio, _)| 0.0 < *ratio && *ratio < 1.0) {
        for (ratio, (one, other)) in &mut ratios {
            *ratio = 1.0 / *ratio;
            std::mem::swap(one, other);
        }
    }
    ratios.sort_by(|one, other| one.0.total_cmp(&other.0));
    let told = |(ratio, (one, other)): &(f64, (&Row, &Row))| {
        let figure = |row: &Row| Some(words(key)(row.figure(key)?.median));
        let (more, less, place) = (figure(one)?, figure(other)?, one.rest());
        Some(format!("{} times ({place}: {more}, not {less})", large(*ratio)))
    };
    let (least, most) = (ratios.first()?, ratios.last()?);
    let (one, other) = least.1;
    let (least, most) = (told(least)?, told(most)?);
    Some(format!("{} between {least} and {most} as much as {}", one.main, other.main))
}

/// Returns sentences about the designs at the largest and at the smallest number of threads (or
/// other number on the axis). The sentences are the same whichever design won.
pub(super) fn sentences(document: &Document) -> Vec<String> {
    let places = document.places();
    let (Some(first), Some(last)) = (places.first(), places.last()) else {
        return vec!["Nothing was measured.".to_owned()];
    };
    let mut sentences: Vec<_> = compared(document, *last);
    if first != last {
        sentences.extend(compared(document, *first));
    }
    sentences
}

/// Returns sentences that compare Onramp with the base (the design that others are compared with)
/// at one place of the axis. If Onramp itself is the base, or if designs have different bases,
/// there is a sentence for each design that is no base.
fn compared(document: &Document, at: Option<u64>) -> Vec<String> {
    let mut subjects = subjects(document, at);
    if document.has_several_bases() {
        let rows = document.rows().iter();
        subjects = rows.filter(|row| row.at == at && !document.is_base(row)).collect();
    }
    subjects.into_iter().filter_map(|subject| sentence(document, subject)).collect()
}

/// Returns the rows at one place of the axis that sentences are about.
fn subjects(document: &Document, at: Option<u64>) -> Vec<&Row> {
    let rows: Vec<_> = document.rows().iter().filter(|row| row.at == at).collect();
    let others = || rows.iter().copied().filter(|row| !document.is_base(row));
    let base = rows.iter().copied().find(|row| document.is_base(row));
    match others().find(|row| document.is_ours(&row.main)) {
        // If Onramp has several rows, for example one for each qdisc, there is a sentence for each
        // row, but none for a row whose settings no row of the base has.
        Some(ours) => {
            let alone = document.base().is_none() || !document.has_pairs();
            let ours = others().filter(|row| row.main == ours.main);
            ours.filter(|row| alone || document.base_of(row).is_some()).collect()
        }
        None if base.is_some_and(|base| document.is_ours(&base.main)) => others().collect(),
        None => others().next_back().or(base).into_iter().collect(),
    }
}

fn sentence(document: &Document, row: &Row) -> Option<String> {
    let base = document.base_of(row).filter(|_| !document.is_base(row));
    let clause = |key: &str| {
        let (figure, words) = (row.figure(key)?, words(key));
        let theirs = base.and_then(|base| {
            let (name, theirs) = (&base.series, words(base.figure(key)?.median));
            Some(match document.ratio(row, key).map(|ratio| ratio.median) {
                // Small fractions are hard to read, so the greater figure is the multiple.
                Some(ratio) if 0.0 < ratio && ratio < 0.1 => {
                    format!(" ({name}: {theirs}, {} times as much)", large(1.0 / ratio))
                }
                Some(ratio) => format!(", {} times that of {name} ({theirs})", large(ratio)),
                None => format!(" ({name}: {theirs})"),
            })
        });
        let label = match document.axis().zip(document.first_place()) {
            Some((axis, first)) if is_quotient(key) => {
                if row.at == Some(first) {
                    return None;
                }
                format!("rate divided by that with {}", count(first, axis))
            }
            _ => document.label(key),
        };
        Some(format!("{label} {}{}", words(figure.median), theirs.unwrap_or_default()))
    };
    let clauses: Vec<_> = document.figures().into_iter().filter_map(clause).collect();
    if clauses.is_empty() {
        return None;
    }
    let place = document
        .axis()
        .zip(row.at)
        .map_or_else(String::new, |(axis, at)| format!(" with {}", count(at, axis)));
    Some(format!("{}{place}: {}.", row.series, clauses.join("; ")))
}
