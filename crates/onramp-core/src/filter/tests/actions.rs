//! Tests of actions: how they are read and shown, what they do, and what they count
//! (`tc-actions(8)`, `tc-skbedit(8)`).

use onramp_queue::Packet;

use super::super::Filters;
use super::tools::{TEXT, are_wrong, ports, shown, text, v4, wrong};
use super::{Decision, ask, class, filters, from, packet};
use crate::base::show::Style;

/// Returns how `tc filter show` shows a `matchall` filter with these actions.
fn actions(words: &str, style: Style) -> String {
    let out = shown(&[&format!("pref 1 matchall {words}")], style);
    let head = match style.json {
        true => r#"{"handle":1,"not_in_hw":true,"#,
        false => "handle 0x1 \n  not_in_hw",
    };
    out.strip_prefix(head).unwrap_or_else(|| panic!("{out}")).to_owned()
}

const JSON: Style = Style { json: true, ..TEXT };
const STATS: Style = Style { stats: true, ..TEXT };

/// Returns how `tc filter show` shows one `gact` action without the option `random`.
fn plain(order: u32, control: &str, index: u32) -> String {
    format!(
        "\n\taction order {order}: gact action {control}\n\t random type none pass val 0\n\
         \t index {index} ref 1 bind 1\n"
    )
}

