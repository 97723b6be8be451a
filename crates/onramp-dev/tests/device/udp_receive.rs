//! The receive side of UDP sockets: what real senders send arrives as IP packets.

use std::io::{ErrorKind, IoSlice};
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::sockopt::ReceiveTimestamp;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg, setsockopt};
use onramp_core::frame::{Datagram, SuperFrame};
use onramp_dev::{Receive, Tap, TapOptions, Udp, UdpReceiver, UdpReceiverOptions};
use onramp_queue::{Layer, PAYLOAD_MAX, Packet, PacketList};
use socket2::{Domain, SockRef, Socket, Type};

use crate::common::{packet, pattern, transmit_all};
use crate::namespace::in_namespace_with_tun;
use crate::tap::{heap, ip, receive, send, start};

fn bound(addr: &str) -> UdpSocket {
    UdpSocket::bind(addr).expect("a port of the loopback is free")
}

fn receiver(addr: &str, options: UdpReceiverOptions) -> UdpReceiver {
    let socket = bound(addr);
    let room = SockRef::from(&socket).set_recv_buffer_size(4 << 20);
    room.expect("the buffer is capped, not refused");
    UdpReceiver::new(socket, options).expect("a fresh socket will do")
}

fn local(receiver: &UdpReceiver) -> SocketAddr {
    receiver.socket().local_addr().expect("it is bound")
}

/// Makes a receiver for IPv4 and IPv6, and returns it with its port.
fn dual() -> (UdpReceiver, u16) {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, None).expect("a socket");
    socket.set_only_v6(false).expect("not bound yet");
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    socket.bind(&any.into()).expect("a port is free");
    let receiver = UdpReceiver::new(socket.into(), UdpReceiverOptions::default());
    let receiver = receiver.expect("a fresh socket will do");
    let port = local(&receiver).port();
    (receiver, port)
}

/// Receives all packets that wait. The loopback interface delivers within the sender's call, so
/// nothing can arrive later.
fn all(receiver: &mut UdpReceiver) -> Vec<Packet> {
    let mut list = PacketList::new();
    while receiver.receive(7, &mut heap, &mut list).expect("nothing is wrong") > 0 {}
    list.collect()
}

/// Checks that a packet is a datagram, or several, and returns what it says.
fn read(packet: &Packet) -> Datagram<'_> {
    assert_eq!(packet.layer(), Layer::Ip);
    assert!(packet.partial_checksum().is_some());
    Datagram::of(packet).expect("a datagram")
}

/// Sends a message from `socket` with its own size of datagrams and its own traffic class.
fn send_as(socket: &UdpSocket, to: SocketAddr, data: &[u8], size: Option<u16>, tos: u8) {
    let (segment, class) = (size.unwrap_or(0), i32::from(tos));
    let mut controls = vec![match to {
        SocketAddr::V4(_) => ControlMessage::Ipv4Tos(&tos),
        SocketAddr::V6(_) => ControlMessage::Ipv6TClass(&class),
    }];
    controls.extend(size.map(|_| ControlMessage::UdpGsoSegments(&segment)));
    let to = SockaddrStorage::from(to);
    let parts = [IoSlice::new(data)];
    sendmsg(socket.as_raw_fd(), &parts, &controls, MsgFlags::empty(), Some(&to)).expect("sent");
}

/// Sends `count` datagrams of 500 bytes.
fn send_all(socket: &UdpSocket, to: SocketAddr, count: usize) {
    for seed in 0..count {
        socket.send_to(&pattern(500, seed), to).expect("it is sent");
    }
}

/// Each datagram comes with the addresses, the ECN bits and the DSCP of its header.
#[test]
fn a_datagram_becomes_a_packet() {
    for (addr, class) in [("127.0.0.1:0", 0xb9), ("[::1]:0", 0x2e << 2 | 3)] {
        let mut receiver = receiver(addr, UdpReceiverOptions::default());
        let (socket, to) = (bound(addr), local(&receiver));
        let lens = [1, 0, 100, 1_452, 1_453, 9_000, 65_487];
        for (seed, len) in lens.into_iter().enumerate() {
            send_as(&socket, to, &pattern(len, seed), None, class);
        }
        let packets = all(&mut receiver);
        assert_eq!(packets.len(), lens.len());
        for (seed, (packet, len)) in packets.iter().zip(lens).enumerate() {
            let datagram = read(packet);
            assert_eq!(datagram.source, socket.local_addr().expect("it is bound"));
            assert_eq!((datagram.destination, datagram.segment), (to, None));
            assert_eq!((datagram.ecn, packet.ecn), (class & 3, class & 3));
            assert!(datagram.data == pattern(len, seed), "datagram {seed}");
            let [first, second, ..] = *packet.payload() else { panic!("a header") };
            let tos = if to.is_ipv4() { second } else { first << 4 | second >> 4 };
            assert_eq!(tos, class);
            assert_eq!(packet.len as usize, packet.payload().len());
            // The class 0xb8 asks for low delay (0x10) and throughput (0x08).
            assert_eq!(packet.priority, 4);
            assert_ne!(packet.flow, 0);
        }
        let stats = receiver.stats();
        assert_eq!((stats.packets.get(), stats.datagrams.get()), (7, 7));
        assert_eq!(stats.bytes.get(), lens.iter().sum::<usize>() as u64);
        assert_eq!((receiver.discarded(), receiver.missed()), (0, 0));
    }
}

