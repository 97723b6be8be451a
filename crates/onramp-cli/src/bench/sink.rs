//! Sinks, the sockets that datagrams go to: sockets that count datagrams, or a socket of another
//! program, which does not report what arrives.
//!
//! A counting sink is a bound socket that no thread reads. It is *primed*: its receive buffer is
//! filled beforehand with the smallest possible datagrams. Then each later datagram finds no room,
//! and the kernel counts it as a drop of that socket. The count is exact, and it costs the same for
//! all methods of sending.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::socket::{setsockopt, sockopt};
use onramp_dev::{set_receive_buffer, socket_memory};
use socket2::SockRef;

use super::plan::{Plan, SinkKind};
use crate::netns::{Wire, WireCounter};

/// Size in bytes of the receive buffer of a sink whose datagrams are read.
const READ_BUFFER: usize = 4 << 20;
/// Number of datagrams that is more than enough to fill the smallest receive buffer that the kernel
/// gives.
const PRIMERS_MAX: u32 = 1_000;

/// The sinks of all flows.
#[derive(Debug)]
pub(crate) struct Sinks {
    /// The sockets of the sinks; empty if the sink is a socket of another program.
    sockets: Vec<UdpSocket>,
    targets: Vec<SocketAddr>,
    drops: Vec<DropCount>,
    wire: Option<WireCounter>,
}

/// The number of datagrams that a sink dropped: the kernel's 32-bit count, extended to 64 bits.
#[derive(Clone, Copy, Debug, Default)]
struct DropCount {
    last: u32,
    total: u64,
}

impl DropCount {
    fn update(&mut self, now: u32) -> u64 {
        self.total += u64::from(now.wrapping_sub(self.last));
        self.last = now;
        self.total
    }
}

impl Sinks {
    /// Opens a sink for each flow of `plan`, at the far end of the veth pair `wire` if given.
    pub(crate) fn open(plan: &Plan, wire: Option<&Wire>) -> Result<Self> {
        let flows = plan.flows();
        let (sockets, targets) = match (plan.sink, wire) {
            (SinkKind::External(to), _) => (Vec::new(), vec![to; flows]),
            (SinkKind::Veth, Some(wire)) => {
                wire.at_far_end(|| bind(flows, wire.far_address().into()))?
            }
            _ => bind(flows, Ipv4Addr::LOCALHOST.into())?,
        };
        let drops = vec![DropCount::default(); sockets.len()];
        let wire = wire.map(Wire::counter).transpose()?;
        let mut sinks = Self { sockets, targets, drops, wire };
        for socket in &sinks.sockets {
            if plan.verify {
                prepare_reading(socket)?;
            } else {
                SockRef::from(socket).set_recv_buffer_size(0)?;
            }
        }
        if !plan.verify {
            sinks.prime()?;
        }
        sinks.dropped()?;
        Ok(sinks)
    }

    /// Returns the address that each flow sends to.
    pub(crate) fn targets(&self) -> &[SocketAddr] {
        &self.targets
    }

    /// Returns the sockets of the sinks. The slice is empty if the sink is a socket of another
    /// program.
    pub(crate) fn sockets(&self) -> &[UdpSocket] {
        &self.sockets
    }

    /// Returns the number of datagrams that found no room at each sink since the sink was opened.
    pub(crate) fn dropped(&mut self) -> Result<Vec<u64>> {
        let counts = self
            .sockets
            .iter()
            .zip(&mut self.drops)
            .map(|(socket, count)| Ok(count.update(socket_memory(socket.as_fd())?.drops)));
        counts.collect::<std::io::Result<_>>().context("cannot read a sink's counters")
    }

    /// Returns the number of messages that the veth pair has dropped since it was made.
    pub(crate) fn lost_on_wire(&mut self) -> Result<u64> {
        self.wire.as_mut().map_or(Ok(0), WireCounter::dropped)
    }

