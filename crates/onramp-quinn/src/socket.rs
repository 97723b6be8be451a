//! The socket that quinn sends and receives with.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use onramp::{Link, Message, PAYLOAD_MAX, Peers, TrySendError};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, Runtime, ServerConfig, UdpPoller};

use crate::closing::Closing;
use crate::poller::{self, Poller};
use crate::stats::{Counters, count};
use crate::{Options, SocketStats};

/// Most bytes of a batch: the most that one message of UDP over IPv4 has.
const BATCH_MAX: usize = PAYLOAD_MAX - 28;

/// A UDP socket of quinn whose datagrams leave through the qdiscs of a [`Link`].
///
/// The link's only port has the UDP socket, with which quinn receives as it does otherwise: several
/// datagrams at once (GRO), with their ECN code points and destination addresses.
///
/// # Peers
///
/// Each pair of a destination and a local address is a *peer*, with a flow, a
/// [`Sender`](onramp::Sender) and credits of its own. So the qdisc tells connections to different
/// addresses apart, and a peer whose packets wait in the qdisc does not keep others from sending.
/// Connections of one endpoint to the same address are one peer, as they are one flow for Linux.
///
/// A thread that sends holds the lock of the table of peers while it looks one up, and the lock of
/// the peer while it pushes a packet. Two connections share the latter only if they have the same
/// peer.
///
/// # Room
///
/// If a peer has no credit left ([`Options::credits`]), quinn keeps the batch, and the connection
/// goes on when packets have left. Nobody polls in between.
///
/// # Close
///
/// quinn itself closes connections in order ([`Endpoint::close`], [`Endpoint::wait_idle`]). What
/// the qdisc still holds then leaves only while the link lives: keep a clone of the link, and call
/// [`Link::close`] with a timeout at the end. If the link is closed first, or its port dies, the
/// endpoint ends with an error, and so do its connections.
#[derive(Debug)]
pub struct OnrampSocket {
    link: Link,
    runtime: Arc<dyn Runtime>,
    /// quinn's own socket, which only receives.
    receiver: Arc<dyn AsyncUdpSocket>,
    local: SocketAddr,
    peers: Peers,
    /// Most datagrams in a batch at present.
    segments: AtomicUsize,
    closing: Closing,
    counters: Counters,
}

impl OnrampSocket {
    /// Makes a socket that is bound to `addr` and sends through `qdisc`, described as `tc` does,
    /// such as `fq maxrate 20mbit`. It has the default options and the runtime in which the call is
    /// made ([`quinn::default_runtime`]).
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the address, the qdisc or the socket is wrong; the text says what. Besides
    /// the errors of [`with`](Self::with).
    pub fn bind(addr: impl ToSocketAddrs, qdisc: &str) -> io::Result<Arc<Self>> {
        // With credits of its own, the link does not share out a bound among the peers.
        let credits = Options::default().credits;
        let link = Link::udp(addr).ports(1).qdisc(qdisc).credits(credits).build();
        Self::new(link.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?)
    }

    /// Makes a socket over a link, with the default options and the runtime in which the call is
    /// made ([`quinn::default_runtime`]).
    ///
    /// # Errors
    ///
    /// As [`with`](Self::with). `Unsupported` if the call is made outside all runtimes that quinn
    /// was compiled for.
    pub fn new(link: Link) -> io::Result<Arc<Self>> {
        let runtime = quinn::default_runtime().ok_or_else(|| {
            let why = "no runtime of quinn's runs here: make the socket inside one (tokio), or \
                       name the runtime";
            io::Error::new(io::ErrorKind::Unsupported, why)
        })?;
        Self::with(link, runtime, Options::default())
    }

