//! The sockets of a link, and what comes to them.

use std::net::UdpSocket;
use std::time::Duration;

use onramp::dev::{Null, Receive, UdpReceiver, UdpReceiverOptions};
use onramp::frame::Datagram;
use onramp::{Link, Mapping, Packet, PacketList};
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
        sender.flush(Duration::from_secs(20));
        let packet = receive(&mut questions, 1).pop_front().expect("it came");
        let question = Datagram::of(&packet).expect("an IP packet");
        assert_eq!((question.data, question.source), (&b"a question"[..], address(&one, port)));
        assert_eq!(question.destination, address(&other, port));
        let mut sender = other.sender();
        let flow = sender.flow_with(question.source, Mapping::Port(port));
        sender.send(&flow, b"an answer").expect("the link is open");
        sender.flush(Duration::from_secs(20));
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
