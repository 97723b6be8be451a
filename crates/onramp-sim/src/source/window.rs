//! A source that answers to congestion.
//!
//! Source: RFC 5681 (slow start, congestion avoidance, halving), RFC 6298 (timeout), RFC 6675 (the
//! window limits what is known to be on its way), RFC 3042 (two packets more while a loss is likely
//! but not known), RFC 3168 (CE halves the window once a round trip).
//!
//! What is simpler than a TCP: the receiver tells of each packet, at once, and nothing of that is
//! lost. There is no handshake. One packet is as good as another: for a lost one a new one is sent,
//! if there is an end to what is sent, and it is done when as many have arrived. Three later
//! arrivals tell that a packet is lost. After a timeout nothing counts as on its way.

use std::collections::VecDeque;

use onramp_core::Instant;
use onramp_queue::Packet;

use super::{News, Source, Traffic};
use crate::SEC;

/// Packets in flight to begin with: RFC 6928.
const INITIAL_WINDOW: f64 = 10.0;
/// Later packets whose arrival tells that one is lost.
const REORDERING: u64 = 3;
/// By how much a timeout is longer than a round trip, at least (as in Linux), and the first one.
const TIMEOUT_SLACK_NS: f64 = 2e8;
const TIMEOUT_FIRST_NS: u64 = SEC;
/// Doublings of it, at most.
const BACKOFFS_MAX: u32 = 6;

/// A sender with a window, as TCP Reno has it, and ECN if its packets may be marked.
#[derive(Clone, Debug)]
pub struct Window {
    traffic: Traffic,
    back_ns: u64,
    /// Packets that may be in flight.
    window: f64,
    threshold: f64,
    /// The next packet's number.
    next: u64,
    /// Numbers and times of packets in flight, in order.
    flying: VecDeque<(u64, Instant)>,
    /// The window neither shrinks nor grows for packets before this one.
    settled: u64,
    /// Arrivals behind the first packet in flight, for each of which a packet beyond the window may
    /// be sent: fewer than [`REORDERING`], which tell of its loss.
    beyond: u64,
    /// Packets that are still to arrive; none: without end.
    left: Option<u64>,
    /// Smoothed round trip and its variance.
    trip_ns: Option<(f64, f64)>,
    /// Timeouts since something arrived.
    backoffs: u32,
    /// When the timeout was started.
    timer: Instant,
}

impl Window {
    /// Hears of arrivals after `back_ns`: the round trip is that, the wire's delay, and the time in
    /// the tree and on the wire.
    #[must_use]
    pub fn new(traffic: Traffic, back_ns: u64) -> Self {
        Self {
            timer: traffic.from,
            traffic,
            back_ns,
            window: INITIAL_WINDOW,
            threshold: f64::INFINITY,
            next: 0,
            flying: VecDeque::new(),
            settled: 0,
            beyond: 0,
            left: None,
            trip_ns: None,
            backoffs: 0,
        }
    }

    /// With an end: it sends until so many packets have arrived.
    #[must_use]
    pub fn packets(self, packets: u64) -> Self {
        Self { left: Some(packets), ..self }
    }

    fn is_open(&self) -> bool {
        let flying = self.flying.len() as u64;
        self.left.is_none_or(|left| flying < left)
            && (flying + 1) as f64 <= self.window + self.beyond as f64
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    fn timeout_ns(&self) -> u64 {
        let plain = self.trip_ns.map_or(TIMEOUT_FIRST_NS, |(smooth, off)| {
            (smooth + (4.0 * off).max(TIMEOUT_SLACK_NS)) as u64
        });
        plain.saturating_mul(1 << self.backoffs)
    }

    /// Halves the window for packet `number`, unless it was for one sent in the same round trip.
    fn shrink(&mut self, number: u64) {
        if number >= self.settled {
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = self.threshold;
            self.settled = self.next;
        }
    }

    fn grow(&mut self) {
        self.window += if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
    }

    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a round trip")]
    fn measure(&mut self, trip_ns: u64) {
        let trip = trip_ns as f64;
        self.trip_ns = Some(match self.trip_ns {
            None => (trip, trip / 2.0),
            Some((smooth, off)) => {
                (0.875 * smooth + 0.125 * trip, 0.75 * off + 0.25 * (smooth - trip).abs())
            }
        });
    }
}

impl Source for Window {
    fn due(&mut self) -> Option<Instant> {
        if self.left == Some(0) {
            return None;
        }
        let due = match self.is_open() {
            true => self.timer,
            false => self.timer.after(self.timeout_ns()),
        };
        (due < self.traffic.until).then_some(due)
    }

    fn packet(&mut self, now: Instant) -> Option<Packet> {
        if !self.is_open() {
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = 1.0;
            self.backoffs = (self.backoffs + 1).min(BACKOFFS_MAX);
            self.flying.clear();
            self.beyond = 0;
        }
        if self.flying.is_empty() {
            self.timer = now;
        }
        self.flying.push_back((self.next, now));
        self.next += 1;
        Some(self.traffic.packet(self.next - 1))
    }

    fn back_ns(&self) -> Option<u64> {
        Some(self.back_ns)
    }

    fn hear(&mut self, now: Instant, news: &News) {
        let Ok(place) = self.flying.binary_search_by_key(&news.cookie, |(number, _)| *number)
        else {
            return;
        };
        let Some((number, sent)) = self.flying.remove(place) else { return };
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.measure(now.since(sent));
        self.backoffs = 0;
        self.timer = now;
        let lost = |flying: &VecDeque<(u64, Instant)>| {
            flying.front().map(|(first, _)| *first).filter(|first| first + REORDERING <= number)
        };
        self.beyond = if place > 0 { self.beyond + 1 } else { 0 };
        while let Some(first) = lost(&self.flying) {
            self.flying.pop_front();
            self.beyond = 0;
            self.shrink(first);
        }
        if news.ce {
            self.shrink(number);
        } else if number >= self.settled {
            self.grow();
        }
    }
}
