//! The receive side of a UDP socket.
//!
//! | error from the kernel | reaction of the receiver |
//! |---|---|
//! | EAGAIN | no more packets for now |
//! | EINTR | tries again |
//! | ECONNREFUSED, EHOSTUNREACH and other reports of ICMP | counts the error, and tries again |
//! | any other error | returns it |

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use onramp_core::frame::{self, Datagram};
use onramp_queue::{Counter, PAYLOAD_MAX, Packet, PacketList};

use super::verdict::is_from_icmp;
use crate::receive::Receive;
use crate::sys::{self, Arrived, DATAGRAMS_MAX, Datagrams};

/// Options of a [`UdpReceiver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpReceiverOptions {
    /// Whether the kernel may join datagrams of one flow and size, of which it has several at once,
    /// into one packet (`UDP_GRO`, Linux 5.0 and later). Such a packet has the size of its
    /// datagrams in [`gso_size`](onramp_queue::Meta::gso_size), and costs hardly more than a packet
    /// of one datagram.
    pub gro: bool,
    /// Size, in bytes, of the packets that the receiver asks `make` for, headers of IP and UDP
    /// included. A larger packet is copied into a packet of its own size. The default is 1,500, the
    /// MTU of Ethernet; with 65,535 nothing is copied, but each waiting packet takes 64 KiB.
    pub usual: u16,
    /// Seed of the hash that tells flows apart, see [`frame::describe`]. By default 0: give a
    /// random number if strangers choose the addresses.
    pub seed: u64,
}

impl Default for UdpReceiverOptions {
    fn default() -> Self {
        Self { gro: true, usual: 1_500, seed: 0 }
    }
}

/// Counters that a UDP receiver writes and any thread may read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct UdpReceiverStats {
    /// Number of packets that the receiver gave to its caller. A packet of several datagrams counts
    /// once.
    pub packets: Counter,
    /// Number of datagrams in these packets.
    pub datagrams: Counter,
    /// Bytes of data in these packets, headers not included.
    pub bytes: Counter,
    /// Number of system calls that asked for packets.
    pub calls: Counter,
    /// Number of ICMP errors that the kernel reported to the receiver: an earlier packet that was
    /// sent through the socket did not arrive.
    pub icmp_errors: Counter,
    /// Number of messages that were discarded because there was no packet with room for them. A
    /// message is a datagram, or several that the kernel has joined.
    pub no_room: Counter,
    /// Number of messages that were discarded because the kernel did not tell all about them, such
    /// as the destination address. This happens only if the owner of the socket has changed its
    /// options.
    pub malformed: Counter,
    /// Number of messages that the kernel dropped, as of the last call of
    /// [`missed`](crate::Receive::missed).
    pub missed: Counter,
}

/// Receives the datagrams that come to a UDP socket, as IP packets.
///
/// The kernel gives a datagram without its headers. The receiver writes an IPv4 or IPv6 header and
/// a UDP header in front of the data ([`Layer::Ip`](onramp_queue::Layer::Ip)), so filters, qdiscs
/// and devices treat the packet like any other frame; a [`Tap`](crate::Tap) with the layer `Ip`
/// passes it on. [`Datagram`] reads the addresses and the data.
///
/// - From the kernel come: the addresses, the ports, the ECN bits and the DSCP.
/// - The UDP checksum is [left to the device](Packet::partial_checksum); the kernel has verified
///   the one that the datagram came with.
/// - Invented are: the TTL or hop limit (64), the IPv6 flow label (0), and in IPv4 the
///   identification (0) and "don't fragment", so that no router fragments the packet, even if the
///   datagram came in fragments.
/// - IP options, extension headers and the scope of link-local addresses are lost.
/// - Datagrams of IPv4 that a socket for IPv6 receives become IPv4 packets.
///
/// A UDP socket has one queue of received datagrams: of several readers, each datagram comes to
/// one. So have one receiver for a socket, and do not read from the socket by other means. An ICMP
/// error comes either to the receiver, which counts it, or to the [device](super::Udp) that sends
/// through the socket.
///
/// An IPv6 datagram of more than 65,487 bytes fits no packet, and is discarded.
///
/// The receiver keeps up to 32 empty packets from `make` for the next call.
///
/// Use it where datagrams are to pass through qdiscs or to a device, and where a program receives
/// many: one system call brings up to 32 packets.
///
/// Source: `udp(7)`, `ip(7)`, `ipv6(7)`, `recvmmsg(2)`.
#[derive(Debug)]
pub struct UdpReceiver {
    socket: UdpSocket,
    options: UdpReceiverOptions,
    /// The port to which the socket is bound.
    port: u16,
    /// Bytes in front of the data for the headers of the socket's address family.
    head: usize,
    inbox: Datagrams,
    /// Number of messages that the kernel had dropped before the receiver was made.
    missed_before: u32,
    stats: Arc<UdpReceiverStats>,
}

impl UdpReceiver {
    /// Makes a receiver of `socket`, which must be bound, and may be connected. Sets the options of
    /// the socket by which the kernel tells traffic classes and destination addresses, and lets it
    /// join datagrams if the options say so.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the socket is not bound to a port, and the error of the kernel if it
    /// refuses an option.
    pub fn new(socket: UdpSocket, options: UdpReceiverOptions) -> io::Result<Self> {
        let local = socket.local_addr()?;
        if local.port() == 0 {
            let why = "cannot receive from a UDP socket without a port: bind it first";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        sys::tell_headers(&socket, local.is_ipv6())?;
        let gro = sys::set_udp_gro(&socket, options.gro).is_ok() && options.gro;
        // A kernel that does not count drops has none to report.
        let missed_before = sys::socket_memory(socket.as_fd()).map_or(0, |memory| memory.drops);
        Ok(Self {
            options: UdpReceiverOptions { gro, ..options },
            port: local.port(),
            head: Datagram::headers(local.is_ipv6()),
            inbox: Datagrams::new(),
            missed_before,
            stats: Arc::default(),
            socket,
        })
    }

    /// Returns the receiver's counters, which any thread may read at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<UdpReceiverStats> {
        Arc::clone(&self.stats)
    }

