//! The time in which the qdiscs of a port live: normally the present, and a bounded time behind the
//! clock while an owner catches up.
//!
//! An owner often comes later than the instant at which a qdisc could release its next packet,
//! because timers and schedulers are late. If the owner asked the qdisc only at the present time, a
//! shaper with a small burst would lose the rate of the time in between. So the owner first asks
//! the qdisc at the instants that were due, one after another, up to the present, and enqueues the
//! packets that arrived meanwhile at the instants at which they were pushed. Every qdisc then
//! behaves as under a punctual owner, and no kind of qdisc needs code for lateness. All packets
//! that were due go to the device at once, in a burst that is as long as the lateness. The option
//! `catch_up_ns` bounds this burst; a port loses the time by which it is later than that.
//!
//! A port may also come late on purpose ([`Wakes`]): with the option `slack_ns`, it asks its runner
//! to come so long after the instant that is due, and with `rest_ns` at most once in this time, so
//! that one wake-up serves all packets of that time. This is no lateness: it comes on top of
//! `catch_up_ns` as the bound on the burst, and an owner is late only if it comes after the time
//! that the port asked for.
//!
//! Invariant: the time that a qdisc is called with never runs backwards, and is never later than
//! the owner's time.

use super::TICK_NS;
use crate::base::{Instant, Wakes};

/// How far the qdiscs of a port may lag behind the clock, in nanoseconds, unless
/// [`PortOptions`](super::PortOptions) say otherwise: 5 ms.
pub const CATCH_UP_NS: u64 = 5_000_000;

/// How long packets may have waited for an owner before it enqueues them at the instants of their
/// arrivals rather than all at once at the present: twice as long as they wait in a busy port.
const STAGED_NS: u64 = 2 * TICK_NS;

/// The time in which the qdiscs of one port live.
#[derive(Debug)]
pub(super) struct OwnTime {
    /// The latest time that the qdiscs were called with.
    now: Instant,
    /// The instant at which the qdisc could release its next packet, if the last owner left packets
    /// that had to wait for an instant.
    due: Option<Instant>,
    /// The latest instant that was due and has been served.
    served: Instant,
    /// When the runner is asked to come for `due`.
    wakes: Wakes,
    /// How far the qdiscs may lag behind the clock by lateness, beyond what is on purpose.
    catch_up_ns: u64,
}

/// How late an owner came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lateness {
    /// Nanoseconds from the time for which the port had asked to the owner's time, or 0 if the
    /// owner came before that time; `None` if the owner goes on where an earlier owner, whose
    /// lateness is counted already, left off.
    pub(super) late_ns: Option<u64>,
    /// How many nanoseconds since the instant that was due the port does not catch up on.
    pub(super) lost_ns: u64,
}

impl OwnTime {
    pub(super) const fn new(catch_up_ns: u64, wakes: Wakes) -> Self {
        Self { now: Instant(0), due: None, served: Instant(0), wakes, catch_up_ns }
    }

    /// Lets the port leave its runner alone for up to `most_ns` nanoseconds, if it rests at all.
    #[inline]
    pub(super) fn rest_up_to(&mut self, most_ns: u64) {
        self.wakes.rest_up_to(most_ns);
    }

    /// Returns when the runner of a port whose owner leaves at `present` is to come, if the qdisc
    /// may release its next packet at `due`. A visit that could do something at once is not put
    /// off.
    #[inline]
    pub(super) fn visit_at(&mut self, due: Instant, present: Instant) -> Instant {
        if due <= present {
            return due;
        }
        self.wakes.gap(self.served, due);
        self.wakes.ask(due)
    }

    /// Returns the time with which to call the qdiscs.
    #[inline]
    pub(super) const fn now(&self) -> Instant {
        self.now
    }

    /// Whether the qdiscs still lag behind an owner whose time is `present`.
    #[inline]
    pub(super) fn is_behind(&self, present: Instant) -> bool {
        self.now < present
    }

