//! The messages that the queue builds from packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use libc::EAGAIN;
use onramp_queue::Counter;

use super::Answer::{Fail, Take};
use super::*;
use crate::sys::From;
use crate::udp::Source;
use crate::udp::build::MESSAGE_MAX;

/// Returns a list with one super-packet of `len` bytes, which consists of datagrams of `gso_size`
/// bytes.
fn super_packet(len: usize, gso_size: u16) -> PacketList {
    let mut pkt = Packet::with_payload(&payload(0, len));
    pkt.gso_size = gso_size;
    [pkt].into_iter().collect()
}

fn chunks(len: usize, gso_size: usize) -> Vec<Vec<u8>> {
    payload(0, len).chunks(gso_size).map(<[u8]>::to_vec).collect()
}

#[test]
fn a_super_packet_is_one_message() {
    let mut queue = queue([]);
    let (done, out) = transmit(&mut queue, &mut super_packet(10_100, 1_000));
    assert_eq!((done, out.messages), (vec![(0, None)], 1));
    assert_eq!(queue.wire.taken[0].segment, Some(1_000));
    assert_eq!(queue.stats.segments.get(), 11);
}

#[test]
fn a_super_packet_beyond_the_limits_is_several() {
    // A message holds at most 64 segments and 65,507 bytes.
    for (len, size, messages) in
        [(65_000, 500, 3), (32_001, 500, 2), (65_535, 1_000, 2), (65_508, 65_000, 2)]
    {
        let mut queue = queue([]);
        let (done, out) = transmit(&mut queue, &mut super_packet(len, size));
        assert_eq!((done, out.messages), (vec![(0, None)], messages));
        assert_eq!(queue.wire.datagrams(), chunks(len, size.into()));
        assert!(queue.wire.taken.iter().all(|view| view.payload.len() <= MESSAGE_MAX));
        let alone = |view: &View| view.payload.len() <= size.into();
        assert!(queue.wire.taken.iter().all(|view| view.segment.is_none() == alone(view)));
    }
}

#[test]
fn a_super_packet_refused_goes_out_singly() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|view| view.segment.is_some(), libc::EMSGSIZE));
    let (done, out) = transmit(&mut queue, &mut super_packet(10_100, 1_000));
    assert_eq!((done, out.messages), (vec![(0, None)], 11));
    assert_eq!(queue.wire.datagrams(), chunks(10_100, 1_000));
}

/// A super-packet of 65,000 bytes needs several messages. If the kernel refuses the first one, the
/// queue sends the whole super-packet datagram by datagram.
#[test]
fn a_large_super_packet_refused_goes_out_singly() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|view| view.segment.is_some(), libc::EMSGSIZE));
    let (done, out) = transmit(&mut queue, &mut super_packet(65_000, 500));
    assert_eq!((done, out.messages), (vec![(0, None)], 130));
    assert_eq!(queue.wire.datagrams(), chunks(65_000, 500));
}

/// If the kernel refuses a super-packet, all of it goes out datagram by datagram, even if that
/// takes several calls of at most 256 messages.
#[test]
fn what_was_refused_goes_out_singly_to_its_end() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|view| view.segment.is_some(), libc::EMSGSIZE));
    let (done, out) = transmit(&mut queue, &mut super_packet(2_000, 1));
    assert_eq!((done, out.messages, out.calls), (vec![(0, None)], 2_000, 1 + 8));
    assert_eq!(queue.stats.gso_fallbacks.get(), 1, "refused once");
}

/// A packet stands in front of a super-packet that needs more messages than one call can hold. The
/// kernel refuses the first packet, and only that is dropped. The super-packet goes out completely.
#[test]
fn a_packet_dropped_takes_nothing_of_the_next() {
    let mut queue = queue([Fail(libc::EPERM), Fail(libc::EPERM)]);
    queue.builder.segments_max = 1;
    let mut burst = run(&[10]);
    burst.extend(super_packet(2_000, 1).map(|mut pkt| {
        pkt.cookie = 1;
        pkt
    }));
    let (done, out) = transmit(&mut queue, &mut burst);
    assert_eq!(done, [(0, Some(DropReason::NoPermission)), (1, None)]);
    assert_eq!(out.messages, 2_000);
    assert_eq!(queue.wire.datagrams(), chunks(2_000, 1));
}

