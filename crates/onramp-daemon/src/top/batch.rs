//! The table of `onramp top` as plain text.

use std::fmt::Write as _;

use super::view::reasons;
use crate::figures::{count, rate, time};
use crate::snapshot::{Stats, histogram};

const HEAD: [&str; 7] = ["RATE", "PACKETS/S", "BACKLOG", "P50", "P99", "DROPS/S", "REASONS"];

/// Returns the table as text: a header, a line for each row, the number of rows that the limit cut
/// off, if there are any, and an empty line.
pub(super) fn table(stats: &Stats, cut: usize) -> String {
    let names: Vec<String> =
        stats.rows.iter().map(|row| "  ".repeat(row.depth) + &row.label()).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(4);
    let mut text = String::new();
    let mut line = |name: &str, cells: [&str; 7]| {
        let [figures @ .., reasons] = cells;
        let start = text.len();
        // Writing to a string cannot fail.
        let _ = write!(text, "{name:width$}");
        for figure in figures {
            let _ = write!(text, " {figure:>9}");
        }
        let _ = write!(text, "  {reasons}");
        let end = text[start..].trim_end().len();
        text.truncate(start + end);
        text.push('\n');
    };
    line("NAME", HEAD);
    for (row, name) in stats.rows.iter().zip(&names) {
        let cells = [
            rate(row.bytes_per_second),
            count(row.packets_per_second),
            count(Some(histogram::as_f64(row.backlog_packets))),
            time(row.sojourn_p50_ns),
            time(row.sojourn_p99_ns),
            count(row.drops_per_second),
            reasons(row),
        ];
        line(name, cells.each_ref().map(String::as_str));
    }
    if cut > 0 {
        let _ = writeln!(text, "{cut} more");
    }
    text.push('\n');
    text
}
