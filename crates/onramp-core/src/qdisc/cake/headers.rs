//! Reads the code point (DSCP) and the hosts from a packet's bytes.

use std::net::{IpAddr, SocketAddr};

use onramp_queue::{Layer, Packet};

use crate::base::frame::corrected;

/// The code point for network control, which ARP packets get.
const CS7: u8 = 0x38;
/// Mask of the two ECN bits, which share a byte with the code point.
const ECN_BITS: u8 = 3;

/// Returns the network header of a packet and its position in the payload. Returns `None` for a
/// datagram, because the socket writes its headers, and for a payload shorter than an Ethernet
/// header.
#[inline]
fn header(pkt: &Packet) -> Option<(usize, Network<'_>)> {
    let payload = pkt.payload();
    match pkt.layer() {
        Layer::Datagram => None,
        Layer::Ethernet => (payload.len() >= 14).then(|| network(payload)),
        Layer::Ip => Some((0, ip(payload))),
    }
}

/// Returns the IP header of `packet`; the first byte says whether it is IPv4 or IPv6.
fn ip(packet: &[u8]) -> Network<'_> {
    match (packet.first().map(|byte| byte >> 4), packet.len()) {
        (Some(4), 20..) => Network::V4(packet),
        (Some(6), 40..) => Network::V6(packet),
        _ => Network::Other,
    }
}