#[test]
fn a_super_packet_that_is_one_datagram_joins_its_neighbours() {
    let mut queue = queue([]);
    let mut burst = run(&[100; 3]);
    let mut list = super_packet(100, 100);
    list.append(&mut burst);
    let mut done = PacketList::new();
    let out = queue.transmit(&mut list, &mut done, NOW);
    assert_eq!((out.messages, done.len()), (1, 4));
}

#[test]
fn without_segmentation_a_super_packet_is_cut_here() {
    // Without segmentation, the queue sends each datagram of a super-packet as one message. The
    // first super-packet needs 11 messages, the second more than one call sends (256), and the
    // third more than the array of parts holds (1,024).
    for (len, size) in [(10_001, 1_000), (65_535, 100), (2_000, 1)] {
        let mut queue = queue([]);
        queue.builder.segments_max = 1;
        let (done, out) = transmit(&mut queue, &mut super_packet(len, size));
        assert_eq!(done, [(0, None)]);
        assert_eq!(out.messages as usize, len.div_ceil(size.into()));
        assert_eq!(queue.wire.datagrams(), chunks(len, size.into()));
    }
}

#[test]
fn a_super_packet_sent_in_part_goes_on_where_it_stopped() {
    let mut queue = queue([Take(3), Fail(EAGAIN), Take(2), Fail(EAGAIN), Fail(EAGAIN)]);
    queue.builder.segments_max = 1;
    let mut burst = super_packet(1_050, 100);
    let len = burst.bytes();
    for _ in 0..3 {
        let (done, out) = transmit(&mut queue, &mut burst);
        assert_eq!((done, out.retry_at.is_some()), (vec![], true));
        assert_eq!(burst.bytes(), len, "its length on the wire stays what was accounted for");
    }
    assert_eq!(transmit(&mut queue, &mut burst).0, [(0, None)]);
    assert_eq!(queue.wire.datagrams(), chunks(1_050, 100), "none twice, none missing");
}

/// A super-packet holds nine datagrams of one byte. If the kernel takes only the first datagram,
/// the queue goes on with the second.
#[test]
fn a_super_packet_of_single_bytes_goes_on_behind_the_first() {
    let mut queue = queue([Take(1), Fail(EAGAIN), Take(1), Fail(EAGAIN), Fail(EAGAIN)]);
    queue.builder.segments_max = 1;
    let mut burst = super_packet(9, 1);
    for _ in 0..3 {
        assert_eq!(transmit(&mut queue, &mut burst).0, []);
    }
    assert_eq!(transmit(&mut queue, &mut burst).0, [(0, None)]);
    assert_eq!(queue.wire.datagrams(), chunks(9, 1));
}

#[test]
fn a_super_packet_that_fails_in_part_is_dropped() {
    let mut queue = queue([Take(3), Fail(libc::ENETDOWN), Fail(libc::ENETDOWN)]);
    queue.builder.segments_max = 1;
    let mut burst = super_packet(1_000, 100);
    burst.append(&mut run(&[10]));
    let mut done = PacketList::new();
    queue.transmit(&mut burst, &mut done, NOW);
    let fates: Vec<_> = done.map(|pkt| pkt.drop_reason).collect();
    assert_eq!(fates, [Some(DropReason::Unreachable), None]);
    let mut expected = chunks(300, 100);
    expected.push(payload(0, 10));
    assert_eq!(queue.wire.datagrams(), expected);
}

#[test]
fn neighbours_join_only_if_all_is_the_same() {
    let there: SocketAddr = "127.0.0.1:7".parse().expect("an address");
    let alter: [fn(&mut Packet, SocketAddr); 5] = [
        |_, _| {},
        |pkt, _| pkt.flow = 1,
        |pkt, _| pkt.ecn = 2,
        |pkt, there| pkt.set_dest(Some(there)),
        |pkt, _| pkt.gso_size = 50,
    ];
    let messages = alter.map(|alter| {
        let mut queue = queue([]);
        let mut packets: Vec<_> = run(&[100, 100, 100]).collect();
        alter(&mut packets[1], there);
        let mut burst = packets.into_iter().collect();
        transmit(&mut queue, &mut burst).1.messages
    });
    assert_eq!(messages, [1, 3, 3, 3, 3]);
}

