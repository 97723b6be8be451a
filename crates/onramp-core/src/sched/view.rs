//! Views of the qdiscs and classes of a running tree, and how `tc` shows them.

use crate::base::params::Values;
use crate::base::show::Out;
use crate::base::stats::BUCKETS;
use crate::base::{Counters, Extra, Handle};
use crate::sched::{Backlog, Kind};
use onramp_queue::DropReason;

/// A qdisc of a running tree, with its counters at one moment.
#[derive(Clone, Debug)]
pub struct QdiscView {
    /// Handle of the qdisc; `0:` for a default qdisc that no command named.
    pub handle: Handle,
    /// Parent class, or `None` for the root.
    pub parent: Option<Handle>,
    /// Kind of the qdisc.
    pub kind: &'static Kind,
    /// Counts of packets that passed the qdisc.
    pub counters: Counters,
    /// Packets and bytes that the qdisc holds.
    pub backlog: Backlog,
    /// Number of dropped packets for each drop reason that occurred.
    pub drops: Vec<(DropReason, u64)>,
    /// Histogram of the nanoseconds from push to dequeue, by powers of two, or `None` if sojourn
    /// times are not measured.
    pub sojourn_ns: Option<Box<[u64; BUCKETS]>>,
    /// Statistics that only this kind has.
    pub extra: Extra,
    /// Classes of the qdisc.
    pub classes: Vec<ClassView>,
}

/// A class of a running tree, with its counters at one moment.
#[derive(Clone, Debug)]
pub struct ClassView {
    /// Handle of the class.
    pub handle: Handle,
    /// Parent class, or `None` if the parent is the qdisc.
    pub parent: Option<Handle>,
    /// Major number of the qdisc below the class, if any.
    pub leaf: Option<u16>,
    /// Counts of packets that passed the class.
    pub counters: Counters,
    /// Packets and bytes that the class holds.
    pub backlog: Backlog,
    /// Statistics that only classes of this kind have.
    pub extra: Extra,
}

/// A flow that a qdisc lists as if the flow were a class: see
/// [`Qdisc::flows`](crate::qdisc::Qdisc::flows).
#[derive(Clone, Copy, Debug)]
pub struct FlowView<'a> {
    /// Number of the flow, from 1.
    pub minor: u16,
    /// Packets and bytes that the flow holds.
    pub backlog: Backlog,
    /// Number of packets of the flow that were dropped.
    pub drops: u64,
    /// How often the flow met a limit, if the qdisc counts that.
    pub overlimits: u64,
    /// Names and values of statistics that only flows of this kind have.
    pub extra: &'a [(&'static str, i64)],
}

/// How `tc` shows a kind of qdisc and its classes.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Prints the options of `tc qdisc show`, which follow `refcnt 2 `.
    pub options: fn(&Values<'_>, &Extra, &mut Out),
    /// Prints what `tc -s qdisc show` has below the common statistics.
    pub extra: fn(&Extra, &mut Out),
    /// Prints the options of `tc class show`.
    pub class: fn(&Values<'_>, &Extra, &mut Out),
    /// Prints what `tc -s class show` has below the common statistics.
    pub class_extra: fn(&Extra, &mut Out),
}

impl Shown {
    /// Prints the options in the order of the table of parameters, and no statistics of the kind.
    pub const TABLE: Self = Self {
        options: |values, _, out| values.show(out),
        extra: |_, _| {},
        class: |values, _, out| values.show(out),
        class_extra: |_, _| {},
    };
}
