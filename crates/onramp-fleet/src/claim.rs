//! Claims, and how a rate is divided among them.

use std::sync::Arc;

/// Levels are in bytes per second for a weight of `SCALE`.
const SCALE: u128 = 1 << 10;

/// The largest rate in a claim, in bytes per second. The levels of larger rates would not fit into
/// their numbers, and a host that claims such a rate would get more than its weight allows.
const RATE_MAX: u64 = u64::MAX >> 10;

/// The largest number of knots that a sum of claims keeps.
const KNOTS_MAX: usize = 16;

/// A point of a claim's curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Knot {
    /// The level: a rate for each 1/1,024 of weight, in bytes per second.
    pub level: u64,
    /// What the claimant gets at this level, in bytes per second.
    pub rate: u64,
}

/// What one member of a limit wants: a curve that says how much of the limit the member gets at
/// each level. [`divide`] finds the level at which all members together get the whole limit, as
/// water that is poured over stones finds its level.
///
/// A host's curve begins at the rate that is guaranteed to the host, rises with the host's weight,
/// and ends at its demand. The curve of a group of hosts is the sum of their curves, so a group
/// gets what its hosts would get if each of them were a member itself.
///
/// Source: bandwidth functions (Kumar et al., "BwE: Flexible, Hierarchical Bandwidth Allocation for
/// WAN Distributed Computing", SIGCOMM 2015), with a straight line for each host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    weight: u64,
    /// At least one knot. Levels rise strictly, rates never fall. Each answer has the claims of all
    /// members, so copies share them.
    knots: Arc<[Knot]>,
}

impl Claim {
    /// Makes the claim of a member with this weight (at least 1), to which `floor` bytes per second
    /// are guaranteed and which wants `demand` bytes per second. Rates above 2^54 bytes per second
    /// count as 2^54.
    #[must_use]
    pub fn new(weight: u32, floor: u64, demand: u64) -> Self {
        let weight = u64::from(weight.max(1));
        let (floor, demand) = (floor.min(RATE_MAX), demand.min(RATE_MAX));
        let level = |rate| per(u128::from(rate) * SCALE, weight);
        let mut knots = vec![Knot { level: level(floor), rate: floor }];
        // With a large weight, two small rates may have the same level.
        let last = level(demand).max(knots[0].level.saturating_add(1));
        if demand > floor && last > knots[0].level {
            knots.push(Knot { level: last, rate: demand });
        }
        Self { weight, knots: knots.into() }
    }

    /// Makes a claim from its parts, for example from a message; `None` if there is no knot, the
    /// weight is zero, levels do not rise or rates fall.
    #[must_use]
    pub fn from_parts(weight: u64, knots: Vec<Knot>) -> Option<Self> {
        let rises = |pair: &[Knot]| pair[0].level < pair[1].level && pair[0].rate <= pair[1].rate;
        let sound = weight > 0 && !knots.is_empty() && knots.windows(2).all(rises);
        sound.then(|| Self { weight, knots: knots.into() })
    }

    /// Returns the sum of `claims`, the claim of a group. At every level that is a knot of the
    /// result, the group gets what its members would get. A sum has at most 16 knots: those that
    /// change the curve least are left out, but never the first and the last.
    #[must_use]
    pub fn sum<'a>(claims: impl IntoIterator<Item = &'a Self>) -> Self {
        let claims: Vec<&Self> = claims.into_iter().collect();
        let rate = |level| total(&claims, level);
        let mut knots: Vec<Knot> = levels(&claims)
            .into_iter()
            .map(|level| Knot { level, rate: clamp(rate(level)) })
            .collect();
        if knots.is_empty() {
            knots.push(Knot { level: 0, rate: 0 });
        }
        // A member's first knot is flat before its level, so the sum at level 0 is what the members
        // are guaranteed.
        if knots[0].level > 0 {
            knots.insert(0, Knot { level: 0, rate: clamp(rate(0)) });
        }
        thin(&mut knots);
        let weight = claims.iter().fold(0u64, |sum, claim| sum.saturating_add(claim.weight));
        Self { weight: weight.max(1), knots: knots.into() }
    }

    /// Returns the weight.
    #[must_use]
    pub const fn weight(&self) -> u64 {
        self.weight
    }

    /// Returns the knots of the curve, in the order of their levels.
    #[must_use]
    pub fn knots(&self) -> &[Knot] {
        &self.knots
    }

    /// Returns what is guaranteed to the member, in bytes per second.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.knots[0].rate
    }

    /// Returns what the member wants, in bytes per second.
    #[must_use]
    pub fn demand(&self) -> u64 {
        self.knots[self.knots.len() - 1].rate
    }

    /// Returns what the member gets at this level, in bytes per second, rounded down.
    fn rate(&self, level: u64) -> u64 {
        let after = self.knots.partition_point(|knot| knot.level <= level);
        match (after.checked_sub(1).map(|at| self.knots[at]), self.knots.get(after)) {
            (None, _) => self.floor(),
            (Some(last), None) => last.rate,
            (Some(from), Some(to)) => {
                let part = u128::from(level - from.level) * u128::from(to.rate - from.rate);
                from.rate + per(part, to.level - from.level)
            }
        }
    }
}

