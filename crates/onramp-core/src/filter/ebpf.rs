//! Programs for the 64-bit machine that `tc` calls eBPF, as `clang -target bpf` compiles them.
//!
//! A program gets a `struct __sk_buff`, of which it may read the fields that [`machine`] lists, and
//! the packet between `data` and `data_end`. The program returns a number, as in any `bpf` filter:
//! 0 means that the packet does not match, -1 that it belongs to the filter's class, and any other
//! number is the packet's class. With `direct-action`, the number says what happens to the packet
//! (`TC_ACT_OK`, `TC_ACT_SHOT`, …), and the program may set the class in `tc_classid`.
//!
//! A program is checked before it runs: every instruction is known, jumps go forward and stay
//! inside the program, and registers are written before they are read. So every program ends.
//! Addresses of memory are checked when the program uses them; if the program uses memory that does
//! not exist, the filter does not match.
//!
//! Source: RFC 9669, "BPF Instruction Set Architecture"; `tc-bpf(8)`, `bpf(2)`, `bpf-helpers(7)`;
//! behaviour of Linux 7.2 `net/sched/cls_bpf.c`.
//! Differs: programs have no loops, no functions besides the main one, no maps, no atomics, and no
//! instructions of version 4 (signed division, sign-extending moves and loads, byte swaps, long
//! jumps); of the helpers, only `bpf_skb_load_bytes` exists. A program cannot write to the packet
//! or to the packet's metadata.
//! Invariant: a checked program runs at most one step for each of its instructions.

mod check;
mod machine;
mod object;
#[cfg(test)]
mod tests;

use std::str::FromStr;

use onramp_queue::Packet;

use self::check::fault;
use super::{Look, Match, Way};
use crate::base::{ConfigError, Handle};

/// The largest number of instructions of a program.
const PROGRAM_MAX: usize = 4096;
/// Length of an instruction, in bytes.
const INSTRUCTION: usize = 8;
/// The word with which error messages about eBPF programs begin.
const AT: &str = "ebpf";

/// A checked eBPF program.
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

/// The number of a register: 0 to 10 for r0 to r10.
type Register = u8;

/// The frame pointer, which programs cannot write to.
const FRAME: Register = 10;

/// The second operand of an instruction: a number or a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    /// A number from the instruction, sign-extended to 64 bits.
    K(u64),
    Register(Register),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Computes on all 64 bits (`wide`), or on the lower 32 bits, which sets the upper 32 bits to
    /// zero.
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
    /// Converts the lower `bits` bits of a register to big endian or to little endian.
    Order {
        big: bool,
        bits: u8,
        to: Register,
    },
    Set {
        to: Register,
        value: u64,
    },
    /// Does nothing. Stands for the second half of a 64-bit load (`Set`), which is encoded as two
    /// instructions, so that each encoded instruction has one step.
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
    /// Loads bytes of the packet by the instructions that eBPF has from classic BPF (`BPF_ABS`,
    /// `BPF_IND`). If the bytes lie beyond the end of the packet, the program ends with 0.
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

/// What a program returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) value: u32,
    /// The value of `tc_classid` in the context when the program ended.
    pub(super) class: u32,
}

impl Ebpf {
    /// Creates a program from instructions as they lie in memory, little endian.
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] that says which instruction is wrong, and why.
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

    /// Creates a program from the section with the name `section` of an object file (ELF).
    ///
    /// # Errors
    ///
    /// Returns a [`ConfigError`] if the file is not an object file or has no such section, or if
    /// the program needs something that Onramp lacks, such as maps.
    pub fn of_object(file: &[u8], section: &str) -> Result<Self, ConfigError> {
        Self::of(object::program(file, section)?)
    }

    /// Returns the instructions in the section with the name `section` of an object file, as
    /// hexadecimal digits.
    pub(super) fn digits(file: &[u8], section: &str) -> Result<String, ConfigError> {
        let bytes = object::program(file, section)?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Runs the program and returns its answer for `pkt`. Returns `None` if the program accesses an
    /// address at which it has no memory.
    #[must_use]
    pub fn run(&self, pkt: &Packet) -> Option<u32> {
        self.answer(&mut Look::new(Way::Out), pkt, 0).map(|answer| answer.value)
    }

    /// Runs the program for a filter with `direct-action`, and returns the filter's decision: the
    /// program's answer says what happens to the packet. `class` is the filter's class.
    pub(super) fn act(&self, look: &mut Look, pkt: &Packet, class: Handle) -> Match {
        let Some(said) = self.answer(look, pkt, class.minor.into()) else { return Match::No };
        let minor = Handle::from_priority(said.class).minor;
        Match::decided(said.value, Handle::new(class.major, minor))
    }

    /// Runs the program with `class` in `tc_classid`. Returns `None` if the program accesses an
    /// address at which it has no memory.
    pub(super) fn answer(&self, look: &mut Look, pkt: &Packet, class: u32) -> Option<Answer> {
        machine::run(&self.0, look.at(pkt), pkt, class)
    }
}

impl FromStr for Ebpf {
    type Err = ConfigError;

    /// Reads a program in hexadecimal digits, sixteen for each instruction, in the order of the
    /// bytes in memory.
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
