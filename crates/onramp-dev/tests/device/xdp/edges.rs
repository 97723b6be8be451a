//! AF_XDP where the kernel takes nothing, loses something, or has no interface any more.

use onramp_dev::{PacketOptions, PacketReceiver, PacketSocket};

use super::*;
use crate::tap::tcp;

const SENDS: XdpOptions = XdpOptions {
    receive: false,
    frames: 2_048,
    copying: Copying::Any,
    attach: Attach::Any,
    seed: 0,
};

/// Commands that make a pair whose `x0` can send through its first queue only.
const UNEVEN: [&str; 3] = [
    "ip link add x0 numtxqueues 1 numrxqueues 2 type veth peer name x1",
    "ip link set x0 up",
    "ip link set x1 up",
];

fn numbered(number: u32) -> Packet {
    udp(&number.to_le_bytes())
}

/// A kernel whose interface has no carrier drops each frame with an error, and says late that it
/// has taken them. All packets count as sent, and their frames as lost.
#[test]
fn frames_without_carrier_are_lost_and_counted() {
    in_namespace_of_root("xdp::edges::frames_without_carrier_are_lost_and_counted", &PAIR, || {
        let mut xdp = Xdp::open("x0", 0, SENDS).expect("root in its namespace may");
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of x1");
        socket.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        ip("link set x1 down");
        let (mut burst, mut done) = ((0..5_000).map(numbered).collect(), PacketList::new());
        for _ in 0..10 {
            xdp.transmit(&mut burst, &mut done, Instant(1));
        }
        assert_eq!((burst.len(), done.len()), (0, 5_000));
        assert!(done.metas().all(|meta| meta.drop_reason.is_none()));
        let stats = xdp.stats();
        assert_eq!((stats.frames.get(), stats.lost.get()), (5_000, 5_000));
        ip("link set x1 up");
        assert_eq!(send(&mut xdp, [numbered(7)]), [None]);
        let mut number = [0; 4];
        socket.recv(&mut number).expect("a datagram");
        assert_eq!((number, stats.lost.get()), ([7, 0, 0, 0], 5_000));
    });
}

/// A queue through which the card cannot send takes nothing and reports nothing. After a second,
/// packets are dropped.
#[test]
fn a_queue_that_takes_nothing_drops() {
    in_namespace_of_root("xdp::edges::a_queue_that_takes_nothing_drops", &UNEVEN, || {
        let mut xdp = Xdp::open("x0", 1, XdpOptions { frames: 8, ..SENDS }).expect("it receives");
        let (mut burst, mut done) = ((0..20).map(numbered).collect(), PacketList::new());
        for at in [1, 500_000_000, 1_000_000_000] {
            let out = xdp.transmit(&mut burst, &mut done, Instant(at));
            assert!(out.retry_at.is_some_and(|at| at > Instant(1)));
            assert_eq!((burst.len(), done.len()), (13, 7), "eight are in the ring");
        }
        let out = xdp.transmit(&mut burst, &mut done, Instant(1_000_000_001));
        assert_eq!((out.retry_at, burst.len(), done.len()), (None, 0, 20));
        let dropped = done.metas().map(|meta| meta.drop_reason);
        let error = Some(DropReason::DeviceError);
        assert!(dropped.eq((0..20).map(|number| error.filter(|_| number >= 8))));
        // Nothing has changed, so nothing waits for another second.
        assert_eq!(send(&mut xdp, [numbered(20)]), [error]);
        assert_eq!(xdp.stats().frames.get(), 8);
    });
}

/// A packet that was cancelled while its frame is in the ring is not taken for another one.
#[test]
fn a_packet_behind_a_cancelled_one_is_sent() {
    in_namespace_of_root("xdp::edges::a_packet_behind_a_cancelled_one_is_sent", &UNEVEN, || {
        let mut xdp = Xdp::open("x0", 1, SENDS).expect("it receives");
        let (mut burst, mut done) = (PacketList::from_iter([numbered(1)]), PacketList::new());
        for _ in 0..3 {
            xdp.transmit(&mut burst, &mut done, Instant(1));
            assert_eq!((burst.len(), xdp.stats().frames.get()), (1, 1), "it is put once");
        }
        // The memory of the cancelled packet is used again.
        let mut cancelled = burst.pop_front().expect("it waits");
        cancelled.set_payload(numbered(2).payload());
        burst.push_front(cancelled);
        for _ in 0..2 {
            xdp.transmit(&mut burst, &mut done, Instant(2));
            assert_eq!((burst.len(), xdp.stats().frames.get()), (1, 2), "another one is put");
        }
        assert!(done.is_empty());
    });
}

