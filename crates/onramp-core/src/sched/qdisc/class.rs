//! The connection between a qdisc and its children.

use std::fmt::Debug;

use onramp_queue::Packet;

use super::Qdisc;
use crate::base::params::Values;
use crate::base::{Counters, Instant};
use crate::sched::call::{Backlog, Cx, Dequeue, Peek, Verdict};
use crate::sched::qdisc_counters::QdiscCounters;

/// The classes of a qdisc, by their minor numbers (`Qdisc_class_ops`).
///
/// Before a call, the caller has checked that the request can be fulfilled: see
/// [`Setup`](crate::Setup).
pub trait Classes: Debug {
    /// Adds class `minor` below class `parent` (0 = below the qdisc), or changes the class if it
    /// exists.
    ///
    /// Does nothing in a qdisc whose classes follow from its own parameters.
    fn set(&mut self, _minor: u16, _parent: u16, _values: &Values<'_>, _now: Instant) {}

    /// Removes class `minor`, which must have no child classes, and drops the packets of its qdisc.
    fn remove(&mut self, _minor: u16, _cx: &mut Cx<'_>) {}

    /// Returns the child of leaf class `minor`, or `None` if there is no such class or the class is
    /// no leaf.
    fn child(&mut self, minor: u16) -> Option<&mut Child>;

    /// Updates the backlog of class `minor`, whose child's packets may have changed without the
    /// qdisc's knowledge.
    fn recount(&mut self, minor: u16);

    /// Whether the qdisc itself is listed as one of its classes, with the number 0.
    fn has_root(&self) -> bool {
        false
    }

    /// Calls `out` with the name and value of each statistic of class `minor` that
    /// `tc -s class show` prints.
    fn stats(&self, _minor: u16, _out: &mut dyn FnMut(&'static str, i64)) {}

    /// Returns the counters and the backlog of class `minor`. Most classes count nothing themselves
    /// and show the counters of the qdisc below them.
    fn counters(&mut self, minor: u16) -> (Counters, Backlog) {
        self.child(minor).map_or_else(Default::default, |child| child.counters())
    }

    /// Puts `qdisc` below class `minor` and drops the packets of the qdisc that stood there.
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

/// A qdisc below another qdisc, with the backlog that the parent saw last.
#[derive(Debug)]
pub struct Child {
    qdisc: Box<dyn Qdisc>,
    held: Backlog,
    /// Whether the qdisc has answered that it is empty, and got no packet since.
    idle: bool,
    counters: QdiscCounters,
}

impl Child {
    /// Creates a child from `qdisc`, which may already hold packets.
    #[must_use]
    pub fn new(qdisc: Box<dyn Qdisc>) -> Self {
        let held = qdisc.backlog();
        Self { qdisc, held, idle: false, counters: QdiscCounters::default() }
    }

    /// Returns the packets and bytes that the child holds.
    #[must_use]
    #[inline]
    pub fn held(&self) -> Backlog {
        self.held
    }

    /// Whether asking the child for a packet is pointless. A child that has become empty is asked
    /// once more, because some kinds (`qfq`, `red`) note the time at which they were first asked in
    /// vain.
    #[must_use]
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// Calls `f` with the qdisc and counts the packets that `f` drops. As after
    /// [`qdisc`](Self::qdisc), the parent must update the backlog afterwards.
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

    /// Returns the qdisc and its counters.
    pub(crate) fn with_counters(&mut self) -> (&mut dyn Qdisc, &QdiscCounters) {
        (&mut *self.qdisc, &self.counters)
    }

    /// Returns the counters and the backlog of the qdisc.
    pub(crate) fn counters(&self) -> (Counters, Backlog) {
        let overlimits = self.qdisc.overlimits();
        (Counters { overlimits, ..self.counters.qdisc() }, self.held)
    }

    /// Returns the counters and the backlog of a class that counts for itself: packets that left
    /// through the class, whichever qdisc was below, and packets that were dropped on arrival.
    pub(crate) fn class_counters(&self) -> (Counters, Backlog) {
        (self.counters.class(), self.held)
    }

    /// Returns the counters and the backlog of a class that counts the packets that left through
    /// it, but takes the drops and overlimits from the qdisc below.
    pub(crate) fn class_over_qdisc(&self) -> (Counters, Backlog) {
        let (below, held) = self.counters();
        let Counters { bytes, packets, .. } = self.counters.class();
        (Counters { bytes, packets, ..below }, held)
    }

    /// Returns the qdisc. A caller that changes the packets of the qdisc must then call
    /// [`Classes::recount`].
    pub fn qdisc(&mut self) -> &mut dyn Qdisc {
        &mut *self.qdisc
    }

    /// Asks the processor to prefetch the qdisc.
    #[inline]
    pub(crate) fn prefetch(&self) {
        onramp_queue::prefetch(&*self.qdisc);
    }

    /// Calls [`Qdisc::prefetch`] of the child.
    #[inline]
    pub(crate) fn prefetch_packets(&self) {
        self.qdisc.prefetch();
    }

    /// Calls [`Qdisc::accepts`] of the child.
    #[inline]
    #[must_use]
    pub fn accepts(&self, pkt: &Packet) -> bool {
        self.qdisc.accepts(pkt)
    }

    /// Calls [`Qdisc::enqueue`] of the child and updates `sum`, the backlog of all children of the
    /// parent.
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

    /// Calls [`Qdisc::dequeue`] of the child and updates `sum`, the backlog of all children.
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

    /// Calls [`Qdisc::peek`] of the child and updates `sum`, the backlog of all children, because a
    /// peek may drop packets.
    #[inline]
    pub fn peek(&mut self, cx: &mut Cx<'_>, sum: &mut Backlog) -> Peek {
        let before = cx.drops.len();
        let answer = self.qdisc.peek(cx);
        self.counters.count_dropped(before, cx);
        self.idle = matches!(answer, Peek::Empty);
        self.recount(sum);
        answer
    }

    /// Calls [`Qdisc::reset`] of the child and updates `sum`, the backlog of all children.
    pub fn reset(&mut self, cx: &mut Cx<'_>, sum: &mut Backlog) {
        self.visit(cx, |qdisc, cx| qdisc.reset(cx));
        self.idle = false;
        self.recount(sum);
    }

    /// Reads the backlog of the child again and corrects `sum` by the difference.
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
