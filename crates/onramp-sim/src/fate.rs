//! What became of the packets in a simulation.

use onramp_core::Instant;
use onramp_core::qdisc::Backlog;
use onramp_queue::Packet;

/// What became of one packet: whether it was sent or dropped, and when.
#[derive(Debug)]
pub struct Fate {
    /// The packet as it left the tree of qdiscs, with the cookie (a number) that its source gave
    /// it. If the packet was dropped, its `drop_reason` says why.
    pub packet: Packet,
    /// The number of the source that sent the packet, as returned by [`Sim::add`](crate::Sim::add).
    pub source: usize,
    /// The time at which the packet came to the tree of qdiscs.
    pub came: Instant,
    /// The backlog of the tree (the packets and bytes in it) just before this packet came.
    pub met: Backlog,
    /// The time at which the packet left the tree for the wire, or was dropped.
    pub at: Instant,
    /// The time at which the packet's last bit arrives at the other end; `None` if the packet was
    /// dropped.
    pub arrives: Option<Instant>,
    /// The ECN code point that the packet had when it came to the tree.
    pub ecn: u8,
    /// Whether a qdisc marked the packet with CE (congestion experienced).
    pub marked: bool,
    /// Whether the packet is a copy that a qdisc made (`netem duplicate`). In this case a packet
    /// with the same cookie has left the tree before.
    pub copy: bool,
}

impl Fate {
    /// Returns how long the packet was in the tree, in nanoseconds.
    #[must_use]
    pub fn sojourn_ns(&self) -> u64 {
        self.at.since(self.came)
    }
}
