//! Reads the packet headers in arbitrary bytes. Each field that our code finds must be at the place
//! that our code reports, and the crate `etherparse` must find the same fields. Used for fuzzing,
//! to replay the corpus that fuzzing produced, and for packets that a test makes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use etherparse::{Ipv6ExtensionSlice, LaxNetSlice, LaxSlicedPacket, TransportSlice};
use onramp_core::dissect::{Dissected, Fragment, Keys};
use onramp_queue::{Layer, Packet};

const ETH_LEN: usize = 14;
const VLANS: [u16; 2] = [0x8100, 0x88a8];
/// EtherTypes of tags and tunnels that the crate `etherparse` reads through, but Linux does not.
const OTHERS_ALONE: [u16; 2] = [0x9100, 0x88e5];
/// The largest number of IPv6 extension headers that our code skips.
const HEADERS_MAX: usize = 15;
const AH: u8 = 51;

/// Reads the headers in the bytes. The first byte says what kind of packet they are.
///
/// # Panics
///
/// Panics if a field is not at the reported place, or if the crate `etherparse` finds something
/// else.
pub(crate) fn run(bytes: &[u8]) {
    let Some((&kind, payload)) = bytes.split_first() else { return };
    let mut pkt = Packet::with_payload(payload);
    pkt.ecn = kind >> 4 & 3;
    match kind % 5 {
        0 | 1 => pkt.set_layer(Layer::Ethernet),
        2 => pkt.set_layer(Layer::Ip),
        3 => pkt.set_dest(Some(SocketAddr::from(([10, 0, 0, kind], 53)))),
        _ => pkt.set_dest(Some(SocketAddr::from(([u16::from(kind); 8], 53)))),
    }
    let dissected = Dissected::of(&pkt);
    let len = dissected.len(&pkt);
    let whole: Vec<u8> =
        (0..len).map(|at| dissected.bytes::<1>(&pkt, at).expect("inside")[0]).collect();
    assert!(whole.ends_with(payload));
    for at in [len.saturating_sub(4), len.saturating_sub(3), len, len + 1, usize::MAX] {
        let four = whole.get(at..).and_then(|rest| rest.first_chunk());
        assert_eq!(dissected.bytes::<4>(&pkt, at).as_ref(), four, "at {at} of {len}");
    }
    check(&whole, dissected.keys());
    assert_eq!(&keys(&whole), dissected.keys(), "the same in one piece");
    compare(&whole);
}

/// Returns the fields that our code finds in a frame.
pub(crate) fn keys(frame: &[u8]) -> Keys {
    let mut pkt = Packet::with_payload(frame);
    pkt.set_layer(Layer::Ethernet);
    Dissected::of(&pkt).keys().clone()
}

/// Returns the `N` bytes of the frame at `at`, and panics if the frame ends before.
fn there<const N: usize>(frame: &[u8], at: usize) -> [u8; N] {
    let found = frame.get(at..).and_then(|rest| rest.first_chunk());
    *found.unwrap_or_else(|| panic!("{N} bytes at {at} of {}", frame.len()))
}

fn word(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(there(frame, at))
}

/// Checks that each field is inside the frame, at the place that our code reports for it.
fn check(frame: &[u8], keys: &Keys) {
    let known = |at: usize| frame.len() >= at;
    if known(12) {
        assert_eq!(keys.macs, (there(frame, 0), there(frame, 6)));
    } else {
        assert_eq!(keys, &Keys { network: ETH_LEN, ..Keys::default() });
    }
    assert_eq!(keys.outer, if known(ETH_LEN) { word(frame, 12) } else { 0 });
    if let Some(vlan) = keys.vlan {
        let tag = word(frame, ETH_LEN);
        assert_eq!((vlan.ethertype, vlan.id), (keys.outer, tag & 0xfff));
        assert_eq!(u16::from(vlan.prio), tag >> 13);
        assert!(VLANS.contains(&vlan.ethertype));
    }
    assert!([14, 18, 22].contains(&keys.network), "{}", keys.network);
    if known(ETH_LEN) {
        assert_eq!(keys.ethertype, word(frame, keys.network - 2));
    }
    match keys.addresses {
        Some((IpAddr::V4(from), IpAddr::V4(to))) => {
            let head: [u8; 20] = there(frame, keys.network);
            let at = |at: usize| Ipv4Addr::from(there::<4>(&head, at));
            assert_eq!((from, to), (at(12), at(16)));
            assert_eq!((keys.tos, keys.ttl, keys.protocol), (head[1], head[8], head[9]));
        }
        Some((IpAddr::V6(from), IpAddr::V6(to))) => {
            let head: [u8; 40] = there(frame, keys.network);
            assert_eq!((from.octets(), to.octets()), (there(&head, 8), there(&head, 24)));
            assert_eq!((u16::from(keys.tos), keys.ttl), (word(&head, 0) >> 4 & 0xff, head[7]));
        }
        Some(mixed) => panic!("{mixed:?}"),
        None => assert_eq!((keys.transport, keys.ports, keys.icmp), (None, None, None)),
    }
    let Some(transport) = keys.transport else {
        assert_eq!((keys.ports, keys.icmp, keys.tcp_flags), (None, None, 0));
        return;
    };
    assert!(transport >= keys.network + 20);
    if let Some(ports) = keys.ports {
        let at = transport + if keys.protocol == AH { 4 } else { 0 };
        assert_eq!(ports, (word(frame, at), word(frame, at + 2)));
    }
    if let Some((kind, code)) = keys.icmp {
        assert_eq!([kind, code], there(frame, transport));
    }
    if keys.tcp_flags != 0 {
        let head: [u8; 20] = there(frame, transport);
        assert_eq!(keys.tcp_flags, word(&head, 12) & 0xfff);
    }
    let found = keys.ports.is_some() || keys.icmp.is_some() || keys.tcp_flags != 0;
    assert!(!found || keys.fragment == Fragment::No, "parts have no ports");
}

