//! Packet sockets on veth pairs. Each test runs in network namespaces of its own.

mod bridge;
mod errors;
mod queues;

use std::process::Command;

use onramp_core::frame::{self, SuperFrame};
use onramp_core::{Clock, Device, Instant};
use onramp_dev::{MonotonicClock, PacketOptions, PacketReceiver, PacketSocket, Receive};
use onramp_queue::{DropReason, Layer, Packet, PacketList};

use crate::common::transmit;
use crate::namespace::in_namespace;
use crate::tap::{PATIENCE_NS, heap, receive, send, tcp, wait};

/// Commands that make a veth pair in which no frames pass but those of the test.
pub(crate) const PAIR: [&str; 5] = [
    "sysctl -qw net.ipv6.conf.all.disable_ipv6=1",
    "sysctl -qw net.ipv6.conf.default.disable_ipv6=1",
    "ip link add v0 type veth peer name v1",
    "ip link set v0 up",
    "ip link set v1 up",
];

/// Waits until the kernel sends frames through the interface. After it has got a carrier, its qdisc
/// drops frames until the kernel's link watch has run, which also changes what `ip` shows.
fn await_carrier(name: &str) {
    let end = MonotonicClock.now().after(PATIENCE_NS);
    let is_up = || {
        let output = Command::new("ip").args(["link", "show", name]).output().expect("ip runs");
        String::from_utf8_lossy(&output.stdout).contains("state UP")
    };
    while !is_up() {
        assert!(MonotonicClock.now() < end, "{name} has no carrier");
    }
}

pub(crate) fn open(name: &str, options: PacketOptions) -> (PacketSocket, PacketReceiver) {
    await_carrier(name);
    open_as_it_is(name, options)
}

fn open_as_it_is(name: &str, options: PacketOptions) -> (PacketSocket, PacketReceiver) {
    let mut socket = PacketSocket::open(name, options).expect("root in its namespace may");
    let receiver = socket.receiver().expect("nobody has taken it");
    (socket, receiver)
}

/// Opens both ends of the pair.
fn pair(options: PacketOptions) -> [(PacketSocket, PacketReceiver); 2] {
    ["v0", "v1"].map(|name| open(name, options))
}

/// Receives the next packet, whatever it is.
fn next(receiver: &mut PacketReceiver) -> Packet {
    receive(receiver, |_| true)
}

/// Fails if a frame waits to be received.
pub(crate) fn assert_nothing(receiver: &mut dyn Receive) {
    let mut list = PacketList::new();
    assert_eq!(receiver.receive(10, &mut heap, &mut list).expect("the interface is there"), 0);
}

/// Returns the frame with a VLAN tag.
fn tagged(packet: &Packet, tag: [u8; 4]) -> Packet {
    let mut bytes = packet.payload().to_vec();
    bytes.splice(12..12, tag);
    let mut copy = packet.duplicate_with(&bytes);
    if let Some(mut partial) = packet.partial_checksum() {
        partial.start += 4;
        copy.set_partial_checksum(Some(partial));
    }
    copy
}

/// Returns the segments of a super-frame with their checksums; of another frame, the frame.
fn segments(packet: &Packet) -> Vec<Vec<u8>> {
    let Some(whole) = SuperFrame::of(packet) else {
        let mut copy = packet.duplicate();
        frame::complete_checksum(&mut copy);
        return vec![copy.payload().to_vec()];
    };
    let segment = |index| {
        let mut segment = Vec::new();
        whole.write_segment(packet.payload(), index, &mut segment);
        frame::write_checksum(whole.partial_checksum(), &mut segment);
        segment
    };
    (0..whole.count()).map(segment).collect()
}

pub(crate) const OPTIONS: PacketOptions = PacketOptions {
    offload: true,
    bypass: false,
    promiscuous: true,
    fanout: None,
    buffer: 8 << 20,
    seed: 7,
};

#[test]
fn the_default_takes_nothing_over() {
    let own = PacketOptions { promiscuous: false, seed: 0, ..OPTIONS };
    assert_eq!(PacketOptions::default(), own);
}

