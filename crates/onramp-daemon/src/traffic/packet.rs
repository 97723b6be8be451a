//! The packets of a traffic. Devices that carry frames get whole frames, with an Ethernet, an IPv4
//! and a UDP header, so that filters and flow hashes find what they look for. Devices that send
//! datagrams get the data alone, and a destination.
//!
//! Source: RFC 791, RFC 768; RFC 2544 for the addresses, which are set aside for tests.

use std::net::SocketAddr;

use onramp::dev::Udp;
use onramp_queue::Layer;

/// Lengths of the headers, bytes.
pub(super) const ETHERNET: u32 = 14;
const IPV4: u32 = 20;
const UDP: u32 = 8;
const HEADERS: u32 = ETHERNET + IPV4 + UDP;
/// Length of the longest payload of a packet, bytes ([`onramp_queue::PAYLOAD_MAX`]).
const PAYLOAD_MAX: u32 = 65_535;
const _: () = assert!(PAYLOAD_MAX as usize == onramp_queue::PAYLOAD_MAX);

/// The source port of the first flow, and the number of flows that share a source address.
const PORT: u32 = 10_000;
const PORTS: u32 = 50_000;

/// The form of the packets of a traffic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// The destination of datagrams; `None`: the packets are frames.
    to: Option<SocketAddr>,
    /// The destination port in frames.
    port: u16,
    /// Size of a packet in bytes, headers included.
    size: u32,
}

impl Shape {
    /// Returns the form of frames of `size` bytes whose destination port is `port`.
    pub(super) const fn frame(port: u16, size: u32) -> Self {
        Self { to: None, port, size }
    }

    /// Returns the form of datagrams to `to` that take `size` bytes on the wire.
    pub(super) const fn datagram(to: SocketAddr, size: u32) -> Self {
        Self { to: Some(to), port: 0, size }
    }

    /// Returns the size of the smallest packet of this form: that with no data.
    pub(super) fn size_min(&self) -> u32 {
        self.to.map_or(HEADERS, |to| Udp::wire_len(0, to.is_ipv6()))
    }

    /// Returns the size of the largest packet of this form.
    pub(super) fn size_max(&self) -> u32 {
        // Datagrams of IPv4 have at most 65,535 bytes with the headers of IP and UDP, and frames
        // the size of the largest payload.
        let payload = if self.to.is_some() { 65_535 - IPV4 - UDP } else { PAYLOAD_MAX - HEADERS };
        self.size_min() + payload
    }

    pub(super) const fn size(&self) -> u32 {
        self.size
    }

    pub(super) const fn destination(&self) -> Option<SocketAddr> {
        self.to
    }

    pub(super) const fn layer(&self) -> Layer {
        if self.to.is_some() { Layer::Datagram } else { Layer::Ethernet }
    }

    /// Returns the payload of a packet of the first flow: for frames, the whole frame.
    pub(super) fn payload(&self) -> Vec<u8> {
        let data = vec![0; self.size.saturating_sub(self.size_min()) as usize];
        if self.to.is_some() {
            return data;
        }
        let length = |headers: u32| {
            let length = self.size.saturating_sub(HEADERS) + headers;
            u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
        };
        let mut frame = Vec::with_capacity(self.size as usize);
        // Locally administered addresses, and the type of IPv4.
        frame.extend_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00]);
        // Version 4 with five words of header; no fragment; 64 hops; UDP; no checksum yet.
        let [high, low] = length(IPV4 + UDP);
        frame.extend_from_slice(&[0x45, 0, high, low, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend_from_slice(&[198, 18, 0, 0, 198, 18, 1, 1]);
        frame.extend_from_slice(&[0, 0]);
        frame.extend_from_slice(&self.port.to_be_bytes());
        frame.extend_from_slice(&length(UDP));
        frame.extend_from_slice(&[0, 0]); // No checksum, as UDP over IPv4 allows.
        frame.extend_from_slice(&data);
        self.turn_into(&mut frame, 0);
        frame
    }

    /// Turns the payload of a packet into that of a packet of another flow: writes the flow's
    /// source address and source port.
    pub(super) fn turn_into(&self, payload: &mut [u8], flow: u32) {
        /// The IPv4 header in a frame; in it, the checksum and the last byte of the source address.
        /// After it, the source port.
        const IP: std::ops::Range<usize> = 14..34;
        const SUM: std::ops::Range<usize> = 24..26;
        const LAST: usize = 29;
        const SOURCE: std::ops::Range<usize> = 34..36;
        if self.to.is_some() {
            return;
        }
        payload[LAST] = u8::try_from(1 + flow / PORTS).unwrap_or(u8::MAX);
        let source = u16::try_from(PORT + flow % PORTS).unwrap_or(u16::MAX);
        payload[SOURCE].copy_from_slice(&source.to_be_bytes());
        payload[SUM].fill(0);
        let sum = checksum(&payload[IP]).to_be_bytes();
        payload[SUM].copy_from_slice(&sum);
    }
}

/// Returns the checksum of an IPv4 header whose checksum field is zero (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{IpAddr, Ipv4Addr};

    use onramp_core::dissect::Dissected;
    use onramp_queue::Packet;

    use super::*;

    #[test]
    fn frames_are_udp_over_ipv4_of_as_many_flows() {
        let mut seen = HashSet::new();
        for (flow, size) in [(0, 42), (1, 1_000), (49_999, 1_514), (50_000, 100), (65_535, 65_535)]
        {
            let shape = Shape::frame(53, size);
            let mut payload = shape.payload();
            shape.turn_into(&mut payload, flow);
            assert_eq!(payload.len(), size as usize);
            let sum =
                payload[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
            let sum: u32 = sum.sum();
            assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF, "the checksum fits");
            let lengths =
                [16, 38].map(|at| u32::from(payload[at]) << 8 | u32::from(payload[at + 1]));
            assert_eq!(lengths, [size - 14, size - 34]);
            let mut packet = Packet::with_payload(&payload);
            packet.set_layer(shape.layer());
            let keys = Dissected::of(&packet).keys().clone();
            let to = IpAddr::from(Ipv4Addr::new(198, 18, 1, 1));
            assert_eq!(keys.addresses.map(|(_, to)| to), Some(to));
            assert_eq!((keys.ethertype, keys.protocol, keys.ttl), (0x0800, 17, 64));
            assert_eq!(keys.ports.map(|(_, to)| to), Some(53));
            let (host, port) = if flow < 50_000 { (1, flow) } else { (2, flow - 50_000) };
            let from = IpAddr::from(Ipv4Addr::new(198, 18, 0, host));
            assert_eq!(keys.addresses.map(|(from, _)| from), Some(from));
            let port = u16::try_from(10_000 + port).expect("a port");
            assert_eq!(keys.ports.map(|(from, _)| from), Some(port));
            assert!(seen.insert((keys.addresses, keys.ports)), "each flow has its own");
        }
    }

    #[test]
    fn datagrams_take_the_size_on_the_wire() {
        for (to, headers) in [("192.0.2.1:9", 42), ("[2001:db8::1]:9", 62)] {
            let shape = Shape::datagram(to.parse().expect("an address"), 1_000);
            assert_eq!(shape.size_min(), headers);
            assert_eq!(shape.payload().len(), 1_000 - headers as usize);
            assert_eq!(shape.layer(), Layer::Datagram);
        }
    }
}
