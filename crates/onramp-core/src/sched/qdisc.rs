//! The contract between a qdisc, its caller (a parent qdisc, a tree or a port) and its children.

mod class;

use std::fmt::Debug;

use onramp_queue::{Packet, PacketList};

use crate::base::Instant;
use crate::base::params::Values;
use crate::filter::Filters;
use crate::sched::call::{Backlog, Cx, Dequeue, Peek, Verdict};

pub use self::class::{Child, Classes};

/// A queueing discipline. Because methods take `&mut self`, no root lock as in Linux is needed.
///
/// A qdisc that sends packets in the order of their arrival, and drops a packet that arrives when
/// the qdisc holds `limit` packets:
///
/// ```
/// use onramp_core::Instant;
/// use onramp_core::qdisc::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};
/// use onramp_queue::{DropReason, Packet, PacketList};
///
/// #[derive(Debug)]
/// struct Fifo {
///     limit: u32,
///     list: PacketList,
/// }
///
/// impl Qdisc for Fifo {
///     fn enqueue(&mut self, packet: Packet, cx: &mut Cx<'_>) -> Verdict {
///         if self.list.len() >= self.limit {
///             cx.drop(packet, DropReason::Overlimit);
///             return Verdict::Dropped;
///         }
///         self.list.push_back(packet);
///         Verdict::Queued
///     }
///
///     fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
///         self.list.pop_front().map_or(Dequeue::Empty, Dequeue::Ready)
///     }
///
///     fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
///         self.list.front().map_or(Peek::Empty, |packet| Peek::Ready(packet.len))
///     }
///
///     fn backlog(&self) -> Backlog {
///         Backlog { packets: self.list.len(), bytes: self.list.bytes() }
///     }
///
///     fn accepts(&self, _packet: &Packet) -> bool {
///         self.list.len() < self.limit
///     }
///
///     fn reset(&mut self, cx: &mut Cx<'_>) {
///         while let Some(packet) = self.list.pop_front() {
///             cx.drop(packet, DropReason::Purged);
///         }
///     }
/// }
///
/// let mut fifo = Fifo { limit: 1, list: PacketList::new() };
/// let mut drops = PacketList::new();
/// let mut cx = Cx::new(Instant(0), &mut drops);
/// assert_eq!(fifo.enqueue(Packet::new(100), &mut cx), Verdict::Queued);
/// assert_eq!(fifo.enqueue(Packet::new(100), &mut cx), Verdict::Dropped);
/// assert!(matches!(fifo.dequeue(&mut cx), Dequeue::Ready(_)));
/// assert_eq!(drops.len(), 1);
/// ```
///
/// [`Kinds`](crate::Kinds) shows how lines of `tc`, and the text that describes a link's qdisc, can
/// name such a qdisc.
pub trait Qdisc: Send + Debug {
    /// Enqueues `pkt`, or drops it by [`Cx::drop`].
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict;

    /// Removes and returns the next packet that may leave now.
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue;

    /// Returns what [`dequeue`](Self::dequeue) would return. To find out, a qdisc may have to drop
    /// packets, or to choose the next packet for good. As in Linux, after a peek most kinds send
    /// the packet that the peek has chosen, even if a packet of higher priority arrives before the
    /// dequeue.
    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek;

    /// Returns how many packets and bytes the qdisc and its children hold. Takes constant time.
    fn backlog(&self) -> Backlog;

    /// Whether the qdisc could enqueue `pkt` now without dropping a packet because of its limits.
    ///
    /// A port calls `accepts` before it enqueues a packet. If the qdisc is full, the port first
    /// sends packets from the qdisc to the device, as far as the device takes them: a port collects
    /// packets and then enqueues many at once, which must not lead to drops while the device keeps
    /// up. A qdisc that drops packets at random, or by the time for which they have waited, accepts
    /// every packet.
    fn accepts(&self, _pkt: &Packet) -> bool {
        true
    }

    /// Prepares for an enqueue of the first packets of `coming`, up to `most` of them. A qdisc with
    /// many flows can ask the processor to prefetch the memory of all their flows at once, so that
    /// it need not wait for the memory of one flow after another.
    fn prefetch_flows(&self, _coming: &PacketList, _most: u32) {}

    /// Prepares for a dequeue of up to `most` packets that another processor has in its caches. A
    /// port calls `prefetch_next` when a thread has become its owner that was not the owner before,
    /// and a packet has left. A qdisc with a queue for each flow can prefetch the packets of
    /// several queues at the same time, so that it need not wait for one packet after another: see
    /// [`Scout`](onramp_queue::Scout). Packets that are prefetched, but do not leave soon, cost
    /// more than they gain.
    fn prefetch_next(&self, _most: u32) {}

