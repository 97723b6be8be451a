//! A source that reacts to congestion, as TCP does.
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

/// Number of packets that a new source may have in flight (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;
/// Number of later packets whose arrival shows that an earlier packet is lost.
const REORDERING: u64 = 3;
/// The timeout is at least this much longer than the smoothed round trip, in nanoseconds, as in
/// Linux.
const TIMEOUT_SLACK_NS: f64 = 2e8;
/// The timeout before any round trip has been measured, in nanoseconds.
const TIMEOUT_FIRST_NS: u64 = SEC;
/// Largest number of times that the timeout is doubled while no packet arrives.
const BACKOFFS_MAX: u32 = 6;

/// A sender with a congestion window, as in TCP Reno. If its packets may be marked, it reacts to
/// ECN marks, too.
#[derive(Clone, Debug)]
pub struct Window {
    traffic: Traffic,
    back_ns: u64,
    /// The congestion window: the number of packets that may be in flight. It may grow by a
    /// fraction of a packet; it allows one more packet when such fractions have added up to a whole
    /// packet.
    window: f64,
    threshold: f64,
    /// The number of the next packet to send.
    next: u64,
    /// The number and the sending time of each packet in flight, in the order of sending.
    flying: VecDeque<(u64, Instant)>,
    /// The loss, mark or arrival of a packet with a lower number than this does not change the
    /// window, because the window was halved after that packet was sent.
    settled: u64,
    /// Number of packets that have arrived although the first packet in flight, which was sent
    /// before them, has not. For each of them, the sender may have one packet more in flight than
    /// the window allows. The number stays below [`REORDERING`], because so many arrivals show that
    /// the first packet is lost.
    beyond: u64,
    /// Number of packets that must still arrive until the source is done; `None` if it sends
    /// without end.
    left: Option<u64>,
    /// The smoothed round trip and its mean deviation, in nanoseconds; `None` before the first
    /// packet has arrived.
    trip_ns: Option<(f64, f64)>,
    /// Number of timeouts since the last arrival, at most [`BACKOFFS_MAX`].
    backoffs: u32,
    /// The time from which the timeout is counted.
    timer: Instant,
}

impl Window {
    /// Creates a source that hears of the arrival of each packet `back_ns` nanoseconds after it.
    /// The round trip is `back_ns` plus the delay of the wire plus the time that the packet spends
    /// in the tree and being sent.
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

    /// Makes the source end when `packets` packets have arrived.
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

    /// Halves the window because the packet `number` was lost or marked. Packets that were sent
    /// before the last halving do not halve it again, so the window is halved at most once per
    /// round trip.
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