    fn prime(&mut self) -> Result<()> {
        let Some(first) = self.targets.first() else { return Ok(()) };
        let primer = UdpSocket::bind(SocketAddr::new(any(first.ip()), 0))?;
        for (socket, target) in self.sockets.iter().zip(&self.targets) {
            let mut sent = 0;
            while socket_memory(socket.as_fd())?.drops == 0 {
                if sent == PRIMERS_MAX {
                    bail!("the sink at {target} does not count what it drops");
                }
                primer.send_to(&[], target).with_context(|| format!("cannot reach {target}"))?;
                sent += 1;
            }
        }
        Ok(())
    }
}

fn any(like: IpAddr) -> IpAddr {
    if like.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        std::net::Ipv6Addr::UNSPECIFIED.into()
    }
}

fn bind(flows: usize, at: IpAddr) -> Result<(Vec<UdpSocket>, Vec<SocketAddr>)> {
    let mut sockets = Vec::with_capacity(flows);
    let mut targets = Vec::with_capacity(flows);
    for _ in 0..flows {
        let socket = UdpSocket::bind((at, 0)).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => anyhow!(
                "no UDP port is left for sink {} of {flows}: use fewer threads or flows, or widen \
                 net.ipv4.ip_local_port_range",
                sockets.len() + 1
            ),
            _ => anyhow!("cannot bind sink {} of {flows} at {at}: {error}", sockets.len() + 1),
        })?;
        targets.push(socket.local_addr()?);
        sockets.push(socket);
    }
    Ok((sockets, targets))
}

/// Gives the socket a large receive buffer, and lets the kernel report the time of arrival with
/// every datagram.
fn prepare_reading(socket: &UdpSocket) -> Result<()> {
    set_receive_buffer(socket, READ_BUFFER)?;
    setsockopt(socket, sockopt::ReceiveTimestampns, &true)?;
    socket.set_nonblocking(true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use onramp_core::Clock;
    use onramp_dev::MonotonicClock;

    use super::*;
    use crate::bench::planted;
    use crate::netns::may_lay;

    #[test]
    fn primed_sinks_count_every_datagram() {
        let plan = Plan { threads: 3, verify: false, ..planted::plan() };
        let mut sinks = Sinks::open(&plan, None).expect("sinks on loopback");
        let before = sinks.dropped().expect("counters");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket on loopback");
        for (target, count) in sinks.targets().to_vec().iter().zip([0, 1, 700]) {
            for size in (0..count).map(|number| number % 120) {
                sender.send_to(&[7; 120][..size], target).expect("loopback takes it");
            }
        }
        let after = sinks.dropped().expect("counters");
        let counted: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        assert_eq!(counted, [0, 1, 700]);
    }

    #[test]
    fn sinks_behind_a_wire_count_what_crosses_it() {
        if !may_lay() {
            return;
        }
        // The thread of this test stays in the new network namespace, which does no harm, because
        // no other test runs in that thread.
        let wire = Wire::lay().expect("a wire");
        let plan = Plan { sink: SinkKind::Veth, verify: false, ..planted::plan() };
        let mut sinks = Sinks::open(&plan, Some(&wire)).expect("sinks at the far end");
        let before: u64 = sinks.dropped().expect("counters").iter().sum();
        let sender = UdpSocket::bind("0.0.0.0:0").expect("a socket at the near end");
        for target in sinks.targets() {
            sender.send_to(&[7; 58], target).expect("the wire takes it");
        }
        // Wait until every sink has counted its datagram, because veth may deliver it late.
        let due = before + sinks.targets().len() as u64;
        let give_up = MonotonicClock.now() + Duration::from_secs(60);
        while sinks.dropped().expect("counters").iter().sum::<u64>() < due {
            assert!(MonotonicClock.now() < give_up, "they do not arrive");
            std::thread::yield_now();
        }
        assert_eq!(sinks.dropped().expect("counters").iter().sum::<u64>(), due);
    }

    #[test]
    fn a_count_goes_on_where_the_kernels_starts_again() {
        let mut count = DropCount::default();
        assert_eq!(count.update(u32::MAX), u64::from(u32::MAX));
        assert_eq!(count.update(4), u64::from(u32::MAX) + 5);
    }
}
