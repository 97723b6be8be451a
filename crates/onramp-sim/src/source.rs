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
    /// Returns when the source wants to send its next packet. The time may lie in the past. `None`:
    /// the source will not send before it hears of an arrival.
    fn due(&mut self) -> Option<Instant>;

    /// Sends a packet. The simulation calls this method at the time that `due` returned. An
    /// implementation that returns `None` must return another time from `due` afterwards.
    ///
    /// The source owns the low 48 bits of the packet's cookie. No other packet of the same source
    /// that is still on its way may have the same cookie.
    fn packet(&mut self, now: Instant) -> Option<Packet>;

    /// Returns how long after a packet's arrival the source hears of that arrival, in nanoseconds;
    /// `None` if the source does not listen.
    fn back_ns(&self) -> Option<u64> {
        None
    }

    /// Tells the source that one of its packets has arrived.
    fn hear(&mut self, _now: Instant, _news: &News) {}
}

/// The report of a receiver to the sender of a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct News {
    /// The cookie of the packet that arrived.
    pub cookie: u64,
    /// Whether the packet arrived with a CE mark (congestion experienced).
    pub ce: bool,
}

/// Properties of the packets of a source, and the time during which the source sends.
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
    /// Returns traffic of flow `flow`: packets of 1514 bytes, from [`BEGIN`] on, without end.
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

    /// Limits the sending to the time between `from_ns` and `until_ns`, in nanoseconds since
    /// [`BEGIN`].
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
/// packets from an iterator.
///
/// A packet whose time lies before that of its predecessor is sent together with its predecessor.
/// The cookie of each packet is replaced by its number, counted from 0.
#[derive(Debug)]
pub struct Records<I: Iterator> {
    records: I,
    next: Option<(Instant, Packet)>,
    number: u64,
}

impl<I: Iterator<Item = (Instant, Packet)>> Records<I> {
    /// Creates a source that plays `records`. It reads only one record ahead.
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
