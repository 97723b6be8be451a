//! The RED law: the longer a queue is on average, the more arriving packets are dropped at random.
//!
//! While the average of the queue's length grows from `min` to `max`, the share of dropped packets
//! grows from zero to `probability`; from `max` on, all packets are dropped. Drops are spread out:
//! each packet that is not dropped makes a drop of the next packet more likely.
//!
//! Source: Floyd and Jacobson, "Random Early Detection Gateways for Congestion Avoidance", 1993, in
//! the variant that draws one random number for each drop; Floyd, Gummadi and Shenker, "Adaptive
//! RED", 2001; arithmetic as in Linux 7.2 `include/net/red.h`, constants as `tc` chooses them.

mod shape;

pub(crate) use self::shape::{Shape, show_flows, show_queue};

use crate::base::Instant;
use crate::base::params::{Default, Param, Unit};
use crate::base::rng::Rng;
use crate::law::wheel;

pub(crate) const PROBABILITY: Param = Param::new(
    "probability",
    Unit::Fraction,
    Default::Number(U32_SPAN / 50),
    "share of packets that are dropped when the average is just below `max`",
);

/// 2^32, which stands for the probability 1 in the default of a probability ([`Unit::Fraction`]).
const U32_SPAN: u64 = 1 << 32;

/// Nanoseconds in the unit in which `tc` counts time.
const TICK_NS: f64 = 64.0;

/// The decision about an arriving packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The packet is not dropped.
    Spare,
    /// The packet is to be dropped or marked, by a random choice.
    Early,
    /// The packet is to be dropped or marked, because the average is `max` or more.
    Forced,
}

/// How much the average of an idle queue shrinks. The idle time is divided into cells of
/// 2^`cell_log` µs; after an idle time of `n` cells, the average is shifted right by `bits[n]`
/// bits.
#[derive(Debug)]
struct Damping {
    cell_log: u32,
    bits: [u8; 256],
}

/// The parameters of the law, and the random numbers, which many queues may share.
#[derive(Debug)]
pub(crate) struct Red {
    /// The backlog that an arriving packet finds counts in the average with the weight 2^-weight.
    /// Averages are stored times 2^weight.
    weight: u32,
    /// The average below which no packet is dropped, times 2^weight.
    min: u64,
    /// The average from which on every packet is dropped, times 2^weight.
    max: u64,
    span: u32,
    max_p: u32,
    /// How much each byte of the average above `min` adds to the drop probability, times 2^32.
    slope: u32,
    damping: Option<Damping>,
    rng: Rng,
}

/// The state of RED for one queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Average {
    /// The average of the queue's length, times 2^weight.
    value: u64,
    /// Number of packets that were not dropped since the last drop, or -1 while the average is
    /// below `min`, or `max` or more.
    spared: i32,
    /// A random number: the larger it is, the later the next drop comes.
    draw: u32,
    /// Time since which the queue has been idle, or `None` if the queue is not idle.
    idle_since: Option<Instant>,
}

impl Average {
    pub(crate) const EMPTY: Self = Self { value: 0, spared: -1, draw: 0, idle_since: None };

    /// Discards the random number for the next drop. The next packet that finds the average between
    /// `min` and `max` draws another.
    #[inline]
    pub(crate) fn spare(&mut self) {
        self.spared = -1;
    }

    /// Records that the queue is empty from `now` on, unless it was empty before.
    #[inline]
    pub(crate) fn rest(&mut self, now: Instant) {
        self.idle_since.get_or_insert(now);
    }
}

impl Red {
    /// Creates the law from the user's description. `weight` is the result of [`Shape::check`].
    pub(crate) fn new(shape: &Shape, weight: u32, seed: u64) -> Self {
        let max_p = shape.max_p();
        let span = shape.max.saturating_sub(shape.min).max(1);
        Self {
            weight,
            min: u64::from(shape.min) << weight,
            max: u64::from(shape.max) << weight,
            span,
            max_p,
            slope: (max_p / span).max(1),
            damping: None,
            rng: Rng::new(seed),
        }
    }

    /// Takes over the parameters of `new`. The sequence of random numbers continues.
    pub(crate) fn change(&mut self, new: Self) {
        let rng = self.rng.clone();
        *self = Self { rng, ..new };
    }

