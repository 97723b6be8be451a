//! The processors of the simulated machine.

use std::io;

use onramp_machine::{hook, thread};

use crate::Error;

/// Returns all processors of the machine; none outside a simulation.
///
/// # Errors
///
/// None: only on the real machine the kernel may refuse to tell.
pub fn allowed() -> Result<Vec<usize>, Error> {
    Ok((0..usize::from(hook::processors().unwrap_or(0))).collect())
}

/// Binds the calling thread to processor `cpu`.
///
/// # Errors
///
/// [`Error::Pin`] if the machine has no such processor.
pub fn to(cpu: usize) -> Result<(), Error> {
    let bound = thread::pin(cpu);
    bound.then_some(()).ok_or_else(|| Error::Pin(cpu, io::Error::other("there is none")))
}

/// Returns the number of the processor on which the calling thread runs at the moment.
#[must_use]
#[inline]
pub fn current() -> usize {
    hook::processor().map_or(0, usize::from)
}
