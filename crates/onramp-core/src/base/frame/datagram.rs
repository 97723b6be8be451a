//! The datagrams of UDP in frames: their addresses and data, and headers for data that has none.

use std::net::{IpAddr, SocketAddr};

use onramp_queue::{Layer, Packet, PartialChecksum};

use super::{SuperFrame, folded, pseudo_header, sum, word};
use crate::base::dissect::{Dissected, ip_proto};

/// Length of a UDP header in bytes.
const UDP: usize = 8;
/// Offset of the checksum in a UDP header.
const CHECKSUM: u16 = 6;
/// TTL or hop limit of headers that are written here.
const TTL: u8 = 64;

/// A UDP datagram in a packet, or several of one flow in a packet that is to be cut into them: who
/// sent it to whom, and its data.
///
/// Use it in a program that receives packets ([`Layer::Ip`] or [`Layer::Ethernet`]) and wants what
/// `recvfrom` returns.
///
/// ```
/// use onramp_core::frame::Datagram;
/// use onramp_queue::Packet;
///
/// let (source, destination) = ("192.0.2.1:7000".parse()?, "192.0.2.2:53".parse()?);
/// let mut packet = Packet::with_capacity(100);
/// packet.set_payload(&[0; Datagram::headers(false)]);
/// packet.append_payload(b"hello");
/// Datagram::write_headers(&mut packet, source, destination, 2);
///
/// let datagram = Datagram::of(&packet).expect("it has just become one");
/// assert_eq!((datagram.source, datagram.destination), (source, destination));
/// assert_eq!((datagram.ecn, datagram.data), (2, &b"hello"[..]));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
///
/// Source: RFC 768, RFC 791, RFC 8200.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'p> {
    /// Address and port of the sender. A link-local IPv6 address has no scope here, because the
    /// packet does not contain it.
    pub source: SocketAddr,
    /// Address and port to which the datagram was sent, without scope.
    pub destination: SocketAddr,
    /// ECN code point: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    pub ecn: u8,
    /// Bytes of data in each datagram but the last, which may be shorter, if the packet holds
    /// several datagrams; `None` if it holds one. See [`datagrams`](Self::datagrams).
    pub segment: Option<u16>,
    /// The data of the datagram, or of all datagrams.
    pub data: &'p [u8],
}

impl<'p> Datagram<'p> {
    /// Finds the datagram in a packet. Returns `None` if the packet is not UDP over IP, is a
    /// fragment, or has headers whose lengths contradict each other or exceed the packet. Bytes
    /// behind the end of the datagram, such as padding, are not part of the data.
    ///
    /// Does not verify checksums.
    #[must_use]
    pub fn of(pkt: &'p Packet) -> Option<Self> {
        let frame = Dissected::of(pkt);
        let keys = frame.keys();
        if keys.protocol != ip_proto::UDP {
            return None;
        }
        // A fragment has no ports.
        let ((from, to), (source, destination)) = (keys.addresses?, keys.ports?);
        let ip = frame.in_payload(keys.network)?;
        let udp = frame.in_payload(keys.transport?)?;
        let payload = pkt.payload();
        let number = |at: usize| {
            let bytes = payload.get(at..)?.first_chunk()?;
            Some(usize::from(u16::from_be_bytes(*bytes)))
        };
        let end_of_ip =
            if from.is_ipv4() { ip + number(ip + 2)? } else { ip + 40 + number(ip + 4)? };
        let end = udp + number(udp + 4)?;
        if end > end_of_ip || end_of_ip > payload.len() {
            return None;
        }
        let data = payload.get(udp + UDP..end)?;
        let several = SuperFrame::of(pkt).is_some() && data.len() > usize::from(pkt.gso_size);
        let segment = several.then_some(pkt.gso_size);
        Some(Self {
            source: SocketAddr::new(from, source),
            destination: SocketAddr::new(to, destination),
            ecn: keys.tos & 3,
            segment,
            data,
        })
    }

    /// Returns the data of each datagram, in order. There is one, unless [`segment`](Self::segment)
    /// says otherwise.
    pub fn datagrams(&self) -> impl Iterator<Item = &'p [u8]> + use<'p> {
        let size = self.segment.map_or(self.data.len(), usize::from);
        // `chunks` yields nothing for a datagram without data.
        let empty = self.data.is_empty().then_some(&[][..]);
        self.data.chunks(size.max(1)).chain(empty)
    }

    /// Returns the length of the IP header and the UDP header together, in bytes, as
    /// [`write_headers`](Self::write_headers) writes them: 28 for IPv4, 48 for IPv6.
    #[must_use]
    pub const fn headers(ipv6: bool) -> usize {
        UDP + if ipv6 { 40 } else { 20 }
    }

    /// Turns data into an IP packet: writes an IP and a UDP header over the first
    /// [`headers`](Self::headers) bytes of the payload, behind which the data stands, and sets the
    /// packet's layer to [`Layer::Ip`]. The UDP checksum is left to the device
    /// ([`Packet::partial_checksum`]), so `pkt` loses its destination.
    ///
    /// `tos` is the TOS byte (IPv4) or the traffic class (IPv6): DSCP and ECN. The TTL or hop limit
    /// is 64, and the IPv6 flow label 0. An IPv4 packet may not be fragmented, so its
    /// identification is 0 (RFC 6864, section 4).
    ///
    /// # Panics
    ///
    /// Panics if one address is IPv4 and the other is IPv6, or if the payload is shorter than the
    /// headers.
    pub fn write_headers(pkt: &mut Packet, source: SocketAddr, destination: SocketAddr, tos: u8) {
        let payload = pkt.payload_mut();
        let start = Self::headers(source.is_ipv6()) - UDP;
        let length = payload.len().checked_sub(start + UDP).expect("room for the headers") + UDP;
        let (ip, udp) = payload.split_at_mut(start);
        let (from, to) = (source.ip(), destination.ip());
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                ip[..2].copy_from_slice(&[0x45, tos]);
                ip[2..4].copy_from_slice(&word(start + length));
                ip[4..12].copy_from_slice(&[0, 0, 0x40, 0, TTL, ip_proto::UDP, 0, 0]);
                ip[12..16].copy_from_slice(&from.octets());
                ip[16..].copy_from_slice(&to.octets());
                let sum = !folded(sum(ip));
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                ip[..4].copy_from_slice(&(6 << 28 | u32::from(tos) << 20).to_be_bytes());
                ip[4..6].copy_from_slice(&word(length));
                ip[6..8].copy_from_slice(&[ip_proto::UDP, TTL]);
                ip[8..24].copy_from_slice(&from.octets());
                ip[24..].copy_from_slice(&to.octets());
            }
            _ => panic!("a datagram from {source} to {destination} changes its address family"),
        }
        udp[..2].copy_from_slice(&source.port().to_be_bytes());
        udp[2..4].copy_from_slice(&destination.port().to_be_bytes());
        udp[4..6].copy_from_slice(&word(length));
        let pseudo = folded(pseudo_header(from, to, ip_proto::UDP, length));
        udp[6..UDP].copy_from_slice(&pseudo.to_be_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "20 or 40")]
        let start = start as u16;
        pkt.set_layer(Layer::Ip);
        pkt.set_partial_checksum(Some(PartialChecksum { start, offset: CHECKSUM }));
    }
}

#[cfg(test)]
mod tests;
