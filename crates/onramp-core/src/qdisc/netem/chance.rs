//! The random decisions of `netem`.
//!
//! Source: P. L'Ecuyer, "Tables of Maximally Equidistributed Combined LFSR Generators", 1999; S.
//! Salsano et al., "Definition of a general and intuitive loss model", 2012.

use crate::base::params::Values;

/// The probability 1, in units of 2^-32: the greatest number of 32 bits, because 2^32 itself does
/// not fit.
const ALWAYS: u32 = u32::MAX;

/// The random number generator LFSR113, seeded as in the Linux kernel: the same seed gives the same
/// numbers.
#[derive(Debug)]
pub(super) struct Lfsr113([u32; 4]);

impl Lfsr113 {
    pub(super) fn new(seed: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the low half of it counts")]
        let word = ((seed >> 32) ^ (seed << 10) ^ seed) as u32;
        // Each of the four state words ignores its lowest bits, so it needs at least one bit set
        // above them.
        let least = |bound| if word < bound { word + bound } else { word };
        Self([least(2), least(8), least(16), least(128)])
    }

    pub(super) fn next(&mut self) -> u32 {
        let [a, b, c, d] = &mut self.0;
        *a = ((*a & !1) << 18) ^ (((*a << 6) ^ *a) >> 13);
        *b = ((*b & !7) << 2) ^ (((*b << 2) ^ *b) >> 27);
        *c = ((*c & !15) << 7) ^ (((*c << 13) ^ *c) >> 21);
        *d = ((*d & !127) << 13) ^ (((*d << 3) ^ *d) >> 12);
        *a ^ *b ^ *c ^ *d
    }
}

/// A source of random numbers in which each number depends to some part on the number before it.
#[derive(Debug)]
pub(super) struct Correlated {
    last: u32,
    /// The weight of the number before the present one, in units of 2^-32.
    part: u32,
}

impl Correlated {
    pub(super) fn new(part: u32, last: u32) -> Self {
        Self { last, part }
    }

    pub(super) fn draw(&mut self, rng: &mut Lfsr113) -> u32 {
        let fresh = rng.next();
        if self.part == 0 {
            return fresh;
        }
        let part = u64::from(self.part) + 1;
        let sum = u64::from(fresh) * ((1 << 32) - part) + u64::from(self.last) * part;
        self.last = u32::try_from(sum >> 32).unwrap_or(u32::MAX);
        self.last
    }
}

/// An event that happens to some packets at random. An event with probability 0 draws no random
/// number.
#[derive(Debug)]
pub(super) struct Event {
    probability: u32,
    source: Correlated,
}

impl Event {
    /// Reads the option `key`, which has a probability and a correlation.
    pub(super) fn of(values: &Values<'_>, key: &str, last: u32) -> Self {
        Self::new(&values.list(key), last)
    }

    fn new(numbers: &[u64], last: u32) -> Self {
        let number = |place| part_at(numbers, place, 0);
        Self { probability: number(0), source: Correlated::new(number(1), last) }
    }

    pub(super) fn happens(&mut self, rng: &mut Lfsr113) -> bool {
        self.probability > 0 && self.source.draw(rng) <= self.probability
    }

    /// Draws like [`happens`](Self::happens) but gives the opposite answer: returns true if the
    /// event does not happen.
    pub(super) fn spares(&mut self, rng: &mut Lfsr113) -> bool {
        self.probability < self.source.draw(rng)
    }
}

/// Returns the number at the place `place` of an option, in units of 2^-32; returns `absent` if
/// that number is not given.
fn part_at(numbers: &[u64], place: usize, absent: u32) -> u32 {
    numbers.get(place).map_or(absent, |n| u32::try_from(*n).unwrap_or(u32::MAX))
}

/// Decides at random which packets are lost.
#[derive(Debug)]
pub(super) enum Loss {
    /// Each packet is lost independently.
    Random(Event),
    /// Packets are lost by a Markov chain of four states.
    Chain { state: State, p13: u32, p31: u32, p32: u32, p23: u32, p14: u32 },
    /// Packets are lost by the model of Gilbert and Elliott, in which good and bad periods
    /// alternate.
    Gilbert { bad: bool, p: u32, r: u32, keeps_in_bad: u32, loses_in_good: u32 },
}

/// The state of the Markov chain of [`Loss`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The packet arrives, outside of a burst of losses.
    Gap,
    /// The packet is lost, a single loss outside of a burst.
    GapLoss,
    /// The packet is lost in a burst of losses.
    BurstLoss,
    /// The packet arrives, within a burst of losses.
    Burst,
}

