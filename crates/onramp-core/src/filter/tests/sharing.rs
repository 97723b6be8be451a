//! Tests of the hash tables of `u32` that several preferences share.

use super::super::{Filters, How};
use super::tables::{ADD, handles};
use super::tools::{all, apply, v4};
use super::{PLACE, ask, class, packet, try_table};

/// A preference with only hash tables left stays while nodes of another preference might use the
/// tables.
#[test]
fn the_tables_of_one_are_there_for_another() {
    let mut table = try_table(&[ADD, "pref 2 u32 match u32 2 2 flowid 1:1"]).expect("room");
    apply(&mut table, How::Delete, "pref 1 handle 800::800 u32").expect("it is there");
    assert_eq!(handles(&table), [0x8000_0000, 0x8010_0000, 0x8010_0800]);
    // A node that is added to a table of another preference belongs to the preference of the table.
    apply(&mut table, How::Add, "pref 2 u32 ht 800: match u32 3 3 flowid 1:1").expect("room");
    assert_eq!(handles(&table), [0x8000_0000, 0x8000_0800, 0x8010_0000, 0x8010_0800]);
    assert!(all(&table).contains("pref 1 u32 chain 0 fh 800::800 "));
    // A line for preference 2 also finds the node, although the node belongs to preference 1.
    apply(&mut table, How::Delete, "pref 2 handle 800::800 u32").expect("it is there");
    // `ht fff:` and `ht 0:` mean the first hash table of the line's own preference.
    apply(&mut table, How::Add, "pref 2 u32 ht fff: match u32 3 3 flowid 1:1").expect("room");
    apply(&mut table, How::Add, "pref 2 u32 ht 0: match u32 3 3 flowid 1:1").expect("room");
    assert_eq!(handles(&table), [0x8000_0000, 0x8010_0000, 0x8010_0800, 0x8010_0801, 0x8010_0802]);
    // If the other preference is not `u32`, it cannot use the tables, so the preference that has
    // only tables left is deleted.
    let mut table = try_table(&[ADD, "pref 2 basic classid 1:1"]).expect("room");
    apply(&mut table, How::Delete, "pref 1 handle 800::800 u32").expect("it is there");
    assert_eq!(all(&table).lines().count(), 2);
    // Preferences in different chains may use each other's tables, too.
    let mut table = try_table(&[ADD, "chain 3 pref 1 u32"]).expect("room");
    apply(&mut table, How::Delete, "pref 1 handle 800::800 u32").expect("it is there");
    assert_eq!(handles(&table), [0x8000_0000, 0x8010_0000]);
}

/// All preferences together have one set of hash tables: a line whose preference is new finds the
/// tables and nodes of other preferences.
#[test]
fn preferences_share_their_tables() {
    let node = "protocol ip handle 2:1:5 u32 ht 2:1: match u32 1 1 classid";
    let lines = ["pref 1 protocol ip handle 2: u32 divisor 4", &format!("pref 1 {node} 1:1")];
    let mut table = try_table(&lines).expect("room");
    let before = all(&table);
    let again = "pref 2 protocol ip handle 2: u32 divisor 4";
    for (how, line, said) in [
        (How::Add, again, "Filter already exists"),
        (How::Replace, again, "cls_u32: Key node id cannot be zero"),
        (How::Add, &format!("pref 2 {node} 1:2"), "Filter already exists"),
        (
            How::Change,
            &format!("pref 2 {node} 1:2"),
            "Need both RTM_NEWTFILTER and NLM_F_CREATE to create a new filter",
        ),
    ] {
        let error = apply(&mut table, how, line).expect_err(line);
        let text = error.fault.kernel_text().unwrap_or_default();
        assert_eq!(text, format!("Error: {said}."), "{how:?} {line}");
        assert_eq!(all(&table), before, "{how:?} {line}");
    }
    apply(&mut table, How::Replace, &format!("pref 2 {node} 1:2")).expect("another class");
    let classes = table.at(PLACE).filter_map(|filter| filter.class);
    assert_eq!(classes.map(|class| class.minor).collect::<Vec<_>>(), [2], "one node");
}

