//! Tests of preferences, handles and chains: what the lines that add, change, delete or ask for a
//! filter mean (behaviour of Linux 7.2 `net/sched/cls_api.c`).

use super::super::{Head, How, Reader, Table};
use super::tools::{all, apply};
use super::{PLACE, class, filters, from, try_table};
use crate::base::Handle;

/// Returns the chain, preference and handle of all filters, in the order in which they are asked.
fn names(table: &Table) -> Vec<(u32, u16, u32)> {
    table.at(PLACE).map(|filter| (filter.chain, filter.pref, filter.handle)).collect()
}

fn refused(table: &mut Table, how: How, line: &str) -> (u8, String, String) {
    let error = apply(table, how, line).expect_err(line);
    (error.fault.code(), error.to_string(), error.fault.kernel_text().unwrap_or_default())
}

/// Filters without `pref` get the preferences from 49152 downwards to 32768.
#[test]
fn preferences_are_given_out() {
    let mut table =
        try_table(&["matchall classid 1:1", "pref 0 matchall classid 1:1"]).expect("room");
    apply(&mut table, How::Add, "chain 2 matchall classid 1:1").expect("room");
    apply(&mut table, How::Add, "pref 32767 matchall classid 1:1").expect("room");
    apply(&mut table, How::Add, "matchall classid 1:1").expect("room");
    let expected = [(0, 32_767, 1), (0, 49_150, 1), (0, 49_151, 1), (0, 49_152, 1), (2, 49_152, 1)];
    assert_eq!(names(&table), expected);
    // A filter without `pref` gets the preference just below the lowest one in use that is 32768 or
    // more.
    apply(&mut table, How::Add, "pref 32770 matchall classid 1:1").expect("room");
    for pref in [32_769, 32_768] {
        apply(&mut table, How::Add, "matchall classid 1:1").expect("room");
        assert!(names(&table).contains(&(0, pref, 1)), "{pref}");
    }
    let before = names(&table);
    assert_eq!(
        refused(&mut table, How::Add, "matchall classid 1:1"),
        (
            2,
            "filter: \"pref\": no automatic preference is left: the lowest one, 32768, is \
             taken"
                .into(),
            "Error: Lowest ID from auto-alloc range already in use.".into()
        )
    );
    assert_eq!(names(&table), before);
    // Each chain has its own preferences, so preference 49151 of chain 2 is still free.
    apply(&mut table, How::Add, "chain 2 matchall classid 1:1").expect("room");
    assert!(names(&table).contains(&(2, 49_151, 1)));
}

/// A filter without `handle` gets the lowest free handle of its preference.
#[test]
fn handles_are_given_out() {
    for kind in ["basic classid 1:1", "bpf bytecode '1,6 0 0 0'"] {
        let name = kind.split(' ').next().expect("a kind");
        let line = format!("pref 1 {kind}");
        let mut table = try_table(&[&line, &line, &line]).expect("room");
        let own = format!("pref 1 handle 5 {kind}");
        apply(&mut table, How::Add, &own).expect("room");
        // Of `basic` and `bpf` filters, the one that was added last is asked first.
        let handles = |table: &Table| names(table).iter().map(|name| name.2).collect::<Vec<_>>();
        assert_eq!(handles(&table), [5, 3, 2, 1]);
        let delete = |table: &mut Table, handle: u32| {
            let line = format!("pref 1 handle {handle} {name}");
            apply(table, How::Delete, &line).expect("it is there");
        };
        delete(&mut table, 2);
        delete(&mut table, 1);
        (0..4).for_each(|_| apply(&mut table, How::Add, &line).expect("room"));
        assert_eq!(handles(&table), [6, 4, 2, 1, 5, 3]);
        delete(&mut table, 5);
        delete(&mut table, 2);
        apply(&mut table, How::Add, &line).expect("room");
        assert_eq!(handles(&table), [2, 6, 4, 1, 3]);
        // A filter that replaces another is asked at the same place.
        apply(&mut table, How::Replace, &format!("pref 1 handle 4 {kind} action drop"))
            .expect("it is there");
        assert_eq!(handles(&table), [2, 6, 4, 1, 3]);
        assert_eq!(table.at(PLACE).nth(2).map(|filter| filter.actions.len()), Some(1));
    }
    // `flow` filters keep the handles that users gave, and are asked in the order in which they
    // were added.
    let flows = ["pref 1 handle 9 flow map key mark", "pref 1 handle 2 flow map key mark"];
    assert_eq!(names(&try_table(&flows).expect("room")), [(0, 1, 9), (0, 1, 2)]);
}

