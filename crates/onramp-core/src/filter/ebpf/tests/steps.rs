//! Tests each instruction of RFC 9669: what the instruction computes (compared with a plain model
//! of the RFC's text), which of its fields must be zero, and which bytes of the packet and of
//! memory it may access.

use onramp_queue::Packet;

use super::super::super::tests::{frame, packet};
use super::super::Ebpf;
use super::{Line, bytes, run};

/// Operands that reveal mistakes in order, sign and carry.
const NUMBERS: [u64; 11] = [
    0,
    1,
    2,
    7,
    31,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0001,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// Returns the 64-bit load of `number` into a register, which is encoded as two instructions.
fn set(register: u8, number: u64) -> [Line; 2] {
    let half = |bits: u64| u32::try_from(bits & 0xffff_ffff).expect("32 bits").cast_signed();
    [(0x18, register, 0, 0, half(number)), (0, 0, 0, 0, half(number >> 32))]
}

/// Returns all 64 bits of r0 after the instructions `lines`.
fn left(lines: &[Line]) -> u64 {
    let pkt = Packet::new(1);
    let high = [lines, &[(0x77, 0, 0, 0, 32)]].concat();
    let half = |lines: &[Line]| u64::from(run(lines, &pkt).expect("no memory"));
    half(&high) << 32 | half(lines)
}

fn wide(what: u8, a: u64, b: u64) -> u64 {
    let (a, b) = (u128::from(a), u128::from(b));
    let bits = u32::try_from(b % 64).expect("small");
    let sign = if a >> 63 == 1 { u128::from(u64::MAX) << 64 } else { 0 };
    let result = match what {
        0 => a + b,
        1 => a + (1 << 64) - b,
        2 => (a % (1 << 32)) * b + (((a >> 32) * (b % (1 << 32))) << 32),
        3 => a.checked_div(b).unwrap_or(0),
        4 => a | b,
        5 => a & b,
        6 => a << bits,
        7 => a >> bits,
        9 => a.checked_rem(b).unwrap_or(a),
        10 => a ^ b,
        11 => b,
        _ => (a | sign) >> bits,
    };
    u64::try_from(result & u128::from(u64::MAX)).expect("64 bits")
}

fn narrow(what: u8, a: u64, b: u64) -> u64 {
    let (a, b) = (a & 0xffff_ffff, b & 0xffff_ffff);
    let bits = b % 32;
    let sign = if a >> 31 == 1 { 0xffff_ffff_0000_0000 } else { 0 };
    let result = match what {
        0 => a + b,
        1 => a + (1 << 32) - b,
        2 => a * b,
        3 => a.checked_div(b).unwrap_or(0),
        4 => a | b,
        5 => a & b,
        6 => a << bits,
        7 => a >> bits,
        9 => a.checked_rem(b).unwrap_or(a),
        10 => a ^ b,
        11 => b,
        _ => (a | sign) >> bits,
    };
    result & 0xffff_ffff
}

#[test]
fn arithmetic_with_registers() {
    for what in [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12] {
        for a in NUMBERS {
            for b in NUMBERS {
                for (class, expected) in [(7, wide(what, a, b)), (4, narrow(what, a, b))] {
                    let code = what << 4 | 8 | class;
                    let lines = [&set(0, a)[..], &set(2, b), &[(code, 0, 2, 0, 0)]].concat();
                    assert_eq!(left(&lines), expected, "{code:#x}: {a:x}, {b:x}");
                }
            }
        }
    }
}

#[test]
fn arithmetic_with_numbers() {
    for what in [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12] {
        for a in NUMBERS {
            for k in [1, 2, 5, 31, 63, i32::MAX, i32::MIN, -1, -7] {
                // A number in an instruction is sign-extended, in operations on 64 bits as well.
                let b = i64::from(k).cast_unsigned();
                let shifts = matches!(what, 6 | 7 | 12);
                for (class, most, expected) in
                    [(7, 63, wide(what, a, b)), (4, 31, narrow(what, a, b))]
                {
                    if shifts && !(0..=most).contains(&k) {
                        continue;
                    }
                    let code = what << 4 | class;
                    let lines = [&set(0, a)[..], &[(code, 0, 0, 0, k)]].concat();
                    assert_eq!(left(&lines), expected, "{code:#x}: {a:x}, {k}");
                }
            }
        }
    }
}

#[test]
fn one_operand() {
    for a in NUMBERS.into_iter().chain([0x0102_0304_0506_0708]) {
        let b = a.to_be_bytes();
        let big =
            |len: usize| b[8 - len..].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        for (code, k, expected) in [
            (0x87, 0, a.wrapping_neg()),
            (0x84, 0, a.wrapping_neg() & 0xffff_ffff),
            (0xd4, 16, a & 0xffff),
            (0xd4, 32, a & 0xffff_ffff),
            (0xd4, 64, a),
            (0xdc, 16, big(2)),
            (0xdc, 32, big(4)),
            (0xdc, 64, big(8)),
        ] {
            let lines = [&set(0, a)[..], &[(code, 0, 0, 0, k)]].concat();
            assert_eq!(left(&lines), expected, "{code:#x} {k}: {a:x}");
        }
    }
}

/// Tests all conditional jumps, on 64 bits and on 32 bits, unsigned and signed.
#[test]
fn conditions() {
    for a in NUMBERS {
        for b in NUMBERS {
            let (sa, sb) = (a.cast_signed(), b.cast_signed());
            let low = |number: u64| u32::try_from(number & 0xffff_ffff).expect("32 bits");
            let (na, nb) = (low(a), low(b));
            let (ia, ib) = (na.cast_signed(), nb.cast_signed());
            for (what, of_64, of_32) in [
                (1, a == b, na == nb),
                (2, a > b, na > nb),
                (3, a >= b, na >= nb),
                (4, a & b != 0, na & nb != 0),
                (5, a != b, na != nb),
                (6, sa > sb, ia > ib),
                (7, sa >= sb, ia >= ib),
                (10, a < b, na < nb),
                (11, a <= b, na <= nb),
                (12, sa < sb, ia < ib),
                (13, sa <= sb, ia <= ib),
            ] {
                for (class, expected) in [(5, of_64), (6, of_32)] {
                    let code = what << 4 | 8 | class;
                    // If the condition holds, the jump skips two of the three additions.
                    let lines = [
                        &set(2, a)[..],
                        &set(3, b),
                        &[(0xb7, 0, 0, 0, 0), (code, 2, 3, 2, 0)],
                        &[(7, 0, 0, 0, 1), (7, 0, 0, 0, 2), (7, 0, 0, 0, 4)],
                    ]
                    .concat();
                    let found = run(&lines, &Packet::new(1));
                    assert_eq!(
                        found,
                        Some(if expected { 4 } else { 7 }),
                        "{code:#x}: {a:x}, {b:x}"
                    );
                }
            }
        }
    }
    // Tests unconditional jumps, also one to the last instruction.
    for (over, value) in [(0, 7), (1, 6), (2, 4), (3, 0)] {
        let lines = [
            (0xb7, 0, 0, 0, 0),
            (0x05, 0, 0, over, 0),
            (7, 0, 0, 0, 1),
            (7, 0, 0, 0, 2),
            (7, 0, 0, 0, 4),
        ];
        assert_eq!(run(&lines, &Packet::new(1)), Some(value), "{over}");
    }
}

/// Returns what is wrong with the program of these instructions, or `None` if the program is valid.
fn wrong(lines: &[Line]) -> Option<String> {
    Ebpf::of(&bytes(lines)).err().map(|error| error.to_string())
}

/// An instruction is refused if a field that it does not use is not zero.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn fields_that_are_not_used() {
    // The code of an instruction, the number that it needs, and whether it uses each of:
    // destination, source, offset, number.
    let mut codes: Vec<(u8, i32, [bool; 4])> = vec![
        (0x20, 0, [false, false, false, true]),
        (0x28, 0, [false, false, false, true]),
        (0x30, 0, [false, false, false, true]),
        (0x40, 0, [false, true, false, true]),
        (0x48, 0, [false, true, false, true]),
        (0x50, 0, [false, true, false, true]),
        (0x87, 0, [true, false, false, false]),
        (0x84, 0, [true, false, false, false]),
        (0xd4, 16, [true, false, false, true]),
        (0xdc, 64, [true, false, false, true]),
        (0x95, 0, [false, false, false, false]),
        (0x85, 26, [false, true, false, true]),
        (0x05, 0, [false, false, true, false]),
    ];
    for size in [0, 8, 0x10, 0x18] {
        codes.push((0x61 | size, 0, [true, true, true, false]));
        codes.push((0x62 | size, 0, [true, false, true, true]));
        codes.push((0x63 | size, 0, [true, true, true, false]));
    }
    for what in [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12] {
        for class in [4, 7] {
            codes.push((what << 4 | class, 1, [true, false, false, true]));
            codes.push((what << 4 | 8 | class, 0, [true, true, false, false]));
        }
    }
    for what in [1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13] {
        for class in [5, 6] {
            codes.push((what << 4 | class, 0, [true, false, true, true]));
            codes.push((what << 4 | 8 | class, 0, [true, true, true, false]));
        }
    }
    let unknown = |code: u8| format!("ebpf: instruction 0: unknown instruction ({code:#04x})");
    for (code, k, uses) in codes {
        let plain: Line = (code, 0, 0, 0, k);
        let changed: [Line; 4] =
            [(code, 1, 0, 0, k), (code, 0, 1, 0, k), (code, 0, 0, 1, k), (code, 0, 0, 0, k + 16)];
        let says = |line: Line| wrong(&[line, (0x95, 0, 0, 0, 0)]) == Some(unknown(code));
        assert!(!says(plain), "{code:#x}");
        for (place, (line, used)) in changed.into_iter().zip(uses).enumerate() {
            // A conversion of the byte order works on 16, 32 or 64 bits; other widths are refused.
            let width = matches!(code, 0xd4 | 0xdc) && !matches!(line.4, 16 | 32 | 64);
            assert_eq!(says(line), !used || width, "{code:#x}: {place}");
        }
    }
    // All instruction codes that do not exist are refused.
    let known = |code: u8| {
        matches!(code, 0x18 | 0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0x85 | 0x95 | 0x05)
            || matches!(code & 7, 1..=3) && code & 0xe0 == 0x60
            || code & 7 == 3 && code & 0xe0 == 0xc0
            || matches!(code & 7, 4 | 7) && matches!(code >> 4, 0..=7 | 9..=12)
            || matches!(code, 0x84 | 0x87 | 0xd4 | 0xdc)
            || matches!(code & 7, 5 | 6) && matches!(code >> 4, 1..=7 | 10..=13)
    };
    for code in 0..=255 {
        let k = if matches!(code, 0xd4 | 0xdc) { 16 } else { 0 };
        let said = wrong(&[(code, 0, 0, 0, k), (0x95, 0, 0, 0, 0)]);
        assert_eq!(said == Some(unknown(code)), !known(code), "{code:#x}");
    }
    let wide = "ebpf: instruction 0: unknown instruction (0x18)";
    let exit = (0x95, 0, 0, 0, 0);
    let missing = "ebpf: instruction 0: its second half is missing";
    for (lines, said) in [
        ([(0x18, 11, 0, 0, 0), (0, 0, 0, 0, 0), exit], wide),
        ([(0x18, 0, 0, 1, 0), (0, 0, 0, 0, 0), exit], wide),
        ([(0x18, 0, 0, 0, 0), (0, 1, 0, 0, 0), exit], missing),
        ([(0x18, 0, 0, 0, 0), (0, 0, 1, 0, 0), exit], missing),
        ([(0x18, 0, 0, 0, 0), (0, 0, 0, 1, 0), exit], missing),
        ([(0x18, 0, 0, 0, 0), (1, 0, 0, 0, 0), exit], missing),
        (
            [(0x18, 10, 0, 0, 0), (0, 0, 0, 0, 0), exit],
            "ebpf: instruction 0: it writes to r10, which is read-only",
        ),
    ] {
        assert_eq!(wrong(&lines).as_deref(), Some(said), "{lines:?}");
    }
}

