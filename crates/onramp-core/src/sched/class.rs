//! What stands between a qdisc and its children.

use std::fmt::Debug;

use onramp_queue::Packet;

use crate::base::params::Values;
use crate::base::{Counters, Instant};
use crate::sched::qdisc_counters::QdiscCounters;
use crate::sched::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};

/// The classes of a qdisc, by their minor numbers (`Qdisc_class_ops`).
///
/// Whoever calls has checked that what it asks for can be had: see [`Setup`](crate::Setup).
pub trait Classes: Debug {
    /// Adds class `minor` below class `parent` (0 = below the qdisc), or changes it.
    ///
    /// A qdisc whose classes follow from its own parameters has nothing to do.
    fn set(&mut self, _minor: u16, _parent: u16, _values: &Values<'_>, _now: Instant) {}

    /// Removes class `minor`, which has no children but its qdisc, and drops what it holds.
    fn remove(&mut self, _minor: u16, _cx: &mut Cx<'_>) {}

    /// What a leaf class holds; `None` where there is no such class, or it is no leaf.
    fn child(&mut self, minor: u16) -> Option<&mut Child>;

    /// Class `minor` may hold another number of packets than when the qdisc last looked.
    fn recount(&mut self, minor: u16);

    /// Whether the qdisc itself is one of its classes, number 0.
    fn has_root(&self) -> bool {
        false
    }

    /// Names and values of a class's own statistics, as `tc -s class show` prints them.
    fn stats(&self, _minor: u16, _out: &mut dyn FnMut(&'static str, i64)) {}

    /// What passed a class, and what it holds. Most classes count nothing, and show what the qdisc
    /// below them counts.
    fn counters(&mut self, minor: u16) -> (Counters, Backlog) {
        self.child(minor).map_or_else(Default::default, |child| child.counters())
    }

    /// Puts `qdisc` below class `minor`, and drops what its predecessor held.
    fn graft(&mut self, minor: u16, qdisc: Box<dyn Qdisc>, cx: &mut Cx<'_>) {
        if let Some(child) = self.child(minor) {
            child.qdisc.reset(cx);
            child.qdisc = qdisc;
            child.idle = false;
            child.counters.restart();
            self.recount(minor);
        }
    }
}

/// A qdisc below another, and what its parent last saw in it.
#[derive(Debug)]
pub struct Child {
    qdisc: Box<dyn Qdisc>,
    held: Backlog,
    /// Has said that it is empty, and got nothing since.
    idle: bool,
    counters: QdiscCounters,
}

impl Child {
    /// A child that may hold something already.
    #[must_use]
    pub fn new(qdisc: Box<dyn Qdisc>) -> Self {
        let held = qdisc.backlog();
        Self { qdisc, held, idle: false, counters: QdiscCounters::default() }
    }

    /// What it holds.
    #[must_use]
    #[inline]
    pub fn held(&self) -> Backlog {
        self.held
    }

    /// Whether there is no sense in asking it for a packet. Some kinds note the time at which they
    /// were asked in vain first (`qfq`, `red`): so a child that has become empty is asked once.
    #[must_use]
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// Calls `f` with the qdisc, and counts what that drops. As with [`qdisc`](Self::qdisc), the
    /// parent looks afterwards.
    pub(crate) fn visit<R>(
        &mut self,
        cx: &mut Cx<'_>,
        f: impl FnOnce(&mut dyn Qdisc, &mut Cx<'_>) -> R,
    ) -> R {
        let before = cx.drops.len();
        let result = f(&mut *self.qdisc, cx);
        self.counters.count_dropped(before, cx);
        result
    }

    /// The qdisc, and what passed it.
    pub(crate) fn with_counters(&mut self) -> (&mut dyn Qdisc, &QdiscCounters) {
        (&mut *self.qdisc, &self.counters)
    }

    /// What passed the qdisc, and what it holds.
    pub(crate) fn counters(&self) -> (Counters, Backlog) {
        let overlimits = self.qdisc.overlimits();
        (Counters { overlimits, ..self.counters.qdisc() }, self.held)
    }

    /// The same of a class that counts for itself: what left through it, whatever qdisc was below,
    /// and what was dropped as it came.
    pub(crate) fn class_counters(&self) -> (Counters, Backlog) {
        (self.counters.class(), self.held)
    }

    /// The same of a class that counts what left through it, but whose drops are those of the qdisc
    /// below, and its overlimits.
    pub(crate) fn class_over_qdisc(&self) -> (Counters, Backlog) {
        let (below, held) = self.counters();
        let Counters { bytes, packets, .. } = self.counters.class();
        (Counters { bytes, packets, ..below }, held)
    }

    /// The qdisc itself. Whoever changes what it holds calls [`Classes::recount`].
    pub fn qdisc(&mut self) -> &mut dyn Qdisc {
        &mut *self.qdisc
    }

    /// Asks the processor for the qdisc.
    #[inline]
    pub(crate) fn prefetch(&self) {
        onramp_queue::prefetch(&*self.qdisc);
    }

    /// [`Qdisc::prefetch`].
    #[inline]
    pub(crate) fn prefetch_packets(&self) {
        self.qdisc.prefetch();
    }

    /// [`Qdisc::accepts`].
    #[inline]
    #[must_use]
    pub fn accepts(&self, pkt: &Packet) -> bool {
        self.qdisc.accepts(pkt)
    }

    /// [`Qdisc::enqueue`]; keeps `sum`, what the parent holds in all its children.
    #[inline]
    pub fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>, sum: &mut Backlog) -> Verdict {
        let before = cx.drops.len();
        let verdict = self.qdisc.enqueue(pkt, cx);
        self.counters.count_dropped(before, cx);
        if verdict != Verdict::Queued {
            self.counters.refuse();
        }
        self.idle = false;
        self.recount(sum);
        verdict
    }

    /// [`Qdisc::dequeue`]; keeps `sum`.
    #[inline]
    pub fn dequeue(&mut self, cx: &mut Cx<'_>, sum: &mut Backlog) -> Dequeue {
        let before = cx.drops.len();
        let answer = self.qdisc.dequeue(cx);
        self.counters.count_dropped(before, cx);
        if let Dequeue::Ready(pkt) = &answer {
            self.counters.count(pkt, cx);
        }
        self.idle = matches!(answer, Dequeue::Empty);
        self.recount(sum);
        answer
    }

    /// [`Qdisc::peek`]; keeps `sum`: to look may drop.
    #[inline]
    pub fn peek(&mut self, cx: &mut Cx<'_>, sum: &mut Backlog) -> Peek {
        let before = cx.drops.len();
        let answer = self.qdisc.peek(cx);
        self.counters.count_dropped(before, cx);
        self.idle = matches!(answer, Peek::Empty);
        self.recount(sum);
        answer
    }

    /// [`Qdisc::reset`]; keeps `sum`.
    pub fn reset(&mut self, cx: &mut Cx<'_>, sum: &mut Backlog) {
        self.visit(cx, |qdisc, cx| qdisc.reset(cx));
        self.idle = false;
        self.recount(sum);
    }

    /// Looks at what it holds, and corrects `sum` by the difference.
    #[inline]
    pub fn recount(&mut self, sum: &mut Backlog) {
        let now = self.qdisc.backlog();
        sum.packets = sum.packets + now.packets - self.held.packets;
        sum.bytes = sum.bytes + now.bytes - self.held.bytes;
        self.idle &= now.packets == 0;
        self.held = now;
    }
}

#[cfg(test)]
mod tests;
