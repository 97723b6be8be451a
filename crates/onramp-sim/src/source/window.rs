//! A source that answers to congestion, as TCP does.
//!
//! Source: RFC 5681 (slow start, congestion avoidance, halving), RFC 6298 (timeout), RFC 6675 (the
//! window limits the number of packets known to be on their way), RFC 3042 (two more packets while
//! a loss is likely but not certain), RFC 3168 (CE halves the window once per round trip).
//!
//! This source is simpler than TCP. The receiver reports each packet at once, and no report is
//! lost. There is no handshake. Packets have no content, so any new packet replaces a lost one; a
//! source with a limited number of packets is done when that number has arrived. A packet counts as
//! lost when three later packets have arrived. After a timeout no packet counts as on its way.

use std::collections::VecDeque;

use onramp_core::Instant;
use onramp_queue::Packet;

use super::{News, Source, Traffic};
use crate::time::SEC;

/// Packets in flight that a new source may have (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;
/// Number of arrivals of later packets that show that a packet is lost.
const REORDERING: u64 = 3;
/// Least time, in nanoseconds, that a timeout adds to the round trip (as in Linux); below it, the
/// first timeout, before any round trip is measured.
const TIMEOUT_SLACK_NS: f64 = 2e8;
const TIMEOUT_FIRST_NS: u64 = SEC;
/// Largest number of times that the timeout is doubled.
const BACKOFFS_MAX: u32 = 6;

/// A sender with a congestion window, like that of TCP Reno. It answers to ECN marks if its packets
/// may be marked.
#[derive(Clone, Debug)]
pub struct Window {
    traffic: Traffic,
    back_ns: u64,
    /// The congestion window: the number of packets that may be in flight.
    window: f64,
    threshold: f64,
    /// The number of the next packet.
    next: u64,
    /// Number and sending time of each packet in flight, in the order of sending.
    flying: VecDeque<(u64, Instant)>,
    /// Events of packets with a lower number than this neither shrink nor grow the window, because
    /// the window already shrank after these packets were sent.
    settled: u64,
    /// Number of arrivals behind the first packet in flight. For each of these arrivals the sender
    /// may send one packet more than the window allows. There are always fewer than [`REORDERING`],
    /// because that many show that the first packet is lost.
    beyond: u64,
    /// Number of packets that must still arrive until the source is done; `None` if it sends
    /// without end.
    left: Option<u64>,
    /// Smoothed round trip and its mean deviation, in nanoseconds; `None` before the first arrival.
    trip_ns: Option<(f64, f64)>,
    /// Number of timeouts since the last arrival.
    backoffs: u32,
    /// The time at which the timeout began to run.
    timer: Instant,
}

impl Window {
    /// Creates a source that hears of each arrival after `back_ns` nanoseconds. Its round trip is
    /// `back_ns` plus the delay of the wire plus the packet's time in the tree and on the wire.
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

    /// Limits the source: it sends until `packets` packets have arrived.
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

    /// Halves the window because packet `number` was lost or marked, but at most once per round
    /// trip: packets sent before the last halving do not count.
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
