//! Congestion control of a relay's connections: how much of a direction may be on its way.
//!
//! Sources: slow start, congestion avoidance and the answer to loss are those of RFC 5681 and RFC
//! 6582 (`NewReno`), the answer to marks is that of RFC 3168, the timer that of RFC 6298 with the
//! shortest time of Linux, and a loss that was none is taken back as in RFC 4015.

use std::time::Duration;

use onramp_core::Instant;

/// Segments that may be on their way at the beginning (RFC 6928).
const FIRST: u64 = 10;
/// Shortest and longest time after which a segment without an answer is sent again, and the time as
/// long as no answer has been measured.
pub(super) const WAIT_MIN: Duration = Duration::from_millis(200);
const WAIT_MAX: Duration = Duration::from_secs(60);
pub(super) const WAIT_FIRST: Duration = Duration::from_secs(1);

/// The window of a direction.
#[derive(Debug)]
pub(super) struct Window {
    mss: u64,
    most: u64,
    size: u64,
    threshold: u64,
    /// Losses of transmissions before this one belong to those that were answered.
    until: u64,
    /// Size and threshold before the last answer to a loss.
    before: (u64, u64),
    /// Smoothed round-trip time and its variation, nanoseconds.
    times: Option<(u64, u64)>,
    /// How often the timer has expired since the last progress.
    pub(super) expired: u32,
}

impl Window {
    /// Makes the window of a direction with segments of up to `mss` bytes and a window of at most
    /// `most` bytes.
    pub(super) const fn new(mss: u32, most: u64) -> Self {
        let mss = mss as u64;
        let size = FIRST * mss;
        let (times, expired, until, before) = (None, 0, 0, (size, most));
        Self { mss, most, size, threshold: most, until, before, times, expired }
    }

    /// Returns how many bytes may be on their way.
    pub(super) const fn size(&self) -> u64 {
        self.size
    }

    /// Notes how long the answer to a transmission has taken.
    pub(super) fn measured(&mut self, sent: Instant, now: Instant) {
        let time = now.since(sent);
        self.times = Some(match self.times {
            None => (time, time / 2),
            Some((smooth, vary)) => {
                ((7 * smooth + time) / 8, (3 * vary + smooth.abs_diff(time)) / 4)
            }
        });
    }

    /// Returns how long to wait for an answer.
    pub(super) fn wait(&self) -> Duration {
        let measured = |(smooth, vary)| Duration::from_nanos(smooth + 4 * vary).max(WAIT_MIN);
        let wait = self.times.map_or(WAIT_FIRST, measured);
        wait.saturating_mul(1 << self.expired.min(16)).min(WAIT_MAX)
    }

    /// Bytes have arrived, of which the last with transmission `tx`. `was_full`: more would have
    /// been sent if the window had been larger.
    pub(super) fn grow(&mut self, bytes: u64, tx: u64, was_full: bool) {
        self.expired = 0;
        if !was_full || tx < self.until {
            return;
        }
        let more = if self.size < self.threshold {
            bytes.min(self.threshold - self.size)
        } else {
            (self.mss * bytes / self.size).max(1)
        };
        self.size = (self.size + more).min(self.most);
    }

    /// Transmission `tx` was lost or marked. `next` is the number of the next transmission. Halves
    /// the window, at most once for all that is on its way.
    pub(super) fn congested(&mut self, tx: u64, next: u64) {
        if tx >= self.until {
            self.before = (self.size, self.threshold);
            self.threshold = (self.size / 2).max(2 * self.mss);
            (self.size, self.until) = (self.threshold, next);
        }
    }

    /// No answer has come for so long that all that is on its way counts as lost.
    pub(super) fn expire(&mut self, next: u64) {
        if self.expired == 0 {
            self.before = (self.size, self.threshold);
            self.threshold = (self.size / 2).max(2 * self.mss);
        }
        (self.size, self.until) = (self.mss, next);
        self.expired += 1;
    }

    /// What counted as lost has arrived: takes the last answer to a loss back.
    pub(super) fn undo(&mut self) {
        let (size, threshold) = self.before;
        self.size = self.size.max(size);
        (self.threshold, self.until) = (self.threshold.max(threshold), 0);
    }
}
