//! Datagrams as the filters at the ingress of a relay's device meet them: with the headers that
//! they had on the wire.

use std::net::{IpAddr, SocketAddr};

use onramp_core::Instant;
use onramp_dev::Udp;
use onramp_queue::{Layer, PAYLOAD_MAX, Packet};

use super::super::link_end::Source;

const UDP_HEADER: usize = 8;
const UDP_PROTOCOL: u8 = 17;

/// What the filters have said about a datagram.
pub(super) enum Heard {
    /// There are no filters.
    Unasked,
    /// The datagram may go on. The packet has the priority, the mark and the queue that the filters
    /// have given it.
    Passed(Packet),
    Dropped,
}

/// Asks the filters at the ingress of a device about a datagram that has come in there. `ends` are
/// the addresses that it came from and went to.
pub(super) fn ask(
    source: &Source,
    payload: &[u8],
    ends: impl FnOnce() -> Option<[SocketAddr; 2]>,
    now: Instant,
) -> Heard {
    let Some(mut ingress) = source.hold() else { return Heard::Unasked };
    let mut packet = match ends() {
        Some(ends) => frame(payload, ends),
        None => Packet::with_payload(payload),
    };
    if ingress.passes(now, &mut packet) { Heard::Passed(packet) } else { Heard::Dropped }
}

/// Returns the Ethernet frame in which a datagram came. The sender's and the receiver's hardware
/// addresses, and the checksums, are zero, and the TTL is 64.
fn frame(payload: &[u8], [from, to]: [SocketAddr; 2]) -> Packet {
    let is_v6 = to.is_ipv6();
    let len = u16::try_from(payload.len() + UDP_HEADER).unwrap_or(u16::MAX).to_be_bytes();
    let mut head = vec![0; 12];
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = u16::try_from(payload.len() + UDP_HEADER + 20).unwrap_or(u16::MAX);
            head.extend([0x08, 0x00, 0x45, 0]);
            head.extend(total.to_be_bytes());
            head.extend([0, 0, 0, 0, 64, UDP_PROTOCOL, 0, 0]);
            head.extend(from.octets());
            head.extend(to.octets());
        }
        (from, to) => {
            head.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            head.extend(len);
            head.extend([UDP_PROTOCOL, 64]);
            head.extend([from, to].map(v6).as_flattened());
        }
    }
    head.extend(from.port().to_be_bytes());
    head.extend(to.port().to_be_bytes());
    head.extend(len);
    head.extend([0, 0]);
    // A packet has no room for the last bytes of the very largest datagram, which no filter reads.
    head.extend(&payload[..payload.len().min(PAYLOAD_MAX - head.len())]);
    let mut packet = Packet::with_payload(&head);
    packet.set_layer(Layer::Ethernet);
    packet.len = Udp::wire_len(u32::try_from(payload.len()).unwrap_or(u32::MAX), is_v6);
    packet
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
