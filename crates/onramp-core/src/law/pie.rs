//! The PIE law: arriving packets are dropped at random, more often the longer they would have to
//! wait.
//!
//! At regular times, a proportional-integral controller changes the drop probability: the change
//! depends on the difference between the delay and its target, and on the growth of the delay.
//!
//! Source: RFC 8033; arithmetic as in Linux 7.2 `net/sched/sch_pie.c`: probabilities are fractions
//! of 56 bits, and delays count in units of 64 ns. The time between updates is `tupdate`, in whole
//! jiffies of 10 ms (`HZ=100`), plus one jiffy: see [`wheel`](crate::law::wheel).

use onramp_queue::Packet;

use crate::base::params::{Default, Param, U32_MAX, Unit, Values};
use crate::base::rng::Rng;
use crate::base::show::Out;
use crate::base::{Fault, Instant, shown};
use crate::law::wheel::{Rounds, TICK_NS, Timer};

use Default::{Number, Off};

const US_MAX: u64 = U32_MAX * 1_000;

/// Creates an option for which zero means "not given".
const fn param(key: &'static str, unit: Unit, default: u64, help: &'static str) -> Param {
    Param::new(key, unit, Number(default), help).refused(Fault::Usage).zero_is_unsaid()
}

pub(crate) const TARGET: Param =
    param("target", Unit::Usecs, 15_000_000, "the waiting time that the law aims for")
        .within(1_000, US_MAX);

pub(crate) const TUPDATE: Param =
    param("tupdate", Unit::Usecs, 15_000_000, "how often the drop probability is updated")
        .within(1_000, US_MAX);

pub(crate) const ALPHA: Param =
    param("alpha", Unit::Count, 2, "weight of the delay's distance from `target`, in sixteenths")
        .within(1, 32);

pub(crate) const BETA: Param =
    param("beta", Unit::Count, 20, "weight of the delay's growth, in sixteenths").within(1, 32);

pub(crate) const ECN: Param = Param::new(
    "ecn",
    Unit::Words(&["noecn", "ecn"]),
    Off,
    "marks packets instead of dropping them while the drop probability is low",
);

pub(crate) const BYTEMODE: Param = Param::new(
    "bytemode",
    Unit::Words(&["nobytemode", "bytemode"]),
    Off,
    "small packets are dropped less often",
);

pub(crate) const ESTIMATOR: Param = Param::new(
    "dq_rate_estimator",
    Unit::Words(&["no_dq_rate_estimator", "dq_rate_estimator"]),
    Off,
    "computes the delay from backlog and departure rate, not from packets' waiting times",
);

/// Prints the options `target`, `tupdate`, `alpha` and `beta` as the kernel keeps them: `target` in
/// units of 64 ns, `tupdate` in jiffies of 10 ms.
pub(crate) fn show_aim(values: &Values<'_>, out: &mut Out) {
    let target_ns = ticks(values.number("target") / 1_000 * 1_000) << 6;
    shown::time(out, "target", target_ns / 1_000);
    shown::time(out, "tupdate", values.number("tupdate").next_multiple_of(TICK_NS) / 1_000);
    shown::number(out, "alpha", values.number("alpha"));
    shown::number(out, "beta", values.number("beta"));
}

/// Prints the options that are switched on.
pub(crate) fn show_switches(values: &Values<'_>, out: &mut Out) {
    for key in ["ecn", "bytemode", "dq_rate_estimator"] {
        if values.number(key) == 1 {
            shown::flag(out, key);
        }
    }
}

/// The stored value of the probability 1.
pub(crate) const ONE: u64 = u64::MAX >> 8;

/// The burst allowance: for 150 ms after a queue was at rest (not delayed), no packet is dropped.
/// In units of 64 ns.
const BURST: u64 = ticks(150_000_000);

/// Delay (250 ms, in units of 64 ns) beyond which the probability grows faster.
const MUCH: u64 = ticks(250_000_000);

/// Number of bytes over which the estimator measures the rate at which packets leave.
const MEASURED: u64 = 1 << 14;

const TICKS_PER_SEC: u64 = 15_625_000;

/// Number of jiffies (of 10 ms) until the first update: half a second.
const FIRST: u64 = 50;

/// Number of fractional bits of a stored rate, in bytes per 64 ns.
const RATE_BITS: u32 = 8;

const fn ticks(ns: u64) -> u64 {
    ns >> 6
}

