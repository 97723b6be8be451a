//! Timers that go off again and again, as those of Linux do, for qdiscs that nobody calls in
//! between.
//!
//! A qdisc that is called looks how often its timer has gone off since the last call. Timers go off
//! at the times at which they would if the qdisc had been made when the clock began: so they depend
//! on the clock alone, and not on when packets come.
//!
//! Source: behaviour of Linux 7.2 `kernel/time/timer.c` with `HZ=100`: a timer goes off in the tick
//! behind the one it was set for, and one that is set for long, in the next tick of a coarser
//! clock. The clocks begin five minutes before a great power of two (`INITIAL_JIFFIES`).

use crate::base::Instant;

/// A tick of Linux' clock for timers, with `HZ=100`.
pub(crate) const TICK_NS: u64 = 10_000_000;

/// Ticks that the coarser clocks have counted when the machine starts: five minutes less than a
/// number that all of them divide.
const COUNTED: u64 = (1 << COARSEST_BITS) - 30_000;

/// Each coarser clock has a tick of as many of the next finer one, as a power of two.
const FINER_BITS: u32 = 3;
/// The coarsest clock's tick, as a power of two.
const COARSEST_BITS: u32 = 21;
/// A clock is used for so many of its ticks, less one.
const SPAN: u64 = 63;

/// How many ticks the clock has on whose ticks a timer goes off that is set for `wait` ticks.
fn grain(wait: u64) -> u64 {
    let shifts = (0..COARSEST_BITS).step_by(FINER_BITS as usize);
    let shift = shifts.clone().find(|shift| wait < SPAN << shift);
    1 << shift.unwrap_or(COARSEST_BITS)
}

/// The tick in which a timer goes off that is set at `tick`, to wait `wait` ticks.
fn ends(tick: u64, wait: u64, grain: u64) -> u64 {
    ((tick + wait + COUNTED) / grain + 1) * grain - COUNTED
}

/// A timer that is set again whenever it has gone off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    /// When it goes off, nanoseconds into each period, counted from the beginning of the clock.
    phase_ns: u64,
    period_ns: u64,
    /// How long it goes on going off in each period, in ticks: a long work is done in parts.
    rest: u64,
}

impl Timer {
    /// A timer that first waits `first` ticks. Then it goes off `parts` times, one tick after the
    /// other, and waits for `wait_ns`, in whole ticks; and so on.
    pub(crate) fn new(first: u64, parts: u64, wait_ns: u64) -> Self {
        let (rest, wait) = (parts - 1, wait_ns.div_ceil(TICK_NS));
        let begun = ends(0, first, grain(first));
        // It is set again a tick late, by the clock that tells the grain.
        let grain = grain(wait.saturating_sub(1));
        let second = ends(begun + rest, wait, grain);
        let period = ends(second + rest, wait, grain) - second;
        Self { phase_ns: second % period * TICK_NS, period_ns: period * TICK_NS, rest }
    }

    /// When it next goes off, after `now` and with the period's first part.
    fn after(&self, now: Instant) -> Instant {
        let since_ns = (now.0 % self.period_ns + self.period_ns - self.phase_ns) % self.period_ns;
        now.after(self.period_ns - since_ns)
    }
}

/// Counts how often a [`Timer`] has gone off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rounds {
    count: u64,
    /// When the last round began, and when the next one will; none before the first call.
    times: Option<(Instant, Instant)>,
}

impl Rounds {
    /// Rounds that have begun since the first call: counts those that have begun by `now`.
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

    /// The rounds in which part number `part`, from 0, has been done by `now`, the time of the last
    /// call of [`count`](Self::count). The round that was on at the first call is one of them.
    #[inline]
    pub(crate) fn of_part(&self, part: u64, now: Instant) -> u64 {
        let waits = self.times.is_some_and(|(begun, _)| now < begun.after(part * TICK_NS));
        self.count + u64::from(!waits)
    }

    /// What waits with `old` is set to `new` when it has gone off next.
    pub(crate) fn change(&mut self, old: &Timer, new: &Timer, now: Instant) {
        self.count(old, now);
        let Some((begun, next)) = &mut self.times else { return };
        let done = begun.after(old.rest * TICK_NS);
        if now < done {
            *next = begun.after(new.period_ns);
        }
    }
}

