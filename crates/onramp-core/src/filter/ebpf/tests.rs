//! Tests eBPF with programs assembled by hand, and with compiled programs from
//! `tests/ebpf/ports.c`.

mod steps;

use onramp_queue::{Layer, Packet};

use super::super::tests::{ask, class, filters, frame, packet};
use super::super::{Decision, with_files};
use super::Ebpf;

const PORTS: &[u8] = include_bytes!("../../../tests/ebpf/ports.o");

const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// The fields of an instruction: code, destination register, source register, offset, number.
type Line = (u8, u8, u8, i16, i32);

fn bytes(lines: &[Line]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (code, to, from, at, k) in lines {
        bytes.extend([*code, from << 4 | to]);
        bytes.extend(at.to_le_bytes());
        bytes.extend(k.to_le_bytes());
    }
    bytes
}

/// Runs a program that consists of these instructions and an `exit`, and returns its answer.
fn run(lines: &[Line], pkt: &Packet) -> Option<u32> {
    let program = [bytes(lines), EXIT.to_vec()].concat();
    Ebpf::of(&program).unwrap_or_else(|error| panic!("{lines:?}: {error}")).run(pkt)
}

/// Returns an Ethernet frame with a UDP datagram from port 5 to `port`.
fn to(port: u16) -> Packet {
    let mut frame = frame(5, 0, 100);
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    packet(&frame)
}

#[test]
fn arithmetic_on_64_and_on_32_bits() {
    // `of` returns the upper and the lower half of r0 after an operation on -7 and the number `k`.
    // A program's answer has 32 bits, so a second program shifts the upper half down.
    let of = |code: u8, k: i32| {
        let both = [(0xb7, 0, 0, 0, -7), (code, 0, 0, 0, k)];
        let high = [both[0], both[1], (0x77, 0, 0, 0, 32)];
        let pkt = Packet::new(1);
        (run(&high, &pkt).expect("no memory"), run(&both, &pkt).expect("no memory"))
    };
    let all = u32::MAX;
    assert_eq!(of(0x07, -1), (all, all - 7), "add");
    assert_eq!(of(0x04, -1), (0, all - 7), "add, 32 bits");
    assert_eq!(of(0x27, -1), (0, 7), "mul");
    assert_eq!(of(0x37, -7), (0, 1), "div, unsigned, its number with its sign");
    assert_eq!(of(0x34, 2), (0, (all - 6) / 2), "div, 32 bits");
    assert_eq!(of(0x97, 10), (0, 9), "mod: 2^64 - 7");
    assert_eq!(of(0x94, 10), (0, 9), "mod: 2^32 - 7");
    assert_eq!(of(0x67, 4), (all, all - 0x6f), "left");
    assert_eq!(of(0x77, 60), (0, 15), "right");
    assert_eq!(of(0xc7, 60), (all, all), "right, its sign kept");
    assert_eq!(of(0xc4, 31), (0, all), "right, its sign kept, 32 bits");
    assert_eq!(of(0xb4, -1), (0, all), "move, 32 bits");
    assert_eq!(of(0x84, 0), (0, 7), "negated, 32 bits");
    assert_eq!(of(0xdc, 16), (0, 0xf9ff), "big endian");
    assert_eq!(of(0xdc, 64), (0xf9ff_ffff, all), "big endian");
    assert_eq!(of(0xd4, 32), (0, all - 6), "little endian");
}

#[test]
fn division_by_a_register_of_zero() {
    let pkt = Packet::new(1);
    for (code, expected) in [(0x3f, 0), (0x3c, 0), (0x9f, 9), (0x9c, 9)] {
        let lines = [(0xb7, 0, 0, 0, 9), (0xb7, 2, 0, 0, 0), (code, 0, 2, 0, 0)];
        assert_eq!(run(&lines, &pkt), Some(expected), "{code:#x}");
    }
}

#[test]
fn numbers_in_jumps_have_their_sign() {
    let pkt = Packet::new(1);
    // `jumps` sets r2 to -1 with the instruction `set`, and returns whether the conditional jump
    // `code`, which compares r2 with `k`, is taken. A 64-bit move (0xb7) sets r2 to -1 in all 64
    // bits; a 32-bit move (0xb4) sets r2 to 2^32 - 1.
    let jumps = |set: u8, code: u8, k: i32| {
        let lines =
            [(set, 2, 0, 0, -1), (0xb7, 0, 0, 0, 1), (code, 2, 0, 1, k), (0xb7, 0, 0, 0, 0)];
        run(&lines, &pkt) == Some(1)
    };
    assert!(jumps(0xb7, 0x15, -1), "-1 == -1");
    assert!(!jumps(0xb4, 0x15, -1), "2^32 - 1 != -1");
    assert!(jumps(0xb4, 0x16, -1), "but their low halves are the same");
    assert!(!jumps(0xb4, 0x25, -1), "2^32 - 1 is less than 2^64 - 1");
    assert!(jumps(0xb7, 0x25, 5) && !jumps(0xb7, 0x65, 5), "with sign or without");
    assert!(jumps(0xb4, 0x65, 5) && !jumps(0xb4, 0x66, 5), "of 32 bits, it has one");
    assert!(jumps(0xb4, 0xc6, 0), "-1 < 0");
}

