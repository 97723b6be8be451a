//! Duplicates of the program's descriptors, which keep a socket open while datagrams wait for it.

use std::sync::atomic::AtomicI32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libc::c_int;

use super::socket::option;

/// The lowest number of a duplicate, if the program may have so many descriptors: programs expect
/// that their next descriptor has the lowest free number.
const LOWEST: c_int = 768;

/// Most sockets for which datagrams may wait.
const PLACES: usize = 1_024;

/// A duplicate that a child has to close: the descriptor, or -1, and the number of its socket.
struct Place {
    fd: AtomicI32,
    socket: AtomicU64,
}

static ALL: [Place; PLACES] =
    [const { Place { fd: AtomicI32::new(-1), socket: AtomicU64::new(0) } }; PLACES];

/// A duplicate of a descriptor, closed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    place: usize,
    socket: u64,
}

impl Kept {
    /// Duplicates the descriptor `fd` of the socket with this number. Returns `None` if the process
    /// has too many descriptors, or if it has closed this one. One thread at a time may call it.
    pub(crate) fn new(fd: c_int, socket: u64) -> Option<Self> {
        // Relaxed: only one thread at a time makes and drops duplicates.
        let place = ALL.iter().position(|place| place.fd.load(Relaxed) < 0)?;
        let copy = [LOWEST, 3].into_iter().find_map(|lowest| {
            // SAFETY: the call takes numbers.
            let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) };
            (copy >= 0).then_some(copy)
        })?;
        if !is_of(copy, socket) {
            // Another file of the program has got the number meanwhile.
            close(copy);
            return None;
        }
        ALL[place].socket.store(socket, Relaxed); // Relaxed: `fd` is stored after it.
        ALL[place].fd.store(copy, Release); // Release: with the Acquire of `close_all`.
        Some(Self { place, socket })
    }

    /// Returns the descriptor, unless the program has closed it: some programs close all
    /// descriptors that they do not know.
    pub(crate) fn fd(&self) -> Option<c_int> {
        let fd = ALL[self.place].fd.load(Relaxed); // Relaxed: see `new`.
        is_of(fd, self.socket).then_some(fd)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let fd = self.fd();
        ALL[self.place].fd.store(-1, Release); // Release: see `new`.
        if let Some(fd) = fd {
            close(fd);
        }
    }
}

/// Closes all duplicates, in a child that has got them from its parent.
pub(crate) fn close_all() {
    for place in &ALL {
        let fd = place.fd.swap(-1, Acquire); // Acquire: the socket's number belongs to it.
        if fd >= 0 && is_of(fd, place.socket.load(Relaxed)) {
            // Relaxed: the Acquire above covers the load.
            close(fd);
        }
    }
}

fn is_of(fd: c_int, socket: u64) -> bool {
    option(fd, libc::SOL_SOCKET, libc::SO_COOKIE) == Ok(socket)
}

fn close(fd: c_int) {
    // SAFETY: the descriptor is a duplicate that the library has made, and nobody else closes it.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}
