//! Tests of programs for the classic `bpf` machine: what each instruction does (McCanne and
//! Jacobson 1993; Linux's `Documentation/networking/filter.rst`), and which programs are refused.

use onramp_queue::Packet;

use super::super::Bpf;
use super::tools::{are_wrong, json, ports, tagged, text, v4, wrong};
use super::{Decision, ask, class, filters, packet};

fn program(code: &str) -> Bpf {
    code.parse().unwrap_or_else(|error| panic!("{code}: {error}"))
}

/// Runs these instructions, and then one that returns the register A. Returns the value of A.
fn left(code: &[&str], pkt: &Packet) -> u32 {
    program(&format!("{},{},22 0 0 0", code.len() + 1, code.join(","))).run(pkt)
}

/// Returns a packet whose 100 bytes are 0x80, 0x81, and so on.
fn counted() -> Packet {
    let bytes: Vec<u8> = (0..100_u8).map(|at| at.wrapping_add(0x80)).collect();
    packet(&bytes)
}

/// Returns a negative offset as an unsigned number of 32 bits, as programs contain it.
fn below(number: i64) -> String {
    u32::try_from(number + (1 << 32)).expect("32 bits").to_string()
}

#[test]
fn bytes_are_loaded() {
    let pkt = counted();
    let load = |code: u32, x: u32, k: &str| {
        let x = format!("1 0 0 {x}");
        // Before the load, all bits of A are set. If the load fails, the program ends with 0.
        left(&["0 0 0 4294967295", &x, &format!("{code} 0 0 {k}")], &pkt)
    };
    for at in [0, 1, 50, 96] {
        let [a, b, c, d] = [0, 1, 2, 3].map(|more: u32| at + more + 0x80);
        let (word, half) = (a << 24 | b << 16 | c << 8 | d, a << 8 | b);
        let k = at.to_string();
        assert_eq!(load(0x20, 7, &k), word, "{at}");
        assert_eq!(load(0x28, 7, &k), half, "{at}");
        assert_eq!(load(0x30, 7, &k), a, "{at}");
        // An indirect load adds the index register X to the offset.
        for x in [0, at] {
            let k = (at - x).to_string();
            assert_eq!(load(0x40, x, &k), word, "{at}");
            assert_eq!(load(0x48, x, &k), half, "{at}");
            assert_eq!(load(0x50, x, &k), a, "{at}");
        }
    }
    for (code, last) in [(0x20, 96), (0x28, 98), (0x30, 99)] {
        assert_ne!(load(code, 0, &last.to_string()), 0);
        assert_eq!(load(code, 0, &(last + 1).to_string()), 0, "{code:x}");
        assert_eq!(load(code + 0x20, last + 1, "0"), 0, "{code:x}");
    }
    // Code 177 sets X to four times the low half of a byte: the length of an IP header.
    assert_eq!(left(&["177 0 0 7", "135 0 0 0"], &pkt), 4 * 7);
    assert_eq!(left(&["177 0 0 31", "135 0 0 0"], &pkt), 4 * 15);
    assert_eq!(left(&["0 0 0 5", "177 0 0 100"], &pkt), 0);
    // Offsets from -0x10_0000 on count from the network header, and offsets from -0x20_0000 on from
    // the link header.
    assert_eq!(load(0x30, 0, &below(-0x10_0000)), 0x80 + 14);
    assert_eq!(load(0x30, 0, &below(-0x10_0000 + 85)), 0x80 + 99);
    assert_eq!(load(0x30, 0, &below(-0x10_0000 + 86)), 0);
    assert_eq!(load(0x30, 0, &below(-0x20_0000)), 0x80);
    assert_eq!(load(0x30, 0, &below(-0x20_0000 + 99)), 0x80 + 99);
    assert_eq!(load(0x30, 0, &below(-0x20_0000 + 100)), 0);
    assert_eq!(load(0x30, 0, &below(-0x20_0001)), 0);
    assert_eq!(load(0x50, 3, &below(-0x20_0000)), 0x83);
}

