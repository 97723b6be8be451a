//! The filters of an `ingress` or `clsact` for one way: those that each packet meets when it comes
//! in at the device, or those that it meets before it enters the root qdisc.
//!
//! Source: behaviour of Linux 7.2 `net/core/dev.c` (`tc_run`) and `net/sched/sch_ingress.c`,
//! compared filter by filter.
//! Differs: Linux writes the class of a packet to a field that no qdisc here reads, so the class
//! has no effect.
//! Invariant: each packet that meets a filter counts once, whether it is dropped or not.

use onramp_queue::{DropReason, Packet, PacketList};

use crate::base::{Counters, Handle, Instant};
use crate::filter::{Decision, FilterEdit, FilterSpec, Filters, Way};
use crate::sched::{Kind, QdiscView, segments};

/// The handle of each `ingress` and `clsact`, and the place where it stands, as Linux numbers them.
const HANDLE: Handle = Handle::new(0xFFFF, 0);
pub(crate) const PLACE: Handle = Handle::new(0xFFFF, 0xFFF1);

/// The filters for one way, with what they have counted.
#[derive(Debug)]
pub(crate) struct Front {
    way: Way,
    filters: Filters,
    counters: Counters,
}

impl Front {
    /// Creates the place for filters about packets that go this way, with these filters.
    pub(crate) fn new<'a>(way: Way, specs: impl Iterator<Item = &'a FilterSpec>) -> Self {
        let mut filters = Filters::default();
        filters.set(specs);
        Self { way, filters, counters: Counters::default() }
    }

    /// Whether a packet would meet any filter.
    #[inline]
    pub(crate) fn is_met(&self) -> bool {
        self.filters.are_met()
    }

    /// Asks the filters about a packet. Returns false if they drop it; the packet then carries the
    /// drop reason.
    pub(crate) fn passes(&mut self, pkt: &mut Packet, now: Instant) -> bool {
        if !self.is_met() {
            return true;
        }
        self.counters.bytes += u64::from(self.way.len(pkt));
        self.counters.packets += u64::from(segments::count(pkt));
        let passes = self.filters.walk(self.way, pkt, now) != Decision::Drop;
        if !passes {
            self.counters.drops += 1;
            pkt.drop_reason = Some(DropReason::Filter);
        }
        passes
    }

    /// Returns the packet if the filters let it pass. Otherwise appends it to `stopped`.
    pub(crate) fn admit(
        &mut self,
        mut pkt: Packet,
        now: Instant,
        stopped: &mut PacketList,
    ) -> Option<Packet> {
        if self.passes(&mut pkt, now) {
            return Some(pkt);
        }
        stopped.push_back(pkt);
        None
    }

    /// Removes and adds filters. All others keep their counters and the state of their actions.
    pub(crate) fn edit(&mut self, edit: FilterEdit) {
        self.filters.edit(edit);
    }

    /// Returns the filters, in the order in which they are asked, with their counters.
    pub(crate) fn specs(&self) -> impl Iterator<Item = &FilterSpec> {
        self.filters.specs()
    }

    /// Whether `other` has the same filters.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let place = |filter: &FilterSpec| filter.place();
        self.specs().map(place).eq(other.specs().map(place))
            && self.specs().zip(other.specs()).all(|(one, other)| one.is_same(other))
    }

    /// Adds what was counted here to the view of the `ingress` or `clsact` among `views`, and
    /// appends this view, of kind `kind`, if it is missing.
    pub(crate) fn add_to(&self, kind: &'static Kind, views: &mut Vec<QdiscView>) {
        let mut own = QdiscView::new(HANDLE, kind);
        (own.parent, own.counters) = (Some(PLACE), self.counters);
        if self.counters.drops > 0 {
            own.drops.push((DropReason::Filter, self.counters.drops));
        }
        match views.iter_mut().find(|view| view.parent == own.parent) {
            Some(view) => view.add_counts(&own),
            None => views.push(own),
        }
    }
}
