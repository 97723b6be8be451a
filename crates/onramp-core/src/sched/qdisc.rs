//! The contract between a qdisc, whoever calls it, and what stands below it.

use std::fmt::Debug;

use onramp_queue::{DropReason, Packet, PacketList};

use crate::base::Instant;
use crate::base::params::Values;
use crate::filter::Filters;
use crate::sched::{Classes, FlowView};

/// What a call gets from outside.
#[derive(Debug)]
pub struct Cx<'a> {
    /// The present, the same for a whole burst.
    pub now: Instant,
    /// Dropped packets, freed by the caller after it has let go of the qdisc. They come here by
    /// [`drop`](Self::drop).
    pub drops: &'a mut PacketList,
    /// Packets that qdiscs have made themselves: they are enqueued like those that came.
    pub made: u32,
    /// Whether each qdisc measures how long packets take from push to dequeue.
    pub(crate) measures: bool,
    /// Whether a packet's memory is charged to its sender, who has a bound of its own, as sockets
    /// have (`skb->sk`).
    pub(crate) charged: bool,
    /// Why the last packet was dropped, and how many were dropped before all that were dropped for
    /// the same in a row.
    last: Option<(DropReason, u32)>,
}

impl<'a> Cx<'a> {
    /// Drops go to `drops`.
    #[inline]
    pub fn new(now: Instant, drops: &'a mut PacketList) -> Self {
        Self { now, drops, made: 0, measures: false, charged: false, last: None }
    }
}

impl Cx<'_> {
    /// The same, for a tree where each qdisc measures how long packets stay, or where the memory of
    /// packets is charged to their senders.
    #[inline]
    pub(crate) fn of_tree(self, measures: bool, charged: bool) -> Self {
        Self { measures, charged, ..self }
    }

    /// Drops `pkt`, saying why.
    pub fn drop(&mut self, mut pkt: Packet, reason: DropReason) {
        pkt.drop_reason = Some(reason);
        if self.last.is_none_or(|(last, _)| last != reason) {
            self.last = Some((reason, self.drops.len()));
        }
        self.drops.push_back(pkt);
    }

    /// Why all packets were dropped that came after the first `before`, if that is one reason.
    #[inline]
    pub(crate) fn reason_since(&self, before: u32) -> Option<DropReason> {
        self.last.filter(|(_, since)| *since <= before).map(|(reason, _)| reason)
    }

    /// Drops all of `list`.
    pub(crate) fn purge(&mut self, list: &mut PacketList) {
        while let Some(pkt) = list.pop_front() {
            self.drop(pkt, DropReason::Purged);
        }
    }
}

/// The fate of an enqueue (`NET_XMIT_*`).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Queued.
    Queued,
    /// Queued, but another packet of its flow was dropped for it (`NET_XMIT_CN`). Where one of
    /// another flow was dropped, the answer is [`Queued`](Self::Queued).
    Congested,
    /// Dropped; it is in `cx.drops`.
    Dropped,
}

/// The answer to a dequeue.
#[must_use]
#[derive(Debug)]
pub enum Dequeue {
    /// Send this.
    Ready(Packet),
    /// Something is held, but nothing may go now: ask again then (`qdisc_watchdog`), or when
    /// something has come.
    NotBefore(Instant),
    /// Nothing is held.
    Empty,
}

impl Dequeue {
    /// Of two answers without a packet, the one with the earlier time.
    #[inline]
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::NotBefore(a), Self::NotBefore(b)) => Self::NotBefore(a.min(b)),
            (Self::Empty, other) => other,
            (this, _) => this,
        }
    }
}

/// The answer to a peek.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// The next packet has so many bytes.
    Ready(u32),
    /// As [`Dequeue::NotBefore`].
    NotBefore(Instant),
    /// Nothing is held.
    Empty,
}

impl Peek {
    /// At the first of a list.
    #[inline]
    pub(crate) fn at(first: Option<&Packet>) -> Self {
        first.map_or(Self::Empty, |pkt| Self::Ready(pkt.len))
    }

    /// Of two answers without a packet, the one with the earlier time.
    #[inline]
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::NotBefore(a), Self::NotBefore(b)) => Self::NotBefore(a.min(b)),
            (Self::Empty, other) => other,
            (this, _) => this,
        }
    }

    /// At what `dequeue` gave, which `stash` keeps from now on (`qdisc_peek_dequeued`). The qdisc
    /// still counts it in its backlog, and hands it out at its next dequeue.
    pub(crate) fn stash(stash: &mut Option<Packet>, dequeue: impl FnOnce() -> Dequeue) -> Self {
        if stash.is_none() {
            match dequeue() {
                Dequeue::Ready(pkt) => *stash = Some(pkt),
                Dequeue::NotBefore(then) => return Self::NotBefore(then),
                Dequeue::Empty => {}
            }
        }
        Self::at(stash.as_ref())
    }
}

