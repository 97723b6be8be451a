use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TransportHeader};
use proptest::prelude::*;

use super::*;
use crate::frame::{complete_checksum, describe, write_ce};

fn addr(v6: bool, host: u8, port: u16) -> SocketAddr {
    let ip = if v6 { [host; 16].into() } else { [host; 4].into() };
    SocketAddr::new(ip, port)
}

/// Makes a packet of `data` with the headers that are written here.
fn made(v6: bool, ports: (u16, u16), tos: u8, data: &[u8]) -> Packet {
    // What stands where the headers come does not matter.
    let mut pkt = Packet::with_payload(&[&vec![0xa5; Datagram::headers(v6)], data].concat());
    Datagram::write_headers(&mut pkt, addr(v6, 10, ports.0), addr(v6, 20, ports.1), tos);
    pkt
}

/// Builds the IP packet of a datagram with another implementation.
fn built(v6: bool, link: bool, data: &[u8]) -> Packet {
    let mut bytes = Vec::new();
    let step = match (link, v6) {
        (false, false) => PacketBuilder::ipv4([10; 4], [20; 4], 64),
        (false, true) => PacketBuilder::ipv6([10; 16], [20; 16], 64),
        (true, false) => PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10; 4], [20; 4], 64),
        (true, true) => PacketBuilder::ethernet2([1; 6], [2; 6]).ipv6([10; 16], [20; 16], 64),
    };
    step.udp(1000, 2000).write(&mut bytes, data).expect("a vector takes everything");
    let mut pkt = Packet::with_payload(&bytes);
    pkt.set_layer(if link { Layer::Ethernet } else { Layer::Ip });
    pkt
}

