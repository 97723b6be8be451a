//! Detours at one end of a veth pair. Only root outside of user namespaces may load their programs.

use std::net::UdpSocket;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use etherparse::PacketBuilder;
use onramp_core::{Clock, Device};
use onramp_dev::{Detour, MonotonicClock, PacketReceiver, PacketSocket, Receive, Side};
use onramp_queue::{Layer, Packet, PacketList};

use crate::common::in_child;
use crate::namespace::{in_namespace, in_namespace_of_root, is_root};
use crate::packet::{OPTIONS, PAIR, assert_nothing, open};
use crate::tap::{heap, ip, receive, send};

/// Runs the test in a namespace with a veth pair: `v0` is the host's interface, and `test` gets the
/// packet socket at the other end.
fn beside_a_peer(name: &str, test: impl FnOnce(PacketSocket, PacketReceiver)) {
    let set_up = [
        "ip link set v0 address 02:00:00:00:00:01",
        "ip addr add 192.0.2.1/24 dev v0",
        "ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev v0",
    ];
    in_namespace_of_root(name, &[&PAIR[..], &set_up].concat(), || {
        let (socket, receiver) = open("v1", OPTIONS);
        test(socket, receiver);
    });
}

fn begin(side: Side) -> (Detour, Box<dyn Device>) {
    let (detour, device) = Detour::lay("v0", side, 1).expect("root may");
    detour.switch().set(true).expect("the interface is there");
    (detour, device)
}

/// Returns the frame in which the peer sends these bytes to the host's port 7000.
fn datagram(bytes: &[u8]) -> Packet {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
        .ipv4([192, 0, 2, 2], [192, 0, 2, 1], 64)
        .udp(7_001, 7_000);
    let mut frame = Vec::new();
    builder.write(&mut frame, bytes).expect("a vector grows");
    let mut packet = Packet::with_payload(&frame);
    packet.set_layer(Layer::Ethernet);
    packet
}

fn ends_with(bytes: &'static [u8]) -> impl Fn(&Packet) -> bool {
    |packet| packet.payload().ends_with(bytes)
}

#[test]
fn egress_packets_wait_for_the_program() {
    beside_a_peer("detour::egress_packets_wait_for_the_program", |_, mut peer| {
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of v0");
        let say = |bytes: &[u8]| {
            socket.send_to(bytes, "192.0.2.2:7001").expect("it is sent");
        };
        let (mut detour, mut device) = begin(Side::Egress);
        // What the TAP gets from elsewhere is no packet of the interface.
        let mut other = PacketSocket::open("onramp0", OPTIONS).expect("the detour's TAP");
        let (mut burst, mut done) =
            ([datagram(b"of nobody")].into_iter().collect(), PacketList::new());
        other.transmit(&mut burst, &mut done, MonotonicClock.now());
        assert_eq!((burst.len(), other.stats().full.get()), (1, 1), "the kernel refuses it");
        say(b"first");
        let packet = receive(&mut detour, |_| true);
        assert!(packet.payload().ends_with(b"first"));
        assert_nothing(&mut peer);
        let bytes = packet.payload().to_vec();
        send(&mut *device, packet);
        assert_eq!(receive(&mut peer, |_| true).payload(), bytes);
        assert_nothing(&mut detour);
        // Frames are lost when nobody reads them, and each is counted.
        let many = 9_000;
        (0..many).for_each(|_| say(b"flood"));
        let (mut count, mut list) = (0, PacketList::new());
        while detour.receive(100, &mut heap, &mut list).expect("it works") > 0 {
            count += std::mem::take(&mut list).len();
        }
        assert_eq!(detour.missed() + u64::from(count), many);
        assert!((100..many).contains(&u64::from(count)), "{count}");
        assert_nothing(&mut peer);
        drop(detour);
        say(b"straight");
        assert!(receive(&mut peer, |_| true).payload().ends_with(b"straight"));
    });
}

#[test]
fn ingress_packets_wait_for_the_program() {
    let name = "detour::ingress_packets_wait_for_the_program";
    beside_a_peer(name, |mut peer, mut answers| {
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of v0");
        let hear = || {
            let (mut buffer, patience) = ([0; 100], Duration::from_secs(120));
            socket.set_read_timeout(Some(patience)).expect("a timeout");
            let (len, from) = socket.recv_from(&mut buffer).expect("a datagram");
            assert_eq!(from.to_string(), "192.0.2.2:7001");
            buffer[..len].to_vec()
        };
        let (mut detour, mut device) = begin(Side::Ingress);
        send(&mut peer, datagram(b"first"));
        let first = receive(&mut detour, ends_with(b"first"));
        send(&mut peer, datagram(b"second"));
        let second = receive(&mut detour, ends_with(b"second"));
        // The order in which the host gets them shows that none went straight to it.
        send(&mut *device, second);
        send(&mut *device, first);
        assert_eq!([hear(), hear()], [b"second".to_vec(), b"first".to_vec()]);
        assert_nothing(&mut detour);
        // The other direction is as it was.
        socket.send_to(b"answer", "192.0.2.2:7001").expect("it is sent");
        receive(&mut answers, ends_with(b"answer"));
        drop((detour, device));
        send(&mut peer, datagram(b"straight"));
        assert_eq!(hear(), b"straight");
    });
}

