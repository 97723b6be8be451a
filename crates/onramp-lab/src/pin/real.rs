//! The processors of the real machine.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::Error;

/// Returns the processors that the calling thread may use, in ascending order.
///
/// # Errors
///
/// [`Error::Usage`] if the kernel does not tell them.
pub fn allowed() -> Result<Vec<usize>, Error> {
    let set = sched_getaffinity(None)
        .map_err(|error| Error::Usage("the processors allowed", io::Error::from(error)))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Binds the calling thread to processor `cpu`.
///
/// # Errors
///
/// [`Error::Pin`] if the kernel does not allow it.
pub fn to(cpu: usize) -> Result<(), Error> {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        let why = format!("there are at most {} processors", CpuSet::MAX_CPU);
        return Err(Error::Pin(cpu, io::Error::other(why)));
    }
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| Error::Pin(cpu, io::Error::from(error)))
}

/// Returns the number of the processor on which the calling thread runs at the moment.
#[must_use]
#[inline]
pub fn current() -> usize {
    sched_getcpu()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_thread_runs_where_it_is_bound() {
        for cpu in allowed().expect("Linux tells") {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    to(cpu).expect("an allowed processor");
                    assert_eq!(current(), cpu);
                    assert_eq!(allowed().expect("Linux tells"), [cpu]);
                });
            });
        }
    }

    #[test]
    fn a_processor_that_is_not_there_is_refused() {
        let error = to(CpuSet::MAX_CPU).expect_err("too far");
        assert!(error.to_string().contains("processor 1024"), "{error}");
    }
}
