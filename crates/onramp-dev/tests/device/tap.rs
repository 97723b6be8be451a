//! TUN and TAP devices, with the kernel at the other end. Each test runs in network namespaces of
//! its own.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use etherparse::{PacketBuilder, TcpHeader};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use onramp_core::frame::{self, SuperFrame};
use onramp_core::qdisc::Dequeue;
use onramp_core::{Clock, Device, Instant, Setup, Tree};
use onramp_dev::{MonotonicClock, Receive, Tap, TapOptions, TapReceiver};
use onramp_queue::{Layer, Packet, PacketList, PartialChecksum};
use proptest::prelude::any;
use proptest::test_runner::{Config, TestRunner};

use crate::namespace::in_namespace_with_tun;

/// Longest wait for a packet that must come.
pub(crate) const PATIENCE_NS: u64 = 120_000_000_000;

pub(crate) fn ip(line: &str) {
    let status = Command::new("ip").args(line.split(' ')).status().expect("ip runs");
    assert!(status.success(), "ip {line}");
}

/// Opens a device, with these addresses of its interface.
fn open(name: &str, options: TapOptions, addresses: &[&str]) -> Tap {
    let tap = Tap::open(name, options).expect("root in its namespace may");
    assert_eq!(tap.name(), name);
    for address in addresses {
        ip(&format!("addr add {address} dev {name} nodad"));
    }
    tap.set_up().expect("it is there");
    tap
}

pub(crate) fn heap(bytes: usize) -> Option<Packet> {
    Some(Packet::with_capacity(bytes.try_into().expect("a frame")))
}

/// Waits until a packet comes for which `wanted` is true, and returns it.
pub(crate) fn receive(receiver: &mut dyn Receive, wanted: impl Fn(&Packet) -> bool) -> Packet {
    let end = MonotonicClock.now().after(PATIENCE_NS);
    loop {
        let mut list = PacketList::new();
        receiver.receive(1, &mut heap, &mut list).expect("the device is up");
        match list.pop_front() {
            Some(packet) if wanted(&packet) => return packet,
            Some(_) => {}
            None => wait(&[&*receiver], 1_000),
        }
        assert!(MonotonicClock.now() < end, "no packet came");
    }
}

pub(crate) fn wait(receivers: &[&dyn Receive], ms: u16) {
    let mut fds: Vec<_> =
        receivers.iter().map(|of| PollFd::new(of.as_fd(), PollFlags::POLLIN)).collect();
    poll(&mut fds, PollTimeout::from(ms)).expect("it waits");
}

pub(crate) fn send(device: &mut dyn Device, packet: Packet) {
    let (mut burst, mut done) = (PacketList::from_iter([packet]), PacketList::new());
    device.transmit(&mut burst, &mut done, MonotonicClock.now());
    assert_eq!(done.pop_front().expect("it was taken").drop_reason, None);
}

/// A frame as the kernel sends it is described, and a frame comes in to the kernel.
#[test]
fn frames_go_both_ways() {
    in_namespace_with_tun("tap::frames_go_both_ways", &[], || {
        for (layer, offload) in [
            (Layer::Ethernet, true),
            (Layer::Ethernet, false),
            (Layer::Ip, true),
            (Layer::Ip, false),
        ] {
            let options = TapOptions { layer, offload, ..TapOptions::default() };
            let mut tap = open("x0", options, &["192.0.2.1/24"]);
            let expected = if layer == Layer::Ip { 1_500 } else { 1_514 };
            assert_eq!(tap.info().mtu, expected);
            if layer == Layer::Ethernet {
                ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev x0");
            }
            let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of x0");
            socket.send_to(b"a question", "192.0.2.2:7001").expect("it is sent");
            let mut receiver = tap.receiver();
            let at = if layer == Layer::Ip { 0 } else { 14 };
            let is_ours = |packet: &Packet| packet.payload().get(at + 9) == Some(&17);
            let mut packet = receive(&mut receiver, is_ours);
            assert_eq!(packet.payload().len(), at + 28 + 10);
            assert_eq!((packet.len as usize, packet.ecn), (at + 38, 0));
            assert_eq!(packet.partial_checksum().is_some(), offload);
            // Turn the frame round, and send it back as an answer.
            let bytes = packet.payload_mut();
            for (one, other, len) in [(12, 16, 4), (20, 22, 2)] {
                for byte in 0..len {
                    bytes.swap(at + one + byte, at + other + byte);
                }
            }
            if at > 0 {
                (0..6).for_each(|byte| bytes.swap(byte, byte + 6));
            }
            send(&mut tap, packet);
            socket.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
            let mut buffer = [0; 100];
            let (len, from) = socket.recv_from(&mut buffer).expect("the answer");
            assert_eq!(
                (&buffer[..len], from.to_string()),
                (&b"a question"[..], "192.0.2.2:7001".into())
            );
            let stats = tap.stats();
            assert_eq!((stats.frames.get(), stats.malformed.get()), (1, 0));
            assert!(stats.received.get() >= 1);
        }
    });
}