/// A program is refused if an instruction reads a register that may not have been written before.
#[test]
fn registers_are_written_before_they_are_read() {
    let exit = (0x95, 0, 0, 0, 0);
    let zero = |register: u8| -> Line { (0xb7, register, 0, 0, 0) };
    // An instruction, the registers that it reads, and the register that it writes, if any.
    for (line, reads, writes) in [
        ((0x07, 2, 0, 0, 1), &[2][..], Some(2)),
        ((0x0f, 2, 3, 0, 0), &[2, 3], Some(2)),
        ((0xbf, 2, 3, 0, 0), &[3], Some(2)),
        ((0xb7, 2, 0, 0, 1), &[], Some(2)),
        ((0x87, 2, 0, 0, 0), &[2], Some(2)),
        ((0xdc, 2, 0, 0, 16), &[2], Some(2)),
        ((0x61, 2, 3, 0, 0), &[3], Some(2)),
        ((0x63, 2, 3, 0, 0), &[2, 3], None),
        ((0x62, 2, 0, 0, 5), &[2], None),
        ((0x15, 2, 0, 0, 5), &[2], None),
        ((0x1d, 2, 3, 0, 0), &[2, 3], None),
        ((0x05, 0, 0, 0, 0), &[], None),
        ((0x20, 0, 0, 0, 0), &[6], Some(0)),
        ((0x40, 0, 7, 0, 0), &[6, 7], Some(0)),
        ((0x85, 0, 0, 0, 26), &[2, 3, 4], Some(0)),
    ] {
        for missing in reads {
            let before = reads.iter().filter(|register| *register != missing).map(|r| zero(*r));
            let lines: Vec<Line> = before.chain([line, zero(0), exit]).collect();
            let said = format!(
                "ebpf: instruction {}: it reads r{missing}, which was not written",
                reads.len() - 1
            );
            assert_eq!(wrong(&lines), Some(said), "{line:?}");
        }
        let before: Vec<Line> = reads.iter().map(|register| zero(*register)).collect();
        let whole = [&before[..], &[line, zero(0), exit]].concat();
        assert_eq!(wrong(&whole), None, "{line:?}");
        // A program is refused if it exits and r0 may not have been written. Without `zero(0)`, the
        // program is valid only if `line` writes r0, or an instruction before `line` did.
        let bare = [&before[..], &[line, exit]].concat();
        assert_eq!(wrong(&bare).is_none(), writes == Some(0) || reads.contains(&0), "{line:?}");
        // A register that the instruction writes can be read afterwards.
        if let Some(register) = writes {
            let lines = [&before[..], &[line, (0xbf, 0, register, 0, 0), exit]].concat();
            assert_eq!(wrong(&lines), None, "{line:?}");
        }
    }
    // A load of a 64-bit number writes its destination register, here r2. So r2 can be read
    // afterwards, but r0 cannot.
    let set = [(0x18, 2, 0, 0, 5), (0, 0, 0, 0, 0)];
    assert_eq!(wrong(&[set[0], set[1], (0xbf, 0, 2, 0, 0), exit]), None);
    assert!(wrong(&[set[0], set[1], exit]).is_some());
    // After a call or a load of the classic kind, r1 to r5 count as unwritten, and r6 to r9 keep
    // their contents.
    for register in 1..=9_u8 {
        let fill: Vec<Line> = (2..=9).map(zero).collect();
        for call in [(0x85, 0, 0, 0, 26), (0x20, 0, 0, 0, 0)] {
            let lines = [&fill[..], &[call, (0xbf, 0, register, 0, 0), exit]].concat();
            assert_eq!(wrong(&lines).is_some(), register <= 5, "{register}");
        }
    }
    // Only paths that can reach an instruction decide which registers count as written there. No
    // path leads from an `exit` or an unconditional jump to the next instruction.
    let branch = (0x15, 1, 0, 1, 0);
    assert_eq!(wrong(&[zero(0), branch, exit, zero(2), (0xbf, 0, 2, 0, 0), exit]), None);
    let lines = [branch, (0x05, 0, 0, 2, 0), zero(0), exit, zero(0), exit];
    assert_eq!(wrong(&lines), None);
    let behind = [zero(0), (0x15, 1, 0, 1, 0), exit, (0x07, 2, 0, 0, 1), exit];
    let said = "ebpf: instruction 3: it reads r2, which was not written";
    assert_eq!(wrong(&behind).as_deref(), Some(said));
    // No path leads to the instruction after the exit, so it may read a register that was never
    // written.
    assert_eq!(wrong(&[zero(0), exit, (0x07, 2, 0, 0, 1), exit]), None);
}

