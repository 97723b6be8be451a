//! Tests of filters: compare the decisions of filters with expected values, which are those of
//! Linux, and with plain models.

mod actions;
mod basic;
mod classic;
mod edits;
mod fields;
mod flows;
mod headers;
mod numbers;
mod places;
mod policers;
mod programs_in_files;
mod reading;
mod sharing;
mod tables;
mod tools;

use onramp_queue::{Layer, Packet};
use proptest::prelude::*;

use super::{Decision, Filters, Head, How, Reader, Table};
use crate::base::{ConfigError, Handle, Instant};

/// Returns a UDP frame from 10.9.0.1 to 10.9.0.2, from `port` to port 9.
pub(super) fn frame(port: u16, tos: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, tos, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
    frame.extend([port.to_be_bytes(), [0, 9], [0, 0], [0, 0]].concat());
    frame.resize(len.max(frame.len()), 0);
    frame
}

pub(super) fn packet(bytes: &[u8]) -> Packet {
    let mut pkt = Packet::with_payload(bytes);
    pkt.set_layer(Layer::Ethernet);
    pkt
}

/// Returns a UDP packet that comes from `port`.
fn from(port: u16) -> Packet {
    packet(&frame(port, 0, 100))
}

const PLACE: Handle = Handle::new(1, 0);

fn try_table(lines: &[&str]) -> Result<Table, ConfigError> {
    let mut table = Table::default();
    for line in lines {
        let mut words = Reader::new(line);
        let head = Head::read(&mut words)?;
        table.apply(PLACE, How::Add, &head, words)?;
    }
    Ok(table)
}

fn try_filters(lines: &[&str]) -> Result<Filters, ConfigError> {
    let mut filters = Filters::default();
    filters.set(try_table(lines)?.at(PLACE));
    Ok(filters)
}

pub(super) fn filters(lines: &[&str]) -> Filters {
    try_filters(lines).expect("correct lines")
}

pub(super) fn error(lines: &[&str]) -> String {
    try_filters(lines).expect_err("a mistake").to_string()
}

pub(super) fn class(minor: u16) -> Decision {
    Decision::Class(Handle::new(1, minor))
}

pub(super) fn ask(filters: &mut Filters, pkt: &mut Packet) -> Decision {
    filters.classify(pkt, Instant(1_000_000_000))
}

#[test]
fn what_comes_last_without_a_preference_is_asked_first() {
    let lines = ["matchall classid 1:1", "matchall classid 1:2", "pref 65000 matchall classid 1:3"];
    assert_eq!(ask(&mut filters(&lines), &mut from(1)), class(2));
    // A filter without `pref` gets the preference just below the lowest one in use that is 32768 or
    // more. The lowest here is 65000, so the filter gets 64999. (If none is in use, it gets 49152.)
    let lines =
        ["pref 65000 matchall classid 1:1", "pref 100 matchall classid 1:2 action continue"];
    let mut both = filters(&lines);
    assert_eq!(ask(&mut both, &mut from(1)), class(1));
    let third = try_table(&[lines[0], "matchall classid 1:3"]).expect("room");
    assert_eq!(third.at(PLACE).map(|filter| filter.pref).collect::<Vec<_>>(), [64_999, 65_000]);
}

#[test]
fn each_kind_has_its_order() {
    let basic = ["pref 1 basic classid 1:1", "pref 1 basic classid 1:2"];
    assert_eq!(ask(&mut filters(&basic), &mut from(1)), class(2));
    let all = "6 0 0 4294967295";
    let bpf = [
        &*format!("pref 1 bpf bytecode '1,{all}' flowid 1:1"),
        "pref 1 bpf bytecode '1,6 0 0 65538'",
    ];
    assert_eq!(ask(&mut filters(&bpf), &mut from(1)), class(2));
    // Nodes of `u32` are asked in the order of their numbers, whichever of them was added first.
    let u32 = [
        "pref 1 u32 match u32 0 0 flowid 1:1",
        "pref 1 handle 800::7 u32 match u32 0 0 flowid 1:2",
        "pref 1 u32 match u32 0 0 flowid 1:3",
    ];
    assert_eq!(ask(&mut filters(&u32), &mut from(1)), class(2));
    assert_eq!(ask(&mut filters(&u32[..1]), &mut from(1)), class(1));
    // `flower` filters with the same mask are asked one after another, and the mask that was added
    // first comes first. After a match with `continue`, no other filter of the preference is asked.
    let flower = [
        "pref 1 protocol ip flower ip_proto udp src_port 5 classid 1:1",
        "pref 1 protocol ip flower ip_proto udp classid 1:2",
        "pref 1 protocol ip flower ip_proto udp src_port 6 classid 1:3",
        "pref 1 protocol ip flower ip_proto udp src_port 7 classid 1:4 action continue",
        "pref 2 matchall classid 1:5",
    ];
    let mut flower = filters(&flower);
    for (port, minor) in [(5, 1), (6, 3), (7, 5), (8, 2)] {
        assert_eq!(ask(&mut flower, &mut from(port)), class(minor), "{port}");
    }
}