#[test]
fn sizes_that_cannot_share_a_message_do_not() {
    for (lens, messages) in [
        (&[100, 101, 101][..], 2),
        (&[100, 99, 99], 2),
        (&[0, 0, 0], 3),
        (&[100, 0, 100], 3),
        (&[40_000, 25_507], 1),
        (&[40_000, 25_508], 2),
        (&[32_754, 32_754, 32_754], 3),
        (&[65_507, 1], 2),
        (&[1; 64], 1),
        (&[1; 65], 2),
        (&[1; 2_000], 32),
        // Payloads below and above 512 bytes, the largest that the queue copies; then 300 payloads,
        // which together are larger than the copy buffer (65,536 bytes).
        (&[600, 600, 512, 513, 513, 100], 2),
        (&[500; 300], 5),
        // The last payload of 500 bytes no longer fits into the copy buffer, but the payload of 30
        // bytes behind it does. The kernel must still get both in order.
        (&[&[500; 135][..], &[30]].concat(), 3),
    ] {
        let mut queue = queue([]);
        let (done, out) = transmit(&mut queue, &mut run(lens));
        assert_eq!(out.messages, messages, "{lens:?}");
        assert!(done.iter().all(|(_, reason)| reason.is_none()));
        let expected: Vec<_> = lens.iter().enumerate().map(|(at, &len)| payload(at, len)).collect();
        assert_eq!(queue.wire.datagrams(), expected);
    }
}

#[test]
fn small_payloads_are_copied_into_one_part() {
    for (len, parts) in [(120, 2), (512, 2), (513, 9)] {
        let mut queue = queue([]);
        transmit(&mut queue, &mut run(&[len; 9]));
        assert_eq!(queue.wire.taken[0].parts, parts);
    }
}

/// The copy buffer of 65,536 bytes holds exactly 128 payloads of 512 bytes. The first payload of a
/// message is never copied, and a message has 64 payloads. So 63 payloads of each of the first two
/// messages are copied and two of the third; the fourth payload of the third message finds the
/// buffer full and becomes a part of its own.
#[test]
fn copies_fill_their_room_and_have_all_of_it_again() {
    let mut queue = queue([]);
    for turn in 0..3 {
        let lens = [512; 64 + 64 + 4];
        transmit(&mut queue, &mut run(&lens));
        let parts: Vec<_> = queue.wire.taken.iter().map(|view| view.parts).collect();
        assert_eq!(parts, [2, 2, 3], "turn {turn}");
        let expected: Vec<_> = lens.iter().enumerate().map(|(at, &len)| payload(at, len)).collect();
        assert_eq!(queue.wire.datagrams(), expected);
        queue.wire.taken.clear();
    }
}

/// A datagram too large for any message is offered unchanged, so that the kernel reports the error.
#[test]
fn a_datagram_beyond_a_message_is_offered_alone() {
    let mut queue = queue([]);
    let (done, out) = transmit(&mut queue, &mut super_packet(65_535, 65_510));
    assert_eq!((done, out.messages), (vec![(0, None)], 2));
    assert_eq!(queue.wire.datagrams(), chunks(65_535, 65_510));
    assert!(queue.wire.taken.iter().all(|view| view.segment.is_none()));
}

