//! Addresses of messages.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::socklen_t;

use super::message::number;

#[expect(clippy::cast_possible_truncation, reason = "16 bytes")]
const LEN_V4: socklen_t = size_of::<libc::sockaddr_in>() as socklen_t;
#[expect(clippy::cast_possible_truncation, reason = "28 bytes")]
const LEN_V6: socklen_t = size_of::<libc::sockaddr_in6>() as socklen_t;

/// An address and port in the format of the kernel. All its bytes are always initialised.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    /// Returns no address, to be set by [`set`](Self::set) or by the kernel.
    pub(crate) const fn new() -> Self {
        let v6 = libc::sockaddr_in6 {
            sin6_family: 0,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        };
        Self { v6 }
    }

    /// Writes `addr` in the format that the kernel reads, and returns its length in bytes.
    #[inline]
    pub(crate) fn set(&mut self, addr: SocketAddr) -> socklen_t {
        match addr {
            SocketAddr::V4(addr) => {
                self.v4 = libc::sockaddr_in {
                    sin_family: number(libc::AF_INET.unsigned_abs() as usize),
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                    sin_zero: [0; 8],
                };
                LEN_V4
            }
            SocketAddr::V6(addr) => {
                self.v6 = libc::sockaddr_in6 {
                    sin6_family: number(libc::AF_INET6.unsigned_abs() as usize),
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                    sin6_scope_id: addr.scope_id(),
                };
                LEN_V6
            }
        }
    }

    /// Returns the address, of which `len` bytes were written; `None` if it is neither an IPv4 nor
    /// an IPv6 address.
    #[inline]
    pub(crate) fn get(&self, len: socklen_t) -> Option<SocketAddr> {
        // SAFETY: all bytes are initialised, and any bytes are valid integers.
        let v4 = unsafe { self.v4 };
        match (i32::from(v4.sin_family), len) {
            (libc::AF_INET, LEN_V4) => {
                Some((v4.sin_addr.s_addr.to_ne_bytes(), u16::from_be(v4.sin_port)).into())
            }
            (libc::AF_INET6, LEN_V6) => {
                // SAFETY: as above.
                let v6 = unsafe { self.v6 };
                let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}
