//! Tests of `police`: how policers are read and shown (`tc-police(8)`), and which packets conform,
//! compared with a plain model of two token buckets.

use onramp_queue::Packet;
use proptest::prelude::*;

use super::tools::{TEXT, are_wrong, shown};
use super::{Decision, class, filters};
use crate::base::Instant;
use crate::base::show::Style;

fn policer(words: &str, style: Style) -> String {
    let out = shown(&[&format!("pref 1 basic action police {words}")], style);
    let start = "handle 0x1 \n\taction order 1:  police 0x1 ";
    let rest = out.strip_prefix(start).and_then(|out| out.strip_suffix(" \n\tref 1 bind 1 \n"));
    rest.unwrap_or_else(|| panic!("{out}")).to_owned()
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn policers_are_shown() {
    for (words, shown) in [
        ("rate 8mbit burst 3000 drop", "rate 8Mbit burst 3000b mtu 2Kb action drop overhead 0b"),
        // A cell size matters only where the mtu is not given: 255 cells conform.
        (
            "rate 8mbit buffer 3000/8 mtu 1000/8",
            "rate 8Mbit burst 3000b mtu 1000b action reclassify overhead 0b",
        ),
        (
            "rate 8mbit burst 3000/64",
            "rate 8Mbit burst 3000b mtu 16320b action reclassify overhead 0b",
        ),
        (
            "rate 8mbit burst 3000/33554432 mtu 0/1",
            "rate 8Mbit burst 3000b mtu 4064Mb action reclassify overhead 0b",
        ),
        (
            "rate 8mbit burst 3000/0x8 mtu 200",
            "rate 8Mbit burst 3000b mtu 200b action reclassify overhead 0b",
        ),
        (
            "rate 8mbit maxburst 3000 minburst 1500 ok",
            "rate 8Mbit burst 3000b mtu 1500b action pass overhead 0b",
        ),
        (
            "rate 8mbit burst 3000 mtu 0",
            "rate 8Mbit burst 3000b mtu 2Kb action reclassify overhead 0b",
        ),
        (
            "rate 8mbit burst 3000 peakrate 16mbit mtu 1500",
            "rate 8Mbit burst 3000b mtu 1500b peakrate 16Mbit action reclassify overhead 0b",
        ),
        (
            "rate 8mbit burst 3000 overhead 65535 mpu 64 linklayer atm pipe",
            "rate 8Mbit burst 3000b mtu 2Kb action pipe overhead 65535b linklayer atm",
        ),
        (
            "rate 8mbit burst 3000 linklayer adsl continue",
            "rate 8Mbit burst 3000b mtu 2Kb action continue overhead 0b linklayer atm",
        ),
        (
            "rate 8mbit burst 3000 linklayer ethernet",
            "rate 8Mbit burst 3000b mtu 2Kb action reclassify overhead 0b",
        ),
        (
            "pkts_rate 1000 pkts_burst 64 drop",
            "rate 0bit burst 0b mtu 4096Mb pkts_rate 1000 pkts_burst 64 action drop overhead 0b",
        ),
        (
            "pkts_rate 4294967295 pkts_burst 4294967295 mtu 900",
            "rate 0bit burst 0b mtu 900b pkts_rate 4294967295 pkts_burst 4294967295 \
             action reclassify overhead 0b",
        ),
        ("mtu 4294967295", "rate 0bit burst 0b mtu 4096Mb action reclassify overhead 0b"),
        ("mtu 500 conform-exceed drop", "rate 0bit burst 0b mtu 500b action drop overhead 0b"),
        (
            "mtu 500 conform-exceed drop/pipe",
            "rate 0bit burst 0b mtu 500b action drop/pipe overhead 0b",
        ),
        ("mtu 500 conform-exceed drop/ok", "rate 0bit burst 0b mtu 500b action drop overhead 0b"),
        (
            "mtu 500 conform-exceed continue/reclassify",
            "rate 0bit burst 0b mtu 500b action continue/reclassify overhead 0b",
        ),
        (
            "mtu 500 conform-exceed goto chain 7",
            "rate 0bit burst 0b mtu 500b action goto chain 7 overhead 0b",
        ),
        ("mtu 500 conform-exceed jump 7", "rate 0bit burst 0b mtu 500b action jump 7 overhead 0b"),
        ("mtu 500 goto chain 7", "rate 0bit burst 0b mtu 500b action goto chain 7 overhead 0b"),
        ("mtu 500 jump 7", "rate 0bit burst 0b mtu 500b action jump 7 overhead 0b"),
        // The second `conform-exceed` names no control for conforming packets, so the first one's
        // `pipe` stays.
        (
            "mtu 500 conform-exceed ok/pipe conform-exceed drop",
            "rate 0bit burst 0b mtu 500b action drop/pipe overhead 0b",
        ),
        // 1,100 bytes at 125 MB/s take 8.8 µs, of which `tc` sends 8 µs to Linux. 130 bytes take
        // one microsecond, which Linux stores as 15 units of 64 ns. That is less than a
        // microsecond, so `tc` shows a burst of zero.
        ("rate 1gbit burst 1100", "rate 1Gbit burst 1000b mtu 2Kb action reclassify overhead 0b"),
        ("rate 1gbit burst 130", "rate 1Gbit burst 0b mtu 2Kb action reclassify overhead 0b"),
        // A long burst: 9,000 bytes at 10,000 bits per second take 7.2 s.
        ("rate 10kbit burst 9000", "rate 10Kbit burst 9000b mtu 2Kb action reclassify overhead 0b"),
    ] {
        assert_eq!(policer(words, TEXT), shown, "{words}");
    }
    let details = Style { details: true, ..TEXT };
    for (words, layer) in [
        ("rate 8mbit burst 3000", "ethernet"),
        ("rate 8mbit burst 3000 linklayer atm", "atm"),
        ("mtu 500", "unspec"),
    ] {
        let out = policer(words, details);
        assert!(out.ends_with(&format!(" overhead 0b linklayer {layer}")), "{out}");
    }
    let json = |words: &str, style| {
        let out =
            shown(&[&format!("pref 1 basic action police {words}")], Style { json: true, ..style });
        let start = r#"{"handle":"1","actions":[{"order":1,"kind":"police","index":1,"#;
        let rest =
            out.strip_prefix(start).and_then(|out| out.strip_suffix(r#","ref":1,"bind":1}]}"#));
        rest.unwrap_or_else(|| panic!("{out}")).to_owned()
    };
    assert_eq!(
        json("rate 8mbit burst 3000 conform-exceed drop/pipe overhead 5", details),
        concat!(
            r#""control_action":{"type":"drop"},"control_action":{"type":"pipe"},"#,
            r#""overhead":5,"linklayer":"ethernet""#
        )
    );
    assert_eq!(
        json("pkts_rate 9 pkts_burst 8", TEXT),
        r#""pkts_rate":9,"pkts_burst":8,"control_action":{"type":"reclassify"},"overhead":0"#
    );
}

/// Some kinds of filters accept a policer without the word `action` before it.
#[test]
fn a_policer_may_stand_alone() {
    let text = "rate 0bit burst 0b mtu 500b action reclassify overhead 0b \n\tref 1 bind 1 \n";
    let counted = "\n Sent 0 bytes 0 pkts (dropped 0, overlimits 0) ";
    let stats = Style { stats: true, ..TEXT };
    for (line, head) in [
        ("pref 1 basic police mtu 500", "handle 0x1 \n"),
        ("pref 1 basic pol mtu 500", "handle 0x1 \n"),
        (
            "pref 1 u32 match u32 0 0 police mtu 500",
            "fh 800::800 order 2048 key ht 800 bkt 0 terminal flowid not_in_hw \n  \
             match 00000000/00000000 at 0\n",
        ),
        ("pref 1 handle 5 fw police mtu 500", "handle 0x5 "),
        (
            "pref 1 handle 1 flow map key mark police mtu 500",
            "handle 0x1 map keys mark baseclass 1:1 ",
        ),
        (
            "pref 1 bpf bytecode '1,6 0 0 1' police mtu 500",
            "handle 0x1 not_in_hw bytecode '1,6 0 0 1'\n",
        ),
    ] {
        let expected = format!("{head} police 0x1 {text}");
        assert_eq!(shown(&[line], TEXT), expected, "{line}");
        assert_eq!(shown(&[line], stats), format!("{expected}{counted}"), "{line}");
    }
    // With the word `action`, the same kinds of filters show a list of actions.
    let out = shown(&["pref 1 handle 5 fw action police mtu 500"], stats);
    assert!(out.starts_with("handle 0x5 \n\n\taction order 1:  police 0x1 "), "{out}");
    assert!(!out.contains("\n Sent"), "{out}");
    let out = shown(&["pref 1 handle 5 fw classid 1:1 indev e1 action ok"], TEXT);
    assert!(
        out.starts_with("handle 0x5 classid 1:1 input dev e1 \n\n\taction order 1: gact"),
        "{out}"
    );
    // If another action follows the policer, both are shown as a list.
    let out = shown(&["pref 1 handle 5 fw police mtu 500 pipe action ok"], TEXT);
    assert!(out.contains("action order 2: gact action pass"), "{out}");
    // A policer without the word `action` drops packets like a policer with it.
    let mut alone = filters(&["pref 1 basic classid 1:1 police mtu 500 drop"]);
    for (len, decision) in [(500, class(1)), (501, Decision::Drop)] {
        assert_eq!(alone.classify(&mut Packet::new(len), Instant(5)), decision);
    }
    // After a policer without the word `action`, further options belong to the filter.
    assert!(
        shown(&["pref 1 basic police mtu 500 drop classid 1:3"], TEXT)
            .starts_with("handle 0x1 flowid 1:3 ")
    );
    are_wrong(&[
        (
            "basic police mtu 500 foo",
            255,
            "filter basic: unexpected \"foo\": basic takes match, classid, action, police",
        ),
        ("basic police", 255, "filter basic: \"police\": expected rate, pkts_rate or mtu"),
    ]);
}

/// Checks that a policer with these words is refused with this status, because of this option, for
/// this reason.
fn is_wrong(words: &str, code: u8, (key, value): (&str, &str), why: &str) {
    let said = match value {
        "" => format!("filter matchall: \"{key}\": {why}"),
        value => format!("filter matchall: illegal \"{key}\" \"{value}\": {why}"),
    };
    are_wrong(&[(&format!("matchall action police {words}"), code, &said)]);
}

const SIZE: &str = "expected a size such as 1514 or 15kb, 0b to 4294967295b";

#[test]
fn what_is_wrong_with_the_cells_of_a_policer() {
    let size = SIZE;
    let celled = format!("{size}, or SIZE/CELL with a power of two for CELL, 1 to 1073741824");
    let cells = "its rate table would have cells of one byte, which the kernel refuses: give an \
                 mtu of at least 256, or SIZE/8";
    for (words, code, key, value, why) in [
        ("rate 1mbit burst 5k/7", 255, "burst", "5k/7", celled.clone()),
        ("rate 1mbit burst 5k/1k", 255, "burst", "5k/1k", celled.clone()),
        ("rate 1mbit burst 5k/0", 255, "burst", "5k/0", celled.clone()),
        ("rate 1mbit burst 5k/", 255, "burst", "5k/", celled.clone()),
        ("rate 1mbit burst 5k mtu 300/2147483648", 255, "mtu", "300/2147483648", celled),
        ("rate 1mbit burst 5k mpu 10/4", 255, "mpu", "10/4", size.into()),
        ("rate 1mbit burst 5k/1", 2, "burst", "", cells.into()),
        ("rate 1mbit burst 5k mtu 255", 2, "burst", "", cells.into()),
        ("rate 1mbit burst 5k peakrate 2mbit mtu 300/1", 2, "mtu", "", cells.into()),
    ] {
        is_wrong(words, code, (key, value), &why);
    }
}

#[test]
fn what_is_wrong_with_a_policer() {
    let rate = "expected a rate such as 8mbit or 1mbps (bytes)";
    let size = SIZE;
    let celled = format!("{size}, or SIZE/CELL with a power of two for CELL, 1 to 1073741824");
    let controls = "expected EXCEED or EXCEED/CONFORM, where both are actions";
    let whole = |max: u32| format!("expected a whole number, 0 to {max}");
    for (words, code, key, value, why) in [
        ("rate fast burst 5k", 255, "rate", "fast", rate.to_owned()),
        ("rate 0 burst 5k", 255, "rate", "0", rate.into()),
        ("rate", 255, "rate", "", rate.into()),
        ("peakrate 0", 255, "peakrate", "0", rate.into()),
        ("burst x", 255, "burst", "x", celled.clone()),
        ("maxburst x", 255, "maxburst", "x", celled.clone()),
        ("buffer 4294967296", 255, "buffer", "4294967296", celled.clone()),
        ("mtu 4294967296", 255, "mtu", "4294967296", celled.clone()),
        ("minburst x", 255, "minburst", "x", celled.clone()),
        ("mpu x", 255, "mpu", "x", size.into()),
        ("overhead 65536", 255, "overhead", "65536", whole(65_535)),
        ("pkts_rate 4294967296", 255, "pkts_rate", "4294967296", whole(u32::MAX)),
        ("pkts_burst x", 255, "pkts_burst", "x", whole(u32::MAX)),
        ("linklayer x25", 255, "linklayer", "x25", "expected ethernet, atm or adsl".into()),
        ("mtu 500 conform-exceed", 255, "conform-exceed", "", controls.into()),
        ("mtu 500 conform-exceed foo", 1, "conform-exceed", "foo", controls.into()),
        ("mtu 500 conform-exceed drop/foo", 1, "conform-exceed", "drop/foo", controls.into()),
        ("mtu 500 conform-exceed foo/drop", 1, "conform-exceed", "foo/drop", controls.into()),
        ("avrate 1mbit", 1, "avrate", "", "estimators are not supported: use rate".into()),
        ("burst 5k", 1, "police", "", "expected rate, pkts_rate or mtu".into()),
        ("rate 1mbit", 1, "burst", "", "rate needs it".into()),
        ("rate 1mbit burst 0", 1, "burst", "", "rate needs it".into()),
        ("pkts_rate 5", 1, "burst", "", "rate needs it".into()),
        ("pkts_rate 5 pkts_burst 0", 1, "burst", "", "rate needs it".into()),
        ("pkts_rate 5 burst 5k", 1, "burst", "", "rate needs it".into()),
        ("rate 1mbit pkts_burst 5", 1, "burst", "", "rate needs it".into()),
        (
            "rate 1mbit burst 5k pkts_rate 5",
            1,
            "pkts_rate",
            "",
            "it cannot be used together with rate".into(),
        ),
        ("peakrate 1mbit mtu 500", 1, "peakrate", "", "it needs rate".into()),
        (
            "pkts_rate 9 pkts_burst 8 peakrate 2mbit mtu 500",
            1,
            "peakrate",
            "",
            "it needs rate".into(),
        ),
        ("pkts_rate 0 pkts_burst 8", 1, "police", "", "expected rate, pkts_rate or mtu".into()),
        ("rate 1mbit burst 5k peakrate 2mbit", 1, "mtu", "", "peakrate needs it".into()),
    ] {
        is_wrong(words, code, (key, value), &why);
    }
    are_wrong(&[
        (
            "matchall action police mtu 500 foo",
            255,
            "filter matchall: unexpected \"foo\": matchall takes classid, action",
        ),
        (
            "matchall action police",
            255,
            "filter matchall: \"police\": expected rate, pkts_rate or mtu",
        ),
    ]);
    // A policer with an `index` needs no other options.
    let named = shown(&["pref 1 basic action police index 9"], TEXT);
    assert!(named.contains("police 0x9 rate 0bit burst 0b mtu 4096Mb"), "{named}");
}

/// Returns a packet of five datagrams, each of which takes 1,442 bytes on the wire.
fn several() -> Packet {
    let mut pkt = Packet::with_payload(&[0; 7_000]);
    (pkt.gso_size, pkt.len) = (1_400, 7_210);
    pkt
}

/// As in Linux, no datagram of a GSO packet may be longer than the `mtu`, and the packet pays for
/// all of them.
#[test]
fn a_policer_looks_at_each_datagram_of_a_gso_packet() {
    for (words, decision) in [
        ("rate 1gbit burst 100k", class(1)),
        ("rate 1gbit burst 100k mtu 1442", class(1)),
        ("rate 1gbit burst 100k mtu 1441", Decision::Drop),
        ("mtu 1442", class(1)),
        ("mtu 1441", Decision::Drop),
        ("rate 1gbit burst 7k", Decision::Drop),
    ] {
        let line = format!("matchall classid 1:1 action police {words} drop");
        assert_eq!(filters(&[&line]).classify(&mut several(), Instant(5)), decision, "{words}");
    }
}

/// Actions count the datagrams of a GSO packet. As in Linux, a policer with a `rate` counts all
/// packets that it drops, and a policer without one only those that exceed its `mtu`.
#[test]
fn what_a_policer_counts() {
    for (words, counted) in [
        ("rate 8mbit burst 8000 drop", [7, 8_310, 1, 1]),
        ("rate 8mbit burst 8000 conform-exceed ok/drop", [7, 8_310, 2, 1]),
        ("mtu 1500 drop", [7, 8_310, 0, 0]),
        ("mtu 700 drop", [7, 8_310, 1, 1]),
        ("mtu 700 conform-exceed ok/drop", [7, 8_310, 0, 1]),
    ] {
        let mut filters = filters(&[&format!("matchall action police {words}")]);
        for mut pkt in [several(), Packet::new(500), Packet::new(600)] {
            let _ = filters.classify(&mut pkt, Instant(5));
        }
        let counters = filters.filters[0].actions[0].counters;
        let found = [counters.packets, counters.bytes, counters.drops, counters.overlimits];
        assert_eq!(found, counted, "{words}");
    }
}

/// A model of a policer: two token buckets that count nanoseconds, as `tc-police(8)` and RFC 2697
/// describe them.
#[derive(Clone, Copy)]
struct Model {
    mtu: u64,
    overhead: u64,
    mpu: u64,
    atm: bool,
    /// Of the bucket for `rate`: nanoseconds per byte (or per packet), and its depth in
    /// nanoseconds.
    rate: (u64, i64),
    peak: Option<(u64, i64)>,
    by_packets: bool,
    tokens: (i64, i64),
    last: u64,
}

impl Model {
    fn new(rate: (u64, i64), peak: Option<(u64, i64)>) -> Self {
        Self {
            mtu: u64::MAX,
            overhead: 0,
            mpu: 0,
            atm: false,
            rate,
            peak,
            by_packets: false,
            tokens: (rate.1, peak.map_or(0, |peak| peak.1)),
            last: 0,
        }
    }

    fn conforms(&mut self, now: u64, len: u64) -> bool {
        if len > self.mtu {
            return false;
        }
        let framed = (len + self.overhead).max(self.mpu);
        let framed = if self.atm { framed.div_ceil(48) * 53 } else { framed };
        let size = if self.by_packets { 1 } else { framed };
        let cost = |ns: u64| i64::try_from(size * ns).expect("small");
        // The time since the last packet counts for at most the burst of `rate`, also in the bucket
        // for `peakrate`.
        let new = i64::try_from(now - self.last).expect("small").min(self.rate.1);
        let tokens = (self.tokens.0 + new).min(self.rate.1) - cost(self.rate.0);
        let peak = match self.peak {
            None => 0,
            Some((ns, most)) => (self.tokens.1 + new).min(most) - cost(ns),
        };
        if tokens < 0 || peak < 0 {
            return false;
        }
        (self.tokens, self.last) = ((tokens, peak), now);
        true
    }
}

/// The options of policers as users type them, and their models. 8 Mbit/s are 1,000 ns per byte.
/// All sizes are multiples of 8 bytes, for which rounding to Linux's units of 64 ns loses nothing.
fn models() -> Vec<(&'static str, Model)> {
    let plain = Model { mtu: 2040, ..Model::new((1000, 4_000_000), None) };
    vec![
        ("rate 8mbit burst 4000", plain),
        ("rate 8mbit burst 4000 mtu 1000", Model { mtu: 1000, ..plain }),
        ("rate 8mbit burst 4000 overhead 24", Model { overhead: 24, ..plain }),
        ("rate 8mbit burst 4000 mpu 600", Model { mpu: 600, ..plain }),
        (
            "rate 8mbit burst 4000 overhead 10 mpu 300 linklayer atm",
            Model { overhead: 10, mpu: 300, atm: true, ..plain },
        ),
        (
            "rate 8mbit burst 4000 peakrate 16mbit mtu 1000",
            Model { mtu: 1000, ..Model::new((1000, 4_000_000), Some((500, 500_000))) },
        ),
        (
            "rate 8mbit burst 4000 peakrate 16mbit mtu 1000 overhead 16",
            Model {
                mtu: 1000,
                overhead: 16,
                ..Model::new((1000, 4_000_000), Some((500, 508_000)))
            },
        ),
        // Here, the bucket for `peakrate` is deeper than the burst of `rate`.
        (
            "rate 8mbit burst 800 peakrate 4mbit mtu 2000",
            Model { mtu: 2000, ..Model::new((1000, 800_000), Some((2000, 4_000_000))) },
        ),
        // Here the limit is 1,000 packets per second, so each packet costs a millisecond of tokens.
        (
            "pkts_rate 1000 pkts_burst 8",
            Model { by_packets: true, ..Model::new((1_000_000, 8_000_000), None) },
        ),
        (
            "pkts_rate 1000 pkts_burst 8 mtu 700 overhead 99 mpu 5000",
            Model { by_packets: true, mtu: 700, ..Model::new((1_000_000, 8_000_000), None) },
        ),
    ]
}

/// Returns the time between two packets in nanoseconds: none, enough for some bytes, or enough to
/// fill both buckets.
fn gaps() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0_u64..2_000_000, 0_u64..20_000, Just(9_000_000_000)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn what_conforms_is_what_the_buckets_hold(
        arrivals in prop::collection::vec(
            (gaps(), 1_u32..1100),
            1..60,
        ),
    ) {
        for (words, mut model) in models() {
            let line = format!("matchall classid 1:1 action police {words} drop");
            let mut filters = filters(&[&line]);
            let mut now = 10_000_000_000;
            for (gap, len) in &arrivals {
                now += gap;
                let conforms = model.conforms(now, u64::from(*len));
                let expected = if conforms { class(1) } else { Decision::Drop };
                let found = filters.classify(&mut Packet::new(*len), Instant(now));
                prop_assert_eq!(found, expected, "{}: {} bytes at {}", words, len, now);
            }
        }
    }
}

/// A packet conforms from exactly the nanosecond on at which the model has enough tokens for it.
#[test]
fn tokens_come_in_time() {
    for (words, mut model) in models() {
        let mut filters = filters(&[&format!("matchall classid 1:1 action police {words} drop")]);
        let mut now = 10_000_000_000_u64;
        for round in 0..200 {
            let len = 100 + round % 7;
            // Finds the first nanosecond at which the packet conforms in the model.
            let fits = |gap: &u64| {
                let mut model = model;
                model.conforms(now + gap, len)
            };
            let (mut low, mut high) = (0, 100_000_000);
            while low < high {
                let middle = u64::midpoint(low, high);
                (low, high) = if fits(&middle) { (low, middle) } else { (middle + 1, high) };
            }
            let mut conforms = |gap: u64| {
                let len = u32::try_from(len).expect("small");
                filters.classify(&mut Packet::new(len), Instant(now + gap)) == class(1)
            };
            assert!(low == 0 || !conforms(low - 1), "{words}: {round}");
            assert!(conforms(low), "{words}: {round}");
            now += low;
            assert!(model.conforms(now, len));
        }
    }
}