/// What all queues of a qdisc share: the parameters that the user gave, the timer for updates, and
/// the random numbers.
#[derive(Debug)]
pub(crate) struct Law {
    target: u64,
    /// The timer that says when updates of the probability are due.
    pub(crate) timer: Timer,
    alpha: u64,
    beta: u64,
    pub(crate) ecn: bool,
    bytemode: bool,
    estimator: bool,
    mtu: u64,
    rng: Rng,
}

/// The state of PIE for one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pie {
    pub(crate) probability: u64,
    /// Sum of the drop probabilities with which packets arrived since the last drop. The sum
    /// prevents drops that are too close together or too far apart.
    sum: u64,
    /// Delay of the last packet that left the queue, in units of 64 ns.
    pub(crate) delay: u64,
    /// Delay at the last update of the probability, in units of 64 ns.
    delay_before: u64,
    /// What is left of the burst allowance: units of 64 ns during which no packet is dropped.
    burst: u64,
    /// With the estimator, time at which the present measurement began; otherwise, time of the last
    /// dequeue. In units of 64 ns.
    since: Option<u64>,
    /// Number of bytes that have left the queue since the present measurement began, or `None`
    /// while nothing is measured.
    measured: Option<u64>,
    /// The rate that the estimator has measured, in bytes per 64 ns, times 2^8.
    rate: u64,
}

impl std::default::Default for Pie {
    fn default() -> Self {
        Self {
            probability: 0,
            sum: 0,
            delay: 0,
            delay_before: 0,
            burst: BURST,
            since: None,
            measured: None,
            rate: 0,
        }
    }
}

impl Law {
    /// Creates the law from the options. The queues of the qdisc are updated in `parts` groups, one
    /// group in each jiffy (10 ms).
    pub(crate) fn new(values: &Values<'_>, parts: u64) -> Self {
        let weight = |key| (values.number(key) * (ONE / TICKS_PER_SEC)) >> 4;
        Self {
            target: ticks(values.number("target")),
            timer: Timer::new(FIRST, parts, values.number("tupdate")),
            alpha: weight("alpha"),
            beta: weight("beta"),
            ecn: values.number("ecn") == 1,
            bytemode: values.number("bytemode") == 1,
            estimator: values.number("dq_rate_estimator") == 1,
            mtu: values.site.mtu.into(),
            // Each qdisc of a tree draws other random numbers, because the seed depends on the
            // qdisc's major number.
            rng: Rng::new(values.site.seed),
        }
    }
}

impl Law {
    /// Takes over the parameters of `new`. The sequence of random numbers and the current wait for
    /// the next update continue.
    pub(crate) fn change(&mut self, new: Self, rounds: &mut Rounds, now: Instant) {
        rounds.change(&self.timer, &new.timer, now);
        let rng = self.rng.clone();
        *self = Self { rng, ..new };
    }
}

impl Pie {
    /// Decides at random whether an arriving packet is to be dropped.
    #[inline]
    pub(crate) fn drops(&mut self, law: &mut Law, pkt: &Packet, backlog: u64) -> bool {
        if self.burst > 0
            || (self.delay < law.target / 2 && self.probability < ONE / 5)
            || backlog < 2 * law.mtu
        {
            return false;
        }
        let mut probability = self.probability;
        if law.bytemode && u64::from(pkt.len) <= law.mtu {
            probability = u64::from(pkt.len) * (probability / law.mtu.max(1));
        }
        self.sum = if probability == 0 { 0 } else { self.sum.wrapping_add(probability) };
        if self.sum < ONE / 100 * 85 {
            return false;
        }
        if self.sum >= ONE / 2 * 17 {
            return true;
        }
        let drops = law.rng.next_u64() >> 8 < probability;
        if drops {
            self.sum = 0;
        }
        drops
    }

    /// Records that a packet was dropped, for any reason, so that the next random drop is less
    /// likely.
    #[inline]
    pub(crate) fn dropped(&mut self) {
        self.sum = 0;
    }

    /// Updates the state when `pkt` leaves the queue and `backlog` bytes stay behind: measures the
    /// delay or, with the estimator, the rate.
    #[inline]
    pub(crate) fn learn(&mut self, law: &Law, pkt: &Packet, backlog: u64, now: Instant) {
        let now = ticks(now.0);
        let gap = if law.estimator {
            match self.measure(pkt, backlog, now) {
                Some(gap) => gap,
                None => return,
            }
        } else {
            let waited = now.saturating_sub(ticks(pkt.enqueued_ns));
            self.delay = if backlog == 0 { 0 } else { waited };
            self.since.replace(now).map_or(0, |since| now - since)
        };
        self.burst = self.burst.saturating_sub(gap);
    }

