use etherparse::{
    IpHeaders, Ipv4Header, LaxIpSlice, PacketBuilder, PacketHeaders, TcpHeader, TransportHeader,
};
use proptest::prelude::*;

use super::*;

fn frame(layer: Layer, bytes: &[u8]) -> Packet {
    let mut pkt = Packet::with_payload(bytes);
    pkt.set_layer(layer);
    pkt
}

/// Builds an Ethernet frame with TCP or UDP headers and `data`, whose checksums are right.
fn whole(v6: bool, tcp: Option<TcpHeader>, options: &[u8], data: &[u8]) -> Vec<u8> {
    let eth = PacketBuilder::ethernet2([1; 6], [2; 6]);
    let ip = if v6 {
        eth.ipv6([1; 16], [2; 16], 64)
    } else {
        let mut ip =
            Ipv4Header::new(0, 64, etherparse::IpNumber::TCP, [10, 0, 0, 1], [10, 0, 0, 2])
                .expect("a header");
        ip.identification = 65_535;
        ip.options = options.try_into().expect("options");
        eth.ip(IpHeaders::Ipv4(ip, etherparse::Ipv4Extensions::default()))
    };
    let mut bytes = Vec::new();
    match tcp {
        Some(tcp) => ip.tcp_header(tcp).write(&mut bytes, data),
        None => ip.udp(1000, 2000).write(&mut bytes, data),
    }
    .expect("a vector takes everything");
    bytes
}

/// Returns the offset of the transport header in an Ethernet frame.
fn transport(bytes: &[u8]) -> usize {
    let (ip, _) = LaxIpSlice::from_slice(&bytes[14..]).expect("an IP header");
    bytes.len() - ip.payload().payload.len()
}

/// Replaces the checksum in the transport header by the sum of the pseudo-header, as a sender does
/// that leaves the checksum to the device.
fn leave_checksum(pkt: &mut Packet) {
    let at = transport(pkt.payload());
    let tcp = pkt.payload()[23] == 6 || pkt.payload()[20] == 6;
    let offset = if tcp { 16 } else { 6 };
    let partial = PartialChecksum { start: u16::try_from(at).expect("short"), offset };
    let bytes = pkt.payload_mut();
    let field = at + usize::from(offset);
    let right = u16::from_be_bytes([bytes[field], bytes[field + 1]]);
    bytes[field..field + 2].fill(0);
    // The right checksum is the complement of the sum of the pseudo-header and all bytes.
    let pseudo = folded(u64::from(!right) + u64::from(!folded(sum(&bytes[at..]))));
    bytes[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
    pkt.set_partial_checksum(Some(partial));
}

/// Checks all checksums of an Ethernet frame with another implementation.
fn assert_right(bytes: &[u8]) -> PacketHeaders<'_> {
    let headers = PacketHeaders::from_ethernet_slice(bytes).expect("a whole frame");
    let (net, transport) = (headers.net.clone(), headers.transport.clone());
    let ip = net.expect("a header");
    if let Some((v4, _)) = ip.ipv4_ref() {
        assert_eq!(v4.header_checksum, v4.calc_header_checksum());
    }
    let payload = headers.payload.slice();
    let (had, right) = match (transport.expect("a header"), ip.ipv4_ref(), ip.ipv6_ref()) {
        (TransportHeader::Tcp(tcp), Some((v4, _)), _) => {
            (tcp.checksum, tcp.calc_checksum_ipv4(v4, payload))
        }
        (TransportHeader::Tcp(tcp), _, Some((v6, _))) => {
            (tcp.checksum, tcp.calc_checksum_ipv6(v6, payload))
        }
        (TransportHeader::Udp(udp), Some((v4, _)), _) => {
            (udp.checksum, udp.calc_checksum_ipv4(v4, payload))
        }
        (TransportHeader::Udp(udp), _, Some((v6, _))) => {
            (udp.checksum, udp.calc_checksum_ipv6(v6, payload))
        }
        other => panic!("{other:?}"),
    };
    // Zero and 0xffff are the same number in this arithmetic. The code writes 0xffff, as the
    // kernel's `skb_checksum_help` does, and the other implementation writes zero for TCP.
    let same = |sum: u16| if sum == 0 { u16::MAX } else { sum };
    assert_eq!(had, same(right.expect("short enough")));
    headers
}