/// An IPv6 socket for both families makes IPv4 packets of IPv4 datagrams, with their ECN bits.
#[test]
fn one_socket_receives_both_families() {
    let (mut receiver, port) = dual();
    for (addr, class) in [("127.0.0.1", 3), ("[::1]", 2), ("127.0.0.1", 1)] {
        let socket = bound(&format!("{addr}:0"));
        let to = format!("{addr}:{port}").parse().expect("an address");
        for len in [40, 1_452, 1_470, 1_472, 3_000] {
            send_as(&socket, to, &pattern(len, 0), None, class);
            let packets = all(&mut receiver);
            assert_eq!(packets.len(), 1);
            let datagram = read(&packets[0]);
            assert_eq!(datagram.source, socket.local_addr().expect("it is bound"));
            assert_eq!((datagram.destination, datagram.ecn), (to, class));
            assert!(datagram.data == pattern(len, 0));
        }
    }
    assert_eq!(receiver.discarded(), 0);
}

/// A socket that is bound to all addresses knows to which one a datagram was sent.
#[test]
fn the_destination_is_the_one_that_was_asked() {
    let mut receiver = receiver("0.0.0.0:0", UdpReceiverOptions::default());
    let port = local(&receiver).port();
    let socket = bound("127.0.0.1:0");
    for host in ["127.0.0.1", "127.0.0.2", "127.9.9.9"] {
        let to: SocketAddr = format!("{host}:{port}").parse().expect("an address");
        socket.send_to(b"who", to).expect("it is sent");
        let packets = all(&mut receiver);
        assert_eq!(packets.iter().map(|one| read(one).destination).collect::<Vec<_>>(), [to]);
    }
}

/// The kernel hands over a segmented message of the loopback as one message, if the receiver wants
/// it so, and else as its datagrams.
#[test]
fn several_datagrams_are_one_packet() {
    for (gro, addr) in [(true, "127.0.0.1:0"), (true, "[::1]:0"), (false, "[::1]:0")] {
        for usual in [1_500, u16::MAX] {
            let options = UdpReceiverOptions { gro, usual, ..UdpReceiverOptions::default() };
            let mut receiver = receiver(addr, options);
            assert_eq!(receiver.gro(), gro, "Linux 5.0 has it");
            let (socket, to) = (bound(addr), local(&receiver));
            // 46 datagrams of 1,400 bytes, and a shorter one.
            let data = pattern(46 * 1_400 + 1_000, 3);
            send_as(&socket, to, &data, Some(1_400), 2);
            let packets = all(&mut receiver);
            let expected: &[usize] = if gro { &[47] } else { &[1; 47] };
            let found: Vec<_> = packets.iter().map(|one| read(one).datagrams().count()).collect();
            assert_eq!(found, expected);
            let datagrams =
                packets.iter().flat_map(|one| read(one).datagrams().collect::<Vec<_>>());
            assert!(datagrams.eq(data.chunks(1_400)), "in order");
            for packet in &packets {
                let datagram = read(packet);
                assert_eq!((datagram.source.port(), datagram.destination), (port(&socket), to));
                assert_eq!(datagram.ecn, 2);
                let several = datagram.datagrams().count() > 1;
                assert_eq!(datagram.segment, several.then_some(1_400));
                assert_eq!(SuperFrame::of(packet).is_some(), several);
                assert!(packet.payload().len() <= PAYLOAD_MAX);
            }
            let stats = receiver.stats();
            assert_eq!(stats.packets.get(), expected.len() as u64);
            assert_eq!(stats.datagrams.get(), 47);
            assert_eq!(stats.bytes.get(), data.len() as u64);
        }
    }
}

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().expect("it is bound").port()
}

