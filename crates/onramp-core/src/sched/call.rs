//! What a call to a qdisc takes and returns: the context of the call, the results, and counts of
//! the packets that a qdisc holds.

use onramp_queue::{DropReason, Packet, PacketList};

use crate::base::Instant;

/// The context of a call to a qdisc: what the caller provides, and what the qdisc returns beside
/// its result.
#[derive(Debug)]
pub struct Cx<'a> {
    /// The present time. It stays the same while a whole burst of packets is enqueued or dequeued.
    pub now: Instant,
    /// Packets that qdiscs have dropped in this call. The caller frees them when it no longer uses
    /// the qdisc. To add a packet, a qdisc calls [`drop`](Self::drop).
    pub drops: &'a mut PacketList,
    /// Number of packets that qdiscs have made themselves in this call, such as duplicates. They
    /// count as enqueued, like packets that came from senders. [`duplicate`](Self::duplicate)
    /// counts the packets that it makes; a qdisc that makes packets in another way adds them here.
    pub made: u32,
    /// Where [`duplicate`](Self::duplicate) notes the cookie of each packet that it copies, for a
    /// [`TreeOf`](crate::TreeOf); `None` in all other trees.
    pub(crate) copied: Option<&'a mut Vec<u64>>,
    /// Whether each qdisc measures the sojourn time of packets, from push to dequeue.
    pub(crate) measures: bool,
    /// Whether the memory of packets is charged to their senders, which have limits of their own,
    /// as sockets have (`skb->sk`).
    pub(crate) charged: bool,
    /// The reason of the last packet in `drops`, and how many packets were in `drops` before the
    /// last packets, one after another, that have this reason. `None` before the first drop.
    last: Option<(DropReason, u32)>,
}

impl<'a> Cx<'a> {
    /// Creates a context in which dropped packets are appended to `drops`.
    #[inline]
    pub fn new(now: Instant, drops: &'a mut PacketList) -> Self {
        Self { now, drops, made: 0, copied: None, measures: false, charged: false, last: None }
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

    /// Copies `pkt`, as `netem duplicate` does, and counts the copy as a packet that the qdisc has
    /// made. Use it instead of [`Packet::duplicate`], so that in a [`TreeOf`](crate::TreeOf) the
    /// copy has a value.
    #[must_use = "the tree counts the copy"]
    pub fn duplicate(&mut self, pkt: &Packet) -> Packet {
        self.duplicate_with(pkt, pkt.payload())
    }

    /// Like [`duplicate`](Self::duplicate), but the copy has another payload. Its length is that of
    /// `pkt`: the caller changes it.
    ///
    /// # Panics
    ///
    /// Panics when the payload is larger than [`PAYLOAD_MAX`](onramp_queue::PAYLOAD_MAX).
    #[must_use = "the tree counts the copy"]
    pub fn duplicate_with(&mut self, pkt: &Packet, payload: &[u8]) -> Packet {
        self.made += 1;
        if let Some(copied) = &mut self.copied {
            copied.push(pkt.cookie);
        }
        pkt.duplicate_with(payload)
    }

    /// Returns the drop reason of all packets in `drops` after the first `before`, or `None` if
    /// they have several reasons. There must be at least one packet after the first `before`.
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
    /// The packet is queued, and no packet of its flow was dropped for it.
    Queued,
    /// The packet is queued, but to make room, another packet of the same flow was dropped
    /// (`NET_XMIT_CN`). If a packet of another flow was dropped instead, the result is
    /// [`Queued`](Self::Queued).
    Congested,
    /// The packet is dropped, and is now in [`Cx::drops`].
    Dropped,
}

/// The result of a dequeue. `P` is the type of the packet that leaves: [`Packet`], or a packet with
/// its value in a [`TreeOf`](crate::TreeOf).
#[must_use]
#[derive(Debug)]
pub enum Dequeue<P = Packet> {
    /// This packet is to be sent now. It is no longer in the qdisc.
    Ready(P),
    /// The qdisc holds packets, but none may leave before this time. Dequeue again at this time
    /// (`qdisc_watchdog`), or when another packet has been enqueued.
    NotBefore(Instant),
    /// The qdisc holds no packet.
    Empty,
}

impl Dequeue {
    /// Returns, of two dequeues that gave no packet, the result that names the earlier time.
    #[inline]
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::NotBefore(a), Self::NotBefore(b)) => Self::NotBefore(a.min(b)),
            (Self::Empty, other) => other,
            (this, _) => this,
        }
    }
}

/// The result of a peek, which says what a dequeue would return.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// A packet of this size in bytes would leave now.
    Ready(u32),
    /// The qdisc holds packets, but none may leave before this time, as in [`Dequeue::NotBefore`].
    NotBefore(Instant),
    /// The qdisc holds no packet.
    Empty,
}

impl Peek {
    /// Returns the result for a qdisc that would send `first` next, or that is empty if `first` is
    /// `None`.
    #[inline]
    pub(crate) fn at(first: Option<&Packet>) -> Self {
        first.map_or(Self::Empty, |pkt| Self::Ready(pkt.len))
    }

    /// Returns, of two peeks that found no packet ready, the result that names the earlier time.
    #[inline]
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::NotBefore(a), Self::NotBefore(b)) => Self::NotBefore(a.min(b)),
            (Self::Empty, other) => other,
            (this, _) => this,
        }
    }
}

/// How many packets, and how many bytes on the wire, a qdisc, class or flow holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Number of packets.
    pub packets: u32,
    /// Number of bytes on the wire.
    pub bytes: u64,
}

impl Backlog {
    /// Adds the packet `pkt` to the counts.
    #[inline]
    pub(crate) fn add(&mut self, pkt: &Packet) {
        self.packets += 1;
        self.bytes += u64::from(pkt.len);
    }

    /// Subtracts the packet `pkt` from the counts.
    #[inline]
    pub(crate) fn sub(&mut self, pkt: &Packet) {
        self.packets -= 1;
        self.bytes -= u64::from(pkt.len);
    }

    /// Counts the packets of `list`.
    pub(crate) fn of(list: &PacketList) -> Self {
        Self { packets: list.len(), bytes: list.bytes() }
    }
}
