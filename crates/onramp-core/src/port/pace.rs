//! Whether a port collects packets, or sends each as it comes.

use super::TICK_NS;
use crate::Instant;

/// So many packets in one tick make a port busy.
const BUSY_PACKETS: u32 = 24;
/// Fewer in one tick end that.
const IDLE_PACKETS: u32 = 12;
/// If the newest packet of a list is as old as that, senders had stopped, and it lay in vain.
const PAUSE_NS: u64 = TICK_NS / 8;
/// So many visits in turn that find that are no accident: a thread may lose its processor.
const IN_VAIN: u8 = 2;
/// For how long packets are not collected after that, at least and at most.
const HOLD_MIN_NS: u64 = 1_000_000;
const HOLD_MAX_NS: u64 = 64_000_000;

/// What came to a port of late.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Start of the present tick, and packets that came in it.
    tick_start: Instant,
    came: u32,
    /// When the newest packet was pushed that came in this run.
    newest: Option<Instant>,
    /// The last burst cost the device no call, so that to send packets one by one is as good.
    cheap: bool,
    /// Nothing is collected before then, and for how long that was.
    collects_from: Instant,
    hold_ns: u64,
    /// Visits since then that found packets, and how many of the last ones found that they lay in
    /// vain.
    visits: u8,
    in_vain: u8,
}

impl Pace {
    /// A list came whose newest packet was pushed at `newest`.
    #[inline]
    pub(super) fn received(&mut self, newest: Instant) {
        self.newest = Some(newest);
    }

    /// So many packets went on to the qdisc.
    #[inline]
    pub(super) fn enqueued(&mut self, packets: u32) {
        self.came += packets;
    }

    /// The device took a burst with so many calls.
    #[inline]
    pub(super) fn transmitted(&mut self, calls: u32) {
        self.cheap = calls == 0;
    }

    /// Bursts cost the device no call.
    pub(super) fn is_cheap(&self) -> bool {
        self.cheap
    }

    /// Nothing is to be collected just now.
    pub(super) fn holds(&self, now: Instant) -> bool {
        now < self.collects_from
    }

    /// Ends a run; whether what comes from here on is to be collected. `visit`: it was the
    /// keeper's.
    ///
    /// Senders that wait for answers send a burst and stop. To collect it only delays it, which
    /// the keeper sees by the age of the newest packet. So it lets the port be for a while, and for
    /// longer if it sees that again at once. Not if each burst costs the device a call: then a list
    /// that lay is still cheaper than packets that went one by one.
    pub(super) fn collects(&mut self, was_busy: bool, visit: bool, now: Instant) -> bool {
        let (came, newest) = (self.came, self.newest.take());
        let tick_over = now.since(self.tick_start) >= TICK_NS;
        if tick_over {
            (self.tick_start, self.came) = (now, 0);
        }
        if let Some(newest) = newest
            && visit
            && was_busy
            && self.cheap
        {
            self.look(now.since(newest) >= PAUSE_NS, now);
        }
        match was_busy {
            _ if self.holds(now) => false,
            true => !(visit && tick_over && came < IDLE_PACKETS),
            false => !tick_over && came >= BUSY_PACKETS,
        }
    }

    /// A visit found packets: whether they `lay` there with nobody sending.
    fn look(&mut self, lay: bool, now: Instant) {
        self.visits = self.visits.saturating_add(1);
        self.in_vain = if lay { self.in_vain + 1 } else { 0 };
        if self.in_vain < IN_VAIN {
            return;
        }
        let at_once = self.visits <= 2 * IN_VAIN;
        self.hold_ns =
            if at_once { (2 * self.hold_ns).clamp(HOLD_MIN_NS, HOLD_MAX_NS) } else { HOLD_MIN_NS };
        (self.collects_from, self.visits, self.in_vain) = (now.after(self.hold_ns), 0, 0);
    }
}
