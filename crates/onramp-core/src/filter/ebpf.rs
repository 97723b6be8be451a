//! Programs for the 64-bit machine that `tc` calls eBPF, as `clang -target bpf` compiles them.
//!
//! The program gets a `struct __sk_buff`, of which it may read what is in [`machine`], and the
//! packet between `data` and `data_end`. Its answer is that of a `bpf` filter: 0 is no match, -1
//! the filter's class, anything else a class; with `direct-action`, what happens to the packet
//! (`TC_ACT_OK`, `TC_ACT_SHOT`, …), and `tc_classid` is the class.
//!
//! A program is checked before it runs: every instruction is known, jumps go forward and stay
//! inside, registers are written before they are read. So it ends. Memory is checked when it is
//! used; a program that reads what is not there does not match.
//!
//! Source: RFC 9669, "BPF Instruction Set Architecture"; `tc-bpf(8)`, `bpf(2)`, `bpf-helpers(7)`;
//! behaviour of Linux 7.2 `net/sched/cls_bpf.c`.
//! Differs: no loops, no functions besides the main one, no maps, no atomics, no signed division;
//! of the helpers, `bpf_skb_load_bytes`. Packets cannot be written to, nor what is known of them.
//! Invariant: a checked program runs at most one step for each of its instructions.

mod check;
mod machine;
mod object;
#[cfg(test)]
mod tests;

use std::str::FromStr;

use onramp_queue::Packet;

use self::check::fault;
use super::{Look, Match};
use crate::base::{ConfigError, Handle};

/// Instructions of a program, at most.
const PROGRAM_MAX: usize = 4096;
/// Bytes of an instruction.
const INSTRUCTION: usize = 8;
/// Where messages are about.
const AT: &str = "ebpf";

/// A checked program.
///
/// ```
/// use onramp_core::filter::Ebpf;
/// use onramp_queue::Packet;
///
/// // r0 = *(u32 *)(r1 + 8); exit: the mark is the class.
/// let program: Ebpf = "61100800000000009500000000000000".parse()?;
/// let mut packet = Packet::new(100);
/// packet.mark = 0x1_0002;
/// assert_eq!(program.run(&packet), Some(0x1_0002));
/// // r0 = r0 + 1: nobody has written to r0.
/// let error = "07000000010000009500000000000000".parse::<Ebpf>().unwrap_err();
/// assert_eq!(error.to_string(), "ebpf: instruction 0: it reads r0, which was not written");
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ebpf(Vec<Step>);

/// A register, 0 to 10.
type Register = u8;

/// The frame pointer, which is not written to.
const FRAME: Register = 10;

/// A second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    /// A number, its sign extended.
    K(u64),
    Register(Register),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// On all 64 bits, or on 32 of them, and then the others are zero.
    Compute {
        wide: bool,
        math: Math,
        to: Register,
        with: Operand,
    },
    Negate {
        wide: bool,
        to: Register,
    },
    /// To big endian or to little endian.
    Order {
        big: bool,
        bits: u8,
        to: Register,
    },
    Set {
        to: Register,
        value: u64,
    },
    /// The second half of what is as long as two instructions.
    Half,
    Load {
        size: u8,
        to: Register,
        base: Register,
        at: i16,
    },
    Store {
        size: u8,
        base: Register,
        at: i16,
        value: Operand,
    },
    /// Loads from the packet as classic programs do, and ends if there is nothing.
    Legacy {
        size: u8,
        at: i32,
        more: Option<Register>,
    },
    Jump {
        over: u16,
    },
    Branch {
        wide: bool,
        test: Test,
        left: Register,
        with: Operand,
        over: u16,
    },
    LoadBytes,
    Exit,
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
    Move,
    SignedRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Equal,
    Greater,
    GreaterEqual,
    Bits,
    NotEqual,
    SignedGreater,
    SignedGreaterEqual,
    Less,
    LessEqual,
    SignedLess,
    SignedLessEqual,
}

/// What a program said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) value: u32,
    /// What it has written to `tc_classid`.
    pub(super) class: u32,
}

impl Ebpf {
    /// Reads instructions as they lie in memory, little endian.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: which instruction is wrong, and why.
    pub fn of(bytes: &[u8]) -> Result<Self, ConfigError> {
        let count = bytes.len() / INSTRUCTION;
        if !bytes.len().is_multiple_of(INSTRUCTION) || !(1..=PROGRAM_MAX).contains(&count) {
            let why = format!("expected 1 to {PROGRAM_MAX} instructions of {INSTRUCTION} bytes");
            return Err(ConfigError::new(AT, "", &format!("{} bytes", bytes.len()), why));
        }
        let wrong = |(place, why): (usize, String)| {
            ConfigError::new(AT, "", "", format!("instruction {place}: {why}"))
        };
        let steps = check::decode(bytes).map_err(wrong)?;
        match fault(&steps) {
            Some(fault) => Err(wrong(fault)),
            None => Ok(Self(steps)),
        }
    }

    /// Takes the program out of an object file (ELF), from the section of this name.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the file is none, has no such section, or the program needs what is not
    /// here, such as maps.
    pub fn of_object(file: &[u8], section: &str) -> Result<Self, ConfigError> {
        Self::of(object::program(file, section)?)
    }

    /// The instructions in an object file, as text.
    pub(super) fn digits(file: &[u8], section: &str) -> Result<String, ConfigError> {
        let bytes = object::program(file, section)?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// What the program returns; none, if it reads or writes what is not there.
    #[must_use]
    pub fn run(&self, pkt: &Packet) -> Option<u32> {
        self.answer(&mut Look::default(), pkt, 0).map(|answer| answer.value)
    }

    /// Does what it says, as a filter of this class with `direct-action`.
    pub(super) fn act(&self, look: &mut Look, pkt: &Packet, class: Handle) -> Match {
        let Some(said) = self.answer(look, pkt, class.minor.into()) else { return Match::No };
        let minor = Handle::from_priority(said.class).minor;
        Match::decided(said.value, Handle::new(class.major, minor))
    }

    /// Runs it for a filter of this class.
    pub(super) fn answer(&self, look: &mut Look, pkt: &Packet, class: u32) -> Option<Answer> {
        machine::run(&self.0, look.at(pkt), pkt, class)
    }
}

impl FromStr for Ebpf {
    type Err = ConfigError;

    /// Reads hexadecimal digits, sixteen for each instruction, as it lies in memory.
    fn from_str(digits: &str) -> Result<Self, ConfigError> {
        let wrong = || {
            let why = "expected hexadecimal digits, 16 for each instruction";
            ConfigError::new(AT, "", &digits.chars().take(20).collect::<String>(), why)
        };
        let mut bytes = Vec::with_capacity(digits.len() / 2);
        for pair in digits.as_bytes().chunks(2) {
            let digit = |at: usize| char::from(*pair.get(at)?).to_digit(16);
            let byte = || u8::try_from(digit(0)? * 16 + digit(1)?).ok();
            bytes.push(byte().ok_or_else(wrong)?);
        }
        Self::of(&bytes)
    }
}