fn tcp(sequence: u32, flags: u8, options: usize) -> TcpHeader {
    let mut tcp = TcpHeader::new(1000, 2000, sequence, 77);
    tcp.acknowledgment_number = 5;
    (tcp.fin, tcp.psh, tcp.cwr, tcp.ack) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0, true);
    tcp.set_options_raw(&vec![1; options * 4]).expect("at most 40 bytes");
    tcp
}

proptest! {
    /// The segments of any super-frame are right by themselves, and together they are the whole.
    #[test]
    fn segments_are_right_and_whole(
        v6: bool,
        is_tcp: bool,
        sequence: u32,
        flags in 0_u8..8,
        options in 0_usize..=10,
        ip_options in 0_usize..=10,
        data in proptest::collection::vec(any::<u8>(), 1..6000),
        size in 1_u16..3000,
    ) {
        let given = is_tcp.then(|| tcp(sequence, flags, options));
        let bytes = whole(v6, given.clone(), &vec![1; 4 * ip_options], &data);
        let mut pkt = frame(Layer::Ethernet, &bytes);
        leave_checksum(&mut pkt);
        pkt.gso_size = size;
        describe(&mut pkt, 1);
        let count = data.len().div_ceil(size.into());
        let Some(super_frame) = SuperFrame::of(&pkt) else {
            prop_assert_eq!(count, 1);
            prop_assert_eq!(pkt.len as usize, pkt.payload().len());
            return Ok(());
        };
        prop_assert_eq!(super_frame.count(), count);
        prop_assert_eq!(pkt.len as usize, data.len() + count * super_frame.headers());
        let (mut together, mut bytes) = (Vec::new(), Vec::new());
        for index in 0..count {
            super_frame.write_segment(pkt.payload(), index, &mut bytes);
            let mut segment = frame(Layer::Ethernet, &bytes);
            segment.set_partial_checksum(Some(super_frame.partial_checksum()));
            complete_checksum(&mut segment);
            prop_assert_eq!(segment.partial_checksum(), None);
            let headers = assert_right(segment.payload());
            let from = together.len();
            together.extend_from_slice(headers.payload.slice());
            if let Some(IpHeaders::Ipv4(v4, _)) = headers.net.and_then(|net| match net {
                etherparse::NetHeaders::Ipv4(header, ext) => Some(IpHeaders::Ipv4(header, ext)),
                _ => None,
            }) {
                let number = u16::try_from(index).expect("few");
                prop_assert_eq!(v4.identification, 65_535_u16.wrapping_add(number));
            }
            if let (Some(given), Some(TransportHeader::Tcp(found))) = (&given, headers.transport) {
                let (first, last) = (index == 0, index + 1 == count);
                let mut expected = given.clone();
                let from = u32::try_from(from).expect("short");
                expected.sequence_number = sequence.wrapping_add(from);
                (expected.cwr, expected.fin) = (given.cwr && first, given.fin && last);
                (expected.psh, expected.checksum) = (given.psh && last, found.checksum);
                prop_assert_eq!(found, expected);
            }
        }
        prop_assert_eq!(together, data);
    }

    /// A super-frame whose bytes lie, or are cut off, makes no function panic.
    #[test]
    fn a_super_frame_may_be_damaged(
        v6: bool,
        is_tcp: bool,
        size in 1_u16..300,
        lies in proptest::collection::vec((0_usize..90, any::<u8>()), 0..4),
        cut in 0_usize..700,
    ) {
        let given = is_tcp.then(|| tcp(1, 7, 3));
        let mut pkt = frame(Layer::Ethernet, &whole(v6, given, &[1; 8], &[7; 600]));
        leave_checksum(&mut pkt);
        let partial = pkt.partial_checksum();
        let mut bytes = pkt.payload().to_vec();
        bytes.truncate(cut.max(60));
        for (at, byte) in lies {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        let mut pkt = frame(Layer::Ethernet, &bytes);
        pkt.set_partial_checksum(partial);
        pkt.gso_size = size;
        describe(&mut pkt, 0);
        if let Some(super_frame) = SuperFrame::of(&pkt) {
            let (mut segment, mut data) = (Vec::new(), 0);
            for index in 0..super_frame.count() {
                super_frame.write_segment(pkt.payload(), index, &mut segment);
                data += segment.len() - super_frame.headers();
            }
            prop_assert_eq!(data + super_frame.headers(), pkt.payload().len());
        }
        let _ = VnetHeader::of(&pkt);
        write_ce(&mut pkt);
        complete_checksum(&mut pkt);
    }

    /// No bytes, header or size make a function panic.
    #[test]
    fn anything_can_be_read(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        front in 0_usize..6,
        header: [u8; 10],
        ethernet: bool,
    ) {
        // Most random bytes are no packet, so the first bytes are those of one.
        let fronts: [&[u8]; 6] = [
            &[], &[0x45], &[0x60], &[0; 12], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0x45],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6],
        ];
        let layer = if ethernet { Layer::Ethernet } else { Layer::Ip };
        let mut pkt = frame(layer, &[fronts[front], &bytes].concat());
        let before = pkt.payload().len();
        let _ = VnetHeader::from_bytes(header).apply(&mut pkt);
        describe(&mut pkt, 0);
        if let Some(super_frame) = SuperFrame::of(&pkt) {
            let mut segment = Vec::new();
            for index in 0..super_frame.count() {
                super_frame.write_segment(pkt.payload(), index, &mut segment);
            }
        }
        let _ = VnetHeader::of(&pkt);
        write_ce(&mut pkt);
        complete_checksum(&mut pkt);
        prop_assert_eq!(pkt.payload().len(), before);
    }
}

