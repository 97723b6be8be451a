//! Messages for `sendmmsg`, built from packets.
//!
//! [`Messages`] owns the packets whose payloads its messages point to, from the moment when a
//! packet is added until its message is finished. So the kernel never reads freed memory, whatever
//! the caller does. All arrays are allocated once.
//!
//! ```text
//! flight   [pkt 0][pkt 1][pkt 2][pkt 3 .............]
//! parts      |      |      |      |      |      |
//! messages [ 0: pkts 0, 1 ][ 1 ][ 2 of 3 ][ 3 of 3 ]      a super-packet may need several
//!                           ^ next: the first unfinished message
//! ```
//!
//! The first payload of a message is not copied. Small payloads after it are copied together, into
//! one part (a piece of memory that the kernel reads). The kernel takes 25 ns longer for a separate
//! part than this code takes to copy 120 bytes; at 1,000 bytes, both take the same time (measured
//! on Linux 6.18).

#[cfg(test)]
mod view;

use std::fmt;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use libc::{c_int, iovec, mmsghdr};
use onramp_queue::{DropReason, Packet, PacketList};

use super::message::{no_message, number, part};
use super::name::Name;

/// Largest number of messages in one call.
pub(crate) const MESSAGES_MAX: usize = 256;
/// Largest number of parts (payloads or pieces of payloads) in one call. At most `UIO_MAXIOV`, so
/// no message has more parts than the kernel takes in one message.
pub(crate) const PARTS_MAX: usize = 1024;
#[cfg(test)]
pub(crate) use view::View;

const _: () = assert!(PARTS_MAX <= libc::UIO_MAXIOV as usize);

/// Largest payload that is copied, bytes.
const COPY_MAX: usize = 512;
/// Largest number of copied bytes in one call.
const COPIES_MAX: usize = 1 << 16;

/// Number of places for the control messages of one message: segment size, ECN, transmit time, and
/// two for the source, which is longer.
const CONTROLS_MAX: usize = 5;

/// Flags of each call: send without waiting, and raise no signal if the socket was shut down.
const FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// The messages of one burst.
pub(crate) struct Messages {
    headers: Box<[mmsghdr]>,
    names: Box<[Name]>,
    controls: Box<[[Control; CONTROLS_MAX]]>,
    shapes: Box<[Shape]>,
    parts: Box<[iovec]>,
    /// Copies of small payloads. The vector's length stays zero. Only raw pointers from
    /// `as_mut_ptr` reach its memory; they stay valid until the vector is reallocated, and nothing
    /// reallocates it.
    copies: Vec<u8>,
    copies_len: usize,
    /// Whether the last part of the message that is being built lies in `copies` and may grow.
    copying: bool,
    /// The packets of the unfinished messages (which the kernel has not taken yet). Each part of
    /// these messages (from message `next` on, with the message that is being built) points into
    /// the payload of one of these packets, or into the filled part of `copies`. During `send_lent`
    /// only, a part points into the payload that was lent.
    flight: PacketList,
    /// The super-packet (a packet of several datagrams) that is being cut into parts.
    held: Option<Held>,
    /// Number of payload bytes of the first packet in `flight` that earlier messages have sent.
    head_sent: usize,
    next: usize,
    built: usize,
    parts_len: usize,
    /// The message that is being built.
    open: Shape,
    /// Memory for the rest of a super-packet (a packet of several datagrams) whose beginning was
    /// sent.
    rest: Vec<u8>,
}

// SAFETY: the raw pointers in headers and parts point into memory that `self` owns, and are only
// used through `&mut self`.
unsafe impl Send for Messages {}

/// Sizes of one message: its parts, packets, datagrams and bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    first_part: u16,
    parts: u16,
    /// Number of packets whose last byte is in this message. When the kernel has taken the message,
    /// these packets are finished.
    packets: u16,
    /// Number of datagrams on the wire.
    pub(crate) segments: u16,
    /// Number of payload bytes.
    pub(crate) bytes: u32,
}

