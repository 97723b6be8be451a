//! Statistics of locks, in the columns of `perf lock contention` and of lockmeter (2004).
//!
//! Every acquisition of a lock is counted, and every wait for a lock is timed. The time for which a
//! lock is held is measured for one acquisition in [`HOLD_PERIOD`], because reading the clock each
//! time would make threads hold the lock longer.

use std::fmt::Write;

use crate::measure::{Sampler, stopwatch};

/// Sampling period: the time for which the lock is held is measured for one acquisition out of
/// every 16.
pub const HOLD_PERIOD: u64 = 16;

/// One thread's statistics of one lock. If they are switched off, recording costs only a branch.
#[derive(Debug)]
pub struct LockNotes {
    on: bool,
    sampler: Sampler,
    counts: LockCounts,
}

/// Statistics of one lock, added up over one or several threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCounts {
    /// Number of times that the lock was taken.
    pub acquired: u64,
    /// Number of times that a thread had to wait for the lock, including waits that ended without
    /// the lock because the experiment stopped.
    pub contended: u64,
    /// Sum of all waits for the lock, nanoseconds.
    pub wait_total_ns: u64,
    /// The longest wait for the lock, nanoseconds.
    pub wait_max_ns: u64,
    /// Number of acquisitions for which the time of holding the lock was measured.
    pub hold_samples: u64,
    /// Sum of the measured times for which the lock was held, nanoseconds.
    pub hold_total_ns: u64,
    /// The longest measured time for which the lock was held, nanoseconds.
    pub hold_max_ns: u64,
}

impl LockNotes {
    /// Makes statistics that record nothing.
    #[must_use]
    pub fn off() -> Self {
        Self { on: false, sampler: Sampler::one_in(HOLD_PERIOD, 0), counts: LockCounts::default() }
    }

    /// Makes statistics that record everything; `seed` decides for which acquisitions the time of
    /// holding the lock is measured.
    #[must_use]
    pub fn on(seed: usize) -> Self {
        Self { on: true, sampler: Sampler::one_in(HOLD_PERIOD, seed), ..Self::off() }
    }

    /// Makes statistics that record everything if `on` is true, and nothing otherwise.
    #[must_use]
    pub fn new(on: bool, seed: usize) -> Self {
        if on { Self::on(seed) } else { Self::off() }
    }

    /// Returns the number of times that the lock was taken.
    #[must_use]
    pub fn acquired(&self) -> u64 {
        self.counts.acquired
    }

    /// Returns the statistics recorded so far.
    #[must_use]
    pub fn counts(&self) -> LockCounts {
        self.counts
    }

    /// Discards the statistics recorded so far.
    pub fn clear(&mut self) {
        self.counts = LockCounts::default();
    }

    /// Records that a thread begins to wait for the lock. Returns the time; `None` if the
    /// statistics are switched off.
    #[inline]
    pub(crate) fn wait_begins(&self) -> Option<u64> {
        self.on.then(|| stopwatch().0)
    }

    /// Records the end of a wait for the lock, whether or not the thread got the lock.
    #[inline]
    pub(crate) fn wait_ends(&mut self, from: Option<u64>) {
        let Some(from) = from else { return };
        let waited = stopwatch().0.saturating_sub(from);
        self.counts.contended += 1;
        self.counts.wait_total_ns += waited;
        self.counts.wait_max_ns = self.counts.wait_max_ns.max(waited);
    }

    /// Records that the lock was taken. Returns the time if the time of holding the lock is to be
    /// measured for this acquisition.
    #[inline]
    pub(crate) fn taken(&mut self) -> Option<u64> {
        if !self.on {
            return None;
        }
        self.counts.acquired += 1;
        self.sampler.picks().then(|| stopwatch().0)
    }

    /// Records that the lock was released, if `since` (the time at which it was taken) is known.
    #[inline]
    pub(crate) fn let_go(&mut self, since: Option<u64>) {
        let Some(since) = since else { return };
        let held = stopwatch().0.saturating_sub(since);
        self.counts.hold_samples += 1;
        self.counts.hold_total_ns += held;
        self.counts.hold_max_ns = self.counts.hold_max_ns.max(held);
    }
}

impl LockCounts {
    /// Adds the statistics of the same lock from another thread or another round.
    pub fn merge(&mut self, other: &Self) {
        self.acquired += other.acquired;
        self.contended += other.contended;
        self.wait_total_ns += other.wait_total_ns;
        self.wait_max_ns = self.wait_max_ns.max(other.wait_max_ns);
        self.hold_samples += other.hold_samples;
        self.hold_total_ns += other.hold_total_ns;
        self.hold_max_ns = self.hold_max_ns.max(other.hold_max_ns);
    }
}

/// A row of a table of locks.
#[derive(Clone, Debug)]
pub struct LockRow {
    /// Name of the lock: `root`, `busylock`, ...
    pub name: String,
    /// Kind of lock: `spinlock`, `mutex`, ...
    pub kind: &'static str,
    /// Statistics of the lock.
    pub counts: LockCounts,
    /// Length of the time to which the statistics refer, nanoseconds.
    pub window_ns: u64,
}

impl LockRow {
    /// Returns the mean wait for the lock of those threads that had to wait, nanoseconds.
    #[must_use]
    pub fn wait_avg_ns(&self) -> f64 {
        ratio(self.counts.wait_total_ns as f64, self.counts.contended)
    }

    /// Returns the mean time for which a thread held the lock, nanoseconds.
    #[must_use]
    pub fn hold_mean_ns(&self) -> f64 {
        ratio(self.counts.hold_total_ns as f64, self.counts.hold_samples)
    }