/// `fw` filters are asked in the order of Linux's hash buckets. In a bucket, the filter that was
/// added last is asked first.
#[test]
fn marks_stand_in_their_buckets() {
    // Linux's hash `fw_hash` for 256 buckets: the exclusive or of the mark's halves, then of the
    // two bytes of the result.
    let bucket = |mark: u32| {
        let half = (mark >> 16) ^ (mark & 0xffff);
        (half >> 8) ^ (half & 0xff)
    };
    let marks = [
        1,
        0x100,
        0x1_0000,
        0x100_0000,
        0xff,
        0xfe01,
        0x1234_5678,
        0x8765_4321,
        0x0102,
        0x0304,
        0x8000_0000,
        0x7fff_ffff,
        u32::MAX,
        0x00ff_ff00,
        0x4000_0002,
        0x200,
    ];
    let lines: Vec<String> =
        marks.iter().map(|mark| format!("pref 1 handle {mark} fw classid 1:1")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut table = try_table(&lines).expect("room");
    let mut expected: Vec<(u32, usize, u32)> = marks
        .iter()
        .enumerate()
        .map(|(place, mark)| (bucket(*mark), usize::MAX - place, *mark))
        .collect();
    expected.sort_unstable();
    let expected: Vec<u32> = expected.iter().map(|(.., mark)| *mark).collect();
    let found = |table: &Table| names(table).iter().map(|name| name.2).collect::<Vec<_>>();
    assert_eq!(found(&table), expected);
    // A filter that is changed is still asked at the same place.
    apply(&mut table, How::Change, "pref 1 handle 0x100 fw classid 1:3").expect("it is there");
    assert_eq!(found(&table), expected);
}

/// An `fw` filter without a mark (it takes the class from the packet's mark) disappears when a
/// filter for one mark is added to its preference.
#[test]
fn the_mark_is_the_class_or_not() {
    let mut table = try_table(&["pref 1 fw"]).expect("room");
    assert_eq!(all(&table), "filter protocol all pref 1 fw chain 0 \n");
    apply(&mut table, How::Add, "pref 1 fw").expect("again");
    assert_eq!(names(&table), [(0, 1, 0)]);
    apply(&mut table, How::Add, "pref 1 handle 5 fw classid 1:1").expect("a mark");
    assert_eq!(names(&table), [(0, 1, 5)]);
    let own = "filter: illegal \"pref\" \"1\": another filter with this preference has a mark; \
               expected `handle MARK`";
    let invalid = "RTNETLINK answers: Invalid argument";
    assert_eq!(refused(&mut table, How::Add, "pref 1 fw"), (2, own.into(), invalid.into()));
    let mask = "filter: illegal \"pref\" \"1\": the fw filters of one preference must have the \
                same mask";
    for line in ["pref 1 handle 6/0xff fw classid 1:1", "pref 1 handle 6/0xfffffffe fw classid 1:1"]
    {
        assert_eq!(refused(&mut table, How::Add, line), (2, mask.into(), invalid.into()));
    }
    apply(&mut table, How::Add, "pref 1 handle 6/0xffffffff fw classid 1:1").expect("the same");
    apply(&mut table, How::Add, "pref 2 handle 6/0xff fw classid 1:1").expect("another one");
    apply(&mut table, How::Delete, "pref 1 handle 5 fw").expect("it is there");
    apply(&mut table, How::Delete, "pref 1 handle 6 fw").expect("it is there");
    assert_eq!(names(&table), [(0, 2, 6)]);
    // As in Linux, a filter never matches if its mark has bits set outside of the mask.
    for (mark, mask, asked, decision) in [
        (6, 0xff, 0x106, class(1)),
        (6, 0xff, 7, super::Decision::Unknown),
        (0x106, 0xff, 0x106, super::Decision::Unknown),
    ] {
        let mut marked = filters(&[&format!("pref 1 handle {mark}/{mask} fw classid 1:1")]);
        let mut pkt = from(1);
        pkt.mark = asked;
        assert_eq!(super::ask(&mut marked, &mut pkt), decision, "{mark}/{mask}");
    }
    // An `fw` filter without a mark matches only if the packet's mark names a class of the qdisc.
    // The mark 0 names no class.
    let mut by_class = filters(&["fw"]);
    for (mark, decision) in [
        (0, super::Decision::Unknown),
        (1, super::Decision::Class(Handle::new(0, 1))),
        (0x1_0000, class(0)),
        (0x1_ffff, class(0xffff)),
        (0x2_0001, super::Decision::Unknown),
    ] {
        let mut pkt = from(1);
        pkt.mark = mark;
        assert_eq!(super::ask(&mut by_class, &mut pkt), decision, "{mark:x}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn what_cannot_be_at_a_preference() {
    let mut table = try_table(&[
        "pref 1 protocol ip basic classid 1:1",
        "pref 2 matchall classid 1:1",
        "pref 3 handle 4 basic classid 1:1",
    ])
    .expect("room");
    let before = names(&table);
    for (how, line, code, message, kernel) in [
        (
            How::Add,
            "pref 1 protocol ipv6 basic classid 1:1",
            2,
            "filter: illegal \"protocol\" \"ipv6\": the filters with this preference are for \
             protocol ip",
            "Error: Protocol mismatch for filter with specified priority.",
        ),
        (
            How::Add,
            "pref 1 protocol ip matchall classid 1:1",
            2,
            "filter: unexpected \"matchall\": the filters with this preference are of the kind \
             basic",
            "Error: Specified filter kind does not match existing one.",
        ),
        (
            How::Add,
            "pref 2 matchall classid 1:1",
            2,
            "filter: illegal \"pref\" \"2\": a preference has at most one matchall filter; delete \
             the existing one first",
            "RTNETLINK answers: File exists",
        ),
        (
            How::Add,
            "pref 3 handle 4 basic classid 1:1",
            2,
            "filter: illegal \"handle\" \"4\": use change or replace",
            "Error: Filter already exists.",
        ),
        (
            How::Change,
            "pref 3 handle 5 basic classid 1:1",
            2,
            "filter: \"handle\": there is no such filter; use add",
            "Error: Need both RTM_NEWTFILTER and NLM_F_CREATE to create a new filter.",
        ),
        (
            How::Change,
            "pref 9 handle 5 basic classid 1:1",
            2,
            "filter: \"protocol\": there is no such filter; use add",
            "Error: Filter kind and protocol must be specified.",
        ),
        (
            How::Change,
            "pref 9 protocol ip handle 5 basic classid 1:1",
            2,
            "filter: \"handle\": there is no such filter; use add",
            "Error: Need both RTM_NEWTFILTER and NLM_F_CREATE to create a new filter.",
        ),
        (
            How::Change,
            "handle 5 basic classid 1:1",
            2,
            "filter: \"pref\": expected the preference of the filter to change",
            "Error: Invalid filter command with priority of zero.",
        ),
        (
            How::Add,
            "chain 268435456 basic classid 1:1",
            2,
            "filter: illegal \"chain\" \"268435456\": expected 0 to 268435455",
            "Error: Specified chain index exceeds upper limit.",
        ),
        (
            How::Delete,
            "pref 3 handle 5 basic",
            2,
            "filter: illegal \"handle\" \"5\": there is no such filter",
            "Error: Specified filter handle not found.",
        ),
        (
            How::Delete,
            "pref 4",
            2,
            "filter: illegal \"pref\" \"4\": there are no filters with this preference",
            "Error: Filter with specified priority/protocol not found.",
        ),
        (
            How::Delete,
            "chain 7 pref 3",
            2,
            "filter: illegal \"chain\" \"7\": there are no filters in this chain",
            "Error: Cannot find specified filter chain.",
        ),
        (
            How::Delete,
            "pref 1 protocol arp",
            2,
            "filter: illegal \"protocol\" \"arp\": the filters with this preference are for \
             protocol ip",
            "Error: Protocol mismatch for filter with specified priority.",
        ),
        (
            How::Delete,
            "pref 3 fw",
            2,
            "filter: unexpected \"fw\": the filters with this preference are of the kind basic",
            "Error: Specified filter kind does not match existing one.",
        ),
        (
            How::Delete,
            "protocol ip",
            2,
            "filter: expected a preference, too, or neither protocol, handle nor kind",
            "Error: Cannot flush filters with protocol, handle or kind set.",
        ),
        (
            How::Delete,
            "handle 4 basic",
            2,
            "filter: expected a preference, too, or neither protocol, handle nor kind",
            "Error: Cannot flush filters with protocol, handle or kind set.",
        ),
        (
            How::Delete,
            "basic",
            2,
            "filter: expected a preference, too, or neither protocol, handle nor kind",
            "Error: Cannot flush filters with protocol, handle or kind set.",
        ),
        (
            How::Delete,
            "pref 3 basic classid 1:1",
            255,
            "filter: unexpected \"classid\": expected the end: a filter is deleted by its \
             preference and handle",
            "",
        ),
        (
            How::Delete,
            "pref 3 handle 4",
            255,
            "filter: \"handle\": expected the kind of the filter after the handle",
            "",
        ),
        (
            How::Delete,
            "pref 3 handle x basic",
            1,
            "filter: illegal \"handle\" \"x\": expected a whole number, 0 to 4294967295",
            "",
        ),
    ] {
        let found = refused(&mut table, how, line);
        assert_eq!(found, (code, message.to_owned(), kernel.to_owned()), "{line}");
    }
    assert_eq!(names(&table), before);
    // A deleting line that gives the kind but no handle deletes all filters of the preference.
    apply(&mut table, How::Delete, "pref 3 basic").expect("they are there");
    apply(&mut table, How::Delete, "protocol ip pref 1").expect("they are there");
    assert_eq!(names(&table), [(0, 2, 1)]);
    apply(&mut table, How::Delete, "chain 5").expect("nothing is no mistake");
    assert_eq!(names(&table), [(0, 2, 1)]);
    apply(&mut table, How::Delete, "").expect("all of chain 0");
    assert_eq!(names(&table), []);
}

/// `tc filter get` needs the protocol, preference, kind and handle of a filter. The error says
/// which of these is missing.
#[test]
fn one_filter_is_asked_for() {
    let table = try_table(&["pref 3 protocol ip handle 4 basic classid 1:1"]).expect("room");
    let get = |line: &str| {
        let mut words = Reader::new(line);
        let head = Head::read(&mut words).expect("a head");
        let found = table.get(PLACE, &head, &mut words);
        found.map(|filter| filter.handle).map_err(|error| (error.fault.code(), error.to_string()))
    };
    assert_eq!(get("pref 3 protocol ip handle 4 basic"), Ok(4));
    for (line, key) in [
        ("", "protocol"),
        ("pref 3 handle 4", "protocol"),
        ("pref 3 handle 4 basic", "protocol"),
        ("protocol ip", "pref"),
        ("protocol ip handle 4 basic", "pref"),
        ("protocol ip pref 3", "kind"),
        ("protocol ip pref 3 handle 4", "kind"),
        ("protocol ip pref 3 basic", "handle"),
    ] {
        assert_eq!(get(line), Err((255, format!("filter: \"{key}\": `get` needs it"))), "{line}");
    }
    for (line, code, message) in [
        ("pref 3 protocol ip handle 4 basic x", 255, "filter: unexpected \"x\": expected the end"),
        (
            "pref 3 protocol ip handle 5 basic",
            2,
            "filter: illegal \"handle\" \"5\": there is no such filter",
        ),
        (
            "pref 3 protocol ip handle x basic",
            1,
            "filter: illegal \"handle\" \"x\": expected a whole number, 0 to 4294967295",
        ),
        (
            "pref 3 protocol ip handle 4 fw",
            2,
            "filter: unexpected \"fw\": the filters with this preference are of the kind basic",
        ),
        (
            "chain 1 pref 3 protocol ip handle 4 basic",
            2,
            "filter: illegal \"chain\" \"1\": there are no filters in this chain",
        ),
        (
            "pref 5 protocol ip handle 4 basic",
            2,
            "filter: illegal \"pref\" \"5\": there are no filters with this preference",
        ),
    ] {
        assert_eq!(get(line), Err((code, message.to_owned())), "{line}");
    }
}

/// Chains are shown in the order in which they got their first filter. A chain that becomes empty
/// is forgotten, and begins again with its next filter.
#[test]
fn chains_begin_and_end() {
    let add = |table: &mut Table, chain: u32| {
        apply(table, How::Add, &format!("chain {chain} basic classid 1:1")).expect("room");
    };
    let shown = |table: &Table| -> Vec<u32> {
        let all = all(table);
        let lines = all.lines().filter(|line| line.contains("handle"));
        let chain = |line: &str| line.split(" chain ").nth(1)?.split(' ').next()?.parse().ok();
        lines.filter_map(chain).collect()
    };
    let mut table = try_table(&[]).expect("an empty one");
    [5, 3, 0, 3].into_iter().for_each(|chain| add(&mut table, chain));
    assert_eq!(shown(&table), [5, 3, 3, 0]);
    apply(&mut table, How::Delete, "chain 5").expect("it is there");
    add(&mut table, 5);
    assert_eq!(shown(&table), [3, 3, 0, 5]);
    // Chain 3 keeps its place in the listing while one of its two preferences has filters.
    apply(&mut table, How::Delete, "chain 3 pref 49151").expect("it is there");
    add(&mut table, 3);
    assert_eq!(shown(&table), [3, 3, 0, 5]);
    apply(&mut table, How::Delete, "chain 3 pref 49151 handle 1 basic").expect("it is there");
    apply(&mut table, How::Delete, "chain 3 pref 49152 handle 1 basic").expect("it is there");
    add(&mut table, 3);
    assert_eq!(shown(&table), [0, 5, 3]);
    // A filter that is refused does not make its chain exist.
    apply(&mut table, How::Add, "chain 9 u32 match u32 0 0 link 7:").expect_err("no such table");
    let error = apply(&mut table, How::Delete, "chain 9 pref 1").expect_err("there is none");
    assert_eq!(error.key, "chain");
    // The chain with the greatest possible number works like any other chain.
    add(&mut table, 268_435_455);
    assert_eq!(shown(&table), [0, 5, 3, 268_435_455]);
}
