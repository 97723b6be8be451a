//! A call to a qdisc: its context, its answers, and the packets that a qdisc holds after it.

use onramp_queue::{DropReason, Packet, PacketList};

use crate::base::Instant;

/// The context of a call: what the caller of a qdisc provides, and what the qdisc returns beside
/// its answer.
#[derive(Debug)]
pub struct Cx<'a> {
    /// The present time, which stays the same during a whole burst.
    pub now: Instant,
    /// Dropped packets. The caller frees them after it has let go of the qdisc. A qdisc adds a
    /// packet with [`drop`](Self::drop).
    pub drops: &'a mut PacketList,
    /// Number of packets that qdiscs have made themselves. Such packets are enqueued like packets
    /// that came from senders.
    pub made: u32,
    /// Whether each qdisc measures the time of packets from push to dequeue.
    pub(crate) measures: bool,
    /// Whether the memory of packets is charged to their senders, which have limits of their own,
    /// as sockets have (`skb->sk`).
    pub(crate) charged: bool,
    /// The reason of the last drop, and the length of `drops` before the unbroken series of drops
    /// for that same reason began.
    last: Option<(DropReason, u32)>,
}

impl<'a> Cx<'a> {
    /// Creates a context whose drops go to `drops`.
    #[inline]
    pub fn new(now: Instant, drops: &'a mut PacketList) -> Self {
        Self { now, drops, made: 0, measures: false, charged: false, last: None }
    }
}

impl Cx<'_> {
    /// Returns the context with the settings of a tree: whether each qdisc measures sojourn times,
    /// and whether the memory of packets is charged to their senders.
    #[inline]
    pub(crate) fn of_tree(self, measures: bool, charged: bool) -> Self {
        Self { measures, charged, ..self }
    }

    /// Drops `pkt` for `reason`.
    pub fn drop(&mut self, mut pkt: Packet, reason: DropReason) {
        pkt.drop_reason = Some(reason);
        if self.last.is_none_or(|(last, _)| last != reason) {
            self.last = Some((reason, self.drops.len()));
        }
        self.drops.push_back(pkt);
    }

    /// Returns the common reason of all drops after the first `before` drops, or `None` if there
    /// are several reasons.
    #[inline]
    pub(crate) fn reason_since(&self, before: u32) -> Option<DropReason> {
        self.last.filter(|(_, since)| *since <= before).map(|(reason, _)| reason)
    }

    /// Drops the packet in `place`, if there is one, and leaves the place empty.
    pub(crate) fn purge_one(&mut self, place: &mut Option<Packet>) {
        if let Some(pkt) = place.take() {
            self.drop(pkt, DropReason::Purged);
        }
    }

    /// Drops all packets of `list`.
    pub(crate) fn purge(&mut self, list: &mut PacketList) {
        while let Some(pkt) = list.pop_front() {
            self.drop(pkt, DropReason::Purged);
        }
    }
}

/// The result of an enqueue (`NET_XMIT_*`).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet is queued.
    Queued,
    /// The packet is queued, but another packet of its flow was dropped for it (`NET_XMIT_CN`). If
    /// a packet of another flow was dropped instead, the result is [`Queued`](Self::Queued).
    Congested,
    /// The packet is dropped and lies in `cx.drops`.
    Dropped,
}

/// The answer to a dequeue.
#[must_use]
#[derive(Debug)]
pub enum Dequeue {
    /// The packet to send now.
    Ready(Packet),
    /// The qdisc holds packets, but none may leave now. Ask again at this time (`qdisc_watchdog`),
    /// or when another packet has been enqueued.
    NotBefore(Instant),
    /// The qdisc holds no packet.
    Empty,
}

impl Dequeue {
    /// Returns the answer with the earlier time, of two answers without a packet.
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
    /// The size of the next packet in bytes.
    Ready(u32),
    /// No packet may leave before this time, as for [`Dequeue::NotBefore`].
    NotBefore(Instant),
    /// The qdisc holds no packet.
    Empty,
}

impl Peek {
    /// Returns the answer for a qdisc that would send `first` next.
    #[inline]
    pub(crate) fn at(first: Option<&Packet>) -> Self {
        first.map_or(Self::Empty, |pkt| Self::Ready(pkt.len))
    }

    /// Returns the answer with the earlier time, of two answers without a packet.
    #[inline]
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::NotBefore(a), Self::NotBefore(b)) => Self::NotBefore(a.min(b)),
            (Self::Empty, other) => other,
            (this, _) => this,
        }
    }
}

/// The packets and wire bytes that a qdisc, class or flow holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Number of packets.
    pub packets: u32,
    /// Number of bytes on the wire.
    pub bytes: u64,
}

impl Backlog {
    /// Adds `pkt` to the backlog.
    #[inline]
    pub(crate) fn add(&mut self, pkt: &Packet) {
        self.packets += 1;
        self.bytes += u64::from(pkt.len);
    }

    /// Subtracts `pkt` from the backlog.
    #[inline]
    pub(crate) fn sub(&mut self, pkt: &Packet) {
        self.packets -= 1;
        self.bytes -= u64::from(pkt.len);
    }

    /// Returns the backlog of `list`.
    pub(crate) fn of(list: &PacketList) -> Self {
        Self { packets: list.len(), bytes: list.bytes() }
    }
}
