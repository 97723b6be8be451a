//! Decides whether a port collects packets (pushes only stage them, and the runner sends them
//! later) or sends each packet when it arrives.

use super::TICK_NS;
use crate::base::Instant;

/// When this many packets come in one tick ([`TICK_NS`]), the port becomes busy: it collects
/// packets.
const BUSY_PACKETS: u32 = 24;
/// When fewer packets than this come in one tick, the port is busy no longer.
const IDLE_PACKETS: u32 = 12;
/// Packets were collected *in vain* if the newest packet that the runner finds is at least this
/// old, in nanoseconds. Then the senders had stopped before the runner came, and collecting only
/// delayed the packets.
const PAUSE_NS: u64 = TICK_NS / 8;
/// After this many consecutive visits that found packets collected in vain, the port stops
/// collecting for a while. A single such visit may be an accident, since a thread may lose its
/// processor.
const IN_VAIN: u8 = 2;
/// The shortest and the longest pause in collecting, in nanoseconds, after packets were collected
/// in vain.
const HOLD_MIN_NS: u64 = 1_000_000;
const HOLD_MAX_NS: u64 = 64_000_000;

/// The recent traffic of a port, from which it decides whether to collect packets.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Time at which the present tick began, and the number of packets that have come in this tick.
    tick_start: Instant,
    came: u32,
    /// Time at which the newest packet that came in this run was pushed, or `None` if no packet
    /// came.
    newest: Option<Instant>,
    /// Whether the device made no call into the kernel for the last burst. If so, sending packets
    /// one by one costs no more than sending them in bursts.
    cheap: bool,
    /// Time before which the port does not collect packets, and the length of the last pause in
    /// collecting, in nanoseconds.
    collects_from: Instant,
    hold_ns: u64,
    /// `visits`: number of the runner's visits since the last pause that found packets. `in_vain`:
    /// how many of the latest of these visits, in a row, found packets that were collected in vain.
    visits: u8,
    in_vain: u8,
}

impl Pace {
    /// Records that packets came from the intake, the newest of which was pushed at `newest`.
    #[inline]
    pub(super) fn received(&mut self, newest: Instant) {
        self.newest = Some(newest);
    }

    /// Records that `packets` packets were moved into the qdisc.
    #[inline]
    pub(super) fn enqueued(&mut self, packets: u32) {
        self.came += packets;
    }

    /// Records that the device was called with a burst, which cost `calls` calls into the kernel.
    #[inline]
    pub(super) fn transmitted(&mut self, calls: u32) {
        self.cheap = calls == 0;
    }

    /// Whether the last burst cost the device no call into the kernel.
    pub(super) fn is_cheap(&self) -> bool {
        self.cheap
    }

    /// Whether the port collects no packets at `now`, because it recently collected packets in
    /// vain.
    pub(super) fn holds(&self, now: Instant) -> bool {
        now < self.collects_from
    }

