//! Many datagrams in one call: `recvmmsg` on a UDP socket, with what the kernel tells beside each.

use std::fmt;
use std::io;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use libc::{c_int, iovec, mmsghdr};
use onramp_queue::{PAYLOAD_MAX, Packet};

use super::message::{fill, no_message, number, part, receive, room};
use super::name::Name;

/// Largest number of messages in one call.
pub(crate) const DATAGRAMS_MAX: usize = 32;

/// Bytes for the control messages of a message. The receiver's own need 88: the segment size, a
/// destination and a traffic class, with their headers. The rest is for options of the socket that
/// its owner has set, such as time stamps.
const CONTROL: usize = 256;

/// A message that was received: a datagram, or several of the same flow and size.
#[derive(Debug)]
pub(crate) struct Arrived<'b> {
    /// Free space for headers, as far as the packet has room for it, and then the data, or its
    /// beginning.
    pub(crate) packet: Packet,
    /// Bytes of the data behind those in `packet`.
    pub(crate) rest: &'b [u8],
    /// Whether even more bytes were lost.
    pub(crate) truncated: bool,
    /// The sender, as the socket's address family writes it.
    pub(crate) source: Option<SocketAddr>,
    /// What the kernel has told beside the data; `None` if there was no room for all of it.
    pub(crate) told: Option<Told>,
}

/// What the kernel tells beside a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// The destination address in the IP header, as the socket's address family writes it.
    pub(crate) destination: Option<IpAddr>,
    /// The TOS byte or the traffic class in the IP header.
    pub(crate) tos: u8,
    /// Bytes of data in each datagram but the last, if the message has several.
    pub(crate) segment: Option<u16>,
}

/// Receives messages.
pub(crate) struct Datagrams {
    /// Empty packets to receive into. The last ones are used first, because their memory is more
    /// likely to be in the processor's cache.
    pub(crate) empty: Vec<Packet>,
    headers: Box<[mmsghdr]>,
    names: Box<[Name]>,
    parts: Box<[[iovec; 2]]>,
    controls: Box<[Control]>,
    /// Places for the bytes that do not fit a packet, of [`PAYLOAD_MAX`] bytes for each message.
    /// The kernel provides the memory only of the parts that are used.
    rests: Vec<u8>,
}

/// A buffer for control messages, which the kernel fills.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

// SAFETY: the raw pointers in headers and parts are written and used within one call of `receive`.
unsafe impl Send for Datagrams {}

impl Datagrams {
    pub(crate) fn new() -> Self {
        Self {
            empty: Vec::with_capacity(DATAGRAMS_MAX),
            headers: vec![no_message(); DATAGRAMS_MAX].into(),
            names: vec![Name::new(); DATAGRAMS_MAX].into(),
            parts: vec![[part(ptr::null_mut(), 0); 2]; DATAGRAMS_MAX].into(),
            controls: vec![Control([0; CONTROL]); DATAGRAMS_MAX].into(),
            rests: vec![0; DATAGRAMS_MAX * PAYLOAD_MAX],
        }
    }

    /// Receives up to `most` messages, into as many empty packets, behind `head` bytes of free
    /// space in each, and gives each to `take`. Returns their number.
    pub(crate) fn receive(
        &mut self,
        socket: &UdpSocket,
        most: usize,
        head: usize,
        mut take: impl FnMut(Arrived<'_>),
    ) -> io::Result<usize> {
        let places = self.empty.iter_mut().rev().zip(self.rests.chunks_exact_mut(PAYLOAD_MAX));
        let mut count = 0;
        for (packet, rest) in places.take(most) {
            self.parts[count] = [room(packet, head), part(rest.as_mut_ptr(), rest.len())];
            let header = &mut self.headers[count].msg_hdr;
            header.msg_name = (&raw mut self.names[count]).cast();
            header.msg_namelen = number(size_of::<Name>());
            header.msg_iov = self.parts[count].as_mut_ptr();
            header.msg_iovlen = 2;
            header.msg_control = self.controls[count].0.as_mut_ptr().cast();
            header.msg_controllen = number(CONTROL);
            count += 1;
        }
        // SAFETY: `count` headers are there. Each points to its own name, its own two parts and its
        // own control buffer, whose lengths are right. The parts are the buffer of a packet in
        // `empty` behind its head, and a slice of `rests`: all of them belong to `self` alone, and
        // no two overlap.
        let received = unsafe { receive(socket.as_raw_fd(), &mut self.headers[..count]) }?;
        let rests = self.rests.chunks_exact(PAYLOAD_MAX);
        let packets = iter::from_fn(|| self.empty.pop()).take(received);
        for (at, (mut packet, rest)) in packets.zip(rests).enumerate() {
            let mmsghdr { msg_hdr: header, msg_len } = &self.headers[at];
            let (len, room) = (*msg_len as usize, self.parts[at][0].iov_len);
            let front = len.min(room);
            let head = packet.capacity() - room;
            // SAFETY: `room` has written the `head` bytes of the packet's buffer in front of the
            // first part. The kernel fills the parts in order, so it has written the `front` bytes
            // behind them; the first part has at least that many.
            unsafe { fill(&mut packet, head + front) };
            #[allow(clippy::unnecessary_cast, reason = "32 bits in some C libraries")]
            let control = self.controls[at].0.get(..header.msg_controllen as usize);
            let told = control.filter(|_| header.msg_flags & libc::MSG_CTRUNC == 0).map(told);
            take(Arrived {
                packet,
                rest: &rest[..(len - front).min(PAYLOAD_MAX)],
                truncated: header.msg_flags & libc::MSG_TRUNC != 0,
                source: self.names[at].get(header.msg_namelen),
                told,
            });
        }
        Ok(received)
    }
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams").field("empty", &self.empty.len()).finish_non_exhaustive()
    }
}

