//! The machine that runs eBPF programs: eleven registers, and three kinds of memory at addresses
//! that the machine defines, so that a program gives the same answer wherever it runs.
//!
//! | field of `struct __sk_buff` | contents |
//! |---|---|
//! | `len`, `wire_len` | length of the packet on the wire |
//! | `mark`, `priority`, `queue_mapping`, `gso_size`, `tstamp` | from the packet's metadata |
//! | `protocol`, `vlan_present`, `vlan_tci`, `vlan_proto` | from the Ethernet and VLAN header |
//! | `data`, `data_end`, `data_meta` | address where the Ethernet frame begins or ends |
//! | `tc_classid`, `tc_index`, `cb` | fields that the program may write |
//! | other fields | zero |

use onramp_queue::Packet;

use super::super::bpf::load;
use super::{Answer, FRAME, Math, Operand, Register, Step, Test};
use crate::base::dissect::Dissected;

/// The addresses at which the three kinds of memory begin. They fit in 32 bits, like `data` in a
/// `struct __sk_buff`.
const CONTEXT: u32 = 0x1000_0000;
const STACK: u32 = 0x2000_0000;
const PACKET: u32 = 0x4000_0000;
/// An address shifted right by this many bits tells in which of the three kinds of memory it lies.
const KIND: u32 = 28;

const CONTEXT_LEN: usize = 192;
const STACK_LEN: usize = 512;

/// Offsets of the fields of `struct __sk_buff`.
mod field {
    pub(super) const LEN: usize = 0;
    pub(super) const MARK: usize = 8;
    pub(super) const QUEUE: usize = 12;
    pub(super) const PROTOCOL: usize = 16;
    pub(super) const VLAN_PRESENT: usize = 20;
    pub(super) const VLAN_TCI: usize = 24;
    pub(super) const VLAN_PROTO: usize = 28;
    pub(super) const PRIORITY: usize = 32;
    pub(super) const TC_INDEX: usize = 44;
    /// The offset of the first byte after the field `cb`, which has five words of 32 bits.
    pub(super) const CB_END: usize = 68;
    pub(super) const CLASS: usize = 72;
    pub(super) const DATA: usize = 76;
    pub(super) const DATA_END: usize = 80;
    pub(super) const DATA_META: usize = 140;
    pub(super) const TSTAMP: usize = 152;
    pub(super) const WIRE_LEN: usize = 160;
    pub(super) const GSO_SIZE: usize = 176;
}

/// The error number `-EFAULT` in the form in which a helper returns it.
const EFAULT: u64 = (-14_i64).cast_unsigned();

struct Machine<'p> {
    registers: [u64; 16],
    context: [u8; CONTEXT_LEN],
    stack: [u8; STACK_LEN],
    dissected: &'p Dissected,
    pkt: &'p Packet,
}

/// Runs a checked program for a packet. Returns `None` if the program accesses an address at which
/// it has no memory.
pub(super) fn run(
    steps: &[Step],
    dissected: &Dissected,
    pkt: &Packet,
    class: u32,
) -> Option<Answer> {
    let mut machine = Machine::new(dissected, pkt, class);
    let mut at = 0;
    loop {
        let step = steps.get(at)?;
        at += 1;
        match *step {
            Step::Compute { wide, math, to, with } => {
                let (a, b) = (machine.get(to), machine.value(with));
                machine.set(to, if wide { math.wide(a, b) } else { math.narrow(a, b) });
            }
            Step::Negate { wide, to } => {
                let value = machine.get(to).wrapping_neg();
                machine.set(to, if wide { value } else { low(value).into() });
            }
            Step::Order { big, bits, to } => machine.set(to, ordered(big, bits, machine.get(to))),
            Step::Set { to, value } => machine.set(to, value),
            Step::Half => {}
            Step::Load { size, to, base, at } => {
                let address = machine.get(base).wrapping_add_signed(at.into());
                let value = machine.load(address, size.into())?;
                machine.set(to, value);
            }
            Step::Store { size, base, at, value } => {
                let address = machine.get(base).wrapping_add_signed(at.into());
                let bytes = machine.value(value).to_le_bytes();
                machine.room(address, size.into())?.copy_from_slice(&bytes[..size.into()]);
            }
            Step::Legacy { size, at, more } => {
                let more = more.map_or(0, |more| low(machine.get(more)));
                match load(dissected, pkt, size, at.wrapping_add_unsigned(more)) {
                    Some(value) => machine.set(0, value.into()),
                    None => return Some(machine.answer(0)),
                }
            }
            Step::Jump { over } => at += usize::from(over),
            Step::Branch { wide, test, left, with, over } => {
                let (a, b) = (machine.get(left), machine.value(with));
                if if wide { test.wide(a, b) } else { test.narrow(a, b) } {
                    at += usize::from(over);
                }
            }
            Step::LoadBytes => {
                let value = machine.load_bytes()?;
                machine.set(0, value);
            }
            Step::Exit => return Some(machine.answer(low(machine.get(0)))),
        }
    }
}

