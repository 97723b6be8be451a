//! Tests of `flow` filters: the value of each key, how the class is computed, and how filters are
//! shown and refused.

use onramp_queue::Packet;
use proptest::prelude::*;

use super::super::{Decision, Filters, How};
use super::tools::{TEXT, apply, are_wrong, json, options, ports, tagged, text, v4, v6, wrong};
use super::{PLACE, ask, class, filters, packet, try_table};
use crate::base::{Handle, Instant};

/// Returns all 32 bits that a filter in mode `map` computes for the packet. Because a class has
/// only 16 bits, two filters are asked, one for each half.
fn mapped(words: &str, pkt: &Packet) -> u32 {
    let half = |shift: u32| {
        let line = format!("handle 1 flow map {words} rshift {shift} baseclass 1:1");
        match ask(&mut filters(&[&line]), &mut pkt.duplicate()) {
            Decision::Class(class) => {
                assert_eq!(class.major, 1);
                // By default, classes are counted from class 1 on.
                u32::from(class.minor.wrapping_sub(1))
            }
            other => panic!("{words}: {other:?}"),
        }
    };
    half(16) << 16 | half(0)
}

/// Returns the 32-bit words of an IP address, combined by exclusive or.
fn folded(address: &[u8]) -> u32 {
    let word = |at: usize| u32::from_be_bytes(address[at..at + 4].try_into().expect("four"));
    (0..address.len()).step_by(4).fold(0, |sum, at| sum ^ word(at))
}

#[test]
fn each_key_is_what_the_packet_says() {
    let say = |mut pkt: Packet| {
        (pkt.mark, pkt.priority, pkt.flow) = (0x1234_5678, 0xabcd_0001, 0x0102_0304_a0b0_c0d0);
        pkt
    };
    let flow = 0x0102_0304 ^ 0xa0b0_c0d0;
    let four = say(packet(&v4(17, &[], &ports(0x1122, 0x3344))));
    let bytes = v6(6, &ports(0x1122, 0x3344));
    let (from, to) = (folded(&bytes[22..38]), folded(&bytes[38..54]));
    let six = say(packet(&bytes));
    let tag = say(packet(&tagged(&v4(17, &[], &ports(1, 2)), 0x8100, 5, 0x123)));
    // For a packet without addresses and ports, the keys have the value of the packet's `flow`.
    let mut arp = v4(17, &[], &[0; 40]);
    arp[12..14].copy_from_slice(&[8, 6]);
    let arp = say(packet(&arp));
    for (key, of_four, of_six, of_arp) in [
        ("src", 0x0a01_0203, from, flow),
        ("dst", 0x0a09_0807, to, flow),
        ("proto", 17, 6, 0),
        ("proto-src", 0x1122, 0x1122, flow),
        ("proto-dst", 0x3344, 0x3344, flow),
        ("iif", 0, 0, 0),
        ("priority", 0xabcd_0001, 0xabcd_0001, 0xabcd_0001),
        ("mark", 0x1234_5678, 0x1234_5678, 0x1234_5678),
        ("nfct", 0, 0, 0),
        ("nfct-src", 0x0a01_0203, from, flow),
        ("nfct-dst", 0x0a09_0807, to, flow),
        ("nfct-proto-src", 0x1122, 0x1122, flow),
        ("nfct-proto-dst", 0x3344, 0x3344, flow),
        ("rt-classid", 0, 0, 0),
        ("sk-uid", 0, 0, 0),
        ("sk-gid", 0, 0, 0),
        ("vlan-tag", 0, 0, 0),
        ("rxhash", flow, flow, flow),
    ] {
        let words = format!("key {key}");
        assert_eq!(mapped(&words, &four), of_four, "{key}");
        assert_eq!(mapped(&words, &six), of_six, "{key}");
        assert_eq!(mapped(&words, &arp), of_arp, "{key}");
        let line = format!("handle 1 flow map key {key}");
        assert_eq!(text(&line), format!("handle 0x1 map keys {key} baseclass 1:1 "));
    }
    assert_eq!(mapped("key vlan-tag", &tag), 0x123);
}

