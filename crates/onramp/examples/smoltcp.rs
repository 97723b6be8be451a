//! Two TCP stacks (smoltcp) joined by a link of 10 Mbit/s and 20 ms, in virtual time: no sockets,
//! no threads and no sleeping, so nine simulated seconds take a fraction of a second.
//! Run: `cargo run --release -p onramp --example smoltcp [QDISC]`.

use std::collections::VecDeque;

use onramp::dev::MonotonicClock;
use onramp::qdisc::Dequeue;
use onramp::{Clock, Instant, Layer, Packet, PacketList, Spec, Tree, frame};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

const END: Instant = Instant(9_000_000_000);
const PORT: u16 = 7;
/// Bytes of the buffers of each TCP socket: more than the link holds.
const BUFFER: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let qdisc = std::env::args().nth(1).unwrap_or_else(|| "netem delay 20ms rate 10mbit".into());
    let spec = Spec::with_units(&qdisc)?;
    let began = MonotonicClock.now();
    let [mut client, mut server] = [Host::new(1), Host::new(2)];
    server.socket().listen(PORT)?;
    let peer = (IpAddress::v4(192, 0, 2, 2), PORT);
    let (socket, context) = client.socket_and_context();
    socket.connect(context, peer, 49_152)?;
    let mut ways = [Way::new(&spec), Way::new(&spec)];
    let (mut now, mut received) = (Instant(0), 0);
    while now < END {
        client.poll(now);
        server.poll(now);
        while client.socket().can_send() {
            client.socket().send_slice(&[b'x'; 4_096])?;
        }
        while server.socket().can_recv() {
            received += server.socket().recv(|bytes| (bytes.len(), bytes.len()))?;
        }
        // What the application has done may make the stacks send at once.
        client.poll(now);
        server.poll(now);
        let [there, back] = &mut ways;
        there.carry(&mut client.device, &mut server.device, now);
        back.carry(&mut server.device, &mut client.device, now);
        let arrived = !client.device.came.is_empty() || !server.device.came.is_empty();
        if !arrived {
            let next = [there.due, back.due, client.due(now), server.due(now)];
            now = next.into_iter().flatten().min().unwrap_or(END).max(now.after(1));
        }
    }
    let mbit = received as f64 * 8.0 / 9.0 / 1e6;
    println!("{qdisc}: {received} bytes in 9 simulated seconds, {mbit:.2} Mbit/s of data");
    println!("took {:.3} s", MonotonicClock.now().since(began) as f64 / 1e9);
    Ok(())
}

/// One direction of the link.
struct Way {
    tree: Tree,
    /// When the tree wants to be asked again.
    due: Option<Instant>,
}

impl Way {
    fn new(spec: &Spec) -> Self {
        Self { tree: Tree::new(spec, 1_500), due: None }
    }

    /// Moves what `from` has sent into the tree, and what the tree releases to `to`.
    fn carry(&mut self, from: &mut Wire, to: &mut Wire, now: Instant) {
        for mut packet in std::mem::take(&mut from.sent) {
            packet.enqueued_ns = now.0;
            // The tree counts what it drops.
            let _ = self.tree.enqueue(now, packet);
        }
        drop(self.tree.drops());
        self.due = loop {
            match self.tree.dequeue(now) {
                Dequeue::Ready(packet) => to.came.push_back(packet),
                Dequeue::NotBefore(at) => break Some(at),
                Dequeue::Empty => break None,
            }
        };
    }
}

/// A host: a TCP stack with one socket.
struct Host {
    stack: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    device: Wire,
}

impl Host {
    /// Makes the host with the address 192.0.2.`number`.
    fn new(number: u8) -> Self {
        let mut device = Wire::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = number.into();
        let mut stack = Interface::new(config, &mut device, smoltcp_time(Instant(0)));
        stack.update_ip_addrs(|all| {
            let address = IpCidr::new(IpAddress::v4(192, 0, 2, number), 24);
            all.push(address).expect("there is room for one");
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(tcp::Socket::new(buffer(), buffer()));
        Self { stack, sockets, socket, device }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    fn socket_and_context(&mut self) -> (&mut tcp::Socket<'static>, &mut smoltcp::iface::Context) {
        (self.sockets.get_mut(self.socket), self.stack.context())
    }

    fn poll(&mut self, now: Instant) {
        self.stack.poll(smoltcp_time(now), &mut self.device, &mut self.sockets);
    }

    fn due(&mut self, now: Instant) -> Option<Instant> {
        let at = self.stack.poll_at(smoltcp_time(now), &self.sockets)?;
        // The stack's clock counts microseconds.
        let at = Instant(u64::try_from(at.total_micros()).unwrap_or(0) * 1_000);
        Some(at.max(now.after(1_000)))
    }
}

fn smoltcp_time(at: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(at.0 / 1_000).unwrap_or(i64::MAX))
}

/// The device of a stack: packets that came, and packets that it has sent.
#[derive(Default)]
struct Wire {
    came: VecDeque<Packet>,
    sent: PacketList,
}

impl phy::Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        (capabilities.medium, capabilities.max_transmission_unit) = (Medium::Ip, 1_500);
        capabilities
    }

    fn receive(
        &mut self,
        _: smoltcp::time::Instant,
    ) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let packet = self.came.pop_front()?;
        Some((Received(packet), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Self::TxToken<'_>> {
        Some(Sending(&mut self.sent))
    }
}

struct Received(Packet);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0.payload())
    }
}

struct Sending<'a>(&'a mut PacketList);

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let mut packet = Packet::with_payload(&vec![0; length]);
        let result = write(packet.payload_mut());
        packet.set_layer(Layer::Ip);
        frame::describe(&mut packet, 0);
        self.0.push_back(packet);
        result
    }
}
