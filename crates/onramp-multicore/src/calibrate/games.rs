//! Games of two threads with one cache line. The same code is played by real threads and by threads
//! of the simulated machine, so that the cost of a transfer can be chosen such that both take the
//! same time.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use onramp_machine::sync::atomic as simulated;
use onramp_machine::{Machine, Setup, hook, simulate, thread};

use super::rounds::{NotMeasured, losses, now, together};

/// What the two threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Game {
    /// Each waits by loads until the other has stored, then stores.
    Stores,
    /// The same, with a hint between two loads.
    StoresWithHint,
    /// Each tries compare-and-swap until the other has succeeded.
    Swaps,
    /// Each adds to the same number, as fast as it can.
    Additions,
    /// One writes many lines; then the other one loads them, each load after the one before.
    Walk,
}

/// How many times the ball is thrown, or how many numbers each thread adds, before the measurement
/// begins, and during it.
const WARM_UP: u32 = 200;
const REAL: u32 = 2_000;
const SIMULATED: u32 = 200;

/// Number of lines of a walk: 128 KiB with their distance, more than a first-level cache holds.
const LINES: u32 = 512;
/// How often a round walks over all lines.
const WALKS: u32 = 4;

/// Time after which a simulated game counts as stuck, nanoseconds.
const LIMIT_NS: u64 = 1_000_000_000;

/// A number that several threads change.
trait Word: Send + Sync + 'static {
    fn load(&self) -> u32;
    fn store(&self, value: u32);
    fn swaps(&self, from: u32, to: u32) -> bool;
    fn add(&self);
    fn new(value: u32) -> Self;
    /// Tells the processor that the thread spins.
    fn hint();
    /// The time in nanoseconds; reading it costs the simulated thread nothing.
    fn now() -> f64;
}

/// A number that has cache lines of its own.
#[repr(align(256))]
struct Padded<W>(W);

// Acquire and Release: each throw sees what the thread did that threw before, as in a program that
// hands over data. Relaxed: an addition hands over nothing.
macro_rules! word {
    ($word:ty, $hint:expr, $now:expr) => {
        impl Word for $word {
            fn load(&self) -> u32 {
                // Acquire: pairs with the Release of the other player's throw.
                <$word>::load(self, Ordering::Acquire)
            }
            fn store(&self, value: u32) {
                // Release: pairs with the Acquire of the other player's look.
                <$word>::store(self, value, Ordering::Release);
            }
            fn swaps(&self, from: u32, to: u32) -> bool {
                // AcqRel: pairs with the other player's throw; Relaxed: a failure tells nothing.
                self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            }
            fn add(&self) {
                // Relaxed: the sum hands over nothing.
                self.fetch_add(1, Ordering::Relaxed);
            }
            fn new(value: u32) -> Self {
                <$word>::new(value)
            }
            fn hint() {
                $hint();
            }
            #[expect(clippy::cast_precision_loss, reason = "times of a short game")]
            fn now() -> f64 {
                $now
            }
        }
    };
}

word!(AtomicU32, hint::spin_loop, now() as f64);
word!(simulated::AtomicU32, hook::spin_loop, hook::time_ps().unwrap_or_default() as f64 / 1_000.0);

/// Number of balls. Each round is played with another one, because each line has its place in the
/// last-level cache, nearer to the players or farther away.
const BALLS: usize = 64;

/// What the players share: a ball, and the lines of a walk. The value of a line is the number of
/// the next one, in random order.
struct Court<W> {
    balls: Box<[Padded<W>]>,
    ball: usize,
    lines: Box<[Padded<W>]>,
}

impl<W: Word> Court<W> {
    /// Makes a court on which the round is played.
    fn new(round: usize) -> Self {
        let mut order: Vec<u32> = (0..LINES).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        let lines: Box<[_]> = (0..LINES).map(|_| Padded(W::new(0))).collect();
        for (line, next) in order.iter().zip(order.iter().cycle().skip(1)) {
            lines[*line as usize].0.store(*next);
        }
        let balls = (0..BALLS).map(|_| Padded(W::new(0))).collect();
        Self { balls, ball: round % BALLS, lines }
    }

    fn ball(&self) -> &W {
        &self.balls[self.ball].0
    }

    /// Walks over lines that the other player has written. Returns nanoseconds for each line; only
    /// the second player walks.
    fn walk(&self, first: u32, is_second: bool) -> f64 {
        let mut took = 0.0;
        for round in 0..WALKS {
            let mine = first + 2 * round + u32::from(is_second);
            while self.ball().load() != mine {
                W::hint();
            }
            if is_second {
                let from = W::now();
                let mut at = 0;
                for _ in 0..LINES {
                    at = self.lines[at as usize].0.load();
                }
                hint::black_box(at);
                took += W::now() - from;
            } else {
                for line in &self.lines {
                    line.0.store(hint::black_box(line.0.load()));
                }
            }
            self.ball().store(mine + 1);
        }
        took / f64::from(WALKS * LINES)
    }
}

impl Game {
    /// Throws the ball `count` times. The first player begins.
    fn play<W: Word>(self, ball: &W, is_second: bool, from: u32, count: u32) {
        for round in from..from + count {
            let mine = 2 * round + u32::from(is_second);
            match self {
                Self::Stores => {
                    while ball.load() != mine {}
                    ball.store(mine + 1);
                }
                Self::StoresWithHint => {
                    while ball.load() != mine {
                        W::hint();
                    }
                    ball.store(mine + 1);
                }
                Self::Swaps => while !ball.swaps(mine, mine + 1) {},
                Self::Additions | Self::Walk => ball.add(),
            }
        }
    }

