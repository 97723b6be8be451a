//! Who takes over the flows of a place that goes.

use std::collections::HashSet;

use onramp_queue::Succession;

fn gone(heirs: &[usize]) -> Succession {
    let place = Succession::default();
    place.go(heirs, 9);
    place
}

#[test]
fn a_place_goes_by_steps() {
    let place = Succession::default();
    let states = |place: &Succession| (place.is_open(), place.is_leaving(), place.is_gone());
    assert_eq!((states(&place), place.patience(), place.heir(1)), ((true, false, false), 0, None));
    place.leave();
    assert_eq!((states(&place), place.heir(1)), ((false, true, false), None));
    place.go(&[4], 70);
    assert_eq!((states(&place), place.patience()), ((false, false, true), 70));
    assert_eq!(place.heir(1), Some(4));
    place.settle();
    assert_eq!((states(&place), place.patience()), ((false, false, true), 0));
    assert_eq!(place.heir(1), Some(4), "it stays the heir");
}

/// There are 256 groups of flows: as many heirs get something each, and one more gets nothing.
#[test]
fn flows_reach_as_many_heirs_as_there_are_groups() {
    let heirs: Vec<usize> = (0..300).collect();
    let place = gone(&heirs);
    let reached: HashSet<_> = (0..20_000).filter_map(|key| place.heir(key)).collect();
    assert_eq!(reached, (0..256).collect());
}

/// Whatever bit of its key tells a flow from others, it may have an heir of its own. (The key is
/// multiplied by an odd number, so the highest bit alone turns over the highest of the product.)
#[test]
fn each_bit_of_a_key_counts() {
    let heirs: Vec<usize> = (0..256).collect();
    let place = gone(&heirs);
    for bit in 0..64 {
        let other = |key: &u64| place.heir(*key) != place.heir(*key ^ 1 << bit);
        let others = (0..1_000).filter(other).count();
        assert!(others > 500, "bit {bit}: {others} of 1000");
    }
    assert!((0..1_000).all(|key| place.heir(key) != place.heir(key | 1 << 63)));
}

#[test]
fn to_skip_needs_two_that_went() {
    let (open, went) = (Succession::default(), gone(&[3]));
    went.skip(3, &open);
    open.skip(3, &went);
    assert_eq!((went.heir(1), open.heir(1)), (Some(3), None));
    // Only the flows whose heir is the skipped place change it.
    let both = gone(&[3, 4]);
    both.skip(3, &gone(&[8]));
    let heirs: HashSet<_> = (0..1_000).filter_map(|key| both.heir(key)).collect();
    assert_eq!(heirs, HashSet::from([4, 8]));
}

#[test]
#[should_panic(expected = "the flows of a place that goes need another")]
fn somebody_has_to_take_over() {
    gone(&[]);
}
