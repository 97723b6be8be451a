//! Takes from a captured frame what a qdisc needs to know about the packet.

use std::fmt;
use std::net::IpAddr;

use etherparse::{IpNumber, LaxIpSlice};
use onramp_queue::Layer;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// The EtherTypes of VLAN tags: 802.1Q, 802.1ad, and an older type for outer tags.
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// Returns the offset of the network header in a frame that `Link::open` has returned. Before the
/// offset, returns the EtherType of the frame, or `None` if the frame begins with the IP header.
fn network(layer: Layer, data: &[u8]) -> Option<(Option<u16>, usize)> {
    if layer != Layer::Ethernet {
        return Some((None, 0));
    }
    let mut at = 12;
    let mut kind = word(data, at)?;
    while TAGS.contains(&kind) {
        at += 4;
        kind = word(data, at)?;
    }
    Some((Some(kind), at + 2))
}

/// Returns the offset of the IP header; `None` if the frame has none.
fn ip(layer: Layer, data: &[u8]) -> Option<usize> {
    let (kind, at) = network(layer, data)?;
    let version = data.get(at)? >> 4;
    let fits = match kind {
        None => version == 4 || version == 6,
        Some(IPV4) => version == 4,
        Some(IPV6) => version == 6,
        Some(_) => false,
    };
    (fits && data.len() >= at + 2).then_some(at)
}

/// Returns the type of service or traffic class of a frame, which consists of DSCP and ECN.
pub(super) fn tos(layer: Layer, data: &[u8]) -> Option<u8> {
    let at = ip(layer, data)?;
    Some(if data[at] >> 4 == 4 { data[at + 1] } else { data[at] << 4 | data[at + 1] >> 4 })
}

/// Writes CE (congestion experienced) into the IP header of a frame, and updates the checksum of
/// IPv4 (RFC 1624). `data` begins at `layer`. Use it to write out a packet that a qdisc has marked.
pub fn mark(layer: Layer, data: &mut [u8]) {
    let Some(at) = ip(layer, data) else { return };
    if data[at] >> 4 == 6 {
        data[at + 1] |= 0x30;
        return;
    }
    let before = word(data, at);
    data[at + 1] |= 3;
    let words = (before, word(data, at), word(data, at + 10));
    let (Some(before), Some(after), Some(sum)) = words else { return };
    let mut new = u32::from(!sum) + u32::from(!before) + u32::from(after);
    while new >> 16 != 0 {
        new = (new & 0xffff) + (new >> 16);
    }
    #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
    data[at + 10..at + 12].copy_from_slice(&(!(new as u16)).to_be_bytes());
}

/// Returns the flow of a frame.
pub(super) fn flow(layer: Layer, data: &[u8]) -> Flow {
    let kind = network(layer, data).and_then(|(kind, _)| kind);
    let ip = ip(layer, data).and_then(|at| LaxIpSlice::from_slice(&data[at..]).ok());
    // A smaller number is the length of a frame of IEEE 802.3, or stands for such a frame.
    let kind = kind.filter(|kind| *kind >= 0x0600);
    let Some((ip, _)) = ip else { return Flow::Other(kind.unwrap_or(0)) };
    let payload = ip.payload();
    // Only the first fragment of a packet has ports. Ports of fragments are ignored, so that all
    // fragments belong to the same flow.
    let known = PORTS.contains(&payload.ip_number) && !payload.fragmented;
    let ports = known
        .then_some(payload.payload)
        .and_then(|payload| Some([word(payload, 0)?, word(payload, 2)?]));
    Flow::Ip {
        ends: [ip.source_addr(), ip.destination_addr()],
        protocol: payload.ip_number.0,
        ports: ports.unwrap_or_default(),
    }
}

/// Protocols whose header begins with two ports.
const PORTS: [IpNumber; 5] =
    [IpNumber::TCP, IpNumber::UDP, IpNumber(33), IpNumber(132), IpNumber(136)];

fn word(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(data.get(at..at + 2)?.try_into().ok()?))
}

/// What the packets of a flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// The addresses, the protocol and the ports, the source first. The ports are 0 if the protocol
    /// has none.
    Ip {
        /// The addresses of the source and the destination.
        ends: [IpAddr; 2],
        /// The number of the protocol, such as 17 for UDP.
        protocol: u8,
        /// The ports of the source and the destination.
        ports: [u16; 2],
    },
    /// A flow of packets that are not IP: their EtherType, or 0 if they have none.
    Other(u16),
}