#[test]
fn a_key_beyond_the_end_ends_the_search_at_its_preference() {
    let mut filters = filters(&[
        "pref 1 u32 match u32 0 0 at 80 flowid 1:1",
        "pref 1 u32 match u32 0 0 flowid 1:2",
        "pref 2 u32 match u32 0 0 flowid 1:3",
    ]);
    assert_eq!(ask(&mut filters, &mut packet(&frame(1, 0, 98))), class(1));
    assert_eq!(ask(&mut filters, &mut packet(&frame(1, 0, 97))), class(3));
}

#[test]
fn a_protocol_comes_before_the_filter() {
    let mut filters = filters(&[
        "pref 1 protocol ipv6 matchall classid 1:1",
        "pref 2 protocol 0x0806 matchall classid 1:2",
        "pref 3 protocol ip matchall classid 1:3",
        "pref 4 protocol 802.1Q matchall classid 1:4",
    ]);
    let mut bytes = frame(1, 0, 60);
    for (ethertype, decision) in [
        ([0x08, 0x00], class(3)),
        ([0x08, 0x06], class(2)),
        ([0x86, 0xdd], class(1)),
        ([0x81, 0x00], class(4)),
        ([0x88, 0xa8], Decision::Unknown),
    ] {
        bytes[12..14].copy_from_slice(&ethertype);
        assert_eq!(ask(&mut filters, &mut packet(&bytes)), decision);
    }
    // A datagram without headers has the protocol of its destination address: IPv6 or IPv4.
    let mut pkt = Packet::with_payload(&[0; 9]);
    pkt.set_dest("[fd00::1]:5".parse().ok());
    assert_eq!(ask(&mut filters, &mut pkt), class(1));
    pkt.set_dest("10.0.0.1:5".parse().ok());
    assert_eq!(ask(&mut filters, &mut pkt), class(3));
}

#[test]
fn marks() {
    let mut by_mark = filters(&[
        "pref 1 handle 2/0xf fw classid 1:1",
        "pref 1 handle 3/0xf fw classid 1:2",
        "pref 2 handle 0x10 fw action drop",
        "pref 3 fw",
    ]);
    let cases = [
        (0, Decision::Unknown),
        (2, class(1)),
        (0xf3, class(2)),
        (0x10, Decision::Drop),
        (0x1_0030, class(0x30)),
        (0x30, Decision::Class(Handle::new(0, 0x30))),
        (0x2_0030, Decision::Unknown),
    ];
    for (mark, decision) in cases {
        let mut pkt = from(1);
        pkt.mark = mark;
        assert_eq!(ask(&mut by_mark, &mut pkt), decision, "{mark:x}");
    }
}

#[test]
fn expressions_are_read_from_left_to_right() {
    let (yes, no) = ("cmp(u8 at 9 eq 17)", "cmp(u8 at 9 eq 6)");
    for (text, expected) in [
        (format!("{yes} or {yes} and {no}"), true),
        (format!("{no} and {yes} or {yes}"), false),
        (format!("not {no} and ({no} or {yes})"), true),
        (format!("not ({yes} or {no})"), false),
        ("meta(vlan eq 0)".into(), false),
        ("not meta(vlan eq 0)".into(), true),
        ("meta(protocol eq 8)".into(), true),
        ("cmp(u16 at 12 layer link trans eq 8)".into(), true),
        ("cmp(u16 at 0 layer transport gt 4)".into(), true),
        ("cmp(u32 at 12 mask 0xff lt 2) and u32(u16 9 0xffff at 22)".into(), true),
        ("cmp(u8 at 86 eq 0)".into(), false),
        ("meta(priority shift 4 mask 0xf eq 7)".into(), true),
    ] {
        let mut filters = filters(&[&format!("basic match '{text}' classid 1:1")]);
        let mut pkt = from(5);
        pkt.priority = 0x370;
        assert_eq!(ask(&mut filters, &mut pkt) == class(1), expected, "{text}");
    }
}

