//! A UDP device allocates no memory per packet.

use std::net::SocketAddr;

use onramp_core::{Device, Instant};
use onramp_dev::{Udp, UdpOptions};
use onramp_queue::PacketList;

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

#[test]
fn the_counter_counts() {
    assert_eq!(allocation_counter::measure(|| drop(vec![0; 9])).count_total, 1);
}