    /// For the estimator: measures the rate at which packets leave over [`MEASURED`] bytes at a
    /// time, while at least that many bytes are queued. If a measurement has just ended, returns
    /// how long it took, in units of 64 ns; otherwise `None`.
    fn measure(&mut self, pkt: &Packet, backlog: u64, now: u64) -> Option<u64> {
        if backlog >= MEASURED && self.measured.is_none() {
            (self.since, self.measured) = (Some(now), Some(0));
        }
        let bytes = self.measured? + u64::from(pkt.len);
        self.measured = Some(bytes);
        if bytes < MEASURED {
            return None;
        }
        let gap = now - self.since?;
        if gap == 0 {
            return None;
        }
        let rate = (bytes << RATE_BITS) / gap;
        self.rate = if self.rate == 0 { rate } else { self.rate - (self.rate >> 3) + (rate >> 3) };
        if backlog < MEASURED {
            self.measured = None;
        } else {
            (self.since, self.measured) = (Some(now), Some(0));
        }
        Some(gap)
    }

    /// Updates the probability `times` times, for a queue whose backlog did not change between
    /// these updates.
    #[inline]
    pub(crate) fn update(&mut self, law: &Law, backlog: u64, times: u64) {
        for _ in 0..times {
            let before = *self;
            self.update_once(law, backlog);
            if *self == before {
                break;
            }
        }
    }

    fn update_once(&mut self, law: &Law, backlog: u64) {
        let (delay, before) = if law.estimator {
            let delay = (backlog << RATE_BITS).checked_div(self.rate).unwrap_or(0);
            (delay, self.delay)
        } else {
            (self.delay, self.delay_before)
        };
        let old = self.probability;
        let mut step = step(law, old, delay, before);
        if delay > MUCH {
            step = step.wrapping_add_unsigned(ONE / 50);
        }
        self.probability = old.wrapping_add_signed(step);
        let overflow = step > 0 && self.probability < old;
        if overflow {
            self.probability = ONE;
        } else if step <= 0 && self.probability > old {
            self.probability = 0;
        }
        // The probability decays only in an empty queue: if a queue with packets has a delay of
        // zero, its delay is unknown.
        let decays = delay == 0 && before == 0 && backlog == 0 && !overflow;
        if decays {
            self.probability -= self.probability / 64;
        }
        self.delay = delay;
        let rest = delay < law.target / 2 && before < law.target / 2 && self.probability == 0;
        if rest && (!law.estimator || self.rate > 0) {
            *self = Self { delay, delay_before: before, ..Self::default() };
        }
        // With the estimator, no update reads `delay_before`. But if a change of the parameters
        // removes the estimator, the next update reads it.
        self.delay_before = if law.estimator { before } else { delay };
    }
}

/// Returns by how much an update changes the probability, which is little while the probability is
/// small. From a probability of a tenth on, an update adds at most 2 %.
fn step(law: &Law, probability: u64, delay: u64, before: u64) -> i64 {
    let (mut alpha, mut beta) = (law.alpha, law.beta);
    if probability < ONE / 10 {
        (alpha, beta) = (alpha >> 1, beta >> 1);
        let mut power = 100;
        while probability < ONE / power && power <= 1_000_000 {
            (alpha, beta) = (alpha >> 2, beta >> 2);
            power *= 10;
        }
    }
    let off = alpha.wrapping_mul(delay.wrapping_sub(law.target));
    let growth = beta.wrapping_mul(delay.wrapping_sub(before));
    let step = off.wrapping_add(growth).cast_signed();
    let most = (ONE / 100 * 2).cast_signed();
    if step > (ONE / 50).cast_signed() && probability >= ONE / 10 { most } else { step }
}

/// Converts a stored rate to bytes per second, as `tc -s` shows it.
pub(crate) fn bytes_per_sec(rate: u64) -> u64 {
    rate.saturating_mul(TICKS_PER_SEC) >> RATE_BITS
}

impl Pie {
    /// Calls `out` with the name and the value of each part of the state that `tc -s` shows.
    pub(crate) fn stats(&self, law: &Law, out: &mut dyn FnMut(&'static str, u64)) {
        out("prob_ppm", self.probability / (ONE / 1_000_000));
        out("prob", self.probability);
        out("delay_ns", self.delay << 6);
        if law.estimator {
            out("avg_dq_rate", bytes_per_sec(self.rate));
        }
    }
}

#[cfg(test)]
mod tests;