/// One call sends at most 256 messages with at most 1,024 parts, because the arrays of messages and
/// parts have that size.
#[test]
fn a_call_has_so_many_messages_and_parts() {
    let calls = |lens: &[usize], segments_max| {
        let mut queue = queue([]);
        queue.builder.segments_max = segments_max;
        let (_, out) = transmit(&mut queue, &mut run(lens));
        (out.calls, out.messages)
    };
    assert_eq!(calls(&[8; 256], 1), (1, 256));
    assert_eq!(calls(&[8; 257], 1), (2, 257));
    // Payloads of 600 bytes are not copied, so each payload is a part. Messages have 64 datagrams
    // each.
    assert_eq!(calls(&[600; 1_024], 64), (1, 16));
    assert_eq!(calls(&[600; 1_025], 64), (2, 17));
    // The first call has 1,024 parts: 20 messages of 50 parts, and a message of 24 parts. The other
    // 26 packets go out with the next call.
    assert_eq!(calls(&[600; 1_050], 50), (2, 21 + 1));
}

#[test]
fn messages_are_counted_by_their_datagrams() {
    let cells = [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (7, 2), (8, 3), (64, 6), (127, 6)];
    for (segments, cell) in cells.into_iter().chain([(128, 7), (255, 7), (256, 7), (u16::MAX, 7)]) {
        assert_eq!(UdpStats::bucket(segments), cell, "{segments}");
    }
    let mut queue = queue([]);
    transmit(&mut queue, &mut run(&[&[9; 64][..], &[8; 3], &[20]].concat()));
    let counted: Vec<_> = queue.stats.segments_per_message.iter().map(Counter::get).collect();
    // The first message is full with 64 datagrams; the 3 shorter packets make a second message. The
    // larger packet cannot join them and makes a third message.
    assert_eq!(counted, [1, 1, 0, 0, 0, 0, 1, 0]);
    let stats = &queue.stats;
    assert_eq!((stats.messages.get(), stats.segments.get(), stats.gso_messages.get()), (3, 68, 2));
    assert_eq!((stats.bytes.get(), stats.calls.get()), (64 * 9 + 3 * 8 + 20, 1));
    assert_eq!((stats.cut_short.get(), stats.earlier_errors.get()), (0, 0));
}

#[test]
fn a_call_that_takes_a_part_is_cut_short() {
    let mut queue = queue([Take(2), Take(1)]);
    let (done, out) = transmit(&mut queue, &mut run(&[10, 20, 30, 40]));
    assert_eq!((done.len(), out.calls, out.messages), (4, 3, 4));
    assert_eq!((queue.stats.cut_short.get(), queue.stats.calls.get()), (2, 3));
}

#[test]
fn a_transmit_time_to_come_is_passed_on_and_stands_alone() {
    let mut queue = queue([]);
    let times = [0, NOW.0, NOW.0 + 1, NOW.0 + 1, 0, 0];
    let burst = || -> PacketList {
        let packets = run(&[100; 6]).zip(times);
        let stamp = |(mut pkt, at): (Packet, u64)| {
            pkt.txtime_ns = at;
            pkt
        };
        packets.map(stamp).collect()
    };
    let (_, out) = transmit(&mut queue, &mut burst());
    assert_eq!((out.messages, queue.wire.taken[0].txtime_ns), (1, None), "not asked for");
    queue.wire.taken.clear();
    queue.builder.txtime = true;
    transmit(&mut queue, &mut burst());
    let taken: Vec<_> = queue
        .wire
        .taken
        .iter()
        .map(|view| (view.payload.len(), view.txtime_ns.map(|at| at - NOW.0)))
        .collect();
    assert_eq!(taken, [(200, None), (100, Some(1)), (100, Some(1)), (200, None)]);
}

/// Returns the message that the queue builds from one packet to `dest` with the ECN code point
/// `ecn`.
fn message(queue: &mut Queue<Script>, dest: Option<&str>, ecn: u8) -> View {
    let mut burst = run(&[10]);
    let mut pkt = burst.pop_front().expect("there is one");
    pkt.set_dest(dest.map(|dest| dest.parse().expect("an address")));
    pkt.ecn = ecn;
    burst.push_back(pkt);
    transmit(queue, &mut burst);
    queue.wire.taken.pop().expect("it was taken")
}

