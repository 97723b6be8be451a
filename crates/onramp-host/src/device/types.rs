//! The table of device types, and how devices of each type are made.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use onramp_core::{Device, DeviceInfo};
use onramp_dev::{Null, Udp};

use super::capture::pcap;
use super::frames::{detour, packet, tap, xdp};
use super::link_end::{Switched, Wire};
use super::relay::{Fan, Limits, Listener};
use super::socket::{ETHERNET, Upstream, udp_device, udp_socket};
use super::{End, Given, LinkEnd, Operand, Opt, Refusal, Request, Type, invalid};

/// The mtu (largest packet without its link header) of a `veth` and of a `udp` device, bytes: the
/// minimum, the default and the maximum.
const ETHER_MTU: [u32; 3] = [68, 1_500, 65_535];

/// The most clients that a relay may be allowed to have. Each has a socket, and a socket has one of
/// the 65,535 ports of its address.
const CLIENTS_MAX: u32 = 65_535;
/// Number of clients that a relay may have by default.
const CLIENTS: u32 = 1_024;
/// Greatest and default time after which a relay forgets a client that is silent, seconds.
const IDLE_MAX: u32 = 86_400;
const IDLE: u32 = 60;

/// Common properties of the types that carry frames of the kernel's interfaces.
const FRAMES: Type = Type {
    name: "",
    help: "",
    options: &[],
    layer: "ether",
    flags: &["BROADCAST", "MULTICAST"],
    carrier: true,
    header: ETHERNET,
    mtu: ETHER_MTU,
    no_queue: false,
    always_pair: false,
    make: detour,
};

const OTHER_END: Opt = Opt {
    key: "peer",
    what: Operand::Peer,
    needed: false,
    help: "the other end: its name, and options that may stand before `type`",
};

/// The options of a bridge between two interfaces.
const BRIDGE: &[Opt] = &[
    Opt {
        key: "interface",
        what: Operand::Interface,
        needed: true,
        help: "the interface through which the frames of this device leave",
    },
    Opt {
        key: "to",
        what: Operand::Interface,
        needed: true,
        help: "the interface of the other end",
    },
    OTHER_END,
];

/// All types of devices.
pub(crate) const TYPES: &[Type] = &[
    Type {
        name: "dummy",
        help: "counts the packets that it is given, and discards them",
        options: &[],
        layer: "ether",
        flags: &["BROADCAST", "NOARP"],
        carrier: false,
        header: ETHERNET,
        mtu: [0, 1_500, 0],
        no_queue: true,
        always_pair: false,
        make: dummy,
    },
    Type {
        name: "loopback",
        help: "receives the packets that it sends",
        options: &[],
        layer: "loopback",
        flags: &["LOOPBACK"],
        carrier: false,
        header: ETHERNET,
        mtu: [0, 65_536, 0],
        no_queue: true,
        always_pair: false,
        make: loopback,
    },
    Type {
        name: "veth",
        help: "one end of a pair: each end receives the packets that the other end sends",
        options: &[Opt {
            key: "peer",
            what: Operand::Peer,
            needed: false,
            help: "the other end: its name, and options that may stand before `type`",
        }],
        layer: "ether",
        flags: &["BROADCAST", "MULTICAST"],
        carrier: true,
        header: ETHERNET,
        mtu: ETHER_MTU,
        no_queue: true,
        always_pair: true,
        make: veth,
    },
    Type {
        name: "udp",
        help: "sends datagrams through UDP sockets of the kernel",
        options: &[
            Opt {
                key: "local",
                what: Operand::Address,
                needed: true,
                help: "the address that it sends from; port 0: any free port",
            },
            Opt {
                key: "remote",
                what: Operand::Address,
                needed: false,
                help: "the destination of packets that have no other",
            },
            Opt {
                key: "listen",
                what: Operand::Address,
                needed: false,
                help: "relays the datagrams that clients send to this address to `remote`, and the \
                       answers back",
            },
            Opt {
                key: "clients",
                what: Operand::Number { name: "COUNT", least: 1, most: CLIENTS_MAX },
                needed: false,
                help: "the most clients that `listen` serves at a time [1024]",
            },
            Opt {
                key: "idle",
                what: Operand::Number { name: "SECONDS", least: 1, most: IDLE_MAX },
                needed: false,
                help: "how long a client stays known without a datagram from or for it [60]",
            },
            Opt {
                key: "peer",
                what: Operand::Peer,
                needed: false,
                help: "a second device, through which the answers go back to the clients",
            },
        ],
        layer: "none",
        flags: &["POINTOPOINT", "NOARP"],
        carrier: false,
        header: ETHERNET,
        mtu: ETHER_MTU,
        no_queue: false,
        always_pair: false,
        make: udp,
    },
    Type {
        name: "packet",
        help: "one end of a bridge between two network interfaces of the kernel",
        options: BRIDGE,
        always_pair: true,
        make: packet,
        ..FRAMES
    },
    Type {
        name: "xdp",
        help: "one end of a bridge between two network interfaces, past the kernel's network stack",
        options: BRIDGE,
        always_pair: true,
        make: xdp,
        ..FRAMES
    },
    Type {
        name: "tap",
        help: "one end of a bridge between a TAP, which it makes, and a network interface",
        options: &[
            Opt {
                key: "interface",
                what: Operand::Interface,
                needed: true,
                help: "the name of the TAP, into which the frames of this device go",
            },
            Opt {
                key: "to",
                what: Operand::Interface,
                needed: true,
                help: "the interface through which the frames of the other end leave",
            },
            OTHER_END,
        ],
        always_pair: true,
        make: tap,
        ..FRAMES
    },
    Type {
        name: "detour",
        help: "the packets that this machine itself sends through a network interface",
        options: &[
            Opt {
                key: "interface",
                what: Operand::Interface,
                needed: true,
                help: "the interface, which keeps its addresses and routes",
            },
            Opt {
                key: "peer",
                what: Operand::Peer,
                needed: false,
                help: "a second device, for packets that come in through the interface",
            },
        ],
        make: detour,
        ..FRAMES
    },
    Type {
        name: "pcap",
        help: "a capture file (pcap, pcapng) of the packets that leave through the device",
        options: &[
            Opt {
                key: "file",
                what: Operand::File,
                needed: false,
                help: "the new file; .pcap and .cap make it pcap, any other name pcapng",
            },
            Opt {
                key: "replace",
                what: Operand::File,
                needed: false,
                help: "as file, but the file may exist, and loses its contents",
            },
            Opt {
                key: "read",
                what: Operand::File,
                needed: false,
                help: "a capture whose packets the device sends, at the times of the capture",
            },
            Opt {
                key: "fast",
                what: Operand::File,
                needed: false,
                help: "as read, but each packet as soon as the device has room for it",
            },
        ],
        carrier: true,
        make: pcap,
        ..FRAMES
    },
];

