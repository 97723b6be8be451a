//! Programs at the places of an interface that each of its packets passes (`tcx`, Linux 6.6): they
//! lead packets to another interface of the host.
//!
//! A program tells the packets that it shall leave alone in one of two ways: packets that leave by
//! the socket that sent them, and packets that come in by their mark (`skb->mark`), a number that
//! the kernel keeps beside a packet as long as the packet stays in the network namespace.
//!
//! Source: Linux `include/uapi/linux/bpf.h`, behaviour of `net/core/dev.c` and `kernel/bpf/tcx.c`.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::super::fork::Maker;
use super::{
    CALL, EXIT, LINK_CREATE, LOAD_IMMEDIATE, LOAD_WORD, MOVE, MOVE_REGISTER, MOVE_WORD, STORE_WORD,
    call, command, instruction, load, word,
};

const PROG_TYPE_SCHED_CLS: u32 = 3;
const ATTACH_TCX_INGRESS: u32 = 46;
const ATTACH_TCX_EGRESS: u32 = 47;
/// Attach a program in front of all others (`BPF_F_BEFORE`).
const BEFORE: u32 = 1 << 3;
/// Command of `bpf(2)` that takes a program away.
const LINK_DETACH: libc::c_int = 34;

/// What a program returns: go on with the next program (`TCX_NEXT`), or drop the packet
/// (`TCX_DROP`).
const NEXT: i32 = -1;
const DROP: i32 = 2;
/// The kernel's function `bpf_get_socket_cookie`.
const SOCKET_COOKIE: i32 = 46;
/// The kernel's function `bpf_redirect`, and its flag that lets the packet come in at the interface
/// instead of leaving through it.
const REDIRECT: i32 = 23;
const INGRESS: i32 = 1;
/// Offset of the packet's mark in the program's argument (`struct __sk_buff`).
const MARK: i16 = 8;
/// Jumps over some instructions if two registers are equal, or if they are not.
const JUMP_IF_EQUAL: u8 = 0x1d;
const JUMP_IF_OTHER: u8 = 0x5d;

/// The direction of the packets that a program at an interface sees.
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

/// How a program tells the packets that it shall leave alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Packets that the socket with this cookie (`SO_COOKIE`) has sent.
    Socket(u64),
    /// Packets with the mark that diverted packets get; they lose it.
    Mark,
}

/// A program at one side of an interface. It is taken away when the value is dropped, and when the
/// process ends, however it ends. If the process has forked, the copy in the child leaves the
/// program where it is, but keeps it there if the parent is killed.
#[derive(Debug)]
pub(crate) struct Hook {
    // Holds the program at the interface.
    link: OwnedFd,
    maker: Maker,
}

impl Hook {
    /// Lets packets leave through the interface `to` instead, and marks them. Packets that are
    /// `known` go on as usual. The program stands in front of those that are there already, so that
    /// none of these ends the way of a packet before, or sees a packet twice.
    pub(crate) fn divert(
        interface: u32,
        side: Side,
        to: u32,
        mark: u32,
        known: Known,
    ) -> io::Result<Self> {
        let mut code = vec![instruction(MOVE_REGISTER, 6, 1, 0, 0)];
        match known {
            Known::Socket(cookie) => {
                let [a, b, c, d, e, f, g, h] = cookie.to_le_bytes();
                let (low, high) =
                    (i32::from_le_bytes([a, b, c, d]), i32::from_le_bytes([e, f, g, h]));
                code.extend([
                    instruction(CALL, 0, 0, 0, SOCKET_COOKIE),
                    // r1 = the cookie. The instruction has two parts.
                    instruction(LOAD_IMMEDIATE, 1, 0, 0, low),
                    instruction(0, 0, 0, 0, high),
                    instruction(JUMP_IF_OTHER, 0, 1, 2, 0),
                ]);
            }
            Known::Mark => code.extend([
                instruction(LOAD_WORD, 2, 1, MARK, 0),
                instruction(MOVE_WORD, 3, 0, 0, mark.cast_signed()),
                instruction(JUMP_IF_OTHER, 2, 3, 4, 0),
                instruction(MOVE_WORD, 4, 0, 0, 0),
                instruction(STORE_WORD, 6, 4, MARK, 0),
            ]),
        }
        code.extend([
            // The packet is known.
            instruction(MOVE, 0, 0, 0, NEXT),
            instruction(EXIT, 0, 0, 0, 0),
            // The packet is not known.
            instruction(MOVE_WORD, 3, 0, 0, mark.cast_signed()),
            instruction(STORE_WORD, 6, 3, MARK, 0),
            instruction(MOVE_WORD, 1, 0, 0, to.cast_signed()),
            instruction(MOVE_WORD, 2, 0, 0, 0),
            instruction(CALL, 0, 0, 0, REDIRECT),
            instruction(EXIT, 0, 0, 0, 0),
        ]);
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
        let maker = Maker::this_process();
        let link = call(LINK_CREATE, &[program, interface, side.attach_type(), BEFORE])?;
        Ok(Self { link, maker })
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        // Without this, a child of `fork` that has the descriptor, too, would keep the program at
        // the interface. An error would mean that the interface is gone.
        if self.maker.is_here() {
            let _ = command(LINK_DETACH, &[word(self.link.as_raw_fd())]);
        }
    }
}