/// A frame for which there is no packet that is large enough is discarded and counted.
#[test]
fn a_frame_without_a_packet_is_counted() {
    in_namespace_with_tun("tap::a_frame_without_a_packet_is_counted", &[], || {
        let tap = open("x0", TapOptions::default(), &["192.0.2.1/24"]);
        ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev x0");
        let mut receiver = tap.receiver();
        let socket = UdpSocket::bind("192.0.2.1:0").expect("an address of x0");
        let end = MonotonicClock.now().after(PATIENCE_NS);
        while receiver.stats().no_room.get() == 0 {
            socket.send_to(&[0; 1_000], "192.0.2.2:7001").expect("it is sent");
            let small = &mut |_: usize| Some(Packet::with_capacity(64));
            receiver.receive(9, small, &mut PacketList::new()).expect("nothing is wrong");
            assert!(MonotonicClock.now() < end, "no frame came");
        }
        assert_eq!(receiver.discarded(), receiver.stats().no_room.get());
    });
}

/// The kernel spreads flows over the queues of a device: each datagram comes once, and each queue
/// gets some.
#[test]
fn queues_share_the_flows() {
    in_namespace_with_tun("tap::queues_share_the_flows", &[], || {
        let options = TapOptions { multi_queue: true, ..TapOptions::default() };
        let tap = open("x0", options, &["192.0.2.1/24"]);
        let another = tap.another_queue().expect("it may have several");
        ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev x0");
        let sockets: Vec<_> =
            (0..64).map(|_| UdpSocket::bind("192.0.2.1:0").expect("a port")).collect();
        let mut receivers = [tap.receiver(), another.receiver()];
        let (mut numbers, mut counts) = (Vec::new(), [0; 2]);
        for (number, socket) in (0_u8..).zip(&sockets) {
            socket.send_to(&[number; 100], "192.0.2.2:7001").expect("it is sent");
        }
        let end = MonotonicClock.now().after(PATIENCE_NS);
        while numbers.len() < sockets.len() {
            for (receiver, count) in receivers.iter_mut().zip(&mut counts) {
                let mut list = PacketList::new();
                receiver.receive(64, &mut heap, &mut list).expect("the device is up");
                for packet in list.filter(|packet| packet.payload().len() == 142) {
                    numbers.push(packet.payload()[141]);
                    *count += 1;
                }
            }
            assert!(MonotonicClock.now() < end, "{numbers:?}");
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (0..64).collect::<Vec<u8>>());
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    });
}

#[test]
fn what_cannot_be_opened_says_why() {
    in_namespace_with_tun("tap::what_cannot_be_opened_says_why", &[], || {
        let options = TapOptions::default();
        let error = |name: &str| Tap::open(name, options).expect_err("refused");
        assert!(error("a name that is too long").to_string().contains("at most 15 bytes"));
        assert_eq!(error("lo").raw_os_error(), Some(libc_einval()));
        let tap = open("x0", options, &[]);
        assert_eq!(error("x0").kind(), std::io::ErrorKind::ResourceBusy);
        tap.another_queue().expect_err("it was opened for one queue");
        let mut receiver = tap.receiver();
        ip("link set x0 down");
        // The kernel may have sent packets of its own while the interface was up. Behind them there
        // is nothing, which is no error.
        let list = &mut PacketList::new();
        while receiver.receive(1, &mut heap, list).expect("nothing is wrong") > 0 {}
        drop((tap, receiver));
        let options = TapOptions { multi_queue: true, ..options };
        let tap = open("x0", options, &[]);
        let another = tap.another_queue().expect("it may have several");
        assert_eq!(another.name(), "x0");
        // The kernel takes no frames while the interface is down.
        ip("link set x0 down");
        let (mut burst, mut done) =
            (PacketList::from_iter([tcp(false, 10, 0, 0)]), PacketList::new());
        let mut tap = tap;
        tap.transmit(&mut burst, &mut done, Instant(0));
        let reason = done.pop_front().expect("it was dropped").drop_reason;
        assert_eq!(reason, Some(onramp_queue::DropReason::Unreachable));
    });
}