fn boxed(devices: impl Iterator<Item = impl Device + 'static>) -> Vec<Box<dyn Device>> {
    devices.map(|device| Box::new(device) as Box<dyn Device>).collect()
}

fn dummy(request: &Request<'_>) -> Result<Vec<End>, Refusal> {
    let end = Arc::<LinkEnd>::default();
    let queues = Null::new(request.mtu[0].saturating_add(ETHERNET)).queues(request.queues[0]);
    let queues = boxed(queues.into_iter().map(|queue| Switched::new(end.clone(), queue)));
    Ok(vec![End { queues, end, listener: None, frames: None }])
}

/// Makes the transmit queues of a device. `from` is the shared state of that device, and `to` is
/// the shared state of the device at which the packets arrive.
fn wires(name: &str, count: usize, mtu: u32, from: &Arc<LinkEnd>, to: &Arc<LinkEnd>) -> End {
    let wire = |queue| {
        let info = DeviceInfo::new(format!("{name} {queue}"), mtu.saturating_add(ETHERNET));
        let info = info.never_blocks();
        Some(Switched::new(from.clone(), Wire::new(info, to)?))
    };
    let queues = boxed((0..count).filter_map(wire));
    End { queues, end: from.clone(), listener: None, frames: None }
}

fn loopback(request: &Request<'_>) -> Result<Vec<End>, Refusal> {
    let end = Arc::new(LinkEnd::with_inbox());
    Ok(vec![wires("loopback", request.queues[0], request.mtu[0], &end, &end)])
}

fn veth(request: &Request<'_>) -> Result<Vec<End>, Refusal> {
    let sides = [0, 1].map(|_| Arc::new(LinkEnd::with_inbox()));
    let end = |me: usize| {
        let (from, to) = (&sides[me], &sides[1 - me]);
        wires("veth", request.queues[me], request.mtu[me], from, to)
    };
    Ok(vec![end(0), end(1)])
}