#[test]
fn actions_follow_one_another() {
    let cases = [
        ("action pass", class(1)),
        ("action drop", Decision::Drop),
        ("action pipe", class(1)),
        ("action continue", class(9)),
        ("action pipe action drop", Decision::Drop),
        ("action pass action drop", class(1)),
        // The target of a jump is counted from the filter's first action: `jump 2` leads to the
        // third action.
        ("action jump 2 action drop action continue", class(9)),
        // After a jump beyond the last action, or too many jumps in circles, the packet passes.
        ("action jump 7 action drop", class(1)),
        ("action pipe action jump 1", class(1)),
        ("action goto chain 3", class(3)),
        ("action goto chain 4", Decision::Unknown),
        ("action reclassify", Decision::Drop),
        ("action goto chain 5", Decision::Drop),
        ("action police mtu 99 drop", Decision::Drop),
        ("action police mtu 100 drop", class(1)),
        ("action police mtu 99 conform-exceed continue", class(9)),
        ("action police mtu 100 conform-exceed drop/continue", class(9)),
        ("action skbedit priority 1:7 pipe action continue", class(9)),
    ];
    for (actions, decision) in cases {
        let first = format!("pref 1 matchall classid 1:1 {actions}");
        let mut filters = filters(&[
            &first,
            "pref 2 matchall classid 1:9",
            "chain 3 matchall classid 1:3",
            "chain 5 matchall action goto chain 5",
        ]);
        assert_eq!(ask(&mut filters, &mut from(1)), decision, "{actions}");
    }
}

#[test]
fn a_packet_is_edited() {
    let mut filters = filters(&[
        "pref 1 protocol ip u32 match ip sport 1 0xffff \
         action skbedit priority 1:7 mark 0x25/0xf0f queue_mapping 3 continue",
        "pref 2 protocol ip u32 match ip sport 2 0xffff action skbedit inheritdsfield",
    ]);
    let mut pkt = from(1);
    pkt.mark = 0xffff;
    assert_eq!(ask(&mut filters, &mut pkt), Decision::Unknown);
    assert_eq!((pkt.priority, pkt.mark, pkt.queue()), (0x1_0007, 0xf0f5, 3));
    let mut pkt = packet(&frame(2, 0xb9, 60));
    assert_eq!(ask(&mut filters, &mut pkt), Decision::Class(Handle::default()));
    assert_eq!(pkt.priority, 46);
}

#[test]
fn random_by_counting() {
    let mut filters = filters(&["matchall classid 1:1 action ok random determ drop 3"]);
    let decisions: Vec<bool> =
        (0..6).map(|_| ask(&mut filters, &mut from(1)) == Decision::Drop).collect();
    assert_eq!(decisions, [false, false, true, false, false, true]);
}

#[test]
fn flows_are_computed() {
    let mut by_port = filters(&[
        "handle 1 flow map key proto-src and 0xff xor 6 rshift 1 addend 2 baseclass 1:2",
    ]);
    // The filter computes ((0x305 & 0xff ^ 6) >> 1) + 2 = 3. Added to `baseclass` 1:2, that is the
    // class 1:5.
    assert_eq!(ask(&mut by_port, &mut from(0x305)), class(5));
    let mut by_address =
        filters(&["handle 1 flow map key dst addend -10.9.0.0 divisor 5 baseclass 1:4"]);
    assert_eq!(ask(&mut by_address, &mut from(1)), class(6));
    let mut or = filters(&["handle 1 flow map key priority or 4 and 6"]);
    let mut pkt = from(1);
    pkt.priority = 9;
    // By default, the class of a `flow` filter is counted from class 1 on.
    assert_eq!(ask(&mut or, &mut pkt), class(5));
}