#[test]
fn the_peer_needs_no_name() {
    let peer = "127.0.0.1:9";
    let mapped = "[::ffff:127.0.0.1]:9";
    for (ipv6, peer) in [(false, peer), (true, peer), (true, mapped)] {
        let route = Route::new(ipv6, peer.parse().ok(), 0, 0);
        let mut queue = queue_on(route, []);
        for dest in [None, Some("127.0.0.1:9"), Some(mapped)] {
            assert_eq!(message(&mut queue, dest, 0).name, None, "{dest:?}");
        }
        assert!(message(&mut queue, Some("127.0.0.2:9"), 0).name.is_some());
    }
}

#[test]
fn names_are_in_the_family_of_the_socket() {
    let mut v4 = queue([]);
    let mut v6 = queue_on(Route::new(true, None, 0, 0), []);
    for (on_v6, dest, name) in [
        (false, "127.0.0.1:9", "127.0.0.1:9"),
        (false, "[::ffff:127.0.0.1]:9", "127.0.0.1:9"),
        // An IPv4 socket cannot send to an IPv6 address. The message carries the address unchanged,
        // and the kernel will refuse the message.
        (false, "[::1]:9", "[::1]:9"),
        (true, "127.0.0.1:9", "[::ffff:127.0.0.1]:9"),
        (true, "[fe80::1%3]:9", "[fe80::1%3]:9"),
    ] {
        let queue = if on_v6 { &mut v6 } else { &mut v4 };
        assert_eq!(message(queue, Some(dest), 0).name, name.parse().ok(), "{dest}");
    }
    // The queue also keeps the flow label of an IPv6 address. The addresses above have none,
    // because the text form of an address has no flow label.
    let whole = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 9, 0x12345, 7).into();
    let mut burst = run(&[10]);
    burst = burst
        .map(|mut pkt| {
            pkt.set_dest(Some(whole));
            pkt
        })
        .collect();
    v6.wire.taken.clear();
    transmit(&mut v6, &mut burst);
    assert_eq!(v6.wire.taken[0].name, Some(whole));
}

#[test]
fn a_code_point_keeps_the_rest_of_the_class() {
    let mut v4 = queue_on(Route::new(false, None, 0b1011_1000, 0), []);
    let mut v6 = queue_on(Route::new(true, None, 0b1011_1001, 0b0010_1010), []);
    for ecn in 1..=3 {
        let view = message(&mut v4, Some("127.0.0.1:9"), ecn);
        assert_eq!((view.class_v4, view.class_v6), (Some(0b1011_1000 | i32::from(ecn)), None));
        let view = message(&mut v6, Some("[::1]:9"), ecn);
        assert_eq!((view.class_v4, view.class_v6), (None, Some(0b0010_1000 | i32::from(ecn))));
        let view = message(&mut v6, Some("127.0.0.1:9"), ecn);
        assert_eq!((view.class_v4, view.class_v6), (Some(0b1011_1000 | i32::from(ecn)), None));
    }
    let view = message(&mut v4, Some("127.0.0.1:9"), 0);
    assert_eq!((view.class_v4, view.class_v6), (None, None));
    // The two low bits of `ecn` are the ECN code point (RFC 3168). Its other bits are ignored.
    let view = message(&mut v4, Some("127.0.0.1:9"), 0b1111_1100);
    assert_eq!(view.class_v4, None);
    let view = message(&mut v4, Some("127.0.0.1:9"), 0b0000_0110);
    assert_eq!(view.class_v4, Some(0b1011_1010));
}

#[test]
#[cfg_attr(miri, ignore = "needs sockets")]
fn a_route_is_read_from_the_socket() {
    let bind = |addr| UdpSocket::bind(addr).expect("the loopback is up");
    let (v4, v6) = (bind("127.0.0.1:0"), bind("[::]:0"));
    let peer = v4.local_addr().expect("it is bound");
    v6.connect(peer).expect("the loopback is up");
    let options = socket2::SockRef::from(&v6);
    options.set_tos_v4(0b1011_1000).expect("Linux has it");
    options.set_tclass_v6(0b0010_1000).expect("Linux has it");
    let mut queue = queue_on(Route::of(&v6).expect("it is bound"), []);
    let view = message(&mut queue, Some(&peer.to_string()), 1);
    assert_eq!((view.name, view.class_v4, view.class_v6), (None, Some(0b1011_1001), None));
    let view = message(&mut queue, Some("[::1]:9"), 1);
    assert_eq!((view.class_v4, view.class_v6), (None, Some(0b0010_1001)));
    let mut queue = queue_on(Route::of(&v4).expect("it is bound"), []);
    let view = message(&mut queue, Some("[::1]:9"), 1);
    assert_eq!((view.class_v4, view.class_v6), (None, Some(1)));
    assert!(message(&mut queue, Some(&peer.to_string()), 0).name.is_some());
}

