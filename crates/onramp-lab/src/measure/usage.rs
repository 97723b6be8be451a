//! The resources that a process or a thread uses.

use std::io;

use nix::sys::resource::{UsageWho, getrusage};
use rustix::time::{ClockId, clock_gettime};

use crate::Error;

/// Resources that the process has used from its start up to a moment. Only the difference of two
/// such values is meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// User and system time of the process, nanoseconds.
    pub process_ns: u64,
    /// Number of context switches because a thread had to wait.
    pub voluntary: u64,
    /// Number of context switches because the scheduler gave the processor to another thread.
    pub involuntary: u64,
}

impl Usage {
    /// Reads the resources that the process has used up to now.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] if the kernel does not report the used resources.
    pub fn now() -> Result<Self, Error> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)
            .map_err(|error| Error::Usage("the process's account", io::Error::from(error)))?;
        let switches = |count: i64| u64::try_from(count).unwrap_or(0);
        Ok(Self {
            process_ns: process_cpu_ns(),
            voluntary: switches(usage.voluntary_context_switches()),
            involuntary: switches(usage.involuntary_context_switches()),
        })
    }

    /// Returns the resources used between `earlier` and `self`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            process_ns: self.process_ns.saturating_sub(earlier.process_ns),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }

    /// Returns the number of context switches of both kinds (waiting threads and ended time
    /// slices).
    #[must_use]
    pub fn switches(self) -> u64 {
        self.voluntary + self.involuntary
    }
}

/// Returns the user and system time of all threads of the process, nanoseconds. Threads that have
/// ended are included. For a thread that is running on another processor, only the time up to its
/// last timer tick is included.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    cpu_ns(ClockId::ProcessCPUTime)
}

/// Returns the user and system time of the calling thread, nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    cpu_ns(ClockId::ThreadCPUTime)
}

fn cpu_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_in_the_account() {
        let (before, mine) = (Usage::now().expect("Linux tells"), thread_cpu_ns());
        let mut sum = 0_u64;
        while thread_cpu_ns() - mine < 10_000_000 {
            sum = sum.wrapping_mul(31).wrapping_add(1);
        }
        std::hint::black_box(sum);
        let spent = Usage::now().expect("Linux tells").since(before);
        assert!(spent.process_ns >= 10_000_000, "{spent:?}");
    }

    #[test]
    fn differences_and_sums() {
        let usage = |n| Usage { process_ns: n, voluntary: 2 * n, involuntary: 3 * n };
        assert_eq!(usage(7).since(usage(3)), usage(4));
        assert_eq!(usage(4).switches(), 20);
    }
}