#[test]
fn flows_are_spread() {
    let mut hash =
        filters(&["handle 1 flow hash keys src,proto-src,proto-dst divisor 8 perturb 10"]);
    let mut seen = [0; 8];
    for port in 0..4000 {
        let Decision::Class(class) = ask(&mut hash, &mut from(port)) else { panic!("a class") };
        assert_eq!(ask(&mut hash, &mut from(port)), Decision::Class(class));
        seen[usize::from(class.minor) - 1] += 1;
    }
    assert!(seen.iter().all(|count: &i32| count.abs_diff(500) < 100), "{seen:?}");
    // After one period of `perturb` (ten seconds), most flows are in another class.
    let moved = (0..800).filter(|port| {
        let now = Instant(11_000_000_000);
        ask(&mut hash, &mut from(*port)) != hash.classify(&mut from(*port), now)
    });
    assert!(moved.count() > 600);
}

#[test]
fn programs() {
    let run = |code: &str, pkt: &mut Packet| {
        let mut filters = filters(&[&format!("bpf bytecode '{code}' classid 1:1")]);
        ask(&mut filters, pkt)
    };
    let result = |code: &str| match run(code, &mut from(0x1234)) {
        Decision::Class(class) => u32::from(class.major) << 16 | u32::from(class.minor),
        _ => 0,
    };
    // The program that `tcpdump -ddd udp dst port 9` prints.
    let nine = "15,40 0 0 12,21 0 4 34525,48 0 0 20,21 0 10 17,40 0 0 56,21 8 9 9,21 0 8 2048,\
                48 0 0 23,21 0 6 17,40 0 0 20,69 4 0 8191,177 0 0 14,72 0 0 16,21 0 1 9,\
                6 0 0 262144,6 0 0 0";
    assert_eq!(
        run(&nine.replacen("15,", "16,", 1), &mut from(5)),
        Decision::Class(Handle::new(4, 0))
    );
    // Each case: the code of an operation, and the result of that operation on 100 and 7.
    for (code, value) in [
        (0x04, 107),
        (0x14, 93),
        (0x24, 700),
        (0x34, 14),
        (0x44, 103),
        (0x54, 4),
        (0x64, 12_800),
        (0x94, 2),
        (0xa4, 99),
    ] {
        assert_eq!(result(&format!("3,0 0 0 100,{code} 0 0 7,22 0 0 0")), value, "{code:x}");
        let by_x = format!("4,0 0 0 100,1 0 0 7,{} 0 0 0,22 0 0 0", code | 8);
        assert_eq!(result(&by_x), value, "{code:x} x");
    }
    assert_eq!(result("4,0 0 0 100,1 0 0 0,60 0 0 0,6 0 0 5"), 0, "a division by zero");
    assert_eq!(result("3,0 0 0 100,116 0 0 3,22 0 0 0"), 12);
    assert_eq!(result("4,0 0 0 100,1 0 0 35,124 0 0 0,22 0 0 0"), 12, "shifts count to 31");
    assert_eq!(result("2,128 0 0 0,22 0 0 0"), 100, "the length");
    assert_eq!(result("2,40 0 0 34,22 0 0 0"), 0x1234);
    assert_eq!(result("2,40 0 0 4293918740,22 0 0 0"), 0x1234, "from the network header");
    assert_eq!(result("2,40 0 0 4292870178,22 0 0 0"), 0x1234, "from the link header");
    assert_eq!(result("2,32 0 0 97,6 0 0 5"), 0, "beyond the end");
}

#[test]
fn programs_are_checked() {
    for (code, why) in [
        ("0", "expected 1 to 4096 instructions"),
        ("1,0 0 0 1", "the last instruction must be a return"),
        ("2,5 0 0 1,6 0 0 0", "it jumps beyond the end"),
        ("2,21 0 1 1,6 0 0 0", "it jumps beyond the end"),
        ("2,96 0 0 3,6 0 0 0", "it reads memory that was not written"),
        ("4,21 0 1 1,2 0 0 3,96 0 0 3,6 0 0 0", "it reads memory that was not written"),
        ("2,52 0 0 0,6 0 0 0", "it divides by zero"),
        ("2,100 0 0 32,6 0 0 0", "it shifts by more than 31"),
        ("2,2 0 0 16,6 0 0 0", "unknown instruction (0)"),
        ("1,6 0 0", "expected COUNT,CODE JT JF K,… in numbers"),
    ] {
        let said = error(&[&format!("bpf bytecode '{code}'")]);
        assert!(said.ends_with(why), "{code}: {said}");
    }
    filters(&["bpf bytecode '5,21 1 0 1,2 0 0 3,2 0 0 3,96 0 0 3,6 0 0 0'"]);
}

