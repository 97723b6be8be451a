//! The UDP flows of a forwarded port.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use onramp_core::{Clock as _, Instant};
use onramp_dev::MonotonicClock;
use onramp_wire::Space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Largest number of TCP connections, and of UDP flows, of a forwarded port at a time.
pub(super) const MOST: usize = 256;
/// A UDP flow without a datagram in either direction for this time is over.
const IDLE: Duration = Duration::from_secs(60);
/// Most datagrams that are carried before the loop looks at the other sockets again.
const AT_ONCE: usize = 64;
/// Room for any datagram.
const DATAGRAM: usize = 1 << 16;

/// The UDP flows of a forwarded port: each sender has a socket at the client's end.
pub(super) struct Flows<'f> {
    socket: &'f UdpSocket,
    server: SocketAddrV4,
    client: &'f Space,
    flows: Vec<Flow>,
    /// Number of datagrams that were dropped, because the system had no room for them or for
    /// another socket.
    pub(super) lost: u64,
    /// Number of flows that gave way to a new sender.
    pub(super) replaced: u64,
}

struct Flow {
    sender: SocketAddr,
    far: UdpSocket,
    last: Instant,
}

impl<'f> Flows<'f> {
    pub(super) const fn new(
        socket: &'f UdpSocket,
        server: SocketAddrV4,
        client: &'f Space,
    ) -> Self {
        Self { socket, server, client, flows: Vec::new(), lost: 0, replaced: 0 }
    }

    /// Carries datagrams until the other end of `stop` is closed.
    pub(super) fn serve(&mut self, stop: &UnixStream) {
        let mut buffer = vec![0; DATAGRAM];
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        loop {
            let own = [PollFd::new(stop, PollFlags::IN), PollFd::new(self.socket, PollFlags::IN)];
            let far = self.flows.iter().map(|flow| PollFd::new(&flow.far, PollFlags::IN));
            let mut all: Vec<_> = own.into_iter().chain(far).collect();
            // Without a datagram, the loop looks once a second for flows that are over.
            let polled = poll(&mut all, Some(&second));
            let ready: Vec<_> = all.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return;
            }
            if polled.is_err() {
                continue;
            }
            let now = MonotonicClock.now();
            for index in (0..self.flows.len()).filter(|index| ready[index + 2]) {
                self.answer(index, &mut buffer, now);
            }
            if ready[1] {
                self.take(&mut buffer, now);
            }
            let over = u64::try_from(IDLE.as_nanos()).unwrap_or(u64::MAX);
            self.flows.retain(|flow| now.since(flow.last) < over);
        }
    }

    /// Passes the answers of the server on to the sender of a flow, at most [`AT_ONCE`] datagrams.
    fn answer(&mut self, index: usize, buffer: &mut [u8], now: Instant) {
        let flow = &mut self.flows[index];
        for _ in 0..AT_ONCE {
            // An error says that there is none, or that the server's port is closed; then the
            // sender may try again.
            let Ok(length) = flow.far.recv(buffer) else { return };
            flow.last = now;
            let sent = self.socket.send_to(&buffer[..length], flow.sender);
            self.lost += u64::from(sent.is_err());
        }
    }

    /// Passes the datagrams of senders on to the server, at most [`AT_ONCE`] of them.
    fn take(&mut self, buffer: &mut [u8], now: Instant) {
        for _ in 0..AT_ONCE {
            let Ok((length, sender)) = self.socket.recv_from(buffer) else { return };
            let flow = self.flow(sender, now);
            let sent = flow.is_some_and(|flow| flow.far.send(&buffer[..length]).is_ok());
            self.lost += u64::from(!sent);
        }
    }

    /// Returns the flow of a sender, which may be new. If there are [`MOST`] already, it takes the
    /// place of the one that was not used for the longest time.
    fn flow(&mut self, sender: SocketAddr, now: Instant) -> Option<&mut Flow> {
        let known = self.flows.iter().position(|flow| flow.sender == sender);
        let index = match known {
            Some(index) => index,
            None => {
                let server = self.server;
                let far = self.client.run(move || {
                    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                    socket.connect(server)?;
                    socket.set_nonblocking(true)?;
                    io::Result::Ok(socket)
                });
                let flow = Flow { sender, far: far.ok()?, last: now };
                let oldest = (0..self.flows.len()).min_by_key(|index| self.flows[*index].last);
                match oldest.filter(|_| self.flows.len() >= MOST) {
                    Some(oldest) => {
                        self.flows[oldest] = flow;
                        self.replaced += 1;
                        oldest
                    }
                    None => {
                        self.flows.push(flow);
                        self.flows.len() - 1
                    }
                }
            }
        };
        self.flows[index].last = now;
        self.flows.get_mut(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `test` with flows to a server's socket, which has a time limit. Only root can make a
    /// namespace without leaving its own.
    fn with_flows(test: impl FnOnce(&mut Flows<'_>, &UdpSocket)) {
        let space = match Space::new() {
            Ok(space) => space,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let server = space.run(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        server.set_read_timeout(Some(Duration::from_secs(120))).expect("it is open");
        let port = server.local_addr().expect("an address").port();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        socket.set_nonblocking(true).expect("it is open");
        let mut flows = Flows::new(&socket, SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), &space);
        test(&mut flows, &server);
    }

    fn sender(to: &Flows<'_>) -> UdpSocket {
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        sender.connect(to.socket.local_addr().expect("an address")).expect("it is there");
        sender
    }

    /// A sender that never stops does not keep the others waiting.
    #[test]
    fn a_flood_is_taken_in_portions() {
        with_flows(|flows, server| {
            let (near, mut buffer) = (sender(flows), [0; 16]);
            for number in 0..100_u8 {
                near.send(&[number]).expect("there is room");
            }
            flows.take(&mut buffer, Instant(0));
            for number in 0..AT_ONCE {
                let (length, far) = server.recv_from(&mut buffer).expect("it was carried");
                assert_eq!((length, usize::from(buffer[0])), (1, number));
                server.send_to(&buffer[..1], far).expect("it is sent");
                server.send_to(&buffer[..1], far).expect("it is sent");
            }
            assert_eq!(
                flows.socket.recv(&mut buffer).map(|_| usize::from(buffer[0])).ok(),
                Some(AT_ONCE)
            );
            near.set_nonblocking(true).expect("it is open");
            flows.answer(0, &mut buffer, Instant(0));
            let answers = std::iter::from_fn(|| near.recv(&mut buffer).ok()).count();
            assert_eq!((answers, flows.lost), (AT_ONCE, 0));
        });
    }

    /// If there are too many senders, the one that was quiet for the longest time gives way.
    #[test]
    fn the_oldest_flow_gives_way() {
        with_flows(|flows, server| {
            let (senders, mut buffer) = ((0..=MOST).map(|_| sender(flows)), [0; 16]);
            let senders: Vec<_> = senders.collect();
            let mut carry = |index: usize, now: u64| {
                senders[index].send(b"x").expect("there is room");
                flows.take(&mut buffer, Instant(now));
                server.recv(&mut buffer).expect("it was carried");
                (flows.flows.len(), flows.replaced)
            };
            for index in 0..MOST {
                assert_eq!(carry(index, 10 + index as u64), (index + 1, 0));
            }
            // The first is used again, so that the second is the oldest.
            assert_eq!(carry(0, 1_000), (MOST, 0));
            assert_eq!(carry(MOST, 1_001), (MOST, 1));
            assert_eq!(carry(0, 1_002), (MOST, 1));
            assert_eq!(carry(1, 1_003), (MOST, 2));
            assert_eq!(flows.lost, 0);
        });
    }
}
