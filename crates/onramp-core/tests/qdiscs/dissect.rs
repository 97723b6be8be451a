//! Tests the reading of packet headers, on arbitrary bytes and compared with another crate that
//! reads headers.

use std::net::SocketAddr;

use etherparse::{LaxSlicedPacket, PacketBuilder};
use onramp_core::dissect::{Dissected, Fragment, Vlan};
use onramp_queue::{Layer, Packet};
use proptest::prelude::*;

use super::corpus::dissect::{compare, keys};

fn packet(bytes: &[u8], layer: Layer) -> Packet {
    let mut pkt = Packet::with_payload(bytes);
    pkt.set_layer(layer);
    pkt
}

#[derive(Clone, Debug)]
struct Made {
    vlans: Vec<(u16, u8)>,
    v6: bool,
    addresses: [u8; 32],
    ttl: u8,
    transport: u8,
    ports: (u16, u16),
    data: Vec<u8>,
}

fn made() -> impl Strategy<Value = Made> {
    let vlans = prop::collection::vec((0_u16..4096, 0_u8..8), 0..3);
    let data = prop::collection::vec(any::<u8>(), 0..40);
    let fields = (any::<bool>(), any::<[u8; 32]>(), any::<u8>(), 0_u8..3, any::<(u16, u16)>());
    (vlans, fields, data).prop_map(|(vlans, (v6, addresses, ttl, transport, ports), data)| Made {
        vlans,
        v6,
        addresses,
        ttl,
        transport,
        ports,
        data,
    })
}

impl Made {
    /// Returns the bytes of the frame. The crate `etherparse` writes the IP header, the transport
    /// header and the data, and this function adds the VLAN tags.
    fn frame(&self) -> Vec<u8> {
        let eth = PacketBuilder::ethernet2([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]);
        let half = |at: usize| -> [u8; 16] { self.addresses[at..at + 16].try_into().expect("16") };
        let four = |at: usize| -> [u8; 4] { self.addresses[at..at + 4].try_into().expect("4") };
        let ip = match self.v6 {
            true => eth.ipv6(half(0), half(16), self.ttl),
            false => eth.ipv4(four(0), four(16), self.ttl),
        };
        let mut bytes = Vec::new();
        let written = match self.transport {
            0 => ip.udp(self.ports.0, self.ports.1).write(&mut bytes, &self.data),
            1 => ip.tcp(self.ports.0, self.ports.1, 7, 9).syn().ece().write(&mut bytes, &self.data),
            _ => ip.icmpv4_echo_request(1, 2).write(&mut bytes, &self.data),
        };
        written.expect("room in memory");
        for (id, prio) in &self.vlans {
            let tag = (u16::from(*prio) << 13 | id).to_be_bytes();
            bytes.splice(12..12, [0x81, 0, tag[0], tag[1]]);
        }
        bytes
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever the bytes of a packet are and wherever the packet ends, reading its headers does
    /// not panic, and reads no byte after the end.
    #[test]
    fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        for layer in [Layer::Datagram, Layer::Ip, Layer::Ethernet] {
            for end in 0..=bytes.len() {
                let pkt = packet(&bytes[..end], layer);
                let dissected = Dissected::of(&pkt);
                let len = dissected.len(&pkt);
                for at in [0, len.saturating_sub(4), len, len + 1, usize::MAX - 1, usize::MAX] {
                    let inside = at.checked_add(4).is_some_and(|last| last <= len);
                    prop_assert_eq!(dissected.bytes::<4>(&pkt, at).is_some(), inside);
                }
            }
        }
    }

