//! A relay between clients and a server, much as a router translates addresses: each client has a
//! socket of its own towards the server, so that each gets the answers to its own datagrams. The
//! clients' datagrams pass the qdiscs of the relay's device; the answers pass those of the device's
//! peer, if it has one.

mod clients;
mod counts;
mod descriptors;
mod fan;
mod forgotten;
mod heard;
mod share;
mod thread;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use self::counts::Counts;
use self::thread::Mover;
use super::link_end::LinkEnd;
use super::socket::{Upstream, enlarge};
use super::worker::{self, Worker};
use super::{Refusal, invalid, refusal};
use onramp::Link;

pub(crate) use self::clients::Limits;
pub use self::counts::RelayView;
pub(crate) use self::fan::{Fan, Upstreams};
pub(crate) use self::share::CREDITS;

/// The room of the listening socket, bytes.
const ROOM: usize = 4 << 20;

/// The socket at which the clients of a relay arrive, and what the relay needs to serve them.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UdpSocket,
    /// The device whose qdiscs the datagrams of clients pass.
    end: Arc<LinkEnd>,
    /// The device whose qdiscs the answers pass. `None`: they pass no qdisc.
    back: Option<Arc<LinkEnd>>,
    upstream: Upstream,
    /// The sockets of the device's transmit queues. If the upstream names a port, there is one, and
    /// the only client shares it.
    queues: Vec<Arc<UdpSocket>>,
    upstreams: Arc<Upstreams>,
    limits: Limits,
}

impl Listener {
    pub(super) fn bind(
        address: SocketAddr,
        end: &Arc<LinkEnd>,
        upstream: Upstream,
        queues: Vec<Arc<UdpSocket>>,
        limits: Limits,
    ) -> Result<Self, Refusal> {
        let refused = |error: io::Error| refusal("listen at", address, &error);
        let socket = UdpSocket::bind(address).map_err(refused)?;
        socket.set_nonblocking(true).map_err(refused)?;
        enlarge(&socket, ROOM);
        if hears(socket.local_addr().map_err(refused)?, upstream.remote) {
            return Err(invalid(
                "what is sent to remote comes to listen, so the device would relay to itself for \
                 ever: give remote the address of the server",
            ));
        }
        let (end, upstreams) = (end.clone(), Arc::default());
        Ok(Self { socket, end, back: None, upstream, queues, upstreams, limits })
    }

    /// Returns the socket that the only client shares with the device's transmit queue, or `None`
    /// if each client has a socket of its own.
    fn shared(&self) -> Option<&Arc<UdpSocket>> {
        self.queues.first().filter(|_| self.upstream.is_shared())
    }

    /// Returns the sockets of the clients, which the device's transmit queues need.
    pub(super) fn upstreams(&self) -> Arc<Upstreams> {
        self.upstreams.clone()
    }

    /// Returns another handle of the listening socket, from which the answers have to be sent.
    /// `address` is the address of the socket, for the error text.
    pub(super) fn socket(&self, address: SocketAddr) -> Result<UdpSocket, Refusal> {
        self.socket.try_clone().map_err(|error| refusal("listen at", address, &error))
    }

    /// Lets the answers pass the qdiscs of the device `back`.
    pub(super) fn answer_through(&mut self, back: &Arc<LinkEnd>) {
        self.back = Some(back.clone());
    }
}

/// Whether a socket that listens at `at` receives what is sent to `to`.
fn hears(at: SocketAddr, to: SocketAddr) -> bool {
    let own = at.ip().to_canonical();
    let other = match to.ip().to_canonical() {
        // The kernel sends to the loopback what is sent to no address in particular.
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    // A socket can only be bound to an address of this host.
    let is_local = || {
        let mut any_port = to;
        any_port.set_ip(other);
        any_port.set_port(0);
        UdpSocket::bind(any_port).is_ok()
    };
    let has_all = own.is_unspecified() && (own.is_ipv6() || other.is_ipv4());
    at.port() == to.port() && (own == other || has_all && is_local())
}

/// A thread that relays between clients and a server. Dropping the relay ends the thread.
#[derive(Debug)]
pub(crate) struct Relay {
    _worker: Worker,
    address: Option<SocketAddr>,
    clients_max: u32,
    counts: Arc<Counts>,
}

impl Relay {
    /// Starts a thread that sends the datagrams that `listener` receives through `link`, and the
    /// answers back: through the link `back`, or directly if there is none. The datagrams of each
    /// client are a flow of either link. The senders of both links have [`CREDITS`].
    pub(crate) fn start(listener: Listener, link: &Link, back: Option<&Link>) -> io::Result<Self> {
        let (wake, counts) = (worker::wake()?, Arc::<Counts>::default());
        let address = listener.socket.local_addr().ok();
        let clients_max = listener.limits.clients;
        let mover = Mover::new(listener, link, back, counts.clone(), wake.clone())?;
        let worker = Worker::start("onramp-relay", wake, move |end| mover.run(end))?;
        Ok(Self { _worker: worker, address, clients_max, counts })
    }

    /// Returns the address at which the relay listens.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns what the relay has done so far.
    pub(crate) fn view(&self) -> RelayView {
        self.counts.view(self.clients_max)
    }
}

#[cfg(test)]
mod tests;
