//! UDP devices on this machine's loopback: the packets that arrive are the packets that were sent.

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::sockopt::{IpRecvTos, Ipv6RecvTClass, UdpGsoSegment};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use onramp_core::{Device, Instant};
use onramp_dev::{Udp, UdpOptions};
use onramp_queue::{DropReason, Packet};

use crate::common::{Sink, packet, pattern, transmit, transmit_all};

const LOCALHOSTS: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

fn connected(sink: &Sink, options: UdpOptions) -> Udp {
    let any = if sink.addr().is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
    let socket = UdpSocket::bind(any).expect("a port is free");
    socket.connect(sink.addr()).expect("the loopback is up");
    Udp::new(socket, options).expect("a fresh socket will do")
}

fn unconnected(sink: &Sink) -> Udp {
    let any = if sink.addr().is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
    Udp::bind(any.parse().expect("an address")).expect("a port is free")
}

/// Receives datagrams and checks that they have these lengths and the payloads that `packet` makes
/// with the seeds 0, 1, and so on.
fn expect(sink: &Sink, lens: &[usize]) {
    for (seed, &len) in lens.iter().enumerate() {
        let payload = sink.recv();
        let as_sent = payload == pattern(len, seed);
        assert!(as_sent, "datagram {seed} of {len} bytes; {} arrived", payload.len());
    }
    sink.assert_empty();
}

fn run(dest: Option<SocketAddr>, lens: &[usize]) -> Vec<Packet> {
    lens.iter().enumerate().map(|(seed, &len)| packet(dest, 1, len, seed)).collect()
}

#[test]
fn a_run_of_one_flow_is_one_message() {
    for addr in LOCALHOSTS {
        let sink = Sink::bind(addr);
        for mut udp in [connected(&sink, UdpOptions::default()), unconnected(&sink)] {
            let lens = [120; 32];
            let out = transmit_all(&mut udp, run(Some(sink.addr()), &lens));
            assert_eq!((out.calls, out.messages), (1, 1));
            expect(&sink, &lens);
            let stats = udp.stats();
            assert_eq!((stats.messages.get(), stats.segments.get()), (1, 32));
            assert_eq!((stats.gso_messages.get(), stats.calls.get()), (1, 1));
            assert_eq!(stats.bytes.get(), 32 * 120);
            assert_eq!(stats.segments_per_message[5].get(), 1);
        }
    }
}

#[test]
fn the_last_of_a_message_may_be_shorter() {
    for addr in LOCALHOSTS {
        let sink = Sink::bind(addr);
        let mut udp = unconnected(&sink);
        let lens = [500, 500, 100, 500, 500, 600, 600, 1];
        let out = transmit_all(&mut udp, run(Some(sink.addr()), &lens));
        assert_eq!((out.calls, out.messages), (1, 3));
        expect(&sink, &lens);
    }
}

#[test]
fn long_runs_are_cut_at_the_limit_of_the_kernel() {
    let sink = Sink::bind("127.0.0.1:0");
    let mut udp = connected(&sink, UdpOptions::default());
    let most = udp.segments_max();
    let other = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    setsockopt(&other, UdpGsoSegment, &1).expect("Linux 4.18 has it");
    let takes = |count| other.send_to(&vec![0; count], other.local_addr().expect("it is bound"));
    assert!(takes(most.into()).is_ok() && takes(usize::from(most) + 1).is_err(), "{most}");
    for count in [63, 64, 65, 127, 128, 129, 300] {
        let lens = vec![10; count];
        let out = transmit_all(&mut udp, run(None, &lens));
        assert_eq!(out.messages as usize, count.div_ceil(most.into()));
        assert_eq!(out.calls, 1);
        expect(&sink, &lens);
    }
    assert_eq!(udp.stats().gso_fallbacks.get(), 0);
}

