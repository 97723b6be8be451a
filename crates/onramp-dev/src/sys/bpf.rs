//! The program that gives an interface's packets to AF_XDP sockets, loaded with `bpf(2)`.
//!
//! Source: `bpf(2)`; Linux `include/uapi/linux/bpf.h`; RFC 9669 for the instructions.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_long};

/// Commands, types and flags of `bpf(2)`.
const MAP_CREATE: c_int = 0;
const MAP_UPDATE_ELEM: c_int = 2;
const MAP_DELETE_ELEM: c_int = 3;
const PROG_LOAD: c_int = 5;
const LINK_CREATE: c_int = 28;
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

/// Number of bytes of the arguments of `bpf(2)` that are used here. The kernel takes bytes that are
/// missing for zero.
const ATTRIBUTES: usize = 72;

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
        let program = load(sockets.as_raw_fd())?;
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

/// Loads the program: `return bpf_redirect_map(&sockets, queue, XDP_PASS)`.
fn load(map: RawFd) -> io::Result<OwnedFd> {
    let code = [
        // r2 = the queue's number, from the argument in r1.
        instruction(0x61, 2, 1, QUEUE, 0),
        // r1 = the table. The instruction has two parts, and 1 says: the number is a descriptor.
        instruction(0x18, 1, 1, 0, map),
        instruction(0, 0, 0, 0, 0),
        // r3 = what to return if the queue has no socket.
        instruction(0xb7, 3, 0, 0, PASS),
        instruction(0x85, 0, 0, 0, REDIRECT_MAP),
        instruction(0x95, 0, 0, 0, 0),
    ];
    let licence = c"MIT OR Apache-2.0";
    let [code_at, licence_at] = [address(code.as_ptr()), address(licence.as_ptr())].map(halves);
    let count = u32::try_from(code.len()).expect("six");
    call(PROG_LOAD, &[PROG_TYPE_XDP, count, code_at.0, code_at.1, licence_at.0, licence_at.1])
}

/// Encodes an instruction.
fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let registers = from << 4 | to;
    let [o0, o1] = offset.to_ne_bytes();
    let [v0, v1, v2, v3] = value.to_ne_bytes();
    u64::from_ne_bytes([code, registers, o0, o1, v0, v1, v2, v3])
}

/// Calls `bpf(2)` with these words as its first arguments, for a result that is a descriptor.
fn call(number: c_int, words: &[u32]) -> io::Result<OwnedFd> {
    let fd = command(number, words)?;
    let fd = c_int::try_from(fd).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    // SAFETY: the kernel has just opened the descriptor, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn command(number: c_int, words: &[u32]) -> io::Result<c_long> {
    let mut attributes = [0_u32; ATTRIBUTES / 4];
    attributes[..words.len()].copy_from_slice(words);
    // SAFETY: the kernel reads `ATTRIBUTES` bytes of the live array, and what its addresses point
    // to: the callers' values, which outlive the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, number, (&raw const attributes), ATTRIBUTES) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns an address as the kernel reads it: a number of 64 bits.
fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

/// Returns the two words of a number in the machine's order.
fn halves(number: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = number.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

fn word(fd: RawFd) -> u32 {
    u32::try_from(fd).expect("an open descriptor is not negative")
}
