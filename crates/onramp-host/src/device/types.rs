//! The table of device types, and how devices of each type are made.

use std::net::SocketAddr;
use std::sync::Arc;

use onramp_core::{Device, DeviceInfo};
use onramp_dev::{Null, Udp, UdpOptions};

use super::link_end::{Switched, Wire};
use super::{End, LinkEnd, Listener, Operand, Opt, Refusal, Request, Type, refusal};

/// Size of the Ethernet header, bytes.
const ETHERNET: u32 = 14;
/// The mtu (largest packet without its link header) of a `veth` and of a `udp` device, bytes: the
/// minimum, the default and the maximum.
const ETHER_MTU: [u32; 3] = [68, 1_500, 65_535];

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
                help: "sends the datagrams that arrive at this address to `remote`",
            },
        ],
        layer: "none",
        flags: &["POINTOPOINT", "NOARP"],
        carrier: false,
        header: ETHERNET,
        mtu: ETHER_MTU,
        no_queue: false,
        make: udp,
    },
];

fn boxed(devices: impl Iterator<Item = impl Device + 'static>) -> Vec<Box<dyn Device>> {
    devices.map(|device| Box::new(device) as Box<dyn Device>).collect()
}

fn dummy(request: &Request<'_>) -> Result<Vec<End>, Refusal> {
    let end = Arc::<LinkEnd>::default();
    let queues = Null::new(request.mtu[0].saturating_add(ETHERNET)).queues(request.queues[0]);
    let queues = boxed(queues.into_iter().map(|queue| Switched::new(end.clone(), queue)));
    Ok(vec![End { queues, end, listener: None }])
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
    End { queues, end: from.clone(), listener: None }
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
    let invalid = |why: &str| Refusal::new("RTNETLINK answers: Invalid argument", why);
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
    let end = Arc::<LinkEnd>::default();
    let mut queues = Vec::new();
    for _ in 0..request.queues[0] {
        queues.push(socket(local, remote, request.mtu[0])?);
    }
    let listener = match (given.address("listen"), remote) {
        (None, _) => None,
        (Some(_), None) => {
            return Err(invalid("listen needs remote, to which it sends: give both"));
        }
        (Some(listen), Some(_)) => Some(Listener::bind(listen, &end)?),
    };
    let queues = boxed(queues.into_iter().map(|queue| Switched::new(end.clone(), queue)));
    Ok(vec![End { queues, end, listener }])
}

fn socket(local: SocketAddr, remote: Option<SocketAddr>, mtu: u32) -> Result<Udp, Refusal> {
    let refused = |error: std::io::Error| refusal("bind a UDP socket to", local, &error);
    let socket = std::net::UdpSocket::bind(local).map_err(refused)?;
    if let Some(remote) = remote {
        let refused = |error| refusal("connect a UDP socket to", remote, &error);
        socket.connect(remote).map_err(refused)?;
    }
    let options = UdpOptions { mtu: mtu.saturating_add(ETHERNET), ..UdpOptions::default() };
    Udp::new(socket, options)
        .map_err(|error| Refusal::new("RTNETLINK answers: Invalid argument", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::{Given, trial};
    use super::*;

    /// The queues of each type report a largest packet that is 14 bytes (the Ethernet header)
    /// larger than the mtu of the command, and report that they never block.
    #[test]
    fn queues_are_as_they_are_asked_for() {
        let local = ("local", SocketAddr::from(([127, 0, 0, 1], 0)));
        for kind in TYPES {
            let given = Given(if kind.name == "udp" { vec![local] } else { Vec::new() });
            let request = Request { queues: [2, 3], mtu: [1_000, 2_000], given: &given };
            let made = (kind.make)(&request).expect("it can be made");
            for (ends, is_trial) in [(made, false), (trial(kind, &request), true)] {
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
