//! Reads arbitrary bytes as a filter program, in classic BPF or eBPF. If our checks accept the
//! program, runs it: the program must end without a fault, and give the same result as a simple
//! interpreter of the same instructions. Used for fuzzing, and to replay the corpus that fuzzing
//! produced.

use std::fmt::Write;

use onramp_core::dissect::{Dissected, Keys};
use onramp_core::filter::{Bpf, Ebpf};
use onramp_queue::{Layer, Packet};

/// The bytes of the input that were not read yet. After the last byte, reads return zeros.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let len = N.min(self.0.len());
        let (first, rest) = self.0.split_at(len);
        taken[..len].copy_from_slice(first);
        self.0 = rest;
        taken
    }
}

/// Reads a packet and a program from the bytes, and runs the program on the packet.
///
/// # Panics
///
/// Panics if an accepted program fails, or gives a wrong result.
pub(crate) fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let [kind, mark, length] = bytes.take();
    let payload: Vec<u8> = (0..length % 96).map(|_| bytes.take::<1>()[0]).collect();
    let mut pkt = Packet::with_payload(&payload);
    pkt.mark = mark.into();
    if kind & 2 == 0 {
        pkt.set_layer(Layer::Ethernet);
    }
    if kind & 1 == 0 {
        classic(&mut bytes, &pkt)
    } else {
        extended(&mut bytes, kind & 4 != 0, &pkt)
    }
}

