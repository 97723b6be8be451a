//! Properties of a socket that the device reads once: its address family, its peer and its traffic
//! classes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::num::NonZero;

use socket2::SockRef;

use super::source::{self, Local};
use crate::sys::From;

/// The two low bits of a traffic class are the ECN field (RFC 3168).
const ECN_MASK: u8 = 0b11;

/// Translates the destination and ECN code point of a packet into the address and traffic class of
/// a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    ipv6: bool,
    peer: Option<SocketAddr>,
    class_v4: u8,
    class_v6: u8,
}

impl Route {
    /// Reads the properties of `socket`.
    pub(super) fn of(socket: &UdpSocket) -> io::Result<Self> {
        let ipv6 = socket.local_addr()?.is_ipv6();
        let options = SockRef::from(socket);
        // A dual-stack (IPv6) socket has a traffic class for IPv4 and one for IPv6. A class that
        // the kernel does not report counts as zero.
        let class_v4 = low_byte(options.tos_v4().unwrap_or(0));
        let class_v6 = if ipv6 { low_byte(options.tclass_v6().unwrap_or(0)) } else { 0 };
        Ok(Self::new(ipv6, socket.peer_addr().ok(), class_v4, class_v6))
    }

    /// Makes a route for a socket with this address family, peer and traffic classes.
    pub(super) fn new(ipv6: bool, peer: Option<SocketAddr>, class_v4: u8, class_v6: u8) -> Self {
        let unconnected = Self { ipv6, peer: None, class_v4, class_v6 };
        Self { peer: peer.map(|peer| unconnected.in_family(peer)), ..unconnected }
    }

    pub(super) const fn is_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Returns the address that a message to `dest` must carry; `None` if it goes to the connected
    /// peer, which needs no address.
    #[inline]
    pub(super) fn name(&self, dest: Option<SocketAddr>) -> Option<SocketAddr> {
        let name = self.in_family(dest?);
        (self.peer != Some(name)).then_some(name)
    }

    /// Returns whether the message is IPv6, and the traffic class that it must carry for the code
    /// point `ecn`. Returns `None` if the packet has no code point.
    #[inline]
    pub(super) fn class(&self, name: Option<SocketAddr>, ecn: u8) -> Option<(bool, u8)> {
        if ecn & ECN_MASK == 0 {
            return None;
        }
        let ipv6 = self.sends_ipv6(name);
        let class = if ipv6 { self.class_v6 } else { self.class_v4 };
        Some((ipv6, class & !ECN_MASK | ecn & ECN_MASK))
    }

    /// Returns the local address and interface that a message must carry for the source with this
    /// number. `None`: it carries none.
    ///
    /// The kernel ignores an IPv6 address with a message of an IPv4 socket. So that the message
    /// does not leave from another address, such a source becomes the broadcast address, from which
    /// the kernel sends nothing (EINVAL, `ip_route_output_key_hash_rcu` in `net/ipv4/route.c`,
    /// 7.2); and so does a source that nobody has made.
    #[inline]
    pub(super) fn from(
        &self,
        name: Option<SocketAddr>,
        number: Option<NonZero<u16>>,
    ) -> Option<From> {
        const BROADCAST: Local = Local { addr: IpAddr::V4(Ipv4Addr::BROADCAST), interface: 0 };
        let Local { addr, interface } = source::local(number?).unwrap_or(BROADCAST);
        if self.ipv6 {
            let addr = match addr {
                IpAddr::V6(addr) if !addr.is_unspecified() => addr,
                IpAddr::V4(addr) if !addr.is_unspecified() => addr.to_ipv6_mapped(),
                // The address of the family of the message that stands for no address.
                _ if self.sends_ipv6(name) => Ipv6Addr::UNSPECIFIED,
                _ => Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(),
            };
            return Some(From::V6(addr, interface));
        }
        let addr = match addr {
            IpAddr::V4(addr) => addr,
            IpAddr::V6(addr) if addr.is_unspecified() => Ipv4Addr::UNSPECIFIED,
            IpAddr::V6(addr) => addr.to_ipv4_mapped().unwrap_or(Ipv4Addr::BROADCAST),
        };
        Some(From::V4(addr, interface))
    }

    /// Whether a message that carries the address `name` is IPv6.
    #[inline]
    fn sends_ipv6(&self, name: Option<SocketAddr>) -> bool {
        match name.or(self.peer) {
            Some(SocketAddr::V6(to)) => to.ip().to_ipv4_mapped().is_none(),
            Some(SocketAddr::V4(_)) => false,
            None => self.ipv6,
        }
    }

    /// Returns `addr` in the form that the socket's address family uses. If there is no such form,
    /// returns `addr` unchanged.
    #[inline]
    fn in_family(&self, addr: SocketAddr) -> SocketAddr {
        match addr {
            SocketAddr::V4(v4) if self.ipv6 => {
                SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
            }
            SocketAddr::V6(v6) if !self.ipv6 => match v6.ip().to_ipv4_mapped() {
                Some(ip) => SocketAddrV4::new(ip, v6.port()).into(),
                None => addr,
            },
            _ => addr,
        }
    }
}

fn low_byte(class: u32) -> u8 {
    class.to_le_bytes()[0]
}
