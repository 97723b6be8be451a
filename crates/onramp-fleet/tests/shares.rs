//! What every division of a rate has in common, whatever the claims.

use onramp_fleet::{Claim, divide};
use proptest::prelude::*;

/// A member's weight, guaranteed rate and demand.
type Want = (u32, u64, u64);

fn claim(want: &Want) -> Claim {
    Claim::new(want.0, want.1, want.2)
}

fn claims(wants: &[Want]) -> Vec<Claim> {
    wants.iter().map(claim).collect()
}

fn want() -> impl Strategy<Value = Want> {
    let demand = prop_oneof![Just(0), 0..10_000_000u64, 1_000_000..1_000_000_000u64];
    (1..100u32, prop_oneof![Just(0), 0..2_000_000u64], demand)
}

fn wants(most: usize) -> impl Strategy<Value = Vec<Want>> {
    prop::collection::vec(want(), 1..most)
}

/// The error that rounding may make in the share of one of these members, in bytes per second: a
/// level is a rate for 1/1,024 of weight.
fn slack(wants: &[Want]) -> u64 {
    2 + wants.iter().map(|want| 2 + u64::from(want.0) / 512).sum::<u64>()
}

proptest! {
    #[test]
    fn the_sum_is_the_whole_rate_and_never_more(wants in wants(40), rate in 0..3_000_000_000u64) {
        let shares = divide(rate, &claims(&wants));
        let sum: u64 = shares.iter().sum();
        prop_assert!(sum <= rate, "{sum} of {rate}");
        prop_assert!(rate - sum <= slack(&wants), "{sum} of {rate}");
    }

    #[test]
    fn nobody_gets_less_than_its_guarantee(wants in wants(40), more in 0..1_000_000_000u64) {
        let floors: u64 = wants.iter().map(|want| want.1).sum();
        for (share, want) in divide(floors + more, &claims(&wants)).iter().zip(&wants) {
            prop_assert!(*share >= want.1, "{share}: {want:?}");
        }
    }

    /// Nobody whose demand is not met has less for its weight than somebody that has more than its
    /// guaranteed rate.
    #[test]
    fn shares_are_fair_by_weight(wants in wants(20), rate in 0..1_000_000_000u64) {
        let demands: u64 = wants.iter().map(|want| want.1.max(want.2)).sum();
        let floors: u64 = wants.iter().map(|want| want.1).sum();
        prop_assume!(rate < demands && rate > floors);
        let shares = divide(rate, &claims(&wants));
        let slack = slack(&wants);
        for (poor, want) in shares.iter().zip(&wants) {
            if poor + slack >= want.1.max(want.2) {
                continue;
            }
            for (rich, other) in shares.iter().zip(&wants) {
                let fair = u128::from(*poor + slack) * u128::from(other.0) / u128::from(want.0);
                let has = u128::from(rich.saturating_sub(slack));
                let most = fair.max(u128::from(other.1));
                prop_assert!(has <= most, "{poor} of {want:?}, {rich} of {other:?}");
            }
        }
    }

    #[test]
    fn a_higher_rate_lowers_no_share(
        wants in wants(20),
        rate in 0..1_000_000_000u64,
        more in 0..1_000_000_000u64,
    ) {
        let claims = claims(&wants);
        let slack = slack(&wants);
        for (low, high) in divide(rate, &claims).iter().zip(divide(rate + more, &claims)) {
            prop_assert!(high + slack >= *low, "{low}, then {high}");
        }
    }

    /// A member that wants more gets no less, and takes nothing from what others are guaranteed.
    #[test]
    fn a_higher_demand_lowers_no_share_of_its_own(
        wants in wants(20),
        rate in 0..1_000_000_000u64,
        more in 0..1_000_000_000u64,
    ) {
        let demands: u64 = wants.iter().map(|want| want.1.max(want.2)).sum();
        prop_assume!(rate <= demands);
        let low = divide(rate, &claims(&wants))[0];
        let mut wants = wants;
        wants[0].2 += more;
        let high = divide(rate, &claims(&wants))[0];
        prop_assert!(high + slack(&wants) >= low, "{low}, then {high}");
    }

    #[test]
    fn the_order_of_claims_does_not_matter(wants in wants(20), rate in 0..1_000_000_000u64) {
        let mut other = wants.clone();
        other.reverse();
        let mut shares = divide(rate, &claims(&other));
        shares.reverse();
        prop_assert_eq!(shares, divide(rate, &claims(&wants)));
        let sums = [Claim::sum(&claims(&wants)), Claim::sum(&claims(&other))];
        prop_assert_eq!(&sums[0], &sums[1]);
    }

    /// A sum that keeps all its knots is exact.
    #[test]
    fn groups_of_few_divide_as_one(
        groups in prop::collection::vec(prop::collection::vec(want(), 1..7), 1..6),
        rate in 1_000_000..1_000_000_000u64,
    ) {
        check_groups(&groups, rate, 0)?;
    }

    /// A sum with fewer knots than its members have moves at most 1 % of the rate.
    #[test]
    fn groups_of_many_divide_as_one_within_a_hundredth(
        groups in prop::collection::vec(prop::collection::vec(want(), 20..50), 2..5),
        rate in 1_000_000..1_000_000_000u64,
    ) {
        check_groups(&groups, rate, rate / 100)?;
    }

    #[test]
    fn a_sum_claims_what_its_members_claim(wants in wants(40)) {
        let sum = Claim::sum(&claims(&wants));
        prop_assert_eq!(sum.floor(), wants.iter().map(|want| want.1).sum::<u64>());
        let demand: u64 = claims(&wants).iter().map(Claim::demand).sum();
        prop_assert_eq!(sum.demand(), demand);
        prop_assert_eq!(sum.weight(), wants.iter().map(|want| u64::from(want.0)).sum::<u64>());
        prop_assert!(sum.knots().len() <= 16);
        let parts = Claim::from_parts(sum.weight(), sum.knots().to_vec());
        prop_assert_eq!(parts, Some(sum));
    }
}

