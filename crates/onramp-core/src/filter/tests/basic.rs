//! Tests of the filter `basic`: matches alone and in expressions (`tc-ematch(8)`), how they are
//! evaluated, shown and refused.

use onramp_queue::Packet;
use proptest::prelude::*;

use super::tools::{TEXT, are_wrong, json, ports, tagged, text, v4};
use super::{Decision, ask, class, filters, packet};
use crate::Setup;
use crate::base::show::Out;

/// Returns a UDP packet from 10.1.2.3, port 0x1234, to 10.9.8.7, port 0xfedc.
fn udp() -> Packet {
    let mut pkt = packet(&v4(17, &[], &ports(0x1234, 0xfedc)));
    (pkt.priority, pkt.mark) = (0x0001_0203, 0xf000_000f);
    pkt
}

fn holds(expression: &str, mut pkt: Packet) -> bool {
    let mut filters = filters(&[&format!("basic match '{expression}' classid 1:1")]);
    ask(&mut filters, &mut pkt) == class(1)
}

#[test]
fn bytes_are_compared() {
    // A position in the packet, and the number at this position. The frame has 54 bytes; the IP
    // header begins at byte 14.
    let places: &[(&str, u32)] = &[
        ("u8 at 9", 17),
        ("u8 at 9 layer network", 17),
        ("u8 at 9 layer 1", 17),
        ("u16 at 12 layer link", 0x0800),
        ("u16 at 12 layer 0", 0x0800),
        ("u16 at 0 layer transport", 0x1234),
        ("u16 at 2 layer tcp", 0xfedc),
        ("u16 at 2 layer 2", 0xfedc),
        ("u32 at 12", 0x0a01_0203),
        ("u32 at 0 layer 2", 0x1234_fedc),
        ("u8 at -1 layer network", 0),
        ("u16 at -2 layer network", 0x0800),
        ("u32 at 12 mask 0xff00", 0x0200),
        ("u32 at 12 mask 0xffffffff", 0x0a01_0203),
        // A mask of zero means that all bits are compared.
        ("u32 at 12 mask 0", 0x0a01_0203),
        ("u8 at 1 mask 0x39", 0x39),
        ("u16 at 0 layer 2 trans", 0x3412),
        ("u32 at 12 trans", 0x0302_010a),
        ("u32 at 12 trans mask 0xff", 0x0a),
        ("u8 at 9 trans", 17),
    ];
    for (place, number) in places {
        for other in [number.saturating_sub(1), *number, number + 1] {
            for (op, expected) in [
                ("eq", *number == other),
                ("=", *number == other),
                ("lt", *number < other),
                ("<", *number < other),
                ("gt", *number > other),
                (">", *number > other),
            ] {
                let text = format!("cmp({place} {op} {other})");
                assert_eq!(holds(&text, udp()), expected, "{text}");
            }
        }
    }
    // A number beyond the end of the packet is neither equal nor less nor greater, so no comparison
    // with it is true.
    for (place, is_there) in [
        ("u8 at 39", true),
        ("u8 at 40", false),
        ("u16 at 38", true),
        ("u16 at 39", false),
        ("u32 at 36", true),
        ("u32 at 37", false),
        ("u8 at -14", true),
        ("u8 at -15", false),
        ("u8 at 19 layer 2", true),
        ("u8 at 20 layer 2", false),
    ] {
        let any = ["eq 0", "gt 0"].iter().any(|op| holds(&format!("cmp({place} {op})"), udp()));
        assert_eq!(any, is_there, "{place}");
    }
    // A packet that is not IP has no transport header, so no position in that header matches.
    let mut arp = v4(17, &[], &[0; 20]);
    arp[13] = 6;
    assert!(!holds("cmp(u8 at 0 layer 2 eq 0)", packet(&arp)));
    assert!(!holds("nbyte(x at 0 layer 2)", packet(&arp)));
}