impl<'p> Machine<'p> {
    fn new(dissected: &'p Dissected, pkt: &'p Packet, class: u32) -> Self {
        let mut context = [0; CONTEXT_LEN];
        let mut put = |at: usize, value: u32| {
            context[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        let keys = dissected.keys();
        // As in Linux, the context contains protocols in the byte order of the wire, on every
        // machine.
        let network = |word: u16| u32::from(word.swap_bytes());
        put(field::LEN, pkt.len);
        put(field::MARK, pkt.mark);
        put(field::QUEUE, pkt.queue().into());
        put(field::PROTOCOL, network(keys.outer));
        if let Some(vlan) = keys.vlan {
            put(field::VLAN_PRESENT, 1);
            put(field::VLAN_TCI, u32::from(vlan.prio) << 13 | u32::from(vlan.id));
            put(field::VLAN_PROTO, network(vlan.ethertype));
        }
        put(field::PRIORITY, pkt.priority);
        put(field::CLASS, class);
        let len = u32::try_from(dissected.len(pkt)).unwrap_or(u32::MAX);
        put(field::DATA, PACKET);
        put(field::DATA_END, PACKET.saturating_add(len));
        put(field::DATA_META, PACKET);
        put(field::WIRE_LEN, pkt.len);
        put(field::GSO_SIZE, pkt.gso_size.into());
        context[field::TSTAMP..field::TSTAMP + 8].copy_from_slice(&pkt.txtime_ns.to_le_bytes());
        let mut registers = [0; 16];
        registers[1] = CONTEXT.into();
        registers[usize::from(FRAME)] = u64::from(STACK) + STACK_LEN as u64;
        Self { registers, context, stack: [0; STACK_LEN], dissected, pkt }
    }

    fn get(&self, register: Register) -> u64 {
        self.registers[usize::from(register & 15)]
    }

    fn set(&mut self, register: Register, value: u64) {
        self.registers[usize::from(register & 15)] = value;
    }

    fn value(&self, operand: Operand) -> u64 {
        match operand {
            Operand::K(value) => value,
            Operand::Register(register) => self.get(register),
        }
    }

    fn answer(&self, value: u32) -> Answer {
        let class = self.context[field::CLASS..].first_chunk();
        Answer { value, class: class.map_or(0, |bytes| u32::from_le_bytes(*bytes)) }
    }

    fn load(&self, address: u64, size: usize) -> Option<u64> {
        let (kind, at) = place(address)?;
        let mut bytes = [0; 8];
        match kind {
            CONTEXT => bytes[..size].copy_from_slice(self.context.get(at..at + size)?),
            STACK => bytes[..size].copy_from_slice(self.stack.get(at..at + size)?),
            PACKET => match size {
                1 => bytes[..1].copy_from_slice(&self.dissected.bytes::<1>(self.pkt, at)?),
                2 => bytes[..2].copy_from_slice(&self.dissected.bytes::<2>(self.pkt, at)?),
                4 => bytes[..4].copy_from_slice(&self.dissected.bytes::<4>(self.pkt, at)?),
                _ => bytes = self.dissected.bytes(self.pkt, at)?,
            },
            _ => return None,
        }
        Some(u64::from_le_bytes(bytes))
    }

    /// Returns the `size` bytes of memory at `address`, to be written. Returns `None` if the
    /// program may not write to all of them.
    fn room(&mut self, address: u64, size: usize) -> Option<&mut [u8]> {
        let (kind, at) = place(address)?;
        let end = at + size;
        match kind {
            STACK => self.stack.get_mut(at..end),
            CONTEXT => {
                let own = (field::TC_INDEX..=field::CB_END).contains(&at) && end <= field::CB_END;
                let class = (at, end) == (field::CLASS, field::CLASS + 4);
                if own || class { self.context.get_mut(at..end) } else { None }
            }
            _ => None,
        }
    }

    /// The helper `bpf_skb_load_bytes(skb, offset, to, len)`. If the bytes lie beyond the end of
    /// the packet, the helper returns an error and writes zeros, and the program goes on. Returns
    /// `None` if the program may not write to `to`.
    fn load_bytes(&mut self) -> Option<u64> {
        let [offset, to, len] = [2, 3, 4].map(|register| self.get(register));
        let (offset, len) = (low(offset) as usize, low(len) as usize);
        let (dissected, pkt) = (self.dissected, self.pkt);
        let room = self.room(to, len).filter(|room| !room.is_empty())?;
        let whole = offset.checked_add(len).is_some_and(|end| end <= dissected.len(pkt));
        for (place, at) in room.iter_mut().zip(offset..) {
            let byte = if whole { dissected.bytes::<1>(pkt, at) } else { None };
            *place = byte.map_or(0, |[byte]| byte);
        }
        Some(if whole { 0 } else { EFAULT })
    }
}

/// Returns the kind of memory at an address, and the offset in that memory. Returns `None` if the
/// address does not fit in 32 bits.
fn place(address: u64) -> Option<(u32, usize)> {
    let address = u32::try_from(address).ok()?;
    let kind = address >> KIND << KIND;
    Some((kind, (address - kind) as usize))
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
fn low(value: u64) -> u32 {
    value as u32
}

/// Returns the lower `bits` bits of `value`, converted to big or little endian.
fn ordered(big: bool, bits: u8, value: u64) -> u64 {
    let shift = 64 - u32::from(bits);
    if big { value.swap_bytes() >> shift } else { value << shift >> shift }
}

impl Math {
    fn wide(self, a: u64, b: u64) -> u64 {
        let bits = low(b);
        match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div => a.checked_div(b).unwrap_or(0),
            Self::Mod => a.checked_rem(b).unwrap_or(a),
            Self::Or => a | b,
            Self::And => a & b,
            Self::Xor => a ^ b,
            Self::Move => b,
            Self::Left => a.wrapping_shl(bits),
            Self::Right => a.wrapping_shr(bits),
            Self::SignedRight => a.cast_signed().wrapping_shr(bits).cast_unsigned(),
        }
    }

    fn narrow(self, a: u64, b: u64) -> u64 {
        let (a, b) = (low(a), low(b));
        u64::from(match self {
            Self::Left => a.wrapping_shl(b),
            Self::Right => a.wrapping_shr(b),
            Self::SignedRight => a.cast_signed().wrapping_shr(b).cast_unsigned(),
            _ => low(self.wide(a.into(), b.into())),
        })
    }
}

impl Test {
    fn wide(self, a: u64, b: u64) -> bool {
        let (signed, with) = (a.cast_signed(), b.cast_signed());
        match self {
            Self::Equal => a == b,
            Self::NotEqual => a != b,
            Self::Greater => a > b,
            Self::GreaterEqual => a >= b,
            Self::Less => a < b,
            Self::LessEqual => a <= b,
            Self::Bits => a & b != 0,
            Self::SignedGreater => signed > with,
            Self::SignedGreaterEqual => signed >= with,
            Self::SignedLess => signed < with,
            Self::SignedLessEqual => signed <= with,
        }
    }

    /// Compares the lower 32 bits of `a` and `b`. First sign-extends these bits of each to 64 bits,
    /// which changes neither their signed nor their unsigned order.
    fn narrow(self, a: u64, b: u64) -> bool {
        let extended = |value: u64| i64::from(low(value).cast_signed()).cast_unsigned();
        self.wide(extended(a), extended(b))
    }
}