/// Reads the control messages of a message.
fn told(mut control: &[u8]) -> Told {
    let mut told = Told::default();
    while let Some((level, kind, data, behind)) = split(control) {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                told.tos = data.first().copied().unwrap_or_default();
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => told.tos = low_byte(data),
            // The address to which the datagram was sent is the last of three fields.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let address = data.last_chunk::<4>();
                told.destination = address.map(|bytes| Ipv4Addr::from(*bytes).into());
            }
            // The address is the first of two fields.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let address = data.first_chunk::<16>();
                told.destination = address.map(|bytes| Ipv6Addr::from(*bytes).into());
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size = data.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes));
                told.segment = size.and_then(|size| u16::try_from(size).ok());
            }
            _ => {}
        }
        control = behind;
    }
    told
}

/// Returns the low byte of a number that the kernel has written.
fn low_byte(data: &[u8]) -> u8 {
    let number = data.first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes));
    number.to_le_bytes()[0]
}

/// Splits the first control message off: its level, kind and data, and the control messages behind
/// it. A message begins with its length, its level and its kind, and the next one is aligned as the
/// length is (`cmsg(3)`).
fn split(control: &[u8]) -> Option<(c_int, c_int, &[u8], &[u8])> {
    const WORD: usize = size_of::<usize>();
    const HEADER: usize = WORD + 2 * size_of::<c_int>();
    const { assert!(HEADER == size_of::<libc::cmsghdr>()) };
    let (len, rest) = control.split_first_chunk()?;
    let (level, rest) = rest.split_first_chunk()?;
    let (kind, _) = rest.split_first_chunk()?;
    let len = usize::from_ne_bytes(*len);
    let data = control.get(HEADER..len)?;
    let behind = control.get(len.next_multiple_of(WORD)..).unwrap_or_default();
    Some((c_int::from_ne_bytes(*level), c_int::from_ne_bytes(*kind), data, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a control message, of the length that its header tells.
    fn message(level: c_int, kind: c_int, len: usize, data: &[u8]) -> Vec<u8> {
        let mut bytes =
            [&len.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    fn whole(level: c_int, kind: c_int, data: &[u8]) -> Vec<u8> {
        message(level, kind, 16 + data.len(), data)
    }

    #[test]
    fn control_messages_are_read_in_any_order() {
        let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        let six = [&mapped.octets()[..], &1_u32.to_ne_bytes()].concat();
        let messages = [
            whole(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &[7; 16]),
            whole(libc::SOL_UDP, libc::UDP_GRO, &1_200_i32.to_ne_bytes()),
            whole(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &six),
            whole(libc::IPPROTO_IP, libc::IP_TOS, &[3]),
        ];
        let expected = Told { destination: Some(mapped.into()), tos: 3, segment: Some(1_200) };
        assert_eq!(told(&messages.concat()), expected);
        let backwards: Vec<_> = messages.iter().rev().flatten().copied().collect();
        assert_eq!(told(&backwards), expected);
        let four = [1, 0, 0, 0, 127, 0, 0, 9, 127, 0, 0, 2];
        let others = [
            whole(libc::IPPROTO_IP, libc::IP_PKTINFO, &four),
            whole(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &0xb9_i32.to_ne_bytes()),
        ];
        let expected = Told { destination: Some([127, 0, 0, 2].into()), tos: 0xb9, segment: None };
        assert_eq!(told(&others.concat()), expected);
        assert_eq!(told(&[]), Told::default());
    }

    /// Lengths that lie end the reading; the kernel writes none.
    #[test]
    fn nothing_is_read_past_the_end() {
        let (level, kind) = (libc::IPPROTO_IP, libc::IP_TOS);
        for len in [0, 15, 25, 1_000, usize::MAX] {
            assert_eq!(told(&message(level, kind, len, &[3])), Told::default(), "{len} bytes");
        }
        let good = whole(level, kind, &[3]);
        for len in 0..good.len() {
            let tos = if len < 17 { 0 } else { 3 };
            assert_eq!(told(&good[..len]).tos, tos, "{len} bytes are there");
        }
        assert_eq!(told(&whole(level, kind, &[])).tos, 0, "no data");
        let size = whole(libc::SOL_UDP, libc::UDP_GRO, &(-1_i32).to_ne_bytes());
        assert_eq!(told(&size).segment, None);
    }
}
