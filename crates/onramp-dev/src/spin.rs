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
    // Two halves of a read lie outside what the clock shows: before the first, after the last.
    let asked = (ns * 1_000).saturating_sub(pace.read);
    let mut left = asked;
    loop {
        // A long time by halves: the processor may be slower than it was, and the loop with it. The
        // last piece takes in the read that ends it, and a little more, so that it is enough.
        let piece = if left > LAST_PS { left / 2 } else { left + (left / 32).min(pace.read) };
        idle((piece.saturating_sub(pace.read).saturating_mul(pace.turns) >> SHIFT) + 1);
        let spent = MonotonicClock.now().since(start) * 1_000;
        if spent >= asked {
            return;
        }
        left = asked - spent;
    }
}

impl Pace {
    /// Takes about 200 µs. The least of many, for whatever disturbs makes it longer.
    fn measure() -> Self {
        const READS: u64 = 32;
        const TURNS: u64 = 500;
        let least = |work: &dyn Fn(), times: u64| {
            let times = (0..100).map(|_| {
                let start = MonotonicClock.now();
                work();
                MonotonicClock.now().since(start) * 1_000 / times
            });
            times.min().unwrap_or(1).max(1)
        };
        let reads = || (0..READS).for_each(|_| _ = black_box(MonotonicClock.now()));
        let turn = least(&|| idle(TURNS), TURNS);
        Self { read: least(&reads, READS + 1), turns: (1 << SHIFT) / turn }
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
}