#[test]
fn numbers_are_computed_with() {
    let mut pkt = packet(&v4(17, &[], &ports(1, 2)));
    pkt.mark = 0x8000_00f5;
    for (words, value) in [
        ("and 0xf0", 0xf0),
        ("or 0xa", 0x8000_00ff),
        ("xor 0xff", 0x8000_000a),
        ("and 0xff xor 0xff", 0xa),
        ("xor 0xff and 0xff", 0xa),
        ("or 0xff and 0xf", 0xf),
    ] {
        assert_eq!(mapped(&format!("key mark {words}"), &pkt), value, "{words}");
    }
    let class_of = |words: &str| {
        let mut filters = filters(&[&format!("handle 1 flow map key mark {words}")]);
        ask(&mut filters, &mut pkt.duplicate())
    };
    // `addend` is added in 32 bits; a carry is lost.
    for (addend, sum) in [
        ("1", 0x8000_00f6_u32),
        ("-1", 0x8000_00f4),
        ("0x80000000", 0xf5),
        ("-0x80000000", 0xf5),
        ("10.0.0.1", 0x8a00_00f6),
        ("-10.0.0.0", 0x7600_00f5),
        ("fd00::1", 0x7d00_00f6),
    ] {
        let found = class_of(&format!("addend {addend} divisor 65521"));
        let expected = u16::try_from(sum % 65521 + 1).expect("16 bits");
        assert_eq!(found, class(expected), "{addend}");
    }
    // The value is shifted (`rshift`) before the `addend` is added.
    assert_eq!(class_of("rshift 31 addend 2"), class(4));
    assert_eq!(class_of("rshift 4 addend 1 divisor 16"), class(1));
    // The value 0x800000f5 is 2^31 + 245. Modulo 10, the parts are 8 and 5, so the whole is 3.
    assert_eq!(class_of("divisor 10"), class(1 + 3));
    assert_eq!(class_of("divisor 1"), class(1));
    // Without a divisor, the minor number of the class wraps around.
    assert_eq!(class_of("baseclass 1:ffff"), class(0xf4));
    assert_eq!(class_of("baseclass 2:10"), Decision::Class(Handle::new(2, 0x105)));
    assert_eq!(class_of("baseclass :10"), class(0x105));
    assert_eq!(class_of("match 'cmp(u8 at 9 eq 17)'"), class(0xf6));
    assert_eq!(class_of("match 'cmp(u8 at 9 eq 6)'"), Decision::Unknown);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any number of operations `and`, `or` and `xor` are applied in the order in which the line
    /// gives them.
    #[test]
    fn bits_are_done_in_their_order(
        mark in any::<u32>(),
        steps in prop::collection::vec((0_u8..3, any::<u32>()), 0..6),
    ) {
        let mut pkt = packet(&v4(17, &[], &ports(1, 2)));
        pkt.mark = mark;
        let (mut words, mut value) = ("key mark".to_owned(), mark);
        for (what, bits) in steps {
            let name = match what {
                0 => {
                    value &= bits;
                    "and"
                }
                1 => {
                    value |= bits;
                    "or"
                }
                _ => {
                    value ^= bits;
                    "xor"
                }
            };
            words += &format!(" {name} {bits}");
        }
        prop_assert_eq!(mapped(&words, &pkt), value);
        // The operations in the listing may differ from the operations that the user gave, but must
        // compute the same value.
        let out = text(&format!("handle 1 flow map {words}"));
        let shown = out.strip_prefix("handle 0x1 map keys mark ").expect("its head");
        let mut again = mark;
        let parts: Vec<&str> = shown.split_ascii_whitespace().collect();
        for pair in parts.chunks(2).filter(|pair| pair[0] != "baseclass") {
            let bits = u32::from_str_radix(&pair[1][2..], 16).expect("hexadecimal");
            again = match pair[0] {
                "and" => again & bits,
                "or" => again | bits,
                _ => again ^ bits,
            };
        }
        prop_assert_eq!(again, value, "{}", out);
    }
}

