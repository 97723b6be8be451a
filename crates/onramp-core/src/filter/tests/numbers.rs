//! Tests of the numbers (`index`) of actions: each action gets the lowest free number of its kind.

use super::super::{How, Table};
use super::tools::apply;
use super::{PLACE, try_table};

/// Returns for each filter the numbers (`index`) of its actions.
fn numbers(table: &Table) -> Vec<Vec<u32>> {
    let of = |filter: &super::super::FilterSpec| {
        filter.actions.iter().map(|action| action.index).collect()
    };
    table.at(PLACE).map(of).collect()
}

#[test]
fn each_kind_has_its_own() {
    let table = try_table(&[
        "pref 1 matchall action pipe action police mtu 500 pipe action skbedit mark 1",
        "pref 2 matchall action police mtu 500 action skbedit mark 1 action ok",
        "pref 3 matchall action ok index 3 action skbedit mark 1 index 2 action ok action ok",
        "pref 4 matchall action skbedit mark 1",
    ]);
    let table = table.expect_err("2 is taken among the edits");
    assert_eq!(
        table.to_string(),
        "filter: illegal \"index\" \"2\": filters cannot share an action in Onramp: give each \
         filter its own"
    );
    assert_eq!(
        table.fault.kernel_text().as_deref(),
        Some("RTNETLINK answers: Operation not supported")
    );
    let table = try_table(&[
        "pref 1 matchall action pipe action police mtu 500 pipe action skbedit mark 1",
        "pref 2 matchall action police mtu 500 action skbedit mark 1 action ok",
        "pref 3 matchall action ok index 3 action skbedit mark 1 index 4 action ok action ok",
        "pref 4 matchall action skbedit mark 1 action skbedit mark 1 action police mtu 5",
    ])
    .expect("room");
    assert_eq!(numbers(&table), [vec![1, 1, 1], vec![2, 2, 2], vec![3, 4, 4, 5], vec![3, 5, 3]]);
    // In a filter, two actions of the same kind cannot have the same number (`index`), but two
    // actions of different kinds can.
    let twice = "matchall action ok index 7 action drop index 7";
    assert!(try_table(&[twice]).is_err());
    let other = "matchall action police mtu 500 index 7 action drop index 7";
    assert_eq!(numbers(&try_table(&[other]).expect("two kinds")), [[7, 7]]);
}

#[test]
fn what_is_free_again_is_given_out() {
    let add = |table: &mut Table, pref: u32, words: &str| {
        apply(table, How::Add, &format!("pref {pref} basic {words}")).expect("room");
    };
    let mut table = try_table(&[]).expect("an empty one");
    (1..=5).for_each(|pref| add(&mut table, pref, "action ok"));
    // The numbers (`index`) of a filter's actions are free again after the filter was deleted by
    // its handle, or with all filters of its preference.
    apply(&mut table, How::Delete, "pref 4 handle 1 basic").expect("it is there");
    apply(&mut table, How::Delete, "pref 2").expect("it is there");
    assert_eq!(numbers(&table), [[1], [3], [5]]);
    add(&mut table, 6, "action ok action ok action ok");
    assert_eq!(numbers(&table), [vec![1], vec![3], vec![5], vec![2, 4, 6]]);
    // After all filters of the chain were deleted, the numbers of new actions begin at 1 again.
    apply(&mut table, How::Delete, "").expect("they are there");
    add(&mut table, 1, "action ok");
    assert_eq!(numbers(&table), [[1]]);
}

/// If a filter replaces another, its actions get new numbers (`index`), because the replaced filter
/// keeps its numbers until the new filter has got its own.
#[test]
fn a_filter_in_the_place_of_another() {
    let mut table =
        try_table(&["pref 1 handle 1 basic action ok action ok index 9"]).expect("room");
    assert_eq!(numbers(&table), [[1, 9]]);
    let replace = |table: &mut Table, words: &str| {
        apply(table, How::Replace, &format!("pref 1 handle 1 basic {words}"))
    };
    replace(&mut table, "action ok action ok").expect("it is there");
    assert_eq!(numbers(&table), [[2, 3]]);
    // The numbers 1 and 9 of the first filter's actions are free again.
    replace(&mut table, "action ok action ok index 9").expect("it is there");
    assert_eq!(numbers(&table), [[1, 9]]);
    // When a filter is changed, its action may keep its number. Other filters still cannot take
    // that number.
    replace(&mut table, "action drop index 9").expect("it is its own");
    assert_eq!(numbers(&table), [[9]]);
    apply(&mut table, How::Add, "pref 2 basic action ok index 9").expect_err("it is taken");
    apply(&mut table, How::Add, "pref 2 basic action ok").expect("room");
    assert_eq!(numbers(&table), [[9], [1]]);
    // An action cannot take the number that an action of another filter has.
    replace(&mut table, "action ok index 1").expect_err("it is taken");
    assert_eq!(numbers(&table), [[9], [1]]);
    apply(&mut table, How::Delete, "pref 1").expect("it is there");
    apply(&mut table, How::Add, "pref 3 basic action ok index 9").expect("it is free");
}

/// If the command that adds a filter is refused, the numbers (`index`) that it asks for or that its
/// actions would have got stay free, so that the actions of later filters can have them.
#[test]
fn a_refused_filter_takes_none() {
    let mut table = try_table(&["pref 1 matchall action ok"]).expect("room");
    apply(&mut table, How::Add, "pref 1 matchall action ok index 5").expect_err("it stands alone");
    apply(&mut table, How::Add, "pref 2 matchall action ok index 5").expect("it is free");
    apply(&mut table, How::Add, "pref 3 matchall action ok").expect("room");
    assert_eq!(numbers(&table), [[1], [5], [2]]);
}
