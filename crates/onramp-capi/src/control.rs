//! Socket addresses and control messages, as bytes that C has laid out.
//!
//! Source: `cmsg(3)`, `udp(7)`, `ip(7)`, `ipv6(7)`; `struct sockaddr_in`, `struct sockaddr_in6`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::error::{Error, Result};
use crate::source::Local;

/// Length of a `sockaddr_in6`, bytes, the longest address.
pub(crate) const ADDRESS_MAX: usize = 28;
/// Length of a `sockaddr_in` without its padding, bytes.
const ADDRESS_V4: usize = 8;
/// Length of a `cmsghdr`, bytes: its length, level and type.
const HEADER: usize = size_of::<usize>() + 8;

/// Returns the bytes from `at` on as an array. The caller has checked that they are there.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Reads the bytes of a `sockaddr_in` or `sockaddr_in6`. The result is `None` if all are 0.
pub(crate) fn address(bytes: &[u8]) -> Result<Option<SocketAddr>> {
    let short = || Error::invalid(format!("the address has only {} bytes", bytes.len()));
    let family = u16::from_ne_bytes(array(bytes, 0).ok_or_else(short)?);
    let port = u16::from_be_bytes(array(bytes, 2).ok_or_else(short)?);
    match i32::from(family) {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET => {
            let ip: [u8; 4] = array(bytes, ADDRESS_V4 - 4).ok_or_else(short)?;
            Ok(Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into()))
        }
        libc::AF_INET6 => {
            let read = || Some((array(bytes, 4)?, array(bytes, 8)?, array(bytes, 24)?));
            let (flow, ip, scope): ([u8; 4], [u8; 16], [u8; 4]) = read().ok_or_else(short)?;
            let (flow, scope) = (u32::from_ne_bytes(flow), u32::from_ne_bytes(scope));
            Ok(Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into()))
        }
        family => {
            let text = format!("the address has the family {family}; expected AF_INET or AF_INET6");
            Err(Error::new(libc::EAFNOSUPPORT, text))
        }
    }
}

/// What the control messages of a message ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Controls {
    /// Bytes in each datagram but the last; 0: the payload is one datagram.
    pub(crate) segment: u16,
    pub(crate) ecn: Option<u8>,
    /// Earliest departure time, ns; 0: none.
    pub(crate) txtime_ns: u64,
    /// Where the datagrams leave from; `None`: the system chooses.
    pub(crate) from: Option<Local>,
}

/// Reads the control messages of a message.
pub(crate) fn controls(mut bytes: &[u8]) -> Result<Controls> {
    let mut controls = Controls::default();
    while bytes.len() >= HEADER {
        let int = |at| array(bytes, at).map_or(0, i32::from_ne_bytes);
        let len = array(bytes, 0).map_or(0, usize::from_ne_bytes);
        let (level, kind) = (int(size_of::<usize>()), int(size_of::<usize>() + 4));
        let Some(data) = bytes.get(HEADER..len) else {
            let text = format!(
                "a control message has the length {len}; expected {HEADER} to {}, as CMSG_LEN \
                 gives",
                bytes.len()
            );
            return Err(Error::invalid(text));
        };
        controls.take(level, kind, data)?;
        bytes = bytes.get(len.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
    }
    Ok(controls)
}

impl Controls {
    fn take(&mut self, level: i32, kind: i32, data: &[u8]) -> Result<()> {
        let wrong = |name: &str| {
            let text = format!("the control message {name} has {} bytes of data", data.len());
            Error::invalid(text)
        };
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_SEGMENT) => {
                let data = array(data, 0).ok_or_else(|| wrong("UDP_SEGMENT"))?;
                self.segment = u16::from_ne_bytes(data);
            }
            (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                let int = array(data, 0).map(i32::from_ne_bytes);
                let tos = int.or_else(|| data.first().map(|byte| i32::from(*byte)));
                self.ecn = Some(ecn(tos.ok_or_else(|| wrong("IP_TOS or IPV6_TCLASS"))?)?);
            }
            (libc::SOL_SOCKET, libc::SCM_TXTIME) => {
                let data = array(data, 0).ok_or_else(|| wrong("SCM_TXTIME"))?;
                self.txtime_ns = u64::from_ne_bytes(data);
            }
            (libc::SOL_IP, libc::IP_PKTINFO) => {
                self.from = Local::of_in_pktinfo(data).ok_or_else(|| wrong("IP_PKTINFO"))?;
            }
            (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                self.from = Local::of_in6_pktinfo(data).ok_or_else(|| wrong("IPV6_PKTINFO"))?;
            }
            (level, kind) => {
                let text = format!(
                    "a control message of level {level} and type {kind} is not supported; \
                     supported are UDP_SEGMENT, IP_TOS, IPV6_TCLASS, SCM_TXTIME, IP_PKTINFO and \
                     IPV6_PKTINFO"
                );
                return Err(Error::new(libc::EOPNOTSUPP, text));
            }
        }
        Ok(())
    }
}