/// Frames of all kinds pass as they are, and a host's own frames do not come back to it.
#[test]
fn frames_pass_both_ways() {
    in_namespace("packet::frames_pass_both_ways", &PAIR, || {
        for bypass in [false, true] {
            let [(mut here, mut from_here), (mut there, mut from_there)] =
                pair(PacketOptions { bypass, ..OPTIONS });
            assert_eq!((here.name(), &*here.info().name), ("v0", "packet v0"));
            assert_eq!((here.info().mtu, here.info().may_block), (1_514, false));
            let frames = [
                tcp(false, 100, 0, 2),
                tcp(true, 100, 0, 2),
                tcp(false, 20_000, 1_400, 2),
                tcp(true, 60_000, 1_000, 0x10),
            ];
            for (device, receiver) in [(&mut here, &mut from_there), (&mut there, &mut from_here)] {
                for frame in &frames {
                    send(device, frame.duplicate());
                    let came = next(receiver);
                    assert!(came.payload() == frame.payload(), "{} bytes", frame.payload().len());
                    assert_eq!(came.partial_checksum(), frame.partial_checksum());
                    assert_eq!((came.gso_size, came.layer()), (frame.gso_size, Layer::Ethernet));
                    let mut described = frame.duplicate();
                    frame::describe(&mut described, 7);
                    let seen = |packet: &Packet| (packet.flow, packet.len, packet.priority);
                    assert_eq!(seen(&came), seen(&described));
                }
            }
            assert_nothing(&mut from_here);
            assert_nothing(&mut from_there);
            let bytes: u64 = frames.iter().map(|frame| frame.payload().len() as u64).sum();
            let stats = here.stats();
            assert_eq!((stats.frames.get(), stats.received.get()), (4, 4));
            assert_eq!((stats.bytes.get(), stats.received_bytes.get()), (bytes, bytes));
            assert_eq!((stats.segmented.get(), stats.cut.get(), stats.full.get()), (0, 0, 0));
            assert_eq!((from_here.discarded(), from_here.missed()), (0, 0));
        }
    });
}

/// A burst larger than one call takes arrives whole and in order.
#[test]
fn bursts_keep_their_order() {
    in_namespace("packet::bursts_keep_their_order", &PAIR, || {
        let [(mut here, _), (_, mut receiver)] = pair(OPTIONS);
        let packets = (0..100).map(|n| tcp(n % 2 == 0, 100 + n, 0, 0)).collect();
        let outcome = transmit(&mut here, packets, Instant(1));
        assert!(outcome.done.iter().all(|(_, reason)| reason.is_none()));
        assert_eq!((outcome.done.len(), outcome.out.messages, outcome.out.calls), (100, 100, 4));
        for n in 0..100 {
            assert_eq!(next(&mut receiver).payload(), tcp(n % 2 == 0, 100 + n, 0, 0).payload());
        }
    });
}

/// Without offload, super-frames are cut and checksums completed, by the sender and by the
/// receiver.
#[test]
fn without_offload_all_is_cut() {
    in_namespace("packet::without_offload_all_is_cut", &PAIR, || {
        let plain = PacketOptions { offload: false, ..OPTIONS };
        for (sends, receives) in [(OPTIONS, plain), (plain, OPTIONS), (plain, plain)] {
            let (mut device, mut receiver) = (open("v0", sends).0, open("v1", receives).1);
            let wholes = [
                tcp(false, 10_001, 1_000, 3),
                tcp(true, 100, 0, 0),
                tcp(true, 9_000, 1_400, 0),
                tcp(false, 5_000, 1_000, 255),
            ];
            for whole in &wholes {
                send(&mut device, whole.duplicate());
                for segment in segments(whole) {
                    let came = next(&mut receiver);
                    assert!(came.payload() == segment, "{} bytes", segment.len());
                    assert_eq!((came.partial_checksum(), came.gso_size), (None, 0));
                    assert_eq!(came.len as usize, segment.len());
                }
            }
            assert_nothing(&mut receiver);
            let (segmented, cut) = (device.stats().segmented.get(), receiver.stats().cut.get());
            assert_eq!((segmented, cut), if sends.offload { (0, 3) } else { (3, 0) });
        }
    });
}