/// Packets and wire bytes held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Packets.
    pub packets: u32,
    /// Bytes.
    pub bytes: u64,
}

impl Backlog {
    /// One packet more.
    #[inline]
    pub(crate) fn add(&mut self, pkt: &Packet) {
        self.packets += 1;
        self.bytes += u64::from(pkt.len);
    }

    /// One packet less.
    #[inline]
    pub(crate) fn sub(&mut self, pkt: &Packet) {
        self.packets -= 1;
        self.bytes -= u64::from(pkt.len);
    }

    /// What `list` holds.
    pub(crate) fn of(list: &PacketList) -> Self {
        Self { packets: list.len(), bytes: list.bytes() }
    }
}

/// A queueing discipline. `&mut self` is the root lock.
pub trait Qdisc: Send + Debug {
    /// Takes `pkt` in, or drops it into `cx`.
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict;

    /// Lets the next packet out.
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue;

    /// Says what [`dequeue`](Self::dequeue) would give. To find out, it may have to drop packets,
    /// or to take one out of its place for good: as in Linux, most kinds are settled on a packet
    /// once they were asked, and a better one that comes later has to wait.
    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek;

    /// What is held, children included. O(1).
    fn backlog(&self) -> Backlog;

    /// Whether it would take `pkt` now, and drop nothing for its limits.
    ///
    /// A port asks before it enqueues, as long as its device takes what comes out: packets that
    /// were only collected on their way are no backlog. A qdisc that drops by chance, or by how
    /// long packets waited, takes every packet.
    fn accepts(&self, _pkt: &Packet) -> bool {
        true
    }

    /// The first `most` packets of `coming` are about to be enqueued: a qdisc with many flows asks
    /// the processor for theirs, for all at once instead of one after another.
    fn prefetch_flows(&self, _coming: &PacketList, _most: u32) {}

    /// It is soon to be called, as one of many: asks the processor for the packets at its ends.
    fn prefetch(&self) {}

    /// Takes new parameters and keeps what it holds, but for what the new limits do not allow.
    /// Returns false if the change cannot be made in place, and leaves the qdisc unchanged. Kinds
    /// whose [`Changes`](crate::qdisc::Changes) allow a change never return false.
    fn change(&mut self, values: &Values<'_>, _cx: &mut Cx<'_>) -> bool {
        values.params.is_empty()
    }

    /// What a `tbf` above it does with its own limit when it changes: a fifo, of bytes or of
    /// packets, takes the number for its limit (`fifo_set_limit`); others do nothing.
    #[doc(hidden)]
    fn limit_fifo(&mut self, _limit: u64) {}

    /// Whether a packet may pass it by while it holds nothing and the device takes what comes
    /// (`TCQ_F_CAN_BYPASS`). What passed, it knows nothing of.
    fn can_bypass(&self) -> bool {
        false
    }

    /// Takes in a packet that may pass it by, when it holds nothing, but the device takes nothing
    /// either (`dev_requeue_skb`): the next to leave, whatever comes.
    fn keep_passing(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.enqueue(pkt, cx)
    }

    /// Drops everything.
    fn reset(&mut self, cx: &mut Cx<'_>);

    /// Its classes, if it has any.
    fn classes(&mut self) -> Option<&mut dyn Classes> {
        None
    }

    /// The filters at class `minor` (0 = at the qdisc), if any are asked there.
    fn filters(&mut self, _minor: u16) -> Option<&mut Filters> {
        None
    }

    /// How often it held packets back, or met its limit, where Linux counts it
    /// (`qdisc_qstats_overlimit`).
    fn overlimits(&self) -> u64 {
        0
    }

    /// Drops below it that it does not count, where Linux does not.
    fn uncounted(&self) -> u64 {
        0
    }

    /// Flows that it knows of, which `tc class show` lists as classes, by their numbers.
    fn flows(&self, _out: &mut dyn FnMut(FlowView<'_>)) {}

    /// Names and values of its own statistics, such as `tc -s qdisc show` prints below the common
    /// ones. Allocates nothing.
    fn stats(&self, _out: &mut dyn FnMut(&'static str, u64)) {}
}
