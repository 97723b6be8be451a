//! A relay between clients and a server, much as a router translates addresses: each client has a
//! socket of its own towards the server, so that each gets the answers to its own datagrams. The
//! clients' datagrams pass the qdiscs of the relay's device; the answers pass those of the device's
//! peer, if it has one.

mod clients;
mod counts;
mod descriptors;
mod fan;
mod share;
mod thread;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use self::counts::Counts;
use self::thread::Mover;
use super::link_end::LinkEnd;
use super::socket::Upstream;
use super::{Refusal, refusal};
use onramp::Link;

pub(crate) use self::clients::Limits;
pub use self::counts::RelayView;
pub(crate) use self::fan::{Fan, Upstreams};
pub(crate) use self::share::CREDITS;

/// The socket at which the clients of a relay arrive, and what the relay needs to serve them.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UdpSocket,
    /// The device whose qdiscs the datagrams of clients pass.
    end: Arc<LinkEnd>,
    /// The device whose qdiscs the answers pass. `None`: they pass no qdisc.
    back: Option<Arc<LinkEnd>>,
    upstream: Upstream,
    /// The socket of the only client. `None`: each client has a socket of its own.
    only: Option<UdpSocket>,
    upstreams: Arc<Upstreams>,
    limits: Limits,
}

impl Listener {
    pub(super) fn bind(
        address: SocketAddr,
        end: &Arc<LinkEnd>,
        upstream: Upstream,
        only: Option<UdpSocket>,
        limits: Limits,
    ) -> Result<Self, Refusal> {
        let refused = |error: io::Error| refusal("listen at", address, &error);
        let socket = UdpSocket::bind(address).map_err(refused)?;
        socket.set_nonblocking(true).map_err(refused)?;
        let (end, upstreams) = (end.clone(), Arc::default());
        Ok(Self { socket, end, back: None, upstream, only, upstreams, limits })
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

/// A thread that relays between clients and a server. Dropping the relay ends the thread.
#[derive(Debug)]
pub(crate) struct Relay {
    end: Arc<AtomicBool>,
    /// Wakes the thread so that it looks at `end`.
    wake: Arc<OwnedFd>,
    address: Option<SocketAddr>,
    clients_max: u32,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
    /// How often the process had forked when the relay began. If the process has forked since, this
    /// is the copy of a relay in a forked child, which has no thread.
    forks: u32,
}

impl Relay {
    /// Starts a thread that sends the datagrams that `listener` receives through `link`, and the
    /// answers back: through the link `back`, or directly if there is none. The datagrams of each
    /// client are a flow of either link. The senders of both links have [`CREDITS`].
    pub(crate) fn start(listener: Listener, link: &Link, back: Option<&Link>) -> io::Result<Self> {
        let (end, counts) = (Arc::<AtomicBool>::default(), Arc::<Counts>::default());
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let address = listener.socket.local_addr().ok();
        let clients_max = listener.limits.clients;
        let mover = Mover::new(listener, link, back, counts.clone(), wake.clone())?;
        let (theirs, forks) = (end.clone(), onramp_dev::watch_forks());
        let thread = std::thread::Builder::new()
            .name("onramp-relay".to_owned())
            .spawn(move || mover.run(&theirs))?;
        Ok(Self { end, wake, address, clients_max, counts, thread: Some(thread), forks })
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

impl Drop for Relay {
    fn drop(&mut self) {
        if onramp_dev::forks() != self.forks {
            // The parent has the thread, and shares `wake`. A copy must not wake the thread, and
            // cannot join it.
            std::mem::forget(self.thread.take());
            return;
        }
        self.end.store(true, Ordering::Relaxed); // Relaxed: the write to `wake` orders it.
        // The write can fail only if the thread is to wake already.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // An error of `join` means that the thread panicked; the panic hook has already printed
            // the panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
