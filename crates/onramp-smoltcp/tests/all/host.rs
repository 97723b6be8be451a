//! Hosts with a TCP stack, and a loop that carries data from one to the other.

use onramp_smoltcp::{End, Setup, pair, setup};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

/// Bytes of the buffers of each socket.
const BUFFER: usize = 1 << 20;
const PORT: u16 = 7;

/// A stack with one TCP socket.
pub(crate) struct Host {
    pub(crate) stack: Interface,
    pub(crate) sockets: SocketSet<'static>,
    socket: SocketHandle,
}

impl Host {
    /// Makes the host with the address 192.0.2.`number`.
    pub(crate) fn new(number: u8, device: &mut impl Device) -> Self {
        let address = match device.capabilities().medium {
            Medium::Ethernet => EthernetAddress([2, 0, 0, 0, 0, number]).into(),
            _ => HardwareAddress::Ip,
        };
        let mut config = Config::new(address);
        config.random_seed = number.into();
        let mut stack = Interface::new(config, device, Instant::ZERO);
        stack.update_ip_addrs(|all| {
            let address = IpCidr::new(IpAddress::v4(192, 0, 2, number), 24);
            all.push(address).expect("there is room for one");
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_congestion_control(tcp::CongestionControl::Cubic);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        Self { stack, sockets, socket }
    }

    pub(crate) fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    pub(crate) fn listen(&mut self) {
        self.socket().listen(PORT).expect("a free port");
    }

    pub(crate) fn connect(&mut self, number: u8) {
        let peer = (IpAddress::v4(192, 0, 2, number), PORT);
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        socket.connect(self.stack.context(), peer, 49_152).expect("a new socket");
    }

    pub(crate) fn poll(&mut self, now: Instant, device: &mut impl Device) {
        self.stack.poll(now, device, &mut self.sockets);
    }
}

/// Returns the bytes that a transfer carries: they differ from place to place.
pub(crate) fn data(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// What a transfer from the first host to the second was.
pub(crate) struct Transfer {
    pub(crate) received: Vec<u8>,
    /// When the last byte came.
    pub(crate) took: Duration,
    pub(crate) ends: [End; 2],
    /// The bytes under way from the sender, at each event after the first second.
    pub(crate) held: Vec<u64>,
}

impl Transfer {
    pub(crate) fn mean_held(&self) -> u64 {
        self.held.iter().sum::<u64>() / self.held.len().max(1) as u64
    }
}

/// The MTU of a medium whose IP packets have up to 1,500 bytes.
pub(crate) fn mtu(medium: Medium) -> usize {
    if medium == Medium::Ethernet { 1_514 } else { 1_500 }
}

/// Sends `data` over TCP through a link with these trees, in virtual time, for at most `limit`.
pub(crate) fn transfer(
    medium: Medium,
    [there, back]: [&str; 2],
    seed: u64,
    data: &[u8],
    limit: Duration,
) -> Transfer {
    let [there, back]: [Setup; 2] = [there, back].map(|text| setup(text).expect("a tree"));
    let ends = pair(medium, mtu(medium), [&there, &back], seed);
    let [mut a, mut b] = ends.expect("two devices");
    let [mut client, mut server] = [Host::new(1, &mut a), Host::new(2, &mut b)];
    server.listen();
    client.connect(2);
    let (mut now, mut sent, mut took) = (Instant::ZERO, 0, limit);
    let (mut received, mut held) = (Vec::new(), Vec::new());
    while now < Instant::ZERO + limit && received.len() < data.len() {
        client.poll(now, &mut a);
        server.poll(now, &mut b);
        while client.socket().can_send() && sent < data.len() {
            sent += client.socket().send_slice(&data[sent..]).expect("it can send");
        }
        while server.socket().can_recv() {
            let all = |bytes: &mut [u8]| {
                received.extend_from_slice(bytes);
                (bytes.len(), ())
            };
            server.socket().recv(all).expect("it can receive");
            took = now - Instant::ZERO;
        }
        client.poll(now, &mut a);
        server.poll(now, &mut b);
        if now > Instant::from_secs(1) {
            held.push(a.sends().held_bytes());
        }
        check_books(&a);
        check_books(&b);
        let next = [
            a.poll_at(now, &mut client.stack, &client.sockets),
            b.poll_at(now, &mut server.stack, &server.sockets),
        ];
        let next = next.into_iter().flatten().min().unwrap_or(Instant::ZERO + limit);
        // A socket may say "now" although it waits for the other side.
        now = next.max(now + Duration::from_micros(1));
    }
    Transfer { received, took, ends: [a, b], held }
}

/// Every frame that was sent has come, was dropped, or is under way.
pub(crate) fn check_books(end: &End) {
    let sends = end.sends();
    let totals = sends.totals();
    assert_eq!(
        totals.enqueued_packets,
        sends.delivered() + totals.dropped_packets() + sends.held(),
    );
}