    /// Makes a socket over a link with these options, for this runtime.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if an option is out of its range, or if the link has not exactly one port,
    /// over a UDP socket: quinn uses one address. `BrokenPipe` if the link is closed. Besides the
    /// errors of [`Runtime::wrap_udp_socket`].
    pub fn with(link: Link, runtime: Arc<dyn Runtime>, options: Options) -> io::Result<Arc<Self>> {
        options.check()?;
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
        if link.ports() != 1 {
            let why = format!("quinn needs a link with one port, not {}", link.ports());
            return Err(wrong(&why));
        }
        let socket = link.socket(0).ok_or_else(|| wrong("the link is over no UDP socket"))?;
        let local = socket.local_addr()?;
        let receiver = runtime.wrap_udp_socket(socket.try_clone()?)?;
        let closing = Closing::new(&link).map_err(|_| closed())?;
        let segments = AtomicUsize::new(options.segments.min(receiver.max_transmit_segments()));
        let peers = Peers::new(&link, options.credits, options.peers);
        let counters = Counters::default();
        let this = Self { link, runtime, receiver, local, peers, segments, closing, counters };
        Ok(Arc::new(this))
    }

    /// Makes an endpoint that uses this socket: of a server if `server` is given, and in any case
    /// of clients. One socket serves one endpoint.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::new_with_abstract_socket`].
    pub fn endpoint(
        self: &Arc<Self>,
        config: EndpointConfig,
        server: Option<ServerConfig>,
    ) -> io::Result<Endpoint> {
        let (socket, runtime) = (Arc::clone(self), Arc::clone(&self.runtime));
        Endpoint::new_with_abstract_socket(config, server, socket, runtime)
    }

    /// Returns the link, to read its counters and to change its qdiscs.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the socket's counters.
    #[must_use]
    pub fn stats(&self) -> SocketStats {
        self.counters.read(&self.peers)
    }
}

impl AsyncUdpSocket for OnrampSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller::default())
    }

    /// Stages a batch. quinn never learns of errors other than `WouldBlock`: a connection whose
    /// socket fails would hang, where the loss of a datagram does no harm. If the link is closed,
    /// [`poll_recv`](AsyncUdpSocket::poll_recv) fails, which ends the endpoint in order.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let asked = poller::begin();
        // A socket that is bound to an address sends from there anyway.
        let source = transmit.src_ip.filter(|_| self.local.ip().is_unspecified());
        let Ok(peer) = self.peers.get(Some(transmit.destination), source) else {
            count(&self.counters.no_source);
            return Ok(());
        };
        let payload = transmit.contents;
        let segment = transmit.segment_size.filter(|&size| size < payload.len());
        let message = Message {
            payload,
            // A segment that does not fit belongs to a batch that does not fit either.
            segment: segment.map_or(0, |size| u16::try_from(size).unwrap_or(u16::MAX)),
            ecn: Some(transmit.ecn.map_or(0, |ecn| ecn as u8)),
            ..Message::default()
        };
        match peer.try_send(&message) {
            Ok(()) => {}
            Err(TrySendError::Full) => {
                count(&self.counters.full);
                if asked {
                    poller::refuse(&peer, payload.len());
                } else {
                    count(&self.counters.replies_dropped);
                }
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Err(TrySendError::TooLarge) => {
                count(&self.counters.too_large);
                let most = segment.map_or(1, |size| (BATCH_MAX / size).max(1));
                // Relaxed: the number stands alone.
                self.segments.fetch_min(most, Ordering::Relaxed);
            }
            Err(_) => count(&self.counters.closed),
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if self.closing.poll(cx) {
            return Poll::Ready(Err(closed()));
        }
        self.receiver.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn max_transmit_segments(&self) -> usize {
        let without = self.link.udp_stats().first().is_some_and(|udp| udp.gso_off.get() == 1);
        // Relaxed: the number stands alone.
        if without { 1 } else { self.segments.load(Ordering::Relaxed) }
    }

    fn max_receive_segments(&self) -> usize {
        self.receiver.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.receiver.may_fragment()
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the link is closed, or its port is dead")
}
