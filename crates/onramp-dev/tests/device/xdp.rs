//! Tests of AF_XDP on veth pairs: the kernel's own stack is at the other end of each.

mod edges;
mod forward;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use onramp_core::{Clock as _, Device, Instant};
use onramp_dev::{Attach, Copying, MonotonicClock, Receive, Xdp, XdpOptions, XdpReceiver};
use onramp_queue::{DropReason, Layer, Packet, PacketList};

use crate::common::in_child;
use crate::namespace::{in_namespace, in_namespace_of_root};

/// How long a test waits for something that has to happen.
const PATIENCE_NS: u64 = 120_000_000_000;

/// A veth pair: `x0` for AF_XDP, `x1` for the kernel, which knows a neighbour 192.0.2.2.
const PAIR: [&str; 7] = [
    "ip link add x0 mtu 1500 type veth peer name x1 mtu 1500",
    "ip link set x0 address 02:00:00:00:00:02",
    "ip link set x1 address 02:00:00:00:00:01",
    "ip link set x0 up",
    "ip link set x1 up",
    "ip addr add 192.0.2.1/24 dev x1",
    "ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev x1",
];

fn ip(line: &str) -> String {
    let output = Command::new("ip").args(line.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn heap(bytes: usize) -> Option<Packet> {
    Some(Packet::with_capacity(bytes.try_into().expect("a frame")))
}

fn wait(receivers: &[&XdpReceiver], ms: u16) {
    let mut fds: Vec<_> =
        receivers.iter().map(|of| PollFd::new(of.as_fd(), PollFlags::POLLIN)).collect();
    poll(&mut fds, PollTimeout::from(ms)).expect("it waits");
}

/// Waits until a UDP packet comes, and returns it.
fn receive(receiver: &mut XdpReceiver) -> Packet {
    let end = MonotonicClock.now().after(PATIENCE_NS);
    loop {
        let mut list = PacketList::new();
        receiver.receive(1, &mut heap, &mut list).expect("the interface is up");
        match list.pop_front() {
            Some(packet) if packet.payload().get(23) == Some(&17) => return packet,
            Some(_) => {}
            None => wait(&[receiver], 1_000),
        }
        assert!(MonotonicClock.now() < end, "no packet came");
    }
}

/// Sends packets, however often the device has to be called. Returns their drop reasons.
fn send(xdp: &mut Xdp, packets: impl IntoIterator<Item = Packet>) -> Vec<Option<DropReason>> {
    let (mut burst, mut done) = (PacketList::from_iter(packets), PacketList::new());
    let end = MonotonicClock.now().after(PATIENCE_NS);
    loop {
        let out = xdp.transmit(&mut burst, &mut done, MonotonicClock.now());
        assert_eq!(out.retry_at.is_some(), !burst.is_empty(), "what is left is asked for again");
        if burst.is_empty() {
            return done.metas().map(|meta| meta.drop_reason).collect();
        }
        assert!(MonotonicClock.now() < end, "{} packets are left", burst.len());
        thread::yield_now();
    }
}

/// An Ethernet frame with an IPv4 packet with this UDP payload, without a UDP checksum.
fn udp(data: &[u8]) -> Packet {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    let mut bytes = Vec::new();
    let builder = builder.ipv4([192, 0, 2, 2], [192, 0, 2, 1], 64).udp(7_001, 7_000);
    builder.write(&mut bytes, data).expect("a vector takes everything");
    let mut packet = Packet::with_payload(&bytes);
    packet.set_layer(Layer::Ethernet);
    packet.len = bytes.len().try_into().expect("a frame");
    packet
}

#[test]
fn frames_go_both_ways() {
    in_namespace_of_root("xdp::frames_go_both_ways", &PAIR, || {
        for attach in [Attach::Driver, Attach::Generic] {
            let options = XdpOptions { attach, ..XdpOptions::default() };
            let mut xdp = Xdp::open("x0", 0, options).expect("root in its namespace may");
            assert_eq!((xdp.info().mtu, xdp.zero_copy()), (1_514, false));
            let mut receiver = xdp.receiver().expect("it receives");
            assert!(xdp.receiver().is_none(), "there is one");
            let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of x1");
            socket.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
            socket.send_to(b"a question", "192.0.2.2:7001").expect("it is sent");
            let mut packet = receive(&mut receiver);
            assert_eq!((packet.payload().len(), packet.len), (52, 52));
            // The kernel has left the checksum to x1, which is no card.
            assert!(packet.partial_checksum().is_some());
            let bytes = packet.payload_mut();
            for (one, other, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
                (0..len).for_each(|byte| bytes.swap(one + byte, other + byte));
            }
            assert_eq!(send(&mut xdp, [packet]), [None]);
            let mut buffer = [0; 100];
            let (len, from) = socket.recv_from(&mut buffer).expect("the answer");
            assert_eq!(
                (&buffer[..len], from.to_string()),
                (&b"a question"[..], "192.0.2.2:7001".into())
            );
            // More than the ring holds: each comes, in order.
            let count = 3 * options.frames;
            let reading = thread::Builder::new().spawn(move || {
                let mut last = None;
                for _ in 0..100 {
                    let mut number = [0; 4];
                    socket.recv(&mut number).expect("a datagram");
                    let number = Some(u32::from_le_bytes(number));
                    assert!(number > last, "{number:?} after {last:?}");
                    last = number;
                }
            });
            let packets = (0..count).map(|number: u32| udp(&number.to_le_bytes()));
            assert!(send(&mut xdp, packets).iter().all(Option::is_none));
            reading.expect("a thread").join().expect("in order");
            assert_eq!(xdp.stats().frames.get(), u64::from(count) + 1);
            assert!(ip("-d link show x0").contains("xdp"));
            drop((xdp, receiver));
            assert!(!ip("-d link show x0").contains("prog/xdp"), "the program is detached");
        }
    });
}

/// A child that drops its copies takes no frame, and the parent sends and receives as before.
#[test]
fn a_child_leaves_the_traffic_to_its_parent() {
    in_namespace_of_root("xdp::a_child_leaves_the_traffic_to_its_parent", &PAIR, || {
        let options = XdpOptions { frames: 8, ..XdpOptions::default() };
        let mut xdp = Xdp::open("x0", 0, options).expect("root in its namespace may");
        let mut receiver = Some(xdp.receiver().expect("it receives"));
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of x1");
        let say = |bytes: &[u8]| {
            socket.send_to(bytes, "192.0.2.2:7001").expect("it is sent");
        };
        say(b"before");
        let sent = send(&mut xdp, (0..8_u32).map(|number| udp(&number.to_le_bytes())));
        assert_eq!(sent, [None; 8]);
        let mut xdp = Some(xdp);
        in_child(|| drop((receiver.take(), xdp.take())));
        say(b"after");
        let receiver = receiver.as_mut().expect("the child took its copy");
        for said in [&b"before"[..], b"after"] {
            assert!(receive(receiver).payload().ends_with(said));
        }
        // All frames are needed again, also those that the kernel gave back while there was a
        // child.
        let xdp = xdp.as_mut().expect("the child took its copy");
        let sent = send(xdp, (0..80_u32).map(|number| udp(&number.to_le_bytes())));
        assert_eq!(sent, [None; 80]);
    });
}

#[test]
fn what_cannot_be_sent_is_dropped_for_its_reason() {
    in_namespace_of_root("xdp::what_cannot_be_sent_is_dropped_for_its_reason", &PAIR, || {
        let options = XdpOptions { receive: false, frames: 8, ..XdpOptions::default() };
        let mut xdp = Xdp::open("x0", 0, options).expect("root in its namespace may");
        assert!(xdp.receiver().is_none(), "it only transmits");
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of x1");
        socket.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        let large = DropReason::MessageSize;
        // One does not fit a frame of the memory, and the other, of 1,519 bytes, is larger than
        // what an MTU of 1,500 and the tag of a VLAN allow.
        let packets = [udp(b"1"), udp(&[0; 2_100]), udp(b"2"), udp(&[0; 1_477])];
        assert_eq!(send(&mut xdp, packets), [None, Some(large), None, Some(large)]);
        // More than the ring holds, from one packet that is cut into 14 segments and more.
        for expected in [b"1", b"2"] {
            let mut buffer = [0; 10];
            assert_eq!(socket.recv(&mut buffer).expect("a datagram"), 1);
            assert_eq!(&buffer[..1], expected);
        }
        let many = (0..100_u32).map(|number| udp(&number.to_le_bytes()));
        assert_eq!(send(&mut xdp, many), [None; 100]);
        ip("link set x0 down");
        assert_eq!(send(&mut xdp, [udp(b"3")]), [None], "it is in the ring");
        let reasons = send(&mut xdp, [udp(b"4"), udp(b"5")]);
        assert_eq!(reasons, [Some(DropReason::Unreachable); 2]);
        ip("link set x0 up");
        assert_eq!(send(&mut xdp, [udp(b"6")]), [None]);
        let empty = xdp.transmit(&mut PacketList::new(), &mut PacketList::new(), Instant(1));
        assert_eq!((empty.messages, empty.retry_at), (0, None));
    });
}

#[test]
fn what_cannot_be_opened_says_why() {
    in_namespace_of_root("xdp::what_cannot_be_opened_says_why", &PAIR, || {
        let options = XdpOptions::default();
        let error = |name: &str, queue: u32, options: XdpOptions| {
            Xdp::open(name, queue, options).expect_err("refused").to_string()
        };
        assert!(error("no-such0", 0, options).starts_with("there is no interface no-such0"));
        let text = error("x0", 77, XdpOptions { receive: false, ..options });
        assert!(text.contains("no such queue"), "{text}");
        let text = error("x0", 0, XdpOptions { frames: 100, ..options });
        assert!(text.contains("power of two"), "{text}");
        let text = error("x0", 0, XdpOptions { frames: 1 << 31, ..options });
        assert!(text.contains("at most 1048576"), "{text}");
        let text = error("x0", 1_024, options);
        assert!(text.contains("only the queues below 1024 can receive"), "{text}");
        ip("link set x0 mtu 4000");
        let text = error("x0", 0, options);
        assert!(text.contains("`ip link set x0 mtu 3822`"), "{text}");
        let sends = XdpOptions { receive: false, ..options };
        assert_eq!(Xdp::open("x0", 0, sends).expect("a page").info().mtu, 4_014);
        ip("link set x0 mtu 9000");
        let text = error("x0", 0, sends);
        assert!(text.contains("the MTU of x0 is 9000") && text.contains("mtu 4078"), "{text}");
        ip("link set x0 mtu 1500");
        let text = error("x0", 0, XdpOptions { copying: Copying::ZeroCopy, ..options });
        assert!(text.contains("without a copy"), "{text}");
        let held = Xdp::open("x0", 0, options).expect("it is free again");
        let text = error("x0", 0, options);
        assert!(text.contains("another program has attached one"), "{text}");
        let text = error("x0", 0, XdpOptions { receive: false, ..options });
        assert!(text.contains("another socket holds the queue"), "{text}");
        drop(held);
        Xdp::open("x0", 0, options).expect("it is free again");
    });
}

/// Packets that come faster than they are received are counted as missed.
#[test]
fn missed_packets_are_counted() {
    in_namespace_of_root("xdp::missed_packets_are_counted", &PAIR, || {
        let options = XdpOptions { frames: 8, ..XdpOptions::default() };
        let mut xdp = Xdp::open("x0", 0, options).expect("root in its namespace may");
        let mut receiver = xdp.receiver().expect("it receives");
        assert_eq!(receiver.missed(), 0);
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of x1");
        let end = MonotonicClock.now().after(PATIENCE_NS);
        while receiver.missed() < 5 && MonotonicClock.now() < end {
            socket.send_to(b"too much", "192.0.2.2:7001").expect("it is sent");
            thread::yield_now();
        }
        assert!(receiver.missed() >= 5, "{}", receiver.missed());
        let mut list = PacketList::new();
        let mut none = |_| None;
        assert_eq!(receiver.receive(8, &mut none, &mut list).expect("no error"), 4, "in place");
        assert_eq!(receiver.receive(3, &mut none, &mut list).expect("no error"), 0);
        assert_eq!(receiver.discarded(), 0, "they wait");
        let mut small = |_| Some(Packet::with_capacity(1));
        assert_eq!(receiver.receive(1, &mut small, &mut list).expect("no error"), 0);
        assert_eq!(receiver.discarded(), 1, "the packet for it was too small");
        assert_eq!(receiver.receive(1, &mut heap, &mut list).expect("no error"), 1);
        let stats = xdp.stats();
        assert_eq!((stats.received.get(), stats.received_copied.get()), (5, 1));
        drop(receiver);
        assert_eq!(xdp.stats().unread.get(), 2, "they are lost with the receiver");
    });
}

/// Carries frames from one side to the other until `end`.
fn carry(from: &mut XdpReceiver, to: &mut Xdp, end: &AtomicBool) {
    let mut ready = PacketList::new();
    while !end.load(Ordering::Relaxed) {
        let received = from.receive(64, &mut heap, &mut ready).expect("the interface is up");
        let out = to.transmit(&mut ready, &mut PacketList::new(), MonotonicClock.now());
        if received == 0 && out.retry_at.is_none() {
            wait(&[from], 20);
        }
    }
}

#[test]
fn queues_are_counted() {
    let set_up =
        ["ip link add x0 numrxqueues 3 numtxqueues 2 type veth peer name x1 numrxqueues 1"];
    in_namespace("xdp::queues_are_counted", &set_up, || {
        assert_eq!(Xdp::queues("x0").expect("it is there"), 3);
        assert_eq!(Xdp::queues("x1").expect("it is there"), 1);
        let error = Xdp::queues("x2").expect_err("it is not there").to_string();
        assert!(error.contains("AF_XDP on x2: there is no such interface"), "{error}");
    });
}

/// TCP passes between two kernels' ends, through two AF_XDP sockets, with the checksums and sizes
/// that the ends choose.
#[test]
fn tcp_passes() {
    in_namespace_of_root("xdp::tcp_passes", &PAIR, || {
        ip("link add y0 type veth peer name y1");
        ip("link set y0 up");
        ip("neigh del 192.0.2.2 lladdr 02:00:00:00:00:02 dev x1");
        let (give, take) = mpsc::channel();
        let (moved, is_moved) = mpsc::channel();
        let server = move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("root in its namespace may");
            give.send(nix::unistd::gettid()).expect("it is awaited");
            is_moved.recv().expect("y1 comes here");
            ip("link set y1 up");
            ip("addr add 192.0.2.2/24 dev y1");
            let listener = TcpListener::bind("192.0.2.2:7").expect("an address of y1");
            echo(&listener);
            // The namespace, and both ends of the pair with it, goes with this thread.
            is_moved.recv().expect_err("the client has ended");
        };
        let server = thread::Builder::new().spawn(server).expect("a thread");
        let thread_id = take.recv().expect("the other side opens");
        ip(&format!("link set y1 netns {thread_id}"));
        let options = XdpOptions { attach: Attach::Driver, ..XdpOptions::default() };
        let [mut x, mut y] =
            ["x0", "y0"].map(|name| Xdp::open(name, 0, options).expect("root may"));
        let [mut from_x, mut from_y] =
            [&mut x, &mut y].map(|side| side.receiver().expect("it receives"));
        moved.send(()).expect("it is awaited");
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| carry(&mut from_x, &mut y, &end));
            scope.spawn(|| carry(&mut from_y, &mut x, &end));
            let client = thread::Builder::new().spawn(|| {
                let data: Vec<u8> =
                    (0..1_000_000_u32).map(|n| (n * 31 % 253).to_le_bytes()[0]).collect();
                let mut stream = connect();
                stream.write_all(&data).expect("it is sent");
                stream.shutdown(std::net::Shutdown::Write).expect("it ends");
                let mut back = Vec::new();
                stream.read_to_end(&mut back).expect("it comes back");
                assert!(back == data, "{} of {} bytes came back", back.len(), data.len());
            });
            let ended = client.expect("a thread").join();
            end.store(true, Ordering::Relaxed);
            drop(moved);
            ended.expect("the client");
        });
        server.join().expect("the server");
    });
}

/// Connects to the server, which may not listen yet.
fn connect() -> TcpStream {
    let end = MonotonicClock.now().after(PATIENCE_NS);
    loop {
        match TcpStream::connect("192.0.2.2:7") {
            Ok(stream) => return stream,
            Err(error) => assert!(MonotonicClock.now() < end, "{error}"),
        }
        thread::yield_now();
    }
}

/// Takes one connection, reads it to its end, and sends everything back.
fn echo(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().expect("a client");
    let mut data = Vec::new();
    stream.read_to_end(&mut data).expect("the client sends");
    stream.write_all(&data).expect("it is sent back");
}
