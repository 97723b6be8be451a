//! The control law of `dualpi2` (PI2): a base probability that depends on how long packets wait.
//!
//! The law updates the base probability at regular intervals. The waiting time that counts is that
//! of the oldest packet of both queues: the change of the base probability depends on how far this
//! waiting time is from the target, and on how much it has grown. The classic queue drops with the
//! square of the base probability, and the L-queue marks with a multiple of it: so a flow gets
//! about the same rate in both queues.
//!
//! Source: RFC 9332, appendix A; arithmetic as in Linux 7.2 `net/sched/sch_dualpi2.c`:
//! probabilities are fractions of 32 bits, a gain is rounded to whole units, where one unit moves
//! the probability by 2^-32 for each 64 ns of delay; and only the lower 32 bits of a change of the
//! probability count.

use crate::base::params::{Default, Options, Param, U32_MAX, Unit, Value, Values};
use crate::base::rng::Rng;
use crate::base::{Clash, Instant};

use Default::{Number, Off};

/// The probability 1, in units of 2^-32.
const ONE: u32 = u32::MAX;

/// Number of fractional bits of a gain in Hertz.
const GAIN_BITS: u32 = 8;

/// Number of fractional bits, beyond the 32 of a probability, that the result of `scaled` has.
const DELAY_BITS: u32 = 6;

const NS_PER_SEC: u64 = 1_000_000_000;

/// The longest interval between two updates of the base probability (`tupdate`), in nanoseconds.
/// `tc` sends the interval in whole microseconds, and Linux stores it as a 32-bit number of
/// nanoseconds, so this is the largest multiple of 1,000 that fits into 32 bits.
pub(super) const US_MAX: u64 = U32_MAX / 1_000 * 1_000;

/// The largest gain, in units of 1/256 Hertz.
const GAIN_MAX: u64 = (1 << 31) - 1;

pub(super) const TARGET: Param =
    Param::new("target", Unit::Usecs, Number(15_000_000), "the waiting time that the law aims for")
        .within(1_000, U32_MAX * 1_000);

pub(super) const TUPDATE: Param = Param::new(
    "tupdate",
    Unit::Usecs,
    Number(16_000_000),
    "how often the base probability is updated",
)
.within(1_000, US_MAX);

pub(super) const ALPHA: Param = Param::new(
    "alpha",
    Unit::Gain,
    Number(41),
    "weight of the delay's distance from `target`, in Hertz",
)
.within(1, GAIN_MAX);

pub(super) const BETA: Param =
    Param::new("beta", Unit::Gain, Number(819), "weight of the delay's growth, in Hertz")
        .within(1, GAIN_MAX);

pub(super) const MAX_RTT: Param = Param::new(
    "max_rtt",
    Unit::Usecs,
    Off,
    "longest round trip: target, tupdate, alpha and beta follow from it",
)
.within(1_000, U32_MAX * 1_000);

pub(super) const TYPICAL_RTT: Param = Param::new(
    "typical_rtt",
    Unit::Usecs,
    Off,
    "usual round trip; if not given, a sixth of `max_rtt`",
)
.within(1_000, U32_MAX * 1_000);

/// The parameters of the law as the user gives them: times in nanoseconds, gains in units of 1/256
/// Hertz.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) target: u64,
    pub(super) tupdate: u64,
    pub(super) alpha: u64,
    pub(super) beta: u64,
}

/// Returns the longest and the typical round-trip time, in microseconds, or `None` if the user
/// gives neither.
fn rtts(values: &Values<'_>) -> Option<(u64, u64)> {
    let micros = |key| values.is_given(key).then(|| values.number(key) / 1_000);
    match (micros("max_rtt"), micros("typical_rtt")) {
        (None, None) => None,
        (Some(max), None) => Some((max, (max / 6).max(1))),
        (None, Some(typical)) => Some((typical * 6, typical)),
        (Some(max), Some(typical)) => Some((max, typical)),
    }
}

/// Returns the parameters that follow from the longest and the typical round-trip time (RFC 9332,
/// appendix A.1), computed as `tc` does.
#[expect(clippy::cast_precision_loss, reason = "tc computes with floating point numbers")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`tc` rounds down")]
fn given_by(max: u64, typical: u64) -> Given {
    let third = max as f64 / 3.0;
    let tupdate = (if (typical as f64) < third { typical } else { third as u64 }).max(1);
    let longest = max as f64;
    let alpha = tupdate as f64 / longest / longest * 1e6 * f64::from(0.1_f32);
    let beta = f64::from(0.3_f32) / longest * 1e6;
    let scaled = |gain: f64| (gain * f64::from(1 << GAIN_BITS)) as u64;
    Given {
        target: typical * 1_000,
        tupdate: tupdate * 1_000,
        alpha: scaled(alpha),
        beta: scaled(beta),
    }
}