/// Divides `rate` bytes per second among the members that make these claims. Returns each member's
/// share, in the order of the claims; the sum of the shares is never above `rate`.
///
/// The division is max-min fair by weight: nobody gets less than the rate guaranteed to it; nobody
/// that wants more could get more without a loss for somebody that has less for its weight. What
/// nobody wants is shared by weight, so that each member has room for a demand that rises. If even
/// the guaranteed rates exceed `rate`, each member gets the same part of its guaranteed rate.
///
/// All arithmetic is in integers, so every host that divides the same claims finds the same shares.
/// Rounding leaves at most one byte per second for each claim.
///
/// ```
/// use onramp_fleet::{Claim, divide};
///
/// // 1,000 bytes/s for one host that wants 100, one with weight 2 and one with weight 1.
/// let claims = [Claim::new(1, 0, 100), Claim::new(2, 0, 5_000), Claim::new(1, 0, 5_000)];
/// assert_eq!(divide(1_000, &claims), [100, 600, 300]);
/// // Nobody wants more than it gets: the rest is shared by weight.
/// let claims = [Claim::new(1, 0, 100), Claim::new(3, 0, 500)];
/// assert_eq!(divide(1_000, &claims), [200, 800]);
/// ```
#[must_use]
pub fn divide(rate: u64, claims: &[Claim]) -> Vec<u64> {
    let all: Vec<&Claim> = claims.iter().collect();
    let wanted = u128::from(rate);
    let floors = all.iter().map(|claim| u128::from(claim.floor())).sum::<u128>();
    if floors >= wanted {
        let part = |claim: &Claim| clamp(u128::from(claim.floor()) * wanted / floors.max(1));
        return claims.iter().map(part).collect();
    }
    let level = level_of(wanted, &all);
    let mut shares: Vec<u64> = claims.iter().map(|claim| claim.rate(level)).collect();
    let demand = all.iter().map(|claim| u128::from(claim.demand())).sum::<u128>();
    if let Some(rest) = wanted.checked_sub(demand) {
        let weights = all.iter().map(|claim| u128::from(claim.weight)).sum::<u128>();
        for (share, claim) in shares.iter_mut().zip(claims) {
            *share += clamp(rest * u128::from(claim.weight) / weights.max(1));
        }
    }
    shares
}

/// Returns the highest level at which the claims together get at most `rate`.
fn level_of(rate: u128, claims: &[&Claim]) -> u64 {
    let levels = levels(claims);
    let below = levels.partition_point(|level| total(claims, *level) <= rate);
    let Some(to) = levels.get(below).copied() else { return u64::MAX };
    let from = below.checked_sub(1).map_or(0, |at| levels[at]);
    let (low, high) = (total(claims, from), total(claims, to));
    let part = clamp(rate.saturating_sub(low) * u128::from(to - from) / (high - low).max(1));
    // Each claim's curve is rounded at each level, so the line between two levels may be too high.
    let mut level = from + part;
    let mut step = 1;
    while level > from && total(claims, level) > rate {
        level = level.saturating_sub(step).max(from);
        step *= 2;
    }
    level
}

/// Returns the levels of all knots, in order, each once.
fn levels(claims: &[&Claim]) -> Vec<u64> {
    let knots = claims.iter().flat_map(|claim| claim.knots.iter());
    let mut levels: Vec<u64> = knots.map(|knot| knot.level).collect();
    levels.sort_unstable();
    levels.dedup();
    levels
}

fn total(claims: &[&Claim], level: u64) -> u128 {
    claims.iter().map(|claim| u128::from(claim.rate(level))).sum()
}

/// Leaves out knots, the one that changes the curve least first, until few enough are left.
fn thin(knots: &mut Vec<Knot>) {
    while knots.len() > KNOTS_MAX {
        let change = |at: usize| {
            let (from, knot, to) = (knots[at - 1], knots[at], knots[at + 1]);
            let part = u128::from(knot.level - from.level) * u128::from(to.rate - from.rate);
            (from.rate + per(part, to.level - from.level)).abs_diff(knot.rate)
        };
        let least = (1..knots.len() - 1).min_by_key(|at| change(*at)).expect("more than two knots");
        knots.remove(least);
    }
}

fn per(number: u128, divisor: u64) -> u64 {
    clamp(number / u128::from(divisor))
}

fn clamp(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
