//! Receivers that see what arrived, and a driver that checks conservation.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use onramp_core::{Device, Instant, Transmitted};
use onramp_queue::{DropReason, Packet, PacketList};
use socket2::SockRef;

/// Long enough that only a datagram that never comes runs into it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A bound socket with room for megabytes.
pub(crate) struct Sink(UdpSocket);

impl Sink {
    pub(crate) fn bind(addr: &str) -> Self {
        let socket = UdpSocket::bind(addr).expect("a port of the loopback is free");
        let room = SockRef::from(&socket).set_recv_buffer_size(4 << 20);
        room.expect("the buffer is capped, not refused");
        socket.set_read_timeout(Some(PATIENCE)).expect("ten seconds are valid");
        Self(socket)
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.0.local_addr().expect("it is bound")
    }

    /// The next datagram, and who sent it.
    pub(crate) fn recv_from(&self) -> (Vec<u8>, SocketAddr) {
        let mut payload = vec![0; 1 << 16];
        let (len, from) = self.0.recv_from(&mut payload).expect("a datagram arrives");
        payload.truncate(len);
        (payload, from)
    }

    /// The next datagram.
    pub(crate) fn recv(&self) -> Vec<u8> {
        self.recv_from().0
    }

    /// Fails if anything is waiting. Loopback delivers within the sender's call.
    pub(crate) fn assert_empty(&self) {
        self.0.set_nonblocking(true).expect("it can");
        let read = self.0.recv(&mut [0]);
        self.0.set_nonblocking(false).expect("it can");
        let error = read.expect_err("nothing is waiting");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}

/// What became of a burst.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) out: Transmitted,
    /// Cookies and fates of those done with, in order.
    pub(crate) done: Vec<(u64, Option<DropReason>)>,
    /// Those that stay.
    pub(crate) left: PacketList,
}

/// Transmits `packets`, whose cookies it numbers, and checks that none is lost, doubled or
/// overtaken.
pub(crate) fn transmit(device: &mut dyn Device, packets: Vec<Packet>, now: Instant) -> Outcome {
    let count = packets.len() as u64;
    let number = |(cookie, mut pkt): (u64, Packet)| {
        pkt.cookie = cookie;
        pkt
    };
    let mut burst: PacketList = (0..).zip(packets).map(number).collect();
    let mut done = PacketList::new();
    let out = device.transmit(&mut burst, &mut done, now);
    let done: Vec<_> = done.map(|pkt| (pkt.cookie, pkt.drop_reason)).collect();
    let left: Vec<_> = burst.by_ref().collect();
    let all = done.iter().map(|&(cookie, _)| cookie).chain(left.iter().map(|pkt| pkt.cookie));
    assert!(all.eq(0..count), "every packet once, in order: {done:?}, left {left:?}");
    assert_eq!(out.retry_at.is_some(), !left.is_empty(), "asked again if and only if any is left");
    Outcome { out, done, left: left.into_iter().collect() }
}

/// The same, where everything is to be taken.
pub(crate) fn transmit_all(device: &mut dyn Device, packets: Vec<Packet>) -> Transmitted {
    let outcome = transmit(device, packets, Instant(1));
    assert!(outcome.left.is_empty());
    assert_eq!(outcome.done.iter().find(|(_, reason)| reason.is_some()), None);
    outcome.out
}

/// A packet of `len` bytes that can be told from others, of `flow`, to `dest`.
pub(crate) fn packet(dest: Option<SocketAddr>, flow: u64, len: usize, seed: usize) -> Packet {
    let mut pkt = Packet::with_payload(&pattern(len, seed));
    pkt.set_dest(dest);
    pkt.flow = flow;
    pkt
}

#[expect(clippy::cast_possible_truncation, reason = "any byte will do")]
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}