/// A caller that wants few packets gets the others later, in order.
#[test]
fn a_burst_comes_in_pieces() {
    let mut receiver = receiver("[::1]:0", UdpReceiverOptions::default());
    let (socket, to) = (bound("[::1]:0"), local(&receiver));
    send_all(&socket, to, 100);
    let (mut counts, mut list) = (Vec::new(), PacketList::new());
    for most in [0, 1, 10, 60, 100, 5] {
        counts.push(receiver.receive(most, &mut heap, &mut list).expect("nothing is wrong"));
    }
    assert_eq!((counts, list.len()), (vec![0, 1, 10, 60, 29, 0], 100));
    // 60 packets take two calls of the kernel.
    assert_eq!(receiver.stats().calls.get(), 1 + 1 + 2 + 1 + 1);
    assert!((0..100).zip(list).all(|(seed, packet)| read(&packet).data == pattern(500, seed)));
}

/// Without packets, datagrams stay in the kernel; the packets that were made are used later.
#[test]
fn without_packets_nothing_is_lost() {
    let mut receiver = receiver("127.0.0.1:0", UdpReceiverOptions::default());
    let (socket, to) = (bound("127.0.0.1:0"), local(&receiver));
    send_all(&socket, to, 5);
    let mut list = PacketList::new();
    let mut asked = Vec::new();
    let mut none = |size| {
        asked.push(size);
        None
    };
    assert_eq!(receiver.receive(10, &mut none, &mut list).expect("nothing is wrong"), 0);
    let mut left = 3;
    let mut few = |size: usize| {
        left -= 1;
        (left >= 0).then(|| heap(size)).flatten()
    };
    assert_eq!(receiver.receive(10, &mut few, &mut list).expect("nothing is wrong"), 3);
    assert_eq!(receiver.receive(10, &mut heap, &mut list).expect("nothing is wrong"), 2);
    assert_eq!(asked, [1_500]);
    assert!((0..5).zip(list).all(|(seed, packet)| read(&packet).data == pattern(500, seed)));
    // Eight packets are left over, and serve the next datagrams.
    send_all(&socket, to, 8);
    let mut list = PacketList::new();
    let received = receiver.receive(8, &mut |_| panic!("there are packets"), &mut list);
    assert_eq!(received.expect("nothing is wrong"), 8);
    assert_eq!((receiver.discarded(), receiver.missed()), (0, 0));
}

/// A message for which `make` has no packet that is large enough is discarded and counted, never
/// cut short.
#[test]
fn too_little_room_is_counted() {
    let mut receiver = receiver("127.0.0.1:0", UdpReceiverOptions::default());
    let (socket, to) = (bound("127.0.0.1:0"), local(&receiver));
    for len in [100, 1_472, 1_473, 4_000, 100] {
        socket.send_to(&pattern(len, 0), to).expect("it is sent");
    }
    let mut list = PacketList::new();
    let mut small = |size: usize| if size <= 1_500 { heap(size) } else { None };
    assert_eq!(receiver.receive(5, &mut small, &mut list).expect("nothing is wrong"), 3);
    let lens: Vec<_> = list.map(|packet| read(&packet).data.len()).collect();
    assert_eq!((lens, receiver.discarded()), (vec![100, 1_472, 100], 2));
    assert_eq!(receiver.stats().no_room.get(), 2);
    // Packets with less room than was asked for are no reason to lose anything.
    socket.send_to(&pattern(400, 0), to).expect("it is sent");
    while receiver.receive(1, &mut heap, &mut PacketList::new()).expect("nothing is wrong") > 0 {}
    let mut tiny = |size: usize| heap(if size == 1_500 { 10 } else { size });
    let mut list = PacketList::new();
    for _ in 0..4 {
        socket.send_to(&pattern(400, 0), to).expect("it is sent");
        receiver.receive(1, &mut tiny, &mut list).expect("nothing is wrong");
    }
    assert!(list.all(|packet| read(&packet).data == pattern(400, 0)));
    assert_eq!(receiver.discarded(), 2);
    let mut list = PacketList::new();
    socket.send_to(&pattern(400, 0), to).expect("it is sent");
    receiver.receive(1, &mut |_| heap(400), &mut list).expect("nothing is wrong");
    assert_eq!((list.len(), receiver.discarded()), (0, 3), "28 bytes are missing");
}