#[test]
fn the_context_is_what_the_packet_says() {
    let mut tagged = frame(5, 0, 100);
    tagged.splice(12..12, [0x81, 0, 0x60, 9]);
    let mut pkt = packet(&tagged);
    (pkt.mark, pkt.priority, pkt.len, pkt.txtime_ns) = (3, 4, 900, 6 << 32);
    pkt.set_queue(8);
    let read = |code: u8, at| run(&[(code, 0, 1, at, 0)], &pkt);
    for (at, value) in [(0, 900), (8, 3), (12, 8), (16, 0x81), (32, 4), (160, 900), (48, 0)] {
        assert_eq!(read(0x61, at), Some(value), "at {at}");
    }
    for (at, value) in [(20, 1), (24, 0x6009), (28, 0x81)] {
        assert_eq!(read(0x61, at), Some(value), "at {at}");
    }
    assert_eq!((read(0x61, 152), read(0x61, 156)), (Some(0), Some(6)));
    assert_eq!((read(0x69, 0), read(0x71, 1)), (Some(900), Some(3)), "parts of a word");
    // This program returns `data_end` - `data`, the length of the packet.
    let lines = [(0x61, 0, 1, 80, 0), (0x61, 2, 1, 76, 0), (0x1f, 0, 2, 0, 0)];
    assert_eq!(run(&lines, &pkt), Some(104));
    assert_eq!((read(0x61, 188), read(0x61, 189), read(0x61, -1)), (Some(0), None, None));
}

#[test]
fn memory_that_is_not_there_is_no_match() {
    let pkt = to(9);
    let packet = |size: u8, at: i32| {
        run(&[(0x61, 2, 1, 76, 0), (0x07, 2, 0, 0, at), (0x61 | size << 3, 0, 2, 0, 0)], &pkt)
    };
    assert_eq!(
        (packet(0, 96), packet(0, 97), packet(2, 99), packet(2, 100)),
        (Some(0), None, Some(0), None)
    );
    assert_eq!((packet(3, 92), packet(3, 93), packet(2, -1)), (Some(0), None, None));
    assert_eq!(packet(1, 12), Some(8), "two bytes, little endian");
    // The stack of a program is the 512 bytes below r10, which are all zero at first.
    let stack = |at| run(&[(0x61, 0, 10, at, 0)], &pkt);
    assert_eq!((stack(-4), stack(-512), stack(-3), stack(-513)), (Some(0), Some(0), None, None));
    // The bytes that a program stores can be read again, one by one.
    let kept = [(0x7a, 10, 0, -8, -2), (0x72, 10, 0, -7, 0x55), (0x61, 0, 10, -8, 0)];
    assert_eq!(run(&kept, &pkt), Some(0xffff_55fe));
    // A program may write the fields cb, tc_index and tc_classid of the context, but not its other
    // fields, and not the packet.
    let store = |at| run(&[(0xb7, 0, 0, 0, 1), (0x62, 1, 0, at, 7)], &pkt);
    for at in [44, 48, 64, 72] {
        assert_eq!(store(at), Some(1), "at {at}");
    }
    for at in [8, 32, 40, 66, 68, 70, 73, 76] {
        assert_eq!(store(at), None, "at {at}");
    }
    let packet = [(0x61, 2, 1, 76, 0), (0xb7, 0, 0, 0, 1), (0x72, 2, 0, 0, 7)];
    assert_eq!(run(&packet, &pkt), None);
    // An address outside of the context, the stack and the packet is no memory.
    assert_eq!(run(&[(0xb7, 2, 0, 0, 4096), (0x79, 0, 2, 0, 0)], &pkt), None);
}

#[test]
fn loads_of_the_classic_kind() {
    let pkt = to(0x1234);
    let load = |code, k| run(&[(0xbf, 6, 1, 0, 0), (0xb7, 2, 0, 0, 2), (code, 0, 0, 0, k)], &pkt);
    assert_eq!(
        (load(0x28, 36), load(0x30, 36), load(0x20, 34)),
        (Some(0x1234), Some(0x12), Some(0x0005_1234))
    );
    let more = [(0xbf, 6, 1, 0, 0), (0xb7, 2, 0, 0, 2), (0x48, 0, 2, 0, 34)];
    assert_eq!(run(&more, &pkt), Some(0x1234));
    // A classic load may count from the network header; a load beyond the end of the packet ends
    // the program with 0.
    assert_eq!((load(0x30, -0x10_0000), load(0x20, 97)), (Some(0x45), Some(0)));
}