/// An instruction of classic BPF.
#[derive(Clone, Copy, Debug)]
struct Classic {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

/// Known opcodes. If the first byte of an instruction is an index into this list, it selects the
/// opcode at that index, so that our checks do not refuse nearly every program.
const CODES: [u16; 50] = [
    0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x00, 0x80, 0x60, 0x01, 0x81, 0x61, 0xb1, 0x02, 0x03, 0x84,
    0x05, 0x06, 0x16, 0x07, 0x87, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54,
    0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x94, 0x9c, 0xa4, 0xac, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45,
    0x4d, 0x06,
];

fn classic(bytes: &mut Bytes<'_>, pkt: &Packet) {
    let mut program = Vec::new();
    while !bytes.0.is_empty() {
        let [code, yes, no, size] = bytes.take();
        // Make most operands small numbers, and some of them the addresses at which classic BPF
        // programs read fields that are not part of the packet's bytes (such as its mark).
        let k = match size % 8 {
            0..=3 => u32::from(size >> 3),
            4 | 5 => bytes.take::<1>()[0].into(),
            6 => 0xffff_f000 | u32::from(size >> 2 & 0x3f),
            _ => u32::from_le_bytes(bytes.take()),
        };
        let known = CODES.get(usize::from(code)).copied();
        program.push(Classic {
            code: known.unwrap_or_else(|| code.into()),
            yes: yes % 8,
            no: no % 8,
            k,
        });
    }
    program.push(Classic { code: 0x16, yes: 0, no: 0, k: 0 });
    let mut text = program.len().to_string();
    for Classic { code, yes, no, k } in &program {
        write!(text, ",{code} {yes} {no} {k}").expect("room in memory");
    }
    if let Ok(checked) = text.parse::<Bpf>() {
        let expected = evaluate(&program, pkt).unwrap_or_else(|why| panic!("{why}: {text}"));
        assert_eq!(checked.run(pkt), expected, "{text}");
    }
}

/// Evaluates a classic program in a simple way. Returns an error if the program does something that
/// our checks should not have accepted.
fn evaluate(program: &[Classic], pkt: &Packet) -> Result<u32, &'static str> {
    let dissected = Dissected::of(pkt);
    let len = dissected.len(pkt);
    let frame: Vec<u8> =
        (0..len).filter_map(|at| dissected.bytes::<1>(pkt, at)).map(|[byte]| byte).collect();
    let read = |at: u32, size: usize| {
        let signed = i64::from(at.cast_signed());
        let at = match signed {
            0.. => signed,
            -0x10_0000.. => signed + 0x10_0000 + dissected.keys().network as i64,
            _ => signed + 0x20_0000,
        };
        let bytes = frame.get(usize::try_from(at).ok()?..)?.get(..size)?;
        Some(bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    };
    let (mut a, mut x) = (0_u32, 0_u32);
    let mut memory = [None; 16];
    let mut at = 0;
    for _ in 0..program.len() {
        let Classic { code, yes, no, k } = *program.get(at).ok_or("it leaves the program")?;
        at += 1;
        let operand = if code & 8 == 0 { k } else { x };
        let cell = usize::try_from(k).ok().filter(|cell| *cell < 16);
        let size = [4, 2, 1, 0][usize::from(code >> 3 & 3)];
        match code {
            0x20 | 0x28 | 0x30 if k >= BESIDE => {
                a = beside(k - BESIDE, dissected.keys(), pkt).ok_or("nothing is there")?;
            }
            0x20 | 0x28 | 0x30 => match read(k, size) {
                Some(value) => a = value,
                None => return Ok(0),
            },
            0x40 | 0x48 | 0x50 => match read(k.wrapping_add(x), size) {
                Some(value) => a = value,
                None => return Ok(0),
            },
            0xb1 => match read(k, 1) {
                Some(value) => x = (value & 15) * 4,
                None => return Ok(0),
            },
            0x00 => a = k,
            0x01 => x = k,
            0x80 => a = pkt.len,
            0x81 => x = pkt.len,
            0x60 => a = memory[cell.ok_or("no such memory")?].ok_or("unwritten memory")?,
            0x61 => x = memory[cell.ok_or("no such memory")?].ok_or("unwritten memory")?,
            0x02 => memory[cell.ok_or("no such memory")?] = Some(a),
            0x03 => memory[cell.ok_or("no such memory")?] = Some(x),
            0x84 => a = 0_u32.wrapping_sub(a),
            0x07 => x = a,
            0x87 => a = x,
            0x06 => return Ok(k),
            0x16 => return Ok(a),
            0x05 => at += usize::try_from(k).map_err(|_| "it jumps too far")?,
            _ if code & 7 == 5 => {
                let holds = match code & !8 {
                    0x15 => a == operand,
                    0x25 => a > operand,
                    0x35 => a >= operand,
                    0x45 => a & operand > 0,
                    _ => return Err("no such jump"),
                };
                at += usize::from(if holds { yes } else { no });
            }
            _ => match sum(code, a.into(), operand.into()).ok_or("no such instruction")? {
                Some(value) => a = u32::try_from(value & 0xffff_ffff).map_err(|_| "masked")?,
                None => return Ok(0),
            },
        }
    }
    Err("it does not end")
}

/// First address of the fields that are not part of the packet's bytes (such as its mark).
const BESIDE: u32 = 0xffff_f000;

fn beside(at: u32, keys: &Keys, pkt: &Packet) -> Option<u32> {
    Some(match at {
        0 => keys.outer.into(),
        4 => 0,
        20 => pkt.mark,
        24 => pkt.queue().into(),
        44 => keys.vlan.map_or(0, |tag| u32::from(tag.prio) << 13 | u32::from(tag.id)),
        48 => keys.vlan.is_some().into(),
        60 => keys.vlan.map_or(0, |tag| tag.ethertype.into()),
        _ => return None,
    })
}

/// Returns the result of an arithmetic instruction in 64 bits. The outer `None` means that the
/// opcode is not arithmetic, the inner `None` that it divides by zero.
fn sum(code: u16, a: u64, b: u64) -> Option<Option<u64>> {
    Some(match code & !8 {
        0x04 => Some(a + b),
        0x14 => Some((1 << 32) + a - b),
        0x24 => Some(a * b),
        0x34 => a.checked_div(b),
        0x94 => a.checked_rem(b),
        0x44 => Some(a | b),
        0x54 => Some(a & b),
        0xa4 => Some(a ^ b),
        0x64 => Some(a << (b & 31)),
        0x74 => Some(a >> (b & 31)),
        _ => return None,
    })
}

/// Opcodes of eBPF whose results depend neither on memory addresses nor on the packet. Two opcodes
/// are left out: negation in 64 bits, because the reference interpreter panics at the smallest
/// number, and the 32-bit remainder by a register, because the reference interpreter keeps the
/// upper half when it divides by zero.
const PURE: [u8; 68] = [
    0x07, 0x0f, 0x17, 0x1f, 0x27, 0x2f, 0x37, 0x3f, 0x47, 0x4f, 0x57, 0x5f, 0x67, 0x6f, 0x77, 0x7f,
    0x97, 0x9f, 0xa7, 0xaf, 0xb7, 0xbf, 0xc7, 0xcf, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c,
    0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84, 0x94, 0xa4, 0xac, 0xb4, 0xbc, 0xc4, 0xcc,
    0xd4, 0xdc, 0x61, 0x69, 0x71, 0x79, 0x62, 0x6a, 0x72, 0x7a, 0x63, 0x6b, 0x73, 0x7b, 0x05, 0x15,
    0x1d, 0x2d, 0x3d, 0x4d,
];
/// More opcodes whose results depend neither on memory addresses nor on the packet: jumps that
/// compare 64 or 32 bits.
const JUMPS: [u8; 40] = [
    0x25, 0x35, 0x45, 0x55, 0x5d, 0x65, 0x6d, 0x75, 0x7d, 0xa5, 0xad, 0xb5, 0xbd, 0xc5, 0xcd, 0xd5,
    0xdd, 0x16, 0x1e, 0x26, 0x2e, 0x36, 0x3e, 0x46, 0x4e, 0x56, 0x5e, 0x66, 0x6e, 0x76, 0x7e, 0xa6,
    0xae, 0xb6, 0xbe, 0xc6, 0xce, 0xd6, 0xde, 0x05,
];
/// Opcodes whose results do depend on memory addresses or on the packet: packet access, the call of
/// a helper, and the load of a 64-bit constant.
const IMPURE: [u8; 8] = [0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x85, 0x18];

fn instruction(code: u8, registers: u8, at: i16, k: i32) -> [u8; 8] {
    let ([a0, a1], [k0, k1, k2, k3]) = (at.to_le_bytes(), k.to_le_bytes());
    [code, registers, a0, a1, k0, k1, k2, k3]
}

fn extended(bytes: &mut Bytes<'_>, pure: bool, pkt: &Packet) {
    let mut program = Vec::new();
    // Give every register a value. In a program that is not pure (that uses the packet or memory
    // addresses), r6 and r7 hold the context and the packet.
    if pure {
        for register in 0..10 {
            let value = i32::from_le_bytes(bytes.take());
            program.push(instruction(0xb7, register, 0, value));
        }
    } else {
        program.push(instruction(0xbf, 0x16, 0, 0));
        program.push(instruction(0x61, 0x17, 76, 0));
        for register in [0, 2, 3, 4, 5, 8, 9] {
            program.push(instruction(0xb7, register, 0, register.into()));
        }
    }
    while !bytes.0.is_empty() && program.len() < 200 {
        program.push(one(bytes, pure));
    }
    program.push(instruction(0x95, 0, 0, 0));
    let program = program.concat();
    let Ok(checked) = Ebpf::of(&program) else { return };
    let answer = checked.run(pkt);
    assert_eq!(checked.run(pkt), answer, "the same once more");
    if pure {
        let expected = other(&program);
        assert_eq!(answer, expected, "{program:02x?}");
    }
}

fn one(bytes: &mut Bytes<'_>, pure: bool) -> [u8; 8] {
    let [code, registers, at, size] = bytes.take();
    let place = usize::from(code);
    let known = PURE.get(place).or_else(|| JUMPS.get(place.checked_sub(PURE.len())?));
    let impure = place.checked_sub(PURE.len() + JUMPS.len()).filter(|_| !pure);
    let known = known.or_else(|| IMPURE.get(impure?)).copied();
    // If the first byte of an instruction selects none of the known opcodes, a pure program (one
    // without packet access and memory addresses) gets the opcode that moves a constant.
    let code = known.unwrap_or(if pure { 0xb7 } else { code });
    let mut k = match size % 4 {
        0 | 1 => i32::from(size >> 2),
        2 => i32::from(bytes.take::<1>()[0].cast_signed()),
        _ => i32::from_le_bytes(bytes.take()),
    };
    let (to, from) = ((registers & 15) % 11, (registers >> 4) % 11);
    let (class, by_register) = (code & 7, code & 8 != 0);
    let small = i16::from(at.cast_signed());
    let fields = |to: u8, from: u8, at, k| instruction(code, from << 4 | to, at, k);
    match (class, code) {
        // A pure program uses only its stack as memory. The access may be aligned or not, and
        // inside the bounds of the stack or not.
        (1, _) if pure => fields(to % 10, 10, small * 4, 0),
        (2, _) if pure => fields(10, 0, small * 4, k),
        (3, _) if pure => fields(10, from % 10, small * 4, 0),
        (1, _) => fields(to, from, small * 2, 0),
        (2, _) => fields(to, 0, small * 2, k),
        (3, _) => fields(to, from, small * 2, 0),
        (_, 0x85) => fields(0, 0, 0, if at < 200 { 26 } else { k }),
        (5 | 6, 0x05) => fields(0, 0, small % 16, 0),
        (5 | 6, _) => {
            // In 64-bit comparisons other than signed ones, the reference interpreter does not
            // extend the sign of a constant, but our code does. So keep the constant positive.
            if pure && class == 5 && !matches!(code >> 4, 4 | 6 | 7 | 12 | 13) {
                k &= i32::MAX;
            }
            let from = if by_register { from } else { 0 };
            fields(to % 10, from % 10, small.abs() % 16, if by_register { 0 } else { k })
        }
        (4 | 7, 0x84 | 0x87) => fields(to % 10, 0, 0, 0),
        (4, 0xd4 | 0xdc) => fields(to % 10, 0, 0, 16 << (k & 3).min(2)),
        (4 | 7, _) => {
            if matches!(code >> 4, 6 | 7 | 12) && !by_register {
                k &= if class == 4 { 31 } else { 63 };
            }
            let (to, from) = if pure { (to % 10, from % 10) } else { (to, from) };
            let from = if by_register { from } else { 0 };
            fields(to, from, 0, if by_register { 0 } else { k })
        }
        _ => fields(to, if matches!(code, 0x40 | 0x48 | 0x50) { from } else { 0 }, 0, k),
    }
}

/// Returns the result of the reference interpreter, or `None` if it reports an error.
fn other(program: &[u8]) -> Option<u32> {
    let machine = rbpf::EbpfVmNoData::new(Some(program)).expect("we accept less");
    let low = |answer: u64| u32::try_from(answer & 0xffff_ffff).expect("masked");
    machine.execute_program().ok().map(low)
}