impl Flow {
    /// Returns a hash of the flow. The hash is the same in every run.
    #[must_use]
    pub fn key(&self) -> u64 {
        let mut key = 0;
        let mut add = |word: u64| key = mixed(key ^ word);
        match self {
            Self::Other(kind) => add(u64::from(*kind)),
            Self::Ip { ends, protocol, ports } => {
                for end in ends {
                    match end {
                        IpAddr::V4(v4) => add(u64::from(v4.to_bits()) | 4 << 32),
                        IpAddr::V6(v6) => {
                            let bits = v6.to_bits();
                            add((bits >> 64) as u64);
                            #[expect(clippy::cast_possible_truncation, reason = "the other half")]
                            add(bits as u64);
                        }
                    }
                }
                let ports = u64::from(ports[0]) << 16 | u64::from(ports[1]);
                add(u64::from(*protocol) << 32 | ports);
            }
        }
        key
    }

    /// Returns the name of the protocol, such as `tcp` or `udp`, or its number.
    #[must_use]
    pub fn protocol(&self) -> String {
        match self {
            Self::Ip { protocol, .. } => match protocol {
                1 => "icmp".into(),
                6 => "tcp".into(),
                17 => "udp".into(),
                58 => "icmpv6".into(),
                132 => "sctp".into(),
                other => format!("protocol {other}"),
            },
            Self::Other(0x0806) => "arp".into(),
            Self::Other(kind) => format!("type {kind:#06x}"),
        }
    }

    /// Returns the source address if `end` is 0, or the destination address if `end` is 1, with the
    /// port if the flow has ports; `None` if the flow is not IP.
    #[must_use]
    pub fn end(&self, end: usize) -> Option<String> {
        let Self::Ip { ends, ports, .. } = self else { return None };
        Some(match (ends[end], ports) {
            (address, [0, 0]) => address.to_string(),
            (address, ports) => std::net::SocketAddr::new(address, ports[end]).to_string(),
        })
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.protocol())?;
        match (self.end(0), self.end(1)) {
            (Some(from), Some(to)) => write!(f, " {from} > {to}"),
            _ => Ok(()),
        }
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mixed(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use etherparse::{Ipv4HeaderSlice, PacketBuilder};
    use onramp_core::frame::priority;
    use onramp_dev::capture::Link;
    use pcap_parser::Linktype;

    use super::*;

    fn datagram(port: u16) -> Vec<u8> {
        let builder = PacketBuilder::ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64).udp(port, 2000);
        let mut packet = Vec::new();
        builder.write(&mut packet, b"payload").expect("a vector takes everything");
        packet
    }

    fn six() -> Vec<u8> {
        let mut packet = Vec::new();
        let builder = PacketBuilder::ipv6([1; 16], [2; 16], 64).tcp(1, 2, 3, 4);
        builder.write(&mut packet, b"six").expect("a vector takes everything");
        packet
    }

    const COOKED: Link = Link::Cooked { head: 16, kind: 14 };

