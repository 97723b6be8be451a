//! Counters of qdiscs, classes and actions.

use crate::base::show::Out;

/// What a qdisc or a class counts of the packets that passed it (`gnet_stats_basic`,
/// `gnet_stats_queue`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of the packets that left the qdisc or class.
    pub bytes: u64,
    /// Number of packets that left the qdisc or class.
    pub packets: u64,
    /// Number of packets dropped in the qdisc or class, or below it.
    pub drops: u64,
    /// How often the qdisc or class held packets back or met its limit. Each kind of qdisc defines
    /// which of these events it counts.
    pub overlimits: u64,
    /// Number of packets that the device refused when they were first offered, and that were kept
    /// for later.
    pub requeues: u64,
}

/// Names and values of the statistics that only one kind of qdisc has: see
/// [`Qdisc::stats`](crate::qdisc::Qdisc::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra(pub Vec<(&'static str, i64)>);

impl Extra {
    /// Returns the value of the statistic `name`, or zero if there is no such statistic.
    #[must_use]
    pub fn get(&self, name: &str) -> i64 {
        self.find(name).unwrap_or(0)
    }

    /// Returns the value of the statistic `name`, or `None` if there is no such statistic.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<i64> {
        self.0.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    /// Returns the value of the statistic `name`, or zero if the value is negative or there is no
    /// such statistic.
    pub(crate) fn count(&self, name: &str) -> u64 {
        u64::try_from(self.get(name)).unwrap_or(0)
    }

    /// Prints the text `before`, then the statistic `name` as `NAME VALUE`.
    pub(crate) fn show(&self, out: &mut Out, before: &str, name: &'static str) {
        let count = self.count(name);
        out.uint(name, count, format_args!("{before}{name} {count}"));
    }

    /// Prints the text `before`, then the statistic `name` as `NAME VALUE`, unless the value is
    /// zero. Returns whether the statistic was printed.
    pub(crate) fn show_some(&self, out: &mut Out, before: &str, name: &'static str) -> bool {
        let some = self.count(name) > 0;
        if some {
            self.show(out, before, name);
        }
        some
    }
}

impl Counters {
    /// Adds what `other` has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.packets += other.packets;
        self.drops += other.drops;
        self.overlimits += other.overlimits;
        self.requeues += other.requeues;
    }
}