    /// Begins the work of an owner whose time is `present`. If an instant was due before, the
    /// qdiscs' time becomes that instant, or the earlier instant `arrival` at which the oldest
    /// waiting packet arrived; and the owner's lateness is returned. An owner that does not catch
    /// up, because it only runs jobs, leaves that instant to the next owner.
    ///
    /// If the qdisc holds packets back until a later instant, the qdiscs' time becomes `arrival` if
    /// that is more than [`STAGED_NS`] ago, because the instants at which packets leave may follow
    /// from their arrivals, as those of `netem delay` do. This is not counted as lateness.
    #[inline]
    pub(super) fn begin(&mut self, present: Instant, arrival: Option<Instant>) -> Option<Lateness> {
        let behind_ns = self.catch_up_ns.saturating_add(self.wakes.longest_ns());
        let earliest = Instant(present.0.saturating_sub(behind_ns));
        let Some(due) = self.due.filter(|due| *due <= present) else {
            let late = arrival.filter(|at| self.due.is_some() && at.after(STAGED_NS) < present);
            self.skip_to(late.map_or(present, |at| at.max(earliest)));
            return None;
        };
        let late_ns = (due > self.now).then(|| self.wakes.serve(due, present));
        self.served = self.served.max(due);
        self.skip_to(due.min(arrival.unwrap_or(due)).max(earliest));
        self.due = Some(self.now);
        Some(Lateness { late_ns, lost_ns: self.now.since(due) })
    }

    /// Gives up catching up: moves the qdiscs' time to `present`, and forgets the instant that was
    /// due.
    #[inline]
    pub(super) fn give_up(&mut self, present: Instant) {
        self.skip_to(present);
        self.due = None;
    }

    /// Moves the qdiscs' time to `then`, unless it is later already.
    #[inline]
    pub(super) fn skip_to(&mut self, then: Instant) {
        self.now = self.now.max(then);
    }

    /// Moves the qdiscs' time to the next instant at which something was to happen: the qdisc could
    /// release a packet (`due`), or a packet arrived (`arrival`); to `present` if neither happened
    /// before. Call it only while the qdiscs' time is behind `present`.
    pub(super) fn advance(
        &mut self,
        present: Instant,
        due: Option<Instant>,
        arrival: Option<Instant>,
    ) {
        let arrival = arrival.filter(|arrival| *arrival > self.now);
        let next = due.into_iter().chain(arrival).min().unwrap_or(present);
        if let Some(due) = due.filter(|due| *due <= present) {
            self.served = due;
        }
        self.now = next.clamp(self.now.after(1), present);
    }

    /// Notes the instant at which the qdisc could release its next packet; `None` if no instant is
    /// known.
    #[inline]
    pub(super) const fn wait_for(&mut self, due: Option<Instant>) {
        self.due = due;
    }