impl Given {
    pub(super) fn of(values: &Values<'_>) -> Self {
        let number = |key| values.number(key);
        match rtts(values) {
            Some((max, typical)) => given_by(max, typical),
            None => Self {
                target: number("target"),
                tupdate: number("tupdate"),
                alpha: number("alpha"),
                beta: number("beta"),
            },
        }
    }
}

/// The parameters that follow from the round-trip times, if these are given.
const FOLLOWING: [&str; 4] = ["target", "tupdate", "alpha", "beta"];

/// Makes the options after a change name either round-trip times or the parameters that follow from
/// them: `tc` passes only the latter to Linux, so each change applies to what it names.
pub(super) fn change(said: &Values<'_>, options: &mut Options<'_>) {
    if rtts(said).is_some() {
        FOLLOWING.iter().for_each(|key| options.set(key, None));
        let unsaid = ["max_rtt", "typical_rtt"].into_iter().filter(|key| !said.is_given(key));
        unsaid.for_each(|key| options.set(key, None));
    } else if FOLLOWING.iter().any(|key| said.is_given(key)) {
        let values = options.values();
        let Some((max, typical)) = rtts(&values) else { return };
        let Given { target, tupdate, alpha, beta } = given_by(max, typical);
        for (key, value) in FOLLOWING.into_iter().zip([target, tupdate, alpha, beta]) {
            if !said.is_given(key) {
                options.set(key, Some(Value::Number(value)));
            }
        }
        ["max_rtt", "typical_rtt"].iter().for_each(|key| options.set(key, None));
    }
}

/// Checks that the parameters fit together.
pub(super) fn check(values: &Values<'_>) -> Result<(), Clash> {
    let Some((max, typical)) = rtts(values) else { return Ok(()) };
    let key = if values.is_given("max_rtt") { "max_rtt" } else { "typical_rtt" };
    for other in FOLLOWING {
        if values.is_given(other) {
            return Err(Clash::usage(other, format!("it follows from `{key}`: give one of them")));
        }
    }
    if typical > max {
        return Err(Clash::usage(
            "typical_rtt",
            format!("expected `max_rtt` or less, which is {max}us"),
        ));
    }
    let given = given_by(max, typical);
    if given.alpha == 0 || given.beta == 0 {
        return Err(Clash::usage(
            key,
            format!("too long: with {max}us, alpha or beta would be below 1/256 Hz"),
        ));
    }
    if given.tupdate > US_MAX {
        return Err(Clash::usage(
            key,
            format!("too long: expected a period of at most {}us", US_MAX / 1_000),
        ));
    }
    Ok(())
}

/// The base probability, with the parameters and the state by which the law updates it.
#[derive(Debug)]
pub(super) struct Law {
    target: u64,
    tupdate: u64,
    alpha: i64,
    beta: i64,
    coupling: u64,
    /// The upper bound of the base probability.
    pub(super) most: u32,
    pub(super) probability: u32,
    delay_before: u64,
    /// The time of the next update of the probability; `None` before the first call.
    next: Option<Instant>,
    rng: Rng,
}

/// Converts a gain of 31 bits, in units of 1/256 Hertz, to what one nanosecond of delay adds to the
/// probability, in units of 2^-38.
fn scaled(gain: u64) -> i64 {
    let scaled = ((gain * u64::from(ONE)) >> (GAIN_BITS - DELAY_BITS)) / NS_PER_SEC;
    scaled.cast_signed()
}

/// Converts a time to a signed number of nanoseconds, which suffices for 292 years.
fn signed(ns: u64) -> i64 {
    ns.cast_signed()
}

impl Law {
    /// Creates the law. If `drops` is true, an overload drops packets and the base probability may
    /// reach 1; else the base probability may only reach the value at which every packet of the
    /// L-queue is marked.
    pub(super) fn new(values: &Values<'_>, drops: bool) -> Self {
        let given = Given::of(values);
        let coupling = values.number("coupling_factor");
        let most = u64::from(ONE) / if drops { 1 } else { coupling.max(1) };
        Self {
            target: given.target,
            tupdate: given.tupdate.max(1),
            alpha: scaled(given.alpha),
            beta: scaled(given.beta),
            coupling,
            most: u32::try_from(most).unwrap_or(ONE),
            probability: 0,
            delay_before: 0,
            next: None,
            rng: Rng::new(values.site.seed),
        }
    }