/// A socket whose owner asks the kernel to tell more than there is room for gets no packets whose
/// sizes are guessed.
#[test]
fn other_options_of_the_socket_do_no_harm() {
    let receiver = &mut receiver("127.0.0.1:0", UdpReceiverOptions::default());
    setsockopt(receiver.socket(), ReceiveTimestamp, &true).expect("it can");
    let (socket, to) = (bound("127.0.0.1:0"), local(receiver));
    send_as(&socket, to, &pattern(5_000, 0), Some(1_000), 1);
    let packets = all(receiver);
    let datagram = read(&packets[0]);
    assert_eq!((datagram.segment, datagram.ecn, datagram.destination), (Some(1_000), 1, to));
}

/// A port that refuses a datagram ends no receiver: the error is counted, also in front of
/// datagrams that wait.
#[test]
fn a_refusal_is_counted() {
    for addr in ["127.0.0.1:0", "[::1]:0"] {
        let (peer, socket) = (bound(addr), bound(addr));
        let (here, there) =
            (socket.local_addr().expect("it is bound"), peer.local_addr().expect("it is bound"));
        socket.connect(there).expect("the loopback is up");
        let mut receiver =
            UdpReceiver::new(socket, UdpReceiverOptions::default()).expect("it is bound");
        peer.send_to(b"before", here).expect("it is sent");
        drop(peer);
        receiver.socket().send(b"is anybody there").expect("the error comes later");
        let packets = all(&mut receiver);
        assert_eq!(packets.iter().map(|one| read(one).data).collect::<Vec<_>>(), [b"before"]);
        assert_eq!(receiver.stats().icmp_errors.get(), 1);
        let peer = UdpSocket::bind(there).expect("it was free a moment ago");
        peer.send_to(b"behind", here).expect("it is sent");
        assert_eq!(all(&mut receiver).len(), 1);
    }
}

/// What the kernel dropped because nobody received it is counted, from the receiver's beginning on.
#[test]
fn missed_datagrams_are_counted() {
    let socket = bound("127.0.0.1:0");
    SockRef::from(&socket).set_recv_buffer_size(1 << 14).expect("it may be small");
    let (sender, to) = (bound("127.0.0.1:0"), socket.local_addr().expect("it is bound"));
    let flood = || send_all(&sender, to, 200);
    flood();
    let mut receiver =
        UdpReceiver::new(socket, UdpReceiverOptions::default()).expect("it is bound");
    assert_eq!(receiver.missed(), 0, "the drops were before");
    let before = all(&mut receiver).len() as u64;
    for round in 1..3 {
        flood();
        let missed = receiver.missed();
        assert!(missed > 0);
        let received = all(&mut receiver).len() as u64;
        assert_eq!(receiver.stats().packets.get() - before + missed, round * 200);
        assert!(received > 0);
        assert_eq!((receiver.missed(), receiver.stats().missed.get()), (missed, missed));
    }
}

/// The receiver's descriptor can be waited for, and reports a socket that is none.
#[test]
fn the_descriptor_is_readable() {
    let mut receiver = receiver("127.0.0.1:0", UdpReceiverOptions::default());
    let readable = |receiver: &UdpReceiver| {
        let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(receiver), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).expect("it looks") == 1
    };
    assert!(!readable(&receiver));
    bound("127.0.0.1:0").send_to(b"x", local(&receiver)).expect("it is sent");
    assert!(readable(&receiver));
    assert_eq!(all(&mut receiver).len(), 1);
    assert!(!readable(&receiver));
    // A descriptor that is no UDP socket.
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let other = UdpSocket::from(std::os::fd::OwnedFd::from(tcp));
    if let Ok(mut receiver) = UdpReceiver::new(other, UdpReceiverOptions::default()) {
        let error = receiver.receive(1, &mut heap, &mut PacketList::new());
        assert_eq!(error.expect_err("nothing can be received").kind(), ErrorKind::NotConnected);
    }
    let unbound = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
    let error = UdpReceiver::new(unbound.into(), UdpReceiverOptions::default());
    let error = error.expect_err("it has no port");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("bind it first"), "{error}");
}