#[test]
fn options_are_shown() {
    for (words, shown) in [
        ("map key src,dst", None),
        ("map keys src", Some("map keys src baseclass 1:1 ")),
        ("map key mark rshift 31", Some("map keys mark rshift 31 baseclass 1:1 ")),
        ("map key mark rshift 0 addend 0 divisor 0", Some("map keys mark baseclass 1:1 ")),
        (
            "map key mark addend 1 divisor 1",
            Some("map keys mark addend 0x1 divisor 1 baseclass 1:1 "),
        ),
        ("map key mark addend -1", Some("map keys mark addend 0xffffffff baseclass 1:1 ")),
        ("map key mark addend 10.0.0.1", Some("map keys mark addend 0xa000001 baseclass 1:1 ")),
        ("map key mark and 0xff", Some("map keys mark and 0x000000ff baseclass 1:1 ")),
        ("map key mark xor 1", Some("map keys mark xor 0x00000001 baseclass 1:1 ")),
        ("map key mark or 1", Some("map keys mark and 0xfffffffe or 0x00000001 baseclass 1:1 ")),
        (
            "map key mark and 0xf0 xor 0x11",
            Some("map keys mark and 0x000000f0 xor 0x00000010 or 0x00000001 baseclass 1:1 "),
        ),
        ("map key mark baseclass 3:f", Some("map keys mark baseclass 3:f ")),
        ("hash keys mark,src,mark,dst", Some("hash keys src,dst,mark baseclass 1:1 ")),
        // In mode `hash`, operations on bits are accepted but have no effect.
        ("hash keys mark and 0xff", Some("hash keys mark baseclass 1:1 ")),
        (
            "hash keys mark perturb 10sec divisor 1024",
            Some("hash keys mark divisor 1024 baseclass 1:1 perturb 10sec "),
        ),
        (
            "hash keys mark perturb 42949672",
            Some("hash keys mark baseclass 1:1 perturb 42949672sec "),
        ),
        ("hash keys mark perturb 0", Some("hash keys mark baseclass 1:1 ")),
        ("key mark", Some("map keys mark baseclass 1:1 ")),
        (
            "map key mark match 'cmp(u8 at 9 eq 6)'",
            Some("map keys mark baseclass 1:1 \n  cmp(u8 at 9 layer 1 eq 6)\n"),
        ),
        (
            "map key mark m 'cmp(u8 at 9 eq 6)' action ok",
            Some(
                "map keys mark baseclass 1:1 \n  cmp(u8 at 9 layer 1 eq 6)\n\n\n\taction order 1: \
                 gact action pass\n\t random type none pass val 0\n\t index 1 ref 1 bind 1\n",
            ),
        ),
    ] {
        let line = format!("pref 1 handle 1 flow {words}");
        match shown {
            Some(shown) => assert_eq!(text(&line), format!("handle 0x1 {shown}"), "{words}"),
            None => assert_eq!(wrong(&line).0, 1),
        }
    }
    assert_eq!(
        json(
            "pref 1 handle 0x2a flow hash keys mark,src rshift 3 addend 10.0.0.0 divisor 8 \
             baseclass 2:5 perturb 5 match 'cmp(u8 at 9 eq 6)'"
        ),
        concat!(
            r#"{"handle":"0x2a","mode":"hash","keys":["src","mark"],"rshift":3,"#,
            r#""addend":"0xa000000","divisor":8,"baseclass":"2:5","perturb":5,"#,
            r#""ematch":"cmp(u8 at 9 layer 1 eq 6)"}"#
        )
    );
    assert_eq!(
        json("pref 1 handle 1 flow map key mark and 0xf0 xor 0x11"),
        concat!(
            r#"{"handle":"0x1","mode":"map","keys":["mark"],"and":"0x000000f0","#,
            r#""xor":"0x00000010","or":"0x00000001","baseclass":"1:1"}"#
        )
    );
}

const NAMES: &str = "src, dst, proto, proto-src, proto-dst, iif, priority, mark, nfct, nfct-src, \
                     nfct-dst, nfct-proto-src, nfct-proto-dst, rt-classid, sk-uid, sk-gid, \
                     vlan-tag, rxhash";