/// Packets of one flow that leave from different addresses are messages of their own, each with its
/// source behind its other control messages.
#[test]
fn packets_of_one_source_are_joined() {
    let source = |last: u8| Source::new([127, 0, 0, last].into(), 3).expect("a number");
    let sources = [Some(1), Some(1), Some(2), None, None, Some(1)].map(|last| last.map(source));
    let mut packets: Vec<_> = run(&[100; 6]).collect();
    for (packet, source) in packets.iter_mut().zip(sources) {
        packet.set_source(source.map(Source::number));
        packet.ecn = 2;
    }
    let mut queue = queue([]);
    transmit(&mut queue, &mut packets.into_iter().collect());
    let views: Vec<_> =
        queue.wire.taken.iter().map(|view| (view.from, view.segment, view.class_v4)).collect();
    let from = |last: u8| Some(From::V4([127, 0, 0, last].into(), 3));
    let want = [(from(1), Some(100)), (from(2), None), (None, Some(100)), (from(1), None)];
    assert_eq!(views, want.map(|(from, segment)| (from, segment, Some(2))));
}

/// A super-packet takes its source into each of its messages.
#[test]
fn each_message_of_a_super_packet_has_its_source() {
    let v6: Ipv6Addr = "2001:db8::1".parse().expect("an address");
    let source = Source::new(v6.into(), 9).expect("a number");
    let mut burst: PacketList = super_packet(65_535, 1_000);
    let mut packet = burst.pop_front().expect("one");
    packet.set_source(Some(source.number()));
    let mut queue = queue_on(Route::new(true, None, 0, 0), []);
    transmit(&mut queue, &mut [packet].into_iter().collect());
    let froms: Vec<_> = queue.wire.taken.iter().map(|view| view.from).collect();
    assert_eq!(froms, [Some(From::V6(v6, 9)); 2]);
}

/// What the kernel would ignore becomes an address that it refuses, and no address is written in
/// the family of the message.
#[test]
fn a_source_is_of_the_family_of_its_message() {
    let (v4, v6) = (Ipv4Addr::new(192, 0, 2, 1), Ipv6Addr::LOCALHOST);
    let (any_v4, any_v6) = (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
    let mapped = |addr: Ipv4Addr| From::V6(addr.to_ipv6_mapped(), 5);
    let to_v4: SocketAddr = "[::ffff:192.0.2.9]:1".parse().expect("an address");
    let to_v6: SocketAddr = "[2001:db8::9]:1".parse().expect("an address");
    let plain = Route::new(false, None, 0, 0);
    let dual = Route::new(true, None, 0, 0);
    for (route, name, addr, want) in [
        (plain, None, IpAddr::from(v4), From::V4(v4, 5)),
        (plain, None, v4.to_ipv6_mapped().into(), From::V4(v4, 5)),
        (plain, None, any_v6.into(), From::V4(any_v4, 5)),
        (plain, None, v6.into(), From::V4(Ipv4Addr::BROADCAST, 5)),
        (dual, Some(to_v4), v4.into(), mapped(v4)),
        (dual, Some(to_v4), any_v4.into(), mapped(any_v4)),
        (dual, Some(to_v4), any_v6.into(), mapped(any_v4)),
        (dual, Some(to_v6), v6.into(), From::V6(v6, 5)),
        (dual, Some(to_v6), any_v4.into(), From::V6(any_v6, 5)),
    ] {
        let source = Source::new(addr, 5).expect("a number");
        assert_eq!(route.from(name, Some(source.number())), Some(want), "{name:?} {addr}");
    }
    assert_eq!(plain.from(None, None), None);
}