impl Loss {
    /// Reads the option `loss`; its first number says which of the three models is used.
    pub(super) fn of(values: &Values<'_>, last: u32) -> Self {
        let list = values.list("loss");
        let (form, numbers) = list.split_first().map_or((0, &[][..]), |(form, n)| (*form, n));
        let number = |place, absent| part_at(numbers, place, absent);
        let first = number(0, 0);
        match form {
            1 => Self::Chain {
                state: State::Gap,
                p13: first,
                p31: number(1, ALWAYS - first),
                p32: number(2, 0),
                p23: number(3, ALWAYS),
                p14: number(4, 0),
            },
            2 => Self::Gilbert {
                bad: false,
                p: first,
                r: number(1, ALWAYS - first),
                keeps_in_bad: ALWAYS - number(2, ALWAYS),
                loses_in_good: number(3, 0),
            },
            _ => Self::Random(Event::new(numbers, last)),
        }
    }

    /// Returns whether the next packet is lost.
    pub(super) fn strikes(&mut self, rng: &mut Lfsr113) -> bool {
        match self {
            Self::Random(event) => event.happens(rng),
            Self::Chain { state, p13, p31, p32, p23, p14 } => {
                let draw = rng.next();
                // As in Linux, a sum of probabilities above 100 % wraps around. The chain may then
                // never leave the state `BurstLoss`.
                *state = match *state {
                    State::Gap if draw < *p14 => State::GapLoss,
                    State::Gap if draw < p14.wrapping_add(*p13) => State::BurstLoss,
                    State::BurstLoss if draw < *p32 => State::Burst,
                    State::BurstLoss if draw >= p32.wrapping_add(*p31) => State::BurstLoss,
                    State::Burst if draw < *p23 => State::BurstLoss,
                    State::Burst => State::Burst,
                    _ => State::Gap,
                };
                matches!(state, State::GapLoss | State::BurstLoss)
            }
            Self::Gilbert { bad, p, r, keeps_in_bad, loses_in_good } => {
                // Whether this packet is lost depends on the period before the possible change to
                // another period.
                let (was_bad, turns) = (*bad, if *bad { *r } else { *p });
                *bad ^= rng.next() < turns;
                let draw = rng.next();
                if was_bad { draw > *keeps_in_bad } else { draw < *loses_in_good }
            }
        }
    }
}

/// Values of a distribution table are in units of the standard deviation divided by this number.
const SCALE: i64 = 8192;
/// Number of values in a distribution table.
const LEN: usize = 4096;

/// The distribution of delays around their mean.
#[derive(Debug)]
pub(super) enum Spread {
    Uniform,
    /// A table of quantiles, in units of the standard deviation divided by `SCALE`.
    Table(Vec<i16>),
}

/// The names of distributions. The argument of [`Spread::named`] is the index of a name in this
/// list.
pub(super) const SPREADS: &[&str] = &["uniform", "normal", "pareto", "paretonormal"];

impl Spread {
    pub(super) fn named(place: u64) -> Self {
        match place {
            1 => Self::Table(normal()),
            2 => Self::Table(pareto().map(rounded).collect()),
            3 => {
                let mix = |(bell, tail)| rounded(0.25 * f64::from(bell) + 0.75 * tail);
                Self::Table(normal().into_iter().zip(pareto()).map(mix).collect())
            }
            _ => Self::Uniform,
        }
    }

    /// Returns a random time around `mean_ns`, in nanoseconds; `draw` is called for the random
    /// number.
    pub(super) fn at(&self, mean_ns: i64, deviation_ns: i64, draw: impl FnOnce() -> u32) -> i64 {
        if deviation_ns == 0 {
            return mean_ns;
        }
        match self {
            Self::Uniform => i64::from(draw()) % (2 * deviation_ns) + mean_ns - deviation_ns,
            Self::Table(table) => {
                let quantile = i64::from(table[draw() as usize % LEN]);
                // Round to the nearest number, halves away from zero. The product is computed in
                // two parts so that it does not overflow.
                let low = (deviation_ns % SCALE) * quantile;
                let low = low + if low < 0 { -SCALE / 2 } else { SCALE / 2 };
                low / SCALE + (deviation_ns / SCALE) * quantile + mean_ns
            }
        }
    }
}

/// Returns the table of quantiles of the normal distribution. They are computed by summing its
/// density in steps of the table's unit.
fn normal() -> Vec<i16> {
    let scale = f64::from(8192_u16);
    let root = (2.0 * std::f64::consts::PI).sqrt();
    let density = |value: i16| {
        let x = f64::from(value) / scale;
        (-x * x / 2.0).exp() / root / scale
    };
    let mut table = Vec::with_capacity(LEN);
    let (mut value, mut sum) = (i16::MIN, 0.0);
    for place in 0..LEN {
        let part = quantile(place);
        while sum < part && value < i16::MAX {
            value += 1;
            sum += density(value);
        }
        table.push(value);
    }
    table
}

