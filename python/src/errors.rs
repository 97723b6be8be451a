//! Turns the errors of Onramp's libraries into exceptions with the same texts.

use std::fmt::Display;
use std::io;

use onramp::{BuildError, ConfigError, PortError, SendError, TrySendError};
use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyValueError};

/// Returns a `ValueError`.
pub(crate) fn value(text: impl Display) -> PyErr {
    PyValueError::new_err(text.to_string())
}

pub(crate) fn config(error: ConfigError) -> PyErr {
    value(error)
}

/// Returns an `OSError`, or the subclass of it that Python has for this number.
fn system(errno: i32, text: impl Display) -> PyErr {
    PyOSError::new_err((errno, text.to_string()))
}

/// Returns the exception for an error of the system, with the text `text`, which names the error.
fn with_errno(error: &io::Error, text: impl Display) -> PyErr {
    let known = match error.kind() {
        io::ErrorKind::NotFound => Some(libc::ENOENT),
        io::ErrorKind::PermissionDenied => Some(libc::EACCES),
        io::ErrorKind::IsADirectory => Some(libc::EISDIR),
        _ => None,
    };
    match error.raw_os_error().or(known) {
        Some(errno) => system(errno, text),
        None => PyOSError::new_err(text.to_string()),
    }
}

/// Returns the exception for an error of reading a file: a `ValueError` if its content is wrong.
pub(crate) fn input(error: io::Error) -> PyErr {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => value(error),
        _ => with_errno(&error, &error),
    }
}

pub(crate) fn build(error: BuildError) -> PyErr {
    match &error {
        BuildError::Resolve(source)
        | BuildError::Runner(source)
        | BuildError::Timer(source)
        | BuildError::Pin(_, source)
        | BuildError::Priority(_, source) => with_errno(source, &error),
        BuildError::Device(device) => with_errno(&device.source, &error),
        _ => value(error),
    }
}

pub(crate) fn port(error: PortError) -> PyErr {
    match error {
        PortError::Config(error) => config(error),
        PortError::Closed => system(libc::ESHUTDOWN, PortError::Closed),
        PortError::Late(_) | PortError::Blocked(_) => system(libc::EBUSY, error),
        other => system(libc::EIO, other),
    }
}

/// Returns the exception for a buffer of the link that the program has to empty first.
pub(crate) fn no_room(text: impl Display) -> PyErr {
    system(libc::ENOBUFS, text)
}

/// Returns the exception for a process that has named too many sources.
pub(crate) fn quota(text: impl Display) -> PyErr {
    system(libc::EDQUOT, text)
}

/// Returns the exception for a datagram that the link refuses for good, or `None` if it only has no
/// room now.
pub(crate) fn send(error: TrySendError) -> Option<PyErr> {
    let (errno, error) = match error {
        TrySendError::Full => return None,
        TrySendError::TooLarge => (libc::EMSGSIZE, SendError::TooLarge),
        TrySendError::Closed => (libc::ESHUTDOWN, SendError::Closed),
        _ => (libc::EIO, SendError::PortDead),
    };
    Some(system(errno, error))
}
