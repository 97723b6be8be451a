//! The metadata of a packet: everything that qdiscs read and write, except the payload.

use crate::DropReason;

/// The fields of a packet that qdiscs read and write. `Meta` and the list link together fill one
/// cache line.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Key of the packet's flow. A qdisc that distinguishes flows keeps the packets of one flow in
    /// order.
    pub flow: u64,
    /// Earliest departure time, in nanoseconds on the link's clock; 0 = none (`SO_TXTIME`). When a
    /// packet leaves its port, the field gets the time at which the device took the packet, or at
    /// which the port dropped it.
    pub txtime_ns: u64,
    /// Time at which the packet was pushed, in nanoseconds on the link's clock. `netem` and
    /// `series` overwrite this time when they pass the packet to another qdisc.
    pub enqueued_ns: u64,
    /// A number that the sender chooses and that the packet's completion (the report of what became
    /// of the packet) contains. Onramp never reads the number.
    pub cookie: u64,
    /// Pacing rate of the packet's flow, in bytes per second; 0 = not set (`SO_MAX_PACING_RATE`).
    pub pacing_rate: u64,
    /// Length on the wire in bytes, including the link header (`qdisc_pkt_len`). Do not change
    /// `len` while the packet is in a list.
    pub len: u32,
    /// Priority, as in `SO_PRIORITY` (`skb->priority`).
    pub priority: u32,
    /// Mark, as in `SO_MARK` (`skb->mark`).
    pub mark: u32,
    /// Bytes of payload in each datagram, if the payload consists of several datagrams (GSO); 0 =
    /// one datagram. A qdisc may split such a packet into its datagrams; the sender's completion
    /// then reports the fate of the last datagram.
    pub gso_size: u16,
    /// ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    pub ecn: u8,
    /// Why the packet was dropped; `None`: the packet was not dropped. From the push until the
    /// packet is sent or dropped, the reason is `PortDead`, which then is already right if the port
    /// dies with the packet.
    pub drop_reason: Option<DropReason>,
}

impl Meta {
    /// Returns how many datagrams a payload of `payload` bytes is in this packet: several if
    /// [`gso_size`](Self::gso_size) is smaller.
    ///
    /// ```
    /// let meta = onramp_queue::Meta { gso_size: 1_000, ..Default::default() };
    /// assert_eq!([0, 1, 1_000, 1_001].map(|payload| meta.datagrams_in(payload)), [1, 1, 1, 2]);
    /// ```
    #[must_use]
    #[inline]
    pub fn datagrams_in(&self, payload: usize) -> usize {
        match self.gso_size {
            0 => 1,
            size => payload.div_ceil(size.into()).max(1),
        }
    }

    /// Marks the packet as one that a device took at `now_ns` (nanoseconds on the link's clock). A
    /// device calls `mark_sent` before it hands a packet over to other code, so that the packet's
    /// [`Completion`](crate::Completion) is right. The port marks all packets that the device gives
    /// back to it.
    ///
    /// ```
    /// let mut packet = onramp_queue::Packet::with_payload(b"hello");
    /// packet.mark_sent(70);
    /// assert_eq!((packet.drop_reason, packet.txtime_ns), (None, 70));
    /// ```
    #[inline]
    pub fn mark_sent(&mut self, now_ns: u64) {
        (self.drop_reason, self.txtime_ns) = (None, now_ns);
    }
}

/// The layer at which a payload begins. Filters use the layer to find the addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// The payload begins with the data of a UDP datagram, whose destination is
    /// [`Packet::dest`](crate::Packet::dest). Sockets send such payloads.
    #[default]
    Datagram,
    /// The payload begins with an IPv4 or IPv6 header.
    Ip,
    /// The payload begins with an Ethernet header.
    Ethernet,
}

/// A checksum in a frame that the sender has left to the device (`CHECKSUM_PARTIAL`): the field
/// contains the sum of the pseudo-header only. The device, or a program, adds the bytes from
/// [`start`](Self::start) to the end of the frame, and writes the complement into the field.
///
/// Source: virtio 1.3, section 5.1.6.2, `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Offset in the payload of the first byte that the checksum covers: the transport header.
    pub start: u16,
    /// Offset of the checksum field from `start`: 16 for TCP, 6 for UDP.
    pub offset: u16,
}