/// Waits for the next packet of [`numbered`], and returns its number.
fn next(receiver: &mut PacketReceiver) -> u8 {
    let end = MonotonicClock.now().after(PATIENCE_NS);
    loop {
        let mut list = PacketList::new();
        receiver.receive(1, &mut heap, &mut list).expect("the interface is up");
        if let Some(packet) = list.pop_front()
            && packet.payload().get(23) == Some(&17)
        {
            return packet.payload()[42];
        }
        assert!(MonotonicClock.now() < end, "no packet came");
        thread::yield_now();
    }
}

/// A super-frame of more segments than there are frames is dropped, and does not block the others.
#[test]
fn what_fits_no_memory_is_dropped() {
    in_namespace_of_root("xdp::edges::what_fits_no_memory_is_dropped", &PAIR, || {
        let mut xdp = Xdp::open("x0", 0, XdpOptions { frames: 8, ..SENDS }).expect("root may");
        let packets = [tcp(false, 9_000, 1_000, 0), tcp(false, 8_000, 1_000, 0), numbered(1)];
        assert_eq!(send(&mut xdp, packets), [Some(DropReason::MessageSize), None, None]);
        assert_eq!(xdp.stats().frames.get(), 9);
    });
}

/// A receiver hears of an interface that is gone, and not of one that is only down.
#[test]
fn a_removed_interface_is_an_error() {
    in_namespace_of_root("xdp::edges::a_removed_interface_is_an_error", &PAIR, || {
        let mut xdp = Xdp::open("x0", 0, XdpOptions::default()).expect("root may");
        let mut receiver = xdp.receiver().expect("it receives");
        ip("link set x0 down");
        let mut list = PacketList::new();
        while receiver.receive(8, &mut heap, &mut list).expect("it is only down") > 0 {}
        ip("link del x0");
        for _ in 0..2 {
            let error = receiver.receive(8, &mut heap, &mut list).expect_err("it is gone");
            assert!(error.to_string().starts_with("the interface x0 was removed"), "{error}");
        }
        let _in_the_ring = send(&mut xdp, [numbered(1)]);
        assert_eq!(send(&mut xdp, [numbered(2)]), [Some(DropReason::Unreachable)]);
    });
}

/// The kernel's own stack has the frames of a queue as long as nobody receives them.
#[test]
fn without_a_receiver_the_kernel_has_the_frames() {
    in_namespace_of_root("xdp::edges::without_a_receiver_the_kernel_has_the_frames", &PAIR, || {
        let mut stack = PacketSocket::open("x0", PacketOptions::default()).expect("root may");
        let mut stack = stack.receiver().expect("nobody has it");
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of x1");
        let give = |number| {
            socket.send_to(&[number], "192.0.2.2:7001").expect("it is sent");
        };
        for attach in [Attach::Driver, Attach::Generic] {
            let options = XdpOptions { attach, ..XdpOptions::default() };
            let mut xdp = Xdp::open("x0", 0, options).expect("root may");
            give(1);
            assert_eq!(next(&mut stack), 1);
            let mut receiver = xdp.receiver().expect("it receives");
            give(2);
            assert_eq!(receive(&mut receiver).payload()[42], 2);
            drop(receiver);
            give(3);
            assert_eq!(next(&mut stack), 3, "the stack has not seen the second");
        }
    });
}

/// A driver that takes no program, because the far end has more queues, is no hindrance.
#[test]
fn any_attachment_falls_back() {
    let set_up = [
        "ip link add x0 numtxqueues 1 numrxqueues 1 type veth peer name x1 numtxqueues 2",
        "ip link set x0 up",
        "ip link set x1 up",
        "ip addr add 192.0.2.1/24 dev x1",
        "ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev x1",
    ];
    in_namespace_of_root("xdp::edges::any_attachment_falls_back", &set_up, || {
        let options = XdpOptions { attach: Attach::Driver, ..XdpOptions::default() };
        let error = Xdp::open("x0", 0, options).expect_err("it has too few queues");
        assert!(error.to_string().contains("try `Attach::Generic`"), "{error}");
        let mut xdp = Xdp::open("x0", 0, XdpOptions::default()).expect("in front of the stack");
        let mut receiver = xdp.receiver().expect("it receives");
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of x1");
        socket.send_to(b"hello", "192.0.2.2:7001").expect("it is sent");
        assert_eq!(receive(&mut receiver).payload()[42..47], *b"hello");
    });
}

/// A packet that is no frame is dropped: the kernel would never give the memory of an empty one
/// back, so that the device would send nothing more after a few.
#[test]
fn what_is_no_frame_is_dropped() {
    in_namespace_of_root("xdp::edges::what_is_no_frame_is_dropped", &PAIR, || {
        let mut xdp = Xdp::open("x0", 0, XdpOptions { frames: 8, ..SENDS }).expect("root may");
        for _ in 0..20 {
            let none = [0, 13].map(|bytes| Packet::with_payload(&vec![0; bytes]));
            assert_eq!(send(&mut xdp, none), [Some(DropReason::MessageSize); 2]);
        }
        assert_eq!(send(&mut xdp, [numbered(1)]), [None]);
    });
}
