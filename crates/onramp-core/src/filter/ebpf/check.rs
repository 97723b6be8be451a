//! Checks programs, and decodes their instructions to steps that the machine can run.

use super::{FRAME, INSTRUCTION, Math, Operand, Register, Step, Test};

/// Number of the helper `bpf_skb_load_bytes`, which copies bytes of the packet.
const SKB_LOAD_BYTES: i32 = 26;

/// The registers r1 to r5, as bits: their contents are lost in a call.
const SCRATCHED: u16 = 0b11_1110;

const MATHS: [Math; 12] = [
    Math::Add,
    Math::Sub,
    Math::Mul,
    Math::Div,
    Math::Or,
    Math::And,
    Math::Left,
    Math::Right,
    Math::Mod,
    Math::Xor,
    Math::Move,
    Math::SignedRight,
];

const TESTS: [Test; 11] = [
    Test::Equal,
    Test::Greater,
    Test::GreaterEqual,
    Test::Bits,
    Test::NotEqual,
    Test::SignedGreater,
    Test::SignedGreaterEqual,
    Test::Less,
    Test::LessEqual,
    Test::SignedLess,
    Test::SignedLessEqual,
];

/// The fields of an encoded instruction.
#[derive(Clone, Copy)]
struct Raw {
    code: u8,
    to: Register,
    from: Register,
    at: i16,
    k: i32,
}

impl Raw {
    fn of(bytes: [u8; INSTRUCTION]) -> Self {
        let [code, registers, a0, a1, k0, k1, k2, k3] = bytes;
        Self {
            code,
            to: registers & 15,
            from: registers >> 4,
            at: i16::from_le_bytes([a0, a1]),
            k: i32::from_le_bytes([k0, k1, k2, k3]),
        }
    }

    /// Returns `None` if one of the fields `to`, `from`, `at` and `k` of the instruction is not
    /// zero although the instruction does not use it. Each argument is true if the instruction uses
    /// the field of that name.
    fn only(self, to: bool, from: bool, at: bool, k: bool) -> Option<()> {
        let unused = (to || self.to == 0)
            && (from || self.from == 0)
            && (at || self.at == 0)
            && (k || self.k == 0);
        unused.then_some(())
    }

    /// Returns the second operand: a number or a register.
    fn operand(self, at: bool) -> Option<Operand> {
        if self.code & 8 == 0 {
            self.only(true, false, at, true)?;
            Some(Operand::K(i64::from(self.k).cast_unsigned()))
        } else {
            self.only(true, true, at, false)?;
            Some(Operand::Register(self.from))
        }
    }

    fn size(self) -> u8 {
        [4, 2, 1, 8][usize::from(self.code >> 3 & 3)]
    }
}

/// Decodes one instruction to a step, or returns what is wrong with the instruction.
fn step(raw: Raw) -> Result<Step, &'static str> {
    const UNKNOWN: &str = "unknown instruction";
    let Raw { code, to, from, at, k } = raw;
    if to > FRAME || from > FRAME {
        return Err("unknown register: expected r0 to r10");
    }
    let step =
        match code & 7 {
            // Instruction class LD: loads from the packet, as classic programs do.
            0 => {
                match code {
                    0x20 | 0x28 | 0x30 => raw
                        .only(false, false, false, true)
                        .map(|()| Step::Legacy { size: raw.size(), at: k, more: None }),
                    0x40 | 0x48 | 0x50 => raw
                        .only(false, true, false, true)
                        .map(|()| Step::Legacy { size: raw.size(), at: k, more: Some(from) }),
                    _ => None,
                }
            }
            // Instruction class LDX: loads from memory.
            1 if code & 0xe0 == 0x60 => {
                let load = Step::Load { size: raw.size(), to, base: from, at };
                raw.only(true, true, true, false).map(|()| load)
            }
            // Instruction classes ST and STX: stores of a number and of a register.
            class @ (2 | 3) if code & 0xe0 == 0x60 => {
                let value = match class {
                    2 => raw
                        .only(true, false, true, true)
                        .map(|()| Operand::K(i64::from(k).cast_unsigned())),
                    _ => raw.only(true, true, true, false).map(|()| Operand::Register(from)),
                };
                value.map(|value| Step::Store { size: raw.size(), base: to, at, value })
            }
            3 if code & 0xe0 == 0xc0 => return Err("atomic instructions are not supported"),
            class @ (4 | 7) => compute(raw, class == 7),
            class @ (5 | 6) => return jump(raw, class == 5).and_then(|step| step.ok_or(UNKNOWN)),
            _ => None,
        };
    step.ok_or(UNKNOWN)
}

