//! Periodic timers that go off at the same times as Linux's timers. No code runs at these times: at
//! each call of a qdisc, the qdisc asks how often its timer has gone off since the last call.
//!
//! A timer goes off at the times at which it would if the qdisc had been created at time 0 of the
//! clock. So these times depend only on the clock, not on when packets come.
//!
//! Source: behaviour of Linux 7.2 `kernel/time/timer.c` (the timer wheel) with `HZ=100`, so that a
//! jiffy is 10 ms long. A timer goes off in the jiffy after the jiffy for which it was set. The
//! longer a timer waits, the coarser is the level of the wheel that holds it: the timers of a level
//! go off only at multiples of its granularity of 1, 8, 64 or more jiffies, and a timer goes off at
//! the next of these multiples. When the machine starts, Linux's counter of jiffies does not begin
//! at zero, but five minutes before its 32 bits overflow (`INITIAL_JIFFIES`).

use crate::base::Instant;

/// Nanoseconds in a jiffy, the unit of time of Linux's timers, with `HZ=100`.
pub(crate) const TICK_NS: u64 = 10_000_000;

/// Linux's counter of jiffies when the machine starts, modulo 2^21: five minutes (30,000 jiffies)
/// before the counter reaches a multiple of 2^21, the granularity of the timer wheel's coarsest
/// level.
const COUNTED: u64 = (1 << COARSEST_BITS) - 30_000;

/// The granularity of each level of Linux's timer wheel is 2^3 times that of the next finer level.
const FINER_BITS: u32 = 3;
/// The granularity of the coarsest level of Linux's timer wheel is 2^21 jiffies; that of the finest
/// is one jiffy.
const COARSEST_BITS: u32 = 21;
/// A level of Linux's timer wheel holds timers that wait for less than this number times the
/// granularity of the level. Timers that wait longer are in a coarser level.
const SPAN: u64 = 63;

/// Returns the granularity, in jiffies, of the timer wheel's level that holds a timer that waits
/// for `wait` jiffies.
fn grain(wait: u64) -> u64 {
    let shifts = (0..COARSEST_BITS).step_by(FINER_BITS as usize);
    let shift = shifts.clone().find(|shift| wait < SPAN << shift);
    1 << shift.unwrap_or(COARSEST_BITS)
}

/// Returns the jiffy in which a timer goes off if it is set in jiffy `tick` to wait for `wait`
/// jiffies, and if its level of the timer wheel has a granularity of `grain` jiffies.
fn ends(tick: u64, wait: u64, grain: u64) -> u64 {
    ((tick + wait + COUNTED) / grain + 1) * grain - COUNTED
}

/// A periodic timer: each time it has gone off, it is set again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    /// How long after the beginning of each period the timer goes off, in nanoseconds. The first
    /// period begins at time 0 of the clock.
    phase_ns: u64,
    period_ns: u64,
    /// In how many further jiffies of each period the timer goes off. That is more than 0 if the
    /// work of a period is done in several parts, one in each jiffy.
    rest: u64,
}

impl Timer {
    /// Creates a timer that waits for `first` jiffies. Then it goes off in `parts` consecutive
    /// jiffies, waits for `wait_ns` nanoseconds (rounded up to whole jiffies), goes off in `parts`
    /// jiffies again, and so on.
    pub(crate) fn new(first: u64, parts: u64, wait_ns: u64) -> Self {
        let (rest, wait) = (parts - 1, wait_ns.div_ceil(TICK_NS));
        let begun = ends(0, first, grain(first));
        // Linux sets the timer again when the present jiffy has already begun. So Linux chooses the
        // level of the timer wheel as for a wait that is one jiffy shorter.
        let grain = grain(wait.saturating_sub(1));
        let second = ends(begun + rest, wait, grain);
        let period = ends(second + rest, wait, grain) - second;
        Self { phase_ns: second % period * TICK_NS, period_ns: period * TICK_NS, rest }
    }