#[test]
fn what_is_wrong_with_a_program() {
    let zero = (0xb7, 0, 0, 0, 0);
    let exit = (0x95, 0, 0, 0, 0);
    let wrong: &[(&[Line], &str)] = &[
        (&[], "\"0 bytes\": expected 1 to 4096 instructions of 8 bytes"),
        (&[exit], "instruction 0: it reads r0, which was not written"),
        (&[zero], "instruction 0: the last instruction must be exit"),
        (&[zero, (0x05, 0, 0, 1, 0), exit], "instruction 1: it jumps beyond the end"),
        (&[zero, (0x05, 0, 0, -1, 0), exit], "it jumps back: loops are not supported"),
        (&[zero, (0x15, 0, 0, -2, 0), exit], "it jumps back: loops are not supported"),
        (&[(0x05, 0, 0, 1, 0), zero, exit], "instruction 2: it reads r0"),
        (&[(0x15, 1, 0, 1, 0), zero, exit], "instruction 2: it reads r0"),
        (&[(0x18, 0, 0, 0, 5), exit], "instruction 0: its second half is missing"),
        (&[(0x18, 0, 1, 0, 5), (0, 0, 0, 0, 0), exit], "instruction 0: maps are not supported"),
        (
            &[zero, (0x05, 0, 0, 1, 0), (0x18, 0, 0, 0, 5), (0, 0, 0, 0, 0), exit],
            "instruction 1: it jumps into an instruction",
        ),
        (&[(0x07, 10, 0, 0, 1), zero, exit], "instruction 0: it writes to r10, which is read-only"),
        (&[(0xb7, 11, 0, 0, 1), zero, exit], "instruction 0: unknown register: expected r0 to r10"),
        (&[(0xbf, 0, 12, 0, 0), exit], "instruction 0: unknown register: expected r0 to r10"),
        (&[zero, (0x37, 0, 0, 0, 0), exit], "instruction 1: it divides by zero"),
        (&[zero, (0x67, 0, 0, 0, 64), exit], "it shifts by more bits than the register has"),
        (&[zero, (0x64, 0, 0, 0, 32), exit], "it shifts by more bits than the register has"),
        (&[(0x85, 0, 0, 0, 1), exit], "unknown helper: expected bpf_skb_load_bytes (26)"),
        (&[(0x85, 0, 1, 0, 1), exit], "calls of functions are not supported"),
        (&[(0x85, 0, 0, 0, 26), exit], "instruction 0: it reads r2"),
        (&[zero, (0xdb, 10, 0, -8, 0), exit], "atomic instructions are not supported"),
        (&[zero, (0x3f, 0, 1, 1, 0), exit], "unknown instruction (0x3f)"),
        (&[zero, (0xb7, 0, 1, 0, 0), exit], "unknown instruction (0xb7)"),
        (&[zero, (0xd4, 0, 0, 0, 8), exit], "unknown instruction (0xd4)"),
        (&[(0x20, 0, 0, 0, 0), exit], "instruction 0: it reads r6"),
        (&[zero, (0x8d, 0, 0, 0, 0), exit], "unknown instruction (0x8d)"),
    ];
    for (lines, why) in wrong {
        let error = Ebpf::of(&bytes(lines)).expect_err(why).to_string();
        assert!(error.contains(why), "{error}, not {why}");
    }
    let long = [bytes(&vec![zero; 4096]), EXIT.to_vec()].concat();
    Ebpf::of(&long).expect_err("4,097 instructions");
    Ebpf::of(&long[8..]).expect("4,096 instructions");
    for digits in ["9", "9500", "950000000000000g", "+500000000000000"] {
        digits.parse::<Ebpf>().expect_err(digits);
    }
    // After a call, r1 to r5 count as unwritten.
    let call = [
        (0xbf, 3, 10, 0, 0),
        (0x07, 3, 0, 0, -4),
        (0xb7, 2, 0, 0, 0),
        (0xb7, 4, 0, 0, 4),
        (0x85, 0, 0, 0, 26),
        (0x07, 1, 0, 0, 0),
        exit,
    ];
    let error = Ebpf::of(&bytes(&call)).expect_err("r1 is gone").to_string();
    assert_eq!(error, "ebpf: instruction 5: it reads r1, which was not written");
}