#[derive(Clone, Copy)]
struct Held {
    payload: *const u8,
    len: usize,
    taken: usize,
}

impl Shape {
    /// Returns the number of packets in the message; 1 if the message is only a piece of a packet.
    pub(crate) fn packets(self) -> u16 {
        self.packets.max(1)
    }
}

/// The data that a message carries besides its payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Close {
    /// Destination; `None` means the peer that the socket is connected to.
    pub(crate) name: Option<SocketAddr>,
    /// Size of each datagram, bytes; `None` means that the message is one datagram.
    pub(crate) segment: Option<u16>,
    /// Number of datagrams.
    pub(crate) segments: u16,
    /// Whether the message is IPv6 (`false`: IPv4), and its traffic class; `None` means the
    /// socket's class.
    pub(crate) class: Option<(bool, u8)>,
    /// Where the message leaves from; `None` leaves the choice to the kernel.
    pub(crate) from: Option<From>,
    /// Transmit time, nanoseconds on `CLOCK_MONOTONIC`; `None` means at once.
    pub(crate) txtime_ns: Option<u64>,
}

/// The local address from which a message leaves, and the index of the interface. An unspecified
/// address and the index 0 leave the choice to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// Of a message of an IPv4 socket.
    V4(Ipv4Addr, u32),
    /// Of a message of an IPv6 socket. An IPv4 address is mapped.
    V6(Ipv6Addr, u32),
}

impl Messages {
    pub(crate) fn new() -> Self {
        Self {
            headers: vec![no_message(); MESSAGES_MAX].into(),
            names: vec![Name::new(); MESSAGES_MAX].into(),
            controls: vec![[Control::default(); CONTROLS_MAX]; MESSAGES_MAX].into(),
            shapes: vec![Shape::default(); MESSAGES_MAX].into(),
            parts: vec![part(ptr::null_mut(), 0); PARTS_MAX].into(),
            copies: Vec::with_capacity(COPIES_MAX),
            copies_len: 0,
            copying: false,
            flight: PacketList::new(),
            held: None,
            head_sent: 0,
            next: 0,
            built: 0,
            parts_len: 0,
            open: Shape::default(),
            rest: Vec::new(),
        }
    }