fn compute(raw: Raw, wide: bool) -> Option<Step> {
    let Raw { code, to, k, .. } = raw;
    match code >> 4 {
        8 => (code & 8 == 0)
            .then(|| raw.only(true, false, false, false))
            .flatten()
            .map(|()| Step::Negate { wide, to }),
        // Operation 13 converts the byte order. Its 64-bit form, an unconditional byte swap of
        // version 4 of the instruction set, does not exist here.
        13 if !wide => {
            let bits = u8::try_from(k).ok().filter(|bits| matches!(bits, 16 | 32 | 64))?;
            raw.only(true, false, false, true)?;
            Some(Step::Order { big: code == 0xdc, bits, to })
        }
        place => {
            let math = match place {
                0..=7 => MATHS[usize::from(place)],
                9..=12 => MATHS[usize::from(place) - 1],
                _ => return None,
            };
            Some(Step::Compute { wide, math, to, with: raw.operand(false)? })
        }
    }
}

/// Decodes a jump, call or exit to a step. Returns `None` for an invalid instruction, and an error
/// for a valid instruction that needs something that Onramp lacks, such as a second function.
fn jump(raw: Raw, wide: bool) -> Result<Option<Step>, &'static str> {
    let Raw { code, to, from, at, k } = raw;
    Ok(match code {
        0x95 => raw.only(false, false, false, false).map(|()| Step::Exit),
        0x85 if raw.only(false, true, false, true).is_none() => None,
        0x85 => match (from, k) {
            (0, SKB_LOAD_BYTES) => Some(Step::LoadBytes),
            (0, _) => return Err("unknown helper: expected bpf_skb_load_bytes (26)"),
            _ => return Err("calls of functions are not supported: inline the functions"),
        },
        0x05 => match raw.only(false, false, true, false) {
            Some(()) => Some(Step::Jump { over: forward(at)? }),
            None => None,
        },
        _ => {
            let test = match code >> 4 {
                place @ 1..=7 => TESTS[usize::from(place) - 1],
                place @ 10..=13 => TESTS[usize::from(place) - 3],
                _ => return Ok(None),
            };
            let Some(with) = raw.operand(true) else { return Ok(None) };
            Some(Step::Branch { wide, test, left: to, with, over: forward(at)? })
        }
    })
}

fn forward(at: i16) -> Result<u16, &'static str> {
    u16::try_from(at).map_err(|_| "it jumps back: loops are not supported, so unroll them")
}

/// Decodes all instructions. The error is the index of the first instruction that is wrong, and the
/// reason.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Step>, (usize, String)> {
    let (raws, _) = bytes.as_chunks::<INSTRUCTION>();
    let mut raws = raws.iter().map(|bytes| Raw::of(*bytes)).enumerate();
    let mut steps = Vec::with_capacity(raws.len());
    while let Some((place, raw)) = raws.next() {
        if raw.code != 0x18 {
            let step = step(raw);
            steps.push(step.map_err(|why| (place, format!("{why} ({:#04x})", raw.code)))?);
            continue;
        }
        let wrong = |why: &str| (place, why.to_owned());
        if raw.from != 0 {
            return Err(wrong("maps are not supported"));
        }
        let half = raws.next().map(|(_, half)| half);
        let half =
            half.filter(|half| half.code == 0 && half.only(false, false, false, true).is_some());
        let half = half.ok_or_else(|| wrong("its second half is missing"))?;
        if raw.to > FRAME || raw.at != 0 {
            return Err(wrong("unknown instruction (0x18)"));
        }
        let value = u64::from(half.k.cast_unsigned()) << 32 | u64::from(raw.k.cast_unsigned());
        steps.extend([Step::Set { to: raw.to, value }, Step::Half]);
    }
    Ok(steps)
}