#[test]
fn a_completed_checksum_is_the_one_that_was_left_out() {
    for (v6, is_tcp, len) in
        [(false, true, 100), (true, true, 101), (false, false, 0), (true, false, 1399)]
    {
        let right = whole(v6, is_tcp.then(|| tcp(1, 0, 3)), &[], &vec![7; len]);
        let mut pkt = frame(Layer::Ethernet, &right);
        leave_checksum(&mut pkt);
        assert_ne!(pkt.payload(), right);
        complete_checksum(&mut pkt);
        assert_eq!(pkt.payload(), right, "{v6} {is_tcp} {len}");
        // Now nothing is missing.
        complete_checksum(&mut pkt);
        assert_eq!(pkt.payload(), right);
    }
}

#[test]
fn a_checksum_that_was_left_out_is_found() {
    for (v6, is_tcp, len) in
        [(false, true, 100), (true, true, 101), (false, false, 0), (true, false, 1399)]
    {
        for pad in [0, 3] {
            let right = whole(v6, is_tcp.then(|| tcp(1, 0, 3)), &[], &vec![7; len]);
            let mut pkt = frame(Layer::Ethernet, &[&right[..], &vec![0; pad]].concat());
            let before = pkt.payload().to_vec();
            assert!(!find_partial_checksum(&mut pkt), "nothing is missing");
            pkt = frame(Layer::Ethernet, &right);
            leave_checksum(&mut pkt);
            let (left_out, told) = (pkt.payload().to_vec(), pkt.partial_checksum());
            let mut found = frame(Layer::Ethernet, &[&left_out[..], &vec![0; pad]].concat());
            assert!(find_partial_checksum(&mut found), "{v6} {is_tcp} {len} {pad}");
            assert_eq!(found.partial_checksum(), told);
            complete_checksum(&mut found);
            assert_eq!(found.payload(), before);
            // Padding with other bytes would be in the sum, so such a frame is left alone.
            let mut odd = frame(Layer::Ethernet, &[&left_out[..], &[1]].concat());
            assert!(!find_partial_checksum(&mut odd));
            // A damaged frame stays damaged.
            let mut damaged = right.clone();
            *damaged.last_mut().expect("a header") ^= 1;
            assert!(!find_partial_checksum(&mut frame(Layer::Ethernet, &damaged)));
        }
    }
    for bytes in [&[0x45_u8][..], &[0; 60], &[]] {
        assert!(!find_partial_checksum(&mut frame(Layer::Ethernet, bytes)));
        assert!(!find_partial_checksum(&mut frame(Layer::Ip, bytes)));
    }
}