    /// Whether the kernel may join datagrams: it was asked to, and can.
    #[must_use]
    pub const fn gro(&self) -> bool {
        self.options.gro
    }

    /// Returns the socket.
    #[must_use]
    pub const fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Reads up to `most` messages, and appends their packets to `into`. Returns how many messages
    /// were read, the discarded ones included.
    fn read(
        &mut self,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize> {
        while self.inbox.empty.len() < most
            && let Some(packet) = make(self.options.usual.into())
        {
            self.inbox.empty.push(packet);
        }
        if self.inbox.empty.is_empty() {
            return Ok(0);
        }
        let stats = &self.stats;
        stats.calls.add(1);
        self.inbox.receive(&self.socket, most, self.head, |message| {
            match whole(message, self.port, self.head, make) {
                Ok(mut packet) => {
                    frame::describe(&mut packet, self.options.seed);
                    stats.count(&packet);
                    into.push_back(packet);
                }
                Err(Discard::NoRoom) => stats.no_room.add(1),
                Err(Discard::Malformed) => stats.malformed.add(1),
            }
        })
    }
}

impl UdpReceiverStats {
    /// Counts a packet that goes to the caller.
    fn count(&self, packet: &Packet) {
        let ipv6 = packet.payload()[0] >> 4 == 6;
        let data = packet.payload().len() - Datagram::headers(ipv6);
        let datagrams =
            if packet.gso_size == 0 { 1 } else { data.div_ceil(packet.gso_size.into()) };
        self.packets.add(1);
        self.datagrams.add(datagrams as u64);
        self.bytes.add(data as u64);
    }
}

impl Receive for UdpReceiver {
    fn receive(
        &mut self,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize> {
        let before = into.len();
        // A message that is discarded and an error count as well, so that the call ends.
        let mut messages = 0;
        while messages < most {
            let asked = (most - messages).min(DATAGRAMS_MAX);
            match self.read(asked, make, into) {
                // The kernel has no more, or there is no packet for it.
                Ok(read) if read < asked => break,
                Ok(read) => messages += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => messages += 1,
                Err(error) if is_from_icmp(&error) => {
                    self.stats.icmp_errors.add(1);
                    messages += 1;
                }
                Err(error) if into.len() == before => return Err(error),
                // The next call returns the error.
                Err(_) => break,
            }
        }
        Ok((into.len() - before) as usize)
    }

    fn discarded(&self) -> u64 {
        self.stats.no_room.get() + self.stats.malformed.get()
    }

    /// Returns how many messages the kernel has dropped, since the receiver was made, because the
    /// socket's receive buffer was full or because their checksum was wrong. A message of several
    /// datagrams counts once. The kernel counts modulo 2^32, so call this at least once in 2^32
    /// drops.
    fn missed(&self) -> u64 {
        if let Ok(memory) = sys::socket_memory(self.socket.as_fd()) {
            #[expect(clippy::cast_possible_truncation, reason = "the kernel's counter wraps")]
            let known = self.missed_before.wrapping_add(self.stats.missed.get() as u32);
            self.stats.missed.add(memory.drops.wrapping_sub(known).into());
        }
        self.stats.missed.get()
    }
}

impl AsFd for UdpReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Why a message was discarded.
#[derive(Debug, PartialEq, Eq)]
enum Discard {
    NoRoom,
    Malformed,
}

/// Makes an IP packet of a message that came to `port`, with `head` bytes free in front of its data
/// as far as the packet has room for them.
fn whole(
    message: Arrived<'_>,
    port: u16,
    head: usize,
    make: &mut dyn FnMut(usize) -> Option<Packet>,
) -> Result<Packet, Discard> {
    let Arrived { mut packet, rest, truncated, source, told } = message;
    let (source, told) = (source.ok_or(Discard::Malformed)?, told.ok_or(Discard::Malformed)?);
    let source = header_address(source.ip(), source.port());
    let destination = header_address(told.destination.ok_or(Discard::Malformed)?, port);
    let headers = Datagram::headers(source.is_ipv6());
    if source.is_ipv6() != destination.is_ipv6() || headers > head {
        return Err(Discard::Malformed);
    }
    let (free, front) = packet.payload().split_at(head.min(packet.payload().len()));
    let (free, len) = (free.len(), front.len() + rest.len());
    if truncated || headers + len > PAYLOAD_MAX {
        return Err(Discard::NoRoom);
    }
    if headers + len <= packet.capacity() {
        let end = packet.payload().len();
        packet.payload_mut().copy_within(free..end, headers);
        packet.truncate_payload(headers + end - free);
    } else {
        let larger = make(headers + len).filter(|larger| larger.capacity() >= headers + len);
        let mut larger = larger.ok_or(Discard::NoRoom)?;
        larger.set_payload(&[0; Datagram::headers(true)][..headers]);
        larger.append_payload(front);
        packet = larger;
    }
    packet.append_payload(rest);
    Datagram::write_headers(&mut packet, source, destination, told.tos);
    packet.gso_size = told.segment.filter(|size| len > usize::from(*size)).unwrap_or(0);
    Ok(packet)
}

/// Returns an address as it stands in a header: an IPv4 address in the form of IPv6 becomes an IPv4
/// address, and there is no scope.
const fn header_address(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip.to_canonical(), port)
}
