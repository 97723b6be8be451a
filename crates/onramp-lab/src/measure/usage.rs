//! What a process or a thread costs.

use std::io;

use nix::sys::resource::{UsageWho, getrusage};
use rustix::time::{ClockId, clock_gettime};

use crate::Error;

/// Costs of the process up to some moment. Only differences mean something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// User and system time of the process, nanoseconds.
    pub process_ns: u64,
    /// Context switches because a thread waited.
    pub voluntary: u64,
    /// Context switches because another thread's turn had come.
    pub involuntary: u64,
}

impl Usage {
    /// Up to now.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] where the kernel does not say.
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

    /// From `earlier` to `self`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            process_ns: self.process_ns.saturating_sub(earlier.process_ns),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }

    /// Context switches of both kinds.
    #[must_use]
    pub fn switches(self) -> u64 {
        self.voluntary + self.involuntary
    }
}

/// User and system time of all threads of the process, those that ended included, nanoseconds.
/// Threads that run on other processors just now count up to their last timer tick.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    cpu_ns(ClockId::ProcessCPUTime)
}

/// User and system time of the calling thread, nanoseconds.
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