#[test]
fn what_is_known_of_a_packet() {
    let mut tag = packet(&tagged(&v4(17, &[], &ports(1, 2)), 0x8100, 5, 0x123));
    (tag.priority, tag.mark) = (0x0001_0203, 0xf000_000f);
    for (object, number) in [
        ("priority", Some(0x0001_0203)),
        ("priority shift 8", Some(0x0102)),
        ("priority shift 16 mask 0xff", Some(1)),
        ("priority mask 0xff shift 4", Some(0x20)),
        ("nf_mark", Some(0xf000_000f)),
        ("fwmark mask 0xff", Some(0x0f)),
        ("fwmark shift 31", Some(1)),
        // `meta(protocol)` is the protocol's two bytes as on the wire (08 00 for IPv4), read as a
        // little-endian number.
        ("protocol", Some(0x0008)),
        ("pkt_len", Some(54)),
        ("data_len", Some(0)),
        ("mac_len", Some(0)),
        ("pkt_type", Some(0)),
        ("tc_index", Some(0)),
        ("vlan", None),
        ("77", Some(77)),
        ("0x10", Some(16)),
    ] {
        let number: Option<u32> = number;
        for other in [0, 1, 15, 16, 17, 54, 77, 0x20, 0x0102, 0x0001_0203, 0xf000_000f] {
            for (op, expected) in [
                ("eq", number.is_some_and(|number| number == other)),
                ("lt", number.is_some_and(|number| number < other)),
                ("gt", number.is_some_and(|number| number > other)),
            ] {
                let text = format!("meta({object} {op} {other})");
                assert_eq!(holds(&text, udp()), expected, "{text}");
                // A comparison with `eq` also holds if the operands are exchanged.
                if op == "eq" {
                    let text = format!("meta({other} {op} {object})");
                    assert_eq!(holds(&text, udp()), expected, "{text}");
                }
            }
        }
    }
    assert!(holds("meta(vlan eq 0xa123)", tag.duplicate()));
    assert!(holds("meta(vlan mask 0xfff eq 0x123)", tag.duplicate()));
    assert!(holds("meta(vlan shift 13 eq 5)", tag.duplicate()));
    assert!(holds("meta(protocol eq 0x81)", tag));
}

#[test]
fn strings_of_bytes() {
    let mut bytes = v4(17, &[], &ports(1, 2));
    bytes.extend(b"abc-def");
    let pkt = || packet(&bytes);
    // The text begins after headers of 14 + 20 + 20 bytes, so it is 40 bytes after the start of the
    // network header, and 20 bytes after the start of the transport header.
    for (text, expected) in [
        ("nbyte(abc at 40)", true),
        ("nbyte(abc at 40 layer 1)", true),
        ("nbyte(abc at 20 layer transport)", true),
        ("nbyte(abc layer link at 54)", true),
        ("nbyte(abc-def at 40)", true),
        ("nbyte(abc-def- at 40)", false),
        ("nbyte(def at 44)", true),
        ("nbyte(de at 45)", false),
        ("nbyte(abd at 40)", false),
        ("nbyte(bbc at 40)", false),
        ("nbyte(abc at 41)", false),
        ("nbyte(a at -15)", false),
        ("nbyte(E at 0)", true),
        ("u32(u32 0x0a010203 0xffffffff at 12)", true),
        ("u32(u32 0x0a010204 0xffffffff at 12)", false),
        ("u32(u16 0x0004 0x0007 at 14)", false),
        ("u32(u16 0x0003 0x0007 at 14)", true),
        ("u32(u8 17 0xff at 9)", true),
        ("u32(u8 17 0xff at 200)", false),
    ] {
        assert_eq!(holds(text, pkt()), expected, "{text}");
    }
}

/// A random expression whose value is known.
#[derive(Clone, Debug)]
enum Part {
    Leaf(bool),
    Not(Box<Self>),
    /// Parts of an expression in a row. The truth value with each part says whether the operator
    /// after the part is `and` (true) or `or` (false).
    Row(Vec<(Self, bool)>),
}

fn part() -> impl Strategy<Value = Part> {
    any::<bool>().prop_map(Part::Leaf).prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            inner.clone().prop_map(|part| Part::Not(Box::new(part))),
            prop::collection::vec((inner, any::<bool>()), 1..5).prop_map(Part::Row),
        ]
    })
}

impl Part {
    fn text(&self) -> String {
        match self {
            Self::Leaf(true) => "cmp(u8 at 9 eq 17)".into(),
            Self::Leaf(false) => "cmp(u8 at 9 eq 6)".into(),
            Self::Not(part) => format!("not {}", part.text()),
            Self::Row(parts) => {
                let mut text = "( ".to_owned();
                for (place, (part, _)) in parts.iter().enumerate() {
                    if place > 0 {
                        text += if parts[place - 1].1 { " and " } else { " or " };
                    }
                    text += &part.text();
                }
                text + " )"
            }
        }
    }

    fn value(&self) -> bool {
        match self {
            Self::Leaf(value) => *value,
            Self::Not(part) => !part.value(),
            Self::Row(parts) => row(parts),
        }
    }
}

