//! The program that gives an interface's packets to AF_XDP sockets.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libc::c_int;

use super::{
    CALL, EXIT, LINK_CREATE, LOAD_IMMEDIATE, LOAD_WORD, MOVE, address, call, command, halves,
    instruction, load, word,
};

/// Commands, types and flags of `bpf(2)`.
const MAP_CREATE: c_int = 0;
const MAP_UPDATE_ELEM: c_int = 2;
const MAP_DELETE_ELEM: c_int = 3;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const FLAGS_SKB_MODE: u32 = 1 << 1;
const FLAGS_DRIVER_MODE: u32 = 1 << 2;

/// What the program returns for a packet whose queue has no socket: go on as usual (`XDP_PASS`).
const PASS: i32 = 2;
/// The kernel's function `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// Offset of the queue's number in the program's argument (`struct xdp_md`).
const QUEUE: i16 = 16;

/// How a program is attached to an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attach {
    /// In the driver if it takes the program as the interface is set at present, else in front of
    /// the network stack.
    #[default]
    Any,
    /// In the driver, which is fast; an error if it cannot.
    Driver,
    /// In front of the network stack (`generic`), which every interface can.
    Generic,
}

/// A program that is attached to an interface, with the table of the sockets of its queues. It is
/// detached when the value is dropped, and when the process ends in whatever way.
#[derive(Debug)]
pub(crate) struct Redirect {
    sockets: OwnedFd,
    // Holds the program at the interface.
    _link: OwnedFd,
}

impl Redirect {
    /// Attaches a program to the interface, for up to `queues` queues.
    pub(crate) fn attach(interface: u32, queues: u32, how: Attach) -> io::Result<Self> {
        let sockets = call(MAP_CREATE, &[MAP_TYPE_XSKMAP, 4, 4, queues])?;
        let program = load(PROG_TYPE_XDP, &code(sockets.as_raw_fd()))?;
        let program = word(program.as_raw_fd());
        let link = |flags| call(LINK_CREATE, &[program, interface, ATTACH_XDP, flags]);
        let link = match how {
            Attach::Driver => link(FLAGS_DRIVER_MODE),
            Attach::Generic => link(FLAGS_SKB_MODE),
            Attach::Any => link(FLAGS_DRIVER_MODE).or_else(|error| {
                if driver_cannot(&error) { link(FLAGS_SKB_MODE) } else { Err(error) }
            }),
        };
        Ok(Self { sockets, _link: link? })
    }

    /// Lets the packets of a queue go to a socket from now on.
    pub(crate) fn set(&self, queue: u32, socket: RawFd) -> io::Result<()> {
        let socket = word(socket);
        let (key, value) = (address(&raw const queue), address(&raw const socket));
        let [key, value] = [key, value].map(halves);
        let map = word(self.sockets.as_raw_fd());
        command(MAP_UPDATE_ELEM, &[map, 0, key.0, key.1, value.0, value.1, 0, 0]).map(drop)
    }

    /// Lets the packets of a queue go to the kernel's own stack from now on.
    pub(crate) fn clear(&self, queue: u32) -> io::Result<()> {
        let key = halves(address(&raw const queue));
        let map = word(self.sockets.as_raw_fd());
        command(MAP_DELETE_ELEM, &[map, 0, key.0, key.1]).map(drop)
    }
}

/// Whether the error says that the driver has no place for a program, or none while the interface
/// has this MTU, these queues or these offloads.
fn driver_cannot(error: &io::Error) -> bool {
    let cannot = [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSPC, libc::ERANGE, libc::EMSGSIZE];
    error.raw_os_error().is_some_and(|errno| cannot.contains(&errno))
}

/// Returns the program: `return bpf_redirect_map(&sockets, queue, XDP_PASS)`.
fn code(map: RawFd) -> [u64; 6] {
    [
        // r2 = the queue's number, from the argument in r1.
        instruction(LOAD_WORD, 2, 1, QUEUE, 0),
        // r1 = the table. The instruction has two parts, and 1 says: the number is a descriptor.
        instruction(LOAD_IMMEDIATE, 1, 1, 0, map),
        instruction(0, 0, 0, 0, 0),
        // r3 = what to return if the queue has no socket.
        instruction(MOVE, 3, 0, 0, PASS),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}
