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
    fn run(&self, most: usize) -> Result<Packet, Discard> {
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
        whole(message, 2000, self.head, &mut make)
    }

    /// Checks the packet, and returns the number of its datagrams.
    fn check(&self, packet: &Packet) -> usize {
        assert_eq!((packet.layer(), packet.dest()), (Layer::Ip, None));
        let found = Datagram::of(packet).expect("a datagram");
        let (source, destination) = self.addresses;
        assert_eq!(found.source, SocketAddr::new(source.to_canonical(), 1000));
        assert_eq!(found.destination, SocketAddr::new(destination.to_canonical(), 2000));
        assert_eq!(found.ecn, 1);
        assert!(found.data == self.data, "{} bytes", self.data.len());
        found.datagrams().count()
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
                    let packet = case.run(PAYLOAD_MAX).expect("room");
                    let expected = match segment {
                        Some(7) => len.div_ceil(7).max(1),
                        _ => 1,
                    };
                    assert_eq!(case.check(&packet), expected, "{len} bytes in {capacity}");
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

/// The kernel makes no message of several datagrams that is larger than a packet, but IPv6 has such
/// datagrams.
#[test]
fn what_fits_no_packet_is_discarded() {
    for (addresses, headers) in [(V4, 28), (V6, 48)] {
        for capacity in [1_500, u16::MAX] {
            let most = PAYLOAD_MAX - headers;
            let case = Case::new(addresses, headers, capacity, most);
            assert_eq!(case.check(&case.run(PAYLOAD_MAX).expect("room")), 1);
            let case = Case { segment: Some(1_400), ..case };
            assert_eq!(case.check(&case.run(PAYLOAD_MAX).expect("room")), 47);
            // No packet of such a size can be made, so none is asked for.
            let case = Case::new(addresses, headers, capacity, most + 1);
            assert_eq!(case.run(usize::MAX).err(), Some(Discard::NoRoom));
        }
    }
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
    let run = |message| whole(message, 2, 28, &mut |_| None).map(drop);
    assert_eq!(run(message()), Ok(()));
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