/// The network header of a packet, by its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network<'a> {
    V4(&'a [u8]),
    V6(&'a [u8]),
    Arp,
    Other,
}

/// Returns the position of a frame's network header, which lies behind all VLAN tags, and that
/// header.
fn network(frame: &[u8]) -> (usize, Network<'_>) {
    let mut at = 12;
    loop {
        let Some(ethertype) = frame.get(at..at + 2) else { return (at, Network::Other) };
        at += 2;
        let rest = &frame[at..];
        let network = match (ethertype, rest.len()) {
            ([0x81, 0x00] | [0x88, 0xa8], _) => {
                at += 2;
                continue;
            }
            ([0x08, 0x00], 20..) => Network::V4(rest),
            ([0x86, 0xdd], 40..) => Network::V6(rest),
            ([0x08, 0x06], _) => Network::Arp,
            _ => Network::Other,
        };
        return (at, network);
    }
}

/// Returns the code point of a packet, or zero if the packet has none.
pub(super) fn dscp(pkt: &Packet) -> u8 {
    match header(pkt) {
        Some((_, Network::V4(header))) => header[1] >> 2,
        Some((_, Network::V6(header))) => (header[0] << 2 | header[1] >> 6) & 0x3f,
        Some((_, Network::Arp)) => CS7,
        _ => 0,
    }
}

/// Clears the code point of a packet.
pub(super) fn wash(pkt: &mut Packet) {
    let (at, v6) = match header(pkt) {
        Some((at, Network::V4(_))) => (at, false),
        Some((at, Network::V6(_))) => (at, true),
        _ => return,
    };
    let header = &mut pkt.payload_mut()[at..];
    if v6 {
        header[0] &= 0xf0;
        header[1] &= 0x3f;
    } else {
        let before = u16::from_be_bytes([header[0], header[1]]);
        header[1] &= ECN_BITS;
        let after = u16::from_be_bytes([header[0], header[1]]);
        let sum = u16::from_be_bytes([header[10], header[11]]);
        header[10..12].copy_from_slice(&corrected(sum, before, after).to_be_bytes());
    }
}

/// Returns the source host and the destination host of a packet, as numbers. All datagrams have the
/// same source number; all datagrams without an address have the same destination number.
pub(super) fn hosts(pkt: &Packet) -> (u64, u64) {
    match header(pkt) {
        Some((_, Network::V4(header))) => (number(&header[12..16]), number(&header[16..20])),
        Some((_, Network::V6(header))) => (number(&header[8..24]), number(&header[24..40])),
        Some(_) => (0, 0),
        None => (0, pkt.dest().as_ref().map_or(0, to)),
    }
}

fn to(dest: &SocketAddr) -> u64 {
    match dest.ip() {
        IpAddr::V4(ip) => number(&ip.octets()),
        IpAddr::V6(ip) => number(&ip.octets()),
    }
}

/// Hashes the bytes of an IP address to a number.
fn number(address: &[u8]) -> u64 {
    address.chunks(8).fold(0, |number: u64, chunk| {
        let word = chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(bytes: &[u8]) -> Packet {
        let mut pkt = Packet::with_payload(bytes);
        pkt.set_layer(Layer::Ethernet);
        pkt
    }

    /// Returns a frame of 100 bytes with the bytes `bytes` behind the two MAC addresses.
    fn packet(bytes: &[u8]) -> Packet {
        let mut frame = [0; 100];
        frame[12..12 + bytes.len()].copy_from_slice(bytes);
        framed(&frame)
    }

    #[test]
    fn the_code_point_is_that_of_the_frame() {
        for (bytes, point) in [
            (&[8, 0, 0x45, 0xb8][..], 46),
            (&[8, 0, 0x45, 0x22], 8),
            (&[0x86, 0xdd, 0x6b, 0x80], 46),
            (&[0x81, 0, 0, 5, 8, 0, 0x45, 0xb8], 46),
            (&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x86, 0xdd, 0x6b, 0x80], 46),
            (&[8, 6], CS7),
            (&[0x12, 0x34, 0xff, 0xff], 0),
        ] {
            assert_eq!(dscp(&packet(bytes)), point, "{bytes:x?}");
        }
        let mut datagram = packet(&[8, 0, 0x45, 0xb8]);
        datagram.set_layer(Layer::Datagram);
        assert_eq!(dscp(&datagram), 0, "its payload is no frame");
    }

    #[test]
    fn ip_packets_have_no_frame_before_them() {
        let packet = |len: usize, bytes: &[u8]| {
            let mut packet = vec![0; len];
            packet[..bytes.len()].copy_from_slice(bytes);
            let mut pkt = Packet::with_payload(&packet);
            pkt.set_layer(Layer::Ip);
            pkt
        };
        let mut four = [0; 20];
        four[..2].copy_from_slice(&[0x45, 0xba]);
        (four[15], four[19]) = (7, 9);
        let mut six = [0; 40];
        six[..2].copy_from_slice(&[0x6b, 0xa0]);
        (six[23], six[39]) = (7, 9);
        for (bytes, len, point, known) in [
            (&four[..], 20, 46, (7, 9)),
            (&six[..], 40, 46, (7, 9)),
            (&[0x45, 0xba], 19, 0, (0, 0)),
            (&[0x6b, 0xa0], 39, 0, (0, 0)),
            (&[0x55, 0xba], 60, 0, (0, 0)),
            (&[], 0, 0, (0, 0)),
        ] {
            let mut pkt = packet(len, bytes);
            assert_eq!((dscp(&pkt), hosts(&pkt)), (point, known), "{len} {:x?}", bytes.first());
            wash(&mut pkt);
            assert_eq!((dscp(&pkt), hosts(&pkt)), (0, known), "{len}: washed");
        }
        // A change of any byte of an address changes the number of that host. A change of any other
        // byte of the header changes neither number.
        let versions = [(0x45, 20, [12..16, 16..20]), (0x60, 40, [8..24, 24..40])];
        for (version, len, addresses) in versions {
            for at in 1..len {
                let mut bytes = vec![0; len];
                (bytes[0], bytes[at]) = (version, 1);
                let changed = addresses.clone().map(|part| part.contains(&at));
                let (source, destination) = hosts(&packet(len, &bytes));
                assert_eq!([source != 0, destination != 0], changed, "{version:x}: byte {at}");
            }
        }
    }

    #[test]
    fn short_frames_have_nothing() {
        for len in 0..54 {
            let mut bytes = vec![0xff; len];
            if len >= 14 {
                bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
            }
            let mut pkt = framed(&bytes);
            assert_eq!((dscp(&pkt), hosts(&pkt)), (0, (0, 0)), "{len}");
            wash(&mut pkt);
            assert_eq!(pkt.payload(), bytes);
        }
    }

    /// Returns the ones' complement sum of the words of a header.
    fn sum(header: &[u8]) -> u32 {
        let words = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let total: u32 = words.sum();
        (total & 0xffff) + (total >> 16)
    }

    #[test]
    fn a_washed_frame_keeps_its_ecn_bits_and_a_right_checksum() {
        let mut bytes =
            [8, 0, 0x45, 0xba, 0, 86, 1, 2, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let missing = 0xffff - sum(&bytes[2..]);
        bytes[12..14].copy_from_slice(&u16::try_from(missing).expect("folded").to_be_bytes());
        let mut pkt = packet(&bytes);
        wash(&mut pkt);
        assert_eq!((pkt.payload()[15], dscp(&pkt)), (2, 0));
        assert_eq!(sum(&pkt.payload()[14..34]), 0xffff);

        let mut pkt = packet(&[0x86, 0xdd, 0x6b, 0xb1, 2, 3]);
        wash(&mut pkt);
        assert_eq!(pkt.payload()[14..18], [0x60, 0x31, 2, 3]);
    }
}
