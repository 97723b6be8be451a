//! The socket.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use onramp::{CloseReport, Credits, Link, Message, Peers, TrySendError};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Mutex;
use tokio::task::coop::{consume_budget, poll_proceed};

use crate::incoming::Incoming;
use crate::{Driver, Received};

/// Options of a [`Socket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How much may be in flight to each destination: accepted, and neither sent nor dropped by the
    /// link. Default: 64 packets and 64 KiB. The range is 1 to 32,768 packets; one packet may
    /// always be in flight, however large it is.
    ///
    /// Lower it to keep queues short: 64 KiB are 26 ms at 20 Mbit/s. For queues that are short at
    /// any rate, build the link with [`credit_time`](onramp::LinkBuilder::credit_time). If a qdisc
    /// delays packets (`netem delay`), they are in flight meanwhile: give credits of at least the
    /// rate times the delay.
    ///
    /// Each destination keeps these credits if the link was built with
    /// [`credits`](onramp::LinkBuilder::credits), of whatever number, and without
    /// [`credits_per_port`](onramp::LinkBuilder::credits_per_port). Otherwise all destinations that
    /// the socket remembers, idle ones too, share the credits of the port, 8,192 packets by
    /// default.
    pub credits: Credits,
    /// Number of destinations that the socket remembers. Default: 4,096. At least 1.
    ///
    /// Each has a flow in the qdisc, credits, and the memory of its packets. If more come, the
    /// socket forgets those to which nothing was sent for long; a forgotten destination gets new
    /// credits when it comes back.
    pub destinations: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { credits: Credits { packets: 64, bytes: 64 << 10 }, destinations: 4_096 }
    }
}

/// A UDP socket whose datagrams leave through the qdiscs of a [`Link`].
///
/// Calls that send return `InvalidInput` if a datagram exceeds 65,507 bytes, and `BrokenPipe` if
/// the link is closed or its port is dead. A datagram that a qdisc or the kernel drops later is no
/// error: the link counts it with its reason ([`Link::stats`]).
///
/// When the socket and all handles of its link are dropped, the packets that the qdiscs still hold
/// are dropped as well. [`close`](Self::close) lets them leave.
#[derive(Debug)]
pub struct Socket {
    link: Link,
    peers: Peers,
    local: SocketAddr,
    /// Whether the socket is connected, so that datagrams need no address.
    connected: bool,
    /// Tells when the kernel has datagrams.
    io: UdpSocket,
    /// A task that waits for datagrams holds the lock; others wait for it to be free.
    incoming: Mutex<Incoming>,
    /// The task that runs a link without threads.
    _driver: Option<Driver>,
}

impl Socket {
    /// Makes a socket that is bound to `addr` and sends through `qdisc`, described as `tc` does,
    /// such as `fq maxrate 20mbit`, with the default options.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the address, the qdisc or the socket is wrong; the text says what. Besides
    /// the errors of [`with`](Self::with).
    ///
    /// # Panics
    ///
    /// Panics outside a runtime of tokio with I/O enabled.
    pub fn bind(addr: impl ToSocketAddrs, qdisc: &str) -> io::Result<Self> {
        let options = Options::default();
        // With credits of its own, the link does not share out a bound among the destinations.
        let link = Link::udp(addr).ports(1).qdisc(qdisc).credits(options.credits).build();
        let link = link.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Self::with(link, options)
    }

    /// Makes a socket over a link. If the link has no threads, starts a [`Driver`].
    ///
    /// # Errors
    ///
    /// `InvalidInput` if an option is out of its range, or if the link has not exactly one port,
    /// over a UDP socket. Besides the kernel's errors.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime of tokio with I/O enabled.
    pub fn with(link: Link, options: Options) -> io::Result<Self> {
        let wrong = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let Options { credits, destinations } = options;
        if !(1..=Credits::PACKETS_MAX).contains(&credits.packets) || destinations == 0 {
            return wrong(format!(
                "a socket has credits for 1 to 32768 packets and remembers at least 1 destination, \
                 not {} and {destinations}",
                credits.packets
            ));
        }
        if link.ports() != 1 {
            return wrong(format!("a socket needs a link with one port, not {}", link.ports()));
        }
        let Some(socket) = link.socket(0) else {
            return wrong("the link is over no UDP socket".to_owned());
        };
        socket.set_nonblocking(true)?;
        let (local, connected) = (socket.local_addr()?, socket.peer_addr().is_ok());
        let io = UdpSocket::from_std(socket.try_clone()?)?;
        let incoming = Mutex::new(Incoming::new(socket.try_clone()?)?);
        let driver = link.descriptor().map(|_| Driver::spawn(&link)).transpose()?;
        let peers = Peers::new(&link, credits, destinations);
        Ok(Self { link, peers, local, connected, io, incoming, _driver: driver })
    }

