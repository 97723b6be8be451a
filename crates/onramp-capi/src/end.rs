//! What a link knows of its sockets: the destinations to which they can send.
//!
//! Source: `udp_sendmsg` in `net/ipv4/udp.c` and `udpv6_sendmsg` in `net/ipv6/udp.c` (7.2).

use std::net::{SocketAddr, UdpSocket};

use crate::error::{Error, Result};

/// The socket of a port, as it was when the link was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) is_ipv6: bool,
    pub(crate) is_connected: bool,
}

impl End {
    pub(crate) fn of(socket: &UdpSocket) -> Self {
        Self {
            is_ipv6: socket.local_addr().is_ok_and(|local| local.is_ipv6()),
            is_connected: socket.peer_addr().is_ok(),
        }
    }

    /// Whether the socket can send to this destination; `None`: to its peer. A socket for IPv6
    /// sends to IPv4 addresses too, and one for IPv4 to the IPv6 addresses that stand for such.
    pub(crate) fn sends_to(self, dest: Option<SocketAddr>) -> bool {
        match dest {
            None => self.is_connected,
            Some(SocketAddr::V4(dest)) => dest.port() != 0,
            Some(SocketAddr::V6(dest)) => {
                dest.port() != 0 && (self.is_ipv6 || dest.ip().to_ipv4_mapped().is_some())
            }
        }
    }

    /// Returns why the socket, that of port `port`, cannot send to `dest`. `connected`: whether it
    /// has got a peer meanwhile. If so, there is no error.
    #[cold]
    pub(crate) fn why_not(
        self,
        port: usize,
        dest: Option<SocketAddr>,
        connected: impl FnOnce() -> bool,
    ) -> Result<()> {
        let Some(dest) = dest else {
            if connected() {
                return Ok(());
            }
            let text = format!(
                "the message has no destination, and socket {port} is not connected: pass an \
                 address, or connect the socket before the link is made"
            );
            return Err(Error::new(libc::EDESTADDRREQ, text));
        };
        if dest.port() == 0 {
            let text = format!("the destination {dest} has the port number 0; expected 1 to 65535");
            return Err(Error::invalid(text));
        }
        let text = format!(
            "datagrams to {} cannot leave from socket {port}: the address is of IPv6, the socket \
             is of IPv4",
            dest.ip()
        );
        Err(Error::new(libc::EAFNOSUPPORT, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_suit_the_socket() {
        let four = End { is_ipv6: false, is_connected: false };
        let six = End { is_ipv6: true, is_connected: true };
        for (dest, from_four, from_six) in [
            ("127.0.0.1:9", 0, 0),
            ("[::ffff:127.0.0.1]:9", 0, 0),
            ("[::1]:9", libc::EAFNOSUPPORT, 0),
            ("127.0.0.1:0", libc::EINVAL, libc::EINVAL),
            ("[::1]:0", libc::EINVAL, libc::EINVAL),
            ("[::ffff:127.0.0.1]:0", libc::EINVAL, libc::EINVAL),
        ] {
            let dest = Some(dest.parse().expect("an address"));
            for (end, errno) in [(four, from_four), (six, from_six)] {
                assert_eq!(end.sends_to(dest), errno == 0, "{end:?} {dest:?}");
                if errno != 0 {
                    let error = end.why_not(3, dest, || true).expect_err("it does not suit");
                    assert_eq!(error.errno, errno, "{}", error.text);
                }
            }
        }
        assert!(six.sends_to(None) && !four.sends_to(None));
        let error = four.why_not(3, None, || false).expect_err("it has no peer");
        assert_eq!(error.errno, libc::EDESTADDRREQ);
        assert!(error.text.contains("socket 3 is not connected"), "{}", error.text);
        four.why_not(3, None, || true).expect("it has got a peer");
    }
}
