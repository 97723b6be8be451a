//! Busy waiting: keeps a thread on its processor for a given time, as the driver of a slow card
//! does.

use std::hint::black_box;
use std::sync::OnceLock;

use onramp_core::Clock;

use crate::MonotonicClock;

/// The speed of this machine, as measured once.
#[derive(Debug)]
struct Pace {
    /// Shortest measured time of one clock read, picoseconds.
    read: u64,
    /// Number of turns that the idle loop makes in 2^20 ps. The speed is stored as a rate, because
    /// with a time per turn, [`Pace::turns_in`] would need a division, which takes longer than a
    /// turn.
    turns: u64,
}

/// A wait consists of pieces, each with a clock read at its end. If at most this much time is left,
/// in picoseconds, one last piece is planned to last for all of it.
const LAST_PS: u64 = 1_000_000;

/// The rate [`Pace::turns`] counts turns per 2^`SHIFT` picoseconds.
const SHIFT: u32 = 20;

static PACE: OnceLock<Pace> = OnceLock::new();

/// Measures the machine, once per process, so that the first [`spin`] is as exact as later ones.
pub(crate) fn calibrate() {
    PACE.get_or_init(Pace::measure);
}

/// Keeps the calling thread busy for at least `ns` nanoseconds, and little longer.
///
/// A loop that only reads the clock may end too late by the time of one clock read. So this
/// function waits in a loop that reads no clock, and then reads the clock to check that enough time
/// has passed.
#[inline]
pub(crate) fn spin(ns: u64) {
    #[cfg(sim)]
    if onramp_machine::hook::processor().is_some() {
        return onramp_machine::hook::work(ns);
    }
    let start = MonotonicClock.now();
    let pace = PACE.get_or_init(Pace::measure);
    pace.pass(ns, || MonotonicClock.now().since(start), idle);
}

impl Pace {
    /// Waits for `ns` nanoseconds. `spent` returns how many nanoseconds have passed since the
    /// start; `idle` runs the idle loop for the given number of turns.
    #[inline]
    fn pass(&self, ns: u64, spent: impl Fn() -> u64, idle: impl Fn(u64)) {
        // A clock read returns the time at its middle. So the measured time lacks half of the first
        // read and half of the last one, together the time of one read.
        let asked = ns.saturating_mul(1_000).saturating_sub(self.read);
        let mut left = asked;
        loop {
            idle(self.turns_in(left));
            let spent = spent().saturating_mul(1_000);
            if spent >= asked {
                return;
            }
            left = asked - spent;
        }
    }

    /// Returns how many turns of the idle loop to run before the next clock read, when `left`
    /// picoseconds remain.
    #[inline]
    fn turns_in(&self, left: u64) -> u64 {
        // If much time is left, wait for half of it only, because the processor, and with it the
        // loop, may have become faster or slower since it was measured. If little time is left,
        // wait for all of it and a 32nd more, so that one piece is enough even if the loop runs 3 %
        // faster than measured. But add at most the time of one clock read, because a further piece
        // would cost no more than that. The clock read that ends the piece counts as part of the
        // piece.
        let piece = if left > LAST_PS { left / 2 } else { left + (left / 32).min(self.read) };
        (piece.saturating_sub(self.read).saturating_mul(self.turns) >> SHIFT) + 1
    }

    /// Measures the machine, which takes about 200 µs. Uses the shortest of many samples, because
    /// every disturbance makes a sample longer.
    fn measure() -> Self {
        const READS: u64 = 32;
        const TURNS: u64 = 500;
        let least = |work: &dyn Fn(u64), times: u64| {
            let tries = (0..100).map(|_| {
                let start = MonotonicClock.now();
                work(times);
                MonotonicClock.now().since(start) * 1_000 / times
            });
            tries.fold(u64::MAX, u64::min).max(1)
        };
        // This loop reads the clock one time less than `times`, because the clock reads before and
        // after the loop add half a read each.
        let reads = |times| (1..times).for_each(|_| _ = black_box(MonotonicClock.now()));
        Self { read: least(&reads, READS), turns: (1 << SHIFT) / least(&idle, TURNS) }
    }
}

