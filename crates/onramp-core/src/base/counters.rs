//! What qdiscs, classes and actions count.

use crate::base::show::Out;

/// What passed a qdisc or a class (`gnet_stats_basic`, `gnet_stats_queue`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that left it.
    pub bytes: u64,
    /// Packets that left it.
    pub packets: u64,
    /// Packets dropped in it, or below it.
    pub drops: u64,
    /// How often it held packets back, or met its limit; each kind says when.
    pub overlimits: u64,
    /// Packets that the device did not take at once.
    pub requeues: u64,
}

/// Names and values of a kind's own statistics: see [`Qdisc::stats`](crate::qdisc::Qdisc::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra(pub Vec<(&'static str, i64)>);

impl Extra {
    /// The value of `name`; zero if there is none.
    #[must_use]
    pub fn get(&self, name: &str) -> i64 {
        self.find(name).unwrap_or(0)
    }

    /// The value of `name`, if there is one.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<i64> {
        self.0.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    /// The value of `name`, which is never negative; zero if there is none.
    pub(crate) fn count(&self, name: &str) -> u64 {
        u64::try_from(self.get(name)).unwrap_or(0)
    }

    /// Writes ` NAME VALUE`, behind `before`.
    pub(crate) fn show(&self, out: &mut Out, before: &str, name: &'static str) {
        let count = self.count(name);
        out.uint(name, count, format_args!("{before}{name} {count}"));
    }

    /// The same, unless the value is zero; gives whether it is not.
    pub(crate) fn show_some(&self, out: &mut Out, before: &str, name: &'static str) -> bool {
        let some = self.count(name) > 0;
        if some {
            self.show(out, before, name);
        }
        some
    }
}