/// A shift by at least as many bits as the register has, and a division by the constant zero, are
/// refused.
#[test]
fn numbers_that_are_wrong() {
    let exit = (0x95, 0, 0, 0, 0);
    let says = |code: u8, k: i32| wrong(&[(0xb7, 0, 0, 0, 1), (code, 0, 0, 0, k), exit]);
    let far = Some("ebpf: instruction 1: it shifts by more bits than the register has".to_owned());
    for what in [0x60, 0x70, 0xc0] {
        assert_eq!((says(what | 7, 63), says(what | 7, 64)), (None, far.clone()));
        assert_eq!((says(what | 4, 31), says(what | 4, 32)), (None, far.clone()));
        assert_eq!((says(what | 7, -1), says(what | 4, -1)), (far.clone(), far.clone()));
    }
    // Operations other than shifts and divisions accept any number as their operand.
    assert_eq!((says(0x07, 64), says(0x57, 64), says(0x04, 32)), (None, None, None));
    let zero = Some("ebpf: instruction 1: it divides by zero".to_owned());
    for code in [0x37, 0x34, 0x97, 0x94] {
        assert_eq!((says(code, 0), says(code, 1)), (zero.clone(), None));
    }
    assert_eq!(says(0x27, 0), None);
    // A program is refused unless it ends with `exit` and all its jumps stay inside the program.
    let last = |place: usize| {
        Some(format!("ebpf: instruction {place}: the last instruction must be exit"))
    };
    assert_eq!(wrong(&[(0xb7, 0, 0, 0, 1), (0xb7, 0, 0, 0, 1)]), last(1));
    assert_eq!(wrong(&[(0xb7, 0, 0, 0, 1), (0x05, 0, 0, 0, 0), exit]), None);
    let beyond = "ebpf: instruction 1: it jumps beyond the end";
    for jump in [(0x05, 0, 0, 1, 0), (0x15, 0, 0, 1, 0), (0x15, 0, 0, i16::MAX, 0)] {
        assert_eq!(wrong(&[(0xb7, 0, 0, 0, 1), jump, exit]).as_deref(), Some(beyond));
    }
    for registers in [(0xbf, 0, 11, 0, 0), (0xbf, 11, 0, 0, 0), (0xb7, 15, 0, 0, 0)] {
        let said = wrong(&[registers, exit]).expect("no such register");
        assert_eq!(
            said,
            format!(
                "ebpf: instruction 0: unknown register: expected r0 to r10 ({:#04x})",
                registers.0
            )
        );
    }
}