/// Wrong lines as users type them (after `>`), each followed by its error message.
const MISTAKES: &str = r#"
> 
filter: expected a filter: matchall, fw, u32, basic, flower, flow, bpf
> rsvp
filter: unexpected "rsvp": expected a filter: matchall, fw, u32, basic, flower, flow, bpf
> pref 65536 matchall
filter: illegal "pref" "65536": expected a whole number, 0 to 65535
> pref 1 prio 2 matchall
filter: illegal "priority" "2": given twice
> estimator 1sec 4sec matchall
filter: "estimator": estimators are not supported; use the filter's counters
> protocol ipz matchall
filter: illegal "protocol" "ipz": expected all, ip, ipv6, arp, 802.1q, 802.1ad or a number
> matchall classid x
filter matchall: illegal "classid" "x": expected a class such as 1:20, hexadecimal
> matchall
filter matchall: expected a class or an action
> matchall mark 1
filter matchall: unexpected "mark": matchall takes classid, action
> matchall police rate 1mbit burst 5k
filter matchall: unexpected "police": matchall takes classid, action
> matchall classid 1:1 skip_sw
filter matchall: "skip_sw": no hardware here can run the filter alone: leave it out
> handle x fw classid 1:1
filter fw: illegal "handle" "x": expected MARK or MARK/MASK, 0 to 4294967295
> fw classid 1:1
filter fw: "handle": expected `handle MARK` before fw; without one, fw takes no options
> u32 flowid 1:1
filter u32: "match": expected at least one, such as match u32 0 0
> u32 match ip size 3
filter u32: illegal "match ip" "size": expected src, dst, tos, ihl, protocol, nofrag, ...
> u32 match u16 0x10000 ffff at 0
filter u32: illegal "u16" "0x10000": expected a whole number, 0 to 65535
> u32 match u32 1 ffff at 2
filter u32: illegal "u32 at" "2": expected a multiple of 4
> u32 match ip sport 1 0xffff match ip sport 2 0xffff
filter u32: "match": it contradicts an earlier match
> u32 match u32 0 0 link 1:1:1
filter u32: illegal "link" "1:1:1": expected a table such as 1:, hexadecimal
> u32 match u32 0 0 link 1:
filter: illegal "link" "1:": there is no such table; add it with divisor
> u32 divisor 3
filter u32: illegal "divisor" "3": expected a power of two, 1 to 256
> handle x u32 match u32 0 0
filter u32: illegal "handle" "x": expected TABLE:BUCKET:NODE, hexadecimal, such as 800::800
> handle 9::1 u32 match u32 0 0
filter: illegal "handle" "9::1": the filter is added to the table 800:
> basic match 'cmp(u8 at 1 eq 2'
filter basic: "ematch": expected `)`
> basic match 'cmp(u8 eq 2)'
filter basic: illegal "cmp" ")": expected at OFFSET
> basic match 'u32(u8 1 1)'
filter basic: illegal "u8" ")": expected at OFFSET after the mask
> basic match 'u32(u8 1 f at 0)'
filter basic: illegal "u8" "f": expected a value and a mask, such as 0x1122 0xffff
> basic match 'text(x)'
filter basic: illegal "ematch" "text": expected cmp, u32, meta, nbyte, not or `(`
> flower src_ip 10.0.0.1
filter flower: "src_ip": it needs protocol ip or ipv6 before it
> protocol ip flower src_port 5
filter flower: "src_port": it needs ip_proto tcp, udp or sctp before it
> protocol ip flower src_ip fd00::1
filter flower: illegal "src_ip" "fd00::1": expected an IPv4 prefix such as 10.0.0.0/8
> flow map key src
filter flow: "handle": expected `handle NUMBER` before the kind, other than 0
> handle 1 flow hash keys src,colour
filter flow: illegal "keys" "src,colour": expected keys separated by commas: src, dst, proto, ...
> bpf object-file x.o
filter bpf: "object-file": this parser reads no files: use `filter::with_files`
> bpf object-pinned /sys/fs/bpf/x
filter bpf: "object-pinned": there is no kernel here that could hold a pinned program
> bpf ebpf-bytecode 95
filter bpf: illegal "ebpf-bytecode" "1 bytes": expected 1 to 4096 instructions of 8 bytes
> bpf ebpf-bytecode 9500000000000000
filter bpf: "ebpf-bytecode": instruction 0: it reads r0, which was not written
> bpf classid 1:1
filter bpf: "bytecode": expected a program, as `tcpdump -ddd` prints it
> matchall action jump
filter matchall: "jump": expected a whole number, 0 to 65535
> matchall action mirred
filter matchall: illegal "action" "mirred": not supported; expected an action: ok, pass, ...
> matchall action police rate fast
filter matchall: illegal "rate" "fast": expected a rate such as 8mbit or 1mbps (bytes)
> matchall action police burst 5k
filter matchall: "police": expected rate, pkts_rate or mtu
> matchall action police rate 1mbit
filter matchall: "burst": rate needs it
> matchall action police rate 1mbit burst 5k peakrate 2mbit
filter matchall: "mtu": peakrate needs it
> matchall action police avrate 1mbit
filter matchall: "avrate": estimators are not supported: use rate
> matchall action skbedit
filter matchall: "skbedit": expected priority, mark, queue_mapping or inheritdsfield
> matchall action skbedit ptype host
filter matchall: "ptype": packets have no type in Onramp: leave it out
> matchall action pass skip_hw
filter matchall: "skip_hw": it is an option of the filter: give it before the action
> matchall action drop index 7 action pass index 7
filter: illegal "index" "7": filters cannot share an action in Onramp: give each filter its own
"#;

