//! Reads trees of qdiscs that a Python program describes in lines of `tc`.

use onramp::{Kinds, Line, Rate, Setup, Spec};
use pyo3::prelude::*;

use crate::errors;

/// The name of the device in lines that name none.
const DEVICE: &str = "link";
/// The highest rate of a link in bytes per second, as in `tc`.
const RATE_MAX: u64 = 1_000_000_000_000_000;

/// Reads the description of a tree: a text of lines of `tc`, a list of such lines, or the
/// description of one qdisc, such as `fq_codel target 2ms`, which gets the handle `1:`.
pub(crate) fn setup(given: &Bound<'_, PyAny>) -> PyResult<Setup> {
    let lines = match given.extract::<String>() {
        Ok(text) => match single(&text)? {
            Some(line) => vec![line],
            None => text.lines().map(str::to_owned).collect(),
        },
        Err(_) => given.extract::<Vec<String>>()?,
    };
    let mut setup = Setup::default();
    let count = lines.len();
    for (number, line) in (1..).zip(&lines) {
        if !line.split('#').next().unwrap_or_default().trim().is_empty() {
            apply(&mut setup, line).map_err(|text| match count {
                1 => errors::value(text),
                _ => errors::value(format!("line {number}: {text}")),
            })?;
        }
    }
    setup.with_root().map_err(errors::config)?;
    Ok(setup)
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
    let plain = line.split('#').next().unwrap_or_default();
    Line::from(plain).on(setup.device().unwrap_or(DEVICE))
}

/// Applies a line to the description of a tree. The error says what is wrong with the line.
pub(crate) fn apply(setup: &mut Setup, line: &str) -> Result<(), String> {
    let line = whole(setup, line);
    setup.apply_leaving(&line).map_err(|error| error.to_string())
}

/// Reads the rate of a link.
pub(crate) fn rate(text: &str) -> PyResult<Rate> {
    let rate = text.parse::<Rate>().ok().filter(|rate| {
        (1..=RATE_MAX).contains(&rate.as_bytes_per_second()) && text.parse::<f64>().is_err()
    });
    rate.ok_or_else(|| {
        errors::value(format!(
            "rate: {text:?}: expected a rate with its unit, such as 10mbit or 1mbps (bytes), 8bit \
             to 8000tbit"
        ))
    })
}