    /// Lets the average shrink while the queue is idle, as if packets of `average_packet` bytes had
    /// left at `bytes_per_sec`. Without this call, the average of an idle queue does not shrink. As
    /// in Linux, the table of idle times is computed for units of 64 ns but looked up with
    /// microseconds, so averages shrink 15.6 times more slowly than they should.
    pub(crate) fn damp(&mut self, average_packet: u32, bytes_per_sec: u64) {
        let (bits_per_tick, cell_log) = shrinking(self.weight, average_packet, bytes_per_sec);
        let mut bits = [31; 256];
        for (place, bits) in (0_u32..).zip(&mut bits[..255]) {
            // If a packet takes less than a microsecond, `bits_per_tick` is infinite, and zero
            // times infinity is not a number. So the first cell gets 0 bits without a
            // multiplication.
            let cell = f64::from(place) * f64::from(1_u32 << cell_log);
            let shrunk = if place == 0 { 0.0 } else { cell * bits_per_tick };
            #[expect(clippy::cast_possible_truncation, reason = "at most 31, not negative")]
            #[expect(clippy::cast_sign_loss, reason = "at most 31, not negative")]
            let whole = shrunk.min(31.0) as u8;
            *bits = whole;
        }
        self.damping = Some(Damping { cell_log, bits });
    }

    fn set_max_p(&mut self, max_p: u32, slope: u32) {
        (self.max_p, self.slope) = (max_p, slope.max(1));
    }

    /// Updates the average and decides about a packet that arrives while `backlog` bytes (or
    /// packets) are queued.
    #[inline]
    pub(crate) fn judge(&mut self, average: &mut Average, backlog: u64, now: Instant) -> Verdict {
        self.update(average, backlog, now);
        if average.value < self.min {
            average.spare();
            return Verdict::Spare;
        }
        if average.value >= self.max {
            average.spare();
            return Verdict::Forced;
        }
        if self.draws(average) { Verdict::Early } else { Verdict::Spare }
    }

    /// Adds the present backlog to the average or, if the queue was idle, lets the average shrink.
    #[inline]
    pub(crate) fn update(&mut self, average: &mut Average, backlog: u64, now: Instant) {
        average.value = match average.idle_since.take() {
            Some(since) => self.damped(average.value, since, now),
            None => (average.value + backlog).saturating_sub(average.value >> self.weight),
        };
    }

    /// Returns the average that is left if the queue was idle from `since` until `now`.
    #[cold]
    fn damped(&self, value: u64, since: Instant, now: Instant) -> u64 {
        let Some(damping) = &self.damping else { return value };
        let idle_us = (now.since(since) / 1000).min(CELLS << damping.cell_log);
        let cell = (idle_us >> damping.cell_log) as usize;
        match damping.bits[cell & 255] {
            // A cell with 0 bits is too short for a shift, so the average shrinks in proportion to
            // the idle time, by at most half.
            0 => {
                let less = value.saturating_mul(idle_us) >> damping.cell_log;
                if less < value >> 1 { value - less } else { value >> 1 }
            }
            bits => value >> bits,
        }
    }

    #[inline]
    pub(crate) fn is_beyond_min(&self, average: &Average) -> bool {
        average.value > self.min
    }

    #[inline]
    pub(crate) fn is_beyond_max(&self, average: &Average) -> bool {
        average.value > self.max
    }

    /// Whether a packet is to be dropped, by a random choice. Call `draws` only while the average
    /// lies between `min` and `max`.
    #[inline]
    pub(crate) fn draws(&mut self, average: &mut Average) -> bool {
        average.spared = average.spared.saturating_add(1);
        if average.spared == 0 {
            average.draw = self.rng.next_u32() / self.slope;
            return false;
        }
        let above = (average.value - self.min) >> self.weight;
        if above * u64::from(average.spared.unsigned_abs()) < u64::from(average.draw) {
            return false;
        }
        average.spared = 0;
        average.draw = self.rng.next_u32() / self.slope;
        true
    }
}

/// Returns by how many bits the average of an idle queue shrinks in 64 ns, and the duration of a
/// cell of the table, as a power of two in microseconds.
fn shrinking(weight: u32, average_packet: u32, bytes_per_sec: u64) -> (f64, u32) {
    let us = u64::from(average_packet) * 1_000_000 / bytes_per_sec.max(1);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let ticks = (us as f64 * 1e3 / TICK_NS).trunc();
    let share = 0.5_f64.powi(i32::try_from(weight).unwrap_or(i32::MAX));
    let bits_per_tick = -(1.0 - share).ln() / ticks;
    let spans = |log: &u32| 31.0 / bits_per_tick / f64::from(1_u32 << log) < 512.0;
    (bits_per_tick, (0..32).find(spans).unwrap_or(31))
}