#[test]
fn both_directions_at_once_do_not_meet() {
    beside_a_peer("detour::both_directions_at_once_do_not_meet", |mut peer, mut answers| {
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of v0");
        let (mut out, mut to_peer) = begin(Side::Egress);
        let (mut into, mut to_host) = begin(Side::Ingress);
        send(&mut peer, datagram(b"question"));
        send(&mut *to_host, receive(&mut into, |_| true));
        let mut buffer = [0; 100];
        let (len, from) = socket.recv_from(&mut buffer).expect("a datagram");
        assert_eq!(&buffer[..len], b"question");
        socket.send_to(b"answer", from).expect("it is sent");
        send(&mut *to_peer, receive(&mut out, |_| true));
        receive(&mut answers, ends_with(b"answer"));
        assert_nothing(&mut out);
        assert_nothing(&mut into);
    });
}

/// A detour that is switched off leaves packets alone, and so does one that has ended, whatever its
/// switch says.
#[test]
fn a_switch_leads_packets_aside() {
    beside_a_peer("detour::a_switch_leads_packets_aside", |_, mut peer| {
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of v0");
        let say = |bytes: &[u8]| {
            socket.send_to(bytes, "192.0.2.2:7001").expect("it is sent");
        };
        let (mut detour, _device) = Detour::lay("v0", Side::Egress, 1).expect("root may");
        let switch = detour.switch();
        say(b"off");
        receive(&mut peer, ends_with(b"off"));
        for _ in 0..2 {
            switch.set(true).expect("the interface is there");
            switch.set(true).expect("it is on");
            say(b"on");
            receive(&mut detour, ends_with(b"on"));
            switch.set(false).expect("nothing can fail");
            say(b"off again");
            receive(&mut peer, ends_with(b"off again"));
            assert_nothing(&mut detour);
        }
        drop(detour);
        switch.set(true).expect("nothing happens");
        say(b"over");
        receive(&mut peer, ends_with(b"over"));
    });
}

/// A child that drops its copy does not wait for the switch's lock, which a thread of the parent
/// may have held, and the parent's detour goes on.
#[test]
fn a_child_leaves_the_detour_to_its_parent() {
    beside_a_peer("detour::a_child_leaves_the_detour_to_its_parent", |_, mut peer| {
        let (detour, _device) = begin(Side::Egress);
        let (switch, (lives, ends)) = (detour.switch(), mpsc::channel::<()>());
        let mut detour = Some(detour);
        thread::scope(|scope| {
            scope.spawn(move || {
                while ends.try_recv() == Err(TryRecvError::Empty) {
                    switch.set(false).expect("the interface is there");
                    switch.set(true).expect("the interface is there");
                }
            });
            (0..30).for_each(|_| in_child(|| drop(detour.take())));
            drop(lives);
        });
        let socket = UdpSocket::bind("192.0.2.1:7000").expect("an address of v0");
        socket.send_to(b"led round", "192.0.2.2:7001").expect("it is sent");
        let mut detour = detour.expect("the children took their copies");
        assert!(receive(&mut detour, |_| true).payload().ends_with(b"led round"));
        assert_nothing(&mut peer);
    });
}

/// A second detour of a direction would lead packets back to the first one.
#[test]
fn a_direction_has_one_detour() {
    beside_a_peer("detour::a_direction_has_one_detour", |_, _| {
        let first = begin(Side::Egress);
        let error = Detour::lay("v0", Side::Egress, 1).err().expect("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
        assert!(
            error.to_string().contains("another Onramp shapes what leaves through v0"),
            "{error}"
        );
        let other = begin(Side::Ingress);
        drop(first);
        drop(begin(Side::Egress));
        // A bridge would carry each frame twice that comes in.
        let error = PacketSocket::open_side("v0", 1).expect_err("refused").to_string();
        assert!(error.contains("another Onramp carries what comes in through v0"), "{error}");
        drop(other);
        let side = PacketSocket::open_side("v0", 1).expect("it is free");
        PacketSocket::open_side("v0", 1).expect_err("it is a side already");
        Detour::lay("v0", Side::Ingress, 1).err().expect("refused");
        drop((begin(Side::Egress), side));
    });
}

#[test]
fn an_interface_that_is_gone_is_an_error() {
    beside_a_peer("detour::an_interface_that_is_gone_is_an_error", |_, _| {
        let (mut detour, _device) = begin(Side::Egress);
        assert_nothing(&mut detour);
        ip("link del v0");
        let error = detour.receive(1, &mut heap, &mut PacketList::new()).expect_err("it is gone");
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        assert!(error.to_string().contains("interface v0 was removed"), "{error}");
    });
}

/// Packets would be lost in a TAP that a program sets down.
#[test]
fn a_tap_that_is_down_is_an_error() {
    beside_a_peer("detour::a_tap_that_is_down_is_an_error", |_, _| {
        let (mut detour, _device) = begin(Side::Ingress);
        ip("link set onramp0 down");
        let error = detour.receive(1, &mut heap, &mut PacketList::new()).expect_err("it is down");
        assert!(error.to_string().contains("interface onramp0 was set down"), "{error}");
    });
}

#[test]
fn refusals_say_why() {
    in_namespace("detour::refusals_say_why", &PAIR, || {
        let error = |name| {
            let laid = Detour::lay(name, Side::Egress, 0);
            laid.err().expect("refused").to_string()
        };
        assert!(error("x9").contains("no such interface"), "{}", error("x9"));
        assert!(error("lo").contains("not an Ethernet"), "{}", error("lo"));
        if !is_root() {
            let why = error("v0");
            assert!(
                why.contains("detour at v0: this needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"),
                "{why}"
            );
        }
    });
}
