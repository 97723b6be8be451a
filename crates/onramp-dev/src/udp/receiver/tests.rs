//! Packets made of messages, wherever their bytes lie.

use std::net::{Ipv4Addr, Ipv6Addr};

use onramp_queue::Layer;

use super::*;
use crate::sys::Told;

const V4: (IpAddr, IpAddr) =
    (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)));
const V6: (IpAddr, IpAddr) =
    (IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::new(1, 2, 3, 4, 5, 6, 7, 8)));

fn mapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().into(),
        IpAddr::V6(_) => ip,
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n % 251).to_le_bytes()[0]).collect()
}

/// A message as the kernel leaves it: in a packet with this capacity, behind `head` bytes.
struct Case {
    addresses: (IpAddr, IpAddr),
    head: usize,
    capacity: u16,
    data: Vec<u8>,
    segment: Option<u16>,
}

impl Case {
    fn new(addresses: (IpAddr, IpAddr), head: usize, capacity: u16, len: usize) -> Self {
        Self { addresses, head, capacity, data: bytes(len), segment: None }
    }

    /// Makes packets, with at most `most` bytes in a packet of `make`.
    fn run(&self, most: usize) -> Result<Vec<Packet>, Discard> {
        let free = self.head.min(self.capacity.into());
        let (front, rest) =
            self.data.split_at(self.data.len().min(usize::from(self.capacity) - free));
        let mut packet = Packet::with_capacity(self.capacity);
        packet.set_payload(&vec![0; free]);
        packet.append_payload(front);
        let (source, destination) = self.addresses;
        let source = Some(SocketAddr::new(source, 1000));
        let told = Told { destination: Some(destination), tos: 0xb9, segment: self.segment };
        let message = Arrived { packet, rest, truncated: false, source, told: Some(told) };
        let mut make = |size: usize| {
            (size <= most).then(|| Packet::with_capacity(size.try_into().expect("a packet")))
        };
        let packets = whole(message, 2000, self.head, &mut make)?;
        Ok(packets.into_iter().flatten().collect())
    }

    /// Checks the packets, and returns the number of datagrams in each.
    fn check(&self, packets: &[Packet]) -> Vec<usize> {
        let (mut all, mut counts) = (Vec::new(), Vec::new());
        for packet in packets {
            assert_eq!((packet.layer(), packet.dest()), (Layer::Ip, None));
            let found = Datagram::of(packet).expect("a datagram");
            let (source, destination) = self.addresses;
            assert_eq!(found.source, SocketAddr::new(source.to_canonical(), 1000));
            assert_eq!(found.destination, SocketAddr::new(destination.to_canonical(), 2000));
            assert_eq!(found.ecn, 1);
            all.extend_from_slice(found.data);
            counts.push(found.datagrams().count());
        }
        assert!(all == self.data, "the data in order");
        counts
    }
}

#[test]
fn the_bytes_may_lie_anywhere() {
    let dual = (mapped(V4.0), mapped(V4.1));
    for (addresses, head, headers) in [(V4, 28, 28), (V6, 48, 48), (dual, 48, 28)] {
        for len in [0, 1, 19, 20, 21, 100, 1_000] {
            for capacity in [0, 20, 28, 40, 48, 49, 100, 128, 130, 147, 148, 149, 2_000] {
                for segment in [None, Some(7), Some(1_000), Some(0)] {
                    let case = Case { segment, ..Case::new(addresses, head, capacity, len) };
                    let packets = case.run(PAYLOAD_MAX).expect("room");
                    let expected = match segment {
                        Some(7) => len.div_ceil(7).max(1),
                        _ => 1,
                    };
                    assert_eq!(case.check(&packets), [expected], "{len} bytes in {capacity}");
                    let fits = headers + len <= usize::from(capacity);
                    assert_eq!(
                        case.run(0).is_ok(),
                        fits,
                        "no other packet is asked for if it fits"
                    );
                    assert!(fits || case.run(headers + len - 1).is_err());
                }
            }
        }
    }
}

/// A message of several datagrams may be larger than a packet, and then becomes two.
#[test]
fn more_than_a_packet_becomes_two() {
    for capacity in [1_500, u16::MAX] {
        for (segment, counts) in [(1_400, [46, 1]), (30_000, [2, 1]), (65_487, [1, 1])] {
            let len = if segment == 65_487 { 65_507 } else { usize::from(segment) * 46 + 1_107 };
            let len = len.min(65_527);
            let case = Case { segment: Some(segment), ..Case::new(V6, 48, capacity, len) };
            let packets = case.run(PAYLOAD_MAX).expect("room");
            assert_eq!(case.check(&packets), counts, "of {segment} bytes");
            assert_eq!(packets[1].gso_size, 0);
        }
        let one = Case::new(V6, 48, capacity, 65_488);
        assert_eq!(one.run(PAYLOAD_MAX).err(), Some(Discard::NoRoom), "one datagram is not split");
        assert_eq!(
            Case::new(V6, 48, capacity, 65_487).run(PAYLOAD_MAX).map(|all| all.len()),
            Ok(1)
        );
        let large = Case { segment: Some(65_488), ..Case::new(V6, 48, capacity, 65_500) };
        assert_eq!(large.run(PAYLOAD_MAX).err(), Some(Discard::NoRoom), "too large each");
    }
    let many = Case { segment: Some(1), ..Case::new(V6, 48, u16::MAX, 65_527) };
    assert_eq!(many.check(&many.run(PAYLOAD_MAX).expect("room")), [65_487, 40]);
    assert_eq!(many.run(87).err(), Some(Discard::NoRoom), "no room for the second");
}

#[test]
fn what_the_kernel_does_not_tell_is_not_guessed() {
    let message = || {
        let mut packet = Packet::with_capacity(100);
        packet.set_payload(&[0; 32]);
        let told = Told { destination: Some(V4.1), tos: 0, segment: None };
        let source = Some(SocketAddr::new(V4.0, 1));
        Arrived { packet, rest: &[], truncated: false, source, told: Some(told) }
    };
    let run = |message| whole(message, 2, 28, &mut |_| None).map(|[_, second]| second.is_some());
    assert_eq!(run(message()), Ok(false));
    assert_eq!(run(Arrived { source: None, ..message() }), Err(Discard::Malformed));
    assert_eq!(run(Arrived { told: None, ..message() }), Err(Discard::Malformed));
    let told = Some(Told::default());
    assert_eq!(run(Arrived { told, ..message() }), Err(Discard::Malformed), "to whom");
    let told = Some(Told { destination: Some(V6.1), ..Told::default() });
    assert_eq!(run(Arrived { told, ..message() }), Err(Discard::Malformed), "a mixture");
    let source = Some(SocketAddr::new(V6.0, 1));
    let six = Arrived { told, source, ..message() };
    assert_eq!(run(six), Err(Discard::Malformed), "no room in front for these headers");
    assert_eq!(run(Arrived { truncated: true, ..message() }), Err(Discard::NoRoom));
}