#[test]
fn more_messages_than_fit_a_call_take_several() {
    let sink = Sink::bind("127.0.0.1:0");
    let mut udp = connected(&sink, UdpOptions { gso: false, ..UdpOptions::default() });
    assert_eq!(udp.segments_max(), 1);
    let lens = [10; 600];
    let out = transmit_all(&mut udp, run(None, &lens));
    assert_eq!((out.calls, out.messages), (3, 600));
    expect(&sink, &lens);
    assert_eq!((udp.stats().gso_messages.get(), udp.stats().gso_off.get()), (0, 1));
}

#[test]
fn an_error_of_an_earlier_packet_condemns_no_other() {
    // The socket `deaf` is connected to another address than that of the device's socket. So the
    // kernel refuses the device's datagrams, and `deaf` keeps other programs from using the port.
    let deaf = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    deaf.connect("127.0.0.1:9").expect("the loopback is up");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    socket.connect(deaf.local_addr().expect("it is bound")).expect("the loopback is up");
    let mut udp = Udp::new(socket, UdpOptions::default()).expect("a fresh socket will do");
    // On the loopback interface, the ICMP error of a datagram comes back before the send ends. So
    // every send but the first gets the error of the message before. The device then offers its
    // message again, and the kernel sends it.
    for _ in 0..3 {
        transmit_all(&mut udp, vec![packet(None, 1, 50, 0)]);
    }
    let stats = udp.stats();
    assert_eq!((stats.calls.get(), stats.messages.get(), stats.earlier_errors.get()), (5, 3, 2));
    // Within one call of `sendmmsg`, the kernel stops at a message if an ICMP error of an earlier
    // message is pending, and does not report the error.
    transmit_all(&mut udp, (0..3).map(|flow| packet(None, flow, 50, 0)).collect());
    assert_eq!((stats.messages.get(), stats.cut_short.get()), (6, 2));
}

#[test]
fn a_payload_beyond_what_udp_carries_is_dropped_alone() {
    let sink = Sink::bind("127.0.0.1:0");
    let mut udp = connected(&sink, UdpOptions::default());
    let outcome = transmit(&mut udp, run(None, &[10, 65_508, 65_507]), Instant(1));
    let reasons: Vec<_> = outcome.done.iter().map(|&(_, reason)| reason).collect();
    assert_eq!(reasons, [None, Some(DropReason::MessageSize), None]);
    assert_eq!(sink.recv(), pattern(10, 0));
    assert!(sink.recv() == pattern(65_507, 2));
    sink.assert_empty();
}

#[test]
fn the_name_says_where() {
    let sink = Sink::bind("127.0.0.1:0");
    let udp = connected(&sink, UdpOptions::default());
    let local = udp.socket().local_addr().expect("it is bound");
    assert_eq!(udp.info().name, format!("udp {local} to {}", sink.addr()));
    assert_eq!(udp.info().mtu, 65_535 + 14, "of lo, as far as IPv4 can use it");
}

#[test]
fn alternating_flows_go_out_in_order_in_one_call() {
    let sinks = [Sink::bind("127.0.0.1:0"), Sink::bind("127.0.0.1:0")];
    let mut udp = unconnected(&sinks[0]);
    let packets = (0..40).map(|seed| packet(Some(sinks[seed % 2].addr()), 0, 100, seed)).collect();
    let out = transmit_all(&mut udp, packets);
    assert_eq!((out.calls, out.messages), (1, 40));
    for seed in 0..40 {
        assert_eq!(sinks[seed % 2].recv(), pattern(100, seed));
    }
    // In the second burst, ten packets in a row go to the same sink, so the device sends each ten
    // as one segmented message.
    let packets =
        (0..40).map(|seed| packet(Some(sinks[seed / 10 % 2].addr()), 0, 100, seed)).collect();
    let out = transmit_all(&mut udp, packets);
    assert_eq!((out.calls, out.messages), (1, 4));
    for seed in 0..40 {
        assert_eq!(sinks[seed / 10 % 2].recv(), pattern(100, seed));
    }
    sinks.iter().for_each(Sink::assert_empty);
}

