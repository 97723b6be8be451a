//! Tests of `u32` filters: hash tables, the links between them, and the numbers of their nodes (the
//! filters in a table).

use onramp_queue::Packet;

use super::super::{Decision, How, Table};
use super::tools::{TEXT, all, apply, are_wrong, json, options, ports, text, v4};
use super::{PLACE, ask, class, filters, packet, try_filters, try_table};

/// Returns how a `u32` filter is shown that has the options `rest` after its match.
fn node(rest: &str) -> String {
    let out = text(&format!("pref 1 u32 match u32 1 1 {rest}"));
    let rest = out.strip_prefix("fh 800::800 order 2048 key ht 800 bkt 0 ");
    rest.unwrap_or_else(|| panic!("{out}")).to_owned()
}

const MATCH: &str = "not_in_hw \n  match 00000001/00000001 at 0";

#[test]
fn nodes_are_shown() {
    for (rest, options) in [
        ("flowid 1:2", format!("*flowid 1:2 {MATCH}")),
        (
            "action ok",
            format!(
                "terminal flowid {MATCH}\n\taction order 1: gact action pass\n\t random type none \
                 pass val 0\n\t index 1 ref 1 bind 1\n"
            ),
        ),
        ("classid :5", format!("*flowid :5 {MATCH}")),
        ("hashkey mask 0xff at 12", format!("{MATCH}\n    hash mask 000000ff at 12 ")),
        ("hashkey at -4 mask f0000", format!("{MATCH}\n    hash mask 000f0000 at -4 ")),
        ("offset plus 20", format!("{MATCH}\n    offset plus 20 ")),
        ("offset plus 0", format!("{MATCH}\n    offset ")),
        ("offset plus 65535 eat", format!("{MATCH}\n    offset plus 65535  eat ")),
        ("offset eat", format!("{MATCH} eat ")),
        ("offset at 0 mask 0x0f00 shift 6", format!("{MATCH}\n    offset 0f00>>6 at 0 ")),
        ("offset mask ffff", format!("{MATCH}\n    offset ffff>>0 at 0 ")),
        ("offset at -65535", format!("{MATCH}\n    offset 0000>>0 at -65535 ")),
        (
            "offset at 8 mask 0xf shift 15 plus 4 eat hashkey mask 1 at 0",
            format!("{MATCH}\n    offset 000f>>15 at 8 plus 4  eat \n    hash mask 00000001 at 0 "),
        ),
        // A `hashkey` without a mask computes no hash, and is not shown.
        ("hashkey at 8", MATCH.to_owned()),
        ("flowid 1:2 skip_hw", format!("*flowid 1:2 skip_hw {MATCH}")),
        ("flowid 1:2 indev e1", format!("*flowid 1:2 {MATCH}\n  input dev e1\n")),
    ] {
        assert_eq!(node(rest), options, "{rest}");
    }
    let out = json(
        "pref 1 u32 match u32 1 1 offset at 8 mask 0x1f shift 3 plus 4 eat hashkey mask f0 at -4 \
         flowid 1:2 indev e1",
    );
    let expected = concat!(
        r#"{"fh":"800::800","order":2048,"key_ht":"800","bkt":"0","flowid":"1:2","#,
        r#""not_in_hw":true,"match":{"value":"1","mask":"1","offmask":"","off":0},"#,
        r#""offset_mask":"1f","offset_shift":3,"offset_off":8,"plus":4,"eat":true,"#,
        r#""hash_mask":"f0","hash_off":-4,"input_dev":"e1"}"#
    );
    assert_eq!(out, expected);
    let skip = json("pref 1 u32 match u32 1 1 flowid 1:2 skip_hw");
    assert!(skip.contains(r#""flowid":"1:2","skip_hw":true,"not_in_hw":true,"#), "{skip}");
}

#[test]
fn what_is_wrong_with_a_node() {
    let divisor = |word: &str| {
        format!("filter u32: illegal \"divisor\" \"{word}\": expected a power of two, 1 to 256")
    };
    for word in ["0", "3", "512", "257", "x"] {
        let line = format!("pref 1 handle 1: u32 divisor {word}");
        are_wrong(&[(&line, 1, &divisor(word))]);
        let line = format!("pref 1 u32 ht 1: sample u32 1 1 divisor {word} match u32 1 1");
        are_wrong(&[(&line, 1, &divisor(word))]);
    }
    for count in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        let line = format!("pref 1 handle 1: u32 divisor {count}");
        assert_eq!(text(&line), format!("fh 1: ht divisor {count} "));
    }
    let table = "expected a table such as 1: or 1:5:, hexadecimal";
    let whole = "expected a table such as 1:, hexadecimal";
    let offset = "expected an offset, -65535 to 65535";
    let name = "expected TABLE:BUCKET:NODE, hexadecimal, such as 800::800";
    for (rest, key, value, why) in [
        ("link 1:1:", "link", "1:1:", whole),
        ("link ::1", "link", "::1", whole),
        ("link 1", "link", "1", whole),
        ("ht 1:1:1", "ht", "1:1:1", table),
        ("ht 5", "ht", "5", table),
        ("order 4096", "order", "4096", "expected a whole number, 0 to 4095"),
        (
            "hashkey mask 100000000",
            "mask",
            "100000000",
            "expected a hexadecimal number, 0 to ffffffff",
        ),
        ("hashkey mask 1 at 65536", "at", "65536", offset),
        ("offset at -65536", "at", "-65536", offset),
        ("offset mask 10000", "mask", "10000", "expected a hexadecimal number, 0 to ffff"),
        ("offset at 0 mask 1 shift 16", "shift", "16", "expected a whole number, 0 to 15"),
        ("offset plus 65536", "plus", "65536", "expected a whole number, 0 to 65535"),
    ] {
        let said = format!("filter u32: illegal \"{key}\" \"{value}\": {why}");
        are_wrong(&[(&format!("pref 1 u32 match u32 1 1 {rest}"), 1, &said)]);
    }
    for handle in ["1000::", "1:100:", "::1000", "1:2:3:4", "800", "x::1"] {
        let line = format!("pref 1 handle {handle} u32 match u32 1 1 flowid 1:1");
        are_wrong(&[(&line, 1, &format!("filter u32: illegal \"handle\" \"{handle}\": {name}"))]);
    }
    are_wrong(&[
        (
            "u32 flowid 1:1",
            2,
            "filter u32: \"match\": expected at least one, such as match u32 0 0",
        ),
        (
            "u32 offset eat",
            2,
            "filter u32: \"match\": expected at least one, such as match u32 0 0",
        ),
        ("u32 action ok", 2, "filter u32: \"match\": expected at least one, such as match u32 0 0"),
        (
            "pref 1 handle 1::5 u32 divisor 4",
            2,
            "filter u32: \"divisor\": it needs the handle of a table, but the handle names a node",
        ),
        (
            "u32 match u32 0 0 colour 5",
            1,
            "filter u32: unexpected \"colour\": u32 takes match, link, ht, hashkey, offset, \
             sample, divisor, order, classid, action, police, indev",
        ),
    ]);
}

/// A preference can consist only of its first hash table, without nodes.
#[test]
fn a_bare_preference() {
    let table = try_table(&["pref 1 u32"]).expect("a table");
    assert_eq!(
        all(&table),
        "filter protocol all pref 1 u32 chain 0 \n\
        filter protocol all pref 1 u32 chain 0 fh 800: ht divisor 1 \n"
    );
    // The first hash table takes over no options of the filter for which it was created.
    let line = "pref 1 u32 match u32 1 1 flowid 1:1 indev e1 skip_hw action ok";
    let table = try_table(&[line]).expect("a filter");
    let root = table.at(PLACE).next().expect("its table");
    assert_eq!(options(root, TEXT), "fh 800: ht divisor 1 ");
    assert_eq!((root.class, &root.indev, root.skip_hw), (None, &None, false));
    assert!(root.actions.is_empty());
    let police = "pref 1 u32 match u32 1 1 police mtu 500";
    let table = try_table(&[police]).expect("a filter");
    assert!(!table.at(PLACE).next().expect("its table").bare_police);
    assert!(table.at(PLACE).last().expect("its node").bare_police);
}

/// Returns the handles of all filters, in the order in which they are asked.
pub(super) fn handles(table: &Table) -> Vec<u32> {
    table.at(PLACE).map(|filter| filter.handle).collect()
}

const NO_SPACE: &str = "RTNETLINK answers: No space left on device";
pub(super) const ADD: &str = "pref 1 u32 match u32 1 1 flowid 1:1";

/// Nodes get the numbers from 800 to fff, then from 1 on. A new node gets the first number in that
/// order that is free.
#[test]
fn nodes_are_numbered() {
    let mut table = try_table(&[ADD, ADD, ADD, ADD]).expect("room");
    let add = |table: &mut Table, line: &str| {
        let before = handles(table);
        apply(table, How::Add, line).expect("room");
        let new: Vec<u32> =
            handles(table).into_iter().filter(|handle| !before.contains(handle)).collect();
        assert_eq!(new.len(), 1, "{line}: {new:x?}");
        new[0]
    };
    let delete = |table: &mut Table, handle: &str| {
        apply(table, How::Delete, &format!("pref 1 handle {handle} u32")).expect("it is there");
    };
    assert_eq!(handles(&table), [0x8000_0000, 0x8000_0800, 0x8000_0801, 0x8000_0802, 0x8000_0803]);
    delete(&mut table, "800::801");
    delete(&mut table, "800::800");
    assert_eq!(add(&mut table, ADD), 0x8000_0800);
    assert_eq!(add(&mut table, ADD), 0x8000_0801);
    assert_eq!(add(&mut table, ADD), 0x8000_0804);
    delete(&mut table, "800::802");
    // A node's number can be given by a handle, by `order`, or by both.
    assert_eq!(add(&mut table, &ADD.replace("u32 m", "handle ::5 u32 m")), 0x8000_0005);
    assert_eq!(add(&mut table, &format!("{ADD} order 6")), 0x8000_0006);
    assert_eq!(add(&mut table, &format!("{ADD} order 0")), 0x8000_0802);
    let line = ADD.replace("u32 m", "handle 800::10 u32 order 4 m");
    assert_eq!(add(&mut table, &line), 0x8000_0014);
    delete(&mut table, "800::5");
    assert_eq!(add(&mut table, ADD), 0x8000_0805);
    // Nodes are asked in the order of their numbers.
    let numbers = [0, 6, 0x14, 0x800, 0x801, 0x802, 0x803, 0x804, 0x805];
    assert_eq!(handles(&table), numbers.map(|node| 0x8000_0000 | node));
    // A node with a number that is already taken is refused.
    let error = apply(&mut table, How::Add, &format!("{ADD} order 6")).expect_err("taken");
    assert_eq!(error.fault.kernel_text().as_deref(), Some(NO_SPACE));
}

#[test]
fn a_bucket_that_is_full() {
    let mut table = Table::default();
    for count in 1..=4095_u32 {
        apply(&mut table, How::Add, ADD).expect("room");
        // The 2,048 numbers from 800 to fff are assigned first.
        let node = if count <= 0x800 { 0x7ff + count } else { count - 0x800 };
        if count % 256 < 2 {
            let nodes = handles(&table);
            assert!(nodes.contains(&(0x8000_0000 | node)), "{count}");
            assert_eq!(nodes.len(), 1 + count as usize);
        }
    }
    let delete = |table: &mut Table, node: u32| {
        let line = format!("pref 1 handle 800::{node:x} u32");
        apply(table, How::Delete, &line).expect("it is there");
        assert!(!handles(table).contains(&(0x8000_0000 | node)));
    };
    // Numbers of deleted nodes are assigned again, those from 800 on first.
    for (gone, given) in
        [([0x7ff, 1], [1, 0x7ff]), ([5, 0x900], [0x900, 5]), ([0x800, 0xfff], [0x800, 0xfff])]
    {
        gone.into_iter().for_each(|node| delete(&mut table, node));
        for node in given {
            assert!(!handles(&table).contains(&(0x8000_0000 | node)));
            apply(&mut table, How::Add, ADD).expect("room");
            assert!(handles(&table).contains(&(0x8000_0000 | node)), "{node:x}");
        }
    }
    // When no number is free, another node is refused, and the table stays as it was.
    let before = handles(&table);
    for _ in 0..2 {
        let error = apply(&mut table, How::Add, ADD).expect_err("full");
        let said = "Error: cls_u32: Hash table node ID pool exhausted.";
        assert_eq!(error.fault.kernel_text().as_deref(), Some(said));
        assert!(error.to_string().contains("800:0:"), "{error}");
    }
    assert_eq!((handles(&table), before.len()), (before, 4096));
}

/// Hash tables that are added without a number get the numbers from 800 to fff, one after the
/// other.
#[test]
fn tables_are_numbered() {
    let mut table = Table::default();
    for pref in 1..=2048 {
        apply(&mut table, How::Add, &format!("pref {pref} u32")).expect("room");
    }
    let tables: Vec<u32> = handles(&table);
    assert_eq!(tables, (0x800..0x1000_u32).map(|table| table << 20).collect::<Vec<_>>());
    let error = apply(&mut table, How::Add, "pref 3000 u32").expect_err("no room");
    let why = "filter: \"u32\": a qdisc or class has at most 2048 hash tables with automatic \
               numbers";
    assert_eq!(error.to_string(), why);
    assert_eq!(error.fault.kernel_text().as_deref(), Some(NO_SPACE));
    // Only 2,048 tables can get numbers from 800 to fff. Table 5 is outside of this range, so it
    // can still be added. When a table is deleted, its number is free for a new table.
    apply(&mut table, How::Add, "pref 1 handle 5: u32 divisor 1").expect("a number of its own");
    apply(&mut table, How::Delete, "pref 77").expect("it is there");
    apply(&mut table, How::Add, "pref 3000 u32").expect("room again");
    let [.., last, 0x50_0000] = handles(&table)[..] else { panic!("the shared table is last") };
    assert_eq!(last, (0x800 + 76) << 20);
    let second = apply(&mut table, How::Add, "pref 3000 u32 divisor 8");
    assert!(second.is_err(), "a table made by hand takes such a number, too");
}

#[test]
fn numbers_begin_anew_where_nothing_is_left() {
    let mut table = try_table(&[ADD, ADD, "pref 2 u32"]).expect("room");
    apply(&mut table, How::Delete, "pref 1").expect("it is there");
    // As long as a table is left, a new table gets the number after the last one assigned.
    apply(&mut table, How::Add, "pref 3 u32").expect("room");
    assert_eq!(handles(&table), [0x8010_0000, 0x8020_0000]);
    apply(&mut table, How::Delete, "pref 2").expect("it is there");
    apply(&mut table, How::Delete, "pref 3").expect("it is there");
    assert_eq!(handles(&table), [0; 0]);
    apply(&mut table, How::Add, ADD).expect("room");
    assert_eq!(handles(&table), [0x8000_0000, 0x8000_0800]);
    // Deleting the last node of a preference also deletes the preference, and the numbers of tables
    // begin at 800 again.
    apply(&mut table, How::Delete, "pref 1 handle 800::800 u32").expect("it is there");
    assert_eq!(handles(&table), [0; 0]);
    apply(&mut table, How::Add, ADD).expect("room");
    assert_eq!(handles(&table), [0x8000_0000, 0x8000_0800]);
    // A filter that is refused leaves no table and no preference behind.
    let mut table = Table::default();
    apply(&mut table, How::Add, "pref 1 u32 match u32 0 0 link 9:").expect_err("no such table");
    assert_eq!(all(&table), "");
    apply(&mut table, How::Add, "pref 2 u32").expect("room");
    assert_eq!(handles(&table), [0x8000_0000]);
}

/// Deleting a hash table deletes its nodes. A table that is created again under the same number is
/// empty, and its nodes begin at 800.
#[test]
fn a_table_takes_its_nodes_with_it() {
    let lines = [
        "pref 1 handle 1: u32 divisor 4",
        "pref 1 u32 ht 1:3: match u32 1 1 flowid 1:1 action ok index 7",
        "pref 1 u32 ht 1:3: match u32 1 1 flowid 1:1",
        "pref 1 handle 2: u32 divisor 4",
        "pref 1 u32 ht 2:3: match u32 1 1 flowid 1:1",
    ];
    let mut table = try_table(&lines).expect("room");
    apply(&mut table, How::Delete, "pref 1 handle 1: u32").expect("nobody is linked with it");
    assert_eq!(handles(&table), [0x8000_0000, 0x0020_0000, 0x0020_3800]);
    // The number of the deleted node's action is free again, and so are the numbers of the nodes.
    lines[..2].iter().for_each(|line| apply(&mut table, How::Add, line).expect("room"));
    apply(&mut table, How::Add, lines[4]).expect("room");
    let all = [0x8000_0000, 0x0020_0000, 0x0020_3800, 0x0020_3801, 0x0010_0000, 0x0010_3800];
    assert_eq!(handles(&table), all);
    apply(&mut table, How::Delete, "pref 1 handle 1:3:800 u32").expect("it is there");
    apply(&mut table, How::Delete, "pref 1 handle 1:3:800 u32").expect_err("it was deleted");
}

/// A table can be deleted as soon as no node links to it, whatever took the last link away.
#[test]
fn a_table_that_nodes_link_to_stays() {
    let link = "pref 1 handle 800::1 u32 match u32 1 1 link 1:";
    let inner = "pref 1 handle 2::1 u32 ht 2: match u32 1 1 link 1:";
    let tables = ["pref 1 handle 1: u32 divisor 1", "pref 1 handle 2: u32 divisor 1"];
    let lines = [tables[0], tables[1], link, inner, ADD];
    let table = try_table(&lines).expect("room");
    let delete = "pref 1 handle 1: u32";
    let refused = |table: &mut Table| {
        let error = apply(table, How::Delete, delete).expect_err("it is in use");
        assert!(error.to_string().contains("other filters link to this table"), "{error}");
    };
    for gone in ["pref 1 handle 2: u32", "pref 1 handle 2::1 u32"] {
        for (how, last) in [
            (How::Delete, "pref 1 handle 800::1 u32"),
            (How::Replace, "pref 1 handle 800::1 u32 match u32 1 1 link 3:"),
        ] {
            let mut table = table.clone();
            apply(&mut table, How::Add, "pref 1 handle 3: u32 divisor 1").expect("room");
            refused(&mut table);
            apply(&mut table, How::Delete, gone).expect("nobody is linked with it");
            refused(&mut table);
            apply(&mut table, How::Replace, link).expect("it may be replaced");
            refused(&mut table);
            apply(&mut table, how, last).expect("nobody is linked with it");
            apply(&mut table, How::Delete, delete).expect("nobody is linked with it");
        }
    }
    // A preference takes the links of its nodes with it.
    let mut table = table;
    apply(&mut table, How::Delete, "pref 1 handle 2: u32").expect("nobody is linked with it");
    apply(&mut table, How::Delete, "pref 1 handle 800::1 u32").expect("it is there");
    apply(&mut table, How::Add, "pref 2 u32 match u32 1 1 link 1:").expect("room");
    refused(&mut table);
    apply(&mut table, How::Delete, "pref 2").expect("it is there");
    apply(&mut table, How::Delete, delete).expect("nobody is linked with it");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn tables_say_what_cannot_be() {
    let mut table = try_table(&[
        "pref 1 handle 1: u32 divisor 4",
        "pref 1 u32 match u32 1 1 link 1:",
        "pref 2 u32 match u32 2 2 action ok",
    ])
    .expect("room");
    let before = all(&table);
    for (how, line, message, said) in [
        (
            How::Change,
            "pref 1 handle 1: u32 divisor 8",
            "filter: illegal \"handle\" \"1:\": this table is there, and a table cannot be \
             replaced or changed: delete it first, or leave out this line",
            "Error: cls_u32: Key node id cannot be zero.",
        ),
        (
            How::Change,
            "pref 1 handle 1: u32 match u32 1 1",
            "filter: illegal \"handle\" \"1:\": this is a table, which cannot be replaced by a \
             filter: name a filter in it, such as 2::800",
            "Error: cls_u32: Key node id cannot be zero.",
        ),
        (
            How::Replace,
            "pref 1 handle 1: u32 divisor 4",
            "filter: illegal \"handle\" \"1:\": this table is there, and a table cannot be \
             replaced or changed: delete it first, or leave out this line",
            "Error: cls_u32: Key node id cannot be zero.",
        ),
        (
            How::Add,
            "pref 1 handle 805: u32",
            "filter: illegal \"handle\" \"805:\": without options, a line can only give the first \
             table of a new preference a number that is free, such as 805:",
            "Error: cls_u32: Filter handle requires options.",
        ),
        (
            How::Replace,
            "pref 3 handle 1: u32",
            "filter: illegal \"handle\" \"1:\": without options, a line can only give the first \
             table of a new preference a number that is free, such as 805:",
            "Error: cls_u32: Filter handle requires options.",
        ),
        (
            How::Add,
            "pref 1 u32 match u32 1 1 link 2:",
            "filter: illegal \"link\" \"2:\": there is no such table; add it with divisor",
            "Error: cls_u32: Link hash table not found.",
        ),
        (
            How::Add,
            "pref 1 u32 match u32 1 1 link 801:",
            "filter: illegal \"link\" \"801:\": filters cannot link to the first table of a \
             preference",
            "Error: cls_u32: Not linking to root node.",
        ),
        (
            How::Add,
            "pref 1 u32 ht 2: match u32 1 1 flowid 1:1",
            "filter: illegal \"ht\" \"2:\": there is no such table; add it with divisor",
            "Error: cls_u32: Specified hash table not found.",
        ),
        (
            How::Add,
            "pref 1 u32 ht 1:4: match u32 1 1 flowid 1:1",
            "filter: illegal \"ht\" \"1:4:\": the buckets of this table are 0 to 3",
            "Error: cls_u32: Specified hash table buckets exceed configured value.",
        ),
        (
            How::Add,
            "pref 1 handle 2::1 u32 ht 1:3: match u32 1 1 flowid 1:1",
            "filter: illegal \"handle\" \"2::1\": the filter is added to the table 1:",
            "Error: cls_u32: Handle specified hash table address mismatch.",
        ),
        (
            How::Delete,
            "pref 2 handle 801: u32",
            "filter: \"handle\": the first table of a preference can be deleted only with the \
             preference",
            "Error: cls_u32: Not allowed to delete root node.",
        ),
        (
            How::Delete,
            "pref 1 handle 1: u32",
            "filter: \"handle\": other filters link to this table",
            "Error: cls_u32: Can not delete in-use filter.",
        ),
    ] {
        let error = apply(&mut table, how, line).expect_err(line);
        let kernel = error.fault.kernel_text().unwrap_or_default();
        assert_eq!((error.to_string().as_str(), kernel.as_str()), (message, said), "{line}");
    }
    assert_eq!(all(&table), before);
    // A node can be put into the last bucket of a table.
    apply(&mut table, How::Add, "pref 1 handle 1:3:1 u32 ht 1:3: match u32 1 1").expect("room");
    apply(&mut table, How::Add, "pref 1 handle ::2 u32 ht 1:3: match u32 1 1").expect("room");
    assert!(all(&table).contains("fh 1:3:1 order 1 key ht 1 bkt 3 not_in_hw"));
    assert!(all(&table).contains("fh 1:3:2 order 2 key ht 1 bkt 3 not_in_hw"));
}

/// A change keeps the keys of a node, but may change the table that the node leads to.
#[test]
fn a_node_is_changed() {
    let mut table = try_table(&[
        "pref 1 handle 1: u32 divisor 4",
        "pref 1 handle 2: u32 divisor 4",
        "pref 1 u32 ht 1:2: match u32 1 1 link 2: hashkey mask 3 at 0 offset plus 4",
    ])
    .expect("room");
    let change = "pref 1 handle 1:2:800 u32 match u32 2 2 offset plus 8 flowid 1:3";
    apply(&mut table, How::Change, change).expect("it is there");
    let last = options(table.at(PLACE).find(|node| node.handle == 0x10_2800).expect("it is"), TEXT);
    assert_eq!(
        last,
        "fh 1:2:800 order 2048 key ht 1 bkt 2 flowid 1:3 link 2: not_in_hw \n  \
        match 00000001/00000001 at 0\n    offset plus 4 \n    hash mask 00000003 at 0 "
    );
    apply(&mut table, How::Change, "pref 1 handle 1:2:800 u32 link 1:").expect("it is there");
    let last = options(table.at(PLACE).find(|node| node.handle == 0x10_2800).expect("it is"), TEXT);
    assert!(last.contains("bkt 2 link 1: not_in_hw"), "{last}");
}

/// With `sample`, a node is put into the bucket that a packet with this value would reach: the bits
/// under the mask, shifted to the right, modulo the number of buckets.
#[test]
fn samples() {
    for (sample, handle) in [
        ("u32 0x7 0xff", "1:7:"),
        ("u32 0x0700 0xff00", "1:7:"),
        ("u32 0x1ff 0x1ff", "1:ff:"),
        ("u32 0x7 0xff divisor 4", "1:3:"),
        ("u32 0xab 0xff divisor 256", "1:ab:"),
        ("ip src 10.0.0.9/24", "1:0:"),
        ("u8 0x9 0xf at 3", "1:9:"),
        ("mark 5 5", "1:"),
        ("u32 5 0", "1:"),
    ] {
        let lines = [
            "pref 1 handle 1: u32 divisor 256".to_owned(),
            format!("pref 1 u32 ht 1: sample {sample} match u32 1 1 flowid 1:1"),
        ];
        let table = try_table(&[&lines[0], &lines[1]]).unwrap_or_else(|error| panic!("{error}"));
        let node = table.at(PLACE).last().expect("a node");
        let expected = super::super::words::read_handle(handle).expect("a handle");
        assert_eq!(node.handle, expected | 0x800, "{sample}");
    }
    // If a line says twice in which bucket the node is to be, the later word counts.
    let lines = [
        "pref 1 handle 1: u32 divisor 256",
        "pref 1 u32 sample u32 7 ff ht 1: match u32 1 1 flowid 1:1",
    ];
    assert_eq!(
        try_table(&lines).expect("room").at(PLACE).last().expect("a node").handle,
        0x10_0800
    );
}

/// Returns a packet whose IP header has `words` words of options with the value `option`, followed
/// by the ports `src` and 9.
fn with_options(words: usize, option: u32, src: u16) -> Packet {
    packet(&v4(17, &option.to_be_bytes().repeat(words), &ports(src, 9)))
}

/// The example of `tc-u32(8)` finds the ports after the IP options: the link moves on by the header
/// length that the packet contains.
#[test]
fn what_is_behind_options() {
    for (offset, key) in [
        ("offset at 0 mask 0x0f00 shift 6 plus 0 eat", "u16 5 ffff at 0"),
        ("offset at 0 mask 0x0f00 shift 6 eat", "udp src 5 ffff"),
        ("offset at 0 mask 0x0f00 shift 6", "udp src 5 ffff"),
        // This link moves on four bytes too far, and the key reads four bytes before the new
        // position.
        ("offset at 0 mask 0x0f00 shift 6 plus 4 eat", "u16 5 ffff at -4"),
    ] {
        let mut linked = filters(&[
            "pref 1 protocol ip handle 1: u32 divisor 1",
            &format!("pref 1 protocol ip u32 ht 1: match {key} flowid 1:5"),
            &format!("pref 1 protocol ip u32 match u32 0 0 link 1: {offset}"),
        ]);
        for words in 0..=10 {
            for (port, expected) in [(5, class(5)), (6, Decision::Unknown)] {
                let found = ask(&mut linked, &mut with_options(words, 0, port));
                assert_eq!(found, expected, "{offset}, {key}: {words}, {port}");
            }
        }
    }
    // A link can move on by a fixed number of bytes, which is rounded up to a multiple of four.
    for (plus, words) in [(17, 0), (20, 0), (21, 1), (24, 1), (25, 2), (60, 10)] {
        let mut linked = filters(&[
            "pref 1 protocol ip handle 1: u32 divisor 1",
            "pref 1 protocol ip u32 ht 1: match udp src 5 ffff flowid 1:5",
            &format!("pref 1 protocol ip u32 match u32 0 0 link 1: offset plus {plus}"),
        ]);
        for other in 0..=10 {
            let found = ask(&mut linked, &mut with_options(other, 0, 5));
            assert_eq!(found == class(5), other == words, "{plus}: {other}");
        }
    }
}

/// With `hashkey`, a number in the packet selects the bucket.
#[test]
fn buckets_are_chosen_by_a_hash() {
    for (mask, at, divisor, src) in [
        ("0xff", 12, 256_u32, [10, 1, 2, 3]),
        ("0xff00", 12, 256, [10, 1, 3, 2]),
        ("0xf0", 12, 16, [10, 1, 2, 0x3f]),
        ("0xff", 12, 4, [10, 1, 2, 0x0f]),
        ("0xff000000", 12, 8, [0x13, 1, 2, 3]),
    ] {
        let mut lines = vec![
            format!("pref 1 protocol ip handle 1: u32 divisor {divisor}"),
            format!("pref 1 protocol ip u32 match u32 0 0 link 1: hashkey mask {mask} at {at}"),
        ];
        for bucket in 0..divisor {
            let class = bucket + 1;
            lines.push(format!(
                "pref 1 protocol ip u32 ht 1:{bucket:x}: match u32 0 0 flowid 1:{class:x}"
            ));
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let mut linked = filters(&lines);
        let mut bytes = v4(17, &[], &ports(1, 2));
        bytes[26..30].copy_from_slice(&src);
        // In each case, the bits of the source address under the mask are the number three.
        assert_eq!(ask(&mut linked, &mut packet(&bytes)), class(4), "{mask}");
    }
}

/// A search follows links from table to table, and goes back to the table before if no node
/// matches. Linux limits how many links it follows.
#[test]
fn tables_lead_to_tables() {
    // Each link moves on by four bytes of IP options. The last table compares the bytes after all
    // options.
    let chain = |depth: usize| {
        let mut lines = Vec::new();
        for table in 1..=depth {
            lines.push(format!("pref 1 handle {table:x}: u32 divisor 1"));
        }
        lines.push("pref 1 u32 match u32 0 0 link 1: offset plus 20 eat".to_owned());
        for table in 1..depth {
            let next = table + 1;
            lines.push(format!(
                "pref 1 u32 ht {table:x}: match u32 0 0 link {next:x}: offset plus 4 eat"
            ));
        }
        lines.push(format!("pref 1 u32 ht {depth:x}: match u16 5 ffff at 0 flowid 1:5"));
        lines.push("pref 1 u32 match u32 0 0 flowid 1:6".to_owned());
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        filters(&lines)
    };
    for depth in 1..=8 {
        let mut linked = chain(depth);
        assert_eq!(ask(&mut linked, &mut with_options(depth - 1, 0, 5)), class(5), "{depth}");
        // No node of the last table matches, so the search goes back, step by step, to the first
        // table.
        assert_eq!(ask(&mut linked, &mut with_options(depth - 1, 0, 6)), class(6), "{depth}");
    }
    // As in Linux, a search follows at most eight links.
    assert_eq!(ask(&mut chain(9), &mut with_options(8, 0, 5)), Decision::Unknown);
}

/// After a linked table in which no node matched, the search goes on at the node after the link,
/// and from the old position in the packet.
#[test]
fn back_from_a_table() {
    let both = |link: &str, behind: &str| {
        filters(&[
            "pref 1 handle 1: u32 divisor 1",
            "pref 1 u32 ht 1: match udp src 5 ffff flowid 1:5",
            &format!("pref 1 u32 match u32 0 0 link 1: offset plus 20 {link}"),
            behind,
        ])
    };
    let plain = "pref 1 u32 match ip sport 6 ffff flowid 1:6";
    let mut linked = both("", plain);
    assert_eq!(ask(&mut linked, &mut with_options(0, 0, 5)), class(5));
    assert_eq!(ask(&mut linked, &mut with_options(0, 0, 6)), class(6));
    assert_eq!(ask(&mut linked, &mut with_options(0, 0, 7)), Decision::Unknown);
    // Even if the link has moved on with `eat`, the next node compares the bytes at the old
    // position.
    assert_eq!(ask(&mut both("eat", plain), &mut with_options(0, 0, 6)), class(6));
    // The next header stays the one that the link has found, unless the link has moved on to it.
    let next = "pref 1 u32 match udp src 6 ffff flowid 1:6";
    assert_eq!(ask(&mut both("", next), &mut with_options(0, 0, 6)), class(6));
    assert_eq!(ask(&mut both("eat", next), &mut with_options(0, 0, 6)), Decision::Unknown);
    // A node with a link may also have a class. Packets that match the node, but no node of the
    // linked table, get this class.
    let mut linked = both("flowid 1:4", plain);
    assert_eq!(ask(&mut linked, &mut with_options(0, 0, 5)), class(5));
    assert_eq!(ask(&mut linked, &mut with_options(0, 0, 6)), class(4));
    // If the node's action says `continue`, the next node is asked.
    let mut linked = both("action continue", plain);
    assert_eq!(ask(&mut linked, &mut with_options(0, 0, 6)), class(6));
    // A key beyond the end of the packet ends the search in the whole preference, even if the key
    // is in a linked table.
    for key in ["u32 0 0 at 200", "u8 0 0 at 200"] {
        let mut linked = filters(&[
            "pref 1 handle 1: u32 divisor 1",
            &format!("pref 1 u32 ht 1: match {key} flowid 1:5"),
            "pref 1 u32 match u32 0 0 link 1:",
            "pref 1 u32 match u32 0 0 flowid 1:6",
            "pref 2 matchall classid 1:7",
        ]);
        assert_eq!(ask(&mut linked, &mut with_options(0, 0, 5)), class(7), "{key}");
    }
    for leads in ["hashkey mask ff at 200", "offset at 200 mask f"] {
        let mut linked = filters(&[
            "pref 1 handle 1: u32 divisor 1",
            "pref 1 u32 ht 1: match u32 0 0 flowid 1:5",
            &format!("pref 1 u32 match u32 0 0 link 1: {leads}"),
            "pref 1 u32 match u32 0 0 flowid 1:6",
            "pref 2 matchall classid 1:7",
        ]);
        assert_eq!(ask(&mut linked, &mut with_options(0, 0, 5)), class(7), "{leads}");
    }
    // The search goes on after a link to a table without nodes, and after a node that has neither a
    // link nor a class.
    let mut linked = filters(&[
        "pref 1 handle 1: u32 divisor 1",
        "pref 1 u32 match u32 0 0 link 1:",
        "pref 1 u32 match u32 0 0 flowid 1:6",
    ]);
    assert_eq!(ask(&mut linked, &mut with_options(0, 0, 5)), class(6));
    let mut nowhere =
        filters(&["pref 1 u32 match u32 0 0 offset plus 4", "pref 2 matchall classid 1:2"]);
    assert_eq!(ask(&mut nowhere, &mut with_options(0, 0, 5)), class(2));
}

/// If a link moves on to the end of the packet or beyond it, the linked table is not searched.
#[test]
fn the_end_of_a_packet_is_no_header() {
    // The link moves on 40 bytes from the network header, to byte 54 of the frame, so a frame of 54
    // bytes or less ends at the new position or before it.
    let lines = |node: &str| {
        [
            "pref 1 handle 1: u32 divisor 1".to_owned(),
            "pref 1 u32 ht 1: match u32 0 0 at -4 flowid 1:5".to_owned(),
            format!("pref 1 u32 match u32 0 0 link 1: offset plus 40 eat {node}"),
            "pref 1 u32 match u32 0 0 flowid 1:6".to_owned(),
        ]
    };
    let short = |node: &str, len: usize| {
        let lines = lines(node);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let mut frame = v4(17, &[], &ports(1, 2));
        frame.resize(len, 0);
        ask(&mut try_filters(&lines).expect("correct lines"), &mut packet(&frame))
    };
    assert_eq!((short("", 54), short("", 55)), (class(6), class(5)));
    assert_eq!((short("flowid 1:4", 54), short("flowid 1:4", 55)), (class(4), class(5)));
    assert_eq!(short("", 53), class(6));
}

/// With `eat`, each link moves on from where the link before it has moved to.
#[test]
fn moves_add_up() {
    // The first link moves on to the end of the IP header. In table 1, the second byte of an option
    // says how far the next link moves on.
    let lines = |eat: &str| {
        [
            "pref 1 handle 1: u32 divisor 1".to_owned(),
            "pref 1 handle 2: u32 divisor 1".to_owned(),
            "pref 1 u32 match u32 0 0 link 1: offset plus 20 eat".to_owned(),
            format!("pref 1 u32 ht 1: match u8 7 ff at 0 link 2: offset at 0 mask 0xff {eat}"),
            "pref 1 u32 ht 2: match udp src 5 ffff flowid 1:5".to_owned(),
            "pref 1 u32 ht 2: match u16 6 ffff at 0 flowid 1:6".to_owned(),
        ]
    };
    for words in 1..=9_u8 {
        let mut option = vec![7, 4 * words];
        option.resize(4 * usize::from(words), 0);
        for (eat, port, expected) in [
            ("", 5, class(5)),
            ("", 6, Decision::Unknown),
            // With `eat`, keys without `nexthdr` also count from where the link has moved to.
            ("eat", 5, class(5)),
            ("eat", 6, class(6)),
        ] {
            let lines = lines(eat);
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let mut pkt = packet(&v4(17, &option, &ports(port, 9)));
            assert_eq!(ask(&mut filters(&lines), &mut pkt), expected, "{words}, {eat}, {port}");
        }
    }
    // The second link computes its hash from bytes at the position to which the first has moved on.
    let mut hashed = filters(&[
        "pref 1 handle 1: u32 divisor 1",
        "pref 1 handle 2: u32 divisor 16",
        "pref 1 u32 match u32 0 0 link 1: offset plus 20 eat",
        "pref 1 u32 ht 1: match u32 0 0 link 2: hashkey mask f0000 at 0",
        "pref 1 u32 ht 2:a: match u32 0 0 flowid 1:5",
    ]);
    assert_eq!(ask(&mut hashed, &mut packet(&v4(17, &[], &ports(0x123a, 9)))), class(5));
    assert_eq!(ask(&mut hashed, &mut packet(&v4(17, &[], &ports(0x12a3, 9)))), Decision::Unknown);
}
