//! Programs at the places of an interface that each of its packets passes (`tcx`, Linux 6.6): they
//! lead packets to another interface of the host.
//!
//! A program tells the packets that it shall leave alone by their mark (`skb->mark`), a number
//! that the kernel keeps beside a packet as long as the packet stays in the network namespace.
//!
//! Source: Linux `include/uapi/linux/bpf.h`, behaviour of `net/core/dev.c` and `kernel/bpf/tcx.c`.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::{
    CALL, EXIT, LINK_CREATE, LOAD_WORD, MOVE, MOVE_REGISTER, MOVE_WORD, STORE_WORD, call,
    instruction, load, word,
};

const PROG_TYPE_SCHED_CLS: u32 = 3;
const ATTACH_TCX_INGRESS: u32 = 46;
const ATTACH_TCX_EGRESS: u32 = 47;

/// What a program returns: go on with the next program (`TCX_NEXT`), or drop the packet
/// (`TCX_DROP`).
const NEXT: i32 = -1;
const DROP: i32 = 2;
/// The kernel's function `bpf_redirect`, and its flag that lets the packet come in at the interface
/// instead of leaving through it.
const REDIRECT: i32 = 23;
const INGRESS: i32 = 1;
/// Offset of the packet's mark in the program's argument (`struct __sk_buff`).
const MARK: i16 = 8;
/// Jumps over some instructions if two registers are equal, or if they are not.
const JUMP_IF_EQUAL: u8 = 0x1d;
const JUMP_IF_OTHER: u8 = 0x5d;

/// Whose packets of an interface a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Packets that leave the host through the interface.
    Egress,
    /// Packets that come in through the interface.
    Ingress,
}

impl Side {
    const fn attach_type(self) -> u32 {
        match self {
            Self::Egress => ATTACH_TCX_EGRESS,
            Self::Ingress => ATTACH_TCX_INGRESS,
        }
    }
}

/// A program at one side of an interface. It is taken away when the value is dropped, and when the
/// process ends in whatever way.
#[derive(Debug)]
pub(crate) struct Hook {
    // Holds the program at the interface.
    _link: OwnedFd,
}

impl Hook {
    /// Lets packets leave through the interface `to` instead, and marks them. Packets that have the
    /// mark already lose it and go on as usual.
    pub(crate) fn divert(interface: u32, side: Side, to: u32, mark: u32) -> io::Result<Self> {
        let code = [
            instruction(MOVE_REGISTER, 6, 1, 0, 0),
            instruction(LOAD_WORD, 2, 1, MARK, 0),
            instruction(MOVE_WORD, 3, 0, 0, mark.cast_signed()),
            instruction(JUMP_IF_OTHER, 2, 3, 4, 0),
            // The mark is there.
            instruction(MOVE_WORD, 4, 0, 0, 0),
            instruction(STORE_WORD, 6, 4, MARK, 0),
            instruction(MOVE, 0, 0, 0, NEXT),
            instruction(EXIT, 0, 0, 0, 0),
            // The mark is not there.
            instruction(STORE_WORD, 6, 3, MARK, 0),
            instruction(MOVE_WORD, 1, 0, 0, to.cast_signed()),
            instruction(MOVE_WORD, 2, 0, 0, 0),
            instruction(CALL, 0, 0, 0, REDIRECT),
            instruction(EXIT, 0, 0, 0, 0),
        ];
        Self::attach(interface, side, &code)
    }

    /// Drops packets that leave through the interface without the mark.
    pub(crate) fn guard(interface: u32, mark: u32) -> io::Result<Self> {
        let code = [
            instruction(LOAD_WORD, 2, 1, MARK, 0),
            instruction(MOVE_WORD, 3, 0, 0, mark.cast_signed()),
            instruction(MOVE, 0, 0, 0, NEXT),
            instruction(JUMP_IF_EQUAL, 2, 3, 1, 0),
            instruction(MOVE, 0, 0, 0, DROP),
            instruction(EXIT, 0, 0, 0, 0),
        ];
        Self::attach(interface, Side::Egress, &code)
    }

    /// Lets packets that come in through the interface come in through the interface `to` instead,
    /// and marks them.
    pub(crate) fn forward(interface: u32, to: u32, mark: u32) -> io::Result<Self> {
        let code = [
            instruction(MOVE_WORD, 3, 0, 0, mark.cast_signed()),
            instruction(STORE_WORD, 1, 3, MARK, 0),
            instruction(MOVE_WORD, 1, 0, 0, to.cast_signed()),
            instruction(MOVE_WORD, 2, 0, 0, INGRESS),
            instruction(CALL, 0, 0, 0, REDIRECT),
            instruction(EXIT, 0, 0, 0, 0),
        ];
        Self::attach(interface, Side::Ingress, &code)
    }

    fn attach(interface: u32, side: Side, code: &[u64]) -> io::Result<Self> {
        let program = load(PROG_TYPE_SCHED_CLS, code)?;
        let program = word(program.as_raw_fd());
        // Behind the programs that are there already.
        Ok(Self { _link: call(LINK_CREATE, &[program, interface, side.attach_type(), 0])? })
    }
}
