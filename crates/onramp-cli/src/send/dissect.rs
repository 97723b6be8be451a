//! Finds the UDP payload in a captured frame.

use std::net::IpAddr;

use etherparse::{EtherType, IpNumber, LaxNetSlice, LaxSlicedPacket, TransportSlice, UdpSlice};
use pcap_parser::Linktype;

use super::FlowId;

/// The numbers 12 and 14 of DLT_RAW. Some systems wrote them into files as the link type "raw IP",
/// whose official number is 101.
const RAW_OLD: [Linktype; 2] = [Linktype(12), Linktype(14)];

/// What a frame contains.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// A complete UDP payload, and its flow.
    Udp(FlowId, &'a [u8]),
    /// The frame has no complete UDP payload, for this reason.
    Skip(&'static str),
}

const NOT_UDP: Frame<'_> = Frame::Skip("not_udp");
const MALFORMED: Frame<'_> = Frame::Skip("malformed");
const TRUNCATED: Frame<'_> = Frame::Skip("truncated");
const FRAGMENT: Frame<'_> = Frame::Skip("fragment");
const UNKNOWN_LINK: Frame<'_> = Frame::Skip("unknown_link_type");

/// Finds the content of a captured frame that had `original` bytes on the wire.
///
/// Source of the link types: <https://www.tcpdump.org/linktypes.html>.
pub(super) fn frame(link: Linktype, data: &[u8], original: usize) -> Frame<'_> {
    let short = data.len() < original;
    let none = if short { TRUNCATED } else { MALFORMED };
    let sliced = match link {
        Linktype::ETHERNET => LaxSlicedPacket::from_ethernet(data).ok(),
        // The frame begins with the number of an address family, which differs between systems. It
        // is skipped, because the IP version says the same.
        Linktype::NULL | Linktype::LOOP => ip(data.get(4..)),
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => ip(Some(data)),
        link if RAW_OLD.contains(&link) => ip(Some(data)),
        Linktype::LINUX_SLL => ether_type(data.get(14..16), data.get(16..)),
        Linktype::LINUX_SLL2 => ether_type(data.get(..2), data.get(20..)),
        _ => return UNKNOWN_LINK,
    };
    sliced.map_or(none, |sliced| udp(&sliced, short))
}

fn ip(data: Option<&[u8]>) -> Option<LaxSlicedPacket<'_>> {
    LaxSlicedPacket::from_ip(data?).ok()
}

fn ether_type<'a>(kind: Option<&[u8]>, data: Option<&'a [u8]>) -> Option<LaxSlicedPacket<'a>> {
    let kind = u16::from_be_bytes(kind?.try_into().ok()?);
    Some(LaxSlicedPacket::from_ether_type(EtherType(kind), data?))
}

fn udp<'a>(sliced: &LaxSlicedPacket<'a>, short: bool) -> Frame<'a> {
    let none = if short { TRUNCATED } else { MALFORMED };
    let (source, destination): (IpAddr, IpAddr) = match &sliced.net {
        Some(LaxNetSlice::Ipv4(v4)) => {
            (v4.header().source_addr().into(), v4.header().destination_addr().into())
        }
        Some(LaxNetSlice::Ipv6(v6)) => {
            (v6.header().source_addr().into(), v6.header().destination_addr().into())
        }
        Some(LaxNetSlice::Arp(_)) => return NOT_UDP,
        None => return if sliced.stop_err.is_some() { none } else { NOT_UDP },
    };
    let payload = sliced.net.as_ref().and_then(|net| net.ip_payload_ref());
    let Some(ip) = payload else { return none };
    if ip.ip_number != IpNumber::UDP {
        return NOT_UDP;
    }
    if ip.fragmented {
        return FRAGMENT;
    }
    let Some(TransportSlice::Udp(udp)) = &sliced.transport else { return none };
    if ip.incomplete || !whole(udp) {
        return none;
    }
    let flow = [(source, udp.source_port()), (destination, udp.destination_port())];
    Frame::Udp(flow, udp.payload())
}