    /// Returns the next time after `now` at which the timer goes off for the first part of a
    /// period's work.
    fn after(&self, now: Instant) -> Instant {
        let since_ns = (now.0 % self.period_ns + self.period_ns - self.phase_ns) % self.period_ns;
        now.after(self.period_ns - since_ns)
    }
}

/// Counts the rounds of a [`Timer`]. A round is the work that a qdisc does in one period of its
/// timer. It may have several parts, one in each jiffy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rounds {
    count: u64,
    /// The time at which the last round began and the time at which the next round begins, or
    /// `None` before `count` was called.
    times: Option<(Instant, Instant)>,
}

impl Rounds {
    /// Counts the rounds (a round is the work of one period of the timer) that have begun by `now`.
    /// Returns the number of rounds that have begun since the first call.
    #[inline]
    pub(crate) fn count(&mut self, timer: &Timer, now: Instant) -> u64 {
        let (_, next) = *self.times.get_or_insert_with(|| {
            let next = timer.after(now);
            (Instant(next.0.saturating_sub(timer.period_ns)), next)
        });
        if next <= now && next < Instant::MAX {
            let more = now.since(next) / timer.period_ns;
            let begun = next.after(more * timer.period_ns);
            self.count += more + 1;
            self.times = Some((begun, begun.after(timer.period_ns)));
        }
        self.count
    }

    /// A round, the work that a qdisc does in one period of its timer, may have several parts, such
    /// as updates of several groups of flows, with one part in each jiffy. Returns how many times
    /// part number `part` (counted from 0) has been done by `now`, which must be the time of the
    /// last call of [`count`](Self::count). The round that was in progress at the first call of
    /// `count` is included.
    #[inline]
    pub(crate) fn of_part(&self, part: u64, now: Instant) -> u64 {
        let waits = self.times.is_some_and(|(begun, _)| now < begun.after(part * TICK_NS));
        self.count + u64::from(!waits)
    }

    /// Replaces the timer `old` by `new` at the time `now`. If all parts of the present round (the
    /// work of one period) are done, the next round begins when it would have begun with `old`.
    /// Otherwise the next round begins a period of `new` after the present round began.
    pub(crate) fn change(&mut self, old: &Timer, new: &Timer, now: Instant) {
        self.count(old, now);
        let Some((begun, next)) = &mut self.times else { return };
        let done = begun.after(old.rest * TICK_NS);
        if now < done {
            *next = begun.after(new.period_ns);
        }
    }
}

