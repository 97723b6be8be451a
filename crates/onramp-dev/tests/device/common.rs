//! Helpers for device tests: receivers that return what arrived, and a driver that checks that no
//! packet is lost.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use onramp_core::{Device, Instant, Transmitted};
use onramp_queue::{DropReason, Packet, PacketList};
use socket2::SockRef;

/// How long a receive waits before it fails: so long that it only fails if the datagram never
/// arrives.
const PATIENCE: Duration = Duration::from_secs(120);

/// A bound socket that receives datagrams, with megabytes of receive buffer.
pub(crate) struct Sink(UdpSocket);

impl Sink {
    pub(crate) fn bind(addr: &str) -> Self {
        let socket = UdpSocket::bind(addr).expect("a port of the loopback is free");
        let room = SockRef::from(&socket).set_recv_buffer_size(4 << 20);
        room.expect("the buffer is capped, not refused");
        socket.set_read_timeout(Some(PATIENCE)).expect("two minutes are valid");
        Self(socket)
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.0.local_addr().expect("it is bound")
    }

    /// Returns the next datagram and the address of its sender.
    pub(crate) fn recv_from(&self) -> (Vec<u8>, SocketAddr) {
        let mut payload = vec![0; 1 << 16];
        let (len, from) = self.0.recv_from(&mut payload).expect("a datagram arrives");
        payload.truncate(len);
        (payload, from)
    }

    /// Returns the payload of the next datagram.
    pub(crate) fn recv(&self) -> Vec<u8> {
        self.recv_from().0
    }

    /// Fails if a datagram is waiting to be received. The loopback interface delivers within the
    /// sender's call, so no datagram can arrive later.
    pub(crate) fn assert_empty(&self) {
        self.0.set_nonblocking(true).expect("it can");
        let read = self.0.recv(&mut [0]);
        self.0.set_nonblocking(false).expect("it can");
        let error = read.expect_err("nothing is waiting");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}

/// The result of transmitting one burst.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) out: Transmitted,
    /// Cookies and drop reasons of the finished packets, in order.
    pub(crate) done: Vec<(u64, Option<DropReason>)>,
    /// Packets that the device left in the burst.
    pub(crate) left: PacketList,
}

/// Numbers the cookies of `packets`, transmits the packets, and checks that none is lost,
/// duplicated or reordered.
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

/// Does the same as [`transmit`], and checks that the device takes every packet.
pub(crate) fn transmit_all(device: &mut dyn Device, packets: Vec<Packet>) -> Transmitted {
    let outcome = transmit(device, packets, Instant(1));
    assert!(outcome.left.is_empty());
    assert_eq!(outcome.done.iter().find(|(_, reason)| reason.is_some()), None);
    outcome.out
}

/// Makes a packet of `flow` to `dest` with `len` bytes of payload. The content depends on `seed`,
/// so that a test recognizes it.
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

/// Runs `child` in a child of `fork`, and waits until it has ended well. A child that hangs is
/// killed after two minutes.
pub(crate) fn in_child(child: impl FnOnce()) {
    let number = onramp_dev::run_in_child(|| {
        nix::unistd::alarm::set(120);
        child();
        0
    });
    let pid = nix::unistd::Pid::from_raw(number.expect("there can be a child"));
    let status = nix::sys::wait::waitpid(pid, None).expect("it is ours");
    assert_eq!(status, nix::sys::wait::WaitStatus::Exited(pid, 0));
}