#[test]
fn a_mark_is_written_and_the_checksum_stays_right() {
    for v6 in [false, true] {
        for (ecn, written) in [(0, false), (1, true), (2, true), (3, true)] {
            let mut pkt = frame(Layer::Ethernet, &whole(v6, Some(tcp(1, 0, 0)), &[], b"data"));
            if v6 {
                pkt.payload_mut()[15] |= ecn << 4;
            } else {
                let old = [pkt.payload()[14], pkt.payload()[15]];
                pkt.payload_mut()[15] = 0xb8 | ecn;
                let (old, new) =
                    (u16::from_be_bytes(old), u16::from_be_bytes([old[0], 0xb8 | ecn]));
                let sum = u16::from_be_bytes([pkt.payload()[24], pkt.payload()[25]]);
                let sum = corrected(sum, old, new).to_be_bytes();
                pkt.payload_mut()[24..26].copy_from_slice(&sum);
            }
            describe(&mut pkt, 0);
            assert_eq!(pkt.ecn, ecn);
            assert_eq!(write_ce(&mut pkt), written, "{v6} {ecn}");
            describe(&mut pkt, 0);
            assert_eq!(pkt.ecn, if written { 3 } else { 0 });
            assert_right(pkt.payload());
        }
    }
    let mut arp = frame(Layer::Ethernet, &[&[0; 12][..], &[8, 6], &[0; 28]].concat());
    assert!(!write_ce(&mut arp));
}

#[test]
fn a_flow_is_its_addresses_ports_and_vlan() {
    let describe = |bytes: &[u8], seed: u64| {
        let mut pkt = frame(Layer::Ethernet, bytes);
        describe(&mut pkt, seed);
        (pkt.flow, pkt.priority, pkt.len)
    };
    let frame = whole(false, None, &[], b"one");
    let same = whole(false, None, &[], b"other data");
    assert_eq!(describe(&frame, 0).0, describe(&same, 0).0);
    assert_ne!(describe(&frame, 0).0, describe(&frame, 1).0, "another seed");
    for at in [26, 30, 34, 36] {
        let mut other = frame.clone();
        other[at] ^= 1;
        assert_ne!(describe(&frame, 0).0, describe(&other, 0).0, "byte {at}");
    }
    // Byte 20 says that more fragments follow: the ports no longer count.
    let fragment = |port: u8| {
        let mut bytes = frame.clone();
        (bytes[20], bytes[35]) = (0x20, port);
        bytes
    };
    assert_eq!(describe(&fragment(1), 0), describe(&fragment(2), 0));
    let tagged = |id: u8| [&frame[..12], &[0x81, 0, 0, id], &frame[12..]].concat();
    assert_ne!(describe(&tagged(1), 0).0, describe(&tagged(2), 0).0);
    assert_ne!(describe(&tagged(0), 0).0, describe(&frame, 0).0);
    let mut urgent = frame.clone();
    urgent[15] = 0x10;
    assert_eq!(
        describe(&urgent, 0),
        (describe(&frame, 0).0, 6, u32::try_from(frame.len()).expect("short"))
    );
    let arp = [&[0; 12][..], &[8, 6], &[9; 28]].concat();
    assert_eq!(describe(&arp, 0).1, 0);
}

