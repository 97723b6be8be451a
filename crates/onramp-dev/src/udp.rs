//! A UDP socket as a transmit queue, and the datagrams that come to it.
//!
//! The device sends a burst with as few system calls as possible. Consecutive packets of one flow,
//! with the same destination and size, become one message that the kernel cuts into datagrams (UDP
//! GSO, Linux 4.18 and later). One call of `sendmmsg` sends all messages of a burst. The device
//! allocates nothing per packet, and copies only small payloads, except the first one of each
//! message.
//!
//! | error from the kernel | reaction of the device |
//! |---|---|
//! | EAGAIN | keeps the unsent packets; asks to be called again after 50 µs, doubling up to 1 ms |
//! | ENOBUFS, ENOMEM | as for EAGAIN; the 8th in a row drops the first packet: `NoBuffers` |
//! | EINTR | tries again at once, up to 16 times; then as for EAGAIN |
//! | EMSGSIZE, EINVAL, EIO, ENOBUFS for a segmented message | sends its datagrams one by one |
//! | any other error, once | tries again: the error may belong to an earlier packet (ICMP) |
//! | EMSGSIZE, twice | drops the packet: `MessageSize` |
//! | ECONNREFUSED, twice | drops the packet: `Refused` |
//! | ENETUNREACH, EHOSTUNREACH, ENETDOWN and similar, twice | drops the packet: `Unreachable` |
//! | EPERM, EACCES, twice | drops the packet: `NoPermission` |
//! | any other error, twice, such as EINVAL for port 0 | drops the packet: `DeviceError` |

mod build;
mod probe;
mod queue;
mod receiver;
mod route;
mod source;
mod stats;
mod verdict;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{Packet, PacketList};

use crate::{DeviceError, sys};
use build::Builder;
use queue::Queue;
pub use receiver::{UdpReceiver, UdpReceiverOptions, UdpReceiverStats};
use route::Route;
pub use source::Source;
pub use stats::UdpStats;

/// Length of the Ethernet header in front of IP, bytes. Linux counts it in a packet's length and a
/// device's MTU.
const ETHERNET: u32 = 14;
const IPV4: u32 = 20;
const IPV6: u32 = 40;
const UDP: u32 = 8;

/// Options of a UDP device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Whether to let the kernel segment messages (UDP GSO), if it can.
    pub gso: bool,
    /// Whether to pass transmit times to the kernel (`SO_TXTIME`), if it accepts them. They take
    /// effect only under the kernel's qdiscs fq and etf; under any other qdisc packets leave at
    /// once.
    pub txtime: bool,
    /// Largest packet of a socket that is not connected, bytes, link header included. A connected
    /// socket uses its path's MTU, if the kernel tells it.
    pub mtu: u32,
}

impl Default for UdpOptions {
    fn default() -> Self {
        Self { gso: true, txtime: false, mtu: 1_500 + ETHERNET }
    }
}

/// A device that uses one UDP socket as one transmit queue.
///
/// A packet without a destination goes to the peer that the socket is connected to. A message to
/// that peer carries no address, which makes sending faster.
///
/// The device reads the socket's traffic class and peer once, so do not change them later.
#[derive(Debug)]
pub struct Udp {
    info: DeviceInfo,
    queue: Queue<Arc<UdpSocket>>,
}

impl Udp {
    /// Makes a device from `socket`, which may be connected or not.
    ///
    /// # Errors
    ///
    /// Fails if the socket's address cannot be read.
    pub fn new(socket: UdpSocket, options: UdpOptions) -> Result<Self, DeviceError> {
        let local = socket
            .local_addr()
            .map_err(|error| DeviceError::new("read the address of a UDP socket", None, error))?;
        let route = Route::of(&socket).map_err(|error| {
            DeviceError::new("read the options of the UDP socket", Some(local), error)
        })?;
        let peer = socket.peer_addr().ok();
        // A connected socket has the MTU of its path. Use the caller's MTU if the kernel does not
        // tell one, and for a socket that is not connected.
        let mtu = peer
            .and_then(|_| sys::path_mtu(&socket, route.is_ipv6()).ok())
            .map_or(options.mtu, |mtu| mtu.saturating_add(ETHERNET));
        let name =
            peer.map_or_else(|| format!("udp {local}"), |peer| format!("udp {local} to {peer}"));
        let segments_max = if options.gso { probe::segments_max(&socket) } else { 1 };
        let txtime = options.txtime && sys::enable_txtime(&socket).is_ok();
        let builder = Builder { route, txtime, segments_max };
        let queue = Queue::new(Arc::new(socket), builder, Arc::default());
        Ok(Self { info: DeviceInfo::new(name, mtu).never_blocks(), queue })
    }