/// Returns the value of a row of parts: `a and REST` is false if a is false, and otherwise the
/// value of REST; `a or REST` is true if a is true, and otherwise the value of REST.
fn row(parts: &[(Part, bool)]) -> bool {
    let (part, and) = &parts[0];
    if parts.len() == 1 {
        return part.value();
    }
    if *and { part.value() && row(&parts[1..]) } else { part.value() || row(&parts[1..]) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn expressions_mean_what_the_manual_says(part in part()) {
        prop_assert_eq!(holds(&part.text(), udp()), part.value(), "{}", part.text());
    }
}

#[test]
fn words_between_matches() {
    let (yes, no) = ("cmp(u8 at 9 eq 17)", "cmp(u8 at 9 eq 6)");
    for (text, expected) in [
        (format!("{yes} AND {no}"), false),
        (format!("{yes} && {yes}"), true),
        (format!("{no} OR {yes}"), true),
        (format!("{no} || {no}"), false),
        (format!("NOT {no}"), true),
        (format!("! {yes}"), false),
        (format!("not not {yes}"), true),
        (format!("not NOT ! {yes}"), false),
    ] {
        assert_eq!(holds(&text, udp()), expected, "{text}");
    }
    // A filter without an expression matches every packet. If two expressions are given, the last
    // one counts.
    assert_eq!(ask(&mut filters(&["basic classid 1:1"]), &mut udp()), class(1));
    let twice = format!("basic match '{no}' m '{yes}' classid 1:1");
    assert_eq!(ask(&mut filters(&[&twice]), &mut udp()), class(1));
    let twice = format!("basic match '{yes}' m '{no}' classid 1:1");
    assert_eq!(ask(&mut filters(&[&twice]), &mut udp()), Decision::Unknown);
}

#[test]
fn expressions_are_shown() {
    for (expression, shown) in [
        ("cmp(u8 at 9 eq 17)", "  cmp(u8 at 9 layer 1 eq 17)\n"),
        ("cmp(u16 at -2 layer link < 0x10)", "  cmp(u16 at -2 layer 0 lt 16)\n"),
        (
            "cmp(u32 at 4 layer tcp mask 0xff00 trans > 5)",
            "  cmp(u32 at 4 layer 2 mask 0xff00 trans gt 5)\n",
        ),
        ("cmp(u32 at 4 mask 0 eq 5)", "  cmp(u32 at 4 layer 1 eq 5)\n"),
        ("u32(u16 0x22 0xffff at nexthdr+4)", "  u32(00220000/ffff0000 at nexthdr+4)\n"),
        ("u32(u8 5 0xff at -4)", "  u32(05000000/ff000000 at -4)\n"),
        ("meta(priority eq 5)", "  meta(priority eq 5)\n"),
        ("meta(fwmark shift 4 mask 0xf0 gt 5)", "  meta(nf_mark shift 4 mask 0x000000f0 gt 5)\n"),
        ("meta(nf_mark mask 1 lt 0x10)", "  meta(nf_mark mask 0x00000001 lt 16)\n"),
        ("meta(protocol shift 1 eq pkt_len)", "  meta(protocol shift 1 eq pkt_len)\n"),
        ("meta(vlan eq tc_index)", "  meta(vlan eq tc_index)\n"),
        ("meta(pkt_type eq data_len)", "  meta(pkt_type eq data_len)\n"),
        ("meta(mac_len mask 0 shift 0 eq 0)", "  meta(mac_len eq 0)\n"),
        ("nbyte(ab at 3 layer 2)", "  nbyte(61 62 \"ab\" at 3 layer 2)\n"),
        ("nbyte(\"ab  c\" at 3)", "  nbyte(61 62 20 20 63 \"ab  c\" at 3 layer 1)\n"),
        // In the text of `nbyte`, a byte that is no letter, digit, sign or space is shown as a dot.
        (r#"nbyte("\x41\102\n\q" at 0)"#, "  nbyte(41 42 0a 71 \"AB.q\" at 0 layer 1)\n"),
        ("nbyte(aé~ at -3)", "  nbyte(61 c3 a9 7e \"a..~\" at -3 layer 1)\n"),
        ("not cmp(u8 at 9 eq 17)", "  NOT cmp(u8 at 9 layer 1 eq 17)\n"),
        ("not not cmp(u8 at 9 eq 17)", "  cmp(u8 at 9 layer 1 eq 17)\n"),
        (
            "meta(vlan eq 1) and not meta(vlan eq 2) or meta(vlan eq 3)",
            "  meta(vlan eq 1)\n  AND NOT meta(vlan eq 2)\n  OR meta(vlan eq 3)\n",
        ),
        ("(meta(vlan eq 1))", "  (\n    meta(vlan eq 1)\n  ) "),
        (
            "not (meta(vlan eq 1) or (meta(vlan eq 2)) and meta(vlan eq 3)) and meta(vlan eq 4) or \
             meta(vlan eq 5)",
            "  NOT (\n    meta(vlan eq 1)\n    OR (\n      meta(vlan eq 2)\n    ) AND \
             meta(vlan eq 3)\n  ) AND meta(vlan eq 4)\n  OR meta(vlan eq 5)\n",
        ),
    ] {
        let line = format!("pref 1 basic match '{expression}' classid 1:1");
        assert_eq!(text(&line), format!("handle 0x1 flowid 1:1 \n{shown}"), "{expression}");
        let flat = shown.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let value = serde_json::Value::from(flat);
        let expected = format!(r#"{{"handle":"1","flowid":"1:1","ematch":{value}}}"#);
        assert_eq!(json(&line), expected, "{expression}");
    }
    assert_eq!(text("pref 1 handle 0x2f basic classid 1:1"), "handle 0x2f flowid 1:1 ");
    assert_eq!(json("pref 1 handle 0x2f basic classid 1:1"), r#"{"handle":"2f","flowid":"1:1"}"#);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn what_is_wrong_with_an_expression() {
    let tests = "expected cmp, u32, meta, nbyte, not or `(`";
    let objects = "expected a number, priority, nf_mark, fwmark, protocol, pkt_len, pkt_type, \
                   data_len, mac_len, vlan or tc_index";
    let layer = "expected link, network, transport or 0 to 2";
    let op = "expected eq, lt or gt";
    let string = "expected a string of at least one byte; \\OCTAL is a byte up to \\377";
    let place = "expected an offset, -65535 to 65535";
    for (expression, code, key, value, why) in [
        ("", 1, "ematch", "classid", tests),
        ("foo(1)", 1, "ematch", "foo", tests),
        ("cmp", 1, "cmp", "classid", "expected `(`"),
        ("cmp u8 at 0 eq 1", 1, "cmp", "u8", "expected `(`"),
        ("cmp(u64 at 0 eq 1)", 1, "cmp", "u64", "expected u8, u16 or u32"),
        ("cmp(u8 at x eq 1)", 1, "at", "x", place),
        ("cmp(u8 at 65536 eq 1)", 1, "at", "65536", place),
        ("cmp(u8 at -65536 eq 1)", 1, "at", "-65536", place),
        ("cmp(u8 at 0 layer 3 eq 1)", 1, "layer", "3", layer),
        ("cmp(u8 at 0 mask x eq 1)", 1, "mask", "x", "expected a whole number, 0 to 4294967295"),
        ("cmp(u8 at 0 ne 1)", 1, "ematch", "ne", op),
        ("cmp(u8 at 0 eq x)", 1, "cmp", "x", "expected a whole number, 0 to 4294967295"),
        ("cmp(u8 at 0)", 1, "cmp", "", "expected eq, lt or gt, and a number"),
        ("cmp(u8 eq 1)", 1, "cmp", ")", "expected at OFFSET"),
        ("nbyte(abc)", 1, "nbyte", ")", "expected at OFFSET"),
        (r#"nbyte("" at 0)"#, 1, "nbyte", r#"\"\""#, string),
        (r#"nbyte("a\400" at 0)"#, 1, "nbyte", r#"\"a\\400\""#, string),
        (r#"nbyte("a\9" at 0)"#, 1, "nbyte", r#"\"a\\9\""#, string),
        ("nbyte(\"a b\" c at 0)", 1, "nbyte", "c", "expected at OFFSET"),
        ("nbyte(abc at 0 layer x)", 1, "layer", "x", layer),
        ("nbyte(abc at 65536)", 1, "at", "65536", place),
        ("nbyte(abc at 0 mask 1)", 1, "ematch", "mask", "expected `)`"),
        ("u32(u8 1 0xff)", 1, "u8", ")", "expected at OFFSET after the mask"),
        ("u32(u8 1 ff at 0)", 1, "u8", "ff", "expected a value and a mask, such as 0x1122 0xffff"),
        ("u32(u8 256 0xff at 0)", 1, "u8", "256", "expected a whole number, 0 to 255"),
        ("u32(u64 1 1 at 0)", 1, "match", "u64", "expected u8, u16 or u32"),
        ("u32(u32 1 1 at 1)", 1, "u32 at", "1", "expected a multiple of 4"),
        ("u32(u8 1 1 at 0 5)", 1, "ematch", "5", "expected `)`"),
        ("meta(foo eq 1)", 1, "meta", "foo", objects),
        ("meta(priority ne 1)", 1, "ematch", "ne", op),
        ("meta(priority shift 32 eq 1)", 1, "shift", "32", "expected a whole number, 0 to 31"),
        ("meta(priority eq 1 eq 2)", 1, "ematch", "eq", "expected `)`"),
        ("meta(random eq 1)", 2, "meta", "random", "packets here do not have this property"),
        ("meta(dev eq 1)", 2, "meta", "dev", "packets here do not have this property"),
        ("meta(rtclassid eq 1)", 2, "meta", "rtclassid", "packets here do not have this property"),
        ("meta(rt_iif eq 1)", 2, "meta", "rt_iif", "packets here do not have this property"),
        ("meta(sk_prio eq 1)", 2, "meta", "sk_prio", "packets here do not have this property"),
        ("meta(loadavg_0 eq 1)", 2, "meta", "loadavg_0", "packets here do not have this property"),
        ("canid(1)", 2, "ematch", "canid", tests),
        ("ipset(x src)", 2, "ematch", "ipset", tests),
        ("ipt(x)", 2, "ematch", "ipt", tests),
        ("text(x)", 2, "ematch", "text", tests),
        ("not", 1, "ematch", "classid", tests),
        ("(cmp(u8 at 0 eq 1)", 1, "ematch", "classid", "expected `)`"),
        ("cmp(u8 at 0 eq 1) and", 1, "ematch", "classid", tests),
    ] {
        let at = "filter basic";
        let said = match value {
            "" => format!("{at}: \"{key}\": {why}"),
            value => format!("{at}: illegal \"{key}\" \"{value}\": {why}"),
        };
        are_wrong(&[(&format!("basic match '{expression}' classid 1:1"), code, &said)]);
    }
    // 31 nested parentheses give 32 nested expressions, the most that are allowed.
    let deep = |depth: usize| {
        let (open, close) = ("( ".repeat(depth), " )".repeat(depth));
        format!("basic match '{open}cmp(u8 at 9 eq 17){close}' classid 1:1")
    };
    assert_eq!(ask(&mut filters(&[&deep(31)]), &mut udp()), class(1));
    let said = "filter basic: illegal \"ematch\" \"(\": parentheses can be nested at most 32 deep";
    are_wrong(&[
        (&deep(32), 1, said),
        ("basic", 2, "filter basic: expected a class or an action"),
        (
            "basic foo",
            1,
            "filter basic: unexpected \"foo\": basic takes match, classid, action, police",
        ),
        ("basic match 'cmp(u8 at 0 eq 1", 255, "filter basic: \"ematch\": expected `)`"),
    ]);
}

/// A string in quotes may have any byte. The words of the filter, which a configuration, a batch or
/// a shell takes apart, mean the same filter.
#[test]
fn strings_are_written_so_that_they_are_read_again() {
    for (typed, bytes) in [
        (r#"'nbyte("ab c" at 0)'"#, &b"ab c"[..]),
        (r#"'nbyte("a\tb  )(" at 0)'"#, b"a\tb  )("),
        (r#""nbyte(\"ab \\\" at 0)""#, b"ab \\"),
        (r#"nbyte("it's \043 \"x\"" at 0)"#, b"it's # \"x\""),
        (r#"nbyte ( '"\\ \012"' at 0 )"#, b"\\ \n"),
        (r#"'nbyte("ab" at 0)'"#, b"ab"),
        ("nbyte(ab at 0)", b"ab"),
    ] {
        let mut setup = Setup::default();
        setup.apply("qdisc add dev e root handle 1: prio").expect("a qdisc");
        let line = format!("filter add dev e parent 1: pref 1 basic match {typed} classid 1:1");
        setup.change(&line).expect(typed);
        let lines = setup.lines();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x} ")).collect();
        let mut out = Out::new(TEXT);
        setup.show_filters("dev e parent 1:", &mut out).expect("filters");
        let shown = out.finish();
        assert!(shown.contains(&format!("nbyte({hex}\"")), "{typed}: {shown}");
        let mut again = Setup::default();
        lines.iter().for_each(|line| again.apply(line).expect(line));
        assert_eq!(again.lines(), lines, "{typed}");
        let mut out = Out::new(TEXT);
        again.show_filters("dev e parent 1:", &mut out).expect("filters");
        assert_eq!(out.finish(), shown, "{typed}");
    }
}