#[test]
fn a_header_says_what_the_packet_is() {
    let mut pkt = frame(Layer::Ethernet, &whole(false, Some(tcp(1, 4, 0)), &[], &[1; 3000]));
    assert_eq!(VnetHeader::of(&pkt).to_bytes(), [0; 10]);
    leave_checksum(&mut pkt);
    assert_eq!(VnetHeader::of(&pkt).to_bytes(), [1, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
    pkt.gso_size = 1448;
    let bytes = VnetHeader::of(&pkt).to_bytes();
    assert_eq!(bytes, [1, 0x81, 54, 0, 0xa8, 5, 34, 0, 16, 0]);
    let header = VnetHeader::from_bytes(bytes);
    assert_eq!(header.to_bytes(), bytes);
    let mut copy = frame(Layer::Ethernet, pkt.payload());
    assert_eq!(header.apply(&mut copy), Ok(()));
    assert_eq!((copy.gso_size, copy.partial_checksum()), (1448, pkt.partial_checksum()));
    for (v6, is_tcp, gso_type) in [(true, true, 4), (true, false, 5), (false, false, 5)] {
        let given = is_tcp.then(|| tcp(1, 0, 0));
        let mut pkt = frame(Layer::Ethernet, &whole(v6, given, &[], &[1; 3000]));
        leave_checksum(&mut pkt);
        pkt.gso_size = 1000;
        assert_eq!(VnetHeader::of(&pkt).to_bytes()[1], gso_type);
    }
}

#[test]
fn a_header_that_lies_is_refused_and_changes_nothing() {
    let bytes = whole(false, Some(tcp(1, 0, 0)), &[], &[1; 100]);
    let length = u16::try_from(bytes.len()).expect("short").to_le_bytes();
    let last = u16::try_from(bytes.len() - 2).expect("short").to_le_bytes();
    let header = |flags, gso_type, size, [s0, s1]: [u8; 2], offset| {
        [flags, gso_type, 54, 0, size, 0, s0, s1, offset, 0]
    };
    for (header, error) in [
        (header(1, 0, 0, last, 0), None),
        (header(1, 0, 0, last, 1), Some("behind the end")),
        (header(1, 0, 0, length, 16), Some("behind the end")),
        (header(1, 0, 0, [255, 255], 255), Some("behind the end")),
        (header(1, 1, 0, [34, 0], 16), Some("0 bytes")),
        (header(0, 1, 10, [34, 0], 16), Some("checksum already")),
        (header(1, 1, 10, [30, 0], 16), Some("neither TCP nor UDP")),
        (header(1, 3, 10, [34, 0], 16), Some("unknown type 3")),
        (header(1, 0x21, 10, [34, 0], 16), Some("unknown type 33")),
    ] {
        let mut pkt = frame(Layer::Ethernet, &bytes);
        match (VnetHeader::from_bytes(header).apply(&mut pkt), error) {
            (Ok(()), None) => assert!(pkt.partial_checksum().is_some()),
            (Err(said), Some(error)) => {
                assert!(said.to_string().contains(error), "{said}");
                assert_eq!((pkt.gso_size, pkt.partial_checksum()), (0, None));
            }
            other => panic!("{header:?}: {other:?}"),
        }
    }
}

#[test]
fn what_cannot_be_segmented_is_no_super_frame() {
    let right = |change: &dyn Fn(&mut Packet)| {
        let mut pkt = frame(Layer::Ethernet, &whole(false, Some(tcp(1, 0, 0)), &[], &[1; 3000]));
        leave_checksum(&mut pkt);
        pkt.gso_size = 1000;
        change(&mut pkt);
        SuperFrame::of(&pkt).map(|frame| frame.count())
    };
    assert_eq!(right(&|_| {}), Some(3));
    assert_eq!(right(&|pkt| pkt.gso_size = 0), None);
    assert_eq!(right(&|pkt| pkt.gso_size = 3000), None, "one segment");
    assert_eq!(right(&|pkt| pkt.gso_size = 2999), Some(2));
    assert_eq!(right(&|pkt| pkt.set_layer(Layer::Datagram)), None);
    assert_eq!(right(&|pkt| pkt.set_partial_checksum(None)), None);
    let inner = PartialChecksum { start: 54, offset: 16 };
    assert_eq!(right(&|pkt| pkt.set_partial_checksum(Some(inner))), None, "in a tunnel");
    assert_eq!(right(&|pkt| pkt.payload_mut()[20] = 0x20), None, "a fragment");
    assert_eq!(right(&|pkt| pkt.payload_mut()[23] = 47), None, "GRE");
    assert_eq!(right(&|pkt| pkt.payload_mut()[46] = 0x40), None, "a TCP header of 16 bytes");
}

/// No device computes the CRC of SCTP, so it is complete from the beginning.
#[test]
fn the_checksum_of_sctp_is_a_crc() {
    let mut bytes = vec![0; 50];
    bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 36, 0, 0, 0, 0, 64, 132]);
    bytes[34..50].copy_from_slice(&[0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 11, 0, 0, 4]);
    let header = VnetHeader::from_bytes([1, 0, 0, 0, 0, 0, 34, 0, 8, 0]);
    let mut pkt = frame(Layer::Ethernet, &bytes);
    assert_eq!(header.apply(&mut pkt), Ok(()));
    // Computed by another program, whose CRC of "123456789" is 0xe3069283.
    assert_eq!(pkt.payload()[42..46], [0xc8, 0x66, 0x09, 0x0e]);
    assert_eq!(pkt.partial_checksum(), None);
    // Of other protocols, a sum is left to the device.
    bytes[23] = 6;
    let mut pkt = frame(Layer::Ethernet, &bytes);
    assert_eq!(header.apply(&mut pkt), Ok(()));
    assert_eq!(pkt.partial_checksum(), Some(PartialChecksum { start: 34, offset: 8 }));
}