const fn libc_einval() -> i32 {
    22
}

/// Makes a frame from 192.0.2.2 to 198.51.100.2 (or the same in IPv6) that leaves its checksum to
/// the device, with `data` bytes of data in TCP, or in UDP if `flags` is 255.
pub(crate) fn tcp(v6: bool, data: usize, size: u16, flags: u8) -> Packet {
    let eth = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    let ip = if v6 {
        let address = |net: u8| [0x20, 1, 0xd, 0xb8, 0, 0, 0, net, 0, 0, 0, 0, 0, 0, 0, 2];
        eth.ipv6(address(1), address(2), 64)
    } else {
        eth.ipv4([192, 0, 2, 2], [198, 51, 100, 2], 64)
    };
    let bytes: Vec<u8> = (0..data).map(|n| (n * 7 % 251).to_le_bytes()[0]).collect();
    let mut whole = Vec::new();
    let offset = if flags == 255 {
        ip.udp(1000, 2000).write(&mut whole, &bytes).expect("a vector takes everything");
        6
    } else {
        let mut tcp = TcpHeader::new(1000, 2000, u32::MAX - 3000, 77);
        (tcp.ack, tcp.acknowledgment_number) = (true, 5);
        (tcp.fin, tcp.psh, tcp.cwr) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        tcp.set_options_raw(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]).expect("timestamps");
        ip.tcp_header(tcp).write(&mut whole, &bytes).expect("a vector takes everything");
        16
    };
    let mut packet = Packet::with_payload(&whole);
    packet.set_layer(Layer::Ethernet);
    let start = if v6 { 54 } else { 34 };
    // The field has to contain the sum of the pseudo-header. That is the complement of the
    // checksum that the bytes behind it have, if the field were the right checksum.
    let field = usize::from(start + offset);
    let right = u16::from_be_bytes([whole[field], whole[field + 1]]);
    let bytes = packet.payload_mut();
    bytes[field..field + 2].fill(0);
    frame::write_checksum(PartialChecksum { start, offset }, bytes);
    let without = u16::from_be_bytes([bytes[field], bytes[field + 1]]);
    let sum = u32::from(!right) + u32::from(without);
    let pseudo = u16::try_from((sum & 0xffff) + (sum >> 16)).expect("two words fold at once");
    bytes[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
    packet.set_partial_checksum(Some(PartialChecksum { start, offset }));
    packet.gso_size = size;
    packet
}

/// A super-frame of a test.
#[derive(Clone, Copy, Debug)]
struct Case {
    v6: bool,
    data: usize,
    size: u16,
    /// Flags of TCP; 255 stands for UDP.
    flags: u8,
}

/// Sends the super-frame through the kernel, which forwards it to a device without offload, and so
/// has to segment it. Onramp's segments must be the same, byte for byte. Returns their number.
fn compare(case: Case, layer: Layer, from: &mut Tap, receiver: &mut TapReceiver) -> usize {
    let Case { v6, data, size, flags } = case;
    let mut whole = tcp(v6, data, size, flags);
    let header = if layer == Layer::Ip { 0 } else { 14 };
    if layer == Layer::Ip {
        let sum = whole.partial_checksum().expect("it is left to the device");
        let mut packet = Packet::with_payload(&whole.payload()[14..]);
        packet.set_layer(layer);
        packet.set_partial_checksum(Some(PartialChecksum { start: sum.start - 14, ..sum }));
        packet.gso_size = size;
        whole = packet;
    }
    let Some(ours) = SuperFrame::of(&whole) else { return 0 };
    send(from, whole.duplicate());
    let (at, protocol) = (if v6 { 6 } else { 9 }, if flags == 255 { 17 } else { 6 });
    for index in 0..ours.count() {
        let is_ours = |packet: &Packet| packet.payload().get(header + at) == Some(&protocol);
        let theirs = receive(receiver, is_ours);
        let mut segment = Vec::new();
        ours.write_segment(whole.payload(), index, &mut segment);
        frame::write_checksum(ours.partial_checksum(), &mut segment);
        forward(v6, &mut segment[header..]);
        // Both stand for the same sum. Of UDP, only ones may; of TCP, the kernel writes ones where
        // it does not segment (`skb_checksum_help`), and zeros where it does.
        let field = header + if v6 { 40 } else { 20 } + 16;
        if protocol == 6 && segment[field..field + 2] == [0xff; 2] {
            segment[field..field + 2].fill(0);
        }
        assert_eq!(theirs.payload()[header..], segment[header..], "{case:?} {layer:?} {index}");
    }
    ours.count()
}

