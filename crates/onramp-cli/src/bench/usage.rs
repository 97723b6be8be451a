//! What a run costs: the process's account, and the machine's.

use std::fs;

use anyhow::{Context, Result};
use nix::sys::resource::{Usage as Rusage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Costs up to some moment. Only differences mean something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// User and system time of the process, nanoseconds.
    pub(crate) process_ns: u64,
    /// Time that all processors were not idle, nanoseconds; as coarse as the kernel's tick.
    pub(crate) machine_ns: u64,
    /// Context switches because a thread waited.
    pub(crate) voluntary: u64,
    /// Context switches because another thread's turn had come.
    pub(crate) involuntary: u64,
}

impl Usage {
    /// Up to now.
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

    /// From `earlier` to `self`.
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

/// Source: proc_stat(5). Time stolen by a hypervisor is not ours, and guest time is in user time.
fn machine_ns() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user, nice, system; after idle and iowait: irq, softirq.
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum();
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(busy * (1_000_000_000 / per_second))
}
