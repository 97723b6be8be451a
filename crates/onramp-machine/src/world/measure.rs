//! Measurements.

use std::cmp::Reverse;

use super::World;
use crate::report::{HotSite, Report, Times};

impl World {
    /// Begins the measurement at the time `at`.
    pub(crate) fn measure(&mut self, at: u64) {
        self.since = at;
        drop(self.memory.take_sites());
        (self.switches, self.migrations) = (0, 0);
        (self.wakeups, self.timers) = (0, 0);
        let since = self.since;
        for cpu in &mut self.cpus {
            cpu.times = Times::default();
            if cpu.thread.is_none() {
                cpu.clock = cpu.clock.max(since);
            }
        }
    }

    /// Returns what happened from the beginning of the measurement until `now`.
    pub(crate) fn measured(&mut self, now: u64) -> Report {
        let mut times = Times::default();
        for cpu in &mut self.cpus {
            if cpu.thread.is_none() {
                cpu.times.idle += now.saturating_sub(cpu.clock);
                cpu.clock = cpu.clock.max(now);
            }
            times.add(&cpu.times);
        }
        let mut sites: Vec<_> = self.memory.take_sites().into_iter().map(HotSite::new).collect();
        sites.sort_by_key(|site| Reverse(site.stalled));
        Report {
            duration: now - self.since,
            times,
            sites,
            switches: self.switches,
            migrations: self.migrations,
            wakeups: self.wakeups,
            timers: self.timers,
        }
    }
}
