//! Duplicates of the program's descriptors, which keep a socket open while datagrams wait for it.

use std::sync::atomic::AtomicI32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libc::c_int;
use rustix::io::Errno;

use super::socket::{last_error, option};

/// The lowest number of a duplicate, if the program may have 1,024 descriptors or more: programs
/// expect that their next descriptor has the lowest free number.
const LOWEST: u64 = 768;

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
    /// has too many descriptors, or if `fd` is not that socket any more. One thread at a time may
    /// call it, while others drop duplicates.
    pub(crate) fn new(fd: c_int, socket: u64) -> Option<Self> {
        // Relaxed: only one thread at a time makes duplicates, and the thread that frees a place
        // does not look at it again.
        let place = ALL.iter().position(|place| place.fd.load(Relaxed) < 0)?;
        // If the program has used up those from there on, those below are left to it.
        let copy = duplicate(fd, lowest(descriptors_max())).ok()?;
        // The program may have closed `fd`, and another file may have its number.
        if !is_of(copy, socket) {
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
        // Relaxed: a thread gets this value only by a lock, behind the store in `new`.
        let fd = ALL[self.place].fd.load(Relaxed);
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

/// Returns whether a descriptor is one of the socket with this number.
pub(crate) fn is_of(fd: c_int, socket: u64) -> bool {
    option(fd, libc::SOL_SOCKET, libc::SO_COOKIE) == Ok(socket)
}

/// Returns how many descriptors the process may have.
pub(crate) fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes to the structure.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if failed == 0 { limit.rlim_cur } else { u64::MAX }
}

/// Returns the lowest number of a duplicate in a process that may have `most` descriptors: three
/// quarters of them are left to the program.
fn lowest(most: u64) -> c_int {
    let lowest = most.saturating_sub(most.div_ceil(4)).clamp(3, LOWEST);
    c_int::try_from(lowest).unwrap_or(c_int::MAX)
}

/// Duplicates a descriptor, with the lowest free number from `lowest` on.
fn duplicate(fd: c_int, lowest: c_int) -> Result<c_int, Errno> {
    // SAFETY: the call takes numbers.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) };
    if copy < 0 { Err(last_error()) } else { Ok(copy) }
}

fn close(fd: c_int) {
    // SAFETY: the descriptor is a duplicate that the library has made, and nobody else closes it.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// Returns how many descriptors of this process the socket has.
    fn descriptors(of: &UdpSocket) -> usize {
        let number = option(of.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE).expect("a number");
        (0..1_024).filter(|fd| is_of(*fd, number)).count()
    }

    #[test]
    fn three_quarters_of_the_descriptors_are_left_to_the_program() {
        for (most, from) in
            [(0, 3), (4, 3), (16, 12), (64, 48), (767, 575), (1_024, 768), (u64::MAX, 768)]
        {
            assert_eq!(lowest(most), from, "{most}");
        }
    }

    /// The descriptor is that of another socket than the number says.
    #[test]
    fn only_the_socket_itself_is_duplicated() {
        let [right, wrong] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a port"));
        let number = option(right.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE).expect("it has");
        assert!(Kept::new(wrong.as_raw_fd(), number).is_none());
        assert_eq!(descriptors(&wrong), 1);
        let kept = Kept::new(right.as_raw_fd(), number).expect("room");
        assert_eq!((descriptors(&right), kept.fd().is_some()), (2, true));
        drop(kept);
        assert_eq!(descriptors(&right), 1);
    }
}