/// Returns the fraction of all values of a distribution that lie below the value at the place
/// `place` of its table.
#[expect(clippy::cast_precision_loss, reason = "a table is short")]
fn quantile(place: usize) -> f64 {
    (place as f64 + 0.5) / LEN as f64
}

/// Returns the quantiles of the Pareto distribution with shape 3, minus the mean of that
/// distribution.
fn pareto() -> impl Iterator<Item = f64> {
    let unit = f64::from(8192_u16) * 4.0 / 3.0;
    (0..LEN).map(move |place| ((1.0 - quantile(place)).powf(-1.0 / 3.0) - 1.5) * unit)
}

#[expect(clippy::cast_possible_truncation, reason = "`as` saturates, which is meant")]
fn rounded(value: f64) -> i16 {
    value.round() as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers were computed by hand from L'Ecuyer's recurrences; Linux draws the same
    /// numbers.
    #[test]
    fn the_sequence_of_a_seed_is_known() {
        for (seed, numbers) in [(0, [1_574_944, 268_744]), (42, [3_053_367_555, 794_645_456])] {
            let mut rng = Lfsr113::new(seed);
            assert_eq!([rng.next(), rng.next()], numbers);
        }
        assert_eq!(Lfsr113::new(8_589_934_597).next(), 1_385_320_503);
    }

    #[test]
    fn what_follows_fully_stays_as_it_was() {
        let (mut rng, mut source) = (Lfsr113::new(1), Correlated::new(u32::MAX, 12_345));
        assert_eq!([source.draw(&mut rng), source.draw(&mut rng)], [12_345; 2]);
        let mut half = Correlated::new(1 << 31, 0);
        let fresh = Lfsr113::new(1).next();
        let drawn = half.draw(&mut Lfsr113::new(1));
        assert!(drawn.abs_diff(fresh / 2) <= 1, "{drawn} is half of {fresh}");
    }

    /// Returns the fraction of a table's values that lie below `deviations` standard deviations.
    fn below(table: &[i16], deviations: f64) -> f64 {
        let bound = deviations * 8192.0;
        let count = table.iter().filter(|value| f64::from(**value) < bound).count();
        f64::from(u32::try_from(count).expect("few")) / 4096.0
    }

    #[test]
    fn tables_have_the_quantiles_of_their_distributions() {
        let normal = normal();
        for (deviations, part) in [(-2.0, 0.02275), (-1.0, 0.15866), (0.0, 0.5), (1.5, 0.93319)] {
            assert!((below(&normal, deviations) - part).abs() < 0.0005, "{deviations}");
        }
        let Spread::Table(pareto) = Spread::named(2) else { panic!("it is a table") };
        // For the Pareto distribution with shape 3, P(X < x) = 1 - x^-3, and the mean is 3/2. The
        // table holds (x - 3/2) * 4/3, in units of 1/8,192.
        for x in [1.1_f64, 1.5, 2.0, 4.0] {
            let part = 1.0 - x.powi(-3);
            assert!((below(&pareto, (x - 1.5) * 4.0 / 3.0) - part).abs() < 0.0005, "{x}");
        }
        assert_eq!((pareto[0], pareto[4095]), (-5461, i16::MAX));
    }

    #[test]
    fn a_spread_scales_and_rounds() {
        let table = Spread::Table(vec![-1; LEN]);
        // All values in the table are -1, which means -1/8,192 of the deviation. With a deviation
        // of 10,000 ns, that is -1.2 ns, rounded to -1 ns; with 4,096 ns, it is -0.5 ns, rounded
        // away from zero to -1 ns.
        assert_eq!(table.at(0, 10_000, || 0), -1);
        assert_eq!(table.at(0, 4_096, || 0), -1);
        assert_eq!(table.at(0, 4_095, || 0), 0);
        let table = Spread::Table(vec![1; LEN]);
        assert_eq!([10_000, 4_096, 4_095].map(|wide| table.at(0, wide, || 0)), [1, 1, 0]);
        // All values in the table are 1. A deviation of 20,000 ns gives 20,000 / 8,192 = 2.44,
        // rounded to 2 ns; 24,000 ns give 2.93, rounded to 3 ns.
        assert_eq!([20_000, 24_000].map(|wide| table.at(0, wide, || 0)), [2, 3]);
        assert_eq!(table.at(7, 0, || unreachable!("nothing to draw")), 7);
        assert_eq!(Spread::Uniform.at(1_000, 100, || 350), 1_000 - 100 + 150);
    }
}
