//! Programs in the kernel, loaded with `bpf(2)`: they are at an interface until their values are
//! dropped, or until the process ends in whatever way.
//!
//! Source: `bpf(2)`; Linux `include/uapi/linux/bpf.h`; RFC 9669 for the instructions.

#[cfg(feature = "detour")]
mod hook;
#[cfg(feature = "xdp")]
mod redirect;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_long};

#[cfg(feature = "detour")]
pub use self::hook::Side;
#[cfg(feature = "detour")]
pub(crate) use self::hook::{Hook, Known};
#[cfg(feature = "xdp")]
pub use self::redirect::Attach;
#[cfg(feature = "xdp")]
pub(crate) use self::redirect::Redirect;

/// Commands of `bpf(2)`.
const PROG_LOAD: c_int = 5;
const LINK_CREATE: c_int = 28;

/// Number of bytes of the arguments of `bpf(2)` that are used here. The kernel takes bytes that are
/// missing for zero.
const ATTRIBUTES: usize = 72;

/// Instructions: the first byte of each (RFC 9669, section 3).
const LOAD_IMMEDIATE: u8 = 0x18;
const LOAD_WORD: u8 = 0x61;
#[cfg(feature = "detour")]
const STORE_WORD: u8 = 0x63;
const MOVE: u8 = 0xb7;
#[cfg(feature = "detour")]
const MOVE_WORD: u8 = 0xb4;
#[cfg(feature = "detour")]
const MOVE_REGISTER: u8 = 0xbf;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Loads a program of this type.
fn load(kind: u32, code: &[u64]) -> io::Result<OwnedFd> {
    let licence = c"MIT OR Apache-2.0";
    let [code_at, licence_at] = [address(code.as_ptr()), address(licence.as_ptr())].map(halves);
    let count = u32::try_from(code.len()).expect("a short program");
    call(PROG_LOAD, &[kind, count, code_at.0, code_at.1, licence_at.0, licence_at.1])
}

/// Encodes an instruction.
fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
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