#[test]
fn controls_are_shown() {
    for (word, name, object) in [
        ("ok", "pass", r#"{"type":"pass"}"#),
        ("pass", "pass", r#"{"type":"pass"}"#),
        ("drop", "drop", r#"{"type":"drop"}"#),
        ("shot", "drop", r#"{"type":"drop"}"#),
        ("pipe", "pipe", r#"{"type":"pipe"}"#),
        ("continue", "continue", r#"{"type":"continue"}"#),
        ("reclassify", "reclassify", r#"{"type":"reclassify"}"#),
        ("goto chain 268435455", "goto chain 268435455", r#"{"type":"goto","chain":268435455}"#),
        ("jump 65535", "jump 65535", r#"{"type":"jump","jump":65535}"#),
    ] {
        let expected = plain(1, name, 1);
        for before in ["action", "a", "act", "action gact", "action gact action"] {
            assert_eq!(actions(&format!("{before} {word}"), TEXT), expected, "{before} {word}");
        }
        let expected = format!(
            concat!(
                r#""actions":[{{"order":1,"kind":"gact","control_action":{},"#,
                r#""prob":{{"random_type":"none","control_action":{{"type":"pass"}},"val":0}},"#,
                r#""index":1,"ref":1,"bind":1}}]}}"#
            ),
            object
        );
        assert_eq!(actions(&format!("action {word}"), JSON), expected, "{word}");
    }
    // Actions that follow each other are separated by the word `action`, which may be left out
    // before a control such as `drop`.
    for words in
        ["action pipe action drop", "action pipe drop", "action gact pipe action gact drop"]
    {
        let both = [plain(1, "pipe", 1), plain(2, "drop", 2)].concat();
        assert_eq!(actions(words, TEXT), both, "{words}");
    }
}

#[test]
fn chance_is_shown() {
    for (words, random, object) in [
        (
            "pipe random determ drop 10",
            "determ drop val 10",
            r#""random_type":"determ","control_action":{"type":"drop"},"val":10"#,
        ),
        (
            "pipe random netrand jump 2 1",
            "netrand jump 2 val 1",
            r#""random_type":"netrand","control_action":{"type":"jump","jump":2},"val":1"#,
        ),
        // The number 0 at the end of `random` means 1: the control applies to every packet.
        (
            "pipe random determ ok 0",
            "determ pass val 1",
            r#""random_type":"determ","control_action":{"type":"pass"},"val":1"#,
        ),
    ] {
        let expected = format!(
            "\n\taction order 1: gact action pipe\n\t random type {random}\n\
             \t index 7 ref 1 bind 1\n"
        );
        assert_eq!(actions(&format!("action {words} index 7"), TEXT), expected, "{words}");
        let json = actions(&format!("action {words}"), JSON);
        assert!(json.contains(&format!(r#""prob":{{{object}}}"#)), "{words}: {json}");
    }
}

#[test]
fn what_every_action_may_have() {
    let all = "index 4294967295 cookie A0b1 no_percpu hw_stats delayed";
    let behind = "\tcookie a0b1\n\tno_percpu\n\thw_stats delayed\n";
    let stats = "\tAction statistics:\n\tSent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0) \n\
                 \tbacklog 0b 0p requeues 0\n";
    let object = r#""cookie":"a0b1","no_percpu":true,"hw_stats":["delayed"]}]}"#;
    for (words, shown) in [
        (
            "action drop",
            "gact action drop\n\t random type none pass val 0\n\t index 4294967295 ref 1 bind 1\n",
        ),
        ("action skbedit mark 1", "skbedit  mark 1 pipe\n\t index 4294967295 ref 1 bind 1\n"),
        (
            "action police mtu 500",
            " police 0xffffffff rate 0bit burst 0b mtu 500b action reclassify overhead 0b \n\
             \tref 1 bind 1 \n",
        ),
    ] {
        let line = format!("{words} {all}");
        let head = format!("\n\taction order 1: {shown}");
        assert_eq!(actions(&line, TEXT), format!("{head}{behind}"), "{line}");
        let counted = shown_with_stats(&line);
        assert_eq!(counted, format!("{head}{stats}{behind}"), "{line}");
        let json = actions(&line, JSON);
        assert!(json.ends_with(object), "{json}");
    }
    for name in ["any", "immediate", "delayed", "disabled"] {
        assert!(
            actions(&format!("action ok hw_stats {name}"), TEXT)
                .ends_with(&format!("\thw_stats {name}\n"))
        );
    }
    for cookie in ["00", "0123456789abcdef0123456789abcdef"] {
        assert!(
            actions(&format!("action ok cookie {cookie}"), TEXT)
                .ends_with(&format!("\tcookie {cookie}\n"))
        );
    }
    let counted = shown(&["pref 1 matchall action ok"], Style { json: true, ..STATS });
    assert!(counted.contains(concat!(
        r#""stats":{"bytes":0,"packets":0,"drops":0,"overlimits":0,"requeues":0,"#,
        r#""backlog":0,"qlen":0}"#
    )));
}

fn shown_with_stats(words: &str) -> String {
    let out = shown(&[&format!("pref 1 matchall {words}")], STATS);
    let rest = out.strip_prefix("handle 0x1 \n  not_in_hw (rule hit 0)");
    rest.unwrap_or_else(|| panic!("{out}")).to_owned()
}

#[test]
fn edits_are_shown() {
    for (words, shown, object) in [
        ("priority 1:20", " priority 1:20 pipe", r#""priority":"1:20","#),
        ("priority 5", " priority :5 pipe", r#""priority":":5","#),
        ("priority 0", " priority none pipe", r#""priority":"none","#),
        ("priority ffff:ffff", " priority root pipe", r#""priority":"root","#),
        ("priority ffff:fffe", " priority ffff:fffe pipe", r#""priority":"ffff:fffe","#),
        ("mark 5", " mark 5 pipe", r#""mark":5,"#),
        ("mark 0x10/0xf0", " mark 16/0xf0 pipe", r#""mark":16,"mask":"f0","#),
        ("mark 4294967295/4294967295", " mark 4294967295 pipe", r#""mark":4294967295,"#),
        ("queue_mapping 0", "queue_mapping 0 pipe", r#""queue_mapping":0,"#),
        ("queue_mapping 65535", "queue_mapping 65535 pipe", r#""queue_mapping":65535,"#),
        ("inheritdsfield", " inheritdsfield pipe", r#""inheritdsfield":null,"#),
        (
            "inheritdsfield mark 1 priority 1:2 queue_mapping 3 drop",
            "queue_mapping 3 priority 1:2 mark 1 inheritdsfield drop",
            r#""queue_mapping":3,"priority":"1:2","mark":1,"inheritdsfield":null,"#,
        ),
        ("mark 1 goto chain 3", " mark 1 goto chain 3", r#""mark":1,"#),
    ] {
        let expected = format!("\n\taction order 1: skbedit {shown}\n\t index 1 ref 1 bind 1\n");
        assert_eq!(actions(&format!("action skbedit {words}"), TEXT), expected, "{words}");
        let json = actions(&format!("action skbedit {words}"), JSON);
        let start =
            format!(r#""actions":[{{"order":1,"kind":"skbedit",{object}"control_action":{{"#);
        assert!(json.starts_with(&start), "{json}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn what_is_wrong_with_an_action() {
    let controls = "expected an action: ok, pass, drop, shot, pipe, reclassify, continue, goto \
                    chain N, jump N, police, skbedit";
    let edits = "expected priority, mark, queue_mapping or inheritdsfield";
    let cookie = "expected 1 to 16 bytes, two hexadecimal digits each";
    let stats = "expected any, immediate, delayed, disabled";
    let whole = |max: u32| format!("expected a whole number, 0 to {max}");
    let (long, longer) = ("a".repeat(33), "a".repeat(34));
    let too_long = [format!("ok cookie {long}"), format!("ok cookie {longer}")];
    for (words, code, key, value, why) in [
        ("", 255, "action", "", controls.to_owned()),
        ("colour", 255, "action", "colour", controls.to_owned()),
        ("gact", 255, "action", "", controls.to_owned()),
        (
            "ok random determ goto chain 5 2",
            2,
            "random",
            "goto",
            "expected another action than goto chain".to_owned(),
        ),
        ("gact colour", 255, "action", "colour", controls.to_owned()),
        ("gact police", 255, "action", "police", controls.to_owned()),
        ("goto 5", 1, "goto", "5", "expected chain".into()),
        ("goto", 1, "goto", "", "expected chain".into()),
        ("goto chain 268435456", 1, "goto chain", "268435456", whole(268_435_455)),
        ("jump 65536", 1, "jump", "65536", whole(65_535)),
        ("jump", 255, "jump", "", whole(65_535)),
        ("ok random", 255, "random", "", "expected netrand or determ".into()),
        ("ok random often drop 5", 1, "random", "often", "expected netrand or determ".into()),
        ("ok random determ 5", 255, "action", "5", controls.to_owned()),
        ("ok random determ drop", 255, "random", "", whole(10_000)),
        ("ok random determ drop 10001", 1, "random", "10001", whole(10_000)),
        ("ok index 4294967296", 1, "index", "4294967296", whole(u32::MAX)),
        ("ok cookie", 255, "cookie", "", cookie.into()),
        ("ok cookie a", 1, "cookie", "a", cookie.into()),
        ("ok cookie abc", 1, "cookie", "abc", cookie.into()),
        ("ok cookie 0x", 1, "cookie", "0x", cookie.into()),
        ("ok cookie zz", 1, "cookie", "zz", cookie.into()),
        (&*too_long[0], 255, "cookie", &*long, cookie.into()),
        (&*too_long[1], 255, "cookie", &*longer, cookie.into()),
        ("ok hw_stats", 255, "hw_stats", "", stats.into()),
        ("ok hw_stats many", 1, "hw_stats", "many", stats.into()),
        (
            "ok skip_hw",
            2,
            "skip_hw",
            "",
            "it is an option of the filter: give it before the action".into(),
        ),
        (
            "ok skip_sw",
            2,
            "skip_sw",
            "",
            "it is an option of the filter: give it before the action".into(),
        ),
        ("trap", 2, "action", "trap", "no program here can take trapped packets; use drop".into()),
        ("skbedit", 255, "skbedit", "", edits.into()),
        ("skbedit colour", 1, "skbedit", "colour", edits.into()),
        ("skbedit ok", 1, "skbedit", "ok", edits.into()),
        (
            "skbedit ptype host",
            2,
            "ptype",
            "",
            "packets have no type in Onramp: leave it out".into(),
        ),
        ("skbedit queue_mapping 65536", 1, "queue_mapping", "65536", whole(65_535)),
        ("skbedit mark x", 1, "mark", "x", "expected MARK or MARK/MASK".into()),
        ("skbedit mark 1/", 1, "mark", "1/", "expected MARK or MARK/MASK".into()),
        (
            "skbedit priority x",
            1,
            "priority",
            "x",
            "expected a class such as 1:20, hexadecimal".into(),
        ),
    ] {
        let said = match value {
            "" => format!("filter matchall: \"{key}\": {why}"),
            value => format!("filter matchall: illegal \"{key}\" \"{value}\": {why}"),
        };
        are_wrong(&[(&format!("matchall action {words}"), code, &said)]);
    }
    for kind in [
        "bpf",
        "connmark",
        "csum",
        "ct",
        "ctinfo",
        "gate",
        "ife",
        "ipt",
        "mirred",
        "mpls",
        "nat",
        "pedit",
        "sample",
        "simple",
        "skbmod",
        "tunnel_key",
        "vlan",
        "xt",
    ] {
        let said =
            format!("filter matchall: illegal \"action\" \"{kind}\": not supported; {controls}");
        assert_eq!(wrong(&format!("matchall action {kind} x")), (2, said));
    }
    let many = |count: usize| format!("matchall {}", "action pipe ".repeat(count));
    assert_eq!(text(&many(32)).matches("action order").count(), 32);
    let said = "filter matchall: \"action\": a filter has at most 32 actions";
    are_wrong(&[(&many(33), 1, said)]);
    // `tc` takes an unknown word after an action for the name of another action, and exits with 255
    // instead of 1.
    let foo = "filter matchall: unexpected \"foo\": matchall takes classid, action";
    are_wrong(&[
        ("matchall action ok foo", 255, foo),
        ("matchall classid 1:1 foo", 1, foo),
        ("matchall action ok classid 1:1 foo", 1, foo),
        ("matchall classid 1:1 action ok index 5 foo", 255, foo),
    ]);
    let skip = super::try_table(&["matchall action ok skip_hw"]).expect_err("it is the filter's");
    let said = "Error: Mismatch between action and filter offload flags.";
    assert_eq!(skip.fault.kernel_text().as_deref(), Some(said));
}

/// Returns how many packets each action of the first filter has seen.
fn seen(filters: &Filters) -> Vec<u64> {
    filters.filters[0].actions.iter().map(|action| action.counters.packets).collect()
}

/// The target of a jump is counted from the filter's first action. After 32 jumps
/// (`TCA_ACT_MAX_PRIO`), the actions end.
#[test]
fn jumps_end() {
    for (words, decision, counts) in [
        ("action jump 0 action drop", class(1), vec![1, 0]),
        ("action jump 1 action drop", Decision::Drop, vec![1, 1]),
        ("action jump 2 action drop action continue", Decision::Unknown, vec![1, 0, 1]),
        ("action jump 2 action drop", class(1), vec![1, 0]),
        ("action jump 3 action drop", class(1), vec![1, 0]),
        ("action pipe action jump 1", class(1), vec![1, 32]),
        ("action pipe action pipe action jump 1", class(1), vec![1, 32, 32]),
        ("action pipe action pipe", class(1), vec![1, 1]),
        ("action ok action drop", class(1), vec![1, 0]),
        ("action reclassify", Decision::Drop, vec![17]),
        ("action goto chain 0", Decision::Drop, vec![17]),
        ("action goto chain 9", Decision::Unknown, vec![1]),
    ] {
        let mut filters = filters(&[&format!("matchall classid 1:1 {words}")]);
        assert_eq!(ask(&mut filters, &mut from(1)), decision, "{words}");
        assert_eq!(seen(&filters), counts, "{words}");
    }
}

/// A packet's classification may restart sixteen times (`max_reclassify_loop`); the next restart
/// drops the packet.
#[test]
fn beginnings_are_counted() {
    for (word, every, expected) in [
        ("reclassify", 16, class(1)),
        ("reclassify", 17, class(1)),
        ("reclassify", 18, Decision::Drop),
        ("goto chain 0", 17, class(1)),
        ("goto chain 0", 18, Decision::Drop),
    ] {
        let line = format!("matchall classid 1:1 action {word} random determ ok {every}");
        assert_eq!(ask(&mut filters(&[&line]), &mut from(1)), expected, "{word}, {every}");
    }
    // A restart may also go from one chain to another (`goto chain`), and back to the first chain
    // (`reclassify`).
    let mut chained = filters(&[
        "pref 1 matchall classid 1:1 action goto chain 5 random determ ok 2",
        "chain 4 matchall classid 1:4",
        "chain 5 pref 1 matchall action continue",
        "chain 5 pref 2 matchall action reclassify",
        "chain 6 matchall classid 1:6",
    ]);
    assert_eq!(ask(&mut chained, &mut from(1)), class(1));
    let hits: Vec<u64> = chained.specs().map(|filter| filter.hits).collect();
    assert_eq!(hits, [2, 0, 1, 1, 0]);
}

/// After an action says `continue`, the next filter of the preference is asked, except for kinds
/// that look for the one best match (`flower`, `matchall`).
#[test]
fn what_comes_after_continue() {
    let next = |kind: &str| {
        let mut filters = filters(&[
            &format!("pref 1 protocol ip {kind} classid 1:1"),
            &format!("pref 1 protocol ip {kind} classid 1:2 action continue"),
            "pref 2 matchall classid 1:9",
        ]);
        ask(&mut filters, &mut from(1))
    };
    // Of two `basic` or `bpf` filters, the filter that was added last is asked first.
    assert_eq!(next("basic"), class(1));
    assert_eq!(next("bpf bytecode '1,6 0 0 4294967295'"), class(1));
    let mut u32 = filters(&[
        "pref 1 u32 match u32 0 0 classid 1:1 action continue",
        "pref 1 u32 match u32 0 0 classid 1:2",
    ]);
    assert_eq!(ask(&mut u32, &mut from(1)), class(2));
    let mut fw = filters(&["pref 1 handle 5 fw classid 1:1 action continue", "pref 2 fw"]);
    let mut pkt = from(1);
    pkt.mark = 5;
    assert_eq!(ask(&mut fw, &mut pkt), Decision::Class(crate::base::Handle::new(0, 5)));
    let mut flower = filters(&[
        "pref 1 protocol ip flower ip_proto udp classid 1:1 action continue",
        "pref 1 protocol ip flower src_ip 10.0.0.0/8 classid 1:2",
        "pref 2 matchall classid 1:9",
    ]);
    assert_eq!(ask(&mut flower, &mut from(1)), class(9));
    // A packet that is sent came in at no device, so a filter with `indev` does not match the
    // packet and counts nothing.
    let mut indev = filters(&[
        "pref 1 u32 match u32 0 0 classid 1:1 indev e1 action ok",
        "pref 2 matchall classid 1:9",
    ]);
    assert_eq!(ask(&mut indev, &mut from(1)), class(9));
    assert_eq!(indev.specs().map(|filter| filter.hits).collect::<Vec<_>>(), [0, 0, 1]);
    let mut fw =
        filters(&["pref 1 handle 5 fw classid 1:1 indev e1", "pref 2 matchall classid 1:9"]);
    assert_eq!(ask(&mut fw, &mut pkt), class(9));
}

#[test]
fn what_actions_count() {
    let mut all = filters(&[
        "matchall classid 1:1 action skbedit mark 7/0xf queue_mapping 9 pipe action police mtu 500 \
         conform-exceed continue/pipe action ok random determ drop 2",
    ]);
    let counters = |filters: &Filters, which: usize| {
        let counters = filters.filters[0].actions[which].counters;
        (counters.packets, counters.bytes, counters.drops, counters.overlimits)
    };
    for (len, decision) in [
        (100, class(1)),
        (200, Decision::Drop),
        (501, Decision::Unknown),
        (500, class(1)),
        (300, Decision::Drop),
    ] {
        let mut pkt = Packet::new(len);
        pkt.mark = 0xff00;
        assert_eq!(ask(&mut all, &mut pkt), decision, "{len}");
        assert_eq!((pkt.mark, pkt.queue()), (0xff07, 9));
    }
    assert_eq!(counters(&all, 0), (5, 1601, 0, 0));
    assert_eq!(counters(&all, 1), (5, 1601, 0, 1));
    assert_eq!(counters(&all, 2), (4, 1100, 2, 0));
    assert_eq!(all.filters[0].hits, 5);
    // As in Linux, a policer counts the packets that it drops, but `skbedit` does not count those
    // that it drops.
    let mut police = filters(&["matchall action police mtu 500 drop"]);
    let mut edit = filters(&["matchall action skbedit mark 1 drop"]);
    for filters in [&mut police, &mut edit] {
        assert_eq!(ask(filters, &mut Packet::new(501)), Decision::Drop);
    }
    assert_eq!((counters(&police, 0), counters(&edit, 0)), ((1, 501, 1, 1), (1, 501, 0, 0)));
}

#[test]
fn packets_are_edited() {
    let edit = |words: &str, mut pkt: Packet| {
        (pkt.priority, pkt.mark) = (0x77, 0xf0f0);
        pkt.set_queue(3);
        let mut filters = filters(&[&format!("matchall action skbedit {words}")]);
        assert_eq!(ask(&mut filters, &mut pkt), Decision::Class(crate::base::Handle::default()));
        (pkt.priority, pkt.mark, pkt.queue())
    };
    // The packet's TOS byte is 0xb9, whose DSCP is 0x2e.
    let ip = || packet(&v4(17, &[], &ports(1, 2)));
    let other = || packet(&[0; 60]);
    assert_eq!(edit("priority 1:20", ip()), (0x1_0020, 0xf0f0, 3));
    assert_eq!(edit("inheritdsfield", ip()), (0x2e, 0xf0f0, 3));
    assert_eq!(edit("inheritdsfield", other()), (0x77, 0xf0f0, 3));
    assert_eq!(edit("priority 1:20 inheritdsfield", ip()), (0x2e, 0xf0f0, 3));
    assert_eq!(edit("mark 0x1234", ip()), (0x77, 0x1234, 3));
    assert_eq!(edit("mark 0x1234/0xff", ip()), (0x77, 0xf034, 3));
    assert_eq!(edit("mark 0/0xffff", ip()), (0x77, 0, 3));
    assert_eq!(edit("queue_mapping 65535", ip()), (0x77, 0xf0f0, 65_535));
}

/// `random netrand … N` chooses one of N packets on average; `random determ … N` chooses exactly
/// every N-th packet.
#[test]
fn now_and_then() {
    let dropped = |words: &str, count: usize| {
        let mut filters = filters(&[&format!("matchall classid 1:1 action ok random {words}")]);
        (0..count).map(|_| ask(&mut filters, &mut from(1)) == Decision::Drop).collect::<Vec<_>>()
    };
    for every in [1, 2, 5, 7] {
        let drops = dropped(&format!("determ drop {every}"), 40);
        for (place, dropped) in (1_usize..).zip(drops) {
            assert_eq!(dropped, place.is_multiple_of(every), "{every}: {place}");
        }
        let drops = dropped(&format!("netrand drop {every}"), 7000);
        let count = drops.iter().filter(|dropped| **dropped).count();
        // Five standard deviations of the number of packets chosen from 7,000 are at most 210.
        assert!(count.abs_diff(7000 / every) < 210, "{every}: {count}");
        assert!(every > 1 || count == 7000);
    }
}