#[test]
fn what_is_wrong_with_a_flow() {
    let handle = "filter flow: \"handle\": expected `handle NUMBER` before the kind, other than 0";
    let key = format!("filter flow: illegal \"key\" \"colour\": expected {NAMES}");
    let keys = format!(
        "filter flow: illegal \"keys\" \"src,\": expected keys separated by commas: {NAMES}"
    );
    let perturb = "filter flow: \"perturb\": it needs hash mode: add `hash`";
    are_wrong(&[
        ("flow map key src", 2, handle),
        ("handle 0 flow map key src", 2, handle),
        ("handle 1 flow map key colour", 1, &key),
        ("handle 1 flow hash keys src,", 1, &keys),
        ("handle 1 flow", 2, "filter flow: \"flow\": expected `map key KEY` or `hash keys KEYS`"),
        (
            "handle 1 flow divisor 5",
            2,
            "filter flow: \"flow\": expected `map key KEY` or `hash keys KEYS`",
        ),
        ("handle 1 flow map keys src,dst", 1, "filter flow: \"keys\": map takes one key; use hash"),
        ("handle 1 flow map key mark rshift 32", 2, "filter flow: \"rshift\": expected 0 to 31"),
        ("handle 1 flow hash keys mark rshift 32", 2, "filter flow: \"rshift\": expected 0 to 31"),
        ("handle 1 flow map key mark perturb 5", 2, perturb),
        ("handle 1 flow map key mark perturb 0", 2, perturb),
        (
            "handle 1 flow hash keys mark perturb 42949673",
            1,
            "filter flow: illegal \"perturb\" \"42949673\": expected seconds",
        ),
        (
            "handle 1 flow hash keys mark perturb 5s",
            1,
            "filter flow: illegal \"perturb\" \"5s\": expected seconds",
        ),
        (
            "handle 1 flow map key mark addend x",
            1,
            "filter flow: illegal \"addend\" \"x\": expected a number or an address, optionally \
             after a -",
        ),
        (
            "handle 1 flow map key mark addend 4294967296",
            1,
            "filter flow: illegal \"addend\" \"4294967296\": expected a number or an address, \
             optionally after a -",
        ),
        (
            "handle 1 flow map key mark baseclass 2:",
            1,
            "filter flow: illegal \"baseclass\" \"2:\": expected a class such as 1:1",
        ),
        (
            "handle 1 flow map key mark colour 5",
            1,
            "filter flow: unexpected \"colour\": flow takes map, hash, key, keys, and, or, xor, \
             rshift, addend, divisor, baseclass, perturb, match, action, police",
        ),
        (
            "handle 1 flow map key mark divisor 4294967296",
            1,
            "filter flow: illegal \"divisor\" \"4294967296\": expected a whole number, 0 to \
             4294967295",
        ),
    ]);
    let range = try_table(&["handle 1 flow map key mark rshift 32"]).expect_err("too far");
    assert_eq!(
        range.fault.kernel_text().as_deref(),
        Some("RTNETLINK answers: Numerical result out of range")
    );
}