/// Number of cells after which the average of an idle queue shrinks no further.
const CELLS: u64 = 255;

/// Nanoseconds between two changes that adaptive RED makes: half a second, and a jiffy of 10 ms.
const ADAPT_NS: u64 = 510_000_000;

/// Half a second, in jiffies of 10 ms.
const ADAPT_TICKS: u64 = 50;

/// The probability 0.01, times 2^32. Adaptive RED does not reduce a probability below 0.01 further.
const PERCENT: u32 = 42_949_672;

/// Adaptive RED: changes `probability` from time to time, so that the average stays in the middle
/// between `min` and `max`.
#[derive(Debug, std::default::Default)]
pub(crate) struct Adaption {
    /// Time of the next change of `probability`, or `None` before the first call of `run`.
    next: Option<Instant>,
}

impl Adaption {
    /// Creates a state whose first change of `probability` is half a second from now.
    pub(crate) fn from(now: Instant) -> Self {
        Self { next: Some(wheel::once(now, ADAPT_TICKS)) }
    }

    /// Makes all changes of `probability` that were due since the last call.
    #[inline]
    pub(crate) fn run(&mut self, red: &mut Red, average: &Average, now: Instant) {
        let by_clock = || Instant(now.0 / ADAPT_NS * ADAPT_NS).after(ADAPT_NS);
        let mut next = *self.next.get_or_insert_with(by_clock);
        let still = red.stays_from(average);
        while next <= now {
            if !red.adapt(average, next) && still <= next {
                // Neither `max_p` nor the average changes any more, so skip all changes that are
                // due until now.
                next = next.after(now.since(next) / ADAPT_NS * ADAPT_NS);
            }
            next = next.after(ADAPT_NS);
        }
        self.next = Some(next);
    }
}

impl Red {
    /// Returns the time from which on the average does not change until the next packet arrives.
    fn stays_from(&self, average: &Average) -> Instant {
        match (average.idle_since, &self.damping) {
            (Some(since), Some(damping)) => since.after((CELLS << damping.cell_log) * 1000),
            _ => Instant(0),
        }
    }

    /// Makes one change of the probability, by additive increase or multiplicative decrease.
    /// Returns whether the probability changed.
    fn adapt(&mut self, average: &Average, now: Instant) -> bool {
        let idle = average.idle_since.filter(|since| *since <= now);
        let value = idle.map_or(average.value, |since| self.damped(average.value, since, now));
        let value = value >> self.weight;
        let (least, fifth) = (self.min >> self.weight, u64::from(self.span / 5));
        let max_p = if value > least + 3 * fifth && self.max_p <= 50 * PERCENT {
            self.max_p + PERCENT.min(self.max_p / 4)
        } else if value < least + 2 * fifth && self.max_p >= PERCENT {
            self.max_p / 10 * 9
        } else {
            return false;
        };
        self.set_max_p(max_p, (max_p + self.span / 2) / self.span);
        true
    }
}

#[cfg(test)]
mod adaptive_tests;
#[cfg(test)]
mod law_tests;

#[cfg(test)]
mod tests {
    use super::shape::weight;
    use super::*;

    /// The law computes the constants that `tc` shows as `ewma` and `Scell_log`.
    #[test]
    fn constants_are_those_of_tc() {
        for (min, max, burst, avpkt, rate, ewma, cells) in [
            (8_333, 25_000, 13, 1000, 1_250_000, 3, 13),
            (10_000, 30_000, 16, 1000, 1_250_000, 3, 13),
            (16_666, 50_000, 55, 500, 1_250_000, 5, 14),
            (20_000, 60_000, 40, 1000, 1_250_000, 5, 15),
            (8_333, 25_000, 13, 1000, 12_500_000, 3, 10),
            (10_000, 250_000, 90, 1000, 1_250_000, 9, 19),
        ] {
            let weight = weight(min, burst, avpkt).expect("a burst that is large enough");
            assert_eq!(weight, ewma);
            let (probability, average_packet) = (1 << 30, avpkt);
            let shape = Shape { min, max, burst, probability, average_packet };
            let mut red = Red::new(&shape, weight, 1);
            red.damp(avpkt, rate);
            assert_eq!(red.damping.map(|damping| damping.cell_log), Some(cells));
        }
        assert_eq!(weight(8_333, 2, 1000), None);
    }