/// Whether all bytes of the datagram are in the frame. A UDP length of 0 means "all bytes of the
/// frame": a datagram of more than 64 KiB has the length 0 if it was captured before the kernel
/// split it into segments.
fn whole(udp: &UdpSlice<'_>) -> bool {
    udp.length() == 0 || usize::from(udp.length()) == udp.slice().len()
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn datagram(payload: &[u8]) -> Vec<u8> {
        let builder = PacketBuilder::ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64).udp(1000, 2000);
        let mut packet = Vec::new();
        builder.write(&mut packet, payload).expect("a vector takes everything");
        packet
    }

    fn flow() -> FlowId {
        [(IpAddr::from([192, 0, 2, 1]), 1000), (IpAddr::from([192, 0, 2, 2]), 2000)]
    }

    #[test]
    fn every_link_type_leads_to_the_payload() {
        let packet = datagram(b"payload");
        let behind = |head: &[u8]| [head, &packet].concat();
        let mut cooked = [0; 16];
        cooked[14..].copy_from_slice(&[8, 0]);
        let mut cooked2 = [0; 20];
        cooked2[..2].copy_from_slice(&[8, 0]);
        let ethernet = [&[0; 12][..], &[8, 0]].concat();
        let vlan = [&[0; 12][..], &[0x81, 0, 0, 7, 8, 0]].concat();
        let frames = [
            (Linktype::ETHERNET, behind(&ethernet)),
            (Linktype::ETHERNET, behind(&vlan)),
            (Linktype::NULL, behind(&[2, 0, 0, 0])),
            (Linktype::LOOP, behind(&[0, 0, 0, 2])),
            (Linktype::RAW, behind(&[])),
            (Linktype(12), behind(&[])),
            (Linktype::IPV4, behind(&[])),
            (Linktype::LINUX_SLL, behind(&cooked)),
            (Linktype::LINUX_SLL2, behind(&cooked2)),
        ];
        for (link, bytes) in frames {
            let found = frame(link, &bytes, bytes.len());
            assert_eq!(found, Frame::Udp(flow(), b"payload"), "link type {link}");
        }
    }

    #[test]
    fn ipv6() {
        let builder = PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(1, 2);
        let mut packet = Vec::new();
        builder.write(&mut packet, b"six").expect("a vector takes everything");
        let flow = [(IpAddr::from([1; 16]), 1), (IpAddr::from([2; 16]), 2)];
        assert_eq!(frame(Linktype::RAW, &packet, packet.len()), Frame::Udp(flow, b"six"));
    }

    #[test]
    fn what_is_skipped_says_why() {
        let packet = datagram(b"payload");
        let at = |length| frame(Linktype::RAW, &packet[..length], packet.len());
        assert_eq!(at(packet.len() - 1), TRUNCATED);
        assert_eq!(at(24), TRUNCATED);
        assert_eq!(at(3), TRUNCATED);
        assert_eq!(at(0), TRUNCATED);
        assert_eq!(frame(Linktype::RAW, &packet[..24], 24), MALFORMED);

        let mut fragment = packet.clone();
        fragment[6] = 0x20;
        assert_eq!(frame(Linktype::RAW, &fragment, fragment.len()), FRAGMENT);

        let mut tcp = packet.clone();
        tcp[9] = 6;
        assert_eq!(frame(Linktype::RAW, &tcp, tcp.len()), NOT_UDP);

        let arp = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
        assert!(matches!(frame(Linktype::ETHERNET, &arp, arp.len()), Frame::Skip(_)));
        assert_eq!(frame(Linktype(147), &packet, packet.len()), UNKNOWN_LINK);
    }

    #[test]
    fn padding_behind_a_datagram_is_no_payload() {
        let padded = [&datagram(b"short")[..], &[0; 9]].concat();
        assert_eq!(frame(Linktype::RAW, &padded, padded.len()), Frame::Udp(flow(), b"short"));
    }

    #[test]
    fn no_bytes_break_it() {
        // Parses every prefix of frames in which one header byte has another value. No call may
        // panic.
        let packet = [&[0; 12][..], &[8, 0], &datagram(b"payload")].concat();
        for at in 0..42 {
            for value in [0, 1, 0x45, 0x7f, 0x80, 0xff] {
                let mut bytes = packet.clone();
                bytes[at] = value;
                for length in 0..bytes.len() {
                    let _ = frame(Linktype::ETHERNET, &bytes[..length], bytes.len());
                    let _ = frame(Linktype::LINUX_SLL, &bytes[..length], length);
                }
            }
        }
    }
}
