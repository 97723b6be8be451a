//! A UDP socket as a transmit queue.
//!
//! A burst goes out in as few system calls as can be: neighbours of one flow, with the same
//! destination and size, become one message that the kernel cuts into datagrams (UDP GSO, Linux
//! 4.18 and later), and all messages of a burst go to `sendmmsg` together. Nothing is allocated per
//! packet, and only small payloads behind the first of a message are copied.
//!
//! | what the kernel says | what happens |
//! |---|---|
//! | EAGAIN | the rest stays; asked again after 50 µs, doubling to 1 ms |
//! | ENOBUFS, ENOMEM | the same, 8 times; then the first packet is dropped (`NoBuffers`) |
//! | EINTR | asked again at once |
//! | EMSGSIZE, EINVAL, EIO, ENOBUFS for a segmented message | its datagrams are sent singly |
//! | anything else, once | asked again: it may be the error of an earlier packet (ICMP) |
//! | EMSGSIZE, twice | dropped: `MessageSize` |
//! | ECONNREFUSED, twice | dropped: `Refused` |
//! | ENETUNREACH, EHOSTUNREACH, ENETDOWN and their kin, twice | dropped: `Unreachable` |
//! | EPERM, EACCES, twice | dropped: `NoPermission` |
//! | anything else, twice, such as EINVAL for port 0 | dropped: `DeviceError` |

mod build;
mod probe;
mod queue;
mod route;
mod stats;
mod verdict;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::PacketList;

use crate::{DeviceError, sys};
use build::Builder;
use queue::Queue;
use route::Route;
pub use stats::UdpStats;

/// Bytes of Ethernet in front of IP, which Linux counts in a packet's length and a device's MTU.
const ETHERNET: u32 = 14;
const IPV4: u32 = 20;
const IPV6: u32 = 40;
const UDP: u32 = 8;

/// How a UDP device behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Segmentation by the kernel (UDP GSO), where it can.
    pub gso: bool,
    /// Pass transmit times on (`SO_TXTIME`), where the kernel takes them. They take effect only
    /// under the qdiscs fq and etf; any other sends at once.
    pub txtime: bool,
    /// Largest packet of a socket that is not connected, bytes, link header included.
    pub mtu: u32,
}

impl Default for UdpOptions {
    fn default() -> Self {
        Self { gso: true, txtime: false, mtu: 1_500 + ETHERNET }
    }
}

/// One UDP socket: one transmit queue.
///
/// A packet without a destination, or whose destination is the socket's peer, goes to the peer
/// without a name in its message, which is faster.
///
/// The traffic class and peer of the socket are read once: do not change them later.
#[derive(Debug)]
pub struct Udp {
    info: DeviceInfo,
    queue: Queue<UdpSocket>,
}

impl Udp {
    /// Makes a device of `socket`, connected or not.
    ///
    /// # Errors
    ///
    /// Fails when the socket cannot be asked for its address.
    pub fn new(socket: UdpSocket, options: UdpOptions) -> Result<Self, DeviceError> {
        let local = socket
            .local_addr()
            .map_err(|error| DeviceError::new("read the address of a UDP socket", None, error))?;
        let route = Route::of(&socket).map_err(|error| {
            DeviceError::new("read the options of UDP socket", Some(local), error)
        })?;
        let peer = socket.peer_addr().ok();
        // Connected: the route's. Where the kernel does not say, what the caller said.
        let mtu = peer
            .and_then(|_| sys::path_mtu(&socket, route.is_ipv6()).ok())
            .map_or(options.mtu, |mtu| mtu.saturating_add(ETHERNET));
        let name =
            peer.map_or_else(|| format!("udp {local}"), |peer| format!("udp {local} to {peer}"));
        let segments_max = if options.gso { probe::segments_max(&socket) } else { 1 };
        let txtime = options.txtime && sys::enable_txtime(&socket).is_ok();
        let builder = Builder { route, txtime, segments_max };
        let queue = Queue::new(socket, builder, Arc::default());
        Ok(Self { info: DeviceInfo::new(name, mtu).never_blocks(), queue })
    }

    /// Makes a device of a new socket with the address `addr`, not connected, and the default
    /// options.
    ///
    /// # Errors
    ///
    /// Fails when the address cannot be had.
    pub fn bind(addr: SocketAddr) -> Result<Self, DeviceError> {
        Self::bind_with(addr, UdpOptions::default())
    }

    /// As [`bind`](Self::bind), with options.
    ///
    /// # Errors
    ///
    /// As for `bind`.
    pub fn bind_with(addr: SocketAddr, options: UdpOptions) -> Result<Self, DeviceError> {
        let socket = UdpSocket::bind(addr)
            .map_err(|error| DeviceError::new("bind a UDP socket to", Some(addr), error))?;
        Self::new(socket, options)
    }

    /// The socket, to receive from. Its clones (`try_clone`) are the same socket.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.queue.wire
    }

    /// What the device did, to be read by anyone at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<UdpStats> {
        Arc::clone(self.queue.stats())
    }

    /// Most datagrams in one message: 64 or 128 as the kernel allows, 1 without segmentation.
    #[must_use]
    pub fn segments_max(&self) -> u16 {
        self.queue.builder().segments_max
    }

    /// True when transmit times are passed on.
    #[must_use]
    pub fn txtime(&self) -> bool {
        self.queue.builder().txtime
    }

    /// Bytes that a datagram of `payload` bytes takes on the wire as Linux counts them
    /// (`qdisc_pkt_len`): Ethernet, IP and UDP headers included.
    #[must_use]
    #[inline]
    pub const fn wire_len(payload: u32, ipv6: bool) -> u32 {
        payload.saturating_add(headers(ipv6))
    }

    /// [`Udp::wire_len`] of a packet of several datagrams of `gso_size` bytes of payload each, the
    /// last perhaps shorter: every datagram has its own headers. A `gso_size` of 0 is one datagram.
    #[must_use]
    #[inline]
    pub const fn wire_len_gso(payload: u32, gso_size: u16, ipv6: bool) -> u32 {
        let datagrams =
            if gso_size == 0 || payload == 0 { 1 } else { payload.div_ceil(gso_size as u32) };
        payload.saturating_add(datagrams.saturating_mul(headers(ipv6)))
    }

    /// The MTU of the path to `dest`, bytes, IP header included, as the kernel knows it now;
    /// `None`: no way there. Sends nothing.
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
}

#[inline]
const fn headers(ipv6: bool) -> u32 {
    UDP + ETHERNET + if ipv6 { IPV6 } else { IPV4 }
}