/// The segments of a super-frame wait for their turn, and one without a packet is counted.
#[test]
fn segments_wait_in_the_receiver() {
    in_namespace("packet::segments_wait_in_the_receiver", &PAIR, || {
        let plain = PacketOptions { offload: false, ..OPTIONS };
        let (mut device, mut receiver) = (open("v0", OPTIONS).0, open("v1", plain).1);
        let whole = tcp(false, 10_000, 1_000, 0);
        let expected = segments(&whole);
        send(&mut device, whole.duplicate());
        assert_eq!(next(&mut receiver).payload(), expected[0]);
        let mut list = PacketList::new();
        assert_eq!(receiver.receive(3, &mut heap, &mut list).expect("it is up"), 3);
        // There is no packet for the fifth segment.
        let mut packets = [None, heap(2_000), heap(2_000)].into_iter();
        let count = receiver.receive(2, &mut |_| packets.next().flatten(), &mut list);
        assert_eq!(count.expect("it is up"), 2);
        assert_eq!(receiver.receive(10, &mut heap, &mut list).expect("it is up"), 3);
        let came = list.map(|packet| packet.payload().to_vec());
        assert!(came.eq([&expected[1..4], &expected[5..]].concat()));
        assert_eq!((receiver.discarded(), receiver.stats().no_room.get()), (1, 1));
        // A whole super-frame for which there is no packet is lost, too.
        let mut receiver = open("v1", OPTIONS).1;
        send(&mut device, whole);
        let mut small = |bytes: usize| if bytes < 2_000 { heap(bytes) } else { None };
        let mut list = PacketList::new();
        while receiver.discarded() == 0 {
            assert_eq!(receiver.receive(10, &mut small, &mut list).expect("it is up"), 0);
        }
    });
}

/// The kernel takes the outer tag out of a frame that comes in; the receiver puts it back.
#[test]
fn vlan_tags_stay() {
    in_namespace("packet::vlan_tags_stay", &PAIR, || {
        let tags = [[0x81, 0, 0x60, 5], [0x88, 0xa8, 0xe0, 77], [0x81, 0, 0, 0]];
        for offload in [true, false] {
            let [(mut device, _), (_, mut receiver)] = pair(PacketOptions { offload, ..OPTIONS });
            for tag in tags {
                let frames = [
                    tcp(false, 100, 0, 0),
                    tcp(true, 1_400, 0, 0),
                    // As large as the MTU allows. A tag of 802.1Q comes on top, one of 802.1ad not.
                    tcp(false, if tag[0] == 0x81 { 1_448 } else { 1_444 }, 0, 0),
                    tcp(false, 20_000, 1_400, 0),
                    tagged(&tcp(true, 300, 0, 0), [0x81, 0, 0, 9]),
                ];
                for frame in frames {
                    let frame = tagged(&frame, tag);
                    send(&mut device, frame.duplicate());
                    if !offload {
                        for segment in segments(&frame) {
                            assert!(next(&mut receiver).payload() == segment, "{tag:x?}");
                        }
                        continue;
                    }
                    let came = next(&mut receiver);
                    assert!(came.payload() == frame.payload(), "{tag:x?}");
                    assert_eq!(came.partial_checksum(), frame.partial_checksum());
                    assert_eq!(came.gso_size, frame.gso_size);
                }
            }
        }
    });
}

/// An interface that cannot segment drops super-frames that pass by its qdisc. The device cuts them
/// then; otherwise the kernel does.
#[test]
fn what_the_interface_refuses_is_cut() {
    let set_up = [&PAIR[..], &["ip link set v0 gso_max_size 16384"]].concat();
    in_namespace("packet::what_the_interface_refuses_is_cut", &set_up, || {
        for bypass in [true, false] {
            let (mut device, mut receiver) =
                (open("v0", PacketOptions { bypass, ..OPTIONS }).0, open("v1", OPTIONS).1);
            let whole = tcp(true, 20_000, 1_000, 0);
            let outcome =
                transmit(&mut device, vec![whole.duplicate(), whole.duplicate()], Instant(1));
            assert!(outcome.done.iter().all(|(_, reason)| reason.is_none()));
            for segment in [segments(&whole), segments(&whole)].concat() {
                let mut came = next(&mut receiver);
                frame::complete_checksum(&mut came);
                assert!(came.payload() == segment);
            }
            let stats = device.stats();
            let expected = if bypass { (2, 40) } else { (0, 2) };
            assert_eq!((stats.segmented.get(), stats.frames.get()), expected);
        }
    });
}