#[test]
fn what_is_beside_the_packet() {
    let frame = v4(17, &[], &ports(1, 2));
    let say = |mut pkt: Packet| {
        (pkt.mark, pkt.len) = (0xdead_beef, 1234);
        pkt.set_queue(7);
        pkt
    };
    let (plain, tag) = (say(packet(&frame)), say(packet(&tagged(&frame, 0x88a8, 5, 0x123))));
    for (offset, of_plain, of_tagged) in [
        (0, 0x0800, 0x88a8),
        // The packet type always reads as 0, which means a packet for this host.
        (4, 0, 0),
        (20, 0xdead_beef, 0xdead_beef),
        (24, 7, 7),
        (44, 0, 0xa123),
        (48, 0, 1),
        (60, 0, 0x88a8),
    ] {
        for code in [0x20, 0x28, 0x30] {
            let load = format!("{code} 0 0 {}", below(-0x1000 + offset));
            assert_eq!(left(&["0 0 0 1", &load], &plain), of_plain, "{offset}");
            assert_eq!(left(&["0 0 0 1", &load], &tag), of_tagged, "{offset}");
        }
    }
    // Loads of metadata that exists only in Linux are refused, up to the last offset that names
    // metadata.
    for offset in [8, 12, 16, 28, 32, 36, 40, 52, 56, 64, 0xfff] {
        let load = format!("2,32 0 0 {},22 0 0 0", below(-0x1000 + offset));
        let error = load.parse::<Bpf>().expect_err("no such thing").to_string();
        assert!(error.ends_with("unknown instruction (0)"), "{error}");
    }
    // Offset -0x1001 counts from the network header and lies beyond the end of the packet, so the
    // program ends with 0.
    assert_eq!(left(&["0 0 0 1", &format!("32 0 0 {}", below(-0x1001))], &plain), 0);
    assert_eq!(left(&["128 0 0 0"], &plain), 1234);
    assert_eq!(left(&["129 0 0 0", "135 0 0 0"], &plain), 1234);
}

#[test]
fn registers_and_memory() {
    let pkt = counted();
    assert_eq!(left(&["0 0 0 4000000000"], &pkt), 4_000_000_000);
    // The first program copies A to X and back; the second copies X to A.
    assert_eq!(left(&["0 0 0 5", "7 0 0 0", "0 0 0 6", "135 0 0 0"], &pkt), 5);
    assert_eq!(left(&["0 0 0 6", "1 0 0 5", "135 0 0 0"], &pkt), 5);
    // A program has 16 places of memory. Writing to one does not change the others.
    for place in 0..16 {
        let other = 15 - place;
        let code = [
            "0 0 0 5".to_owned(),
            format!("2 0 0 {place}"),
            "1 0 0 7".to_owned(),
            format!("3 0 0 {other}"),
            "0 0 0 0".to_owned(),
            "1 0 0 0".to_owned(),
            format!("96 0 0 {place}"),
            format!("97 0 0 {other}"),
            // The program returns 16 A + X, so that the test sees both registers.
            "100 0 0 4".to_owned(),
            "12 0 0 0".to_owned(),
        ];
        let code: Vec<&str> = code.iter().map(String::as_str).collect();
        assert_eq!(left(&code, &pkt), 16 * 5 + 7, "{place}");
    }
    assert_eq!(left(&["0 0 0 5", "132 0 0 0"], &pkt), 5_u32.wrapping_neg());
    // A return instruction with a constant returns the constant unchanged.
    assert_eq!(program("1,6 0 0 4294967295").run(&pkt), u32::MAX);
    assert_eq!(program("2,0 0 0 9,6 0 0 3").run(&pkt), 3);
}

