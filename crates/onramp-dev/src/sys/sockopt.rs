//! Socket options that `socket2` does not know.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use libc::{c_int, socklen_t};

/// Sets the size of the datagrams that a larger message is cut into; 0 = messages are datagrams.
///
/// Fails with ENOPROTOOPT where the kernel cannot cut (before Linux 4.18).
pub(crate) fn set_udp_segment(socket: &UdpSocket, bytes: u16) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, &c_int::from(bytes))
}

/// Lets messages carry a transmit time on `CLOCK_MONOTONIC`.
pub(crate) fn enable_txtime(socket: &UdpSocket) -> io::Result<()> {
    let config = libc::sock_txtime { clockid: libc::CLOCK_MONOTONIC, flags: 0 };
    set(socket, libc::SOL_SOCKET, libc::SO_TXTIME, &config)
}

/// The MTU of the path of a connected socket, bytes, IP header included, as the kernel knows it.
pub(crate) fn path_mtu(socket: &UdpSocket, ipv6: bool) -> io::Result<u32> {
    let mtu = if ipv6 {
        get(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        get(socket, libc::IPPROTO_IP, libc::IP_MTU)
    }?;
    u32::try_from(mtu).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

fn set<T: Copy>(socket: &UdpSocket, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of a live `T`; the descriptor is open as
    // long as `socket`.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const *value).cast(),
            socklen_of::<T>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get(socket: &UdpSocket, level: c_int, option: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = socklen_of::<c_int>();
    // SAFETY: the kernel writes at most `len` bytes into a live `c_int`; the descriptor is open
    // as long as `socket`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

const fn socklen_of<T>() -> socklen_t {
    #[expect(clippy::cast_possible_truncation, reason = "option values are a few bytes")]
    let len = size_of::<T>() as socklen_t;
    len
}