proptest! {
    /// Headers that are written are right for another implementation, and are read back.
    #[test]
    fn written_headers_are_read_back(
        v6: bool,
        ports: (u16, u16),
        tos: u8,
        data in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut pkt = made(v6, ports, tos, &data);
        let expected = Datagram {
            source: addr(v6, 10, ports.0),
            destination: addr(v6, 20, ports.1),
            ecn: tos & 3,
            segment: None,
            data: &data,
        };
        prop_assert_eq!(Datagram::of(&pkt), Some(expected));
        describe(&mut pkt, 7);
        let len = Datagram::headers(v6) + data.len();
        prop_assert_eq!((pkt.ecn, pkt.len as usize), (tos & 3, len));
        prop_assert_eq!(write_ce(&mut pkt), tos & 3 != 0);
        let tos = if tos & 3 == 0 { tos } else { tos | 3 };
        complete_checksum(&mut pkt);
        let headers = PacketHeaders::from_ip_slice(pkt.payload()).expect("an IP packet");
        prop_assert_eq!(headers.payload.slice(), &data[..]);
        let Some(TransportHeader::Udp(udp)) = headers.transport else { panic!("{headers:?}") };
        prop_assert_eq!((udp.source_port, udp.destination_port), ports);
        let right = match headers.net.expect("an IP header") {
            NetHeaders::Ipv4(ip, _) => {
                prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                prop_assert_eq!(ip.dscp.value() << 2 | ip.ecn.value(), tos);
                prop_assert_eq!(ip.time_to_live, 64);
                prop_assert_eq!((ip.dont_fragment, ip.identification), (true, 0));
                udp.calc_checksum_ipv4(&ip, &data)
            }
            NetHeaders::Ipv6(ip, _) => {
                prop_assert_eq!((ip.traffic_class, ip.hop_limit), (tos, 64));
                prop_assert_eq!(ip.flow_label.value(), 0);
                udp.calc_checksum_ipv6(&ip, &data)
            }
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(udp.checksum, right.expect("short enough"));
    }

    /// Packets of another implementation are read, with padding behind them, and none is read of
    /// which a byte is missing.
    #[test]
    fn whole_packets_are_read(
        v6: bool,
        link: bool,
        padding in 0_usize..20,
        missing in 1_usize..2000,
        data in proptest::collection::vec(any::<u8>(), 0..1500),
    ) {
        let pkt = built(v6, link, &data);
        let datagram = Datagram::of(&pkt).expect("a whole packet");
        prop_assert_eq!(datagram.data, &data[..]);
        prop_assert_eq!(datagram.source, addr(v6, 10, 1000));
        prop_assert_eq!(datagram.destination, addr(v6, 20, 2000));
        let padded = pkt.duplicate_with(&[pkt.payload(), &vec![1; padding]].concat());
        prop_assert_eq!(Datagram::of(&padded).expect("a whole packet").data, &data[..]);
        let left = pkt.payload().len().saturating_sub(missing);
        let short = pkt.duplicate_with(&pkt.payload()[..left]);
        prop_assert_eq!(Datagram::of(&short), None);
    }

    /// A packet with some wrong bytes is read or not, but without a panic, and never past its end.
    #[test]
    fn no_bytes_are_too_much(
        v6: bool,
        link: bool,
        size: u16,
        changes in proptest::collection::vec((0_usize..80, any::<u8>()), 0..6),
        data in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut pkt = built(v6, link, &data);
        for (at, byte) in changes {
            if let Some(place) = pkt.payload_mut().get_mut(at) {
                *place = byte;
            }
        }
        let start = if v6 { 40 } else { 20 };
        pkt.set_partial_checksum(Some(PartialChecksum { start, offset: 6 }));
        pkt.gso_size = size;
        if let Some(datagram) = Datagram::of(&pkt) {
            let inside = pkt.payload().as_ptr_range();
            let found = datagram.data.as_ptr_range();
            prop_assert!(inside.start <= found.start && found.end <= inside.end);
            prop_assert_eq!(datagram.datagrams().collect::<Vec<_>>().concat(), datagram.data);
        }
    }
}

#[test]
fn several_datagrams_are_told_apart() {
    for v6 in [false, true] {
        let mut pkt = made(v6, (1, 2), 0, b"abcdefgh");
        let lens = |pkt: &Packet| {
            let datagram = Datagram::of(pkt).expect("it is one");
            (datagram.segment, datagram.datagrams().map(<[u8]>::len).collect::<Vec<_>>())
        };
        assert_eq!(lens(&pkt), (None, vec![8]));
        for (size, expected) in [(3, vec![3, 3, 2]), (4, vec![4, 4]), (7, vec![7, 1])] {
            pkt.gso_size = size;
            assert_eq!(lens(&pkt), (Some(size), expected));
        }
        pkt.gso_size = 8;
        assert_eq!(lens(&pkt), (None, vec![8]), "one segment");
        let mut padded = pkt.duplicate_with(&[pkt.payload(), &[0; 5]].concat());
        padded.set_partial_checksum(pkt.partial_checksum());
        assert_eq!(lens(&padded), (None, vec![8]), "padding makes no second one");
        let empty = made(v6, (1, 2), 0, b"");
        assert_eq!(lens(&empty), (None, vec![0]), "an empty datagram is a datagram");
    }
}

/// The largest packet has lengths that its headers can say.
#[test]
fn the_largest_packet_is_whole() {
    for v6 in [false, true] {
        let data = vec![7; onramp_queue::PAYLOAD_MAX - Datagram::headers(v6)];
        let pkt = made(v6, (1, 2), 0, &data);
        assert_eq!(Datagram::of(&pkt).expect("it is one").data.len(), data.len());
    }
}

#[test]
fn what_lies_is_no_datagram() {
    let good = built(false, false, b"data");
    let with = |at: usize, bytes: &[u8]| {
        let mut pkt = good.duplicate();
        pkt.payload_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        pkt
    };
    let is_none = |at, bytes: &[u8]| Datagram::of(&with(at, bytes)).is_none();
    assert!(is_none(24, &[0, 7]), "shorter than its header");
    assert!(is_none(24, &[0, 13]), "longer than the IP packet");
    assert!(is_none(2, &[0, 33]), "longer than the bytes");
    assert!(is_none(2, &[0, 31]), "the IP packet ends before the datagram does");
    assert!(is_none(9, &[6]), "TCP");
    assert!(is_none(6, &[0x20, 0]) && is_none(6, &[0, 1]), "fragments");
    assert!(is_none(0, &[0x46]), "options where the UDP header would be");
    // The datagram may be shorter than the IP packet.
    assert_eq!(Datagram::of(&with(24, &[0, 11])).expect("it is whole").data, b"dat");
    let mut pkt = good.duplicate();
    pkt.set_layer(Layer::Datagram);
    assert_eq!(Datagram::of(&pkt), None, "data without headers");
}

#[test]
#[should_panic(expected = "changes its address family")]
fn an_address_family_is_not_mixed() {
    let mut pkt = Packet::with_payload(&[0; 48]);
    Datagram::write_headers(&mut pkt, addr(false, 1, 1), addr(true, 1, 1), 0);
}

#[test]
#[should_panic(expected = "room for the headers")]
fn headers_need_room() {
    let mut pkt = Packet::with_payload(&[0; 27]);
    Datagram::write_headers(&mut pkt, addr(false, 1, 1), addr(false, 2, 1), 0);
}