/// Compares the headers that our code finds with those that the crate `etherparse` finds, if any.
pub(crate) fn compare(frame: &[u8]) {
    let ours = keys(frame);
    let Ok(theirs) = LaxSlicedPacket::from_ethernet(frame) else {
        assert!(frame.len() < ETH_LEN);
        return;
    };
    let types = [12, 16, 20].map(|at| frame.get(at..at + 2).map_or(0, |_| word(frame, at)));
    let tags = types.iter().take_while(|kind| VLANS.contains(kind)).count();
    if tags > 2 || types.get(tags).is_some_and(|kind| OTHERS_ALONE.contains(kind)) {
        return;
    }
    assert_eq!(ours.network, ETH_LEN + 4 * theirs.link_exts.len());
    let tag = theirs.vlan_ids().first().map(|id| id.value());
    assert_eq!(ours.vlan.map(|vlan| vlan.id), tag);
    // Do not compare all packets: `etherparse` trusts lengths that are too short, and stops at a
    // header that is not complete. Its iterator over extension headers then reads beyond such a
    // header.
    let whole = theirs.stop_err.is_none();
    // Returns the offset at which a header begins in the frame.
    let place = |part: &[u8]| part.as_ptr() as usize - frame.as_ptr() as usize;
    let (payload, passed_by) = match &theirs.net {
        Some(LaxNetSlice::Ipv4(ip)) if ours.ethertype == 0x0800 => {
            let header = ip.header();
            let ends = (header.source_addr().into(), header.destination_addr().into());
            assert_eq!(ours.addresses, Some(ends));
            assert_eq!(ours.tos, header.dcp().value() << 2 | header.ecn().value());
            assert_eq!((ours.ttl, ours.network), (header.ttl(), place(header.slice())));
            assert_eq!(ours.fragment != Fragment::No, header.is_fragmenting_payload());
            (ip.payload(), whole && ip.extensions().is_empty())
        }
        Some(LaxNetSlice::Ipv6(ip)) if ours.ethertype == 0x86dd => {
            let header = ip.header();
            let ends = (header.source_addr().into(), header.destination_addr().into());
            assert_eq!(ours.addresses, Some(ends));
            assert_eq!((ours.ttl, ours.tos), (header.hop_limit(), header.traffic_class()));
            assert_eq!(ours.network, place(header.slice()));
            if !whole {
                return;
            }
            // Compare only packets whose extension headers both crates skip: no authentication
            // header, and no header after a fragment header, because our code looks no further.
            let more: Vec<_> = ip.extensions().clone().into_iter().collect();
            let last = more.len().saturating_sub(1);
            let known = more.iter().enumerate().all(|(at, header)| match header {
                Ipv6ExtensionSlice::Authentication(_) => false,
                Ipv6ExtensionSlice::Fragment(_) => at == last,
                _ => true,
            });
            (ip.payload(), known && more.len() < HEADERS_MAX)
        }
        Some(LaxNetSlice::Arp(_)) => {
            assert_eq!(ours.ethertype, 0x0806);
            return;
        }
        _ => return,
    };
    if !passed_by {
        return;
    }
    assert_eq!(ours.protocol, payload.ip_number.0);
    assert_eq!(ours.transport, Some(place(payload.payload)));
    if ours.fragment == Fragment::No {
        compare_transport(&ours, theirs.transport.as_ref());
    }
}

fn compare_transport(ours: &Keys, theirs: Option<&TransportSlice<'_>>) {
    match theirs {
        Some(TransportSlice::Udp(udp)) => {
            assert_eq!(ours.ports, Some((udp.source_port(), udp.destination_port())));
        }
        Some(TransportSlice::Tcp(tcp)) => {
            assert_eq!(ours.ports, Some((tcp.source_port(), tcp.destination_port())));
            let bits = [
                (tcp.fin(), 1),
                (tcp.syn(), 2),
                (tcp.rst(), 4),
                (tcp.psh(), 8),
                (tcp.ack(), 0x10),
                (tcp.urg(), 0x20),
                (tcp.ece(), 0x40),
                (tcp.cwr(), 0x80),
                (tcp.ns(), 0x100),
            ];
            let flags = bits.iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit);
            assert_eq!(ours.tcp_flags & 0x1ff, flags);
        }
        Some(TransportSlice::Icmpv4(icmp)) => {
            assert_eq!(ours.icmp, Some((icmp.type_u8(), icmp.code_u8())));
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            assert_eq!(ours.icmp, Some((icmp.type_u8(), icmp.code_u8())));
        }
        _ => {}
    }
}
