//! Tests of the fields that `u32` filters know by name (`tc-u32(8)`): each field lies where the RFC
//! puts it (RFC 791, 792, 8200, 4443, 768, 9293; IEEE 802.3), and is shown correctly.

use super::tools::{JSON, PRETTY, are_wrong, json, shown, text, whole, wrong};
use super::{PLACE, ask, class, filters, from, try_table};
use crate::base::show::Style;

/// Returns how the keys of a filter are shown, without the text before them.
fn matches(rest: &str) -> String {
    let head = "fh 800::800 order 2048 key ht 800 bkt 0 *flowid 1:1 not_in_hw ";
    let out = text(&format!("protocol ip pref 1 u32 {rest} flowid 1:1"));
    out.strip_prefix(head).unwrap_or_else(|| panic!("{out}")).to_owned()
}

/// A field with value and mask as users type them, and the keys (words of four bytes) that result.
const FIELDS: &[(&str, &[&str])] = &[
    ("ip src 10.1.2.3/16", &["0a010000/ffff0000 at 12"]),
    ("ip src 10.1.2.3", &["0a010203/ffffffff at 12"]),
    ("ip dst 192.0.2.1/31", &["c0000200/fffffffe at 16"]),
    // A prefix of zero bits gives a key with an empty mask.
    ("ip src 10.1.2.3/0", &["00000000/00000000 at 12"]),
    ("ip dst any", &["00000000/00000000 at 16"]),
    // In an IPv4 header, the type of service is the second byte.
    ("ip tos 0x10 0xff", &["00100000/00ff0000 at 0"]),
    ("ip dsfield 0xb8 fc", &["00b80000/00fc0000 at 0"]),
    ("ip precedence 0xe0 e0", &["00e00000/00e00000 at 0"]),
    ("ip ihl 5 0xf", &["05000000/0f000000 at 0"]),
    ("ip protocol 17 0xff", &["00110000/00ff0000 at 8"]),
    // In an IPv4 header, flags and fragment offset are the 16 bits from the seventh byte on.
    ("ip nofrag", &["00000000/00003fff at 4"]),
    ("ip firstfrag", &["00002000/00003fff at 4"]),
    ("ip df", &["00004000/00004000 at 4"]),
    ("ip mf", &["00002000/00002000 at 4"]),
    // The positions of ports and ICMP types are right only for IPv4 headers without options.
    ("ip sport 0x1234 0xffff", &["12340000/ffff0000 at 20"]),
    ("ip dport 53 0xff0f", &["00000005/0000ff0f at 20"]),
    ("ip icmp_type 8 0xff", &["08000000/ff000000 at 20"]),
    ("ip icmp_code 3 0xff", &["00030000/00ff0000 at 20"]),
    (
        "ip6 src fd00:1:2:3:4:5:6:7",
        &[
            "fd000001/ffffffff at 8",
            "00020003/ffffffff at 12",
            "00040005/ffffffff at 16",
            "00060007/ffffffff at 20",
        ],
    ),
    ("ip6 src fd00:1:2:3::/48", &["fd000001/ffffffff at 8", "00020000/ffff0000 at 12"]),
    (
        "ip6 dst fd00::1/65",
        &["fd000000/ffffffff at 24", "00000000/ffffffff at 28", "00000000/80000000 at 32"],
    ),
    ("ip6 dst fd00::1/32", &["fd000000/ffffffff at 24"]),
    ("ip6 dst ::/0", &["00000000/00000000 at 24"]),
    ("ip6 src any", &["00000000/00000000 at 8"]),
    // In an IPv6 header, the traffic class comes after the four bits of the version.
    ("ip6 priority 0xb8 0xff", &["0b800000/0ff00000 at 0"]),
    ("ip6 dsfield 0xff fc", &["0fc00000/0fc00000 at 0"]),
    ("ip6 tos 1 1", &["00100000/00100000 at 0"]),
    ("ip6 protocol 6 0xff", &["00000600/0000ff00 at 4"]),
    ("ip6 flowlabel 0x12345 0xfffff", &["00012345/000fffff at 0"]),
    ("ip6 sport 5 ffff", &["00050000/ffff0000 at 40"]),
    ("ip6 dport 5 ffff", &["00000005/0000ffff at 40"]),
    ("ip6 icmp_type 128 ff", &["80000000/ff000000 at 40"]),
    ("ip6 icmp_code 1 ff", &["00010000/00ff0000 at 40"]),
    ("tcp src 80 ffff", &["00500000/ffff0000 at nexthdr+0"]),
    ("tcp dst 80 ffff", &["00000050/0000ffff at nexthdr+0"]),
    ("udp src 53 ff", &["00350000/00ff0000 at nexthdr+0"]),
    ("udp dst 53 ff", &["00000035/000000ff at nexthdr+0"]),
    ("icmp type 8 ff", &["08000000/ff000000 at nexthdr+0"]),
    ("icmp code 3 f", &["00030000/000f0000 at nexthdr+0"]),
    // The destination MAC address begins 14 bytes before the network header, the source MAC address
    // 8 bytes before it.
    ("ether dst 02:03:04:05:06:07", &["00000203/0000ffff at -16", "04050607/ffffffff at -12"]),
    ("ether src 02:03:04:05:06:07", &["02030405/ffffffff at -8", "06070000/ffff0000 at -4"]),
    ("u32 0x12345678 0xff00ff00", &["12005600/ff00ff00 at 0"]),
    ("u32 1 1 at 65532", &["00000001/00000001 at 65532"]),
    ("u32 1 1 at -4", &["00000001/00000001 at -4"]),
    // A 16-bit key at an offset that is no multiple of four takes the last two bytes of the word.
    ("u16 0x1234 ffff at 4", &["12340000/ffff0000 at 4"]),
    ("u16 0x1234 ffff at 5", &["00001234/0000ffff at 4"]),
    ("u16 0x1234 ffff at 6", &["00001234/0000ffff at 4"]),
    ("u16 0x1234 ffff at 7", &["00001234/0000ffff at 4"]),
    ("u16 0x1234 ffff at -14", &["00001234/0000ffff at -16"]),
    ("u8 0x12 ff at 8", &["12000000/ff000000 at 8"]),
    ("u8 0x12 ff at 9", &["00120000/00ff0000 at 8"]),
    ("u8 0x12 ff at 10", &["00001200/0000ff00 at 8"]),
    ("u8 0x12 ff at 11", &["00000012/000000ff at 8"]),
    ("u8 0x12 ff at -1", &["00000012/000000ff at -4"]),
    ("u8 0xff 0xff at 65535", &["000000ff/000000ff at 65532"]),
    ("u32 1 ff at nexthdr+4", &["00000001/000000ff at nexthdr+4"]),
    ("u32 1 ff at nexthdr + 4", &["00000001/000000ff at nexthdr+4"]),
    ("u32 1 ff at nexthdr+ 4", &["00000001/000000ff at nexthdr+4"]),
    ("u32 1 ff at nexthdr 4", &["00000001/000000ff at nexthdr+4"]),
    ("u16 1 ff at nexthdr+2", &["00000001/000000ff at nexthdr+0"]),
];

