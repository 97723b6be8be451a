//! A UDP device and its receiver allocate no memory per packet.

use std::net::SocketAddr;

use onramp_core::{Device, Instant};
use onramp_dev::{Receive, Udp, UdpOptions};
use onramp_queue::{Packet, PacketList};

use crate::common::{Sink, packet};

/// Counts the memory allocations in 200 bursts with every kind of message. Sends `warm_up` bursts
/// before it counts.
fn allocations(udp: &mut Udp, sink: SocketAddr, warm_up: usize) -> u64 {
    let packets = (0..60_usize).map(|number| {
        // The burst holds consecutive packets of a flow, single packets, packets with ECN code
        // points, and super-packets (of several datagrams).
        let mut pkt = packet(Some(sink), number as u64 / 20, 40 + number % 7 / 5, 0);
        pkt.ecn = u8::from(number % 10 == 0);
        pkt.gso_size = if number % 15 == 0 { 16 } else { 0 };
        pkt
    });
    let mut burst: PacketList = packets.collect();
    let mut done = PacketList::new();
    let mut turn = || {
        udp.transmit(&mut burst, &mut done, Instant(1));
        assert_eq!((burst.len(), done.len()), (0, 60), "the loopback takes everything");
        std::mem::swap(&mut burst, &mut done);
    };
    (0..warm_up).for_each(|_| turn());
    allocation_counter::measure(|| (0..200).for_each(|_| turn())).count_total
}

#[test]
fn a_burst_allocates_nothing() {
    // No thread reads from the sink. When its buffer is full, the kernel silently drops further
    // datagrams.
    let sink = Sink::bind("127.0.0.1:0");
    for gso in [true, false] {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port is free");
        let options = UdpOptions { gso, ..UdpOptions::default() };
        let mut udp = Udp::new(socket, options).expect("a fresh socket will do");
        assert_eq!(allocations(&mut udp, sink.addr(), 0), 0, "gso {gso}");
        assert!(udp.stats().segments.get() > 200 * 60);
    }
}

/// Received packets lie where the caller wants them, so a receiver allocates nothing either.
#[test]
fn a_received_datagram_allocates_nothing() {
    let bind = || Udp::bind("127.0.0.1:0".parse().expect("an address")).expect("a port is free");
    let (mut sender, socket) = (bind(), bind());
    let to = socket.socket().local_addr().expect("it is bound");
    let mut receiver = socket.receiver().expect("a fresh socket will do");
    let mut pool: Vec<_> = (0..64).map(|_| Packet::with_capacity(u16::MAX)).collect();
    let mut burst: PacketList = (0..40).map(|n| packet(Some(to), n / 20, 1_000, 0)).collect();
    let (mut done, mut received) = (PacketList::new(), PacketList::new());
    let mut turn = || {
        sender.transmit(&mut burst, &mut done, Instant(1));
        std::mem::swap(&mut burst, &mut done);
        while receiver.receive(4, &mut |_| pool.pop(), &mut received).expect("it can") > 0 {
            pool.extend(received.by_ref());
        }
    };
    turn();
    let counted = allocation_counter::measure(|| (0..200).for_each(|_| turn()));
    assert_eq!(counted.count_total, 0);
    let stats = receiver.stats();
    assert_eq!((stats.datagrams.get(), stats.packets.get()), (201 * 40, 201 * 2));
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocation_counter::measure(|| drop(vec![0; 9])).count_total, 1);
}
