//! Busy time: a thread that keeps its processor for so long, as the driver of a slow card does.

use std::hint::black_box;
use std::sync::OnceLock;

use onramp_core::Clock;

use crate::MonotonicClock;

/// What the machine was found to take, in picoseconds.
#[derive(Debug)]
struct Pace {
    /// A read of the clock, at least.
    read: u64,
    /// Turns of the idle loop in 2^20 ps: a division would take longer than a turn.
    turns: u64,
}

/// The last piece of a long time, picoseconds.
const LAST_PS: u64 = 1_000_000;

/// See [`Pace::turns`].
const SHIFT: u32 = 20;

static PACE: OnceLock<Pace> = OnceLock::new();

/// Measures the machine, once a process, so that the first [`spin`] is as exact as others.
pub(crate) fn calibrate() {
    PACE.get_or_init(Pace::measure);
}

/// Keeps the calling thread busy for `ns` nanoseconds: not less, and little more.
///
/// A clock that is read in a loop overshoots by up to a read of it. So the time is passed in a
/// loop that reads no clock, and the clock then says whether it was enough.
#[inline]
pub(crate) fn spin(ns: u64) {
    let start = MonotonicClock.now();
    let pace = PACE.get_or_init(Pace::measure);
    pace.pass(ns, || MonotonicClock.now().since(start), idle);
}

impl Pace {
    /// Passes `ns` nanoseconds, of which `spent` says how many are over. `idle` takes so many
    /// turns.
    #[inline]
    fn pass(&self, ns: u64, spent: impl Fn() -> u64, idle: impl Fn(u64)) {
        // Two halves of a read lie outside what the clock shows: before the first, after the last.
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

    /// How many turns of the idle loop to take until the next look at the clock, when so many
    /// picoseconds are left.
    #[inline]
    fn turns_in(&self, left: u64) -> u64 {
        // A long time by halves: the processor may be slower than it was, and the loop with it. The
        // last piece takes in the read that ends it, and a little more, so that it is enough.
        let piece = if left > LAST_PS { left / 2 } else { left + (left / 32).min(self.read) };
        (piece.saturating_sub(self.read).saturating_mul(self.turns) >> SHIFT) + 1
    }

    /// Takes about 200 µs. The least of many, for whatever disturbs makes it longer.
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
        // The halves of the two around it are one.
        let reads = |times| (1..times).for_each(|_| _ = black_box(MonotonicClock.now()));
        Self { read: least(&reads, READS), turns: (1 << SHIFT) / least(&idle, TURNS) }
    }
}

/// Each turn waits for the one before: a multiplication and an addition.
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

    /// How much longer depends on who else runs; not less holds always.
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

    /// Wide bounds, of all machines there are: the least of a hundred does not grow beyond them
    /// while others run.
    #[test]
    fn a_machine_is_measured() {
        let Pace { read, turns } = Pace::measure();
        assert!((1_000..=10_000_000).contains(&read), "1 ns to 10 µs; {read} ps");
        // Of 2^20 ps: a turn takes 0.1 ns to 1 µs.
        assert!((1..=10_486).contains(&turns), "{turns} turns");
    }

    /// Worked out by hand for a read of 20 ns and a turn of 2^10 ps, 1,024 of which are 2^20 ps.
    #[test]
    fn pieces_are_halves_and_then_all_of_the_rest() {
        let pace = Pace { read: 20_000, turns: 1_024 };
        for (left, turns) in [
            // A half of it, less the read; and one turn at least.
            (4_000_000, (2_000_000 - 20_000) / 1_024 + 1),
            (1_000_001, (500_000 - 20_000) / 1_024 + 1),
            // All of it and as much as a read more, less the read.
            (1_000_000, 1_000_000 / 1_024 + 1),
            (640_000, 640_000 / 1_024 + 1),
            // A 32nd more is less than a read now.
            (320_000, (330_000 - 20_000) / 1_024 + 1),
            (32_000, (33_000 - 20_000) / 1_024 + 1),
            // It will be over before the clock was read: 625 ps are not a turn.
            (20_000, 1),
            (19_000, 1),
            (0, 1),
        ] {
            assert_eq!(pace.turns_in(left), turns, "{left} ps left");
        }
        // No time overflows.
        assert!(pace.turns_in(u64::MAX) > 1 << 43);
    }

    /// A machine whose time passes by nothing but turns and reads, picoseconds.
    struct Machine {
        now: Cell<u64>,
        read: u64,
        turn: u64,
        reads: Cell<u32>,
        turns: RefCell<Vec<u64>>,
    }

    impl Machine {
        /// Passes `ns` there by `pace`; gives the picoseconds that it took, all reads with them.
        fn pass(&self, pace: &Pace, ns: u64) -> u64 {
            self.now.set(0);
            self.turns.borrow_mut().clear();
            let read = || {
                self.reads.set(self.reads.get() + 1);
                // The clock is looked at in the middle of a read.
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
            // A read and two turns more at most, and where nothing is asked, the two reads.
            let most = (ns * 1_000).max(40_000) + 20_000 + 2 * 1_024;
            assert!(took <= most, "{took} ps of {ns} ns");
        }
        // 10 µs, of which a read is outside: a half at a time while more than 1 µs is left.
        machine.pass(&pace, 10_000);
        let turns = machine.turns.borrow();
        assert_eq!(turns[0], (9_980_000 / 2 - 20_000) / 1_024 + 1);
        assert_eq!(turns.len(), 5, "9.98, 4.99, 2.5, 1.25, 0.62 µs");
    }

    /// To the picosecond, on a machine whose clock takes no time: a thousand turns of a nanosecond.
    #[test]
    fn exactly_enough_is_enough() {
        let machine = machine(0, 1_000);
        assert_eq!(machine.pass(&Pace { read: 0, turns: 1_048 }, 1_000), 1_000_000);
        assert_eq!(*machine.turns.borrow(), [1_000_000 * 1_048 / (1 << 20) + 1]);
        // More than there is to say in picoseconds is the longest time, and not a short one.
        let fast = Machine { turn: 1 << 20, ..machine };
        fast.pass(&Pace { read: 0, turns: 1 }, u64::MAX / 1_000 / 2);
        assert!(fast.now.get() >= u64::MAX / 2 - 1_000);
    }

    /// The processor is slower or faster than it was when it was measured.
    #[test]
    fn a_clock_has_the_last_word() {
        for (read, turn) in [(20_000, 4_096), (20_000, 256), (60_000, 1_024), (1_000, 1_024)] {
            let machine = machine(read, turn);
            let pace = Pace { read: 20_000, turns: 1_024 };
            for ns in [100, 1_000, 50_000, 1_000_000] {
                let took = machine.pass(&pace, ns) + 20_000;
                assert!(took >= ns * 1_000, "{took} ps of {ns} ns, read {read}, turn {turn}");
                // The last piece of 1 µs may take four times as long.
                assert!(took <= ns * 1_000 * 4 + 200_000, "{took} ps of {ns} ns");
            }
            assert!(machine.reads.get() < 200, "it looks seldom: {}", machine.reads.get());
        }
    }
}