/// Runs a loop whose turns cannot overlap: each turn is a multiplication and an addition that need
/// the previous turn's result.
#[inline]
fn idle(turns: u64) {
    let mut state = 1_u64;
    for _ in 0..turns {
        state = black_box(state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1));
    }
    black_box(state);
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// `spin` never returns early. How late it returns depends on other threads, so that is not
    /// checked.
    #[test]
    fn never_less_than_asked() {
        calibrate();
        for ns in [0, 1, 50, 100, 1_000, 20_000, 300_000] {
            for _ in 0..20 {
                let start = MonotonicClock.now();
                spin(ns);
                let spent = MonotonicClock.now().since(start);
                assert!(spent >= ns, "{spent} of {ns} ns");
            }
        }
    }

    /// The measured speed lies within bounds that are wide enough for any machine. Other programs
    /// on the machine do not push it out of the bounds, because it is the best of a hundred
    /// samples.
    #[test]
    fn a_machine_is_measured() {
        let Pace { read, turns } = Pace::measure();
        assert!((1_000..=10_000_000).contains(&read), "1 ns to 10 µs; {read} ps");
        // `turns` counts turns in 2^20 ps. So the bounds mean that a turn takes between 0.1 ns and
        // 1 µs.
        assert!((1..=10_486).contains(&turns), "{turns} turns");
    }

    /// The expected values are computed by hand for a clock read of 20 ns and a turn of 2^10 ps, so
    /// that 1,024 turns take 2^20 ps.
    #[test]
    fn pieces_are_halves_and_then_all_of_the_rest() {
        let pace = Pace { read: 20_000, turns: 1_024 };
        for (left, turns) in [
            // While more than 1 µs is left, the loop waits for half of the time that is left. The
            // number of turns is what fits into that half less the clock read, plus one turn.
            (4_000_000, (2_000_000 - 20_000) / 1_024 + 1),
            (1_000_001, (500_000 - 20_000) / 1_024 + 1),
            // When at most 1 µs is left, the loop waits for all of it and a 32nd more, but at most
            // the time of a clock read (20 ns) more. The clock read that ends the piece takes 20
            // ns, too, so the turns fill exactly the time that is left.
            (1_000_000, 1_000_000 / 1_024 + 1),
            (640_000, 640_000 / 1_024 + 1),
            // If less than 640 ns is left, a 32nd of that time is shorter than a clock read (20
            // ns), so the loop waits for the whole 32nd more.
            (320_000, (330_000 - 20_000) / 1_024 + 1),
            (32_000, (33_000 - 20_000) / 1_024 + 1),
            // The time that is left is no longer than a clock read (20 ns). A 32nd more (20,000 /
            // 32 = 625 ps) is less than one turn of the loop, so the loop makes only one turn,
            // which is the minimum.
            (20_000, 1),
            (19_000, 1),
            (0, 1),
        ] {
            assert_eq!(pace.turns_in(left), turns, "{left} ps left");
        }
        // Even with the longest time, the calculation does not overflow.
        assert!(pace.turns_in(u64::MAX) > 1 << 43);
    }

    /// A simulated machine on which only idle turns and clock reads take time. All times are
    /// picoseconds.
    struct Machine {
        now: Cell<u64>,
        read: u64,
        turn: u64,
        reads: Cell<u32>,
        turns: RefCell<Vec<u64>>,
    }

    impl Machine {
        /// Waits for `ns` nanoseconds of simulated time with `pace`. Returns the picoseconds that
        /// this took, including all clock reads.
        fn pass(&self, pace: &Pace, ns: u64) -> u64 {
            self.now.set(0);
            self.turns.borrow_mut().clear();
            let read = || {
                self.reads.set(self.reads.get() + 1);
                // A clock read returns the time at the middle of the read.
                let seen = self.now.get() + self.read / 2;
                self.now.set(self.now.get() + self.read);
                seen
            };
            let start = read();
            pace.pass(
                ns,
                || (read() - start) / 1_000,
                |turns| {
                    self.turns.borrow_mut().push(turns);
                    self.now.set(self.now.get() + turns * self.turn);
                },
            );
            self.now.get()
        }
    }

    fn machine(read: u64, turn: u64) -> Machine {
        let (now, reads) = (Cell::new(0), Cell::new(0));
        Machine { now, read, turn, reads, turns: RefCell::default() }
    }

    #[test]
    fn what_is_asked_for_passes_and_little_more() {
        let machine = machine(20_000, 1_024);
        let pace = Pace { read: 20_000, turns: 1_024 };
        for ns in [0, 1, 20, 21, 40, 41, 100, 999, 1_000, 1_021, 5_000, 100_000, 3_000_000] {
            let took = machine.pass(&pace, ns);
            assert!(took >= ns * 1_000, "{took} ps of {ns} ns");
            // The wait is too long by at most one clock read and two turns. It never takes less
            // than the first and the last clock read.
            let most = (ns * 1_000).max(40_000) + 20_000 + 2 * 1_024;
            assert!(took <= most, "{took} ps of {ns} ns");
        }
        // The time that `pass` measures lacks one clock read of 20 ns, so 9.98 of the 10 µs remain.
        // While more than 1 µs is left, each piece waits for half of it.
        machine.pass(&pace, 10_000);
        let turns = machine.turns.borrow();
        assert_eq!(turns[0], (9_980_000 / 2 - 20_000) / 1_024 + 1);
        assert_eq!(turns.len(), 5, "9.98, 4.99, 2.5, 1.25, 0.62 µs");
    }

    /// The wait is exact to the picosecond on a machine whose clock reads take no time: a thousand
    /// turns of 1 ns each.
    #[test]
    fn exactly_enough_is_enough() {
        let machine = machine(0, 1_000);
        assert_eq!(machine.pass(&Pace { read: 0, turns: 1_048 }, 1_000), 1_000_000);
        assert_eq!(*machine.turns.borrow(), [1_000_000 * 1_048 / (1 << 20) + 1]);
        // A time too long to count in picoseconds becomes the longest time that can be counted, and
        // does not wrap round to a short one.
        let fast = Machine { turn: 1 << 20, ..machine };
        fast.pass(&Pace { read: 0, turns: 1 }, u64::MAX / 1_000 / 2);
        assert!(fast.now.get() >= u64::MAX / 2 - 1_000);
    }

    /// `pass` waits long enough even if the processor is slower or faster than when it was
    /// measured.
    #[test]
    fn a_clock_has_the_last_word() {
        for (read, turn) in [(20_000, 4_096), (20_000, 256), (60_000, 1_024), (1_000, 1_024)] {
            let machine = machine(read, turn);
            let pace = Pace { read: 20_000, turns: 1_024 };
            for ns in [100, 1_000, 50_000, 1_000_000] {
                let took = machine.pass(&pace, ns) + 20_000;
                assert!(took >= ns * 1_000, "{took} ps of {ns} ns, read {read}, turn {turn}");
                // The last piece is planned to take up to 1 µs. If a turn of the idle loop takes
                // four times as long as measured, the piece takes 4 µs.
                assert!(took <= ns * 1_000 * 4 + 200_000, "{took} ps of {ns} ns");
            }
            assert!(machine.reads.get() < 200, "it looks seldom: {}", machine.reads.get());
        }
    }
}