    /// Asks the processor to prefetch the first and the last packet of the queue. A parent with
    /// many children calls `prefetch` some time before it enqueues into this qdisc or dequeues from
    /// it, so that it need not wait for the memory of the packets then.
    fn prefetch(&self) {}

    /// Takes over new parameters and keeps all packets that the new limits allow. Returns false if
    /// the change cannot be made in place, and leaves the qdisc unchanged. Kinds whose
    /// [`Changes`](crate::qdisc::Changes) allow a change must never return false. If such a kind
    /// does, the change panics: a [`Tree`](crate::Tree) panics in its caller's thread, and a port
    /// of a link ends, with the drop reason `port_dead` for the packets that it holds.
    fn change(&mut self, values: &Values<'_>, _cx: &mut Cx<'_>) -> bool {
        values.params.is_empty()
    }

    /// Sets the limit of a fifo that stands below a `tbf`, after the `tbf`'s own limit has changed.
    /// `limit` is in the unit of the fifo: bytes or packets (`fifo_set_limit`). Other kinds do
    /// nothing.
    #[doc(hidden)]
    fn limit_fifo(&mut self, _limit: u64) {}

    /// Whether a packet may bypass the qdisc while the qdisc is empty and the device takes packets
    /// (`TCQ_F_CAN_BYPASS`). A bypassing packet goes to the device without being enqueued.
    fn can_bypass(&self) -> bool {
        false
    }

    /// Whether an enqueue of `pkt` into the qdisc, which is empty, and a dequeue at the same time
    /// `now` would return `pkt` unchanged, without a look at its payload. A port then passes a
    /// large packet by the qdisc, so that its payload need not be copied.
    fn lets_pass(&self, pkt: &Packet, _now: Instant) -> bool {
        self.can_bypass() && self.accepts(pkt)
    }

    /// Counts a packet that a port has passed by the qdisc, if the qdisc has counters of its own
    /// for such a packet.
    fn passed(&mut self) {}

    /// Takes a packet that was to bypass the empty qdisc but that the device does not take now
    /// (`dev_requeue_skb`). That packet must leave before any other, whatever is enqueued later.
    fn keep_passing(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.enqueue(pkt, cx)
    }

    /// Drops all packets, and sets the state of all flows back to that of a new qdisc.
    fn reset(&mut self, cx: &mut Cx<'_>);

    /// Returns the classes of the qdisc, or `None` if the kind has no classes.
    fn classes(&mut self) -> Option<&mut dyn Classes> {
        None
    }

    /// Returns the filters at class `minor` (0 means at the qdisc itself), or `None` if the qdisc
    /// asks no filters there.
    fn filters(&mut self, _minor: u16) -> Option<&mut Filters> {
        None
    }

    /// Returns how often the qdisc has held packets back or met its limit. The result is 0 for
    /// kinds for which Linux does not count that (`qdisc_qstats_overlimit`).
    fn overlimits(&self) -> u64 {
        0
    }

    /// Returns how many packets the qdisc has put in front of packets that came earlier, as far as
    /// Linux counts them as requeued (`netem` with `reorder`).
    fn requeues(&self) -> u64 {
        0
    }

    /// Returns how many of the packets that the children of this qdisc dropped are missing, as in
    /// Linux, from this qdisc's counter of drops.
    fn uncounted(&self) -> u64 {
        0
    }

    /// Calls `out` with each flow that `tc class show` lists like a class. The number of the flow
    /// is listed as a minor number.
    fn flows(&self, _out: &mut dyn FnMut(FlowView<'_>)) {}

    /// Calls `out` with the name and value of each statistic that only this kind has, and that
    /// `tc -s qdisc show` prints below the common statistics. Must not allocate.
    fn stats(&self, _out: &mut dyn FnMut(&'static str, u64)) {}
}

/// A flow that `tc class show` lists like a class: see [`Qdisc::flows`].
#[derive(Clone, Copy, Debug)]
pub struct FlowView<'a> {
    /// Number of the flow, counted from 1.
    pub minor: u16,
    /// Packets and bytes that the flow holds.
    pub backlog: Backlog,
    /// Number of packets of the flow that were dropped.
    pub drops: u64,
    /// How often the flow has met a limit, or 0 if the qdisc does not count that.
    pub overlimits: u64,
    /// Names and values of statistics that only flows of this kind of qdisc have.
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
