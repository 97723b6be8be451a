//! The receive buffer of a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use libc::c_int;

/// Asks the kernel for a receive buffer of `bytes` bytes, in which packets wait that come while the
/// program does something else.
///
/// The kernel doubles the number, for its own bookkeeping. With the capability `CAP_NET_ADMIN` the
/// buffer has the size that is asked for; without it, at most the administrator's limit
/// `net.core.rmem_max`, which is no error. The kernel counts the packets for which the buffer has
/// no room: see [`socket_memory`](crate::socket_memory).
///
/// # Errors
///
/// Fails with the error of `setsockopt`, for example if the descriptor is not a socket.
pub fn set_receive_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let size = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    // A process without the capability may not set the first option.
    set(&socket, libc::SO_RCVBUFFORCE, size).or_else(|_| set(&socket, libc::SO_RCVBUF, size))
}

fn set(socket: &impl AsFd, option: c_int, size: c_int) -> io::Result<()> {
    #[expect(clippy::cast_possible_truncation, reason = "4 bytes")]
    let len = size_of::<c_int>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open while it is borrowed; the kernel reads `len` bytes of a live
    // `c_int`.
    let failed =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const size).cast(), len) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::socket_memory;

    /// The limit for ordinary programs does not hold for one that may exceed it.
    #[test]
    fn a_socket_has_all_the_room_that_it_may_have() {
        let limit = std::fs::read_to_string("/proc/sys/net/core/rmem_max").expect("Linux has it");
        let limit: u32 = limit.trim().parse().expect("a number");
        let room = limit + 4_096;
        let socket = || UdpSocket::bind("127.0.0.1:0").expect("a port");
        let (asks, forces) = (socket(), socket());
        set_receive_buffer(&asks, room as usize).expect("it may be too much");
        let has = socket_memory(asks.as_fd()).expect("SO_MEMINFO").receive_limit;
        // The kernel counts its own bytes, too, and doubles the number.
        match set(&forces, libc::SO_RCVBUFFORCE, room.cast_signed()) {
            Ok(()) => assert_eq!(has, 2 * room),
            Err(_) => assert_eq!(has, 2 * limit),
        }
    }

    #[test]
    fn what_is_no_socket_has_no_receive_buffer() {
        let file = std::fs::File::open("/dev/null").expect("/dev/null");
        let error = set_receive_buffer(&file, 4_096).expect_err("not a socket");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }
}