/// A change keeps the options that it does not give, except the expression and the operations on
/// bits, which it replaces.
#[test]
fn a_flow_is_changed() {
    let changed = |first: &str, second: &str| {
        let mut table = try_table(&[&format!("pref 1 handle 1 flow {first}")]).expect("correct");
        let line = format!("pref 1 handle 1 flow {second}");
        apply(&mut table, How::Change, &line).map_err(|error| error.to_string())?;
        let out = options(table.at(PLACE).next().expect("it is there"), TEXT);
        Ok(out.strip_prefix("handle 0x1 ").expect("its handle").to_owned())
    };
    let right = |words: &str| Ok::<_, String>(words.to_owned());
    let all =
        "map key mark and 0xf0 rshift 3 addend 7 divisor 9 baseclass 1:5 match 'cmp(u8 at 9 eq 6)'";
    for (first, second, expected) in [
        (
            all,
            "divisor 8",
            "map keys mark and 0x000000f0 rshift 3 addend 0x7 divisor 8 baseclass 1:5 ",
        ),
        (
            all,
            "and 0xf",
            "map keys mark and 0x0000000f rshift 3 addend 0x7 divisor 9 baseclass 1:5 ",
        ),
        (
            all,
            "key src xor 1",
            "map keys src xor 0x00000001 rshift 3 addend 0x7 divisor 9 baseclass 1:5 ",
        ),
        ("hash keys mark perturb 10", "keys src", "hash keys src baseclass 1:1 perturb 10sec "),
        (
            "hash keys mark perturb 10",
            "hash perturb 5",
            "hash keys mark baseclass 1:1 perturb 5sec ",
        ),
        ("hash keys mark perturb 10", "map", "map keys mark baseclass 1:1 "),
        ("map key mark", "hash perturb 5", "hash keys mark baseclass 1:1 perturb 5sec "),
    ] {
        assert_eq!(changed(first, second), right(expected), "{first}; {second}");
    }
    let perturb = "filter flow: \"perturb\": it needs hash mode: add `hash`";
    assert_eq!(changed("hash keys mark perturb 10", "perturb 5"), Err(perturb.into()));
    assert_eq!(changed("hash keys mark", "map perturb 5"), Err(perturb.into()));
    let one = "filter flow: \"keys\": map takes one key; use hash";
    assert_eq!(changed("hash keys mark,src", "map"), Err(one.into()));
}

/// The output function of `SplitMix64`. The values in the test below come from the reference
/// implementation of its authors.
fn splitmix(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Advances `SplitMix64` from `state` by one step, and returns the output.
fn step(state: u64) -> u64 {
    splitmix(state.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// The hash of a filter combines the keys one after the other, beginning with the number of the
/// current period of `perturb`.
#[test]
fn hashes_are_well_mixed() {
    assert_eq!(step(0), 0xe220_a839_7b1d_cdaf);
    assert_eq!(step(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    let pkt = |mark: u32| {
        let mut pkt = packet(&v4(17, &[], &ports(0x1234, 2)));
        (pkt.mark, pkt.priority) = (mark, !mark);
        pkt
    };
    let folded = |sum: u64| u32::try_from((sum ^ sum >> 32) & 0xffff_ffff).expect("a word");
    let asked = |filters: &mut Filters, mark: u32, now: u64| match filters
        .classify(&mut pkt(mark), Instant(now))
    {
        Decision::Class(class) => u32::from(class.minor) - 1,
        other => panic!("{other:?}"),
    };
    // The divisor is a prime number, so that every bit of the hash affects the result.
    let divisor = 65_521;
    let mut one = filters(&[&format!("handle 1 flow hash keys mark divisor {divisor}")]);
    let mut three =
        filters(&[&format!("handle 1 flow hash keys mark,priority,proto-src divisor {divisor}")]);
    let mut turned =
        filters(&[&format!("handle 1 flow hash keys mark divisor {divisor} perturb 10")]);
    for mark in [0, 1, 2, 0xffff, 0x8000_0000, 0xdead_beef, u32::MAX] {
        let first = step(step(0) ^ u64::from(mark));
        assert_eq!(asked(&mut one, mark, 5_000_000_000), folded(first) % divisor, "{mark}");
        // As in Linux, the keys are combined in a fixed order, not in the order given: ports,
        // priority, mark.
        let keys = [0x1234, u64::from(!mark), u64::from(mark)];
        let sum = keys.into_iter().fold(step(0), |sum, key| step(sum ^ key));
        assert_eq!(asked(&mut three, mark, 0), folded(sum) % divisor, "{mark}");
        for (now, period) in [(0, 0), (9_999_999_999, 0), (10_000_000_000, 1), (29_999_999_999, 2)]
        {
            let sum = step(step(period) ^ u64::from(mark));
            assert_eq!(asked(&mut turned, mark, now), folded(sum) % divisor, "{mark}, {now}");
        }
    }
}
