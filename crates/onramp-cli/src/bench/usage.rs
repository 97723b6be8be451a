//! The cost of a run: the CPU time and context switches of the process, and the CPU time of the
//! machine.

use std::fs;

use anyhow::{Context, Result};
use nix::sys::resource::{Usage as Rusage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// The costs counted up to some moment. Only the difference between two such values has a meaning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// User and system time of the process, in nanoseconds.
    pub(crate) process_ns: u64,
    /// Time for which all processors together were not idle, in nanoseconds. It is only as precise
    /// as the kernel's tick.
    pub(crate) machine_ns: u64,
    /// Number of context switches because a thread waited.
    pub(crate) voluntary: u64,
    /// Number of context switches because the kernel gave the processor to another thread.
    pub(crate) involuntary: u64,
}

impl Usage {
    /// Returns the costs up to now.
    pub(crate) fn now() -> Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?;
        let switches = |count: i64| u64::try_from(count).unwrap_or(0);
        Ok(Self {
            process_ns: cpu_ns(&usage),
            machine_ns: machine_ns()?,
            voluntary: switches(usage.voluntary_context_switches()),
            involuntary: switches(usage.involuntary_context_switches()),
        })
    }

    /// Returns the costs from `earlier` to `self`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            process_ns: self.process_ns.saturating_sub(earlier.process_ns),
            machine_ns: self.machine_ns.saturating_sub(earlier.machine_ns),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

fn cpu_ns(usage: &Rusage) -> u64 {
    let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    u64::try_from(us).unwrap_or(0) * 1_000
}

/// Returns the busy time of the machine in nanoseconds.
///
/// Source: proc_stat(5). Time stolen by a hypervisor is not included, because it is not this
/// machine's work; guest time is already part of user time.
fn machine_ns() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // The indices of the fields that are added up: user, nice and system, and then irq and softirq,
    // which stand after idle and iowait.
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum();
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(busy * (1_000_000_000 / per_second))
}
