//! How a qdisc keeps its children (the qdiscs below its classes) and what it knows of them.

use std::fmt::Debug;

use onramp_queue::Packet;

use super::Qdisc;
use crate::base::params::Values;
use crate::base::{Counters, Instant};
use crate::sched::call::{Backlog, Cx, Dequeue, Peek, Verdict};
use crate::sched::qdisc_counters::QdiscCounters;

/// The classes of a qdisc, by their minor numbers (`Qdisc_class_ops`).
///
/// Before a call, the caller must have checked that Linux would allow the change, as
/// [`Setup`](crate::Setup) does.
pub trait Classes: Debug {
    /// Adds class `minor` below class `parent` (0 means below the qdisc itself), or changes the
    /// class if it exists.
    ///
    /// Does nothing in a qdisc whose classes follow from the qdisc's own parameters.
    fn set(&mut self, _minor: u16, _parent: u16, _values: &Values<'_>, _now: Instant) {}

    /// Removes class `minor`, which must have no child classes, and drops the packets in the qdisc
    /// below it.
    fn remove(&mut self, _minor: u16, _cx: &mut Cx<'_>) {}

    /// Returns the qdisc below class `minor`, or `None` if there is no such class or the class has
    /// child classes.
    fn child(&mut self, minor: u16) -> Option<&mut Child>;

    /// Reads the backlog of the qdisc below class `minor` again, and corrects the parent's backlog
    /// by the difference. The caller must call `recount` after packets entered or left that qdisc
    /// without a call of the parent.
    fn recount(&mut self, minor: u16);

    /// Whether the qdisc itself is listed like a class, with the minor number 0.
    fn has_root(&self) -> bool {
        false
    }

    /// Calls `out` with the name and value of each statistic of class `minor` that
    /// `tc -s class show` prints.
    fn stats(&self, _minor: u16, _out: &mut dyn FnMut(&'static str, i64)) {}

    /// Returns the counters and the backlog of class `minor`. Most classes have no counters of
    /// their own, and show those of the qdisc below them.
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

    /// Removes the qdisc below class `minor` and drops its packets. Called only for kinds whose
    /// classes have no qdisc until a command adds one: see
    /// [`Quirks::default_child`](crate::qdisc::Quirks::default_child).
    fn ungraft(&mut self, _minor: u16, _cx: &mut Cx<'_>) {}
}

/// A qdisc below a class of another qdisc (the parent), with its counters, and with the backlog
/// that the parent knows of.
#[derive(Debug)]
pub struct Child {
    qdisc: Box<dyn Qdisc>,
    held: Backlog,
    /// Whether the qdisc has returned that it is empty, and has received no packet since.
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

    /// Returns the child's backlog as the parent knows it: as it was after the parent's last call
    /// of the child.
    #[must_use]
    #[inline]
    pub fn held(&self) -> Backlog {
        self.held
    }

    /// Whether the parent need not ask the child for a packet. After a child has become empty, it
    /// must be asked once more, because some kinds (`qfq`, `red`) note the time at which they were
    /// first asked while empty.
    #[must_use]
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// Puts `new` in the place of this child, and returns this child with its packets. The class's
    /// own counters stay with the class.
    pub(crate) fn replace(&mut self, new: Self) -> Self {
        let mut old = std::mem::replace(self, new);
        std::mem::swap(&mut self.counters, &mut old.counters);
        self.counters.restart();
        old
    }

    /// Calls `f` with the child's qdisc and counts the packets that `f` drops. After that, the
    /// caller must correct the parent's backlog, for example by [`Classes::recount`], because `f`
    /// may have changed which packets the qdisc holds.
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

    /// Returns the child's qdisc and its counters.
    pub(crate) fn with_counters(&mut self) -> (&mut dyn Qdisc, &QdiscCounters) {
        (&mut *self.qdisc, &self.counters)
    }

    /// Returns the counters and the backlog of the child's qdisc.
    pub(crate) fn counters(&self) -> (Counters, Backlog) {
        let overlimits = self.qdisc.overlimits();
        (Counters { overlimits, ..self.counters.qdisc() }, self.held)
    }

    /// Returns the counters and the backlog of a class that has counters of its own. The class
    /// counts the packets that left through it, whichever qdisc stood below it at that time, and
    /// the packets that were dropped when they arrived.
    pub(crate) fn class_counters(&self) -> (Counters, Backlog) {
        (self.counters.class(), self.held)
    }

    /// Returns the counters and the backlog of a class that itself counts only the packets that
    /// left through it. Drops and overlimits are those of the qdisc below the class.
    pub(crate) fn class_over_qdisc(&self) -> (Counters, Backlog) {
        let (below, held) = self.counters();
        let Counters { bytes, packets, .. } = self.counters.class();
        (Counters { bytes, packets, ..below }, held)
    }

    /// Returns the child's qdisc. After a change of the packets in that qdisc, the caller must call
    /// [`Classes::recount`].
    pub fn qdisc(&mut self) -> &mut dyn Qdisc {
        &mut *self.qdisc
    }

    /// Asks the processor to prefetch the memory of the child's qdisc.
    #[inline]
    pub(crate) fn prefetch(&self) {
        onramp_queue::prefetch(&*self.qdisc);
    }

    /// Calls [`Qdisc::prefetch`] of the child's qdisc.
    #[inline]
    pub(crate) fn prefetch_packets(&self) {
        self.qdisc.prefetch();
    }

    /// Calls [`Qdisc::accepts`] of the child's qdisc.
    #[inline]
    #[must_use]
    pub fn accepts(&self, pkt: &Packet) -> bool {
        self.qdisc.accepts(pkt)
    }

    /// Calls [`Qdisc::enqueue`] of the child's qdisc, and corrects `sum`, the backlog of all
    /// children of the parent.
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

    /// Calls [`Qdisc::dequeue`] of the child's qdisc, and corrects `sum`, the backlog of all
    /// children of the parent.
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

    /// Calls [`Qdisc::peek`] of the child's qdisc, and corrects `sum`, the backlog of all children
    /// of the parent, because a peek may drop packets.
    #[inline]
    pub fn peek(&mut self, cx: &mut Cx<'_>, sum: &mut Backlog) -> Peek {
        let before = cx.drops.len();
        let answer = self.qdisc.peek(cx);
        self.counters.count_dropped(before, cx);
        self.idle = matches!(answer, Peek::Empty);
        self.recount(sum);
        answer
    }

    /// Calls [`Qdisc::reset`] of the child's qdisc, and corrects `sum`, the backlog of all children
    /// of the parent.
    pub fn reset(&mut self, cx: &mut Cx<'_>, sum: &mut Backlog) {
        self.visit(cx, |qdisc, cx| qdisc.reset(cx));
        self.idle = false;
        self.recount(sum);
    }

    /// Reads the backlog of the child's qdisc again, and corrects `sum`, the backlog of all
    /// children of the parent, by the difference.
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