/// Returns the ECN code point of a TOS byte. The other bits have to be 0, because a link sends all
/// packets with those of its socket.
fn ecn(tos: i32) -> Result<u8> {
    u8::try_from(tos).ok().filter(|tos| *tos < 4).ok_or_else(|| {
        let text = format!(
            "IP_TOS or IPV6_TCLASS is {tos}; expected 0 to 3, the ECN code point: set the DSCP as \
             an option of the socket, before the link is made"
        );
        Error::new(libc::EOPNOTSUPP, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER + data.len()).to_ne_bytes().to_vec();
        bytes.extend([level.to_ne_bytes(), kind.to_ne_bytes()].concat());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(size_of::<usize>()), 0xee);
        bytes
    }

    #[test]
    fn control_messages_are_read_in_a_row() {
        let all = [
            message(libc::SOL_UDP, libc::UDP_SEGMENT, &1_200_u16.to_ne_bytes()),
            message(libc::SOL_IP, libc::IP_TOS, &[2]),
            message(libc::SOL_IP, libc::IP_PKTINFO, &[0, 0, 0, 0, 127, 0, 0, 9, 0, 0, 0, 0]),
            message(libc::SOL_SOCKET, libc::SCM_TXTIME, &77_u64.to_ne_bytes()),
        ];
        let from = Local::new(Ipv4Addr::new(127, 0, 0, 9).into(), 0);
        let right = Controls { segment: 1_200, ecn: Some(2), txtime_ns: 77, from };
        assert_eq!(controls(&all.concat()).expect("they are right"), right);
        let v6 = message(libc::SOL_IPV6, libc::IPV6_TCLASS, &1_i32.to_ne_bytes());
        assert_eq!(controls(&v6).expect("it is right").ecn, Some(1));
        assert_eq!(controls(&[]).expect("there are none"), Controls::default());
    }

    /// As in the kernel, the last of several holds.
    #[test]
    fn the_last_source_holds() {
        let six = [&Ipv6Addr::LOCALHOST.octets()[..], &3_u32.to_ne_bytes()].concat();
        let six = message(libc::SOL_IPV6, libc::IPV6_PKTINFO, &six);
        let none = message(libc::SOL_IP, libc::IP_PKTINFO, &[0; 12]);
        let from = |bytes: &[u8]| controls(bytes).expect("they are right").from;
        let right = Local::new(Ipv6Addr::LOCALHOST.into(), 3);
        assert_eq!(from(&[none.clone(), six.clone()].concat()), right);
        assert_eq!(from(&[six, none].concat()), None);
    }

    #[test]
    fn wrong_control_messages_are_refused() {
        let errno = |bytes: &[u8]| controls(bytes).expect_err("it is wrong").errno;
        let tos = |tos: i32| message(libc::SOL_IP, libc::IP_TOS, &tos.to_ne_bytes());
        assert_eq!(errno(&tos(0x20)), libc::EOPNOTSUPP);
        assert_eq!(errno(&tos(-1)), libc::EOPNOTSUPP);
        assert_eq!(errno(&message(libc::SOL_IP, libc::IP_TTL, &[1; 4])), libc::EOPNOTSUPP);
        for name in [
            (libc::SOL_UDP, libc::UDP_SEGMENT),
            (libc::SOL_IP, libc::IP_TOS),
            (libc::SOL_SOCKET, libc::SCM_TXTIME),
            (libc::SOL_IP, libc::IP_PKTINFO),
            (libc::SOL_IPV6, libc::IPV6_PKTINFO),
        ] {
            assert_eq!(errno(&message(name.0, name.1, &[])), libc::EINVAL);
        }
        for len in [0, HEADER - 1, 33, usize::MAX] {
            let mut bytes = tos(0);
            bytes[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(errno(&bytes), libc::EINVAL, "{len}");
        }
    }

    #[test]
    fn addresses_are_read() {
        let mut bytes = [0; ADDRESS_MAX];
        assert_eq!(address(&bytes).expect("none"), None);
        bytes[..8].copy_from_slice(&[2, 0, 0, 53, 192, 0, 2, 1]);
        bytes[..2].copy_from_slice(&2_u16.to_ne_bytes());
        assert_eq!(address(&bytes[..16]).expect("IPv4"), Some("192.0.2.1:53".parse().unwrap()));
        assert_eq!(address(&bytes[..7]).expect_err("short").errno, libc::EINVAL);
        bytes = [0; ADDRESS_MAX];
        bytes[..4].copy_from_slice(&[10, 0, 0, 53]);
        bytes[..2].copy_from_slice(&10_u16.to_ne_bytes());
        (bytes[8], bytes[9], bytes[23]) = (0xfe, 0x80, 1);
        bytes[24..].copy_from_slice(&3_u32.to_ne_bytes());
        assert_eq!(address(&bytes).expect("IPv6"), Some("[fe80::1%3]:53".parse().unwrap()));
        assert_eq!(address(&bytes[..27]).expect_err("short").errno, libc::EINVAL);
        bytes[..2].copy_from_slice(&1_u16.to_ne_bytes());
        assert_eq!(address(&bytes).expect_err("AF_UNIX").errno, libc::EAFNOSUPPORT);
    }
}