#[test]
fn arithmetic() {
    let pkt = counted();
    let ones = u32::MAX;
    for (a, b) in [
        (0, 1),
        (7, 2),
        (2, 7),
        (ones, 1),
        (ones, ones),
        (0x8000_0000, 3),
        (0x1234_5678, 0x0f0f_0f0f),
        (100_000, 100_000),
        (5, 5),
        (1, 31),
    ] {
        for (code, expected) in [
            (0x04, u64::from(a) + u64::from(b)),
            (0x14, u64::from(a) + (1 << 32) - u64::from(b)),
            (0x24, u64::from(a) * u64::from(b)),
            (0x34, u64::from(a) / u64::from(b)),
            (0x44, u64::from(a | b)),
            (0x54, u64::from(a & b)),
            (0x94, u64::from(a) % u64::from(b)),
            (0xa4, u64::from(a ^ b)),
            (0x64, u64::from(a) << (b % 32)),
            (0x74, u64::from(a) >> (b % 32)),
        ] {
            let expected = u32::try_from(expected & 0xffff_ffff).expect("32 bits");
            let set = format!("0 0 0 {a}");
            let shifts = matches!(code, 0x64 | 0x74);
            if !shifts || b < 32 {
                let by = format!("{code} 0 0 {b}");
                assert_eq!(left(&[&set, &by], &pkt), expected, "{code:x}: {a}, {b}");
            }
            let (x, by) = (format!("1 0 0 {b}"), format!("{} 0 0 9", code | 8));
            assert_eq!(left(&[&set, &x, &by], &pkt), expected, "{code:x}: {a}, {b}");
        }
    }
    // If X is zero, a division by X ends the program with 0.
    for code in [0x3c, 0x9c] {
        let by = format!("{code} 0 0 0");
        assert_eq!(left(&["0 0 0 5", "1 0 0 0", &by, "0 0 0 8"], &pkt), 0);
    }
}

