//! Where packets come from.

mod open;
mod rows;
mod window;

use onramp_core::Instant;
use onramp_queue::Packet;

pub use self::open::{Cbr, OnOff, Poisson};
pub use self::rows::{RowError, rows};
pub use self::window::Window;

use crate::BEGIN;

/// A sender of packets.
pub trait Source {
    /// When it wants to send its next packet, or wanted to; none: not before it hears something.
    fn due(&mut self) -> Option<Instant>;

    /// Sends: asked at the time that `due` has told. Without a packet, `due` has to tell another
    /// time.
    ///
    /// The packet's cookie, of which 48 bits are its own, may be that of no other packet on its
    /// way.
    fn packet(&mut self, now: Instant) -> Option<Packet>;

    /// How long it takes until it hears of an arrival; none: it does not listen.
    fn back_ns(&self) -> Option<u64> {
        None
    }

    /// Hears that a packet of its own has arrived.
    fn hear(&mut self, _now: Instant, _news: &News) {}
}

/// What a receiver tells the sender.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct News {
    /// Of which packet.
    pub cookie: u64,
    /// It arrived with CE.
    pub ce: bool,
}

/// What the packets of a source are like, and when it sends.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// The key of their flow.
    pub flow: u64,
    /// Bytes, link header included.
    pub size: u32,
    /// Their priority.
    pub priority: u32,
    /// Their ECN code point.
    pub ecn: u8,
    /// When it begins.
    pub from: Instant,
    /// When it ends.
    pub until: Instant,
}

impl Traffic {
    /// Packets of `flow`, of 1514 bytes, from the beginning on for ever.
    #[must_use]
    pub fn of(flow: u64) -> Self {
        Self { flow, size: 1514, priority: 0, ecn: 0, from: BEGIN, until: Instant::MAX }
    }

    /// With packets of `size` bytes.
    #[must_use]
    pub fn size(self, size: u32) -> Self {
        Self { size, ..self }
    }

    /// With packets that may be marked: ECT(0).
    #[must_use]
    pub fn ect(self) -> Self {
        Self { ecn: 2, ..self }
    }

    /// Between these times, nanoseconds since the beginning.
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

/// Packets whose times are known, such as those of a capture: an iterator as a source.
///
/// A packet that should come before the one before it comes together with that one. Their cookies
/// are replaced by their numbers, from 0 on.
#[derive(Debug)]
pub struct Records<I: Iterator> {
    records: I,
    next: Option<(Instant, Packet)>,
    number: u64,
}

impl<I: Iterator<Item = (Instant, Packet)>> Records<I> {
    /// Plays `records`, of which it looks at one at a time.
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
