//! Reads from the bytes of a packet what filters need: addresses, ports, and where headers begin.
//!
//! A packet states with which header its payload begins ([`Layer`]). For headers that are missing,
//! this module takes the headers that the device would write. A datagram to [`Packet::dest`] gets
//! an Ethernet, an IP and a UDP header, with the packet's ECN bits and a TTL of 64. Fields that
//! only the device knows are zero: MAC addresses, the sender's address and port, checksums, and the
//! destination of a connected device.
//!
//! Source: RFC 791, RFC 8200, RFC 9293, RFC 768, RFC 792; IEEE 802.1Q; behaviour of Linux 7.2
//! `net/core/flow_dissector.c`. Linux decides which header fields are read from a fragment and from
//! a packet with extension headers, and reads no packet inside a tunnel; this module does the same.
//! Differs: nothing is read behind an MPLS, PPPoE, MACsec or LLC header. A crate (`etherparse`)
//! would need the bytes in one piece, but the headers of a datagram are stored apart from its
//! payload; the tests compare with `etherparse`.
//! Invariant: no bytes make this module panic, and it never reads past the end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use onramp_queue::{Layer, Packet};

/// Length of an Ethernet, an IPv6 and a UDP header together.
const HEAD_MAX: usize = ETH_LEN + 40 + 8;
const ETH_LEN: usize = 14;
/// Largest number of IPv6 extension headers that are read in a packet.
const HEADERS_MAX: usize = 15;

/// Numbers of protocols in Ethernet headers.
pub(crate) mod ethertype {
    pub(crate) const IP: u16 = 0x0800;
    pub(crate) const ARP: u16 = 0x0806;
    pub(crate) const VLAN: u16 = 0x8100;
    pub(crate) const IPV6: u16 = 0x86dd;
    pub(crate) const QINQ: u16 = 0x88a8;
}

/// Numbers of protocols in IP headers.
pub(crate) mod ip_proto {
    pub(crate) const ICMP: u8 = 1;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const ICMPV6: u8 = 58;
    pub(crate) const SCTP: u8 = 132;
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const DCCP: u8 = 33;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const ESP: u8 = 50;
    pub(super) const AH: u8 = 51;
    pub(super) const DESTINATION: u8 = 60;
    pub(super) const UDP_LITE: u8 = 136;
}

/// Whether an IP packet is a fragment of a larger one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragment {
    /// The packet is not a fragment.
    #[default]
    No,
    /// The first fragment. This fragment contains the ports, but as in Linux they are not read.
    First,
    /// A fragment other than the first. It contains no transport header.
    Later,
}

/// The outermost VLAN tag of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vlan {
    /// Type of the tag, 0x8100 or 0x88a8.
    pub ethertype: u16,
    /// Number of the VLAN, 12 bits.
    pub id: u16,
    /// Priority in the tag, 3 bits.
    pub prio: u8,
}

/// The header fields of a packet. A field that the packet does not have is zero or `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Destination address and source address in the Ethernet header.
    pub macs: ([u8; 6], [u8; 6]),
    /// Protocol number in the Ethernet header. If the packet has a VLAN tag, this is the type of
    /// the tag.
    pub outer: u16,
    /// The outermost VLAN tag.
    pub vlan: Option<Vlan>,
    /// Protocol number after all VLAN tags.
    pub ethertype: u16,
    /// Offset of the network header in bytes, from the start of the Ethernet header.
    pub network: usize,
    /// Offset of the transport header in bytes, from the start of the Ethernet header.
    pub transport: Option<usize>,
    /// Source address and destination address in the IP header.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// Protocol number of the header after the IP header and its extension headers.
    pub protocol: u8,
    /// The TOS byte (IPv4) or the traffic class (IPv6): DSCP and ECN.
    pub tos: u8,
    /// The TTL (IPv4) or the hop limit (IPv6).
    pub ttl: u8,
    /// Whether the packet is a fragment of a larger one.
    pub fragment: Fragment,
    /// Source port and destination port.
    pub ports: Option<(u16, u16)>,
    /// The twelve bits after the data offset in the TCP header, which contain the flags.
    pub tcp_flags: u16,
    /// Type and code of an ICMP packet.
    pub icmp: Option<(u8, u8)>,
}

/// A packet whose headers have been read.
#[derive(Clone, Debug)]
pub struct Dissected {
    /// The headers in front of the payload that the packet does not contain, and that the device
    /// would write.
    head: [u8; HEAD_MAX],
    head_len: usize,
    keys: Keys,
}