/// Returns the time at which a timer goes off that is set once, at `now`, to wait for `ticks`
/// jiffies (of 10 ms).
pub(crate) fn once(now: Instant, ticks: u64) -> Instant {
    Instant(ends(now.0 / TICK_NS, ticks, grain(ticks)).saturating_mul(TICK_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = 1_000_000_000;

    /// Returns the jiffies between `from_tick` and `to_tick` in which a timer goes off. Calls
    /// `count` in each jiffy to find them.
    fn times(timer: &Timer, from_tick: u64, to_tick: u64) -> Vec<u64> {
        let mut rounds = Rounds::default();
        rounds.count(timer, Instant(from_tick * TICK_NS));
        let ticks = from_tick + 1..to_tick;
        let mut known = 0;
        ticks
            .filter(|tick| {
                let count = rounds.count(timer, Instant(tick * TICK_NS));
                std::mem::replace(&mut known, count) < count
            })
            .collect()
    }

    /// `after` and `count` work at any time, up to the largest time.
    #[test]
    fn a_timer_at_the_end_of_time() {
        let timer = Timer::new(50, 1, 15_000_000);
        for early_ns in [0, 1, 15_000_000, 30_000_000] {
            let now = Instant(u64::MAX - early_ns);
            let next = timer.after(now);
            assert!(now <= next && next.since(now) <= timer.period_ns, "{early_ns}");
            let mut rounds = Rounds::default();
            let _ = rounds.count(&timer, now);
        }
    }

    /// A timer goes off one jiffy later than its wait says: with a wait of two jiffies, every third
    /// jiffy.
    #[test]
    fn a_timer_goes_off_a_tick_late_and_by_the_clock() {
        let timer = Timer::new(50, 1, 15_000_000);
        assert_eq!(times(&timer, 2000, 2010), [2001, 2004, 2007]);
        // The times do not depend on when `count` is called first.
        assert_eq!(times(&timer, 2002, 2010), [2004, 2007]);
        let timer = Timer::new(50, 1, SEC / 2);
        assert_eq!(times(&timer, 2000, 2110), [2040, 2091]);
    }

    /// A timer that waits for 100 jiffies is in the level of the timer wheel whose granularity is 8
    /// jiffies. A timer that waits for 1,000 jiffies is in the level whose granularity is 64
    /// jiffies; the first of this level's times is 48 jiffies after the start. So the timers first
    /// go off in jiffies 104 and 1,008.
    #[test]
    fn long_waits_end_with_coarser_clocks() {
        assert_eq!(times(&Timer::new(100, 1, SEC), 0, 400), [104, 208, 312]);
        assert_eq!(times(&Timer::new(1000, 1, 10 * SEC), 1009, 4200), [2032, 3056, 4080]);
        assert_eq!((grain(62), grain(63), grain(503), grain(504)), (1, 8, 8, 64));
        assert_eq!(once(Instant(3 * TICK_NS + 1), 50), Instant(54 * TICK_NS));
    }

    #[test]
    fn a_long_work_is_done_in_parts() {
        // The work of each period has three parts, one in each jiffy (10 ms). The timer waits for
        // 50 jiffies at first. Since each timer goes off one jiffy late, it goes off for the parts
        // in jiffies 51, 52 and 53. Then it waits for two jiffies, and goes off again in jiffy 56.
        let timer = Timer::new(50, 3, 20_000_000);
        assert_eq!(
            times(&timer, 0, 70),
            [51 % 5, 6, 11, 16, 21, 26, 31, 36, 41, 46, 51, 56, 61, 66]
        );
        let mut rounds = Rounds::default();
        rounds.count(&timer, Instant(50 * TICK_NS));
        // The first call of `count` is in jiffy 50. The timer last went off in jiffies 46, 47 and
        // 48, so all three parts of that period's work are done.
        let rows = [(50, [1; 3]), (51, [2, 1, 1]), (52, [2, 2, 1]), (53, [2; 3]), (56, [3, 2, 2])];
        for (tick, parts) in rows {
            let now = Instant(tick * TICK_NS);
            rounds.count(&timer, now);
            assert_eq!([0, 1, 2].map(|part| rounds.of_part(part, now)), parts, "{tick}");
        }
        // Now the first call of `count` is in jiffy 47. The work of the present period began in
        // jiffy 46, and its last part (part 2, counted from 0) is done in jiffy 48.
        let (mut rounds, now) = (Rounds::default(), |tick: u64| Instant(tick * TICK_NS));
        rounds.count(&timer, now(47));
        assert_eq!([47, 48].map(|tick| rounds.of_part(2, now(tick))), [0, 1]);
    }

    #[test]
    fn what_waits_goes_off_before_a_change_holds() {
        let (short, long) = (Timer::new(50, 1, 20_000_000), Timer::new(50, 1, 300_000_000));
        let mut rounds = Rounds::default();
        let mut at = |tick: u64, timer: &Timer| rounds.count(timer, Instant(tick * TICK_NS));
        assert_eq!((at(50, &short), at(51, &short), at(53, &short)), (0, 1, 1));
        rounds.change(&short, &long, Instant(53 * TICK_NS));
        let mut at = |tick: u64| rounds.count(&long, Instant(tick * TICK_NS));
        assert_eq!((at(54), at(84), at(85)), (2, 2, 3));
    }

    #[test]
    fn the_end_of_time_is_reached_at_once() {
        let (timer, mut rounds) = (Timer::new(50, 1, 1), Rounds::default());
        assert_eq!(rounds.count(&timer, Instant(0)), 0);
        assert!(rounds.count(&timer, Instant::MAX) > 1 << 39);
        let last = rounds.count(&timer, Instant::MAX);
        assert_eq!(rounds.count(&timer, Instant::MAX), last);
    }

    /// Linux's timer wheel has eight levels. The granularity of each level is eight times that of
    /// the next finer level, up to 2^21 jiffies for the coarsest. At 100 jiffies per second, all
    /// timers that wait for more than 46 hours are in the coarsest level.
    #[test]
    fn the_coarsest_clock_is_the_eighth() {
        for level in 1..8_u32 {
            let bits = 3 * level;
            assert_eq!(grain((63 << (bits - 3)) - 1), 1 << (bits - 3));
            assert_eq!(grain(63 << (bits - 3)), 1 << bits);
        }
        assert_eq!([63 << 21, 63 << 24, 1 << 40].map(grain), [1 << 21; 3]);
    }

    /// A timer is set again when its jiffy has already begun. So a timer that waits for 63 jiffies
    /// is in the timer wheel's level for waits of 62 jiffies.
    #[test]
    fn the_clock_of_a_period_is_that_of_a_tick_less() {
        // The timer first goes off in jiffy 51. If it then waits for 61 to 63 jiffies, it is in the
        // finest level of the timer wheel; if for 64 jiffies, in the level whose granularity is
        // eight jiffies.
        for (wait, period, phase) in [(61, 62, 51), (62, 63, 51), (63, 64, 51), (64, 72, 120 % 72)]
        {
            let timer = Timer::new(50, 1, wait * TICK_NS);
            let times = times(&timer, 10_000, 11_000);
            assert!(times.len() > 10);
            assert_eq!(times[0] % period, phase, "{wait}: {times:?}");
            assert!(times.windows(2).all(|two| two[1] - two[0] == period), "{wait}: {times:?}");
        }
    }

    /// If `change` replaces the timer before all parts of a round (the work of one period) are
    /// done, the next round begins a period of the new timer after this round began. If all parts
    /// are done, the next round begins when it would have begun with the old timer.
    #[test]
    fn a_change_amid_a_long_work_holds_at_once() {
        // The old timer goes off in jiffies 51, 52 and 53, and again from jiffy 56 on. The new
        // timer has a period of 33 jiffies.
        let (old, new) = (Timer::new(50, 3, 20_000_000), Timer::new(50, 3, 300_000_000));
        assert_eq!((old.period_ns, new.period_ns), (5 * TICK_NS, 33 * TICK_NS));
        for (change, next) in [(51, 84), (52, 84), (53, 56), (54, 56), (55, 56)] {
            for last_look in [50, change] {
                let (mut rounds, tick) = (Rounds::default(), |n: u64| Instant(n * TICK_NS));
                rounds.count(&old, tick(50));
                rounds.count(&old, tick(last_look));
                rounds.change(&old, &new, tick(change));
                let mut counts = |n: u64| rounds.count(&new, tick(n));
                let found = [counts(next - 1), counts(next), counts(next + 32), counts(next + 33)];
                assert_eq!(found, [1, 2, 2, 3], "changed at {change}");
            }
        }
    }

    /// If `change` replaces the timer before the first call of `count`, `count` returns the number
    /// of rounds of the new timer alone.
    #[test]
    fn a_change_counts_from_the_beginning() {
        let (old, new) = (Timer::new(50, 1, 20_000_000), Timer::new(50, 1, 20_000_000));
        let mut rounds = Rounds::default();
        rounds.change(&old, &new, Instant(50 * TICK_NS));
        assert_eq!(rounds.count(&new, Instant(50 * TICK_NS)), 0);
        assert_eq!(rounds.count(&new, Instant(51 * TICK_NS)), 1);
    }
}
