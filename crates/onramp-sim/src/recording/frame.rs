//! Rebuilds the bytes of the packets that a recording describes.

use onramp_queue::{Layer, Packet};

use super::Arrival;

/// The headers of each packet: an Ethernet header from the machine to its neighbour, an IPv4 header
/// from 10.9.0.1 to 10.9.0.2, and a UDP header to port 9.
const HEADERS: [u8; 42] = [
    0x02, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0, 0, 0x01, 0x08, 0x00, // the Ethernet header
    0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2, // the IPv4 header
    0, 0, 0, 9, 0, 0, 0, 0, // the UDP header
];
/// The UDP source port of packets of flow 0. Packets of flow `n` have this port plus `n`.
const FIRST_PORT: u64 = 10_000;

/// Returns the packet with the headers that it had when it was sent. The checksums, the IP
/// identification and the payload are not recorded, so they are zero.
pub(super) fn packet(arrival: &Arrival) -> Packet {
    let len = usize::try_from(arrival.len).unwrap_or(0).max(HEADERS.len());
    let mut frame = vec![0; len];
    frame[..HEADERS.len()].copy_from_slice(&HEADERS);
    let mut put = |at: usize, number: u64| {
        let number = u16::try_from(number & 0xffff).unwrap_or(0);
        frame[at..at + 2].copy_from_slice(&number.to_be_bytes());
    };
    put(16, len as u64 - 14);
    put(34, FIRST_PORT + arrival.flow);
    put(38, len as u64 - 34);
    frame[15] = arrival.ecn;
    let mut pkt = Packet::with_payload(&frame);
    pkt.set_layer(Layer::Ethernet);
    pkt.len = arrival.len;
    pkt
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rebuilt bytes of a packet have the layout of IEEE 802.3, RFC 791 and RFC 768.
    #[test]
    fn a_packet_is_udp_in_ip_in_ethernet() {
        for (flow, len, ecn, port) in
            [(0, 60, 0, 10_000), (7, 1514, 186, 10_007), (60_000, 42, 1, 4_464), (1, 20, 3, 10_001)]
        {
            let (priority, txtime_ns, pacing_rate) = (3, 5, 7);
            let arrival = Arrival { time_ns: 9, flow, len, priority, ecn, txtime_ns, pacing_rate };
            let pkt = packet(&arrival);
            assert_eq!((pkt.len, pkt.layer()), (len, Layer::Ethernet));
            let bytes = pkt.payload();
            // A packet that was recorded with fewer bytes than its headers have still gets whole
            // headers.
            assert_eq!(bytes.len(), (len as usize).max(42));
            let number = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
            assert_eq!(bytes[..12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
            assert_eq!(number(12), 0x0800);
            assert_eq!((bytes[14], bytes[15], bytes[22], bytes[23]), (0x45, ecn, 64, 17));
            // These bytes are the IP total length, the flags (do not fragment) and the addresses.
            assert_eq!((number(16), number(20)), (bytes.len() - 14, 0x4000));
            assert_eq!(bytes[26..34], [10, 9, 0, 1, 10, 9, 0, 2]);
            // These bytes are the UDP ports and the UDP length.
            assert_eq!((number(34), number(36), number(38)), (port, 9, bytes.len() - 34));
            assert!(bytes[42..].iter().all(|byte| *byte == 0));
        }
    }
}