    /// Takes over the parameters of `new`, and keeps the probability and the rest of the state.
    pub(super) fn change(&mut self, new: Self) {
        let old = std::mem::replace(self, new);
        (self.probability, self.delay_before) = (old.probability, old.delay_before);
        (self.next, self.rng) = (old.next, old.rng);
    }

    /// Returns the probability with which the L-queue marks, in units of 2^-32. The value may
    /// exceed 1, which means that both queues are overloaded.
    #[inline]
    pub(super) fn coupled(&self) -> u64 {
        u64::from(self.probability) * self.coupling
    }

    /// Whether the probability [`coupled`](Self::coupled) is more than 1, which means an overload.
    #[inline]
    pub(super) fn is_overloaded(&self) -> bool {
        self.coupled() > u64::from(ONE)
    }

    /// Returns true at random, with probability `chance` (in units of 2^-32).
    #[inline]
    pub(super) fn roll(&mut self, chance: u64) -> bool {
        chance > 0 && u64::from(self.rng.next_u32()) <= chance
    }

    /// Returns true at random, with a probability that is the square of the base probability.
    #[inline]
    pub(super) fn roll_square(&mut self) -> bool {
        let chance = self.probability.into();
        self.roll(chance) && self.roll(chance)
    }

    /// Updates the base probability once for each interval that has ended by `now`. The caller
    /// guarantees that the first packets of both queues have been the same since the last call.
    /// `oldest` is the time at which the older of these two packets came, in nanoseconds.
    #[inline]
    pub(super) fn update(&mut self, oldest: Option<u64>, now: Instant) {
        let by_clock = || Instant(now.0 / self.tupdate * self.tupdate).after(self.tupdate);
        let next = self.next.unwrap_or_else(by_clock);
        self.next = Some(next);
        if next <= now {
            self.catch_up(oldest, next, now);
        }
    }

    #[cold]
    fn catch_up(&mut self, oldest: Option<u64>, mut next: Instant, now: Instant) {
        while next <= now && next < Instant::MAX {
            let delay = oldest.map_or(0, |since| next.since(Instant(since)));
            let before = std::mem::replace(&mut self.delay_before, delay);
            let step = self.step(delay, before);
            // Do updates that are all alike in one step. While no packet is held, each update
            // lowers the probability by the same amount. Once the probability has reached its upper
            // bound, it stays there as long as the delay only grows.
            let alike = match oldest {
                None => before == 0,
                Some(_) => {
                    delay == before + self.tupdate && step > 0 && self.probability == self.most
                }
            };
            let times = if alike { now.since(next) / self.tupdate + 1 } else { 1 };
            if oldest.is_some() {
                self.delay_before += (times - 1) * self.tupdate;
            }
            self.move_by(step, times);
            next = next.after(times.saturating_mul(self.tupdate));
        }
        self.next = Some(next);
    }

    /// Returns what one update adds to the base probability, in units of 2^-38. `delay` is how long
    /// the oldest packet has waited now; `before` is the same at the last update.
    fn step(&self, delay: u64, before: u64) -> i64 {
        let off = (signed(delay) - signed(self.target)).wrapping_mul(self.alpha);
        let growth = (signed(delay) - signed(before)).wrapping_mul(self.beta);
        off.wrapping_add(growth)
    }

    fn move_by(&mut self, step: i64, times: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "as Linux does")]
        let once = (step.unsigned_abs() >> DELAY_BITS) as u32;
        let all = u32::try_from(times.saturating_mul(once.into())).unwrap_or(ONE);
        let moved = if step > 0 {
            self.probability.saturating_add(all)
        } else {
            self.probability.saturating_sub(all)
        };
        self.probability = moved.min(self.most);
    }

    /// Resets the base probability to zero; the last delay and the time of the next update stay.
    pub(super) fn reset(&mut self) {
        self.probability = 0;
    }
}

#[cfg(test)]
impl Law {
    /// Returns the delay at the last update, and the time of the next update.
    pub(super) fn known(&self) -> (u64, Option<Instant>) {
        (self.delay_before, self.next)
    }

    /// Returns the parameters.
    pub(super) fn numbers(&self) -> (u64, u64, i64, i64) {
        (self.target, self.tupdate, self.alpha, self.beta)
    }
}
