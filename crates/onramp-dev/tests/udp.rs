//! UDP on this machine's loopback: what arrives is what was sent.

mod common;

use std::net::{SocketAddr, UdpSocket};

use common::{Sink, packet, pattern, transmit, transmit_all};
use onramp_core::{Device, Instant};
use onramp_dev::{Udp, UdpOptions};
use onramp_queue::{DropReason, Packet};

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

/// Expects the payloads that `packet` made with these lengths and the seeds 0, 1, ...
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
    assert!(most == 64 || most == 128, "{most}");
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
    let sink = Sink::bind("127.0.0.1:0");
    let mut udp = connected(&sink, UdpOptions::default());
    drop(sink);
    // On loopback the ICMP error comes back within the send, so every message but the first finds
    // that of the one before, and goes out when offered again.
    for _ in 0..3 {
        transmit_all(&mut udp, vec![packet(None, 1, 50, 0)]);
    }
    let stats = udp.stats();
    assert_eq!((stats.calls.get(), stats.messages.get(), stats.earlier_errors.get()), (5, 3, 2));
    // Within a call the kernel stops, and keeps the error to itself.
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
