//! The successors (other places) that take over the flows of a place (a port) that is removed.

use std::collections::HashSet;

use onramp_queue::Succession;

fn gone(successors: &[usize]) -> Succession {
    let place = Succession::default();
    place.go(successors, 9);
    place
}

#[test]
fn a_place_goes_by_steps() {
    let place = Succession::default();
    let states = |place: &Succession| (place.is_open(), place.is_leaving(), place.is_gone());
    assert_eq!(
        (states(&place), place.patience(), place.successor(1)),
        ((true, false, false), 0, None)
    );
    place.leave();
    assert_eq!((states(&place), place.successor(1)), ((false, true, false), None));
    place.go(&[4], 70);
    assert_eq!((states(&place), place.patience()), ((false, false, true), 70));
    assert_eq!(place.successor(1), Some(4));
    place.settle();
    assert_eq!((states(&place), place.patience()), ((false, false, true), 0));
    assert_eq!(place.successor(1), Some(4), "it stays the successor");
}

/// The flows of a place are divided into 256 groups. If a place has 300 successors, the first 256
/// get a group each, and the others get none.
#[test]
fn flows_reach_as_many_successors_as_there_are_groups() {
    let successors: Vec<usize> = (0..300).collect();
    let place = gone(&successors);
    let reached: HashSet<_> = (0..20_000).filter_map(|key| place.successor(key)).collect();
    assert_eq!(reached, (0..256).collect());
}

/// Two flows whose keys differ in only one bit can have different successors, whichever bit that
/// is. (The key is multiplied by an odd number, so flipping only the highest bit of the key flips
/// the highest bit of the product.)
#[test]
fn each_bit_of_a_key_counts() {
    let successors: Vec<usize> = (0..256).collect();
    let place = gone(&successors);
    for bit in 0..64 {
        let other = |key: &u64| place.successor(*key) != place.successor(*key ^ 1 << bit);
        let others = (0..1_000).filter(other).count();
        assert!(others > 500, "bit {bit}: {others} of 1000");
    }
    assert!((0..1_000).all(|key| place.successor(key) != place.successor(key | 1 << 63)));
}

#[test]
fn to_skip_needs_two_that_went() {
    let (open, went) = (Succession::default(), gone(&[3]));
    went.skip(3, &open);
    open.skip(3, &went);
    assert_eq!((went.successor(1), open.successor(1)), (Some(3), None));
    // The flows of a removed port go to the ports 3 and 4. Then port 3 is removed, too, and port 8
    // takes over its flows. The flows of port 4 stay there.
    let both = gone(&[3, 4]);
    both.skip(3, &gone(&[8]));
    let successors: HashSet<_> = (0..1_000).filter_map(|key| both.successor(key)).collect();
    assert_eq!(successors, HashSet::from([4, 8]));
}

#[test]
#[should_panic(expected = "the flows of a place that goes need another")]
fn somebody_has_to_take_over() {
    gone(&[]);
}
