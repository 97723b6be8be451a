//! Three network namespaces: two hosts, and between them the place of the bridges.

use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use onramp::Setup;
use onramp_core::Device;
use onramp_dev::{PacketSocket, Receive, Xdp, XdpOptions, set_receive_buffer};
use onramp_wire::{Bridge, Direction, PLAIN, Space, Way};

use super::{Path, RATE_BITS};
use crate::Error;
use crate::kernel::bed::{ip, output, tc};
use crate::pacing::Shaper;

/// The hosts' interfaces: `host` leads to the bridges, `straight` to the other host. Their
/// addresses are of the block for benchmarks (RFC 2544); the last byte is the host's number.
const HOST: &str = "host";
const STRAIGHT: &str = "straight";
/// The interfaces between the hosts.
const SIDES: [&str; 2] = ["side1", "side2"];
const PORT: u16 = 9;
/// Size of the receive buffer, bytes: so that a receiver that comes late loses nothing.
const BUFFER: usize = 16 << 20;
/// How long the receiver waits for a datagram before it looks whether it is to end.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// The hosts and the place between them. Nothing needs to be removed after a run: the namespaces
/// end with the value.
#[derive(Debug)]
pub(super) struct Bed {
    hosts: [Space; 2],
    middle: Space,
}

/// What joins the hosts, until it is dropped.
pub(super) struct Joined<'a> {
    bed: &'a Bed,
    /// Onramp's bridge, if it is the path.
    bridge: Option<Bridge>,
}

impl Joined<'_> {
    /// Returns the number of frames that Onramp's bridge has carried, if it is the path.
    pub(super) fn carried(&self) -> Option<u64> {
        let carried = self.bridge.as_ref()?.carried()?;
        Some(carried.iter().map(Direction::carried).sum())
    }
}

impl Bed {
    /// Makes the namespaces and the devices. The error text says what failed and what to do.
    pub(super) fn lay() -> Result<Self, String> {
        for program in ["ip", "tc"] {
            output(program, "-V")?;
        }
        let space = || Space::new().map_err(|error| error.to_string());
        let bed = Self { hosts: [space()?, space()?], middle: space()? };
        let [near, far] = &bed.hosts;
        let id = |space: &Space| space.run(|| rustix::thread::gettid().as_raw_nonzero().get());
        for (number, (host, side)) in (1..).zip(bed.hosts.iter().zip(SIDES)) {
            let id = id(host);
            bed.middle.run(move || {
                ip(&format!("link add {side} type veth peer name {HOST} netns {id}"))?;
                ip(&format!("link set {side} addrgenmode none up"))
            })?;
            host.run(move || set_up(HOST, 0, number))?;
        }
        let id = id(far);
        near.run(move || {
            ip(&format!("link add {STRAIGHT} type veth peer name {STRAIGHT} netns {id}"))?;
            set_up(STRAIGHT, 1, 1)
        })?;
        far.run(|| set_up(STRAIGHT, 1, 2))?;
        Ok(bed)
    }

    /// Makes the kernel's bridge, which joins nothing yet.
    pub(super) fn make_bridge(&self) -> Result<(), String> {
        self.middle.run(|| {
            ip("link add bridge type bridge")?;
            ip("link set bridge addrgenmode none up")
        })
    }

    /// Puts a shaper of the kernel in front of the far host.
    pub(super) fn shape(&self, shaper: Shaper) -> Result<(), String> {
        self.unshape();
        self.middle.run(move || lines(shaper).iter().try_for_each(|line| tc(line)))
    }

    /// Takes the kernel's shaper away, if there is one.
    pub(super) fn unshape(&self) {
        // An error would mean that there is none.
        self.middle.run(|| drop(tc(&format!("qdisc del dev {} root", SIDES[1]))));
    }

