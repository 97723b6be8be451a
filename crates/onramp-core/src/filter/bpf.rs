//! `bpf`: programs of the classic packet filter (cBPF).
//!
//! A program is checked before it runs: every instruction is known, jumps go forward and stay
//! inside the program, each place of memory is written before it is read, and the last instruction
//! returns. So every program ends. A program that reads beyond the packet or divides by zero at run
//! time returns 0.
//!
//! Source: McCanne and Jacobson, "The BSD Packet Filter", 1993; `tc-bpf(8)`; behaviour of Linux 7.2
//! `net/core/filter.c` and `net/sched/cls_bpf.c`.
//! Differs: of Linux's extensions, programs may only read the protocol, packet type, mark, queue
//! and VLAN tag. Programs for eBPF, the newer machine, are in [`ebpf`](super::ebpf).
//! Invariant: a checked program runs at most one step for each of its instructions.

use std::str::FromStr;

use onramp_queue::Packet;

use super::reader::{Reader, count};
use super::{Look, Way};
use crate::base::dissect::Dissected;
use crate::base::show::Out;
use crate::base::{ConfigError, Errno};

const MEMORY: usize = 16;
const PROGRAM_MAX: u32 = 4096;
/// Offsets from this one up to -1 name metadata of the packet instead of bytes.
const ANCILLARY: i32 = -0x1000;
/// Offsets from this one up to -0x1001 count from the network header.
const NETWORK: i32 = -0x10_0000;
/// Offsets from this one up to -0x10_0001 count from the link header.
const LINK: i32 = -0x20_0000;

/// A checked program of the classic packet filter.
///
/// ```
/// use onramp_core::filter::Bpf;
/// use onramp_queue::Packet;
///
/// // As `tcpdump -ddd` writes it, with commas: whether the packet is longer than 99 bytes.
/// let program: Bpf = "4,128 0 0 0,53 0 1 100,6 0 0 1,6 0 0 0".parse()?;
/// assert_eq!(program.run(&Packet::new(100)), 1);
/// assert_eq!(program.run(&Packet::new(99)), 0);
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bpf(Vec<Step>, Vec<[u32; 4]>);

/// The second operand of an instruction: the number K in the instruction, or the register X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    K(u32),
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Loads `size` bytes of the packet into A, from the offset `at`, or from `at` + X if
    /// `indirect`.
    Load {
        size: u8,
        at: i32,
        indirect: bool,
    },
    Beside(Beside),
    LoadValue(u32),
    LoadLength,
    LoadMemory(usize),
    LoadXValue(u32),
    LoadXLength,
    LoadXMemory(usize),
    /// Sets X to the length of an IPv4 header: four times the low half of the packet's byte at this
    /// offset.
    LoadXHeader(i32),
    Store(usize),
    StoreX(usize),
    Compute(Math, Operand),
    Negate,
    Jump(usize),
    Branch {
        test: Test,
        with: Operand,
        yes: u8,
        no: u8,
    },
    Return(u32),
    ReturnA,
    AToX,
    XToA,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Protocol,
    Zero,
    Mark,
    Queue,
    VlanTag,
    HasVlan,
    VlanType,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Math {
    Add,
    Sub,
    Mul,
    Div,
    Or,
    And,
    Left,
    Right,
    Mod,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Equal,
    Greater,
    GreaterEqual,
    Bits,
}

impl Math {
    /// Returns the result of the operation, or `None` for a division by zero.
    fn of(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div => a.checked_div(b)?,
            Self::Mod => a.checked_rem(b)?,
            Self::Or => a | b,
            Self::And => a & b,
            Self::Xor => a ^ b,
            Self::Left => a.wrapping_shl(b),
            Self::Right => a.wrapping_shr(b),
        })
    }
}

impl Test {
    fn holds(self, a: u32, b: u32) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Greater => a > b,
            Self::GreaterEqual => a >= b,
            Self::Bits => a & b != 0,
        }
    }
}

impl Beside {
    fn of(self, dissected: &Dissected, pkt: &Packet) -> u32 {
        let keys = dissected.keys();
        let vlan = keys.vlan;
        match self {
            Self::Protocol => keys.outer.into(),
            Self::Zero => 0,
            Self::Mark => pkt.mark,
            Self::Queue => pkt.queue().into(),
            Self::VlanTag => vlan.map_or(0, |v| u32::from(v.prio) << 13 | u32::from(v.id)),
            Self::HasVlan => vlan.is_some().into(),
            Self::VlanType => vlan.map_or(0, |vlan| vlan.ethertype.into()),
        }
    }
}

/// Returns the number in `size` bytes of the packet at the offset `at`, or `None` if these bytes
/// lie beyond the end of the packet.
pub(super) fn load(dissected: &Dissected, pkt: &Packet, size: u8, at: i32) -> Option<u32> {
    let from = if at >= 0 {
        i64::from(at)
    } else if at >= NETWORK {
        i64::try_from(dissected.keys().network).ok()? + i64::from(at) - i64::from(NETWORK)
    } else {
        i64::from(at) - i64::from(LINK)
    };
    let from = usize::try_from(from).ok()?;
    Some(match size {
        1 => u8::from_be_bytes(dissected.bytes(pkt, from)?).into(),
        2 => u16::from_be_bytes(dissected.bytes(pkt, from)?).into(),
        _ => u32::from_be_bytes(dissected.bytes(pkt, from)?),
    })
}