#[test]
fn payloads_of_every_size_arrive() {
    for addr in LOCALHOSTS {
        let sink = Sink::bind(addr);
        for mut udp in [connected(&sink, UdpOptions::default()), unconnected(&sink)] {
            for lens in [&[65_507][..], &[0], &[0, 0, 5, 0], &[32_753, 32_753, 1], &[1; 40]] {
                transmit_all(&mut udp, run(Some(sink.addr()), lens));
                expect(&sink, lens);
            }
            assert_eq!(udp.stats().gso_fallbacks.get(), 0);
        }
    }
}

#[test]
fn super_packets_arrive_as_their_datagrams() {
    for addr in LOCALHOSTS {
        let sink = Sink::bind(addr);
        for gso in [true, false] {
            let mut udp = connected(&sink, UdpOptions { gso, ..UdpOptions::default() });
            for (len, size) in [(10_100, 1_000), (1_000, 1_000), (999, 1_000), (300, 1)] {
                let mut pkt = packet(None, 1, len, 0);
                pkt.gso_size = size;
                transmit_all(&mut udp, vec![pkt]);
                for chunk in pattern(len, 0).chunks(size.into()) {
                    assert_eq!(sink.recv(), chunk);
                }
                sink.assert_empty();
            }
        }
    }
}

/// Returns the ECN field of the next datagram that the socket receives.
fn recv_ecn(socket: &UdpSocket) -> u8 {
    let mut bytes = [0; 100];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut control = nix::cmsg_space!(i32);
    let flags = MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)
        .expect("loopback delivers within the sender's call");
    let controls = message.cmsgs().expect("they fit").collect::<Vec<_>>();
    match controls[..] {
        [ControlMessageOwned::Ipv4Tos(class)] => class & 3,
        [ControlMessageOwned::Ipv6TClass(class)] => class.to_le_bytes()[0] & 3,
        _ => panic!("one class is reported: {controls:?}"),
    }
}

#[test]
fn the_code_point_arrives() {
    for (from, to) in [
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("[::1]:0", "[::1]:0"),
        // A dual-stack (IPv6) socket that sends IPv4 packets.
        ("[::]:0", "127.0.0.1:0"),
    ] {
        let socket = UdpSocket::bind(to).expect("a port is free");
        let dest = socket.local_addr().expect("it is bound");
        if dest.is_ipv6() {
            setsockopt(&socket, Ipv6RecvTClass, &true).expect("Linux reports the class");
        } else {
            setsockopt(&socket, IpRecvTos, &true).expect("Linux reports the class");
        }
        let mut udp = Udp::bind(from.parse().expect("an address")).expect("a port is free");
        for ecn in [1, 2, 3, 0] {
            let stamp = |seed| {
                let mut pkt = packet(Some(dest), 1, 50, seed);
                pkt.ecn = ecn;
                pkt
            };
            let out = transmit_all(&mut udp, (0..3).map(stamp).collect());
            assert_eq!(out.messages, 1, "a code point is no obstacle to segmentation");
            for _ in 0..3 {
                assert_eq!(recv_ecn(&socket), ecn, "{from} to {dest}");
            }
        }
    }
}

#[test]
fn a_dual_stack_socket_reaches_both_families() {
    let sinks = LOCALHOSTS.map(Sink::bind);
    let mut udp = Udp::bind("[::]:0".parse().expect("an address")).expect("a port is free");
    let packets =
        (0..20).map(|seed| packet(Some(sinks[seed / 5 % 2].addr()), 1, 80, seed)).collect();
    assert_eq!(transmit_all(&mut udp, packets).messages, 4);
    for seed in 0..20 {
        assert_eq!(sinks[seed / 5 % 2].recv(), pattern(80, seed));
    }
}

/// Sends one packet to each of `dests`, and returns the drop reason of each.
fn fates<const N: usize>(udp: &mut Udp, dests: [Option<&str>; N]) -> [Option<DropReason>; N] {
    let packets = dests
        .iter()
        .map(|dest| packet(dest.map(|dest| dest.parse().expect("an address")), 1, 10, 0))
        .collect();
    let outcome = transmit(udp, packets, Instant(1));
    std::array::from_fn(|at| outcome.done[at].1)
}