/// The time at which a timer goes off that is set at `now`, for once, to wait `ticks` ticks.
pub(crate) fn once(now: Instant, ticks: u64) -> Instant {
    Instant(ends(now.0 / TICK_NS, ticks, grain(ticks)).saturating_mul(TICK_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = 1_000_000_000;

    /// The times at which a timer goes off between two, looking at each tick.
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

    /// No time is too late to ask.
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

    /// Half a second first, then a wait of two ticks, each a tick longer.
    #[test]
    fn a_timer_goes_off_a_tick_late_and_by_the_clock() {
        let timer = Timer::new(50, 1, 15_000_000);
        assert_eq!(times(&timer, 2000, 2010), [2001, 2004, 2007]);
        // Whenever the first call comes.
        assert_eq!(times(&timer, 2002, 2010), [2004, 2007]);
        let timer = Timer::new(50, 1, SEC / 2);
        assert_eq!(times(&timer, 2000, 2110), [2040, 2091]);
    }

    /// A wait of 100 ticks ends with a clock of eight, one of 1,000 with a clock of 64, which ticks
    /// 48 ticks after the start: the first ones go off at 104, and at 1,008.
    #[test]
    fn long_waits_end_with_coarser_clocks() {
        assert_eq!(times(&Timer::new(100, 1, SEC), 0, 400), [104, 208, 312]);
        assert_eq!(times(&Timer::new(1000, 1, 10 * SEC), 1009, 4200), [2032, 3056, 4080]);
        assert_eq!((grain(62), grain(63), grain(503), grain(504)), (1, 8, 8, 64));
        assert_eq!(once(Instant(3 * TICK_NS + 1), 50), Instant(54 * TICK_NS));
    }

    #[test]
    fn a_long_work_is_done_in_parts() {
        // Ticks 51, 52 and 53; then three ticks more.
        let timer = Timer::new(50, 3, 20_000_000);
        assert_eq!(
            times(&timer, 0, 70),
            [51 % 5, 6, 11, 16, 21, 26, 31, 36, 41, 46, 51, 56, 61, 66]
        );
        let mut rounds = Rounds::default();
        rounds.count(&timer, Instant(50 * TICK_NS));
        // The round that began with tick 46 was over.
        let rows = [(50, [1; 3]), (51, [2, 1, 1]), (52, [2, 2, 1]), (53, [2; 3]), (56, [3, 2, 2])];
        for (tick, parts) in rows {
            let now = Instant(tick * TICK_NS);
            rounds.count(&timer, now);
            assert_eq!([0, 1, 2].map(|part| rounds.of_part(part, now)), parts, "{tick}");
        }
        // Part 2 of that round comes after the first call.
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

    /// Eight clocks, each of eight ticks of the finer one: the coarsest has 2^21 ticks, with 100 of
    /// which in a second it is the one for all beyond 46 hours.
    #[test]
    fn the_coarsest_clock_is_the_eighth() {
        for level in 1..8_u32 {
            let bits = 3 * level;
            assert_eq!(grain((63 << (bits - 3)) - 1), 1 << (bits - 3));
            assert_eq!(grain(63 << (bits - 3)), 1 << bits);
        }
        assert_eq!([63 << 21, 63 << 24, 1 << 40].map(grain), [1 << 21; 3]);
    }

    /// A timer is set again when its tick has begun: to wait 63 ticks more, it has 62 to go.
    #[test]
    fn the_clock_of_a_period_is_that_of_a_tick_less() {
        // The first one of all goes off in tick 51, and the others by their clock: one of eight
        // ticks, or each tick.
        for (wait, period, phase) in [(61, 62, 51), (62, 63, 51), (63, 64, 51), (64, 72, 120 % 72)]
        {
            let timer = Timer::new(50, 1, wait * TICK_NS);
            let times = times(&timer, 10_000, 11_000);
            assert!(times.len() > 10);
            assert_eq!(times[0] % period, phase, "{wait}: {times:?}");
            assert!(times.windows(2).all(|two| two[1] - two[0] == period), "{wait}: {times:?}");
        }
    }

    /// Other parameters while a long work is done hold as soon as it is done: the time of the next
    /// one counts from when this one began. Later, what waits goes off first.
    #[test]
    fn a_change_amid_a_long_work_holds_at_once() {
        // Ticks 51, 52 and 53, and again from 56 on; with the new one, a round takes 33 ticks.
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

    /// A change before the first call is none: the new timer alone is known.
    #[test]
    fn a_change_counts_from_the_beginning() {
        let (old, new) = (Timer::new(50, 1, 20_000_000), Timer::new(50, 1, 20_000_000));
        let mut rounds = Rounds::default();
        rounds.change(&old, &new, Instant(50 * TICK_NS));
        assert_eq!(rounds.count(&new, Instant(50 * TICK_NS)), 0);
        assert_eq!(rounds.count(&new, Instant(51 * TICK_NS)), 1);
    }
}