#[test]
fn fields_stand_where_the_headers_have_them() {
    for (field, words) in FIELDS {
        let expected: String = words.iter().map(|word| format!("\n  match {word}")).collect();
        assert_eq!(matches(&format!("match {field}")), expected, "{field}");
        // The word `match` may be shortened.
        assert_eq!(matches(&format!("m {field}")), expected, "{field}");
    }
}

#[test]
fn fields_of_one_word_are_compared_together() {
    let both = matches("match ip sport 5 0xffff match ip dport 9 0xffff match ip protocol 17 0xff");
    assert_eq!(both, "\n  match 00050009/ffffffff at 20\n  match 00110000/00ff0000 at 8");
    // Keys at the same offset from different headers are not merged.
    let other = matches("match u32 1 1 at 0 match u32 0 1 at nexthdr+0");
    assert_eq!(other, "\n  match 00000001/00000001 at 0\n  match 00000000/00000001 at nexthdr+0");
    // Two keys that compare the same bits must agree in these bits.
    assert_eq!(
        matches("match u8 5 f at 0 match u8 0x15 ff at 0"),
        "\n  match 15000000/ff000000 at 0"
    );
    let contradicts = "filter u32: \"match\": it contradicts an earlier match";
    are_wrong(&[
        ("u32 match u8 5 f at 0 match u8 0x14 ff at 0", 1, contradicts),
        ("u32 match u32 1 1 match u32 0 1", 1, contradicts),
        ("u32 match u32 0 1 match u32 1 3", 1, contradicts),
    ]);
}

#[test]
fn marks_of_packets() {
    let line = "protocol ip pref 1 u32 match mark 0x15 0xf match u32 0 0 flowid 1:1";
    let node = "fh 800::800 order 2048 key ht 800 bkt 0 *flowid 1:1 not_in_hw ";
    let mark = "\n  mark 0x0005 0x000f (success 0)\n  match 00000000/00000000 at 0";
    assert_eq!(text(line), format!("{node}{mark}"));
    let alone = "pref 1 u32 match mark 0x12345678 0xffffff00 action ok";
    let fields = r#""fwmark_value":"0x12345600","fwmark_mask":"0xffffff00""#;
    assert!(json(alone).contains(fields), "{}", json(alone));
    let mut filters = filters(&[line]);
    for (mark, matches) in [(5, true), (0xf5, true), (4, false), (0, false), (0xd, false)] {
        let mut pkt = from(1);
        pkt.mark = mark;
        assert_eq!(ask(&mut filters, &mut pkt) == class(1), matches, "{mark}");
    }
}