/// The interface is promiscuous as long as a receiver wants it to be.
#[test]
fn promiscuous_ends_with_the_receiver() {
    let count = || {
        let output = Command::new("ip").args(["-d", "link", "show", "v1"]).output();
        let text = String::from_utf8(output.expect("ip runs").stdout).expect("text");
        let (_, rest) = text.split_once("promiscuity ").expect("ip shows it");
        rest.split(' ').next().map(str::to_owned)
    };
    in_namespace("packet::promiscuous_ends_with_the_receiver", &PAIR, || {
        for promiscuous in [true, false] {
            let (socket, receiver) = open("v1", PacketOptions { promiscuous, ..OPTIONS });
            assert_eq!(count().as_deref(), Some(if promiscuous { "1" } else { "0" }));
            drop(receiver);
            assert_eq!(count().as_deref(), Some("0"));
            drop(socket);
        }
    });
}

/// A mark that a qdisc has set is written into the frame, whether it is cut or not.
#[test]
fn marks_are_written() {
    in_namespace("packet::marks_are_written", &PAIR, || {
        for offload in [true, false] {
            let [(mut device, _), (_, mut receiver)] = pair(PacketOptions { offload, ..OPTIONS });
            for (data, size) in [(100, 0), (5_000, 1_000)] {
                let mut frame = tcp(true, data, size, 0);
                frame.payload_mut()[15] |= 0x20;
                frame.ecn = 3;
                send(&mut device, frame);
                let came = next(&mut receiver);
                assert_eq!((came.payload()[15] & 0x30, came.ecn), (0x30, 3));
                while receiver.receive(10, &mut heap, &mut PacketList::new()).expect("up") > 0 {}
            }
        }
    });
}

/// A group of sockets shares the frames by flow.
#[test]
fn queues_share_the_flows() {
    in_namespace("packet::queues_share_the_flows", &PAIR, || {
        let mut device = open("v0", OPTIONS).0;
        let options = PacketOptions { fanout: Some(65_535), ..OPTIONS };
        let (mut first, mut one) = open("v1", options);
        let mut second = first.another_queue().expect("there is a group");
        let mut other = second.receiver().expect("nobody has taken it");
        let mut sent = 0;
        for port in 0..64_u16 {
            for _ in 0..3 {
                let mut frame = tcp(false, 100, 0, 0);
                frame.payload_mut()[34..36].copy_from_slice(&(1_000 + port).to_be_bytes());
                send(&mut device, frame);
                sent += 1;
            }
        }
        let mut flows = [Vec::new(), Vec::new()];
        while flows[0].len() + flows[1].len() < sent {
            wait(&[&one, &other], 1_000);
            for (receiver, flows) in [&mut one, &mut other].into_iter().zip(&mut flows) {
                let mut list = PacketList::new();
                receiver.receive(100, &mut heap, &mut list).expect("it is up");
                flows.extend(list.map(|packet| packet.flow));
            }
        }
        assert_eq!(flows[0].len() + flows[1].len(), sent);
        for flows in &mut flows {
            flows.sort_unstable();
            assert!(!flows.is_empty(), "64 flows are spread");
            assert!(flows.chunks(3).all(|three| three.len() == 3 && three[0] == three[2]));
        }
        // What the group's own host sends does not come back.
        send(&mut first, tcp(false, 100, 0, 0));
        send(&mut second, tcp(true, 100, 0, 0));
        assert_nothing(&mut one);
        assert_nothing(&mut other);
    });
}

/// Frames that nobody reads in time are counted.
#[test]
fn missed_frames_are_counted() {
    in_namespace("packet::missed_frames_are_counted", &PAIR, || {
        let mut device = open("v0", OPTIONS).0;
        let mut receiver = open("v1", PacketOptions { buffer: 16_384, ..OPTIONS }).1;
        let mut list = PacketList::new();
        for round in 1..=2 {
            (0..100).for_each(|_| send(&mut device, tcp(false, 1_000, 0, 0)));
            let end = MonotonicClock.now().after(PATIENCE_NS);
            while u64::from(list.len()) + receiver.missed() < 100 * round {
                assert!(MonotonicClock.now() < end, "some are neither received nor counted");
                receiver.receive(10, &mut heap, &mut list).expect("it is up");
            }
            let missed = receiver.missed();
            assert_eq!(u64::from(list.len()) + missed, 100 * round, "each is counted once");
            assert!(missed > 50 * round, "{missed} of {}", 100 * round);
            assert_eq!(receiver.stats().missed.get(), missed);
        }
    });
}

/// Sends one packet, and returns why it was dropped.
fn fate(device: &mut PacketSocket, packet: Packet) -> Option<DropReason> {
    let outcome = transmit(device, vec![packet], Instant(1));
    outcome.done.first().expect("it was taken or dropped").1
}