#[test]
fn bad_destinations_fail_alone() {
    let sink = Sink::bind("127.0.0.1:0");
    let good = sink.addr().to_string();
    let mut udp = unconnected(&sink);
    let failed = Some(DropReason::DeviceError);
    // These packets cannot be sent: to port zero, to an address of another family, without a
    // destination from a socket without a peer, and to a broadcast address without permission.
    let dests = [
        Some(good.as_str()),
        Some("127.0.0.1:0"),
        Some(&good),
        Some("[::1]:9"),
        None,
        Some("127.255.255.255:9"),
        Some(&good),
    ];
    let forbidden = Some(DropReason::NoPermission);
    assert_eq!(fates(&mut udp, dests), [None, failed, None, failed, failed, forbidden, None]);
    for _ in 0..3 {
        assert_eq!(sink.recv(), pattern(10, 0));
    }
    sink.assert_empty();
}

#[test]
fn the_source_is_the_socket_and_it_still_receives() {
    let sink = Sink::bind("127.0.0.1:0");
    let mut udp = unconnected(&sink);
    transmit_all(&mut udp, run(Some(sink.addr()), &[5]));
    let (_, from) = sink.recv_from();
    assert_eq!(Ok(from), udp.socket().local_addr().map_err(drop));
    let mut back = unconnected(&sink);
    transmit_all(&mut back, run(Some(from), &[7]));
    let mut bytes = [0; 100];
    assert_eq!(udp.socket().recv(&mut bytes).expect("it is there"), 7);
}

#[test]
fn transmit_times_are_taken_where_the_kernel_has_them() {
    let sink = Sink::bind("127.0.0.1:0");
    let mut udp = connected(&sink, UdpOptions { txtime: true, ..UdpOptions::default() });
    // On Linux 4.19 and later, setting `SO_TXTIME` with the clock `CLOCK_MONOTONIC` never fails.
    assert!(udp.txtime());
    assert!(!connected(&sink, UdpOptions::default()).txtime());
    let mut packets = run(None, &[100; 4]);
    packets[1].txtime_ns = u64::MAX / 4;
    assert_eq!(transmit_all(&mut udp, packets).messages, 3);
    expect(&sink, &[100; 4]);
}

#[test]
fn lengths_on_the_wire_are_those_of_linux() {
    assert_eq!(Udp::wire_len(120, false), 120 + 8 + 20 + 14);
    assert_eq!(Udp::wire_len(120, true), 120 + 8 + 40 + 14);
    assert_eq!(Udp::wire_len(0, false), 42);
    assert_eq!(Udp::wire_len_gso(1_000, 100, false), 1_000 + 10 * 42);
    assert_eq!(Udp::wire_len_gso(1_001, 100, true), 1_001 + 11 * 62);
    assert_eq!(Udp::wire_len_gso(1_001, 0, false), Udp::wire_len(1_001, false));
    assert_eq!(Udp::wire_len_gso(0, 100, false), Udp::wire_len(0, false));
}

#[test]
fn the_mtu_of_an_unconnected_socket_is_what_the_caller_says() {
    let bind = || UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    let default = Udp::new(bind(), UdpOptions::default()).expect("a fresh socket will do");
    assert_eq!(default.info().mtu, 1_514);
    let options = UdpOptions { mtu: 9_014, ..UdpOptions::default() };
    assert_eq!(Udp::new(bind(), options).expect("as above").info().mtu, 9_014);
}

#[test]
fn an_address_that_cannot_be_had_is_an_error_that_says_so() {
    let taken = Sink::bind("127.0.0.1:0");
    let error = Udp::bind(taken.addr()).expect_err("it is taken").to_string();
    assert!(
        error.starts_with(&format!("cannot bind a UDP socket to {}: ", taken.addr())),
        "{error}"
    );
    assert!(error.ends_with("; choose another port, or port 0 for any free one"), "{error}");
    let foreign = Udp::bind("192.0.2.1:0".parse().expect("an address"));
    let error = foreign.expect_err("it is for documentation only (RFC 5737)").to_string();
    assert!(error.ends_with("; choose an address of this machine"), "{error}");
}