#[test]
fn mistakes_name_the_word_and_what_is_allowed() {
    let mut lines = MISTAKES.trim().lines();
    while let (Some(typed), Some(answer)) = (lines.next(), lines.next()) {
        let typed = typed.strip_prefix('>').expect("typed lines are marked").trim();
        let told = error(&[typed]);
        match answer.strip_suffix("...") {
            Some(start) => assert!(told.starts_with(start), "{typed}: {told}"),
            None => assert_eq!(told, answer, "{typed}"),
        }
    }
}

#[test]
fn filters_of_one_preference_are_of_one_kind() {
    let twice = error(&["pref 1 matchall classid 1:1", "pref 1 matchall classid 1:1"]);
    assert!(twice.contains("at most one matchall filter"), "{twice}");
    let kinds = error(&["pref 1 basic classid 1:1", "pref 1 matchall classid 1:1"]);
    assert!(kinds.ends_with("the filters with this preference are of the kind basic"), "{kinds}");
    error(&["pref 1 protocol ip basic classid 1:1", "pref 1 protocol ipv6 basic classid 1:1"]);
    error(&["pref 1 handle 1/3 fw classid 1:1", "pref 1 handle 2/7 fw classid 1:1"]);
    error(&["pref 1 handle 1 fw classid 1:1", "pref 1 fw"]);
    error(&["pref 1 handle 1 basic classid 1:1", "pref 1 handle 1 basic classid 1:1"]);
    // Filters that match the same packets may exist at different preferences and in different
    // chains.
    let all = "matchall classid 1:1";
    filters(&[
        &format!("pref 1 {all}"),
        &format!("pref 2 {all}"),
        "chain 1 pref 1 basic classid 1:1",
    ]);
    // Preference 32768 is taken, so no lower one is left for a filter without `pref`.
    let full = error(&[&format!("pref 32768 {all}"), all]);
    assert!(full.ends_with("the lowest one, 32768, is taken"), "{full}");
}