/// Divides `rate` among groups and then inside each group, and compares with a division among all.
fn check_groups(groups: &[Vec<Want>], rate: u64, most: u64) -> Result<(), TestCaseError> {
    let sums: Vec<Claim> = groups.iter().map(|group| Claim::sum(&claims(group))).collect();
    let all: Vec<Want> = groups.iter().flatten().copied().collect();
    let flat = divide(rate, &claims(&all));
    let mut flat = flat.iter();
    // Where the guarantees exceed the rate, everyone loses the same part.
    for (group, share) in groups.iter().zip(divide(rate, &sums)) {
        let inside = divide(share, &claims(group));
        for (inside, want) in inside.iter().zip(group) {
            let fair = flat.next().expect("as many as claims");
            let slack = 4 * slack(&all) + most;
            prop_assert!(inside.abs_diff(*fair) <= slack, "{inside}, not {fair}: {want:?}");
        }
    }
    Ok(())
}

/// Rates and weights at the ends of their ranges.
#[test]
fn very_large_and_very_small_numbers() {
    let most = u64::MAX;
    for wants in [
        vec![(u32::MAX, 0, most), (1, 0, most)],
        vec![(1, most, most), (1, most, most)],
        vec![(1, 0, 0), (u32::MAX, 1, 2)],
        vec![(u32::MAX, 0, 5_000), (1, 0, 5_000)],
    ] {
        for rate in [0, 1, 1_000, most / 2, most] {
            let shares = divide(rate, &claims(&wants));
            let sum: u128 = shares.iter().map(|share| u128::from(*share)).sum();
            assert!(sum <= u128::from(rate), "{wants:?}: {shares:?} of {rate}");
        }
        let sum = Claim::sum(&claims(&wants));
        assert!(Claim::from_parts(sum.weight(), sum.knots().to_vec()).is_some(), "{sum:?}");
    }
}

/// A large weight makes the levels of a small demand equal; the demand still counts.
#[test]
fn a_small_demand_with_a_large_weight() {
    assert_eq!(Claim::new(1_000_000, 0, 900).demand(), 900);
}