/// The kernel's segments and Onramp's are the same for chosen super-frames and for random ones, of
/// TAP and of TUN devices.
#[test]
fn the_kernel_segments_alike() {
    const CHOSEN: [(usize, u16, u8); 8] = [
        (10_000, 1_000, 0),
        (10_001, 1_000, 7),
        (1_001, 1_000, 5),
        (60_000, 1_428, 3),
        (1_000, 536, 4),
        (9_000, 100, 1),
        (5_000, 1_000, 255),
        (5_001, 999, 255),
    ];
    let set_up = [
        "ip link set lo up",
        "sysctl -qw net.ipv4.ip_forward=1",
        "sysctl -qw net.ipv6.conf.all.forwarding=1",
    ];
    in_namespace_with_tun("tap::the_kernel_segments_alike", &set_up, || {
        for layer in [Layer::Ethernet, Layer::Ip] {
            let options = TapOptions { layer, ..TapOptions::default() };
            let mut from = open("x0", options, &["192.0.2.1/24", "2001:db8:0:1::1/64"]);
            let plain = TapOptions { offload: false, ..options };
            let to = open("y0", plain, &["198.51.100.1/24", "2001:db8:0:2::1/64"]);
            // All segments of a super-frame wait there, because this thread also sends it.
            ip("link set y0 txqueuelen 2000");
            if layer == Layer::Ethernet {
                ip("link set x0 address 02:00:00:00:00:01");
                for address in ["198.51.100.2", "2001:db8:0:2::2"] {
                    ip(&format!("neigh add {address} lladdr 02:00:00:00:00:09 dev y0"));
                }
            }
            let mut receiver = to.receiver();
            let mut compared = 0;
            let chosen = [false, true].into_iter().flat_map(|v6| CHOSEN.map(|case| (v6, case)));
            for (v6, (data, size, flags)) in chosen {
                let case = Case { v6, data, size, flags };
                compared += compare(case, layer, &mut from, &mut receiver);
            }
            let cases = (any::<bool>(), 1_usize..60_000, 88_u16..1_428, 0_u8..10);
            let ends = RefCell::new((from, receiver));
            let config = Config {
                cases: 150,
                // A case that differs leaves segments in the device, so no other can follow.
                max_shrink_iters: 0,
                failure_persistence: None,
                ..Config::default()
            };
            let ran = TestRunner::new(config).run(&cases, |(v6, data, size, flags)| {
                let (flags, most) = match flags {
                    0..8 => (flags, usize::MAX),
                    // The kernel refuses a datagram that makes more segments.
                    _ => (255, 64 * usize::from(size)),
                };
                let (from, receiver) = &mut *ends.borrow_mut();
                let case = Case { v6, data: data.min(most), size, flags };
                compare(case, layer, from, receiver);
                Ok(())
            });
            ran.expect("the kernel segments alike");
            assert!(compared > 200, "{compared}");
        }
    });
}

