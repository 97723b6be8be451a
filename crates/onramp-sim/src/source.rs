//! Sources: senders of packets for the simulation.

mod open;
mod rows;
mod window;

use onramp_core::Instant;
use onramp_queue::Packet;

pub use self::open::{Cbr, OnOff, Poisson};
pub use self::rows::{RowError, rows};
pub use self::window::Window;

use crate::time::BEGIN;

/// A sender of packets. Implement this trait to bring your own traffic into a [`Sim`](crate::Sim).
pub trait Source {
    /// Returns when the source wants to send its next packet; a time in the past means at once.
    /// `None` means that the source will not send before it hears of an arrival.
    fn due(&mut self) -> Option<Instant>;

    /// Returns the packet to send at `now`. The simulation calls this method at the time that `due`
    /// returned. An implementation may return `None` to send nothing, but then `due` must return
    /// another time afterwards.
    ///
    /// The source may use the low 48 bits of the packet's cookie, a number that comes back with the
    /// news of the packet. Packets of the same source that are on their way at the same time must
    /// have different cookies.
    fn packet(&mut self, now: Instant) -> Option<Packet>;

    /// Returns how long after a packet's arrival the source hears of that arrival, in nanoseconds;
    /// `None` if the source wants to hear of no arrivals.
    fn back_ns(&self) -> Option<u64> {
        None
    }

    /// Tells the source that one of its packets has arrived. The simulation calls this method only
    /// if `back_ns` returns a time.
    fn hear(&mut self, _now: Instant, _news: &News) {}
}

/// What the receiver of a packet reports to the packet's source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct News {
    /// The cookie of the packet that arrived.
    pub cookie: u64,
    /// Whether the packet arrived with a CE mark (congestion experienced).
    pub ce: bool,
}

/// The properties of the packets that a source sends, and the time during which it sends.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// The flow key of the packets.
    pub flow: u64,
    /// The size of each packet in bytes, link header included.
    pub size: u32,
    /// The priority of the packets.
    pub priority: u32,
    /// The ECN code point of the packets.
    pub ecn: u8,
    /// The time at which the source begins to send.
    pub from: Instant,
    /// The time at which the source stops: it sends only before this time.
    pub until: Instant,
}

impl Traffic {
    /// Returns traffic of flow `flow`: packets of 1514 bytes, sent from [`BEGIN`] on without end.
    #[must_use]
    pub fn of(flow: u64) -> Self {
        Self { flow, size: 1514, priority: 0, ecn: 0, from: BEGIN, until: Instant::MAX }
    }

    /// Sets the size of each packet to `size` bytes.
    #[must_use]
    pub fn size(self, size: u32) -> Self {
        Self { size, ..self }
    }

    /// Sets the ECN code point to ECT(0), so that qdiscs may mark the packets.
    #[must_use]
    pub fn ect(self) -> Self {
        Self { ecn: 2, ..self }
    }

    /// Limits the sending to the time from `from_ns` up to but not including `until_ns`, in
    /// nanoseconds since [`BEGIN`].
    #[must_use]
    pub fn between(self, from_ns: u64, until_ns: u64) -> Self {
        Self { from: BEGIN.after(from_ns), until: BEGIN.after(until_ns), ..self }
    }

    fn packet(&self, cookie: u64) -> Packet {
        let mut pkt = Packet::new(self.size);
        pkt.flow = self.flow;
        pkt.priority = self.priority;
        pkt.ecn = self.ecn;
        pkt.cookie = cookie;
        pkt
    }
}

/// A source of packets whose times are known in advance, such as those of a capture. It takes the
/// packets and their times from an iterator.
///
/// If the time of a packet lies before that of the previous packet, the two are sent at the same
/// time. The source replaces the cookie of each packet by the packet's number, counted from 0.
#[derive(Debug)]
pub struct Records<I: Iterator> {
    records: I,
    next: Option<(Instant, Packet)>,
    number: u64,
}

impl<I: Iterator<Item = (Instant, Packet)>> Records<I> {
    /// Creates a source that sends the packets in `records`. It reads only one packet ahead.
    pub fn new(mut records: I) -> Self {
        let next = records.next();
        Self { records, next, number: 0 }
    }
}

impl<I: Iterator<Item = (Instant, Packet)>> Source for Records<I> {
    fn due(&mut self) -> Option<Instant> {
        self.next.as_ref().map(|(due, _)| *due)
    }

    fn packet(&mut self, _now: Instant) -> Option<Packet> {
        let (_, mut pkt) = self.next.take()?;
        self.next = self.records.next();
        pkt.cookie = self.number;
        self.number += 1;
        Some(pkt)
    }
}
