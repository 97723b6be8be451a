//! Tests of due times and alarms, which keep the earliest of the times that were set, and of marks,
//! which are a set of port numbers.

use std::collections::BTreeSet;

use onramp_queue::{Alarm, Due, Marks, NEVER};

#[test]
fn a_due_time_is_the_earliest_that_was_noted() {
    let due = Due::default();
    assert_eq!(due.at(), NEVER, "nobody has noted anything");
    assert_eq!((due.note(50), due.at()), (NEVER, 50));
    assert_eq!((due.note(70), due.at()), (50, 50), "a later one changes nothing");
    assert_eq!((due.note(50), due.at()), (50, 50));
    assert_eq!((due.note(20), due.at()), (50, 20));
}

#[test]
fn a_due_time_is_taken_when_it_has_come_and_once() {
    let due = Due::default();
    assert!(!due.take(NEVER - 1), "nothing is noted");
    due.note(20);
    assert!(!due.take(19), "a nanosecond too early");
    assert_eq!(due.at(), 20, "it is still noted");
    assert!(due.take(20), "exactly then");
    assert_eq!(due.at(), NEVER);
    assert!(!due.take(20), "once");
    due.note(20);
    assert!(due.take(21), "late");
    due.note(0);
    assert!(due.take(0));
}

#[test]
fn an_alarm_wakes_for_an_earlier_time_alone() {
    let alarm = Alarm::default();
    assert_eq!(alarm.at(), NEVER);
    assert!(!alarm.set(NEVER), "no time at all is not earlier than itself");
    assert!(alarm.set(50));
    assert!(!alarm.set(50) && !alarm.set(51), "it wakes for 50 already");
    assert_eq!(alarm.at(), 50);
    assert!(alarm.set(49));
    assert_eq!(alarm.at(), 49);
    alarm.rise();
    assert_eq!(alarm.at(), NEVER);
    assert!(alarm.set(70), "who has risen is woken again");
}

#[test]
fn a_sleeper_rests_until_the_earlier_of_its_time_and_what_was_set() {
    for (set, next, until) in [(NEVER, 30, 30), (20, 30, 20), (30, 20, 20), (NEVER, NEVER, NEVER)] {
        let alarm = Alarm::default();
        alarm.set(set);
        assert_eq!((alarm.rest(next), alarm.at()), (until, until), "{set} and {next}");
        // `set` says whether the sleeper has to be woken for a request: only if the requested time
        // is earlier than the time until which the sleeper rests.
        assert_eq!(alarm.set(until.min(NEVER - 1)), until == NEVER);
    }
}

/// Makes `Marks` for `places` ports, and sets the mark of each port whose number `of` accepts.
/// Returns the marks, and the set of these numbers.
fn marked(places: usize, of: impl Fn(usize) -> bool) -> (Marks, BTreeSet<usize>) {
    let (marks, mut model) = (Marks::new(places), BTreeSet::new());
    model.extend((0..places).filter(|place| of(*place)));
    for place in &model {
        marks.set(*place);
    }
    (marks, model)
}

const PLACES: [usize; 8] = [1, 2, 63, 64, 65, 128, 129, 200];

#[test]
fn marks_are_a_set_of_places() {
    for places in PLACES {
        let (marks, mut model) = marked(places, |place| place % 3 == 0 || place % 64 == 63);
        assert!(marks.iter().eq(model.iter().copied()), "{places} places, in order");
        for place in 0..places {
            if place % 2 == 0 {
                marks.clear(place);
                model.remove(&place);
            } else {
                marks.set(place);
                model.insert(place);
            }
            assert!(marks.iter().eq(model.iter().copied()), "{place} of {places}");
        }
    }
    assert_eq!(Marks::new(0).iter().count(), 0);
}

#[test]
fn a_look_at_some_goes_through_all_of_them_round_and_round() {
    for places in PLACES {
        let (marks, model) = marked(places, |place| place % 5 != 1);
        let words = places.div_ceil(64);
        let (mut from, mut seen) = (0, Vec::new());
        for turn in 1..=words {
            let (some, next) = marks.some(from);
            seen.extend(some);
            assert_eq!(next, turn % words * 64, "64 places further, or at the beginning again");
            from = next;
        }
        assert!(seen.into_iter().eq(model), "{places} places, each once, in order");
    }
}

#[test]
fn a_look_at_some_begins_where_it_is_told_to() {
    for places in PLACES {
        let (marks, model) = marked(places, |place| place % 7 != 2);
        for from in 0..places {
            let end = (from / 64 + 1) * 64;
            let (some, next) = marks.some(from);
            assert!(some.eq(model.range(from..end).copied()), "{from} of {places}");
            assert_eq!(next, if end < places { end } else { 0 });
        }
    }
    let none = Marks::new(0);
    assert_eq!((none.some(0).0.count(), none.some(0).1), (0, 0));
    assert_eq!((none.some(70).0.count(), none.some(70).1), (0, 0), "of no places");
}