#[test]
fn sizes_of_programs() {
    let of = |len: usize| Ebpf::of(&vec![0; len]).expect_err("too short, or none").to_string();
    for len in [0, 1, 7, 9, 12] {
        let said =
            format!("ebpf: unexpected \"{len} bytes\": expected 1 to 4096 instructions of 8 bytes");
        assert_eq!(of(len), said);
    }
    let digits = "expected hexadecimal digits, 16 for each instruction";
    for word in ["9", "95000000000000zz", "+5"] {
        let error = word.parse::<Ebpf>().expect_err("no digits").to_string();
        assert_eq!(error, format!("ebpf: unexpected \"{word}\": {digits}"));
    }
    let long = format!("{}zz", "0".repeat(40));
    let error = long.parse::<Ebpf>().expect_err("no digits").to_string();
    assert_eq!(error, format!("ebpf: unexpected \"{}\": {digits}", "0".repeat(20)));
    assert_eq!(
        "B7000000FF0000009500000000000000".parse::<Ebpf>().expect("two").run(&Packet::new(1)),
        Some(255)
    );
}

/// Loads and stores of all sizes work in all memory that exists: the context, the stack and, for
/// loads, the packet.
#[test]
fn memory() {
    let mut bytes = frame(5, 0, 64);
    (40..64).for_each(|at| bytes[at] = u8::try_from(at).expect("small"));
    let pkt = packet(&bytes);
    // The size of an access, the size's bits in the code, and the bytes 40, 41, … of the packet as
    // a little-endian number.
    for (size, bits, value) in [
        (1, 0x10, 0x28),
        (2, 0x08, 0x2928),
        (4, 0x00, 0x2b2a_2928_u64),
        (8, 0x18, 0x2f2e_2d2c_2b2a_2928),
    ] {
        let read = |at: i16| {
            let load = [(0x61, 2, 1, 76, 0), (0x61 | bits, 0, 2, at, 0)];
            let high = [&load[..], &[(0x77, 0, 0, 0, 32)]].concat();
            run(&load, &pkt)
                .zip(run(&high, &pkt))
                .map(|(low, high)| u64::from(high) << 32 | u64::from(low))
        };
        assert_eq!(read(40), Some(value));
        let last = 64 - size;
        assert_eq!((read(last).is_some(), read(last + 1)), (true, None));
        assert_eq!(read(-1), None);
        // A value that is stored on the stack can be read again, and the bytes beside it stay as
        // they are.
        let stored = |store: Line, set: [Line; 2]| {
            let lines = |load: Line, shift: i32| {
                [
                    &set[..],
                    &[
                        (0x7a, 10, 0, -8, 0),
                        (0x7a, 10, 0, -16, 0),
                        store,
                        load,
                        (0x77, 0, 0, 0, shift),
                    ],
                ]
                .concat()
            };
            let word = |at: i16| {
                let of =
                    |shift| run(&lines((0x79, 0, 10, at, 0), shift), &pkt).expect("on the stack");
                u64::from(of(32)) << 32 | u64::from(of(0))
            };
            (word(-16), word(-8))
        };
        let all = 0xf1f2_f3f4_f5f6_f7f8;
        let kept = if size == 8 { all } else { all & ((1 << (8 * size)) - 1) };
        assert_eq!(stored((0x63 | bits, 10, 2, -16, 0), set(2, all)), (kept, 0));
        let minus = if size == 8 { u64::MAX } else { (1 << (8 * size)) - 1 };
        assert_eq!(stored((0x62 | bits, 10, 0, -8, -1), set(2, 0)), (0, minus));
        let store = |at: i16| run(&[(0xb7, 0, 0, 0, 3), (0x62 | bits, 10, 0, at, 1)], &pkt);
        assert_eq!(
            (store(-512), store(-513), store(-size), store(1 - size)),
            (Some(3), None, Some(3), None)
        );
        // Of the context, a program can write only the fields cb, tc_index and tc_classid.
        let store = |at: i16| run(&[(0xb7, 0, 0, 0, 3), (0x62 | bits, 1, 0, at, 1)], &pkt);
        assert_eq!(
            (store(43), store(44), store(68 - size), store(69 - size)),
            (None, Some(3), Some(3), None)
        );
        let class = if size == 4 { Some(3) } else { None };
        assert_eq!((store(72), store(71), store(73)), (class, None, None));
        let load = |at: i16| run(&[(0x61 | bits, 0, 1, at, 0)], &pkt);
        assert_eq!((load(192 - size).is_some(), load(193 - size), load(-1)), (true, None, None));
    }
    // Addresses beyond 32 bits, and addresses at which there is no memory, cannot be read or
    // written.
    for address in [0_u64, 0x3000_0000, 0x5000_0000, 0xffff_ffff, 0x1_1000_0000, u64::MAX] {
        let lines = [&set(2, address)[..], &[(0x71, 0, 2, 0, 0)]].concat();
        assert_eq!(run(&lines, &pkt), None, "{address:x}");
        let lines = [&set(2, address)[..], &[(0xb7, 0, 0, 0, 0), (0x72, 2, 0, 0, 0)]].concat();
        assert_eq!(run(&lines, &pkt), None, "{address:x}");
    }
}

