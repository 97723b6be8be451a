//! The local address and interface from which a datagram leaves.
//!
//! Source: `ip(7)` (`IP_PKTINFO`), `ipv6(7)` and RFC 3542 (`IPV6_PKTINFO`); `ip_cmsg_send` in
//! `net/ipv4/ip_sockglue.c` and `ip6_datagram_send_ctl` in `net/ipv6/datagram.c` (7.2).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use onramp::dev::Source;

use crate::error::{Error, Result};

/// The largest number of a source that a packet has room for.
pub(crate) const SOURCE_MAX: u16 = 32_767;

/// A local address and an interface, as a program asks for them. The address may be unspecified, or
/// the interface 0, but not both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    ip: IpAddr,
    interface: u32,
}

impl Local {
    /// Returns what the address and the index of the interface ask for; `None` if they leave both
    /// to the system.
    pub(crate) fn new(ip: IpAddr, interface: u32) -> Option<Self> {
        let is_given = !ip.to_canonical().is_unspecified();
        (is_given || interface > 0).then_some(Self { ip, interface })
    }

    /// Reads a `struct in_pktinfo`: an index, the local address, and an address that means nothing
    /// when datagrams are sent. As in the kernel, it has this length exactly.
    pub(crate) fn of_in_pktinfo(data: &[u8]) -> Option<Option<Self>> {
        let data: &[u8; 12] = data.try_into().ok()?;
        let (interface, rest) = data.split_first_chunk()?;
        let ip = Ipv4Addr::from(*rest.first_chunk::<4>()?);
        Some(Self::new(ip.into(), u32::from_ne_bytes(*interface)))
    }

    /// Reads a `struct in6_pktinfo`: the local address, and an index. As in the kernel, more bytes
    /// may follow.
    pub(crate) fn of_in6_pktinfo(data: &[u8]) -> Option<Option<Self>> {
        let (ip, rest) = data.split_first_chunk::<16>()?;
        let interface = u32::from_ne_bytes(*rest.first_chunk()?);
        Some(Self::new(Ipv6Addr::from(*ip).into(), interface))
    }

    /// Refuses a destination of the other family. `None`: the destination is not known.
    pub(crate) fn check(self, dest: Option<SocketAddr>) -> Result<()> {
        // A socket for IPv6 sends to IPv4 addresses that IPv6 addresses stand for.
        let is_ipv4 = |ip: IpAddr| ip.to_canonical().is_ipv4();
        match dest.map(|dest| dest.ip()) {
            Some(dest) if is_ipv4(dest) != is_ipv4(self.ip) => {
                let text = format!(
                    "datagrams to {dest} cannot leave from {}: one address is of IPv4, the other \
                     of IPv6",
                    self.ip
                );
                Err(Error::invalid(text))
            }
            _ => Ok(()),
        }
    }

    /// Returns the source that stands for it.
    pub(crate) fn source(self) -> Result<Source> {
        Source::new(self.ip, self.interface).map_err(|error| {
            let is_full = error.kind() == io::ErrorKind::QuotaExceeded;
            let errno = if is_full { libc::EDQUOT } else { libc::EIO };
            Error::new(errno, error.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(ip: &str, interface: u32) -> Option<Local> {
        Local::new(ip.parse().expect("an address"), interface)
    }

    #[test]
    fn structures_are_read_and_wrong_lengths_are_not() {
        let four = [7, 0, 0, 0, 127, 0, 0, 9, 192, 0, 2, 1];
        let interface = u32::from_ne_bytes([7, 0, 0, 0]);
        assert_eq!(Local::of_in_pktinfo(&four), Some(local("127.0.0.9", interface)));
        let mut six = Ipv6Addr::LOCALHOST.octets().to_vec();
        six.extend(9_u32.to_ne_bytes());
        assert_eq!(Local::of_in6_pktinfo(&six), Some(local("::1", 9)));
        for len in [0, 4, 8, 11, 13, 20] {
            assert_eq!(Local::of_in_pktinfo(&[1; 24][..len]), None, "{len}");
        }
        for (len, is_right) in [(0, false), (16, false), (19, false), (20, true), (24, true)] {
            assert_eq!(Local::of_in6_pktinfo(&[1; 24][..len]).is_some(), is_right, "{len}");
        }
    }

    #[test]
    fn an_unspecified_address_without_an_interface_asks_for_nothing() {
        assert_eq!(Local::of_in_pktinfo(&[0; 12]), Some(None));
        assert_eq!(Local::of_in6_pktinfo(&[0; 20]), Some(None));
        for ip in ["0.0.0.0", "::", "::ffff:0.0.0.0"] {
            assert!(local(ip, 0).is_none() && local(ip, 1).is_some(), "{ip}");
        }
    }

    #[test]
    fn the_families_of_both_ends_agree() {
        for (ip, dest, is_right) in [
            ("127.0.0.9", "127.0.0.1:9", true),
            ("127.0.0.9", "[::ffff:127.0.0.1]:9", true),
            ("::ffff:127.0.0.9", "127.0.0.1:9", true),
            ("::1", "[::1]:9", true),
            ("::", "[::1]:9", true),
            ("127.0.0.9", "[::1]:9", false),
            ("::1", "127.0.0.1:9", false),
            ("::1", "[::ffff:127.0.0.1]:9", false),
            ("::ffff:127.0.0.9", "[::1]:9", false),
            ("0.0.0.0", "[::1]:9", false),
        ] {
            let local = local(ip, 1).expect("it asks for something");
            let checked = local.check(Some(dest.parse().expect("an address")));
            assert_eq!(checked.is_ok(), is_right, "{ip} {dest}");
            if let Err(error) = checked {
                assert_eq!(error.errno, libc::EINVAL);
                assert!(error.text.contains(&format!("cannot leave from {ip}")), "{}", error.text);
            }
            local.check(None).expect("the destination is not known");
        }
    }
}