/// Changes the IP header at the beginning as a router does: one hop less.
fn forward(v6: bool, packet: &mut [u8]) {
    if v6 {
        packet[7] -= 1;
        return;
    }
    packet[8] -= 1;
    packet[10..12].fill(0);
    let words = packet[..20].chunks(2).map(|word| u16::from_be_bytes([word[0], word[1]]));
    let sum: u32 = words.map(u32::from).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// One direction of a wire: from a receiver through a tree to a device.
struct Way {
    from: TapReceiver,
    tree: Tree,
    to: Tap,
    ready: PacketList,
}

impl Way {
    /// Moves what may move. Returns when to look again.
    fn run(&mut self, now: Instant) -> Option<Instant> {
        let mut list = PacketList::new();
        self.from.receive(64, &mut heap, &mut list).expect("the device is up");
        for mut packet in list {
            packet.enqueued_ns = now.0;
            let _ = self.tree.enqueue(now, packet);
        }
        drop(self.tree.drops());
        let next = loop {
            match self.tree.dequeue(now) {
                Dequeue::Ready(packet) => self.ready.push_back(packet),
                Dequeue::NotBefore(at) => break Some(at),
                Dequeue::Empty => break None,
            }
        };
        let sent = self.to.transmit(&mut self.ready, &mut PacketList::new(), now);
        sent.retry_at.or(next)
    }
}

fn tree(lines: &[&str]) -> Tree {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    Tree::of(&setup, 1_514, 1).expect("a root")
}

/// Starts a thread that may outlive its caller.
pub(crate) fn start(body: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::Builder::new().spawn(body).expect("a thread")
}

/// Runs `client` in this namespace, with a TCP server that sends back what it gets in another one,
/// 192.0.2.2 port 7. Between them are two TAPs, and a tree for each direction.
fn across(lines: &[&str], offload: bool, client: impl FnOnce() + Send) -> [Tree; 2] {
    let options = TapOptions { offload, ..TapOptions::default() };
    let here = open("x0", options, &["192.0.2.1/24"]);
    let (give, take) = mpsc::channel();
    let server = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root in its namespace may");
        give.send(open("y0", options, &["192.0.2.2/24"])).expect("it is awaited");
        let listener = TcpListener::bind("192.0.2.2:7").expect("an address of y0");
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            start(move || {
                let mut copy = stream.try_clone().expect("another descriptor");
                drop(std::io::copy(&mut stream, &mut copy));
            });
        }
    };
    start(server);
    let there = take.recv().expect("the other side opens");
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let receivers = (here.receiver(), there.receiver());
        let way = |from, to| Way { from, tree: tree(lines), to, ready: PacketList::new() };
        let mut ways = [way(receivers.0, there), way(receivers.1, here)];
        let engine = scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                let now = MonotonicClock.now();
                let next = ways.iter_mut().filter_map(|way| way.run(now)).min();
                let ns = next.map_or(50_000_000, |at| at.since(MonotonicClock.now()));
                let ms = (ns / 1_000_000).min(50).try_into().expect("at most 50");
                wait(&[&ways[0].from, &ways[1].from], ms);
            }
            ways.map(|way| way.tree)
        });
        // If the client panics, the engine ends all the same.
        let ended = thread::scope(|scope| scope.spawn(client).join());
        end.store(true, Ordering::Relaxed);
        let trees = engine.join().expect("the engine");
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
        trees
    })
}

/// Sends bytes to the server and reads them back, both at once.
pub(crate) fn echo(bytes: usize) {
    let data: Arc<[u8]> = (0..bytes).map(|n| (n * 31 % 253).to_le_bytes()[0]).collect();
    let mut stream = TcpStream::connect("192.0.2.2:7").expect("the server listens");
    let (mut writer, sent) = (stream.try_clone().expect("another descriptor"), data.clone());
    let writing = start(move || {
        writer.write_all(&sent).expect("it is sent");
        writer.shutdown(std::net::Shutdown::Write).expect("it ends");
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back).expect("it comes back");
    writing.join().expect("the writer");
    assert!(back == *data, "{} of {bytes} bytes came back right", back.len());
}

#[test]
fn tcp_passes_and_super_frames_are_cut() {
    in_namespace_with_tun(
        "tap::tcp_passes_and_super_frames_are_cut",
        &["ip link set lo up"],
        || {
            let root = "qdisc add dev e root handle 1: ";
            let plain = format!("{root}netem delay 5ms");
            for offload in [false, true] {
                let [there, back] = across(&[&plain], offload, || echo(1_000_000));
                for tree in [&there, &back] {
                    assert!(tree.totals().sent_bytes > 1_000_000);
                    assert_eq!(tree.totals().dropped_packets(), 0);
                }
            }
            // cake segments super-frames, and a qdisc behind it delays them.
            let lines = [
                &format!("{root}series")[..],
                "qdisc add dev e parent 1:1 cake bandwidth 100mbit",
                "qdisc add dev e parent 1:2 netem delay 2ms",
            ];
            let trees = across(&lines, true, || echo(3_000_000));
            for tree in trees {
                let totals = tree.totals();
                assert!(totals.made_packets > 100, "super-frames were segmented: {totals:?}");
            }
        },
    );
}

#[test]
fn a_deleted_interface_is_told() {
    in_namespace_with_tun("tap::a_deleted_interface_is_told", &[], || {
        let tap = open("x0", TapOptions::default(), &[]);
        let mut receiver = tap.receiver();
        ip("link del x0");
        let list = &mut PacketList::new();
        let error = loop {
            // The kernel may have sent packets of its own before.
            match receiver.receive(1, &mut heap, list) {
                Ok(count) => {
                    assert!(count > 0, "nothing waits for ever at an interface that is gone")
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        assert_eq!(error.to_string(), "the interface was deleted");
    });
}
