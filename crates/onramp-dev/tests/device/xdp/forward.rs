//! Frames that go from one AF_XDP socket to another.

use onramp_dev::{PacketOptions, PacketSocket};

use super::*;

/// Two veth pairs: what the kernel sends from `x1` to 192.0.2.2 comes out of `x0`.
fn two_pairs() -> Vec<&'static str> {
    let more = ["ip link add y0 type veth peer name y1", "ip link set y0 up", "ip link set y1 up"];
    PAIR.into_iter().chain(more).collect()
}

/// Both sockets, with the receiver of the first.
fn open(options: XdpOptions) -> ([Xdp; 2], XdpReceiver) {
    let both = Xdp::open_all(&[("x0", 0), ("y0", 0)], options).expect("root may");
    let mut both: [Xdp; 2] = both.try_into().expect("two");
    let receiver = both[0].receiver().expect("it receives");
    (both, receiver)
}

/// Sends `count` datagrams through `x1`, each with its number.
fn ask(socket: &UdpSocket, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let data = [&number.to_le_bytes()[..], &[0xa5; 1_000]].concat();
        socket.send_to(&data, "192.0.2.2:7001").expect("it is sent");
    }
}

/// Receives datagrams until there are `count`.
fn take(receiver: &mut XdpReceiver, count: usize) -> Vec<Packet> {
    (0..count).map(|_| receive(receiver)).collect()
}

fn number(packet: &Packet) -> u32 {
    u32::from_le_bytes(packet.payload()[42..46].try_into().expect("four bytes"))
}

#[test]
fn a_forwarded_frame_is_not_copied() {
    in_namespace_of_root("xdp::forward::a_forwarded_frame_is_not_copied", &two_pairs(), || {
        let ([x0, mut y0], mut receiver) = open(XdpOptions { frames: 64, ..XdpOptions::default() });
        let mut end = PacketSocket::open("y1", PacketOptions::default()).expect("root may");
        let mut end = end.receiver().expect("root may");
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of x1");
        // More frames than the memory has, in groups that half of the frames hold.
        for group in 0..50 {
            let numbers = group * 30..group * 30 + 30;
            ask(&socket, numbers.clone());
            let packets = take(&mut receiver, 30);
            assert!(packets.iter().map(number).eq(numbers.clone()));
            assert!(send(&mut y0, packets).iter().all(Option::is_none));
            for expected in numbers {
                let packet = loop {
                    let mut list = PacketList::new();
                    end.receive(1, &mut heap, &mut list).expect("the interface is up");
                    let udp = |packet: &Packet| packet.payload().get(23) == Some(&17);
                    if let Some(packet) = list.pop_front().filter(udp) {
                        break packet;
                    }
                };
                assert_eq!(number(&packet), expected);
                assert_eq!(packet.payload()[46..], [0xa5; 1_000]);
            }
        }
        let (sent, got) = (y0.stats(), x0.stats());
        assert_eq!((sent.frames.get(), sent.copied.get()), (1_500, 0));
        assert_eq!(got.received_copied.get(), 0);
        // A packet from elsewhere is copied.
        assert_eq!(send(&mut y0, [udp(b"from the heap")]), [None]);
        assert_eq!((sent.frames.get(), sent.copied.get()), (1_501, 1));
    });
}

/// Packets that are kept for long take up half of the frames; the others are copied, and all
/// arrive.
#[test]
fn packets_that_wait_do_not_stop_the_receiver() {
    let name = "xdp::forward::packets_that_wait_do_not_stop_the_receiver";
    in_namespace_of_root(name, &two_pairs(), || {
        let ([x0, mut y0], mut receiver) = open(XdpOptions { frames: 16, ..XdpOptions::default() });
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of x1");
        let mut waiting = Vec::new();
        for number in 0..200 {
            ask(&socket, number..number + 1);
            waiting.extend(take(&mut receiver, 1));
        }
        assert!(waiting.iter().map(number).eq(0..200));
        let stats = x0.stats();
        assert!(stats.received_copied.get() >= 192, "{stats:?}");
        // The packets outlive the sockets of their memory.
        drop((receiver, x0));
        assert!(send(&mut y0, waiting).iter().all(Option::is_none));
        // A frame of the kernel's own, such as one of IPv6, may have been received as well.
        let copied = y0.stats().copied.get();
        assert!((192..=stats.received_copied.get()).contains(&copied), "{copied}: {stats:?}");
    });
}

/// The kernel takes nothing while the interface is down. What lies in the ring is not overwritten
/// by frames that come in, and leaves when the interface is up.
#[test]
fn frames_in_a_ring_stay_as_they_are() {
    in_namespace_of_root("xdp::forward::frames_in_a_ring_stay_as_they_are", &two_pairs(), || {
        let ([_x0, mut y0], mut receiver) = open(XdpOptions { frames: 8, ..XdpOptions::default() });
        let mut end = PacketSocket::open("y1", PacketOptions::default()).expect("root may");
        let mut end = end.receiver().expect("root may");
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of x1");
        ip("link set y0 down");
        ask(&socket, 0..3);
        let packets = take(&mut receiver, 3);
        assert_eq!(send(&mut y0, packets), [None; 3], "they are in the ring");
        // These would take the frames of the first three if they were free.
        for number in 100..150 {
            ask(&socket, number..number + 1);
            drop(take(&mut receiver, 1));
        }
        ip("link set y0 up");
        // The next packet lets the kernel look at the ring again.
        assert_eq!(send(&mut y0, [udp(&77_u32.to_le_bytes())]), [None]);
        let mut numbers = Vec::new();
        let until = MonotonicClock.now().after(PATIENCE_NS);
        while numbers.last() != Some(&77) {
            let mut list = PacketList::new();
            // The first call may report that the interface was down.
            let _ = end.receive(1, &mut heap, &mut list);
            let udp = list.pop_front().filter(|packet| packet.payload().get(23) == Some(&17));
            numbers.extend(udp.iter().map(number));
            assert!(MonotonicClock.now() < until, "{numbers:?}");
        }
        assert_eq!(numbers, [0, 1, 2, 77]);
    });
}