impl Dissected {
    /// Finds the header fields of `pkt`.
    #[must_use]
    pub fn of(pkt: &Packet) -> Self {
        let mut this = Self { head: [0; HEAD_MAX], head_len: 0, keys: Keys::default() };
        match pkt.layer() {
            Layer::Ethernet => {}
            Layer::Ip => {
                let version = pkt.payload().first().map_or(0, |byte| byte >> 4);
                this.write_ethernet(version == 6);
            }
            Layer::Datagram => this.write_datagram(pkt),
        }
        this.read(pkt);
        this
    }

    /// Returns the header fields that were found in the packet.
    #[must_use]
    #[inline]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns `N` bytes of the packet at `offset`, counted from the Ethernet header, or `None` if
    /// the packet has fewer bytes. `pkt` must be the packet whose headers were read.
    #[must_use]
    #[inline]
    pub fn bytes<const N: usize>(&self, pkt: &Packet, offset: usize) -> Option<[u8; N]> {
        let payload = pkt.payload();
        if let Some(start) = offset.checked_sub(self.head_len) {
            return payload.get(start..start.checked_add(N)?)?.try_into().ok();
        }
        let mut bytes = [0; N];
        for (place, byte) in bytes.iter_mut().zip(offset..) {
            *place = match byte.checked_sub(self.head_len) {
                None => self.head[byte],
                Some(at) => *payload.get(at)?,
            };
        }
        Some(bytes)
    }

    /// Returns the offset in the payload of the byte at `offset`, counted from the Ethernet header;
    /// `None` if the byte belongs to a header that the device would write.
    pub(super) fn in_payload(&self, offset: usize) -> Option<usize> {
        offset.checked_sub(self.head_len)
    }

    /// Returns the length of the packet in bytes, from the Ethernet header on.
    #[must_use]
    pub fn len(&self, pkt: &Packet) -> usize {
        self.head_len + pkt.payload().len()
    }

    /// Whether the length of the packet, from the Ethernet header on, is zero.
    #[must_use]
    pub fn is_empty(&self, pkt: &Packet) -> bool {
        self.len(pkt) == 0
    }

    fn write_ethernet(&mut self, v6: bool) {
        let protocol = if v6 { ethertype::IPV6 } else { ethertype::IP };
        self.head[12..14].copy_from_slice(&protocol.to_be_bytes());
        self.head_len = ETH_LEN;
    }

    /// Writes the Ethernet, IP and UDP headers that the device would put before the payload.
    fn write_datagram(&mut self, pkt: &Packet) {
        let dest = pkt.dest();
        let v6 = matches!(dest, Some(SocketAddr::V6(_)));
        self.write_ethernet(v6);
        let length = |headers: usize| {
            u16::try_from(headers + pkt.payload().len()).unwrap_or(u16::MAX).to_be_bytes()
        };
        let ip = &mut self.head[ETH_LEN..];
        let ip_len = if v6 {
            ip[0] = 0x60;
            ip[1] = pkt.ecn << 4;
            ip[4..6].copy_from_slice(&length(8));
            ip[6..8].copy_from_slice(&[ip_proto::UDP, 64]);
            40
        } else {
            ip[0..2].copy_from_slice(&[0x45, pkt.ecn]);
            ip[2..4].copy_from_slice(&length(28));
            // Linux sockets use path MTU discovery by default, so the "don't fragment" bit is set.
            ip[6] = 0x40;
            ip[8..10].copy_from_slice(&[64, ip_proto::UDP]);
            20
        };
        match dest {
            Some(SocketAddr::V4(dest)) => ip[16..20].copy_from_slice(&dest.ip().octets()),
            Some(SocketAddr::V6(dest)) => ip[24..40].copy_from_slice(&dest.ip().octets()),
            None => {}
        }
        let port = dest.map_or(0, |dest| dest.port());
        ip[ip_len + 2..ip_len + 4].copy_from_slice(&port.to_be_bytes());
        ip[ip_len + 4..ip_len + 6].copy_from_slice(&length(8));
        self.head_len = ETH_LEN + ip_len + 8;
    }

    fn u16(&self, pkt: &Packet, offset: usize) -> Option<u16> {
        self.bytes(pkt, offset).map(u16::from_be_bytes)
    }