#[test]
fn the_whole_context() {
    let mut tagged = frame(5, 0, 100);
    tagged.splice(12..12, [0x88, 0xa8, 0xa1, 0x23]);
    let mut pkt = packet(&tagged);
    (pkt.mark, pkt.priority, pkt.len, pkt.txtime_ns) =
        (0x0102_0304, 0x0506_0708, 999, 0x1122_3344_5566_7788);
    pkt.gso_size = 1400;
    pkt.set_queue(0x1234);
    let known = [
        (0, 999),
        (8, 0x0102_0304),
        (12, 0x1234),
        (16, 0xa888),
        (20, 1),
        (24, 0xa123),
        (28, 0xa888),
        (32, 0x0506_0708),
        (152, 0x5566_7788),
        (156, 0x1122_3344),
        (160, 999),
        (176, 1400),
    ];
    for at in (0..192_i16).step_by(4) {
        // `data`, `data_end` and `data_meta` hold addresses, which the machine chooses.
        if matches!(at, 76 | 80 | 140) {
            continue;
        }
        let expected = known.iter().find(|(place, _)| *place == at).map_or(0, |(_, value)| *value);
        assert_eq!(run(&[(0x61, 0, 1, at, 0)], &pkt), Some(expected), "at {at}");
    }
    let both =
        |a: i16, b: i16| run(&[(0x61, 0, 1, a, 0), (0x61, 2, 1, b, 0), (0x1f, 0, 2, 0, 0)], &pkt);
    assert_eq!((both(80, 76), both(140, 76)), (Some(104), Some(0)));
    let plain = packet(&frame(5, 0, 100));
    for (at, expected) in [(16, 8), (20, 0), (24, 0), (28, 0)] {
        assert_eq!(run(&[(0x61, 0, 1, at, 0)], &plain), Some(expected), "at {at}");
    }
}

