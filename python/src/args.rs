//! Reads the arguments of calls. Each error names the argument, and says what would be right.
//!
//! Each function here reads the argument of the same name.

use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyMemoryView, PyString};

use crate::errors;

/// Longest number that an error repeats, in digits.
const DIGITS_MAX: usize = 40;

/// Returns the name of the type of `given`, for an error.
fn kind(given: &Bound<'_, PyAny>) -> String {
    given.get_type().name().map_or_else(|_| "another type".to_owned(), |name| name.to_string())
}

/// Returns the error for an argument that should be a whole number between two others.
#[cold]
fn no_number(given: &Bound<'_, PyAny>, name: &str, ends: (u64, u64), error: &PyErr) -> PyErr {
    let text = format!("expected a whole number from {} to {}", ends.0, ends.1);
    if !error.is_instance_of::<PyOverflowError>(given.py()) {
        return PyTypeError::new_err(format!("{name}: {text}, not {}", kind(given)));
    }
    // Python writes no number of thousands of digits.
    let shown = given.str().map_or_else(|_| String::new(), |shown| shown.to_string());
    PyOverflowError::new_err(match shown.len() {
        1..=DIGITS_MAX => format!("{name}: {shown}: {text}"),
        _ => format!("{name}: the number does not fit: {text}"),
    })
}

/// Defines functions that read whole numbers, and, where a second name stands, one that reads the
/// number or None.
macro_rules! numbers {
    ($($name:ident $(, $or_none:ident)?: $type:ty = $least:literal to $most:expr;)*) => { $(
        pub(crate) fn $name(given: &Bound<'_, PyAny>) -> PyResult<$type> {
            let ends = ($least, $most.into());
            given.extract().map_err(|error| no_number(given, stringify!($name), ends, &error))
        }

        $(pub(crate) fn $or_none(given: &Bound<'_, PyAny>) -> PyResult<Option<$type>> {
            if given.is_none() { Ok(None) } else { $name(given).map(Some) }
        })?
    )* };
}

numbers! {
    cookie: u64 = 0 to u64::MAX;
    credits, credits_or_none: u32 = 1 to 32_768_u32;
    ecn: u8 = 0 to 3_u32;
    flow, flow_or_none: u64 = 0 to u64::MAX;
    length: u32 = 1 to u32::MAX;
    mark: u32 = 0 to u32::MAX;
    mtu, mtu_or_none: u32 = 1 to u32::MAX;
    now, now_or_none: u64 = 0 to u64::MAX;
    port: usize = 0 to 65_534_u32;
    ports: usize = 1 to 65_535_u32;
    priority: u32 = 0 to u32::MAX;
    seed, seed_or_none: u64 = 0 to u64::MAX;
    segment: u16 = 0 to u16::MAX;
    txtime_ns, txtime_ns_or_none: u64 = 0 to u64::MAX;
}

/// Defines functions that read a text or None.
macro_rules! texts {
    ($($name:ident: $example:literal;)*) => { $(
        pub(crate) fn $name(given: &Bound<'_, PyAny>) -> PyResult<Option<PyBackedStr>> {
            given.extract().map_err(|_| {
                PyTypeError::new_err(format!(
                    "{}: expected a text, such as {:?}, not {}",
                    stringify!($name), $example, kind(given)
                ))
            })
        }
    )* };
}

texts! {
    pacing_rate: "2mbit";
    rate: "10mbit";
    source: "127.0.0.1";
}

/// Reads a time in seconds, or None.
fn seconds(given: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<Duration>> {
    let expected = "expected seconds, 0 or more, and less than 1.8e19";
    let time: Option<f64> = given
        .extract()
        .map_err(|_| PyTypeError::new_err(format!("{name}: {expected}, not {}", kind(given))))?;
    time.map(|time| {
        // `Debug` writes a large number with its exponent.
        Duration::try_from_secs_f64(time)
            .map_err(|_| errors::value(format!("{name}: {time:?}: {expected}")))
    })
    .transpose()
}

pub(crate) fn credit_time(given: &Bound<'_, PyAny>) -> PyResult<Option<Duration>> {
    seconds(given, "credit_time")
}

pub(crate) fn txtime(given: &Bound<'_, PyAny>) -> PyResult<Option<Duration>> {
    seconds(given, "txtime")
}

/// The bytes of a payload.
pub(crate) struct Payload(pub(crate) PyBackedBytes);

impl<'a, 'py> FromPyObject<'a, 'py> for Payload {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match given.extract::<PyBackedBytes>() {
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => copied(&given),
        }
    }
}

/// Copies the bytes of any other object that lends its memory, such as a `memoryview`.
#[cold]
fn copied(given: &Bound<'_, PyAny>) -> PyResult<Payload> {
    let view = PyMemoryView::from(given).map_err(|_| {
        let kind = kind(given);
        let text = format!("payloads: expected bytes or another bytes-like object, not {kind}");
        PyTypeError::new_err(text)
    })?;
    let bytes = view.call_method0("tobytes")?.cast_into::<PyBytes>()?;
    Ok(Payload(bytes.into()))
}

pub(crate) fn payloads(given: &Bound<'_, PyAny>) -> PyResult<Vec<Payload>> {
    given.extract().map_err(|error: PyErr| {
        let is_one = given.is_instance_of::<PyString>() || PyMemoryView::from(given).is_ok();
        if !is_one && given.try_iter().is_ok() {
            return error;
        }
        let kind = kind(given);
        PyTypeError::new_err(format!("payloads: expected a list of payloads, not {kind}"))
    })
}