    /// Notes that the qdisc holds no packet: nothing is due, also if the port is behind the clock.
    #[inline]
    pub(super) const fn ran_dry(&mut self) {
        self.due = None;
        self.wakes.ran_dry();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of a port that asks for its runner at the instant that is due.
    fn punctual() -> OwnTime {
        OwnTime::new(100, Wakes::new(0, 0))
    }

    fn at(ns: u64) -> Option<Instant> {
        Some(Instant(ns))
    }

    #[test]
    fn a_punctual_owner_calls_the_qdisc_at_the_present() {
        let mut time = punctual();
        assert_eq!((time.begin(Instant(1_000), None), time.now()), (None, Instant(1_000)));
        time.wait_for(at(1_500));
        assert_eq!((time.begin(Instant(1_200), None), time.now()), (None, Instant(1_200)));
        time.wait_for(at(1_500));
        let punctual = Some(Lateness { late_ns: Some(0), lost_ns: 0 });
        assert_eq!((time.begin(Instant(1_500), None), time.now()), (punctual, Instant(1_500)));
        assert!(!time.is_behind(Instant(1_500)));
    }

    #[test]
    fn a_late_owner_begins_at_the_instant_that_was_due() {
        let mut time = punctual();
        time.wait_for(at(1_000));
        let late = Some(Lateness { late_ns: Some(80), lost_ns: 0 });
        assert_eq!((time.begin(Instant(1_080), None), time.now()), (late, Instant(1_000)));
        // The instants follow in their order, an arrival first, and end with the present.
        time.advance(Instant(1_080), at(1_040), at(1_030));
        assert_eq!(time.now(), Instant(1_030));
        time.advance(Instant(1_080), at(1_040), at(1_030));
        assert_eq!(time.now(), Instant(1_040));
        time.advance(Instant(1_080), at(1_090), None);
        assert_eq!(time.now(), Instant(1_080));
        assert!(!time.is_behind(Instant(1_080)));
    }

    #[test]
    fn a_port_loses_the_time_beyond_the_bound() {
        let mut time = punctual();
        time.wait_for(at(1_000));
        let late = Some(Lateness { late_ns: Some(500), lost_ns: 400 });
        assert_eq!((time.begin(Instant(1_500), None), time.now()), (late, Instant(1_400)));
    }

    #[test]
    fn time_never_runs_backwards() {
        let mut time = punctual();
        time.skip_to(Instant(2_000));
        time.wait_for(at(1_000));
        let late = Some(Lateness { late_ns: None, lost_ns: 1_000 });
        assert_eq!((time.begin(Instant(2_050), None), time.now()), (late, Instant(2_000)));
        time.advance(Instant(2_050), at(1_500), at(1_600));
        assert_eq!(time.now(), Instant(2_001), "an instant that is over moves the time by 1 ns");
    }

    #[test]
    fn an_owner_that_goes_on_is_not_counted_as_late_again() {
        let mut time = punctual();
        time.wait_for(at(1_000));
        let late = Some(Lateness { late_ns: Some(80), lost_ns: 0 });
        assert_eq!(time.begin(Instant(1_080), None), late);
        // The first owner only ran a job.
        let goes_on = Some(Lateness { late_ns: None, lost_ns: 0 });
        assert_eq!((time.begin(Instant(1_090), None), time.now()), (goes_on, Instant(1_000)));
        // The quota of the second owner ended.
        time.wait_for(Some(time.now()));
        let goes_on = Some(Lateness { late_ns: None, lost_ns: 10 });
        assert_eq!((time.begin(Instant(1_110), None), time.now()), (goes_on, Instant(1_010)));
    }

    #[test]
    fn an_early_owner_leaves_the_instant_that_is_due() {
        let mut time = punctual();
        time.wait_for(at(1_000));
        assert_eq!((time.begin(Instant(900), None), time.now()), (None, Instant(900)));
        let late = Some(Lateness { late_ns: Some(50), lost_ns: 0 });
        assert_eq!((time.begin(Instant(1_050), None), time.now()), (late, Instant(1_000)));
        time.give_up(Instant(1_050));
        assert_eq!((time.begin(Instant(2_000), None), time.now()), (None, Instant(2_000)));
    }

    /// If the qdisc holds packets back, packets that have waited for an owner for long are enqueued
    /// at the instants of their arrivals, but not further back than the bound.
    #[test]
    fn an_owner_looks_back_to_arrivals_of_long_ago() {
        let mut time = OwnTime::new(1_000_000, Wakes::new(0, 0));
        let begin = |time: &mut OwnTime, present, arrival| {
            assert_eq!(time.begin(Instant(present), at(arrival)), None);
            time.now().0
        };
        assert_eq!(begin(&mut time, 1_000_000, 500_000), 1_000_000, "nothing is held back");
        time.wait_for(at(9_000_000));
        let tick = STAGED_NS;
        assert_eq!(begin(&mut time, 2_000_000, 2_000_000 - tick), 2_000_000);
        assert_eq!(begin(&mut time, 3_000_000, 3_000_000 - tick - 1), 3_000_000 - tick - 1);
        assert_eq!(begin(&mut time, 6_000_000, 4_500_000), 5_000_000);
    }

    /// With a slack, the runner is asked to come later, and is late only after that. The time that
    /// the port may be behind grows by the slack.
    #[test]
    fn slack_is_no_lateness() {
        let mut time = OwnTime::new(100, Wakes::new(30, 0));
        assert_eq!(time.visit_at(Instant(1_000), Instant(900)), Instant(1_030));
        assert_eq!(time.visit_at(Instant(900), Instant(900)), Instant(900), "work for now");
        time.wait_for(at(1_000));
        let early = Some(Lateness { late_ns: Some(0), lost_ns: 0 });
        assert_eq!((time.begin(Instant(1_010), None), time.now()), (early, Instant(1_000)));
        time.wait_for(at(2_000));
        assert_eq!(time.visit_at(Instant(2_000), Instant(1_010)), Instant(2_030));
        let late = Some(Lateness { late_ns: Some(100), lost_ns: 0 });
        assert_eq!((time.begin(Instant(2_130), None), time.now()), (late, Instant(2_000)));
        time.wait_for(at(3_000));
        assert_eq!(time.visit_at(Instant(3_000), Instant(2_130)), Instant(3_030));
        let later = Some(Lateness { late_ns: Some(101), lost_ns: 1 });
        assert_eq!((time.begin(Instant(3_131), None), time.now()), (later, Instant(3_001)));
    }
}