/// Returns the answer of `bpf_skb_load_bytes(skb, offset, to, len)`, and the word at r10 - 8
/// afterwards.
#[test]
fn bytes_of_the_packet_are_copied() {
    let mut bytes = frame(5, 0, 64);
    (40..64).for_each(|at| bytes[at] = u8::try_from(at).expect("small"));
    let pkt = packet(&bytes);
    let call = |offset: i32, len: i32, to: i16, then: Line| {
        run(
            &[
                (0x7a, 10, 0, -8, -1),
                (0xb4, 2, 0, 0, offset),
                (0xbf, 3, 10, 0, 0),
                (0x07, 3, 0, 0, to.into()),
                (0xb4, 4, 0, 0, len),
                (0x85, 0, 0, 0, 26),
                then,
            ],
            &pkt,
        )
    };
    let answer = |offset, len| call(offset, len, -8, (0x05, 0, 0, 0, 0));
    let word = |offset, len| call(offset, len, -8, (0x61, 0, 10, -8, 0));
    let efault = Some((-14_i32).cast_unsigned());
    assert_eq!((answer(40, 4), word(40, 4)), (Some(0), Some(0x2b2a_2928)));
    assert_eq!((answer(40, 2), word(40, 2)), (Some(0), Some(0xffff_2928)));
    assert_eq!((answer(0, 1), word(0, 1)), (Some(0), Some(0xffff_ff02)));
    assert_eq!((answer(60, 4), word(60, 4)), (Some(0), Some(0x3f3e_3d3c)));
    // If the bytes that are asked for reach beyond the end of the packet, the helper returns an
    // error and writes zeros.
    assert_eq!((answer(61, 4), word(61, 4)), (efault, Some(0)));
    assert_eq!((answer(62, 3), word(62, 3)), (efault, Some(0xff00_0000)));
    assert_eq!((answer(64, 1), word(64, 1)), (efault, Some(0xffff_ff00)));
    assert_eq!((answer(-1, 4), word(-1, 4)), (efault, Some(0)));
    // If a program may not write to the destination, or asks for zero bytes, the call ends the
    // program.
    assert_eq!((answer(40, 0), answer(0, 9), answer(40, -1)), (None, None, None));
    assert_eq!(call(0, 4, -516, (0x05, 0, 0, 0, 0)), None);
    assert_eq!(call(0, 4, -512, (0x05, 0, 0, 0, 0)), Some(0));
    assert_eq!(call(0, 4, -3, (0x05, 0, 0, 0, 0)), None);
    // A program may exit before its last instruction.
    let lines = [(0xb7, 0, 0, 0, 5), (0x95, 0, 0, 0, 0), (0xb7, 0, 0, 0, 6)];
    assert_eq!(run(&lines, &pkt), Some(5));
}

