//! Two TCP stacks (smoltcp) joined by a link, by default of 10 Mbit/s and 20 ms, in virtual time:
//! no sockets, no threads and no sleeping, so nine simulated seconds take a fraction of a second.
//! Several qdiscs are a path: each stands behind the one before. Run:
//! `cargo run --release -p onramp-smoltcp --example link [QDISC...]`, for example with `'tbf rate
//! 10mbit burst 1600 limit 2mb' 'netem delay 20ms'`.

use onramp_smoltcp::{DropReason, End, Setup, pair, setup};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::Medium;
use smoltcp::socket::tcp;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

const END: Instant = Instant::from_millis_const(9_000);
const PORT: u16 = 7;
/// Bytes of the buffers of each TCP socket: more than the link holds.
const BUFFER: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut qdiscs: Vec<String> = std::env::args().skip(1).collect();
    if qdiscs.is_empty() {
        qdiscs.push("netem delay 20ms rate 10mbit".to_owned());
    }
    let tree = path(&qdiscs)?;
    #[expect(clippy::disallowed_methods, reason = "only to print how long the simulation took")]
    let began = std::time::Instant::now();
    let [a, b] = pair(Medium::Ip, 1_500, [&tree, &tree], 1)?;
    let [mut client, mut server] = [Host::new(1, a), Host::new(2, b)];
    server.socket().listen(PORT)?;
    let (socket, context) = client.socket_and_context();
    socket.connect(context, (IpAddress::v4(192, 0, 2, 2), PORT), 49_152)?;
    let (mut now, mut received) = (Instant::ZERO, 0);
    while now < END {
        client.poll(now);
        server.poll(now);
        while client.socket().can_send() {
            client.socket().send_slice(&[b'x'; 4_096])?;
        }
        while server.socket().can_recv() {
            received += server.socket().recv(|bytes| (bytes.len(), bytes.len()))?;
        }
        // What the application has done may make the stacks send at once, and on a link without
        // delay that may give the application more to do.
        let changed = [client.poll(now), server.poll(now)];
        let next = [client.next(now), server.next(now)].into_iter().flatten().min();
        let next = if changed.contains(&PollResult::SocketStateChanged) { Some(now) } else { next };
        now = next.unwrap_or(END).max(now + Duration::from_micros(1));
    }
    let mbit = received as f64 * 8.0 / 9.0 / 1e6;
    println!(
        "{}: {received} bytes in 9 simulated seconds, {mbit:.2} Mbit/s of data, simulated in {:?}",
        qdiscs.join(", then "),
        began.elapsed()
    );
    let totals = client.device.sends().totals();
    for reason in DropReason::ALL {
        match totals.dropped(*reason) {
            0 => {}
            count => println!("{count} segments dropped: {}", reason.about()),
        }
    }
    Ok(())
}

/// Returns the description of a tree with these qdiscs, one behind the other.
fn path(qdiscs: &[String]) -> Result<Setup, Box<dyn std::error::Error>> {
    if let [qdisc] = qdiscs {
        return Ok(setup(qdisc)?);
    }
    let mut tree = Setup::default();
    tree.apply("qdisc add dev link root handle 1: series")?;
    for (number, qdisc) in qdiscs.iter().enumerate() {
        tree.apply(&format!("qdisc add dev link parent 1:{:x} {qdisc}", number + 1))?;
    }
    Ok(tree)
}

/// A host: a TCP stack with one socket.
struct Host {
    stack: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    device: End,
}

impl Host {
    /// Makes the host with the address 192.0.2.`number`.
    fn new(number: u8, mut device: End) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = number.into();
        let mut stack = Interface::new(config, &mut device, Instant::ZERO);
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

    fn poll(&mut self, now: Instant) -> PollResult {
        self.stack.poll(now, &mut self.device, &mut self.sockets)
    }

    fn next(&mut self, now: Instant) -> Option<Instant> {
        self.device.poll_at(now, &mut self.stack, &self.sockets)
    }
}
