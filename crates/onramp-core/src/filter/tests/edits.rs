//! Filters that single lines have edited are those that are built from the whole description.

use proptest::prelude::*;

use super::super::{Filters, How, Table};
use super::PLACE;
use super::tools::{all, apply};
use crate::base::Handle;

/// What a line says behind chain and preference. The options are few, so that lines often meet a
/// filter that exists.
const FILTERS: &[&str] = &[
    "protocol ip handle 2: u32 divisor 4",
    "protocol ip handle 3: u32 divisor 1",
    "protocol ip u32",
    "protocol ip u32 match u32 1 1 classid 1:1",
    "protocol ip u32 ht 2:1: match u32 2 2 classid 1:2",
    "protocol ip u32 ht 2:3: match u32 2 2 classid 1:2",
    "protocol ip handle 2:3:5 u32 ht 2:3: match u32 3 3 link 3:",
    "protocol ip u32 ht 3: match u32 4 4 classid 2:3",
    "protocol ip handle 1 fw classid 1:1",
    "protocol ip handle 2/0xff fw classid 1:2",
    "protocol ip fw",
    "protocol ip handle 1 flower dst_ip 10.0.0.1 classid 1:3",
    "protocol ip flower dst_ip 10.0.0.2 classid 1:1",
    "protocol ip flower src_ip 10.0.0.1 classid 1:2",
    "protocol ip handle 1 basic classid 1:4",
    "protocol ip basic classid 1:1 action police rate 1mbit burst 3000",
    "protocol ip matchall classid 1:3 action pass",
];

/// What a line that deletes says behind chain and preference.
const DELETES: &[&str] = &[
    "",
    "handle 2: u32",
    "handle 3: u32",
    "handle 800: u32",
    "handle 800::800 u32",
    "handle 2:1:800 u32",
    "handle 2:3:5 u32",
    "handle 1 fw",
    "handle 1 flower",
    "handle 2 flower",
    "handle 1 basic",
    "handle 1 matchall",
];

fn line() -> impl Strategy<Value = (How, String)> {
    let how =
        prop::sample::select(&[How::Add, How::Add, How::Replace, How::Change, How::Delete][..]);
    let chain = prop::sample::select(&["", "", "chain 1 "][..]);
    let pref = prop::sample::select(&["", "pref 1 ", "pref 1 ", "pref 2 ", "pref 3 "][..]);
    (how, chain, pref, any::<prop::sample::Index>()).prop_map(|(how, chain, pref, which)| {
        let which = if how == How::Delete { which.get(DELETES) } else { which.get(FILTERS) };
        (how, format!("{chain}{pref}{which}"))
    })
}

/// Checks that the filters that are new have matched nothing, and that all others have kept their
/// counters. `before` is the greatest serial number that a filter had before the edit.
fn kept(filters: &mut Filters, before: u64) {
    for filter in &mut filters.filters {
        assert_eq!(filter.hits, if filter.serial > before { 0 } else { filter.serial });
        filter.hits = filter.serial;
    }
}

/// Returns the greatest serial number of the filters.
fn greatest(table: &Table) -> u64 {
    table.at(PLACE).map(|filter| filter.serial).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn edits_lead_to_what_is_described(lines in prop::collection::vec(line(), 1..40)) {
        let (mut table, mut edited) = (Table::default(), Filters::default());
        for (how, line) in lines {
            let (before, serial) = (format!("{edited:?}"), greatest(&table));
            table.forget_edit();
            let done = apply(&mut table, how, &line);
            edited.edit(table.last_edit());
            if done.is_err() {
                prop_assert_eq!(format!("{:?}", edited), before, "{:?} {}", how, line);
            }
            kept(&mut edited, serial);
            let mut built = Filters::default();
            built.set(table.at(PLACE));
            built.filters.iter_mut().for_each(|filter| filter.hits = filter.serial);
            prop_assert_eq!(format!("{:?}", edited), format!("{:?}", built), "{:?} {}", how, line);
            for minor in 0..5 {
                let class = Handle::new(1, minor);
                let named = table.at(PLACE).any(|filter| filter.class == Some(class));
                prop_assert_eq!(table.names(class), named, "{} {:?} {}", class, how, line);
            }
        }
        table.remove_qdisc(1);
        prop_assert!((0..5).all(|minor| !table.names(Handle::new(1, minor))));
    }
}

/// To delete a preference, only its own filters are looked at, however many others there are.
#[test]
fn filters_of_other_preferences_are_not_looked_at() {
    for prefs in [10, 100] {
        let (mut table, mut edited) = (Table::default(), Filters::default());
        for pref in 1..=prefs {
            let line = format!("pref {pref} protocol ip u32 match u32 1 1 classid 1:1");
            apply(&mut table, How::Add, &line).expect("it can be added");
        }
        edited.set(table.at(PLACE));
        let its = table.at(PLACE).filter(|filter| filter.pref == 5);
        let its: Vec<_> = its.map(|filter| filter.place()).collect();
        // A hash table and its node.
        assert_eq!((edited.span(&its), edited.span(&[])), (8..10, 0..0));
        apply(&mut table, How::Delete, "pref 5").expect("it is there");
        edited.edit(table.last_edit());
        let there = edited.filters.iter().map(|filter| filter.place());
        assert!(there.eq(table.at(PLACE).map(|filter| filter.place())));
    }
}

/// Returns the filters that the lines for the filters of `table` make.
fn again(table: &Table) -> Table {
    let mut again = Table::default();
    for (verb, words) in table.lines(PLACE) {
        let how = match verb {
            "add" => How::Add,
            "change" => How::Change,
            _ => How::Delete,
        };
        apply(&mut again, how, &words).unwrap_or_else(|error| panic!("{verb} {words}: {error}"));
    }
    again
}

/// Returns the listing with its lines in an order that depends only on the lines.
fn sorted(table: &Table) -> Vec<String> {
    let mut lines: Vec<_> = all(table).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

proptest! {
    /// The order of the hash tables of one preference is not looked at: see `table/again.rs`.
    #[test]
    fn lines_make_the_filters_again(lines in prop::collection::vec(line(), 1..40)) {
        let mut table = Table::default();
        for (how, line) in lines {
            let _ = apply(&mut table, how, &line);
        }
        let again = again(&table);
        prop_assert_eq!(sorted(&again), sorted(&table));
        let named = |table: &Table| -> std::collections::BTreeSet<_> {
            table.at(PLACE).map(|it| (it.chain, it.pref, it.handle)).collect()
        };
        prop_assert_eq!(named(&again), named(&table));
        let asked = |table: &Table| -> Vec<_> {
            let others = table.at(PLACE).filter(|it| it.kind != "u32");
            others.map(|it| (it.chain, it.pref, it.handle)).collect()
        };
        prop_assert_eq!(asked(&again), asked(&table));
    }
}
