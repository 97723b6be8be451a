//! The packets of the recordings, as their bytes were.

use onramp_queue::{Layer, Packet};

use super::Arrival;

/// Ethernet from the machine to its neighbour; IPv4, 10.9.0.1 to 10.9.0.2; UDP to port 9.
const HEADERS: [u8; 42] = [
    0x02, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0, 0, 0x01, 0x08, 0x00, // Ethernet
    0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2, // IPv4
    0, 0, 0, 9, 0, 0, 0, 0, // UDP
];
/// The source port of flow 0.
const FIRST_PORT: u64 = 10_000;

/// The packet as it was sent. Checksums, the identification and the data are not known: zeros.
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