/// With `-p`, keys that are a whole field of IPv4 are shown by the field's name.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn readable_words() {
    let pretty = |rest: &str| shown(&[&format!("pref 1 {rest} action ok")], PRETTY);
    let below = |rest: &str| {
        let out = pretty(rest);
        let (_, out) = out.split_once("not_in_hw ").unwrap_or_else(|| panic!("{out}"));
        out.split_once("\n\taction").map_or(out, |(words, _)| words).to_owned()
    };
    for (field, words) in [
        ("ip src 10.1.0.0/16", "\n  match IP src 10.1.0.0/16"),
        ("ip src 10.1.2.3", "\n  match IP src 10.1.2.3/32"),
        ("ip dst 10.1.2.3/0", "\n  match IP dst 0.0.0.0/0"),
        ("ip dst 10.1.2.0/23", "\n  match IP dst 10.1.2.0/23"),
        // A key whose mask is no prefix of the address is shown without the field's name.
        ("u32 0x0a000001 0xff0000ff at 12", "\n  match 0a000001/ff0000ff at 12"),
        ("u32 1 0xff at 16", "\n  match 00000001/000000ff at 16"),
        ("ip tos 0x10 0xff", "\n  match IP dsfield 0x10"),
        ("ip tos 0x10 0xfe", "\n  match 00100000/00fe0000 at 0"),
        ("ip protocol 17 0xff", "\n  match IP protocol 17"),
        ("ip protocol 17 0x7f", "\n  match 00110000/007f0000 at 8"),
        ("ip sport 4660 0xffff", "\n  match sport 4660"),
        ("ip dport 53 0xffff", "match dport 53"),
        ("ip dport 53 0xff", "\n  match 00000035/000000ff at 20"),
        // Keys in other headers than IPv4's are shown without names.
        ("udp src 53 0xffff", "\n  match 00350000/ffff0000 at nexthdr+0"),
        ("u32 1 0xff0000 at nexthdr+8", "\n  match 00000000/00ff0000 at nexthdr+8"),
        ("u32 5 0xffffffff at nexthdr+12", "\n  match 00000005/ffffffff at nexthdr+12"),
        ("u32 0 0xffff0000 at 24", "\n  match 00000000/ffff0000 at 24"),
    ] {
        assert_eq!(below(&format!("protocol ip u32 match {field}")), words, "{field}");
    }
    // Keys of a filter for another protocol than IPv4 are shown without names.
    let other = below("protocol ipv6 u32 match u32 1 0xffffffff at 12");
    assert_eq!(other, "\n  match 00000001/ffffffff at 12");
    // Checks JSON output with `-p`. Spaces and line ends are removed before the comparison.
    let compact = |field: &str, style| {
        let line = format!("pref 1 protocol ip u32 match {field} flowid 1:1");
        let table = try_table(&[&line]).expect("a correct line");
        let out = whole(table.at(PLACE).last().expect("a node"), style);
        out.split_ascii_whitespace().collect::<String>()
    };
    let json_pretty = Style { json: true, ..PRETTY };
    for (field, pretty, plain) in [
        (
            "ip src 10.1.0.0/16",
            r#""match":{"src":{"address":"10.1.0.0","prefixlen":16}}"#,
            r#""match":{"value":"a010000","mask":"ffff0000","offmask":"","off":12}"#,
        ),
        (
            "ip dst 10.1.2.3",
            r#""match":{"dst":{"address":"10.1.2.3","prefixlen":32}}"#,
            r#""match":{"value":"a010203","mask":"ffffffff","offmask":"","off":16}"#,
        ),
        (
            "ip tos 0x10 0xff",
            r#""match":{"ip_dsfield":"0x10"}"#,
            r#""match":{"value":"100000","mask":"ff0000","offmask":"","off":0}"#,
        ),
        (
            "ip protocol 17 0xff",
            r#""match":{"ip_protocol":17}"#,
            r#""match":{"value":"110000","mask":"ff0000","offmask":"","off":8}"#,
        ),
        (
            "ip sport 53 0xffff",
            r#""match":{"sport":53}"#,
            r#""match":{"value":"350000","mask":"ffff0000","offmask":"","off":20}"#,
        ),
        (
            "ip dport 53 0xffff",
            r#""match":{"dport":53}"#,
            r#""match":{"value":"35","mask":"ffff","offmask":"","off":20}"#,
        ),
        (
            "udp dst 53 0xffff",
            r#""match":{"value":"35","mask":"ffff","offmask":"nexthdr+","off":0}"#,
            r#""match":{"value":"35","mask":"ffff","offmask":"nexthdr+","off":0}"#,
        ),
    ] {
        for (style, expected) in [(json_pretty, pretty), (JSON, plain)] {
            let out = compact(field, style);
            assert!(out.contains(expected), "{field}: {out}");
        }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn what_is_wrong_with_a_match() {
    let whole = |max: &str| format!("expected a whole number, 0 to {max}");
    let hex = |max: &str| format!("expected a hexadecimal number, 0 to {max}");
    for (rest, key, value, why) in [
        ("u8 256 ff", "u8", "256", whole("255")),
        ("u8 255 100", "u8", "100", hex("ff")),
        ("u16 65536 0", "u16", "65536", whole("65535")),
        ("u16 65535 10000", "u16", "10000", hex("ffff")),
        ("u32 4294967296 0", "u32", "4294967296", whole("4294967295")),
        ("u32 0 100000000", "u32", "100000000", hex("ffffffff")),
        ("ip tos 256 ff", "tos", "256", whole("255")),
        ("ip6 priority 256 ff", "priority", "256", whole("255")),
        ("ip sport 65536 ffff", "sport", "65536", whole("65535")),
        ("tcp dst 80 10000", "dst", "10000", hex("ffff")),
        ("icmp type 256 ff", "type", "256", whole("255")),
        ("mark x 1", "mark", "x", whole("4294967295")),
        ("ip src fd00::1", "src", "fd00::1", "expected an IPv4 prefix such as 10.0.0.0/8".into()),
        ("ip6 dst 10.0.0.1", "dst", "10.0.0.1", "expected an IPv6 prefix such as fd00::/8".into()),
        ("ether src 2:3", "src", "2:3", "expected an address such as 02:00:00:00:00:01".into()),
        ("ether type 1", "match ether", "type", "expected src, dst".into()),
        ("tcp ports 1 1", "match tcp", "ports", "expected src, dst".into()),
        ("udp sport 1 1", "match udp", "sport", "expected src, dst".into()),
        ("icmp kind 1 1", "match icmp", "kind", "expected type, code".into()),
        (
            "ip size 1 1",
            "match ip",
            "size",
            "expected src, dst, tos, ihl, protocol, nofrag, firstfrag, df, mf, sport, dport, \
             icmp_type, icmp_code"
                .into(),
        ),
        (
            "ip6 ttl 1 1",
            "match ip6",
            "ttl",
            "expected src, dst, priority, protocol, flowlabel, sport, dport, icmp_type, icmp_code"
                .into(),
        ),
        (
            "u64 1 1",
            "match",
            "u64",
            "expected u32, u16, u8, ip, ip6, tcp, udp, icmp, ether or mark".into(),
        ),
        ("u32 1 1 at 2", "u32 at", "2", "expected a multiple of 4".into()),
        ("u32 1 1 at -3", "u32 at", "-3", "expected a multiple of 4".into()),
        (
            "u8 1 1 at 65536",
            "at",
            "65536",
            "expected OFFSET or nexthdr+OFFSET, -65535 to 65535".into(),
        ),
        (
            "u8 1 1 at -65536",
            "at",
            "-65536",
            "expected OFFSET or nexthdr+OFFSET, -65535 to 65535".into(),
        ),
        ("u8 1 1 at nexthdr+-4", "at", "-4", "expected nexthdr+OFFSET".into()),
        ("u8 1 1 at nexthdr-4", "at", "-4", "expected nexthdr+OFFSET".into()),
    ] {
        let said = format!("filter u32: illegal \"{key}\" \"{value}\": {why}");
        assert_eq!(wrong(&format!("u32 match {rest}")), (1, said), "{rest}");
    }
    // A filter compares at most 128 words of a packet.
    let many = |count: usize| {
        let keys: String = (0..count).map(|at| format!("match u32 1 1 at {} ", 4 * at)).collect();
        format!("pref 1 u32 {keys} flowid 1:1")
    };
    assert_eq!(text(&many(128)).lines().count(), 129);
    assert_eq!(
        wrong(&many(129)),
        (1, "filter u32: \"match\": expected at most 128 words to match".into())
    );
    // A second key in a word that is already compared does not count towards the limit.
    let same = many(128).replace("flowid", "match u32 2 2 at 4 flowid");
    assert!(text(&same).contains("match 00000003/00000003 at 4\n"));
}