/// A packet that cannot be joined with others is a message by itself. The device sends it with
/// `sendto` if it carries no control message, and with `sendmmsg` if it carries a code point; both
/// ways deliver the packet unchanged.
#[test]
fn a_lone_packet_arrives_with_and_without_a_code_point() {
    for (connects, ecn) in [(true, 0), (true, 2), (false, 0), (false, 3)] {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
        setsockopt(&socket, IpRecvTos, &true).expect("Linux reports the class");
        let addr = socket.local_addr().expect("it is bound");
        let from = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
        if connects {
            from.connect(addr).expect("the loopback is up");
        }
        let mut udp = Udp::new(from, UdpOptions::default()).expect("a fresh socket will do");
        for dest in [Some(addr), None] {
            if dest.is_none() && !connects {
                continue;
            }
            let mut pkt = packet(dest, 1, 50, 0);
            pkt.ecn = ecn;
            let out = transmit_all(&mut udp, vec![pkt]);
            assert_eq!((out.calls, out.messages), (1, 1));
            assert_eq!(recv_ecn(&socket), ecn, "connected {connects}, to {dest:?}");
        }
    }
}

/// Two payloads too large to be copied together become two parts of one message.
#[test]
fn a_message_of_two_parts_arrives_whole() {
    let sink = Sink::bind("127.0.0.1:0");
    let mut udp = connected(&sink, UdpOptions::default());
    assert_eq!(transmit_all(&mut udp, run(None, &[600, 600])).messages, 1);
    expect(&sink, &[600, 600]);
    // A super-packet (of several datagrams) is one part of memory, which the kernel cuts into
    // datagrams.
    let mut pkt = packet(None, 1, 600, 0);
    pkt.gso_size = 300;
    assert_eq!(transmit_all(&mut udp, vec![pkt]).messages, 1);
    let whole = pattern(600, 0);
    assert_eq!((sink.recv(), sink.recv()), (whole[..300].to_vec(), whole[300..].to_vec()));
    sink.assert_empty();
}

/// A single datagram, which is offered with `sendto`, can be refused. The device then offers it
/// once more before dropping it.
#[test]
fn a_lone_packet_that_is_refused_says_why() {
    let sink = Sink::bind("127.0.0.1:0");
    let mut udp = connected(&sink, UdpOptions::default());
    let outcome = transmit(&mut udp, run(None, &[65_508]), Instant(1));
    assert_eq!(outcome.done, [(0, Some(DropReason::MessageSize))]);
    assert_eq!(outcome.out.calls, 2, "offered again, as it may be an earlier packet's error");
}

#[test]
fn the_path_to_this_machine_is_that_of_its_loopback() {
    for addr in LOCALHOSTS {
        let sink = Sink::bind(addr);
        // The loopback interface has an MTU of 65,536 bytes. The 16-bit length field of an IPv4
        // packet allows one byte less.
        let expected = if sink.addr().is_ipv6() { 65_536 } else { 65_535 };
        // `path_mtu` must not depend on a free port 1, so occupy port 1 if this process may do so.
        let first = SocketAddr::new(sink.addr().ip(), 1);
        let _first = UdpSocket::bind(first);
        assert_eq!(Udp::path_mtu(sink.addr()), Some(expected));
        let udp = connected(&sink, UdpOptions::default());
        assert_eq!((udp.info().mtu, udp.info().may_block), (expected + 14, false));
    }
}

#[test]
fn a_device_that_is_not_connected_is_named_by_its_address() {
    let udp = Udp::bind("127.0.0.1:0".parse().expect("an address")).expect("a port is free");
    let local = udp.socket().local_addr().expect("it is bound");
    assert_eq!(udp.info().name, format!("udp {local}"));
    assert_eq!((udp.txtime(), udp.stats().gso_off.get()), (false, 0));
    assert_eq!(udp.info().mtu, UdpOptions::default().mtu);
}