    #[test]
    fn the_same_packet_is_found_behind_every_link_header() {
        let packet = datagram(1000);
        let behind = |head: &[u8]| [head, &packet].concat();
        let cooked = [&[0; 14][..], &[8, 0]].concat();
        let cooked2 = [&[8, 0][..], &[0; 18]].concat();
        let ethernet = [&[0; 12][..], &[8, 0]].concat();
        let tagged = [&[0; 12][..], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 7, 8, 0]].concat();
        let frames = [
            (Linktype(1), behind(&ethernet), 14),
            (Linktype(1), behind(&tagged), 22),
            (Linktype(0), behind(&[2, 0, 0, 0]), 0),
            (Linktype(101), behind(&[]), 0),
            (Linktype(12), behind(&[]), 0),
            (Linktype(228), behind(&[]), 0),
            (Linktype(113), behind(&cooked), 14),
            (Linktype(276), behind(&cooked2), 14),
        ];
        let ends = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        let udp = Flow::Ip { ends, protocol: 17, ports: [1000, 2000] };
        assert_eq!(udp.to_string(), "udp 192.0.2.1:1000 > 192.0.2.2:2000");
        for (link, bytes, header) in frames {
            let link = Link::of(link).expect("a known type");
            let (head, opened) = link.open(&bytes);
            assert_eq!(flow(link.layer(), &opened), udp, "{link:?}");
            assert_eq!(tos(link.layer(), &opened), Some(0), "{link:?}");
            let [mut whole, mut copy] = [Vec::new(), Vec::new()];
            link.close(Some(&head), &opened, &mut whole);
            link.close(None, &opened, &mut copy);
            assert_eq!(whole, bytes, "{link:?}");
            assert_eq!(link.open(&copy).1, opened, "{link:?}");
            let length = u32::try_from(bytes.len()).expect("small");
            assert_eq!(link.wire(length), 35 + header, "{link:?}");
            assert_eq!(link.captured(35 + header), length, "{link:?}");
        }
        assert_eq!(Link::of(Linktype(127)), None);
        assert_ne!(udp.key(), flow(Layer::Ip, &datagram(1001)).key());
        assert_eq!(
            flow(Layer::Ip, &six()).end(1).expect("an address"),
            "[202:202:202:202:202:202:202:202]:2"
        );
    }

    #[test]
    fn fragments_of_a_datagram_are_one_flow_without_ports() {
        let (mut first, mut second) = (datagram(1000), datagram(9));
        first[6] = 0x20;
        second[7] = 1;
        assert_eq!(flow(Layer::Ip, &first), flow(Layer::Ip, &second));
        assert_eq!(flow(Layer::Ip, &first).to_string(), "udp 192.0.2.1 > 192.0.2.2");
    }

    #[test]
    fn what_is_not_ip_is_known_by_its_type() {
        let arp = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
        assert_eq!(flow(Layer::Ethernet, &arp).to_string(), "arp");
        assert_eq!(tos(Layer::Ethernet, &arp), None);
        assert_eq!(flow(Layer::Ethernet, &[0; 12]), Flow::Other(0));
        assert_eq!(flow(Layer::Ip, &[]), Flow::Other(0));
    }

    #[test]
    fn marks_keep_the_checksum_right() {
        for class in [1, 2, 0x52, 0xfe] {
            let mut packet = datagram(7);
            packet[1] = class;
            let right = |packet: &[u8]| {
                let header = Ipv4HeaderSlice::from_slice(packet).expect("a header");
                header.to_header().calc_header_checksum().to_be_bytes()
            };
            let sum = right(&packet);
            packet[10..12].copy_from_slice(&sum);
            let mut frame = [&[0; 12][..], &[8, 0], &packet].concat();
            mark(Layer::Ethernet, &mut frame);
            assert_eq!(tos(Layer::Ethernet, &frame), Some(class | 3));
            assert_eq!(frame[24..26], right(&frame[14..]), "{class:#x}");
            packet[1] |= 3;
            packet[10..12].copy_from_slice(&frame[24..26]);
            assert_eq!(frame[14..], packet, "nothing else has changed");
        }
        let mut packet = six();
        (packet[0], packet[1]) = (0x6b, 0xa5);
        assert_eq!(tos(Layer::Ip, &packet), Some(0xba));
        mark(Layer::Ip, &mut packet);
        assert_eq!((tos(Layer::Ip, &packet), packet[1] & 15), (Some(0xbb), 5));
    }

    #[test]
    fn priorities_are_those_of_the_table() {
        let table = [(0, 0), (2, 0), (4, 0), (8, 2), (0xe, 2), (0x10, 6), (0x18, 4), (0x1e, 4)];
        for (tos, expected) in table {
            assert_eq!(priority(tos), expected, "{tos:#x}");
        }
        // The type-of-service bytes 0xb8, 0x88 and 0x20 are those of the DSCPs EF, AF41 and CS1.
        assert_eq!([0xb8, 0x88, 0x20].map(priority), [4, 2, 0]);
    }

    #[test]
    fn no_bytes_break_it() {
        let packet = [&[0; 12][..], &[8, 0], &datagram(3)].concat();
        for at in 0..packet.len() {
            for value in [0, 1, 0x45, 0x60, 0x81, 0xff] {
                let mut bytes = packet.clone();
                bytes[at] = value;
                for length in 0..=bytes.len() {
                    for link in [Link::Ethernet, Link::Raw, Link::Loopback, COOKED] {
                        let (head, opened) = link.open(&bytes[..length]);
                        let (layer, mut opened) = (link.layer(), opened.into_owned());
                        let _ = (flow(layer, &opened), tos(layer, &opened));
                        mark(layer, &mut opened);
                        link.close(Some(&head), &opened, &mut Vec::new());
                    }
                }
            }
        }
    }
}