    /// For whole packets, truncated packets, and packets with one changed byte, our crate finds the
    /// same headers as the crate `etherparse`.
    #[test]
    fn as_the_other_crate_reads_them(
        made in made(),
        cut in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let frame = made.frame();
        let whole = keys(&frame);
        prop_assert!(whole.addresses.is_some());
        prop_assert_eq!(whole.ports.is_some(), made.transport < 2);
        prop_assert_eq!(whole.network, 14 + 4 * made.vlans.len());
        let outer = made.vlans.last();
        let outer = outer.map(|(id, prio)| Vlan { ethertype: 0x8100, id: *id, prio: *prio });
        prop_assert_eq!(whole.vlan, outer);
        compare(&frame);
        compare(&frame[..cut.index(frame.len() + 1)]);
        // `etherparse` takes the EtherType 0x9100 for a VLAN tag, but Linux does not.
        prop_assume!(byte != 0x91);
        let mut changed = frame;
        // Change a byte of the Ethernet header or of a VLAN tag. A later byte could be part of a
        // length, which `etherparse` trusts, or of a field that makes the packet a fragment.
        let ip = 14 + 4 * made.vlans.len();
        let at = place.index(ip);
        changed[at] = byte;
        compare(&changed);
    }

    /// In a UDP datagram that has no headers yet, our code finds the headers that the device will
    /// write. Fields that only the device knows are zero.
    #[test]
    fn a_datagram_gets_its_headers(
        dest in any::<SocketAddr>(),
        data in prop::collection::vec(any::<u8>(), 0..40),
        ecn in 0_u8..4,
    ) {
        let mut pkt = packet(&data, Layer::Datagram);
        pkt.set_dest(Some(dest));
        pkt.ecn = ecn;
        let dissected = Dissected::of(&pkt);
        let bytes: Vec<u8> = (0..dissected.len(&pkt))
            .map(|at| dissected.bytes::<1>(&pkt, at).expect("inside")[0])
            .collect();
        prop_assert_eq!(&keys(&bytes), dissected.keys());
        compare(&bytes);
        let found = dissected.keys();
        prop_assert_eq!((found.tos, found.ttl, found.protocol), (ecn, 64, 17));
        prop_assert_eq!(found.addresses.map(|(_, to)| to), Some(dest.ip()));
        prop_assert_eq!(found.ports, Some((0, dest.port())));
        prop_assert!(bytes.ends_with(&data));
        let there = LaxSlicedPacket::from_ethernet(&bytes).expect("a frame");
        prop_assert!(there.stop_err.is_none(), "{:?}", there.stop_err);
    }
}

#[test]
fn parts_have_no_ports() {
    let mut bytes = Vec::new();
    let udp = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9);
    udp.udp(5, 6).write(&mut bytes, &[0; 8]).expect("memory");
    for (offset, fragment) in [
        (0x4000_u16, Fragment::No),
        (0x2000, Fragment::First),
        (0x2001, Fragment::Later),
        (3, Fragment::Later),
    ] {
        bytes[20..22].copy_from_slice(&offset.to_be_bytes());
        let keys = keys(&bytes);
        assert_eq!((keys.fragment, keys.protocol), (fragment, 17));
        assert_eq!(keys.ports, (fragment == Fragment::No).then_some((5, 6)));
    }
}

#[test]
fn extension_headers_are_passed_by() {
    // The packet has an IPv6 header, hop-by-hop options of 8 bytes, destination options of 16
    // bytes, and a UDP header.
    let mut bytes = vec![0; 14 + 40];
    bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
    bytes[14] = 0x6a;
    bytes[15] = 0xb0;
    bytes[20] = 0;
    bytes.extend([60, 0, 1, 4, 0, 0, 0, 0]);
    bytes.extend([17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([0x12, 0x34, 0, 9, 0, 8, 0, 0]);
    let found = keys(&bytes);
    assert_eq!((found.protocol, found.tos), (17, 0xab));
    assert_eq!(found.transport, Some(14 + 40 + 8 + 16));
    assert_eq!(found.ports, Some((0x1234, 9)));
    // In an IP fragment, our code finds the protocol, but does not read the ports.
    bytes[20] = 44;
    bytes[54..62].copy_from_slice(&[17, 0, 0, 1, 0, 0, 0, 1]);
    let found = keys(&bytes);
    assert_eq!((found.protocol, found.fragment, found.ports), (17, Fragment::First, None));
}