    /// Returns the share of the time in which some thread held the lock, estimated from the mean
    /// time for which a thread held it.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        let held = self.hold_mean_ns() * self.counts.acquired as f64;
        ratio(held, self.window_ns).min(1.0)
    }

    /// Returns the share of the attempts to take the lock in which the thread had to wait.
    #[must_use]
    pub fn contended_share(&self) -> f64 {
        // A wait that ends without the lock counts as contended, but not as acquired.
        let attempts = self.counts.acquired.max(self.counts.contended);
        ratio(self.counts.contended as f64, attempts)
    }

    /// Returns the time that threads spent waiting for the lock, divided by the time of `cpus`
    /// processors. The result can exceed 1 if waiting threads sleep or wait for a processor.
    #[must_use]
    pub fn wait_share(&self, cpus: usize) -> f64 {
        ratio(self.counts.wait_total_ns as f64, self.window_ns * cpus as u64)
    }
}

fn ratio(value: f64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { value / of as f64 }
}

/// Returns the table of `perf lock contention`: one row for each lock that threads waited for; the
/// lock with the longest total wait comes first.
#[must_use]
pub fn perf_table(rows: &[LockRow]) -> String {
    let mut rows: Vec<_> = rows.iter().filter(|row| row.counts.contended > 0).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.counts.wait_total_ns));
    let mut text =
        " contended   total wait     max wait     avg wait         type   where\n".to_owned();
    for row in rows {
        let counts = &row.counts;
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "{:>10} {:>12} {:>12} {:>12} {:>12}   {}",
            counts.contended,
            time(counts.wait_total_ns as f64),
            time(counts.wait_max_ns as f64),
            time(row.wait_avg_ns()),
            row.kind,
            row.name
        );
    }
    text
}

/// Returns the table of locks in the layout that lockmeter printed in 2004.
#[must_use]
pub fn lockmeter_table(rows: &[LockRow], cpus: usize) -> String {
    let mut text = concat!(
        "SPINLOCKS         HOLD                    WAIT\n",
        "  UTIL    CON    MEAN(   MAX )          MEAN(   MAX )(% CPU)   NOWAIT   SPIN  NAME\n"
    )
    .to_owned();
    for row in rows {
        let (spin, counts) = (row.contended_share(), &row.counts);
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "{:>6} {:>6} {:>8}({:>8}) {:>8}({:>8})({:>6}) {:>6} {:>6}  {}",
            percent(row.utilisation()),
            percent(spin),
            short(row.hold_mean_ns()),
            short(counts.hold_max_ns as f64),
            short(row.wait_avg_ns()),
            short(counts.wait_max_ns as f64),
            percent(row.wait_share(cpus)),
            percent(1.0 - spin),
            percent(spin),
            row.name
        );
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// Formats a time with two decimals and a unit, as perf does.
#[must_use]
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Formats a time in whole units, as lockmeter does; values below 10 get one decimal.
fn short(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => return format!("{ns:.0}ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    if value < 10.0 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, wait_total_ns: u64) -> LockRow {
        let counts = LockCounts {
            acquired: 1_000,
            contended: 250,
            wait_total_ns,
            wait_max_ns: 162_470_000,
            hold_samples: 10,
            hold_total_ns: 5_000,
            hold_max_ns: 1_397_000,
        };
        LockRow { name: name.to_owned(), kind: "spinlock", counts, window_ns: 1_000_000 }
    }

    #[test]
    fn figures_of_known_counts() {
        let row = row("root", 500_000);
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got} is not {want}");
        near(row.wait_avg_ns(), 2_000.0);
        near(row.hold_mean_ns(), 500.0);
        near(row.utilisation(), 0.5);
        near(row.contended_share(), 0.25);
        near(row.wait_share(2), 0.25);
        let nothing = LockRow { counts: LockCounts::default(), ..row };
        near(nothing.wait_avg_ns() + nothing.utilisation() + nothing.contended_share(), 0.0);
    }

    #[test]
    fn the_table_of_perf() {
        let quiet = LockRow { counts: LockCounts::default(), ..row("quiet", 0) };
        let rows = [row("busylock", 9_570_000), quiet, row("root", 6_790_000_000)];
        let table = perf_table(&rows);
        let lines: Vec<_> = table.lines().collect();
        let heading = " contended   total wait     max wait     avg wait         type   where";
        assert_eq!(lines[0], heading);
        let first = "       250       6.79 s    162.47 ms     27.16 ms     spinlock   root";
        assert_eq!(lines[1], first, "the longest total wait first");
        assert!(lines[2].ends_with("spinlock   busylock"), "{}", lines[2]);
        assert_eq!(lines.len(), 3, "nobody waited for the third");
    }

    #[test]
    fn the_table_of_lockmeter() {
        let table = lockmeter_table(&[row("root", 500_000)], 2);
        let last = table.lines().last().expect("a row");
        let want =
            " 50.0%  25.0%    500ns(   1.4ms)    2.0us(   162ms)( 25.0%)  75.0%  25.0%  root";
        assert_eq!(last, want);
    }

    #[test]
    fn notes_add_up() {
        let mut notes = LockNotes::on(1);
        for _ in 0..1_000 {
            let since = notes.taken();
            notes.let_go(since);
        }
        let from = notes.wait_begins();
        notes.wait_ends(from);
        let counts = notes.counts();
        assert_eq!((counts.acquired, counts.contended), (1_000, 1));
        assert!((20..200).contains(&counts.hold_samples), "{counts:?}");
        let mut sum = counts;
        sum.merge(&counts);
        assert_eq!((sum.acquired, sum.wait_max_ns), (2_000, counts.wait_max_ns));
        notes.clear();
        assert_eq!(notes.counts(), LockCounts::default());
        let mut off = LockNotes::off();
        assert_eq!((off.wait_begins(), off.taken()), (None, None));
    }
}