    fn red() -> Red {
        let (burst, probability, average_packet) = (20, 1 << 30, 1000);
        let shape = Shape { min: 10_000, max: 30_000, burst, probability, average_packet };
        Red::new(&shape, 3, 1)
    }

    /// An idle time that is too short for a shift takes away less than half of the average, rounded
    /// down, or else leaves half, rounded down.
    #[test]
    fn a_short_rest_takes_a_part_of_the_average() {
        let mut red = red();
        red.damp(1000, 1_250_000);
        let damping = red.damping.as_ref().expect("it is damped");
        assert_eq!(damping.bits[0], 0);
        for value in 0..64_u64 {
            for idle_us in 0..1 << damping.cell_log {
                let less = (value * idle_us) >> damping.cell_log;
                let left = if less < value / 2 { value - less } else { value / 2 };
                let now = Instant(idle_us * 1_000);
                assert_eq!(red.damped(value, Instant(0), now), left, "{value}, {idle_us}");
            }
        }
        // An average of 3 that loses 1.
        let idle_us = (1 << damping.cell_log) / 3 + 1;
        assert_eq!(red.damped(3, Instant(0), Instant(idle_us * 1_000)), 1);
    }

    #[test]
    fn the_average_follows_with_its_weight() {
        let (mut red, mut average) = (red(), Average::EMPTY);
        for expected in [1000, 1875, 2640, 3310] {
            assert_eq!(red.judge(&mut average, 8_000, Instant(0)), Verdict::Spare);
            assert_eq!(average.value >> 3, expected);
        }
    }

    /// As in Linux, the number of packets from one drop to the next is evenly distributed from 1 to
    /// 1/p (the paper says 2/p).
    #[test]
    fn the_share_of_drops_grows_from_min_to_max() {
        for (backlog, share) in [(9_000, 0.0), (20_000, 0.2222), (25_000, 0.3137), (31_000, 1.0)] {
            let (mut red, mut average) = (red(), Average::EMPTY);
            let mut judge = || red.judge(&mut average, backlog, Instant(0)) != Verdict::Spare;
            (0..100).for_each(|_| _ = judge());
            let drops = (0..100_000).filter(|_| judge()).count();
            let (least, most) = (share * 0.98, share * 1.02);
            let drops = f64::from(u32::try_from(drops).expect("small")) / 1e5;
            assert!((least..=most).contains(&drops), "{backlog}: {drops}");
        }
    }

    #[test]
    fn an_idle_queue_forgets() {
        let (mut red, mut average) = (red(), Average::EMPTY);
        red.damp(1000, 1_250_000);
        (0..1000).for_each(|_| red.update(&mut average, 20_000, Instant(0)));
        let before = average.value;
        let mut left = before;
        for us in [100, 5_000, 40_000, 100_000, 1_000_000, 10_000_000] {
            let now = red.damped(before, Instant(0), Instant(us * 1000));
            assert!(now <= left, "{us}: {now}");
            left = now;
        }
        assert_eq!((red.damped(before, Instant(0), Instant(0)), left), (before, 0));
    }

    #[test]
    fn adaptive_red_moves_between_one_and_fifty_percent() {
        let (mut red, mut average) = (red(), Average::EMPTY);
        let mut adaption = Adaption::default();
        adaption.run(&mut red, &average, Instant(0));
        adaption.run(&mut red, &average, Instant(ADAPT_NS - 1));
        assert_eq!(red.max_p, 1 << 30);
        adaption.run(&mut red, &average, Instant(ADAPT_NS));
        assert_eq!(red.max_p, (1 << 30) / 10 * 9);
        adaption.run(&mut red, &average, Instant(1000 * ADAPT_NS));
        assert!((PERCENT * 9 / 10..PERCENT).contains(&red.max_p));
        average.value = 29_000 << 3;
        adaption.run(&mut red, &average, Instant(2000 * ADAPT_NS));
        assert!((50 * PERCENT..=51 * PERCENT).contains(&red.max_p));
    }
}
