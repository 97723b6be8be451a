//! The contract between a qdisc, its caller and its children.

mod class;

use std::fmt::Debug;

use onramp_queue::{Packet, PacketList};

use crate::base::params::Values;
use crate::filter::Filters;
use crate::sched::call::{Backlog, Cx, Dequeue, Peek, Verdict};

pub use self::class::{Child, Classes};

/// A queueing discipline. `&mut self` takes the place of Linux's root lock.
pub trait Qdisc: Send + Debug {
    /// Enqueues `pkt`, or drops it into `cx`.
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict;

    /// Removes and returns the next packet that may leave now.
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue;

    /// Returns what [`dequeue`](Self::dequeue) would return. To find out, a qdisc may have to drop
    /// packets, or to choose the next packet for good. As in Linux, most kinds keep to the packet
    /// that a peek has chosen, and a better packet that arrives later has to wait.
    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek;

    /// Returns the packets and bytes that the qdisc and its children hold, in constant time.
    fn backlog(&self) -> Backlog;

    /// Whether the qdisc could enqueue `pkt` now without dropping a packet for its limits.
    ///
    /// A port calls `accepts` before it enqueues, as long as the device takes packets, because
    /// packets that a port merely collected are not a real backlog that should lead to drops. A
    /// qdisc that drops at random, or by the time that packets have waited, accepts every packet.
    fn accepts(&self, _pkt: &Packet) -> bool {
        true
    }

    /// Prepares for an enqueue of the first `most` packets of `coming`. A qdisc with many flows
    /// asks the processor to prefetch the memory of all their flows at once, instead of missing the
    /// cache for one flow after another.
    fn prefetch_flows(&self, _coming: &PacketList, _most: u32) {}

    /// Prepares for a call, when this qdisc is one of many: asks the processor to prefetch the
    /// first and last packets of the queue.
    fn prefetch(&self) {}

    /// Takes new parameters and keeps all packets that the new limits allow. Returns false if the
    /// change cannot be made in place, and leaves the qdisc unchanged. Kinds whose
    /// [`Changes`](crate::qdisc::Changes) allow a change never return false.
    fn change(&mut self, values: &Values<'_>, _cx: &mut Cx<'_>) -> bool {
        values.params.is_empty()
    }

    /// Sets the limit of a fifo below a `tbf` whose own limit has changed. A fifo takes `limit` in
    /// its own unit, bytes or packets (`fifo_set_limit`); other kinds do nothing.
    #[doc(hidden)]
    fn limit_fifo(&mut self, _limit: u64) {}

    /// Whether a packet may bypass the qdisc while the qdisc is empty and the device takes packets
    /// (`TCQ_F_CAN_BYPASS`). The qdisc never sees bypassed packets.
    fn can_bypass(&self) -> bool {
        false
    }

    /// Takes a packet that could bypass the empty qdisc, but that the device does not take now
    /// (`dev_requeue_skb`). That packet must be the next to leave, whatever is enqueued later.
    fn keep_passing(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.enqueue(pkt, cx)
    }

    /// Drops all packets and forgets all state of flows.
    fn reset(&mut self, cx: &mut Cx<'_>);

    /// Returns the classes of the qdisc, or `None` if the kind has no classes.
    fn classes(&mut self) -> Option<&mut dyn Classes> {
        None
    }

    /// Returns the filters at class `minor` (0 = at the qdisc), or `None` if the qdisc asks no
    /// filters there.
    fn filters(&mut self, _minor: u16) -> Option<&mut Filters> {
        None
    }

    /// Returns how often the qdisc held packets back or met its limit, where Linux counts that
    /// (`qdisc_qstats_overlimit`).
    fn overlimits(&self) -> u64 {
        0
    }

    /// Returns the number of child drops that Linux excludes from this qdisc's counter.
    fn uncounted(&self) -> u64 {
        0
    }

    /// Calls `out` with each flow that `tc class show` lists as if the flow were a class, with the
    /// flow's number as minor number.
    fn flows(&self, _out: &mut dyn FnMut(FlowView<'_>)) {}

    /// Calls `out` with the name and value of each statistic of this kind that `tc -s qdisc show`
    /// prints below the common statistics. Must not allocate.
    fn stats(&self, _out: &mut dyn FnMut(&'static str, u64)) {}
}

/// A flow that a qdisc lists as if the flow were a class: see
/// [`Qdisc::flows`].
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

/// Implements [`Qdisc::peek`] by a dequeue (`qdisc_peek_dequeued`): takes the next packet out and
/// keeps it in a place of the qdisc. The qdisc still counts the packet in its backlog, and returns
/// it from its next dequeue.
pub(crate) fn peek_by_dequeue<Q: Qdisc>(
    qdisc: &mut Q,
    place: fn(&mut Q) -> &mut Option<Packet>,
    cx: &mut Cx<'_>,
) -> Peek {
    if place(qdisc).is_none() {
        match qdisc.dequeue(cx) {
            Dequeue::Ready(pkt) => *place(qdisc) = Some(pkt),
            Dequeue::NotBefore(then) => return Peek::NotBefore(then),
            Dequeue::Empty => {}
        }
    }
    Peek::at(place(qdisc).as_ref())
}
