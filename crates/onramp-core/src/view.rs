//! What a running tree says of itself, and how `tc` shows it.

use crate::Handle;
mod list;
mod whole;

use crate::params::Values;
use crate::qdisc::{Backlog, Kind};
use crate::show::Out;
use crate::stats::BUCKETS;
use onramp_queue::DropReason;

pub use self::list::{Listed, Query};
pub use self::whole::{mq, whole};

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

/// A qdisc of a running tree.
#[derive(Clone, Debug)]
pub struct QdiscView {
    /// Its handle; `0:` of a default that nobody named.
    pub handle: Handle,
    /// The class it stands below; none: it is the root.
    pub parent: Option<Handle>,
    /// Its kind.
    pub kind: &'static Kind,
    /// What passed.
    pub counters: Counters,
    /// What is held.
    pub backlog: Backlog,
    /// Drops by reason.
    pub drops: Vec<(DropReason, u64)>,
    /// Nanoseconds from push to dequeue, by powers of two; none if nobody measures.
    pub sojourn_ns: Option<Box<[u64; BUCKETS]>>,
    /// Statistics of its kind.
    pub extra: Extra,
    /// Its classes.
    pub classes: Vec<ClassView>,
}

/// A class of a running tree.
#[derive(Clone, Debug)]
pub struct ClassView {
    /// Its name.
    pub handle: Handle,
    /// The class above; none: the qdisc.
    pub parent: Option<Handle>,
    /// The qdisc below, by its major number.
    pub leaf: Option<u16>,
    /// What passed.
    pub counters: Counters,
    /// What is held.
    pub backlog: Backlog,
    /// Statistics of its kind.
    pub extra: Extra,
}

/// A flow that a qdisc lists as if it were a class: see
/// [`Qdisc::flows`](crate::qdisc::Qdisc::flows).
#[derive(Clone, Copy, Debug)]
pub struct FlowView<'a> {
    /// Its number, from 1 on.
    pub minor: u16,
    /// What is held.
    pub backlog: Backlog,
    /// Packets dropped in it.
    pub drops: u64,
    /// How often it met a limit, where its qdisc counts it.
    pub overlimits: u64,
    /// Statistics of its kind: names and values.
    pub extra: &'a [(&'static str, i64)],
}

/// How `tc` shows a kind.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// The options of `tc qdisc show`, behind `refcnt 2 `.
    pub options: fn(&Values<'_>, &Extra, &mut Out),
    /// What `tc -s qdisc show` has below the common statistics.
    pub extra: fn(&Extra, &mut Out),
    /// The options of `tc class show`.
    pub class: fn(&Values<'_>, &Extra, &mut Out),
    /// What `tc -s class show` has below the common statistics.
    pub class_extra: fn(&Extra, &mut Out),
}

impl Shown {
    /// As the table of parameters says; no statistics of its own.
    pub const TABLE: Self = Self {
        options: |values, _, out| values.show(out),
        extra: |_, _| {},
        class: |values, _, out| values.show(out),
        class_extra: |_, _| {},
    };
}

#[cfg(test)]
mod tests;
