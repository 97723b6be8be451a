//! What a running tree says of itself, and how `tc` shows it.

use crate::base::params::Values;
use crate::base::show::Out;
use crate::base::stats::BUCKETS;
use crate::base::{Counters, Extra, Handle};
use crate::sched::{Backlog, Kind};
use onramp_queue::DropReason;

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
