//! Views: descriptions of the qdiscs and classes of a running tree, with their counters at one
//! moment.

use crate::base::stats::BUCKETS;
use crate::base::{Counters, Extra, Handle};
use crate::sched::call::Backlog;
use crate::sched::kind::Kind;
use onramp_queue::DropReason;

/// A qdisc of a running tree, with its counters at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QdiscView {
    /// Handle of the qdisc. It is `0:` for a default qdisc that no command named.
    pub handle: Handle,
    /// Class below which the qdisc stands, or `None` for the root.
    pub parent: Option<Handle>,
    /// Kind of the qdisc.
    pub kind: &'static Kind,
    /// What the qdisc has counted of the packets that passed it.
    pub counters: Counters,
    /// How many packets and bytes the qdisc holds.
    pub backlog: Backlog,
    /// Number of dropped packets for each drop reason that occurred.
    pub drops: Vec<(DropReason, u64)>,
    /// Histogram of the sojourn times of packets (nanoseconds from push to dequeue), by powers of
    /// two, or `None` if sojourn times are not measured.
    pub sojourn_ns: Option<Box<[u64; BUCKETS]>>,
    /// Statistics that only this kind of qdisc has.
    pub extra: Extra,
    /// Classes of the qdisc.
    pub classes: Vec<ClassView>,
}

/// A class of a running tree, with its counters at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClassView {
    /// Handle of the class.
    pub handle: Handle,
    /// Class below which this class stands, or `None` if it stands below the qdisc itself.
    pub parent: Option<Handle>,
    /// Major number of the qdisc below the class, or `None` if the class has none.
    pub leaf: Option<u16>,
    /// What the class has counted of the packets that passed it.
    pub counters: Counters,
    /// How many packets and bytes the class holds.
    pub backlog: Backlog,
    /// Statistics that only classes of this kind of qdisc have.
    pub extra: Extra,
}

impl QdiscView {
    /// Returns a view of a root qdisc that holds no packet and whose counters are zero. Use it to
    /// test code that reads views: set the fields that the test needs.
    #[must_use]
    pub fn new(handle: Handle, kind: &'static Kind) -> Self {
        Self {
            handle,
            parent: None,
            kind,
            counters: Counters::default(),
            backlog: Backlog::default(),
            drops: Vec::new(),
            sojourn_ns: None,
            extra: Extra::default(),
            classes: Vec::new(),
        }
    }

    /// Adds what another view of the same qdisc has counted of the packets that passed it or wait
    /// in it.
    pub(crate) fn add_counts(&mut self, other: &Self) {
        self.counters.add(&other.counters);
        self.backlog.packets += other.backlog.packets;
        self.backlog.bytes += other.backlog.bytes;
        for (reason, n) in &other.drops {
            match self.drops.iter_mut().find(|(known, _)| known == reason) {
                Some((_, sum)) => *sum += n,
                None => self.drops.push((*reason, *n)),
            }
        }
        if let Some(theirs) = &other.sojourn_ns {
            let ours = self.sojourn_ns.get_or_insert_with(|| Box::new([0; BUCKETS]));
            ours.iter_mut().zip(theirs.iter()).for_each(|(sum, n)| *sum += n);
        }
    }
}

impl ClassView {
    /// Returns a view of a class without a parent class, which holds no packet and whose counters
    /// are zero. Use it to test code that reads views.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Self {
            handle,
            parent: None,
            leaf: None,
            counters: Counters::default(),
            backlog: Backlog::default(),
            extra: Extra::default(),
        }
    }
}