    /// Returns the link, to read its counters and to change its qdiscs.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the address to which the socket is bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Sends a datagram to `dest`. Waits while there is no room, and returns the length of the
    /// payload. If the future is dropped before it ends, nothing was sent.
    ///
    /// # Errors
    ///
    /// See [`Socket`].
    pub async fn send_to(&self, payload: &[u8], dest: SocketAddr) -> io::Result<usize> {
        self.send_message(&Message { payload, ..Message::default() }, Some(dest), None).await
    }

    /// Sends a datagram to `dest` if there is room.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no room: see [`writable`](Self::writable). And see [`Socket`].
    pub fn try_send_to(&self, payload: &[u8], dest: SocketAddr) -> io::Result<usize> {
        self.try_send_message(&Message { payload, ..Message::default() }, Some(dest), None)
    }

    /// Polls for the sending of a datagram to `dest`, for futures that are written by hand. If
    /// there is no room, registers the task of `cx`. Any number of tasks may wait. The task stays
    /// registered until the next wake-up, also if it no longer waits.
    ///
    /// # Errors
    ///
    /// See [`Socket`].
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        payload: &[u8],
        dest: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(poll_proceed(cx));
        let message = Message { payload, ..Message::default() };
        loop {
            // If the table has forgotten the peer, it is ready, but gets no room: ask anew.
            let peer = self.peer(Some(dest), None)?;
            let sent = match peer.try_send(&message) {
                Ok(()) => Ok(payload.len()),
                Err(TrySendError::Full) => {
                    ready!(peer.poll_ready(cx, payload.len()));
                    continue;
                }
                Err(why) => Err(error(why)),
            };
            budget.made_progress();
            return Poll::Ready(sent);
        }
    }

    /// Sends a datagram to the address to which the socket is connected. A connected socket is one
    /// of a link over a socket that the program has connected itself ([`Link::sockets`]).
    ///
    /// # Errors
    ///
    /// `NotConnected`. And see [`Socket`].
    pub async fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.send_message(&Message { payload, ..Message::default() }, None, None).await
    }

    /// Sends a datagram to the address to which the socket is connected, if there is room.
    ///
    /// # Errors
    ///
    /// As [`try_send_to`](Self::try_send_to), and `NotConnected`.
    pub fn try_send(&self, payload: &[u8]) -> io::Result<usize> {
        self.try_send_message(&Message { payload, ..Message::default() }, None, None)
    }

    /// Sends a message, of one datagram or several of equal size, to `dest`, or to the address to
    /// which the socket is connected, from the local address `source`, or from the one that the
    /// socket or the routing table has. A server that is bound to no address answers from
    /// [`Received::destination`]. Waits while there is no room.
    ///
    /// # Errors
    ///
    /// `NotConnected` without `dest`, if the socket is not connected. `QuotaExceeded` if there are
    /// too many sources ([`Source::new`](onramp::dev::Source::new)). And see [`Socket`].
    ///
    /// # Panics
    ///
    /// Panics when the message's ECN code point has more than two bits.
    pub async fn send_message(
        &self,
        message: &Message<'_>,
        dest: Option<SocketAddr>,
        source: Option<IpAddr>,
    ) -> io::Result<usize> {
        consume_budget().await;
        loop {
            let peer = self.peer(dest, source)?;
            match peer.try_send(message) {
                Ok(()) => return Ok(message.payload.len()),
                Err(TrySendError::Full) => peer.room(message.payload.len()).await,
                Err(why) => return Err(error(why)),
            }
        }
    }

    /// Sends a message, as [`send_message`](Self::send_message) does, if there is room.
    ///
    /// # Errors
    ///
    /// As [`send_message`](Self::send_message), and `WouldBlock` if there is no room.
    ///
    /// # Panics
    ///
    /// Panics when the message's ECN code point has more than two bits.
    pub fn try_send_message(
        &self,
        message: &Message<'_>,
        dest: Option<SocketAddr>,
        source: Option<IpAddr>,
    ) -> io::Result<usize> {
        let peer = self.peer(dest, source)?;
        peer.try_send(message).map_err(error)?;
        Ok(message.payload.len())
    }

    /// Waits until there is room for a datagram of `payload` bytes to `dest` (`None`: to the
    /// address to which the socket is connected). Another task may take the room first.
    ///
    /// # Errors
    ///
    /// `NotConnected`, as [`send`](Self::send). A closed link is no error here, but for the next
    /// call that sends.
    pub async fn writable(&self, dest: Option<SocketAddr>, payload: usize) -> io::Result<()> {
        consume_budget().await;
        let peer = self.peer(dest, None)?;
        peer.room(payload).await;
        Ok(())
    }

    /// Receives a datagram into `buffer`. Waits for one, and returns the number of its bytes and
    /// its sender. What does not fit is lost. If the future is dropped before it ends, no datagram
    /// was taken.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(buffer).await.map(|received| (received.len, received.source))
    }

    /// Receives a datagram if one has come, as [`recv_from`](Self::recv_from) does.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none, or if another task waits for one. And those of the kernel.
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let would_block = || io::Error::from(io::ErrorKind::WouldBlock);
        let mut incoming = self.incoming.try_lock().map_err(|_| would_block())?;
        if incoming.is_empty() {
            self.io.try_io(Interest::READABLE, || incoming.fill())?;
        }
        let received = incoming.next(buffer).ok_or_else(would_block)?;
        Ok((received.len, received.source))
    }

    /// Polls for a datagram, for futures that are written by hand. If there is none, registers the
    /// task of `cx`, which is the only one: so this call needs the socket for itself.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub fn poll_recv_from(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        let incoming = self.incoming.get_mut();
        loop {
            if let Some(received) = incoming.next(buffer) {
                return Poll::Ready(Ok((received.len, received.source)));
            }
            ready!(self.io.poll_recv_ready(cx))?;
            match self.io.try_io(Interest::READABLE, || incoming.fill()) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                _ => {}
            }
        }
    }

    /// Receives a datagram, as [`recv_from`](Self::recv_from) does, and returns all that came with
    /// it.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut incoming = self.incoming.lock().await;
        loop {
            if let Some(received) = incoming.next(buffer) {
                return Ok(received);
            }
            self.io.async_io(Interest::READABLE, || incoming.fill()).await?;
        }
    }

    /// Waits until a datagram has come. Another task may take it first.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub async fn readable(&self) -> io::Result<()> {
        let mut incoming = self.incoming.lock().await;
        while incoming.is_empty() {
            self.io.async_io(Interest::READABLE, || incoming.fill()).await?;
        }
        Ok(())
    }

    /// Closes the link: refuses new datagrams, waits until all have left or `timeout` has passed,
    /// and says what was lost. Clones of the link, if there are any, are closed as well. Other
    /// tasks go on meanwhile: see [`Link::closing`].
    pub async fn close(self, timeout: Duration) -> CloseReport {
        self.link.closing(timeout).await
    }

    fn peer(
        &self,
        dest: Option<SocketAddr>,
        source: Option<IpAddr>,
    ) -> io::Result<std::sync::Arc<onramp::Peer>> {
        if dest.is_none() && !self.connected {
            let why = "the socket is not connected: name a destination, or connect the link's";
            return Err(io::Error::new(io::ErrorKind::NotConnected, why));
        }
        // A socket that is bound to an address sends from there anyway.
        self.peers.get(dest, source.filter(|_| self.local.ip().is_unspecified()))
    }
}

fn error(why: TrySendError) -> io::Error {
    let kind = match why {
        TrySendError::Full => io::ErrorKind::WouldBlock,
        TrySendError::TooLarge => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::BrokenPipe,
    };
    io::Error::new(kind, why)
}