#[test]
fn jumps() {
    let pkt = counted();
    // A jump skips as many instructions as its number says.
    for (over, value) in [(0, 3), (1, 2), (2, 1), (3, 0)] {
        let jump = format!("5 0 0 {over}");
        let add = "4 0 0 1";
        assert_eq!(left(&["0 0 0 0", &jump, add, add, add], &pkt), value, "{over}");
    }
    let ones = u32::MAX;
    for (a, b) in
        [(5, 4), (5, 5), (5, 6), (0, 0), (ones, 1), (1, ones), (6, 3), (4, 3), (ones, ones)]
    {
        for (code, holds) in [(0x15, a == b), (0x25, a > b), (0x35, a >= b), (0x45, a & b != 0)] {
            let set = format!("0 0 0 {a}");
            // If the condition holds, the program returns 1, and otherwise 2. The answer 9 would
            // mean that the jump led to a wrong instruction.
            let both = |branch: String, before: &[&str]| {
                let rest = [&*branch, "6 0 0 9", "6 0 0 1", "6 0 0 9", "6 0 0 2", "6 0 0 9"];
                let all = [before, &rest[..]].concat();
                program(&format!("{},{}", all.len(), all.join(","))).run(&pkt)
            };
            let expected = if holds { 1 } else { 2 };
            assert_eq!(
                both(format!("{code} 1 3 {b}"), &[set.as_str()]),
                expected,
                "{code:x}: {a}, {b}"
            );
            let x = format!("1 0 0 {b}");
            let found = both(format!("{} 1 3 77", code | 8), &[set.as_str(), x.as_str()]);
            assert_eq!(found, expected, "{code:x}: {a}, {b}");
        }
    }
    // The longest conditional jump skips 255 instructions.
    let far = vec!["4 0 0 1"; 255];
    let code = [&["0 0 0 0", "21 255 0 0"][..], &far, &["4 0 0 7"]].concat();
    assert_eq!(left(&code, &pkt), 7);
    let wrong = "2,21 256 0 0,6 0 0 0".parse::<Bpf>().expect_err("too far").to_string();
    assert!(wrong.ends_with("unknown instruction (0)"), "{wrong}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn what_is_wrong_with_a_program() {
    let memory = "it reads memory that was not written";
    let beyond = "it jumps beyond the end";
    for (code, place, why) in [
        ("1,0 0 0 1", 0, "the last instruction must be a return"),
        ("2,6 0 0 0,0 0 0 1", 1, "the last instruction must be a return"),
        ("2,6 0 0 0,5 0 0 0", 1, beyond),
        ("3,0 0 0 0,5 0 0 1,6 0 0 0", 1, beyond),
        ("3,0 0 0 0,21 1 0 0,6 0 0 0", 1, beyond),
        ("3,0 0 0 0,21 0 1 0,6 0 0 0", 1, beyond),
        ("2,96 0 0 3,6 0 0 0", 0, memory),
        ("2,97 0 0 3,6 0 0 0", 0, memory),
        ("3,2 0 0 3,96 0 0 4,6 0 0 0", 1, memory),
        ("3,3 0 0 15,97 0 0 14,6 0 0 0", 1, memory),
        // A place of memory that is written on only one path to the instruction must not be read.
        ("4,21 1 0 0,2 0 0 3,96 0 0 3,6 0 0 0", 2, memory),
        ("5,21 0 1 0,2 0 0 3,5 0 0 0,96 0 0 3,6 0 0 0", 3, memory),
        ("5,21 0 2 0,2 0 0 3,5 0 0 0,96 0 0 3,6 0 0 0", 3, memory),
        ("2,52 0 0 0,6 0 0 0", 0, "it divides by zero"),
        ("2,148 0 0 0,6 0 0 0", 0, "it divides by zero"),
        ("2,100 0 0 32,6 0 0 0", 0, "it shifts by more than 31"),
        ("2,116 0 0 4294967295,6 0 0 0", 0, "it shifts by more than 31"),
    ] {
        let said = format!("bpf: illegal \"bytecode\" \"instruction {place}\": {why}");
        let error = code.parse::<Bpf>().expect_err(code);
        assert_eq!(error.to_string(), said, "{code}");
        assert_eq!(error.fault.code(), 2, "{code}");
    }
    for code in [
        // Valid programs: the place of memory is written on every path to the load, or the
        // instruction before the load always jumps elsewhere.
        "6,21 1 0 1,2 0 0 3,2 0 0 3,3 0 0 3,96 0 0 3,6 0 0 0",
        "6,21 0 2 0,2 0 0 3,5 0 0 1,5 0 0 1,96 0 0 3,6 0 0 0",
        "6,21 0 2 0,2 0 0 3,5 0 0 1,21 1 1 0,96 0 0 3,6 0 0 0",
        "2,100 0 0 31,6 0 0 0",
        "2,116 0 0 0,22 0 0 0",
        "3,2 0 0 15,96 0 0 15,6 0 0 0",
        "2,21 0 0 0,6 0 0 0",
        "2,5 0 0 0,6 0 0 0",
    ] {
        program(code);
    }
    for (raw, place) in [
        ("2,2 0 0 16,6 0 0 0", 0),
        ("2,3 0 0 16,6 0 0 0", 0),
        ("2,96 0 0 16,6 0 0 0", 0),
        ("3,0 0 0 0,97 0 0 16,6 0 0 0", 1),
        ("2,255 0 0 0,6 0 0 0", 0),
        ("2,180 0 0 0,6 0 0 0", 0),
        ("2,85 0 0 0,6 0 0 0", 0),
        ("2,8 0 0 0,6 0 0 0", 0),
        ("2,0 256 0 0,6 0 0 0", 0),
        ("2,0 0 256 0,6 0 0 0", 0),
        ("2,5 0 0 65536,6 0 0 0", 0),
        ("2,256 0 0 0,6 0 0 0", 0),
        ("2,260 0 0 0,6 0 0 0", 0),
        ("2,277 0 0 0,6 0 0 0", 0),
    ] {
        let error = raw.parse::<Bpf>().expect_err(raw);
        let numbers: Vec<&str> = raw.split(',').nth(1 + place).expect("one").split(' ').collect();
        let numbers = numbers.join(", ");
        let said =
            format!("bpf: illegal \"bytecode\" \"[{numbers}]\": unknown instruction ({place})");
        assert_eq!((error.to_string(), error.fault.code()), (said, 2), "{raw}");
    }
    let numbers = "expected COUNT,CODE JT JF K,… in numbers";
    let count = "expected 1 to 4096 instructions";
    for (code, said) in [
        ("", format!("bpf: \"bytecode\": {numbers}")),
        ("1,6 0 0", format!("bpf: \"bytecode\": {numbers}")),
        ("1,6 0 x 0", format!("bpf: illegal \"bytecode\" \"x\": {numbers}")),
        ("0", format!("bpf: illegal \"bytecode\" \"0\": {count}")),
        ("4097", format!("bpf: illegal \"bytecode\" \"4097\": {count}")),
        ("1,6 0 0 0,6", "bpf: \"bytecode\": expected 1 instructions, as its count says".to_owned()),
        ("1,6 0 0 0 6", "bpf: illegal \"bytecode\" \"6\": expected the end".to_owned()),
    ] {
        let error = code.parse::<Bpf>().expect_err(code);
        assert_eq!((error.to_string(), error.fault.code()), (said, 1), "{code}");
    }
    let long =
        |count: usize| format!("{count},{}6 0 0 0", "0 0 0 0,".repeat(count - 1)).parse::<Bpf>();
    assert_eq!(long(4096).expect("the longest").run(&Packet::new(1)), 0);
    assert!(long(4097).is_err());
    // Commas at the end of a program and spaces beside commas do not matter.
    assert_eq!(program("2, 0 0 0 9, 22 0 0 0,").run(&Packet::new(1)), 9);
}

/// If a program returns 0, the filter does not match; if it returns -1 (all bits set), the packet
/// gets the filter's class; any other number is the packet's class.
#[test]
fn answers() {
    let asked = |rest: &str| {
        let lines = [&*format!("pref 1 bpf {rest}"), "pref 2 matchall classid 1:9"];
        ask(&mut filters(&lines), &mut counted())
    };
    assert_eq!(asked("bytecode '1,6 0 0 0' classid 1:2"), class(9));
    assert_eq!(asked("bytecode '1,6 0 0 4294967295' classid 1:2"), class(2));
    assert_eq!(asked("bytecode '1,6 0 0 65539' classid 1:2"), class(3));
    assert_eq!(
        asked("bytecode '1,6 0 0 5' classid 1:2"),
        Decision::Class(crate::base::Handle::new(0, 5))
    );
    // With `direct-action`, the number that the program returns says what happens to the packet.
    for (said, expected) in [
        (0, class(2)),
        (1, class(9)),
        (2, Decision::Drop),
        (3, class(9)),
        (4, Decision::Drop),
        (5, class(9)),
        (6, class(9)),
        (7, Decision::Drop),
        (8, Decision::Drop),
        (9, class(9)),
        (u32::MAX, class(9)),
    ] {
        assert_eq!(asked(&format!("bytecode '1,6 0 0 {said}' da classid 1:2")), expected, "{said}");
        assert_eq!(asked(&format!("bc '1,6 0 0 {said}' direct-action classid 1:2")), expected);
    }
    // With `direct-action`, a filter without a class gives the packet the class 0:0.
    assert_eq!(asked("bytecode '1,6 0 0 0' da"), Decision::Class(crate::base::Handle::default()));
    // This eBPF program returns `tc_classid`, which is 0 when the program starts without
    // `direct-action`.
    let class_of = "ebpf-bytecode 61104800000000009500000000000000";
    assert_eq!(asked(&format!("{class_of} classid 1:2")), class(9));
    // With `direct-action`, `tc_classid` is the minor number of the filter's class when the program
    // starts: 2 means drop, and 5 has no meaning, so that the filter does not match.
    assert_eq!(asked(&format!("{class_of} da classid 1:2")), Decision::Drop);
    assert_eq!(asked(&format!("{class_of} da classid 1:5")), class(9));
}

#[test]
fn programs_are_shown() {
    let two = "bytecode '2,128 0 0 0,22 0 0 0'";
    let line = |rest: &str| text(&format!("pref 1 bpf {rest}"));
    assert_eq!(line(two), format!("handle 0x1 not_in_hw {two}"));
    assert_eq!(
        line(&format!("{two} classid 1:2")),
        format!("handle 0x1 flowid 1:2 not_in_hw {two}")
    );
    assert_eq!(
        line(&format!("run {two} da flowid 1:2 skip_hw")),
        format!("handle 0x1 flowid 1:2 direct-action skip_hw not_in_hw {two}")
    );
    let digits = "b7000000010000009500000000000000";
    assert_eq!(
        line(&format!("ebpf-bytecode {digits} da")),
        format!("handle 0x1 direct-action not_in_hw ebpf-bytecode {digits}")
    );
    assert_eq!(
        line(&format!("da ebpf-bytecode {digits} classid 1:2")),
        format!("handle 0x1 flowid 1:2 direct-action not_in_hw ebpf-bytecode {digits}")
    );
    assert!(
        line(&format!("{two} police mtu 500")).contains(&format!("not_in_hw {two}\n police 0x1 "))
    );
    assert_eq!(
        json(&format!("pref 1 handle 17 bpf {two} da skip_hw")),
        concat!(
            r#"{"handle":"0x11","direct-action":true,"skip_hw":true,"not_in_hw":true,"bytecode":"#,
            r#"{"length":2,"insns":[{"code":128,"jt":0,"jf":0,"k":0},"#,
            r#"{"code":22,"jt":0,"jf":0,"k":0}]}}"#
        )
    );
    assert_eq!(
        json(&format!("pref 1 bpf ebpf-bytecode {digits}")),
        format!(r#"{{"handle":"0x1","not_in_hw":true,"ebpf_bytecode":"{digits}"}}"#)
    );
}

/// A program with `direct-action` decides alone: actions are listed and never run, as in Linux.
#[test]
fn actions_beside_direct_action_never_run() {
    for program in ["bytecode '1,6 0 0 0'", "ebpf-bytecode b7000000000000009500000000000000"] {
        let line = format!("pref 1 bpf da {program} classid 1:4 action drop");
        let shown = text(&line["pref 1 ".len()..]);
        assert!(shown.contains("flowid 1:4 direct-action not_in_hw "), "{shown}");
        assert!(shown.contains("action order 1: gact action drop"), "{shown}");
        let mut filters = filters(&[&line]);
        let frame = v4(17, &[], &[]);
        assert_eq!(ask(&mut filters, &mut packet(&frame)), class(4), "{program}");
        let filter = filters.specs().next().expect("it is there");
        assert_eq!((filter.hits, filter.actions[0].counters.packets), (1, 0));
    }
}

/// If a word of a `bpf` filter is wrong, the filter is refused, and the error says what would be
/// right.
#[test]
fn programs_that_cannot_be_read_are_refused() {
    let two = "bytecode '2,128 0 0 0,22 0 0 0'";
    let digits = "b7000000010000009500000000000000";
    let files = "this parser reads no files: use `filter::with_files`";
    for word in ["bytecode-file", "bcf", "object-file", "obj"] {
        let said = format!("filter bpf: \"{word}\": {files}");
        assert_eq!(wrong(&format!("bpf {word} x")), (1, said));
    }
    for word in ["object-pinned", "pinned"] {
        let said = format!(
            "filter bpf: \"{word}\": there is no kernel here that could hold a pinned \
             program"
        );
        assert_eq!(wrong(&format!("bpf {word} x")), (1, said));
    }
    are_wrong(&[
        (
            &format!("bpf {two} ebpf-bytecode {digits}"),
            1,
            "filter bpf: \"bytecode\": use either bytecode or ebpf-bytecode, not both",
        ),
        ("bpf da", 2, "filter bpf: \"bytecode\": expected a program, as `tcpdump -ddd` prints it"),
        ("bpf", 2, "filter bpf: \"bytecode\": expected a program, as `tcpdump -ddd` prints it"),
        (
            "bpf ebpf-bytecode xx",
            1,
            "filter bpf: illegal \"ebpf-bytecode\" \"xx\": expected hexadecimal digits, 16 for \
             each instruction",
        ),
        (
            &format!("bpf {two} colour 1"),
            1,
            "filter bpf: unexpected \"colour\": bpf takes bytecode, ebpf-bytecode, direct-action, \
             classid, action, police",
        ),
    ]);
    assert!(text(&format!("bpf {two} action ok")).contains("gact action pass"));
}
