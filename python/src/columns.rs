//! Takes the columns of packets from numpy arrays, without a copy where the type allows it.

use numpy::{
    Element, PyArray1, PyArrayDescrMethods as _, PyArrayMethods as _, PyReadonlyArray1,
    PyUntypedArray, PyUntypedArrayMethods as _, dtype,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::errors;

/// Returns `given`, anything that numpy can make an array of whole numbers of, as an array of `T`.
/// If `given` is an array of that type already, it is not copied. `count`: how many numbers the
/// array has to have.
pub(crate) fn column<'py, T: Element>(
    name: &str,
    given: &Bound<'py, PyAny>,
    count: Option<usize>,
) -> PyResult<PyReadonlyArray1<'py, T>> {
    let py = given.py();
    let numpy = py.import("numpy")?;
    let given = numpy.call_method1("asarray", (given,))?.cast_into::<PyUntypedArray>()?;
    if given.ndim() != 1 {
        let text = format!("{name}: it has {} dimensions; expected one", given.ndim());
        return Err(errors::value(text));
    }
    if let Some(count) = count.filter(|count| given.len() != *count) {
        let text = format!(
            "{name}: it has {} numbers; expected {count}, one for each packet, as \
                            times_ns has",
            given.len()
        );
        return Err(errors::value(text));
    }
    let kind = given.dtype().kind();
    if !matches!(kind, b'i' | b'u' | b'b') && given.len() > 0 {
        let text = format!(
            "{name}: it has the type {}; expected whole numbers, such as {}",
            given.dtype(),
            dtype::<T>(py)
        );
        return Err(PyTypeError::new_err(text));
    }
    // One piece, and each number at an address that suits it: a copy only if it must be.
    let array = numpy.call_method1("require", (&given, dtype::<T>(py), ["C", "A"]))?;
    if !array.is(&given) {
        let same: bool = numpy.call_method1("array_equal", (&array, &given))?.extract()?;
        if !same {
            let text = format!("{name}: a number does not fit into {}", dtype::<T>(py));
            return Err(errors::value(text));
        }
    }
    Ok(array.cast_into::<PyArray1<T>>()?.try_readonly()?)
}

/// Returns a column that may be missing, as [`column`] does.
pub(crate) fn optional<'py, T: Element>(
    name: &str,
    given: Option<&Bound<'py, PyAny>>,
    count: usize,
) -> PyResult<Option<PyReadonlyArray1<'py, T>>> {
    given.map(|given| column(name, given, Some(count))).transpose()
}
