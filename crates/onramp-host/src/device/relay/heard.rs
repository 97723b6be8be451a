//! Datagrams as the filters at the ingress of a relay's device meet them: as IP packets, with the
//! addresses and ports that they came from and went to. The kernel tells the relay neither the TOS
//! byte, which is zero here, nor to which address a datagram went if the relay listens at all of
//! them: it then is the address at which the relay listens, such as 0.0.0.0.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use onramp_core::Instant;
use onramp_core::frame::Datagram;
use onramp_queue::{PAYLOAD_MAX, Packet};

use super::super::link_end::Source;

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

/// Returns a datagram as an IP packet. A socket for IPv6 names IPv4 addresses in a form of IPv6;
/// the packet is one of IPv4 then.
fn frame(payload: &[u8], [from, to]: [SocketAddr; 2]) -> Packet {
    let source = from.ip().to_canonical();
    let destination = match (source, to.ip().to_canonical()) {
        (IpAddr::V4(_), IpAddr::V6(any)) if any.is_unspecified() => Ipv4Addr::UNSPECIFIED.into(),
        (_, destination) => destination,
    };
    if source.is_ipv6() != destination.is_ipv6() {
        return Packet::with_payload(payload);
    }
    let headers = Datagram::headers(source.is_ipv6());
    // A packet has no room for the last bytes of the very largest datagram, which no filter reads.
    let payload = &payload[..payload.len().min(PAYLOAD_MAX - headers)];
    let mut bytes = vec![0; headers];
    bytes.extend_from_slice(payload);
    let mut packet = Packet::with_payload(&bytes);
    let [source, destination] = [(source, from), (destination, to)]
        .map(|(address, end)| SocketAddr::new(address, end.port()));
    Datagram::write_headers(&mut packet, source, destination, 0);
    packet
}
