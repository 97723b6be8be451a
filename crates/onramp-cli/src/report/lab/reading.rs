//! Puts the most important figures of an experiment into sentences.

use super::data::{Document, Row, is_quotient};
use super::words::{count, label, plain, words};

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
/// at one place of the axis. If Onramp itself is the base, there is a sentence for each of the
/// other designs.
fn compared(document: &Document, at: Option<u64>) -> Vec<String> {
    let rows: Vec<_> = document.rows().iter().filter(|row| row.at == at).collect();
    let others = || rows.iter().copied().filter(|row| !document.is_base(row));
    let base = rows.iter().copied().find(|row| document.is_base(row));
    let subjects: Vec<&Row> = match others().find(|row| document.is_ours(&row.main)) {
        // If Onramp has several rows, for example one for each qdisc, there is a sentence for each
        // row, but none for a row whose settings no row of the base has.
        Some(ours) => {
            let alone = document.base().is_none() || !document.has_pairs();
            let ours = others().filter(|row| row.main == ours.main);
            ours.filter(|row| alone || document.base_of(row).is_some()).collect()
        }
        None if base.is_some_and(|base| document.is_ours(&base.main)) => others().collect(),
        None => others().next_back().or(base).into_iter().collect(),
    };
    subjects.into_iter().filter_map(|subject| sentence(document, subject)).collect()
}

fn sentence(document: &Document, row: &Row) -> Option<String> {
    let base = document.base_of(row).filter(|_| !document.is_base(row));
    let clause = |key: &str| {
        let (figure, words) = (row.figure(key)?, words(key));
        let theirs = base.and_then(|base| {
            let (name, theirs) = (&base.series, words(base.figure(key)?.median));
            Some(match document.ratio(row, key) {
                Some(ratio) => format!(", {} that of {name} ({theirs})", share(ratio.median)),
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
            _ => label(key),
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

/// Returns the words for a ratio, such as "2 times" or "1/20 of".
fn share(ratio: f64) -> String {
    if 0.0 < ratio && ratio < 0.1 {
        format!("1/{} of", plain(1.0 / ratio))
    } else {
        format!("{} times", plain(ratio))
    }
}