/// Returns one or two words, which belong to the command language or are random.
fn word() -> impl Strategy<Value = String> {
    const WORDS: &str = "
        pref protocol ip ipv6 all 802.1q handle 800::1 chain matchall fw u32 basic flower flow
        bpf match u8 u16 at nexthdr+4 ip6 tcp src dst sport 10.0.0.0/8 fd00::/9 0xffff flowid
        1:2 classid cmp(u8 u32(u32 meta(priority eq 1) ( ) and or not layer 2 vlan_id ip_proto
        udp src_port 5-9 src_mac 1:2:3:4:5:6/40 map hash key keys src,dst divisor addend -5
        rshift 31 bytecode '1,6 0 65537' 2,48 4294967295 action police rate 1mbit burst 10k mtu
        peakrate conform-exceed drop/pipe skbedit priority mark pass drop reclassify goto jump
        random determ continue 1";
    let words: Vec<&str> = WORDS.split_ascii_whitespace().collect();
    prop_oneof![
        20 => prop::sample::select(words).prop_map(str::to_owned),
        1 => any::<u32>().prop_map(|number| number.to_string()),
        1 => "\\PC{0,6}",
    ]
}

/// Returns a line that is correct, except that some words may have been replaced.
fn line() -> impl Strategy<Value = String> {
    const LINES: &[&str] = &[
        "protocol ip u32 match ip src 10.9.0.0/16 match u8 1 1 at -14 flowid 1:1 action drop",
        "pref 7 u32 match u16 0 0 at 65534 match mark 1 1 action reclassify",
        "basic match 'cmp(u32 at -14 layer 1 mask 3 lt 9) or nbyte(x at 9 layer 2)' classid 1:3",
        "protocol ipv6 flower ip_proto tcp src_port 1-9 tcp_flags 0x2/2 dst_ip fd00::/8 \
         classid 1:4",
        "flower src_mac 1:2:3:4:5:6/9 action police rate 1mbit burst 9k peakrate 2mbit mtu 900 \
         drop",
        "handle 1 flow hash keys src,proto-dst,vlan-tag divisor 5 baseclass 1:ffff",
        "handle 2 flow map key dst rshift 31 addend -1 xor 4 or 9",
        "bpf bytecode '4,80 0 0 4294967295,64 0 0 2147483647,84 0 0 15,22 0 0 0'",
        "bpf bytecode '3,177 0 0 4293918720,72 0 0 4293918720,22 0 0 0' action jump 1 action pipe",
        "bpf ebpf-bytecode 610008000000000061114c0000000000711017000000000095 da classid 1:2",
        "bpf ebpf-bytecode 61100800000000009500000000000000 classid 1:2 action pass",
        "matchall action ok random netrand jump 1 7 action skbedit inheritdsfield",
    ];
    let nearly = (prop::sample::select(LINES), any::<prop::sample::Index>(), word());
    let nearly = nearly.prop_map(|(line, place, word)| {
        let mut words: Vec<_> = line.split(' ').collect();
        let place = place.index(words.len());
        words[place] = &word;
        words.join(" ")
    });
    prop_oneof![
        3 => prop::sample::select(LINES).prop_map(str::to_owned),
        5 => nearly,
        2 => prop::collection::vec(word(), 0..12).prop_map(|words| words.join(" ")),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Key {
    bits: u32,
    value: u32,
    mask: u32,
    offset: i32,
}

/// Returns `u32` keys with few bits in value and mask, so that keys often match.
fn key() -> impl Strategy<Value = Key> {
    let mask = prop::sample::select(&[0_u32, 1, 0x80, 0x10, 3][..]);
    let bits = prop::sample::select(&[8_u32, 16, 32][..]);
    (bits, 0_u32..4, mask, -4_i32..14).prop_map(|(bits, value, mask, place)| Key {
        bits,
        value,
        mask,
        offset: place * i32::try_from(bits / 8).expect("small"),
    })
}

/// Whether a key matches by the description in the manual: the key's bits at an offset from the IP
/// header are compared under a mask.
fn key_matches(key: Key, bytes: &[u8]) -> bool {
    let first = 14 + key.offset;
    let number = (first..).take((key.bits / 8) as usize).fold(0_u32, |sum, at| {
        let byte = usize::try_from(at).map_or(0, |at| bytes[at]);
        sum << 8 | u32::from(byte)
    });
    number & key.mask == key.value & key.mask
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// No line makes the parser panic. No packet makes a filter panic that an accepted line
    /// created.
    #[test]
    fn nothing_panics(
        lines in prop::collection::vec(line(), 1..6),
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        layer in prop::sample::select(&[Layer::Datagram, Layer::Ip, Layer::Ethernet][..]),
        times in prop::collection::vec(any::<u64>(), 1..4),
    ) {
        let mut filters = Filters::default();
        for line in &lines {
            if let Ok(some) = try_filters(&[line]) {
                some.filters.into_iter().for_each(|filter| filters.filters.push(filter));
            }
        }
        for now in times {
            let mut pkt = Packet::with_payload(&bytes);
            pkt.set_layer(layer);
            pkt.mark = 1;
            let _ = filters.classify(&mut pkt, Instant(now));
        }
    }

    /// `u32` decides as a plain model of the manual says.
    #[test]
    fn u32_is_what_the_manual_says(
        rules in prop::collection::vec(prop::collection::vec(key(), 1..4), 1..5),
        noise in prop::collection::vec(any::<(u8, u8)>(), 0..30),
        len in 60_usize..74,
    ) {
        let mut bytes = frame(0, 0, len);
        for (at, byte) in noise {
            let at = usize::from(at) % len;
            // Change any byte but the Ethernet type, which decides where the IP header begins.
            bytes[at] = if (12..14).contains(&at) { bytes[at] } else { byte & 0x93 };
        }
        let mut expected = Decision::Unknown;
        let mut lines = Vec::new();
        let mut over = false;
        for (number, keys) in (1_u16..).zip(&rules) {
            let keys_text = keys.iter().map(|key| {
                format!("match u{} {} {:x} at {}", key.bits, key.value, key.mask, key.offset)
            });
            let text = keys_text.collect::<Vec<_>>().join(" ");
            let line = format!("pref 1 protocol ip u32 {text} flowid 1:{number:x}");
            // A line can be refused only because two of its keys give different values to the same
            // bits. Continue without that line.
            if try_filters(&[&line]).is_err() {
                let never = keys.iter().any(|a| keys.iter().any(|b| a.offset / 4 == b.offset / 4));
                prop_assert!(never);
                continue;
            }
            lines.push(line);
            // Words of four bytes are compared in the order in which the keys name them. The first
            // key beyond the end of the packet ends the search.
            let word = |key: &Key| 14 + key.offset.div_euclid(4) * 4;
            let mut order: Vec<i32> = keys.iter().map(word).collect();
            let mut seen = Vec::new();
            order.retain(|at| !seen.contains(at) && { seen.push(*at); true });
            let mut all = true;
            for at in order {
                if over || !all {
                    break;
                }
                if usize::try_from(at + 4).is_ok_and(|end| end > len) {
                    over = true;
                    break;
                }
                let mut same = keys.iter().filter(|key| word(key) == at);
                all = same.all(|key| key_matches(*key, &bytes));
            }
            if !over && all && expected == Decision::Unknown {
                expected = class(number);
                over = true;
            }
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        prop_assert_eq!(ask(&mut filters(&lines), &mut packet(&bytes)), expected);
    }

    /// In any interval of time, no more bytes conform to a policer than `burst` plus what `rate`
    /// allows.
    #[test]
    fn police_lets_through_what_it_was_told(
        arrivals in prop::collection::vec((0_u64..3_000_000, 60_u32..1515), 1..200),
        peak in any::<bool>(),
    ) {
        const RATE: f64 = 1e6;
        const BURST: f64 = 5000.0;
        let line = "matchall classid 1:1 action police rate 8mbit burst 5000 mtu 1514 drop";
        let line = if peak { format!("{line} peakrate 12mbit") } else { line.to_owned() };
        let mut filters = filters(&[&line]);
        let mut now = 1_000_000_000_u64;
        let mut sent: Vec<(u64, u32)> = Vec::new();
        for (gap, len) in arrivals {
            now += gap;
            let before = sent.clone();
            if filters.classify(&mut Packet::new(len), Instant(now)) == class(1) {
                sent.push((now, len));
            }
            let fits = |sent: &[(u64, u32)], rate: f64, burst: f64| {
                let mut bytes = 0.0;
                sent.iter().rev().all(|(time, len)| {
                    bytes += f64::from(*len);
                    #[expect(clippy::cast_precision_loss, reason = "small")]
                    let seconds = (now - time) as f64 / 1e9;
                    bytes <= burst + rate * seconds
                })
            };
            // Rounding may lose up to 64 ns of the burst, and a nanosecond in each sum, so one byte
            // of difference is allowed.
            prop_assert!(fits(&sent, RATE, BURST + 1.0));
            prop_assert!(!peak || fits(&sent, 1.5e6, 1514.0 + 1.0));
            if sent.len() == before.len() && !peak {
                let mut with = before;
                with.push((now, len));
                prop_assert!(!fits(&with, RATE, BURST - 1.0), "it would have fitted");
            }
        }
    }
}