/// A table that a `divisor` has made lives, with its nodes, until the last `u32` preference goes,
/// and is listed while its preference is in use: a Linux 7.2 lists these filters in this way.
#[test]
fn tables_live_until_the_last_preference_goes() {
    let mut table = try_table(&[
        "protocol ip pref 20 handle 2: u32 divisor 1",
        "protocol ip pref 21 u32 ht 2:: match ip protocol 17 0xff classid 1:4",
        "protocol ip pref 21 u32 match u32 0 0 link 2:",
    ])
    .expect("room");
    apply(&mut table, How::Delete, "protocol ip pref 20").expect("it is there");
    assert_eq!(handles(&table), [0x8010_0000, 0x8010_0800, 0x20_0000, 0x20_0800]);
    assert!(!all(&table).contains("pref 20"), "{}", all(&table));
    let more = "protocol ip pref 21 u32 ht 2:: match ip protocol 6 0xff classid 1:5";
    apply(&mut table, How::Add, more).expect("the table is there");
    let mut running = Filters::default();
    running.set(table.at(PLACE));
    assert_eq!(ask(&mut running, &mut packet(&v4(17, &[], &[]))), class(4));
    assert_eq!(ask(&mut running, &mut packet(&v4(6, &[], &[]))), class(5));
    // Each chain that uses the preference again lists the table.
    for chain in [0, 3] {
        let line = format!("protocol ip chain {chain} pref 20 u32 match u32 1 1 classid 1:5");
        apply(&mut table, How::Add, &line).expect("room");
    }
    let shown: Vec<String> = all(&table)
        .lines()
        .filter_map(|line| Some(line.split_once("pref 20 u32 chain ")?.1.to_owned()))
        .map(|line| line.split(" order").next().unwrap_or_default().to_owned())
        .collect();
    let tables = ["fh 803: ht divisor 1 ", "fh 803::800", "fh 802: ht divisor 1 ", "fh 802::800"];
    let shared = ["fh 2: ht divisor 1 ", "fh 2::800", "fh 2::801"];
    let want: Vec<String> = [0, 3]
        .iter()
        .flat_map(|chain| {
            let parts = [""].iter().chain(&tables).chain(&shared);
            parts.map(move |part| format!("{chain} {part}"))
        })
        .collect();
    assert_eq!(shown, want);
    for name in ["chain 3 pref 20", "pref 20", "pref 21"] {
        assert!(handles(&table).contains(&0x20_0000), "{name} is left");
        apply(&mut table, How::Delete, name).expect(name);
    }
    assert_eq!(handles(&table), [0; 0]);
    // A node may be what keeps the last preference; it goes with the table.
    let lines = ["pref 1 handle 2: u32 divisor 1", "pref 1 u32 ht 2: match u32 1 1 classid 1:1"];
    let mut table = try_table(&lines).expect("room");
    apply(&mut table, How::Delete, "pref 1 handle 2: u32").expect("no node links to it");
    assert_eq!(handles(&table), [0; 0]);
}

/// A node that is added to the table of another preference has the protocol and the chain of that
/// preference.
#[test]
fn a_node_is_listed_where_its_table_is() {
    let table = try_table(&[
        "protocol ip pref 20 handle 3: u32 divisor 16",
        "protocol ipv6 pref 21 chain 2 u32 ht 3:2: match u32 0 0 classid 1:2",
        "protocol ipv6 pref 21 chain 2 u32 ht 800: match u32 0 0 classid 1:2",
    ])
    .expect("room");
    let listed = all(&table);
    let starts: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.strip_prefix("filter ")?.split(" order").next())
        .collect();
    assert_eq!(
        starts,
        [
            "protocol ip pref 20 u32 chain 0 ",
            "protocol ip pref 20 u32 chain 0 fh 3: ht divisor 16 ",
            "protocol ip pref 20 u32 chain 0 fh 3:2:800",
            "protocol ip pref 20 u32 chain 0 fh 800: ht divisor 1 ",
            "protocol ip pref 20 u32 chain 0 fh 800::800",
            "protocol ipv6 pref 21 u32 chain 2 ",
            "protocol ipv6 pref 21 u32 chain 2 fh 801: ht divisor 1 ",
        ]
    );
}