    /// Finds the header fields, as far as the packet contains the headers.
    fn read(&mut self, pkt: &Packet) {
        // The offset stays at this value if the packet is too short to contain a network header.
        self.keys.network = ETH_LEN;
        let Some([d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5]) = self.bytes(pkt, 0) else {
            return;
        };
        self.keys.macs = ([d0, d1, d2, d3, d4, d5], [s0, s1, s2, s3, s4, s5]);
        let Some(outer) = self.u16(pkt, 12) else { return };
        self.keys.outer = outer;
        let (mut protocol, mut at) = (outer, ETH_LEN);
        for _ in 0..2 {
            if !matches!(protocol, ethertype::VLAN | ethertype::QINQ) {
                break;
            }
            let (Some(tag), Some(inner)) = (self.u16(pkt, at), self.u16(pkt, at + 2)) else {
                break;
            };
            let prio = tag.to_be_bytes()[0] >> 5;
            self.keys.vlan.get_or_insert(Vlan { ethertype: protocol, id: tag & 0xfff, prio });
            (protocol, at) = (inner, at + 4);
        }
        self.keys.ethertype = protocol;
        self.keys.network = at;
        let transport = match protocol {
            ethertype::IP => self.read_v4(pkt),
            ethertype::IPV6 => self.read_v6(pkt),
            _ => None,
        };
        if let Some(at) = transport {
            self.keys.transport = Some(at);
            if self.keys.fragment == Fragment::No {
                self.read_transport(pkt, at);
            }
        }
    }

    /// Reads an IPv4 header. Returns the offset of the transport header, or `None` if the IPv4
    /// header is cut off or invalid.
    fn read_v4(&mut self, pkt: &Packet) -> Option<usize> {
        let ip: [u8; 20] = self.bytes(pkt, self.keys.network)?;
        let words = usize::from(ip[0] & 15);
        if words < 5 {
            return None;
        }
        let address =
            |at: usize| IpAddr::V4(Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]));
        self.keys.addresses = Some((address(12), address(16)));
        (self.keys.tos, self.keys.ttl, self.keys.protocol) = (ip[1], ip[8], ip[9]);
        let offset = u16::from_be_bytes([ip[6], ip[7]]);
        self.keys.fragment = match (offset & 0x1fff, offset & 0x2000) {
            (0, 0) => Fragment::No,
            (0, _) => Fragment::First,
            _ => Fragment::Later,
        };
        Some(self.keys.network + 4 * words)
    }

    fn read_v6(&mut self, pkt: &Packet) -> Option<usize> {
        let network = self.keys.network;
        let ip: [u8; 8] = self.bytes(pkt, network)?;
        let address = |at| self.bytes(pkt, network + at).map(|ip| IpAddr::V6(Ipv6Addr::from(ip)));
        self.keys.addresses = Some((address(8)?, address(24)?));
        (self.keys.tos, self.keys.ttl) = (ip[0] << 4 | ip[1] >> 4, ip[7]);
        let (mut next, mut at) = (ip[6], network + 40);
        for _ in 0..HEADERS_MAX {
            self.keys.protocol = next;
            match next {
                ip_proto::HOP_BY_HOP | ip_proto::ROUTING | ip_proto::DESTINATION => {
                    let [inner, len] = self.bytes(pkt, at)?;
                    (next, at) = (inner, at + 8 * (usize::from(len) + 1));
                }
                ip_proto::FRAGMENT => {
                    let [inner, _, high, low]: [u8; 4] = self.bytes(pkt, at)?;
                    let offset = u16::from_be_bytes([high, low]) & 0xfff8;
                    self.keys.fragment =
                        if offset == 0 { Fragment::First } else { Fragment::Later };
                    self.keys.protocol = inner;
                    return Some(at + 8);
                }
                _ => return Some(at),
            }
        }
        None
    }

    fn read_transport(&mut self, pkt: &Packet, at: usize) {
        use ip_proto::{AH, DCCP, ESP, ICMP, ICMPV6, SCTP, TCP, UDP, UDP_LITE};
        let ports = match self.keys.protocol {
            TCP | UDP | SCTP | DCCP | UDP_LITE | ESP => Some(at),
            AH => Some(at + 4),
            _ => None,
        };
        let ports = ports.and_then(|at| self.bytes(pkt, at));
        self.keys.ports =
            ports.map(|[a, b, c, d]| (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])));
        match self.keys.protocol {
            TCP => {
                let tcp: Option<[u8; 20]> = self.bytes(pkt, at);
                if let Some(tcp) = tcp.filter(|tcp| tcp[12] >> 4 >= 5) {
                    self.keys.tcp_flags = u16::from_be_bytes([tcp[12], tcp[13]]) & 0xfff;
                }
            }
            ICMP | ICMPV6 => {
                let icmp: Option<[u8; 2]> = self.bytes(pkt, at);
                self.keys.icmp = icmp.map(|[kind, code]| (kind, code));
            }
            _ => {}
        }
    }
}