    /// Plays one side: first to warm up, then for the measurement. Returns nanoseconds for each
    /// throw or addition of either player.
    fn side<W: Word>(
        self,
        court: &Court<W>,
        is_second: bool,
        count: u32,
        mut between: impl FnMut() -> Result<(), NotMeasured>,
    ) -> Result<f64, NotMeasured> {
        // The ball stays as it is once the turns are over: the other player still waits for it.
        let (ball, sum) = (court.ball(), &court.lines[0].0);
        // Additions have no turns, so both begin after a game that has.
        let has_turns = !matches!(self, Self::Additions | Self::Walk);
        let warm_up = if has_turns { self } else { Self::StoresWithHint };
        warm_up.play(ball, is_second, 0, WARM_UP);
        between()?;
        let each = if self == Self::Walk {
            court.walk(2 * WARM_UP, is_second)
        } else {
            let ball = if has_turns { ball } else { sum };
            let from = W::now();
            self.play(ball, is_second, WARM_UP, count);
            (W::now() - from) / f64::from(2 * count)
        };
        between()?;
        Ok(each)
    }

    /// Plays on two processors of this machine. Returns `None` if a player lost its processor.
    pub(super) fn real(self, cpus: [usize; 2], round: usize) -> Result<Option<f64>, NotMeasured> {
        let court = &Court::<AtomicU32>::new(round);
        let player = |is_second: bool| {
            move || {
                let mut seen = Vec::new();
                let each = self.side(court, is_second, REAL, || {
                    seen.push(losses()?);
                    Ok(())
                })?;
                Ok((each, seen.first() == seen.last()))
            }
        };
        let sides = together(cpus, [player(false), player(true)])?;
        Ok(sides.iter().all(|(_, kept)| *kept).then(|| sides[0].0.max(sides[1].0)))
    }

    /// Plays on two processors of a simulated machine.
    pub(super) fn simulated(self, machine: &Machine, cpus: [u16; 2]) -> Result<f64, NotMeasured> {
        let (tells, told) = mpsc::channel();
        let setup = Setup { machine: *machine, limit_ns: LIMIT_NS, measure_ns: 0..0 };
        let failed = |why: String| NotMeasured::Simulation(why);
        simulate(&setup, move || {
            let court = Arc::new(Court::<simulated::AtomicU32>::new(0));
            for (cpu, is_second) in [(cpus[0], false), (cpus[1], true)] {
                let (court, tells) = (court.clone(), tells.clone());
                let player = thread::Builder::new().name(format!("on {cpu}")).on(cpu);
                let started = player.spawn(move || {
                    let each = self.side(&court, is_second, SIMULATED, || Ok(()));
                    let _ = tells.send(each);
                });
                started.expect("a simulated machine starts threads");
            }
        })
        .map_err(|error| failed(error.to_string()))?;
        let sides: Vec<f64> = told.into_iter().collect::<Result<_, _>>()?;
        sides.into_iter().reduce(f64::max).ok_or_else(|| failed("no player told its time".into()))
    }
}

/// Returns the cost of a transfer, picoseconds, with which the simulated game of stores takes
/// `measured` nanoseconds for each throw. `machine` makes a machine with a given cost.
pub(super) fn fit(
    measured: f64,
    machine: &dyn Fn(u64) -> Machine,
    cpus: [u16; 2],
) -> Result<f64, NotMeasured> {
    let (mut low, mut high) = (0.0, measured * 2_000.0);
    // Each step halves the interval; after these steps it is a thousandth of the cost.
    for _ in 0..11 {
        let middle = f64::midpoint(low, high);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and twice a measured time"
        )]
        let takes = Game::Stores.simulated(&machine(middle as u64), cpus)?;
        *if takes < measured { &mut low } else { &mut high } = middle;
    }
    Ok(f64::midpoint(low, high) / 1_000.0)
}

#[cfg(test)]
mod tests {
    use onramp_machine::Costs;

    use super::*;
    use crate::{Description, Draw};

    fn xeon() -> Machine {
        Description::named("xeon-6985p").expect("described").draw(&mut Draw::new(0))
    }

    /// Whatever a machine takes for a throw, the simulated machine takes the same with the cost
    /// that was chosen for it.
    #[test]
    fn the_simulated_game_takes_as_long_as_the_measured_one() {
        for measured in [60.0, 300.0] {
            type Set = fn(&mut Costs, u64);
            let near: Set = |costs, cost| costs.near = cost;
            for (cpus, set) in [
                ([0, 1], near),
                ([0, 40], |costs, cost| costs.far = cost),
                ([0, 120], |costs, cost| costs.remote = cost),
            ] {
                let with = |cost| {
                    let mut machine = xeon();
                    set(&mut machine.costs, cost);
                    machine
                };
                let cost = fit(measured, &with, cpus).expect("it is played");
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "small"
                )]
                let machine = with((cost * 1_000.0) as u64);
                let takes = Game::Stores.simulated(&machine, cpus).expect("played");
                let off = (takes - measured).abs() / measured;
                assert!(off < 0.15, "{takes} for {measured} with {cost}");
            }
        }
    }

    #[test]
    fn all_games_are_played_to_the_end() {
        let machine = xeon();
        for game in [Game::Stores, Game::StoresWithHint, Game::Swaps, Game::Additions, Game::Walk] {
            let each =
                game.simulated(&machine, [0, 1]).unwrap_or_else(|why| panic!("{game:?}: {why}"));
            assert!(each > 1.0, "{game:?}: {each}");
            assert_eq!(game.simulated(&machine, [0, 1]).expect("again"), each, "{game:?}");
        }
    }
}