    /// Ends a run of an owner. Returns whether packets that arrive after the run are to be
    /// collected. `visit` says whether the run was a visit of the runner.
    ///
    /// Senders that wait for answers send a burst and stop. Collecting such a burst only delays it.
    /// The runner notices the delay by the age of the newest packet, and the port then stops
    /// collecting for a while (a pause). If packets are delayed again soon after a pause, the next
    /// pause is longer. There is no pause if each burst costs the device a call into the kernel,
    /// because sending many packets late in one call is then still cheaper than sending them one by
    /// one.
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
            self.note_visit(now.since(newest) >= PAUSE_NS, now);
        }
        match was_busy {
            _ if self.holds(now) => false,
            true => !(visit && tick_over && came < IDLE_PACKETS),
            false => !tick_over && came >= BUSY_PACKETS,
        }
    }

    /// Records a visit of the runner that found packets. `lay` says whether these packets were
    /// collected in vain (see [`PAUSE_NS`]).
    fn note_visit(&mut self, lay: bool, now: Instant) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Time of the first visit, in nanoseconds. After two visits that find packets collected in
    /// vain, the port stops collecting.
    const START: u64 = 1_000_000_000;

    /// Lets the runner visit a busy port at `at`, when the newest packet is `age` nanoseconds old.
    /// Returns whether the port goes on collecting.
    fn visit(pace: &mut Pace, at: u64, age: u64) -> bool {
        pace.transmitted(0);
        pace.received(Instant(at - age));
        pace.enqueued(1_000);
        pace.collects(true, true, Instant(at))
    }

    /// Finds by bisection for how many nanoseconds after `at` the port does not collect packets.
    fn hold_ns(pace: &Pace, at: u64) -> u64 {
        let (mut held, mut free) = (0, 1 << 40);
        if !pace.holds(Instant(at)) {
            return 0;
        }
        while free - held > 1 {
            let middle = (held + free) / 2;
            *if pace.holds(Instant(at + middle)) { &mut held } else { &mut free } = middle;
        }
        free
    }

    /// Packets were collected in vain if the newest is at least an eighth of a tick old (12.5 us).
    /// A younger packet shows that senders are still active.
    #[test]
    fn packets_of_12500_ns_or_older_were_collected_in_vain() {
        for (age, lay) in [(0, false), (12_499, false), (12_500, true), (90_000, true)] {
            let mut pace = Pace::default();
            assert!(visit(&mut pace, START, age), "one says nothing, {age}");
            assert_eq!(hold_ns(&pace, START), 0);
            assert_eq!(visit(&mut pace, START + TICK_NS, age), !lay, "{age}");
            assert_eq!(hold_ns(&pace, START + TICK_NS), if lay { 1_000_000 } else { 0 }, "{age}");
        }
    }

    /// The first pause in collecting is 1 ms. Each time packets are again collected in vain soon
    /// after a pause, the next pause is twice as long, up to 64 ms.
    #[test]
    fn collecting_pauses_for_longer_each_time() {
        let (mut pace, mut at) = (Pace::default(), START);
        for expected in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
            assert!(visit(&mut pace, at, 20_000), "the first of two, before {expected}");
            assert!(!visit(&mut pace, at + TICK_NS, 20_000), "{expected}");
            assert_eq!(hold_ns(&pace, at + TICK_NS), expected * 1_000_000);
            at += TICK_NS + expected * 1_000_000;
        }
    }

    /// If two visits in a row, among the first four visits after a pause, find packets collected in
    /// vain, the next pause is twice as long. If the first such two visits come later, the next
    /// pause is 1 ms again.
    #[test]
    fn after_some_good_visits_the_pause_is_short_again() {
        for (good, doubles) in
            [(0, true), (1, true), (2, true), (3, false), (9, false), (999, false)]
        {
            let (mut pace, mut at) = (Pace::default(), START);
            let twice = |pace: &mut Pace, at: &mut u64| {
                assert!(visit(pace, *at, 20_000));
                *at += TICK_NS;
                assert!(!visit(pace, *at, 20_000), "twice in turn");
                let hold = hold_ns(pace, *at);
                *at += hold;
                hold
            };
            assert_eq!(twice(&mut pace, &mut at), 1_000_000);
            assert_eq!(twice(&mut pace, &mut at), 2_000_000);
            for _ in 0..good {
                assert!(visit(&mut pace, at, 0), "packets come all the time");
                at += TICK_NS;
            }
            let expected = if doubles { 4_000_000 } else { 1_000_000 };
            assert_eq!(twice(&mut pace, &mut at), expected, "{good} good ones");
        }
    }

    /// The port goes on collecting if every other visit of the runner finds packets that were not
    /// collected in vain.
    #[test]
    fn only_two_visits_in_a_row_cause_a_pause() {
        let (mut pace, mut at) = (Pace::default(), START);
        for round in 0..300 {
            assert!(visit(&mut pace, at, [20_000, 0][round % 2]), "{round}");
            at += TICK_NS;
        }
        assert_eq!(hold_ns(&pace, at), 0);
    }

    /// Nine runs of an owner, with packets that are 50 us old, cause no pause in collecting if the
    /// owner is a sender, if the port was not busy, or if the device makes calls into the kernel.
    /// Nine visits of the runner that find no packets cause no pause either.
    #[test]
    fn only_visits_that_find_what_was_collected_count() {
        for (was_busy, by_runner, calls, finds) in [
            (false, true, 0, true),
            (true, false, 0, true),
            (true, true, 1, true),
            (true, true, 0, false),
        ] {
            let mut pace = Pace::default();
            for round in 0..9 {
                let now = Instant(START + round * TICK_NS);
                pace.transmitted(calls);
                assert_eq!(pace.is_cheap(), calls == 0);
                if finds {
                    pace.received(Instant(now.0 - 50_000));
                }
                pace.enqueued(1_000);
                let _ = pace.collects(was_busy, by_runner, now);
                assert!(!pace.holds(now), "{was_busy} {by_runner} {calls} {finds}");
            }
        }
    }

    /// The age of the newest packet counts only in the run in which the packet came.
    #[test]
    fn each_run_has_packets_of_its_own() {
        let mut pace = Pace::default();
        pace.transmitted(0);
        pace.received(Instant(START));
        for round in 0..9 {
            let _ = pace.collects(true, true, Instant(START + 50_000 + round * TICK_NS));
        }
        assert!(!pace.holds(Instant(START + 50_000)));
    }

    /// 24 packets in a tick make a port busy, so that it collects packets. When fewer than 12
    /// packets come in a tick, the runner ends the busy period.
    #[test]
    fn busy_and_idle_by_the_packets_of_a_tick() {
        for (came, idle_collects, busy_collects) in [
            (0, false, false),
            (11, false, false),
            (12, false, true),
            (23, false, true),
            (24, true, true),
        ] {
            let after = |was_busy, visit, ns| {
                let mut pace = Pace::default();
                // This call begins a new tick at `START`, because the first tick, which began at
                // time 0, is over.
                let _ = pace.collects(false, false, Instant(START));
                pace.enqueued(came);
                pace.collects(was_busy, visit, Instant(START + ns))
            };
            assert_eq!(after(false, false, TICK_NS - 1), idle_collects, "{came}");
            assert_eq!(after(false, true, TICK_NS - 1), idle_collects, "{came}");
            assert!(!after(false, false, TICK_NS), "{came}: the tick is over");
            assert!(!after(false, true, TICK_NS), "{came}: the tick is over");
            assert_eq!(after(true, true, TICK_NS), busy_collects, "{came}");
            assert!(after(true, true, TICK_NS - 1), "{came}: the tick is not over");
            assert!(after(true, false, TICK_NS), "{came}: senders do not end it");
        }
    }

    /// A run that comes after the end of a tick begins the next tick, in which no packets have come
    /// yet.
    #[test]
    fn a_tick_begins_with_nothing() {
        let mut pace = Pace::default();
        let at = |pace: &mut Pace, came, ns| {
            pace.enqueued(came);
            pace.collects(false, false, Instant(START + ns))
        };
        assert!(!at(&mut pace, 100, 0));
        assert!(!at(&mut pace, 23, 1));
        assert!(at(&mut pace, 1, 2));
        assert!(!at(&mut pace, 100, TICK_NS));
        assert!(!at(&mut pace, 23, 2 * TICK_NS - 1));
        assert!(at(&mut pace, 1, 2 * TICK_NS - 1));
    }

    #[test]
    fn nothing_is_held_at_first() {
        assert!(!Pace::default().holds(Instant(0)));
        assert!(!Pace::default().is_cheap());
    }
}
