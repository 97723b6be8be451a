//! The sockets of a link, and what comes to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use onramp::dev::{Null, Receive, Source, UdpReceiver, UdpReceiverOptions};
use onramp::frame::Datagram;
use onramp::{DropReason, Link, Mapping, Message, Packet, PacketList};
use rustix::event::{PollFd, PollFlags, poll};

/// Receives packets until there are `count`.
fn receive(receiver: &mut UdpReceiver, count: u32) -> PacketList {
    let mut list = PacketList::new();
    let mut make = |bytes: usize| Some(Packet::with_capacity(bytes.try_into().ok()?));
    loop {
        receiver.receive(64, &mut make, &mut list).expect("the socket is open");
        if list.len() >= count {
            return list;
        }
        poll(&mut [PollFd::new(receiver, PollFlags::IN)], None).expect("it waits");
    }
}

/// Two links talk to each other: each answers at the address from which it was asked, through the
/// port to which the question came.
#[test]
fn links_talk_to_each_other() {
    let [one, other] = [2, 3].map(|ports| {
        let link = Link::udp("127.0.0.1:0").ports(ports).qdisc("fq").build().expect("a link");
        assert_eq!(link.ports(), ports);
        link
    });
    let address = |link: &Link, port| link.socket(port).expect("a port").local_addr().expect("one");
    for port in 0..2 {
        let mut answers = one.udp_receiver(port, UdpReceiverOptions::default()).expect("a port");
        let mut questions = other.udp_receiver(port, UdpReceiverOptions::default()).expect("too");
        let mut sender = one.sender();
        let flow = sender.flow_with(address(&other, port), Mapping::Port(port));
        sender.send(&flow, b"a question").expect("the link is open");
        sender.flush(Duration::from_secs(120));
        let packet = receive(&mut questions, 1).pop_front().expect("it came");
        let question = Datagram::of(&packet).expect("an IP packet");
        assert_eq!((question.data, question.source), (&b"a question"[..], address(&one, port)));
        assert_eq!(question.destination, address(&other, port));
        let mut sender = other.sender();
        let flow = sender.flow_with(question.source, Mapping::Port(port));
        sender.send(&flow, b"an answer").expect("the link is open");
        sender.flush(Duration::from_secs(120));
        let packet = receive(&mut answers, 1).pop_front().expect("it came");
        assert_eq!(Datagram::of(&packet).expect("an IP packet").data, b"an answer");
    }
}

#[test]
fn only_ports_over_sockets_have_sockets() {
    let link = Link::devices([Box::new(Null::default()) as Box<_>]).build().expect("a link");
    assert!(link.socket(0).is_none());
    let error = link.udp_receiver(0, UdpReceiverOptions::default()).expect_err("a null device");
    assert_eq!(error.to_string(), "port 0 of the link has no UDP socket");
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
    let address = sockets[0].local_addr().expect("an address");
    let link = Link::sockets(sockets).build().expect("a link");
    let socket = link.socket(0).expect("the caller's").clone();
    assert_eq!(socket.local_addr().expect("an address"), address);
    assert!(link.socket(2).is_none());
    // The socket outlives the link as long as somebody has it.
    drop(link);
    UdpSocket::bind(address).expect_err("the address is in use");
    drop(socket);
    UdpSocket::bind(address).expect("the address is free again");
}

/// A server that is bound to no address answers from the address that it was asked on, over IPv4
/// and IPv6, and over IPv4 from an IPv6 socket. Datagrams of different sources are not joined.
#[test]
fn answers_come_from_the_address_that_was_asked() {
    let v4 = |last| IpAddr::from([127, 0, 0, last]);
    let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    for (server, client, sources) in [
        ("0.0.0.0:0", "127.0.0.1:0", vec![(v4(7), 0), (v4(8), 1), (any, 1), (v4(7), 0)]),
        ("[::]:0", "127.0.0.1:0", vec![(v4(9), 0), (v4(7), 1), (any, 0)]),
        ("[::]:0", "[::1]:0", vec![(v6, 0), (v6, 1), (Ipv6Addr::UNSPECIFIED.into(), 1)]),
    ] {
        let client = UdpSocket::bind(client).expect("a socket");
        client.set_read_timeout(Some(Duration::from_secs(50))).expect("an option");
        let link = Link::udp(server).ports(1).qdisc("pfifo").build().expect("a link");
        let port = link.local_addr(0).expect("it has a socket").port();
        let mut sender = link.sender();
        let to = sender.flow(client.local_addr().expect("an address"));
        sender.cork();
        for (addr, interface) in &sources {
            let flow = to.clone().with_source(Source::new(*addr, *interface).expect("a number"));
            // Two datagrams each, so that one message carries its source and its segment size.
            let message = Message { payload: b"abcd", segment: 2, ..Message::default() };
            sender.send_message(&flow, &message).expect("the link is open");
        }
        sender.uncork().expect("there is room");
        for (addr, _) in sources.iter().flat_map(|source| [source, source]) {
            let mut buffer = [0; 8];
            let (len, from) = client.recv_from(&mut buffer).expect("an answer");
            assert_eq!((len, from.port()), (2, port));
            let chosen = client.local_addr().expect("an address").ip();
            assert_eq!(from.ip(), if addr.is_unspecified() { chosen } else { *addr });
        }
    }
}

/// A datagram whose source the kernel refuses is dropped and counted, and never leaves from another
/// address.
#[test]
fn a_source_that_is_not_of_this_machine_sends_nothing() {
    let documentation = IpAddr::from([192, 0, 2, 77]);
    let (v6, nowhere) = (IpAddr::from(Ipv6Addr::LOCALHOST), "2001:db8::77".parse().unwrap());
    for (server, client, source) in [
        ("0.0.0.0:0", "127.0.0.1:0", (documentation, 0)),
        ("0.0.0.0:0", "127.0.0.1:0", (v6, 0)),
        ("0.0.0.0:0", "127.0.0.1:0", (IpAddr::from([127, 0, 0, 1]), 1_000_000)),
        ("[::]:0", "[::1]:0", (nowhere, 0)),
        ("[::]:0", "127.0.0.1:0", (v6, 0)),
        ("[::]:0", "[::1]:0", (documentation, 0)),
    ] {
        let client = UdpSocket::bind(client).expect("a socket");
        client.set_nonblocking(true).expect("an option");
        let link = Link::udp(server).ports(1).build().expect("a link");
        let mut sender = link.sender();
        let flow = sender.flow(client.local_addr().expect("an address"));
        let flow = flow.with_source(Source::new(source.0, source.1).expect("a number"));
        sender.send(&flow, b"x").expect("the link is open");
        assert!(sender.flush(Duration::from_secs(50)));
        let dropped = link.stats().dropped;
        let reasons = [DropReason::DeviceError, DropReason::Unreachable];
        let known: u64 = reasons.iter().filter_map(|reason| dropped.get(reason)).sum();
        assert_eq!((known, link.stats().sent), (1, 0), "{server} {source:?}: {dropped:?}");
        client.recv(&mut [0; 8]).expect_err("nothing came");
    }
}
