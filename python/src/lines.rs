//! Reads trees of qdiscs that a Python program describes in lines of `tc`.

use onramp::{ConfigError, Kinds, Line, Rate, Setup, Spec};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::errors;

/// The name of the device in lines that name none.
const DEVICE: &str = "link";
/// The highest rate of a link in bytes per second, as in `tc`.
const RATE_MAX: u64 = 1_000_000_000_000_000;

/// Reads the description of a tree: a text of lines of `tc`, a list of such lines, or the
/// description of one qdisc, such as `fq_codel target 2ms`, which gets the handle `1:`. `name` is
/// the name of the argument.
pub(crate) fn setup(given: &Bound<'_, PyAny>, name: &str) -> PyResult<Setup> {
    let lines = match given.extract::<String>() {
        Ok(text) => match single(&text)? {
            Some(line) => vec![line],
            None => text.lines().map(str::to_owned).collect(),
        },
        Err(_) => given.extract::<Vec<String>>().map_err(|_| {
            PyTypeError::new_err(format!(
                "{name}: expected a qdisc such as \"fq_codel\", or lines of tc, as a text or a \
                 list of texts"
            ))
        })?,
    };
    if lines.iter().all(|line| plain(line).trim().is_empty()) {
        return Err(errors::value(format!(
            "{name}: a qdisc is missing: expected one such as \"fq_codel\", or lines of tc"
        )));
    }
    let mut setup = Setup::default();
    let count = lines.len();
    for (number, line) in (1..).zip(&lines) {
        if !plain(line).trim().is_empty() {
            apply(&mut setup, line).map_err(|error| match count {
                1 => errors::config(of_qdisc(line, error)),
                _ => errors::value(format!("line {number}: {error}")),
            })?;
        }
    }
    setup.with_root().map_err(errors::config)?;
    Ok(setup)
}

/// Returns the line without a comment.
fn plain(line: &str) -> &str {
    line.split('#').next().unwrap_or_default()
}

/// Returns the error for the only line of a description. If the line begins with no word that a
/// command of tc begins with, it was meant as a qdisc, and so the error is that of a qdisc.
fn of_qdisc(line: &str, error: ConfigError) -> ConfigError {
    if error.at != "tc" || plain(line).split_ascii_whitespace().next() == Some("tc") {
        return error;
    }
    Spec::with_units(plain(line)).err().unwrap_or(error)
}

/// Returns the line that adds a qdisc at the root, if `text` describes one qdisc and is no line.
fn single(text: &str) -> PyResult<Option<String>> {
    let kind = text.split_ascii_whitespace().next().unwrap_or_default();
    if Kinds::default().find(kind).is_none() {
        return Ok(None);
    }
    Spec::with_units(text).map_err(errors::config)?;
    Ok(Some(format!("qdisc add dev {DEVICE} root handle 1: {text}")))
}

/// Returns the line without a comment and a leading `tc`, and with the name of the device of
/// `setup` if the line names none.
pub(crate) fn whole(setup: &Setup, line: &str) -> String {
    Line::from(plain(line)).on(setup.device().unwrap_or(DEVICE))
}

/// Applies a line to the description of a tree. The error says what is wrong with the line.
pub(crate) fn apply(setup: &mut Setup, line: &str) -> Result<(), ConfigError> {
    let line = whole(setup, line);
    setup.apply_leaving(&line)
}

/// Reads a rate, that of the argument `name`.
pub(crate) fn rate(text: &str, name: &str) -> PyResult<Rate> {
    let rate = text.parse::<Rate>().ok().filter(|rate| {
        (1..=RATE_MAX).contains(&rate.as_bytes_per_second()) && text.parse::<f64>().is_err()
    });
    rate.ok_or_else(|| {
        errors::value(format!(
            "{name}: {text:?}: expected a rate with its unit, such as 10mbit or 1mbps (bytes), \
             8bit to 8000tbit"
        ))
    })
}

/// Reads the rate of a link, the argument `rate`, which may be None.
pub(crate) fn optional_rate(text: Option<&str>) -> PyResult<Option<Rate>> {
    text.map(|text| rate(text, "rate")).transpose()
}