impl FromStr for Bpf {
    type Err = ConfigError;

    /// Reads a program in the form `COUNT,CODE JT JF K,CODE JT JF K,…`.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut words = Reader::new(text);
        words.at = "bpf".into();
        let program = Self::read(&mut words)?;
        match words.next() {
            None => Ok(program),
            Some(word) => Err(words.wrong("bytecode", word, "expected the end")),
        }
    }
}

impl Bpf {
    /// Runs the program and returns its answer for `pkt`, or 0 if the program reads beyond the
    /// packet or divides by zero.
    #[must_use]
    pub fn run(&self, pkt: &Packet) -> u32 {
        self.answer(&mut Look::new(Way::Out), pkt)
    }

    pub(super) fn answer(&self, look: &mut Look, pkt: &Packet) -> u32 {
        self.steps(look.at(pkt), pkt).unwrap_or(0)
    }

    fn steps(&self, dissected: &Dissected, pkt: &Packet) -> Option<u32> {
        let (mut a, mut x, mut at) = (0, 0, 0);
        let mut memory = [0_u32; MEMORY];
        loop {
            let step = *self.0.get(at)?;
            at += 1;
            match step {
                Step::Load { size, at, indirect } => {
                    let more = if indirect { x } else { 0 };
                    a = load(dissected, pkt, size, at.wrapping_add_unsigned(more))?;
                }
                Step::Beside(what) => a = what.of(dissected, pkt),
                Step::LoadValue(value) => a = value,
                Step::LoadLength => a = pkt.len,
                Step::LoadMemory(place) => a = memory[place],
                Step::LoadXValue(value) => x = value,
                Step::LoadXLength => x = pkt.len,
                Step::LoadXMemory(place) => x = memory[place],
                Step::LoadXHeader(at) => x = (load(dissected, pkt, 1, at)? & 15) * 4,
                Step::Store(place) => memory[place] = a,
                Step::StoreX(place) => memory[place] = x,
                Step::Compute(math, with) => a = math.of(a, with.value(x))?,
                Step::Negate => a = a.wrapping_neg(),
                Step::Jump(over) => at += over,
                Step::Branch { test, with, yes, no } => {
                    let over = if test.holds(a, with.value(x)) { yes } else { no };
                    at += usize::from(over);
                }
                Step::Return(value) => return Some(value),
                Step::ReturnA => return Some(a),
                Step::AToX => x = a,
                Step::XToA => a = x,
            }
        }
    }

    /// Reads a program in the form `COUNT,CODE JT JF K,CODE JT JF K,…`.
    pub(super) fn read(words: &mut Reader<'_>) -> Result<Self, ConfigError> {
        let mut numbers = Vec::new();
        let mut want = 1;
        while numbers.len() < want {
            let expected = "COUNT,CODE JT JF K,… in numbers";
            let word = words.next().unwrap_or_default();
            if word.is_empty() {
                return Err(words.wrong("bytecode", "", format!("expected {expected}")));
            }
            for part in word.split(',').filter(|part| !part.is_empty()) {
                let number = count(part, u32::MAX)
                    .ok_or_else(|| words.wrong("bytecode", part, format!("expected {expected}")))?;
                numbers.push(number);
            }
            let steps = numbers.first().copied().unwrap_or(0);
            if !(1..=PROGRAM_MAX).contains(&steps) {
                let why = format!("expected 1 to {PROGRAM_MAX} instructions");
                return Err(words.wrong("bytecode", word, why));
            }
            want = 1 + 4 * steps as usize;
        }
        if numbers.len() > want {
            let why = format!("expected {} instructions, as its count says", want / 4);
            return Err(words.wrong("bytecode", "", why));
        }
        let (mut steps, mut raws) = (Vec::new(), Vec::new());
        for (place, raw) in numbers[1..].chunks(4).enumerate() {
            let step = decode(raw).ok_or_else(|| {
                let why = format!("unknown instruction ({place})");
                words.wrong("bytecode", &format!("{raw:?}"), why).kernel(Errno::Invalid, "")
            })?;
            steps.push(step);
            raws.extend(<[u32; 4]>::try_from(raw));
        }
        let program = Self(steps, raws);
        match program.fault() {
            None => Ok(program),
            Some((place, why)) => {
                let error = words.wrong("bytecode", &format!("instruction {place}"), why);
                Err(error.kernel(Errno::Invalid, ""))
            }
        }
    }

    /// Shows the program in the form in which it can be read again.
    pub(super) fn show(&self, out: &mut Out) {
        let steps = self.1.iter().map(|[code, yes, no, k]| format!(",{code} {yes} {no} {k}"));
        out.text(format_args!("bytecode '{}{}'", self.1.len(), steps.collect::<String>()));
        out.open(Some("bytecode"));
        out.json(|json| {
            json.raw(Some("length"), format_args!("{}", self.1.len()));
            json.open_array(Some("insns"));
            for step in &self.1 {
                json.open_object(None);
                for (key, number) in ["code", "jt", "jf", "k"].iter().zip(step) {
                    json.raw(Some(key), format_args!("{number}"));
                }
                json.close_object();
            }
            json.close_array();
        });
        out.close();
    }