#[test]
fn a_compiled_program_says_the_class() {
    let line = "bpf object-file tests/ebpf/ports.o section classifier classid 1:9";
    let mut asked = Vec::new();
    let line = with_files(line, |file| {
        asked.push(file.to_owned());
        Ok::<_, &str>(PORTS.to_vec())
    });
    let line = line.expect("a program");
    assert_eq!(asked, ["tests/ebpf/ports.o"]);
    assert!(line.starts_with("bpf ebpf-bytecode b7000000") && line.ends_with(" classid 1:9"));
    let mut filters = filters(&[&line]);
    for (port, minor) in [(53, 1), (80, 2), (443, 2)] {
        assert_eq!(ask(&mut filters, &mut to(port)), class(minor));
    }
    assert_eq!(ask(&mut filters, &mut to(54)), Decision::Unknown);
    let mut marked = to(54);
    marked.mark = 7;
    assert_eq!(ask(&mut filters, &mut marked), class(9), "-1 is the filter's own");
    // The program also reads the Ethernet, IP and UDP headers that a device is going to write in
    // front of a datagram.
    let mut datagram = Packet::with_payload(b"who is it?");
    datagram.set_dest("192.0.2.1:53".parse().ok());
    assert_eq!(datagram.layer(), Layer::Datagram);
    assert_eq!(ask(&mut filters, &mut datagram), class(1));
    // The packet ends in the middle of the destination port, which the program of `ports.c` wants
    // to read, so the program returns 0.
    let short = packet(&frame(5, 0, 100)[..37]);
    assert_eq!(Ebpf::of_object(PORTS, "classifier").expect("it is").run(&short), Some(0));
}

#[test]
fn a_compiled_program_says_what_happens() {
    let line = with_files("bpf obj x.o sec act da classid 2:5", |_| Ok::<_, &str>(PORTS.to_vec()));
    let mut direct = filters(&[&line.expect("a program")]);
    let mut ask = |first: u8, second: u8| {
        let mut bytes = frame(5, 0, 100);
        (bytes[14], bytes[15]) = (first, second);
        ask(&mut direct, &mut packet(&bytes))
    };
    // The class that the filter gives to the packet has the major number of the filter's own class,
    // and the lower 16 bits of `tc_classid` as its minor number.
    assert_eq!(ask(1, 2), Decision::Class(crate::base::Handle::new(2, 3)));
    assert_eq!(ask(0xff, 2), Decision::Drop);
    // Each answer of a program, and the decision that must follow; `None` means that the filter
    // does not match. The programs do not write `tc_classid`, so the class is the filter's.
    for (said, expected) in [
        (0, Some(Decision::Class(crate::base::Handle::new(2, 5)))),
        (2, Some(Decision::Drop)),
        (7, Some(Decision::Drop)),
        (4, Some(Decision::Drop)),
        (8, Some(Decision::Drop)),
        (-1, None),
        (1, None),
        (3, None),
        (0x1_0002, None),
    ] {
        let program = bytes(&[(0xb7, 0, 0, 0, said), (0x95, 0, 0, 0, 0)]);
        let digits: String = program.iter().map(|byte| format!("{byte:02x}")).collect();
        let first = format!("pref 1 bpf ebpf-bytecode {digits} da classid 2:5");
        let mut both = filters(&[&first, "pref 2 matchall classid 1:1"]);
        let found = super::super::tests::ask(&mut both, &mut to(1));
        assert_eq!(found, expected.unwrap_or_else(|| class(1)), "{said}");
    }
}

#[test]
fn what_is_wrong_with_an_object() {
    let error = |file: &[u8], section: &str| {
        Ebpf::of_object(file, section).expect_err("a mistake").to_string()
    };
    assert_eq!(
        error(PORTS, "maps"),
        "ebpf: illegal \"section\" \"maps\": there is no such section; expected one of classifier, \
         act, map"
    );
    assert_eq!(
        error(PORTS, "map"),
        "ebpf: illegal \"section\" \"map\": its program uses maps, data or other functions, which \
         are not supported"
    );
    let host = [&PORTS[..18], &[62, 0], &PORTS[20..]].concat();
    for file in [b"text", &host[..], &[], &PORTS[..19]] {
        let error = error(file, "act");
        assert!(error.ends_with("expected what `clang -target bpf -c` writes"), "{error}");
    }
    // An object file that is cut off or changed at any byte gives an error or some program, but no
    // panic.
    for end in 0..PORTS.len() {
        let _ = Ebpf::of_object(&PORTS[..end], "act");
        for byte in [0, 1, 0x7f, 0xff] {
            let mut file = PORTS.to_vec();
            file[end] = byte;
            let _ = Ebpf::of_object(&file, "act");
        }
    }
    let line = with_files("bpf obj x.o da", |_| Err::<Vec<u8>, _>("no such file"));
    let said = line.expect_err("it is not there").to_string();
    assert_eq!(said, "filter bpf: illegal \"obj\" \"x.o\": no such file");
    let same = with_files("u32 match u32 0 0 flowid 1:1", |_| Err::<Vec<u8>, _>("never asked"));
    assert_eq!(same.expect("no file in it"), "u32 match u32 0 0 flowid 1:1");
}
