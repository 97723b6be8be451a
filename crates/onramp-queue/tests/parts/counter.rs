//! Tests counters, and the names of drop reasons.

use std::collections::HashSet;

use onramp_queue::{Counter, DropReason};

#[test]
fn a_counter_adds_is_raised_and_is_set() {
    let counter = Counter::new();
    assert_eq!((counter.get(), Counter::default().get()), (0, 0));
    counter.add(5);
    counter.add(7);
    assert_eq!(counter.get(), 12);
    for (to, expected) in [(11, 12), (12, 12), (13, 13), (0, 13)] {
        counter.raise(to);
        assert_eq!(counter.get(), expected, "raised to {to}");
    }
    counter.set(4);
    assert_eq!(counter.get(), 4, "a level may fall");
    counter.set(u64::MAX);
    counter.add(3);
    assert_eq!(counter.get(), 2, "it starts again behind its largest number");
}

#[test]
fn reasons_are_told_apart_by_their_names() {
    let names: HashSet<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), DropReason::ALL.len());
    for (number, reason) in DropReason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, number);
        assert!(reason.about().ends_with('.'), "{}: a sentence", reason.name());
    }
}