/// A device and its receiver share one socket.
#[test]
fn a_device_and_its_receiver_talk_to_another() {
    let bind = || Udp::bind("127.0.0.1:0".parse().expect("an address")).expect("a port is free");
    let (mut left, mut right) = (bind(), bind());
    let addr = |udp: &Udp| udp.socket().local_addr().expect("it is bound");
    let (here, there) = (addr(&left), addr(&right));
    let mut questions = right.receiver().expect("a socket will do");
    let mut answers = left.receiver().expect("a socket will do");
    transmit_all(&mut left, (0..20).map(|seed| packet(Some(there), 1, 500, seed)).collect());
    let packets = all(&mut questions);
    assert_eq!(packets.len(), 1, "sent as one message, received as one");
    let datagram = read(&packets[0]);
    assert_eq!((datagram.source, datagram.datagrams().count()), (here, 20));
    let echo = datagram.datagrams().map(|data| {
        let mut answer = Packet::with_payload(data);
        answer.set_dest(Some(datagram.source));
        answer
    });
    transmit_all(&mut right, echo.collect());
    let packets = all(&mut answers);
    let data: Vec<_> =
        packets.iter().flat_map(|one| read(one).datagrams().collect::<Vec<_>>()).collect();
    assert!((0..20).map(|seed| pattern(500, seed)).eq(data.iter().copied()));
}

/// What a receiver got passes through a TUN into a network namespace, where a socket reads the same
/// bytes. The kernel cuts a packet of several datagrams.
#[test]
fn packets_pass_through_a_tun() {
    let set_up = [
        "ip link set lo up",
        "ip addr add 192.0.2.1/32 dev lo",
        "ip addr add 192.0.2.9/32 dev lo",
        "ip addr add 2001:db8::1/128 dev lo nodad",
        "ip addr add 2001:db8::9/128 dev lo nodad",
    ];
    in_namespace_with_tun("udp_receive::packets_pass_through_a_tun", &set_up, || {
        for offload in [true, false] {
            let (give, take) = mpsc::channel();
            let (end, ended) = mpsc::channel::<()>();
            let thread = start(move || {
                unshare(CloneFlags::CLONE_NEWNET).expect("root in its namespace may");
                give.send(far_end(offload)).expect("it is awaited");
                ended.recv().expect_err("nothing is sent");
            });
            let (mut device, sockets) = take.recv().expect("it opens");
            for (there, from) in sockets.iter().zip(["192.0.2.9:0", "[2001:db8::9]:0"]) {
                let to = there.local_addr().expect("it is bound");
                drop(reachable(&to.to_string()));
                let mut receiver = receiver(&to.to_string(), UdpReceiverOptions::default());
                let from = reachable(from);
                send_as(&from, to, &pattern(700, 1), None, 2);
                send_as(&from, to, &pattern(10_100, 2), Some(1_000), 2);
                let one = receive(&mut receiver, |_| true);
                send(&mut device, one);
                let several = receive(&mut receiver, |_| true);
                assert_eq!(read(&several).segment, Some(1_000));
                send(&mut device, several);
                let mut expected = vec![pattern(700, 1)];
                expected.extend(pattern(10_100, 2).chunks(1_000).map(<[u8]>::to_vec));
                for data in expected {
                    let mut buffer = vec![0; 1 << 16];
                    let (len, source) = there.recv_from(&mut buffer).expect("it comes");
                    assert!(buffer[..len] == data, "{len} bytes to {to}, offload {offload}");
                    assert_eq!(source, from.local_addr().expect("it is bound"));
                }
            }
            drop(end);
            thread.join().expect("it ends");
        }
    });
}

/// Opens a TUN in the calling thread's network namespace, and sockets behind it whose addresses are
/// those to which the datagrams are sent.
fn far_end(offload: bool) -> (Tap, [UdpSocket; 2]) {
    let options = TapOptions { layer: Layer::Ip, offload, ..TapOptions::default() };
    let device = Tap::open("x0", options).expect("root in its namespace may");
    for line in [
        "link set lo up",
        "link set x0 up",
        "addr add 192.0.2.1/24 dev x0",
        "addr add 2001:db8::1/64 dev x0 nodad",
    ] {
        ip(line);
    }
    let sockets = ["192.0.2.1:7001", "[2001:db8::1]:7001"].map(|addr| {
        let socket = reachable(addr);
        socket.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        socket
    });
    (device, sockets)
}

/// Binds a socket to an address that this host has got a moment ago. The kernel makes the route to
/// a new IPv6 address a little later; without it, the socket cannot even reach itself.
fn reachable(addr: &str) -> UdpSocket {
    let socket = bound(addr);
    let itself = socket.local_addr().expect("it is bound");
    socket.set_nonblocking(true).expect("it can");
    while socket.recv(&mut [0]).is_err() {
        // Without the route, this may fail, or the datagram goes elsewhere.
        let _ = socket.send_to(b"x", itself);
        thread::yield_now();
    }
    socket.set_nonblocking(false).expect("it can");
    socket
}
