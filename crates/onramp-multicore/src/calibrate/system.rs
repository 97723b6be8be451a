//! Small tools: files of the system, and numbers that are easy to read.

use std::fs;

/// Reads a file of the system.
pub(super) fn read(name: &str) -> Option<String> {
    fs::read_to_string(name).ok().map(|text| text.trim_end().to_owned())
}

/// Rounds to four digits, so that a file is easy to read.
pub(super) fn short(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}