    /// Returns the index of the first instruction that is wrong and the reason, or `None` if the
    /// program is valid.
    fn fault(&self) -> Option<(usize, &'static str)> {
        let len = self.0.len();
        // For each instruction: the places of memory (as bits) that are written on all paths to
        // that instruction.
        let mut written = vec![u16::MAX; len];
        let mut now = 0_u16;
        for (place, step) in self.0.iter().enumerate() {
            now &= written[place];
            let mut jump = |over: usize| {
                let target = written.get_mut(place + 1 + over);
                target.map(|mask| *mask &= now).is_none()
            };
            match *step {
                Step::Store(to) | Step::StoreX(to) => now |= 1 << to,
                Step::LoadMemory(from) | Step::LoadXMemory(from) if now & 1 << from == 0 => {
                    return Some((place, "it reads memory that was not written"));
                }
                Step::Jump(over) => {
                    if jump(over) {
                        return Some((place, "it jumps beyond the end"));
                    }
                    now = u16::MAX;
                }
                Step::Branch { yes, no, .. } => {
                    if jump(yes.into()) || jump(no.into()) {
                        return Some((place, "it jumps beyond the end"));
                    }
                    now = u16::MAX;
                }
                Step::Compute(Math::Div | Math::Mod, Operand::K(0)) => {
                    return Some((place, "it divides by zero"));
                }
                Step::Compute(Math::Left | Math::Right, Operand::K(32..)) => {
                    return Some((place, "it shifts by more than 31"));
                }
                _ => {}
            }
        }
        match self.0.last() {
            Some(Step::Return(_) | Step::ReturnA) => None,
            _ => Some((len.saturating_sub(1), "the last instruction must be a return")),
        }
    }
}

impl Operand {
    fn value(self, x: u32) -> u32 {
        match self {
            Self::K(k) => k,
            Self::X => x,
        }
    }
}

fn decode(raw: &[u32]) -> Option<Step> {
    let &[code, yes, no, k] = raw else { return None };
    let (code, yes) = (u8::try_from(code).ok()?, u8::try_from(yes).ok()?);
    let no = u8::try_from(no).ok()?;
    let memory = || usize::try_from(k).ok().filter(|place| *place < MEMORY);
    let operand = if code & 8 == 0 { Operand::K(k) } else { Operand::X };
    Some(match code {
        0x20 | 0x28 | 0x30 => decode_load(code, k)?,
        0x40 | 0x48 | 0x50 => {
            Step::Load { size: size_of_load(code), at: k.cast_signed(), indirect: true }
        }
        0x00 => Step::LoadValue(k),
        0x80 => Step::LoadLength,
        0x60 => Step::LoadMemory(memory()?),
        0x01 => Step::LoadXValue(k),
        0x81 => Step::LoadXLength,
        0x61 => Step::LoadXMemory(memory()?),
        0xb1 => Step::LoadXHeader(k.cast_signed()),
        0x02 => Step::Store(memory()?),
        0x03 => Step::StoreX(memory()?),
        0x84 => Step::Negate,
        0x05 => Step::Jump(usize::try_from(k).ok().filter(|over| *over < 1 << 16)?),
        0x06 => Step::Return(k),
        0x16 => Step::ReturnA,
        0x07 => Step::AToX,
        0x87 => Step::XToA,
        _ if code & 7 == 4 => Step::Compute(math(code & 0xf0)?, operand),
        _ if code & 7 == 5 => {
            let test = match code & 0xf0 {
                0x10 => Test::Equal,
                0x20 => Test::Greater,
                0x30 => Test::GreaterEqual,
                0x40 => Test::Bits,
                _ => return None,
            };
            Step::Branch { test, with: operand, yes, no }
        }
        _ => return None,
    })
}

fn size_of_load(code: u8) -> u8 {
    match code & 0x18 {
        0x00 => 4,
        0x08 => 2,
        _ => 1,
    }
}

fn math(code: u8) -> Option<Math> {
    let all =
        [Math::Add, Math::Sub, Math::Mul, Math::Div, Math::Or, Math::And, Math::Left, Math::Right];
    match code >> 4 {
        9 => Some(Math::Mod),
        10 => Some(Math::Xor),
        place => all.get(usize::from(place)).copied(),
    }
}

fn decode_load(code: u8, k: u32) -> Option<Step> {
    let at = k.cast_signed();
    if !(ANCILLARY..0).contains(&at) {
        return Some(Step::Load { size: size_of_load(code), at, indirect: false });
    }
    Some(Step::Beside(match at - ANCILLARY {
        0 => Beside::Protocol,
        4 => Beside::Zero,
        20 => Beside::Mark,
        24 => Beside::Queue,
        44 => Beside::VlanTag,
        48 => Beside::HasVlan,
        60 => Beside::VlanType,
        _ => return None,
    }))
}
