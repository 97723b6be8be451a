//! Socket options that the crate `socket2` does not offer.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use libc::{c_int, socklen_t};

/// Sets the size, in bytes, of the datagrams that the kernel cuts a larger message into. With 0,
/// each message is one datagram.
///
/// Fails with ENOPROTOOPT if the kernel cannot segment (before Linux 4.18).
pub(crate) fn set_udp_segment(socket: &UdpSocket, bytes: u16) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, &c_int::from(bytes))
}

/// Lets messages carry a transmit time on `CLOCK_MONOTONIC`.
pub(crate) fn enable_txtime(socket: &UdpSocket) -> io::Result<()> {
    let config = libc::sock_txtime { clockid: libc::CLOCK_MONOTONIC, flags: 0 };
    set(socket, libc::SOL_SOCKET, libc::SO_TXTIME, &config)
}

/// Returns the MTU that the kernel knows for the path of a connected socket, in bytes, IP header
/// included.
pub(crate) fn path_mtu(socket: &UdpSocket, ipv6: bool) -> io::Result<u32> {
    let mtu = if ipv6 {
        get(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        get(socket, libc::IPPROTO_IP, libc::IP_MTU)
    }?;
    u32::try_from(mtu).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// Lets the kernel join datagrams of a flow, of which it has several at once, to one message
/// (`on`), or give each as a message.
///
/// Fails with ENOPROTOOPT if the kernel cannot join (before Linux 5.0).
pub(crate) fn set_udp_gro(socket: &UdpSocket, on: bool) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, &c_int::from(on))
}

/// Lets the kernel tell, beside each datagram that it gives, the traffic class and the destination
/// address in the datagram's IP header. A socket for IPv6 gets the class of IPv4 datagrams by an
/// option of its own.
pub(crate) fn tell_headers(socket: &UdpSocket, ipv6: bool) -> io::Result<()> {
    let v4 = set(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, &ON);
    if ipv6 {
        // A socket that is for IPv6 only gets no IPv4 datagrams, so an error does not matter.
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, &ON)?;
        return set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &ON);
    }
    v4?;
    set(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, &ON)
}

/// The value that turns an option on.
const ON: c_int = 1;

fn set<T: Copy>(socket: &UdpSocket, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of a live `T`; the descriptor is open while
    // `socket` lives.
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
    // while `socket` lives.
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;

    use super::*;

    fn udp() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").expect("a port is free")
    }

    /// Returns a TCP socket, wrapped in the type of a UDP socket, to test options that TCP does not
    /// support.
    fn foreign() -> UdpSocket {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        OwnedFd::from(tcp).into()
    }

    #[test]
    fn segments_are_set_and_taken_back() {
        let socket = udp();
        for bytes in [1_000, 1, u16::MAX, 0] {
            set_udp_segment(&socket, bytes).expect("Linux 4.18 has it");
            let now = get(&socket, libc::SOL_UDP, libc::UDP_SEGMENT).expect("as above");
            assert_eq!(now, c_int::from(bytes));
        }
    }

    #[test]
    fn a_refusal_says_why() {
        let code = |result: io::Result<()>| result.expect_err("refused").raw_os_error();
        assert_eq!(code(set_udp_segment(&foreign(), 1)), Some(libc::ENOPROTOOPT));
        for ipv6 in [false, true] {
            // An IPv4 socket that is not connected has no path, so its own option fails with
            // ENOTCONN. It does not support the option for IPv6, which fails with EOPNOTSUPP.
            let expected = if ipv6 { libc::EOPNOTSUPP } else { libc::ENOTCONN };
            assert_eq!(code(path_mtu(&udp(), ipv6).map(drop)), Some(expected), "IPv6 {ipv6}");
        }
    }

    /// Each address family has its own option, which a socket of the other family does not support.
    #[test]
    fn the_path_of_the_loopback_is_known() {
        for (addr, expected) in [("127.0.0.1:0", 65_535), ("[::1]:0", 65_536)] {
            let (socket, sink) =
                (UdpSocket::bind(addr).expect("a port"), UdpSocket::bind(addr).expect("a port"));
            let to = sink.local_addr().expect("it is bound");
            socket.connect(to).expect("the loopback is up");
            assert_eq!(path_mtu(&socket, to.is_ipv6()).expect("it is connected"), expected);
        }
    }

    #[test]
    fn transmit_times_are_on_the_monotonic_clock_and_no_deadlines() {
        let socket = udp();
        enable_txtime(&socket).expect("Linux 4.19 has it");
        let mut config = libc::sock_txtime { clockid: -1, flags: u32::MAX };
        let mut len = socklen_of::<libc::sock_txtime>();
        // SAFETY: the kernel writes at most `len` bytes into a live value; the socket is open.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_TXTIME,
                (&raw mut config).cast(),
                &raw mut len,
            )
        };
        assert_eq!((result, config.clockid, config.flags), (0, libc::CLOCK_MONOTONIC, 0));
    }
}