fn udp(request: &Request<'_>) -> Result<Vec<End>, Refusal> {
    let given = request.given;
    let Some(local) = given.address("local") else {
        return Err(invalid("give the address to send from: local 0.0.0.0:0"));
    };
    let remote = given.address("remote");
    if request.queues[0] > 1 && local.port() != 0 {
        return Err(invalid(
            "each queue has its own socket: with numtxqueues, give local the port 0",
        ));
    }
    if remote.is_some_and(|remote| remote.is_ipv4() != local.is_ipv4() || remote.port() == 0) {
        return Err(invalid("remote needs a port, and an address of the same family as local"));
    }
    let mut queues = Vec::new();
    for _ in 0..request.queues[0] {
        queues.push(udp_socket(local, remote, request.mtu[0])?);
    }
    let Some(listen) = given.address("listen") else {
        let only = ["clients", "idle"].into_iter().find(|key| given.get(key).is_some());
        if let Some(key) = only.or_else(|| request.pair.then_some("peer")) {
            return Err(invalid(&format!("{key} is for a device with listen: give listen, too")));
        }
        let end = Arc::new(LinkEnd::with_sockets(&queues));
        let queues = boxed(queues.into_iter().map(|queue| Switched::new(end.clone(), queue)));
        return Ok(vec![End { queues, end, listener: None, frames: None }]);
    };
    let Some(remote) = remote else {
        return Err(invalid("listen needs remote, to which it sends: give both"));
    };
    relay(request, queues, Upstream { local, remote, mtu: request.mtu[0] }, listen)
}

/// Makes the parts of a device that relays between the clients of `listen` and a server. `queues`
/// has a socket for each transmit queue of the device, for packets that come from no client.
fn relay(
    request: &Request<'_>,
    queues: Vec<Udp>,
    upstream: Upstream,
    listen: SocketAddr,
) -> Result<Vec<End>, Refusal> {
    let limits = limits(request.given, &upstream)?;
    let end = Arc::new(LinkEnd::with_sockets(&queues));
    let sockets = queues.iter().map(|queue| queue.socket().clone()).collect();
    let mut listener = Listener::bind(listen, &end, upstream, sockets, limits)?;
    let upstreams = listener.upstreams();
    let fan = |queue| Switched::new(end.clone(), Fan::new(queue, upstreams.clone()));
    let first = boxed(queues.into_iter().map(fan));
    let mut second = None;
    if request.pair {
        let end = Arc::<LinkEnd>::default();
        let mut queues = Vec::new();
        for _ in 0..request.queues[1] {
            queues.push(udp_device(listener.socket(listen)?, request.mtu[1])?);
        }
        let queues = boxed(queues.into_iter().map(|queue| Switched::new(end.clone(), queue)));
        listener.answer_through(&end);
        second = Some(End { queues, end, listener: None, frames: None });
    }
    let first = End { queues: first, end, listener: Some(listener), frames: None };
    Ok(std::iter::once(first).chain(second).collect())
}

fn limits(given: &Given, upstream: &Upstream) -> Result<Limits, Refusal> {
    let clients = given.number("clients");
    let is_shared = upstream.is_shared();
    if is_shared && clients.is_some_and(|clients| clients > 1) {
        return Err(invalid(
            "each client has its own socket: with clients, give local the port 0; with a port in \
             local, one client is served at a time",
        ));
    }
    let idle = given.number("idle").unwrap_or(IDLE);
    Ok(Limits {
        clients: if is_shared { 1 } else { clients.unwrap_or(CLIENTS) },
        idle: Duration::from_secs(idle.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Value, trial};
    use super::*;

    /// The queues of each type report a largest packet that is 14 bytes (the Ethernet header)
    /// larger than the mtu of the command, and report that they never block.
    #[test]
    fn queues_are_as_they_are_asked_for() {
        let local = ("local", Value::Address(SocketAddr::from(([127, 0, 0, 1], 0))));
        // The others need interfaces of the kernel, or files.
        let has = |what| matches!(what, Operand::Interface | Operand::File);
        let is_free = |kind: &&Type| !kind.options.iter().any(|it| has(it.what));
        for kind in TYPES.iter().filter(is_free) {
            let given = Given(if kind.name == "udp" { vec![local.clone()] } else { Vec::new() });
            let (queues, mtu, pair) = ([2, 3], [1_000, 2_000], kind.always_pair);
            let request = Request { queues, mtu, pair, given: &given };
            let made = (kind.make)(&request).expect("it can be made");
            for (ends, is_trial) in
                [(made, false), (trial(kind, &request).expect("it is tried"), true)]
            {
                assert_eq!(ends.len(), if kind.name == "veth" { 2 } else { 1 }, "{}", kind.name);
                for (end, (queues, mtu)) in ends.iter().zip([(2, 1_014), (3, 2_014)]) {
                    assert_eq!(end.queues.len(), queues, "{}, trial: {is_trial}", kind.name);
                    for queue in &end.queues {
                        let info = queue.info();
                        assert_eq!((info.mtu, info.may_block), (mtu, false), "{}", kind.name);
                    }
                    assert!(end.listener.is_none() && !end.end.is_up());
                }
            }
        }
    }
}
