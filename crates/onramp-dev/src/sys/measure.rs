//! Statistics of a socket that the kernel reports, for use in measurements.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A socket's receive memory and drops, as the kernel counts them.
///
/// Source: `enum` of `SK_MEMINFO_*` in Linux `include/uapi/linux/sock_diag.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketMemory {
    /// Bytes of kernel memory that received packets occupy (`SK_MEMINFO_RMEM_ALLOC`).
    pub receive_bytes: u32,
    /// Limit on `receive_bytes`, bytes (`SK_MEMINFO_RCVBUF`).
    pub receive_limit: u32,
    /// Number of packets dropped at this socket since it was made, modulo 2^32
    /// (`SK_MEMINFO_DROPS`).
    pub drops: u32,
}

/// Number of entries in the array that the kernel fills (`SK_MEMINFO_VARS`).
const VARS: usize = 9;

/// Reads the option `SO_MEMINFO` of `socket`.
///
/// # Errors
///
/// Fails with the error of `getsockopt`, and with `InvalidData` if the kernel (before 4.6) does not
/// report drops.
pub fn socket_memory(socket: BorrowedFd<'_>) -> io::Result<SocketMemory> {
    let mut vars = [0u32; VARS];
    #[expect(clippy::cast_possible_truncation, reason = "36 bytes")]
    let mut len = size_of_val(&vars) as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed; the kernel writes at most `len` bytes,
    // the size of `vars`, and any bytes are valid integers.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            vars.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    read(&vars, len as usize)
}

/// Interprets the values that `getsockopt` returned: the kernel wrote the first `bytes` bytes of
/// `vars`.
fn read(vars: &[u32; VARS], bytes: usize) -> io::Result<SocketMemory> {
    if bytes < size_of_val(vars) {
        let message = "SO_MEMINFO does not report drops: Linux 4.6 or later is needed";
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(SocketMemory { receive_bytes: vars[0], receive_limit: vars[1], drops: vars[8] })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn drops_are_counted() {
        let sink = UdpSocket::bind("127.0.0.1:0").expect("a socket on loopback");
        let before = socket_memory(sink.as_fd()).expect("SO_MEMINFO");
        assert_eq!((before.receive_bytes, before.drops), (0, 0));

        // Send more bytes than any receive buffer holds, so that packets are dropped. The queued
        // and the dropped packets together must be all packets.
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket on loopback");
        let to = sink.local_addr().expect("a bound socket");
        for _ in 0..2_000 {
            sender.send_to(&[0; 1_000], to).expect("loopback takes it");
        }
        let after = socket_memory(sink.as_fd()).expect("SO_MEMINFO");
        sink.set_nonblocking(true).expect("fcntl");
        let queued = std::iter::from_fn(|| sink.recv(&mut [0; 8]).ok()).count();
        assert!(after.receive_bytes > 0 && after.receive_bytes <= after.receive_limit);
        assert_eq!(queued + after.drops as usize, 2_000);
    }

    /// The values `SK_MEMINFO_RMEM_ALLOC`, `SK_MEMINFO_RCVBUF` and `SK_MEMINFO_DROPS` have the
    /// indices 0, 1 and 8 of nine.
    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        let vars = [10, 11, 12, 13, 14, 15, 16, 17, 18];
        let expected = SocketMemory { receive_bytes: 10, receive_limit: 11, drops: 18 };
        assert_eq!(read(&vars, 36).expect("all nine"), expected);
        // A later kernel may report more values, but the array has no room for these.
        assert_eq!(read(&vars, 40).expect("all nine"), expected);
        let error = read(&vars, 35).expect_err("the drops are not there");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("Linux 4.6 or later"), "{error}");
    }

    #[test]
    fn not_a_socket() {
        let file = std::fs::File::open("/dev/null").expect("/dev/null");
        let error = socket_memory(file.as_fd()).expect_err("not a socket");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }
}