/// Loads of the classic kind read the packet through r6. A load beyond the end of the packet ends
/// the program with 0.
#[test]
fn classic_loads() {
    let mut bytes = frame(5, 0, 64);
    (40..64).for_each(|at| bytes[at] = u8::try_from(at).expect("small"));
    let pkt = packet(&bytes);
    let load = |code: u8, k: i32, x: i32| {
        let from = if code & 0x40 > 0 { 2 } else { 0 };
        let lines =
            [(0xbf, 6, 1, 0, 0), (0xb7, 0, 0, 0, 9), (0xb4, 2, 0, 0, x), (code, 0, from, 0, k)];
        run(&lines, &pkt)
    };
    for (code, value, size) in [(0x20, 0x2829_2a2b, 4), (0x28, 0x2829, 2), (0x30, 0x28, 1)] {
        assert_eq!(load(code, 40, 7), Some(value));
        let indirect = code + 0x20;
        assert_eq!(load(indirect, 33, 7), Some(value));
        assert_eq!(load(indirect, 41, -1), Some(value));
        let last = 64 - size;
        assert_ne!(load(code, last, 0), Some(0));
        assert_eq!((load(code, last + 1, 0), load(indirect, 1, last)), (Some(0), Some(0)));
    }
    // After a load that has ended the program, no instruction runs.
    let lines = [(0xbf, 6, 1, 0, 0), (0x30, 0, 0, 0, 64), (0xb7, 0, 0, 0, 5)];
    assert_eq!(run(&lines, &pkt), Some(0));
}
