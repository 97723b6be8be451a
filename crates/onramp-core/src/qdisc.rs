//! Queueing disciplines: the trait, and the table of those we have.
//!
//! Invariants, checked for every entry of [`KINDS`] by `tests/conformance.rs`:
//!
//! * conservation: enqueued = dequeued + dropped + backlog;
//! * a qdisc's backlog changes only inside a call its parent makes, so a parent needs no callback;
//! * time is `cx.now`, chance is `cx`'s: same calls, same packets out.

use std::fmt::Debug;

use onramp_queue::{DropReason, Packet, PacketList};

use crate::Instant;

/// What a call gets from outside.
#[derive(Debug)]
pub struct Cx<'a> {
    /// The present, the same for a whole burst.
    pub now: Instant,
    /// Dropped packets, freed by the caller after it has let go of the qdisc.
    pub drops: &'a mut PacketList,
}

impl Cx<'_> {
    /// Drops `pkt`, saying why.
    pub fn drop(&mut self, mut pkt: Packet, reason: DropReason) {
        pkt.drop_reason = Some(reason);
        self.drops.push_back(pkt);
    }
}

/// The fate of an enqueue (`NET_XMIT_*`).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Queued.
    Queued,
    /// Queued, but another packet was dropped for it (`NET_XMIT_CN`).
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
    /// Something is held, but nothing may go before then (`qdisc_watchdog`).
    NotBefore(Instant),
    /// Nothing is held.
    Empty,
}

/// Packets and wire bytes held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Packets.
    pub packets: u32,
    /// Bytes.
    pub bytes: u64,
}

/// A queueing discipline. `&mut self` is the root lock.
pub trait Qdisc: Send + Debug {
    /// Takes `pkt` in, or drops it into `cx`.
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict;

    /// Lets the next packet out.
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue;

    /// What is held, children included. O(1).
    fn backlog(&self) -> Backlog;

    /// Drops everything.
    fn reset(&mut self, cx: &mut Cx<'_>);
}