    /// Whether there is no room for another message or for another part.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.built == MESSAGES_MAX || self.parts_len == PARTS_MAX
    }

    /// Returns the messages that are built, and that the kernel has not taken yet.
    #[inline]
    pub(crate) fn pending(&self) -> &[Shape] {
        &self.shapes[self.next..self.built]
    }

    /// Adds the whole payload of `pkt` to the message that is being built.
    ///
    /// # Panics
    ///
    /// Panics if `self` is full, or if a packet given to [`Messages::hold`] is not completely
    /// taken.
    #[inline]
    pub(crate) fn gather(&mut self, pkt: Packet) {
        assert!(self.held.is_none(), "a held packet is taken before the next");
        let payload = pkt.payload();
        // The first payload of a message is not copied, because most messages have only one.
        if self.open.parts > 0 && payload.len() <= COPY_MAX.min(COPIES_MAX - self.copies_len) {
            self.copy(payload);
        } else {
            self.add(part(payload.as_ptr().cast_mut(), payload.len()));
        }
        self.open.packets += 1;
        self.flight.push_back(pkt);
    }

    #[inline]
    fn copy(&mut self, payload: &[u8]) {
        assert!(payload.len() <= COPIES_MAX - self.copies_len, "the copies have room");
        let to = self.copies.as_mut_ptr().wrapping_add(self.copies_len);
        // SAFETY: `to` and the bytes behind it lie within the capacity of `copies`, by the
        // assertion, and the source is another object.
        unsafe { ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len()) };
        self.copies_len += payload.len();
        if self.copying {
            self.parts[self.parts_len - 1].iov_len += payload.len();
            self.open.bytes += number::<u32>(payload.len());
        } else {
            self.add(part(to, payload.len()));
            self.copying = true;
        }
    }

    /// Takes over `pkt`, from which [`Messages::take`] then takes one part after another. The
    /// payload must not be empty, because it could not be cut.
    ///
    /// # Panics
    ///
    /// Panics if the payload is empty, or if `take` has not yet taken all parts of the packet that
    /// was held before.
    pub(crate) fn hold(&mut self, pkt: Packet) {
        assert!(self.held.is_none(), "a held packet is taken before the next");
        let payload = pkt.payload();
        assert!(!payload.is_empty(), "only bytes can be cut");
        self.held = Some(Held { payload: payload.as_ptr(), len: payload.len(), taken: 0 });
        self.flight.push_back(pkt);
    }

    /// Adds the next `len` bytes of the packet given to [`Messages::hold`], or all that are left,
    /// to the message that is being built.
    ///
    /// # Panics
    ///
    /// Panics if `self` is full, or if no packet is held.
    pub(crate) fn take(&mut self, len: usize) {
        let mut held = self.held.expect("a packet is held");
        let len = len.min(held.len - held.taken);
        self.add(part(held.payload.wrapping_add(held.taken).cast_mut(), len));
        held.taken += len;
        let left = held.taken < held.len;
        self.open.packets += u16::from(!left);
        self.held = left.then_some(held);
    }

    #[inline]
    fn add(&mut self, part: iovec) {
        self.parts[self.parts_len] = part;
        self.parts_len += 1;
        self.copying = false;
        self.open.parts += 1;
        self.open.bytes += number::<u32>(part.iov_len);
    }

    /// Ends the message that is being built.
    ///
    /// # Panics
    ///
    /// Panics if the message has no part, or if there is no room for another message.
    #[inline]
    pub(crate) fn close(&mut self, close: &Close) {
        assert!(self.open.parts > 0, "a message has a part, if an empty one");
        let mut shape = mem::take(&mut self.open);
        shape.segments = close.segments;
        let header = &mut self.headers[self.built].msg_hdr;
        header.msg_namelen = close.name.map_or(0, |addr| self.names[self.built].set(addr));
        header.msg_iovlen = number(shape.parts.into());
        header.msg_controllen = number(close.controls(&mut self.controls[self.built]));
        self.shapes[self.built] = shape;
        self.built += 1;
        #[expect(clippy::cast_possible_truncation, reason = "at most PARTS_MAX")]
        let first_part = self.parts_len as u16;
        self.open.first_part = first_part;
    }

    /// Offers all unfinished messages (which the kernel has not taken yet) to the kernel, in one
    /// call. Returns how many of them the kernel took, or the error of the first message.
    #[inline]
    pub(crate) fn send(&mut self, socket: &UdpSocket) -> Result<usize, c_int> {
        if let [shape] = self.pending()
            && shape.parts == 1
            && self.headers[self.next].msg_hdr.msg_controllen == 0
        {
            return self.send_plain(socket);
        }
        let (names, parts) = (self.names.as_mut_ptr(), self.parts.as_mut_ptr());
        let controls = self.controls.as_mut_ptr();
        for at in self.next..self.built {
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = names.wrapping_add(at).cast();
            header.msg_iov = parts.wrapping_add(self.shapes[at].first_part.into());
            header.msg_control = controls.wrapping_add(at).cast();
        }
        let pending = &mut self.headers[self.next..self.built];
        // SAFETY: `self` owns the headers, and `pending.len()` is their number. Each header points
        // to its own name and controls, whose lengths were set with them, and to its own parts. The
        // parts point into payloads of packets in `flight`, into `copies`, or into the payload that
        // `send_lent` borrows: all are alive, and the kernel only reads them.
        let taken = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), pending.as_mut_ptr(), number(pending.len()), FLAGS)
        };
        usize::try_from(taken).map_err(|_| errno())
    }

    /// Builds one message whose payload is `payload`, and lets `send` offer it to the kernel.
    /// Returns the shape of the message if the kernel took it, or the error. The message is gone
    /// afterwards in either case.
    ///
    /// # Panics
    ///
    /// Panics if a message is being built, or is built and not finished.
    pub(crate) fn send_lent(
        &mut self,
        payload: &[u8],
        close: &Close,
        send: impl FnOnce(&mut Self) -> Result<usize, c_int>,
    ) -> Result<Shape, c_int> {
        /// Forgets the message, also if `send` panics: its part points into a borrowed payload.
        struct Loan<'a>(&'a mut Messages);
        impl Drop for Loan<'_> {
            fn drop(&mut self) {
                self.0.clear();
            }
        }
        assert!(self.pending().is_empty() && self.open.parts == 0, "the queue is empty");
        let loan = Loan(self);
        loan.0.add(part(payload.as_ptr().cast_mut(), payload.len()));
        loan.0.close(close);
        let shape = loan.0.shapes[loan.0.next];
        match send(loan.0)? {
            0 => Err(libc::EAGAIN),
            _ => Ok(shape),
        }
    }

    /// Offers the first message, which must have no control messages, with `sendto`. `sendto` has
    /// no message headers that the kernel must copy, which saves about 100 ns.
    fn send_plain(&self, socket: &UdpSocket) -> Result<usize, c_int> {
        let part = self.parts[usize::from(self.shapes[self.next].first_part)];
        let name_len = self.headers[self.next].msg_hdr.msg_namelen;
        let name =
            if name_len == 0 { ptr::null() } else { (&raw const self.names[self.next]).cast() };
        // SAFETY: the part points into the payload of a packet in `flight`, or into the payload
        // that `send_lent` borrows: either is alive, and the kernel only reads it. `name` is null
        // with length 0, or points to the destination address in `self`, whose length was set with
        // the address.
        let sent = unsafe {
            libc::sendto(socket.as_raw_fd(), part.iov_base, part.iov_len, FLAGS, name, name_len)
        };
        if sent >= 0 { Ok(1) } else { Err(errno()) }
    }

    /// Finishes the first `count` messages, which the kernel took, and moves their packets to
    /// `done`.
    #[inline]
    pub(crate) fn sent(&mut self, count: usize, done: &mut PacketList) {
        assert!(count <= self.pending().len(), "only what is pending is sent");
        let end = self.next + count;
        if end == self.built && self.held.is_none() {
            done.append(&mut self.flight);
            return self.clear();
        }
        while self.next < end {
            let shape = self.shapes[self.next];
            let head_sent = self.head_sent + shape.bytes as usize;
            self.head_sent = if shape.packets == 0 { head_sent } else { 0 };
            self.finish(shape.packets, None, done);
            self.next += 1;
        }
    }

    /// Drops the packets of the first message that the kernel has not taken. If the message is a
    /// piece of a super-packet (a packet of several datagrams), the remaining messages of that
    /// packet are dropped, too.
    pub(crate) fn dropped(&mut self, reason: DropReason, done: &mut PacketList) {
        let whole = self.pending().iter().position(|shape| shape.packets > 0);
        let packets = whole.map_or(1, |at| self.pending()[at].packets);
        self.finish(packets, Some(reason), done);
        self.head_sent = 0;
        self.next = whole.map_or(self.built, |at| self.next + at + 1);
        if whole.is_none() {
            self.held = None;
        }
    }

    fn finish(&mut self, packets: u16, reason: Option<DropReason>, done: &mut PacketList) {
        for _ in 0..packets {
            let mut pkt = self.flight.pop_front().expect("messages are made of packets in flight");
            if reason.is_some() {
                pkt.drop_reason = reason;
            }
            done.push_back(pkt);
        }
    }

    /// Moves the packets of all messages that the kernel has not taken back to the front of
    /// `burst`. If the beginning of a super-packet (a packet of several datagrams) was sent, the
    /// packet keeps only the rest.
    pub(crate) fn give_back(&mut self, burst: &mut PacketList) {
        if self.head_sent > 0
            && let Some(mut head) = self.flight.pop_front()
        {
            self.rest.clear();
            self.rest.extend_from_slice(&head.payload()[self.head_sent..]);
            head.set_payload(&self.rest);
            self.flight.push_front(head);
        }
        self.flight.append(burst);
        mem::swap(&mut self.flight, burst);
        self.clear();
    }

    #[inline]
    fn clear(&mut self) {
        (self.held, self.head_sent, self.next, self.built) = (None, 0, 0, 0);
        (self.parts_len, self.copies_len, self.copying) = (0, 0, false);
        self.open = Shape::default();
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

impl Close {
    /// Writes the control messages of a message and returns their length in bytes.
    #[inline]
    fn controls(&self, into: &mut [Control; CONTROLS_MAX]) -> usize {
        let mut count = 0;
        let mut put = |control| {
            into[count] = control;
            count += 1;
        };
        if let Some(size) = self.segment {
            put(Control::new(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes()));
        }
        if let Some((ipv6, class)) = self.class {
            let (level, kind) = if ipv6 {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
            } else {
                (libc::IPPROTO_IP, libc::IP_TOS)
            };
            put(Control::new(level, kind, &c_int::from(class).to_ne_bytes()));
        }
        if let Some(at) = self.txtime_ns {
            put(Control::new(libc::SOL_SOCKET, libc::SCM_TXTIME, &at.to_ne_bytes()));
        }
        // The source comes last, because it ends within its second place.
        let mut spare = 0;
        if let Some(from) = self.from {
            let (first, second, unused) = from.control();
            put(first);
            put(second);
            spare = unused;
        }
        count * size_of::<Control>() - spare
    }
}

impl From {
    /// Returns the control message, which takes two places, and the number of bytes at the end of
    /// the second place that do not belong to it.
    #[inline]
    fn control(self) -> (Control, Control, usize) {
        // `struct in6_pktinfo` is the address and the index, `struct in_pktinfo` the index, the
        // address and another address, which the kernel fills for receivers.
        let (level, kind, data, len) = match self {
            Self::V4(addr, interface) => {
                let mut data = [0; 20];
                data[..4].copy_from_slice(&interface.to_ne_bytes());
                data[4..8].copy_from_slice(&addr.octets());
                (libc::IPPROTO_IP, libc::IP_PKTINFO, data, size_of::<libc::in_pktinfo>())
            }
            Self::V6(addr, interface) => {
                let mut data = [0; 20];
                data[..16].copy_from_slice(&addr.octets());
                data[16..].copy_from_slice(&interface.to_ne_bytes());
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, data, size_of::<libc::in6_pktinfo>())
            }
        };
        let (begin, rest) = data.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let (middle, end) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let end = end.first_chunk::<4>().copied().unwrap_or_default();
        let head = mem::offset_of!(Control, data);
        let first = Control { len: head + len, level, kind, data: *begin };
        // The data goes on where the next control message would begin.
        let second = Control {
            len: usize::from_ne_bytes(*middle),
            level: c_int::from_ne_bytes(end),
            ..Control::default()
        };
        let space = (head + len).next_multiple_of(align_of::<Control>());
        (first, second, 2 * size_of::<Control>() - space)
    }
}

/// One control message: a `cmsghdr` with up to eight bytes of data. All control messages used here
/// take the same space, except that of the source, which takes up to two.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
struct Control {
    len: usize,
    level: c_int,
    kind: c_int,
    data: [u8; 8],
}

const _: () = {
    assert!(mem::offset_of!(Control, data) == size_of::<libc::cmsghdr>(), "as in `cmsghdr`");
    // SAFETY: `CMSG_SPACE` only calculates.
    assert!(size_of::<Control>() == unsafe { libc::CMSG_SPACE(2) } as usize, "none lies between");
    // SAFETY: `CMSG_SPACE` only calculates.
    assert!(size_of::<Control>() == unsafe { libc::CMSG_SPACE(8) } as usize, "none lies between");
};

impl Control {
    #[inline]
    fn new<const N: usize>(level: c_int, kind: c_int, value: &[u8; N]) -> Self {
        let mut data = [0; 8];
        data[..N].copy_from_slice(value);
        Self { len: mem::offset_of!(Self, data) + N, level, kind, data }
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