    /// Makes a device of a new, unconnected socket that is bound to `addr`, with the default
    /// options.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be bound to the address.
    pub fn bind(addr: SocketAddr) -> Result<Self, DeviceError> {
        Self::bind_with(addr, UdpOptions::default())
    }

    /// Does the same as [`bind`](Self::bind), with the given options.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be bound to the address.
    pub fn bind_with(addr: SocketAddr, options: UdpOptions) -> Result<Self, DeviceError> {
        let socket = UdpSocket::bind(addr)
            .map_err(|error| DeviceError::new("bind a UDP socket to", Some(addr), error))?;
        Self::new(socket, options)
    }

    /// Returns the socket. It is closed when the device and all clones of the `Arc` are dropped.
    #[must_use]
    pub fn socket(&self) -> &Arc<UdpSocket> {
        &self.queue.wire
    }

    /// Returns a receiver of the datagrams that come to the socket, with the default options. For
    /// other options, give a clone of the [socket](Self::socket) to [`UdpReceiver::new`]. Have only
    /// one receiver for a socket: of several, each datagram comes to one.
    ///
    /// # Errors
    ///
    /// Fails as [`UdpReceiver::new`] does, and if the process has no descriptor left.
    pub fn receiver(&self) -> io::Result<UdpReceiver> {
        UdpReceiver::new(self.queue.wire.try_clone()?, UdpReceiverOptions::default())
    }

    /// Returns the device's counters, which any thread may read at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<UdpStats> {
        Arc::clone(self.queue.stats())
    }

    /// Returns the largest number of datagrams in one message: 64 or 128, depending on the kernel,
    /// or 1 without segmentation.
    #[must_use]
    pub fn segments_max(&self) -> u16 {
        self.queue.builder().segments_max
    }

    /// Whether the device passes transmit times to the kernel.
    #[must_use]
    pub fn txtime(&self) -> bool {
        self.queue.builder().txtime
    }

    /// Returns the number of bytes that a datagram of `payload` bytes takes on the wire, as Linux
    /// counts them (`qdisc_pkt_len`): Ethernet, IP and UDP headers included.
    #[must_use]
    #[inline]
    pub const fn wire_len(payload: u32, ipv6: bool) -> u32 {
        payload.saturating_add(headers(ipv6))
    }

    /// Returns the length on the wire, in bytes, of a packet of several datagrams with `gso_size`
    /// bytes of payload each (the last may be shorter). Each datagram counts with its own headers,
    /// as in [`Udp::wire_len`]. A `gso_size` of 0 means one datagram.
    #[must_use]
    #[inline]
    pub const fn wire_len_gso(payload: u32, gso_size: u16, ipv6: bool) -> u32 {
        let datagrams =
            if gso_size == 0 || payload == 0 { 1 } else { payload.div_ceil(gso_size as u32) };
        payload.saturating_add(datagrams.saturating_mul(headers(ipv6)))
    }

    /// Returns the MTU that the kernel currently knows for the path to `dest`, in bytes, IP header
    /// included. Returns `None` if there is no route to `dest`. Sends no packet.
    #[must_use]
    pub fn path_mtu(dest: SocketAddr) -> Option<u32> {
        let any: SocketAddr = match dest {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(dest).ok()?;
        sys::path_mtu(&socket, dest.is_ipv6()).ok()
    }
}

impl Device for Udp {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    #[inline]
    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        self.queue.transmit(burst, done, now)
    }

    fn transmit_lent(&mut self, packet: &Packet, payload: &[u8], now: Instant) -> bool {
        self.queue.transmit_lent(packet, payload, now)
    }
}

#[inline]
const fn headers(ipv6: bool) -> u32 {
    UDP + ETHERNET + if ipv6 { IPV6 } else { IPV4 }
}