/// Returns the index of the first step that is wrong and the reason, or `None` if the program is
/// valid.
pub(super) fn fault(steps: &[Step]) -> Option<(usize, String)> {
    // For each step: the registers (as bits) that are written on all paths to that step.
    let mut written = vec![u16::MAX; steps.len()];
    // At the start, only r1 (the address of the context) and r10 (the frame pointer) are set.
    let mut now = 1 << 1 | 1 << FRAME;
    for (place, step) in steps.iter().enumerate() {
        now &= written[place];
        let wrong = |why: &str| Some((place, why.to_owned()));
        let (reads, writes) = uses(step);
        if let Some(register) = (0..=FRAME).find(|register| reads & !now & 1 << register != 0) {
            return wrong(&format!("it reads r{register}, which was not written"));
        }
        if writes & 1 << FRAME != 0 {
            return wrong("it writes to r10, which is read-only");
        }
        if matches!(step, Step::LoadBytes | Step::Legacy { .. }) {
            now &= !SCRATCHED;
        }
        now |= writes;
        match *step {
            Step::Jump { over } | Step::Branch { over, .. } => {
                let target = place + 1 + usize::from(over);
                match steps.get(target) {
                    None => return wrong("it jumps beyond the end"),
                    Some(Step::Half) => return wrong("it jumps into an instruction"),
                    Some(_) => written[target] &= now,
                }
            }
            Step::Compute { math: Math::Div | Math::Mod, with: Operand::K(0), .. } => {
                return wrong("it divides by zero");
            }
            Step::Compute { math, wide, with: Operand::K(bits), .. }
                if matches!(math, Math::Left | Math::Right | Math::SignedRight)
                    && bits >= if wide { 64 } else { 32 } =>
            {
                return wrong("it shifts by more bits than the register has");
            }
            _ => {}
        }
        // A program never goes on from a jump or an exit to the step after it.
        if matches!(step, Step::Jump { .. } | Step::Exit) {
            now = u16::MAX;
        }
    }
    match steps.last() {
        Some(Step::Exit) => None,
        _ => Some((steps.len().saturating_sub(1), "the last instruction must be exit".to_owned())),
    }
}

/// Returns, as bits, the registers that a step reads and the registers that it writes.
fn uses(step: &Step) -> (u16, u16) {
    let bit = |register: Register| 1_u16 << register;
    let operand = |operand: Operand| match operand {
        Operand::K(_) => 0,
        Operand::Register(register) => bit(register),
    };
    match *step {
        Step::Compute { math: Math::Move, to, with, .. } => (operand(with), bit(to)),
        Step::Compute { to, with, .. } => (bit(to) | operand(with), bit(to)),
        Step::Negate { to, .. } | Step::Order { to, .. } => (bit(to), bit(to)),
        Step::Set { to, .. } => (0, bit(to)),
        Step::Half | Step::Jump { .. } => (0, 0),
        Step::Load { to, base, .. } => (bit(base), bit(to)),
        Step::Store { base, value, .. } => (bit(base) | operand(value), 0),
        // Loads of the classic kind expect the address of the context in r6.
        Step::Legacy { more, .. } => (bit(6) | more.map_or(0, bit), bit(0)),
        Step::Branch { left, with, .. } => (bit(left) | operand(with), 0),
        Step::LoadBytes => (bit(1) | bit(2) | bit(3) | bit(4), bit(0)),
        Step::Exit => (bit(0), 0),
    }
}