    /// Joins the hosts.
    pub(super) fn join(&self, path: Path, shaper: Option<Shaper>) -> Result<Joined<'_>, Error> {
        let joined = Joined { bed: self, bridge: None };
        match path {
            Path::Direct => Ok(joined),
            Path::Bridge => {
                shaper.map_or(Ok(()), |shaper| self.shape(shaper)).map_err(Error::Network)?;
                self.middle
                    .run(|| {
                        SIDES
                            .iter()
                            .try_for_each(|side| ip(&format!("link set {side} master bridge")))
                    })
                    .map_err(Error::Network)?;
                Ok(joined)
            }
            Path::Onramp | Path::OnrampXdp => {
                let bridge = self.bridge(path, shaper)?;
                Ok(Joined { bridge: Some(bridge), ..joined })
            }
        }
    }

    /// Makes Onramp's bridge, as `onramp shape` does.
    fn bridge(&self, path: Path, shaper: Option<Shaper>) -> Result<Bridge, Error> {
        let told = |error: std::io::Error| Error::Network(error.to_string());
        type Side = (Box<dyn Receive>, Box<dyn Device>);
        let open = move || -> std::io::Result<Vec<Side>> {
            if path == Path::Onramp {
                let open = |side: &&str| {
                    let (from, to) = PacketSocket::open_side(side, 1)?;
                    Ok((Box::new(from) as _, Box::new(to) as _))
                };
                return SIDES.iter().map(open).collect();
            }
            let both = Xdp::open_all(&SIDES.map(|side| (side, 0)), XdpOptions::default())?;
            let side = |mut to: Xdp| -> Side {
                (Box::new(to.receiver().expect("nobody has taken it")), Box::new(to))
            };
            Ok(both.into_iter().map(side).collect())
        };
        let mut sides = self.middle.run(open).map_err(told)?.into_iter();
        let [near, far] = [(); 2].map(|()| sides.next().expect("a bridge has two sides"));
        let ((from_near, to_near), (from_far, to_far)) = (near, far);
        let way = |from: Box<dyn Receive>, lines: &[String], to: Box<dyn Device>| {
            let mut setup = Setup::default();
            for line in lines {
                setup.apply(line).map_err(|error| Error::Setup(line.clone(), error.to_string()))?;
            }
            Ok(Way::of(from, &setup, 1, to).expect("the lines make a root"))
        };
        let plain = [format!("qdisc add dev {} root {PLAIN}", SIDES[1])];
        let lines = shaper.map_or_else(|| plain.to_vec(), lines);
        let ways = [way(from_near, &lines, to_far)?, way(from_far, &plain, to_near)?];
        Bridge::start(ways).map_err(told)
    }

    /// Opens a socket of the near host that sends to the far host over this path, and one of the
    /// far host that receives.
    pub(super) fn datagrams(&self, path: Path) -> Result<[UdpSocket; 2], Error> {
        let [near, far] = [1, 2].map(|number| address(network(path), number));
        let receives = self.hosts[1].run(move || {
            let socket = UdpSocket::bind((far, PORT))?;
            socket.set_read_timeout(Some(LOOK))?;
            set_receive_buffer(&socket, BUFFER)?;
            Ok(socket)
        });
        let sends = self.hosts[0].run(move || {
            let socket = UdpSocket::bind((near, 0))?;
            socket.connect((far, PORT))?;
            Ok(socket)
        });
        let [sends, receives] = [sends.map_err(no_socket)?, receives.map_err(no_socket)?];
        // From this datagram, the kernel's bridge learns where the far host is. Without it, the
        // bridge would flood each frame.
        let to = sends.local_addr().map_err(no_socket)?;
        receives.send_to(b"here", to).map_err(no_socket)?;
        Ok([sends, receives])
    }

    /// Opens a TCP connection from the near host to the far host over this path.
    pub(super) fn stream(&self, path: Path) -> Result<[TcpStream; 2], Error> {
        let far = address(network(path), 2);
        let listener = self.hosts[1].run(move || TcpListener::bind((far, PORT)));
        let listener = listener.map_err(no_socket)?;
        let near = self.hosts[0]
            .run(move || TcpStream::connect_timeout(&(far, PORT).into(), Duration::from_secs(10)));
        let near = near.map_err(no_socket)?;
        let (far, _) = listener.accept().map_err(no_socket)?;
        Ok([near, far])
    }

    /// Returns how many datagrams the far host's sockets had no room for.
    pub(super) fn overflowed(&self) -> u64 {
        self.hosts[1].run(crate::pacing::overflowed)
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        self.bed.unshape();
        self.bed.middle.run(|| {
            // An error would mean that the interface is in no bridge.
            SIDES.iter().for_each(|side| drop(ip(&format!("link set {side} nomaster"))));
        });
    }
}

/// The lines of `tc` for a shaper in front of the far host.
fn lines(shaper: Shaper) -> Vec<String> {
    let root = |qdisc: String| format!("qdisc replace dev {} root {qdisc}", SIDES[1]);
    let (dev, rate) = (SIDES[1], format!("{RATE_BITS}bit"));
    match shaper {
        Shaper::Tbf => vec![root(format!("tbf rate {rate} burst 64kb latency 50ms"))],
        Shaper::Htb => vec![
            root("handle 1: htb default 1".to_owned()),
            format!(
                "class add dev {dev} parent 1: classid 1:1 htb rate {rate} ceil {rate} burst 64kb \
                 cburst 64kb"
            ),
        ],
        Shaper::Cake => vec![root(format!("cake bandwidth {rate} besteffort flowblind"))],
        Shaper::Fq => vec![root(format!("fq maxrate {rate}"))],
    }
}

/// Number of the network that a path is.
const fn network(path: Path) -> u8 {
    match path {
        Path::Direct => 1,
        Path::Bridge | Path::Onramp | Path::OnrampXdp => 0,
    }
}

const fn address(network: u8, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, network, number)
}

/// Gives the interface of host `number` its addresses, and the other host's, so that no packet of
/// ARP passes.
fn set_up(name: &str, network: u8, number: u8) -> Result<(), String> {
    let link = |number| format!("02:00:00:00:{network:02}:{number:02}");
    let (own, other) = (address(network, number), address(network, 3 - number));
    ip(&format!("link set {name} address {} addrgenmode none", link(number)))?;
    ip(&format!("addr add {own}/30 dev {name}"))?;
    ip(&format!("link set {name} up"))?;
    ip(&format!("neigh add {other} lladdr {} dev {name} nud permanent", link(3 - number)))
}

fn no_socket(error: std::io::Error) -> Error {
    Error::Network(format!("cannot open a socket: {error}"))
}
