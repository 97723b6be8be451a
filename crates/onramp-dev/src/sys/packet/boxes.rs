//! Many frames in one call: `sendmmsg` and `recvmmsg` on a packet socket.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use libc::{c_int, c_uint, iovec, mmsghdr, tpacket_auxdata};
use onramp_core::frame::VnetHeader;
use onramp_queue::{PAYLOAD_MAX, Packet};

use super::PacketFd;
use crate::sys::message::{fill, no_message, number, part, receive, room};

/// Largest number of frames in one call.
pub(crate) const MESSAGES_MAX: usize = 32;

/// Bytes of a virtio header.
const VNET: usize = VnetHeader::LEN;

/// Turns a virtio header from little-endian order into the machine's, which a packet socket uses,
/// or back.
const fn native(mut header: [u8; VNET]) -> [u8; VNET] {
    if cfg!(target_endian = "big") {
        let mut at = 2;
        while at < VNET {
            (header[at], header[at + 1]) = (header[at + 1], header[at]);
            at += 2;
        }
    }
    header
}

/// Sends frames.
pub(crate) struct Outbox {
    /// The frames to send, in order.
    pub(crate) frames: Vec<Packet>,
    vnet: Vec<[u8; VNET]>,
    headers: Box<[mmsghdr]>,
    parts: Box<[[iovec; 2]]>,
}

// SAFETY: the raw pointers in headers and parts are written and used within one call of `send`.
unsafe impl Send for Outbox {}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            frames: Vec::with_capacity(MESSAGES_MAX),
            vnet: Vec::with_capacity(MESSAGES_MAX),
            headers: vec![no_message(); MESSAGES_MAX].into(),
            parts: vec![[part(ptr::null_mut(), 0); 2]; MESSAGES_MAX].into(),
        }
    }

    /// Offers the frames to the kernel, each behind its virtio header if `vnet` is set. Returns how
    /// many of them the kernel took, or the error of the first.
    ///
    /// # Panics
    ///
    /// Panics if there are more than [`MESSAGES_MAX`] frames.
    pub(crate) fn send(&mut self, fd: &PacketFd, vnet: bool) -> io::Result<usize> {
        self.vnet.clear();
        if vnet {
            let header = |frame: &Packet| native(VnetHeader::of(frame).to_bytes());
            self.vnet.extend(self.frames.iter().map(header));
        }
        let count = self.frames.len();
        let messages = &mut self.headers[..count];
        for (at, (frame, parts)) in self.frames.iter().zip(&mut self.parts).enumerate() {
            let payload = frame.payload();
            let payload = part(payload.as_ptr().cast_mut(), payload.len());
            let header = self
                .vnet
                .get(at)
                .map_or(part(ptr::null_mut(), 0), |header| part(header.as_ptr().cast_mut(), VNET));
            *parts = [header, payload];
            messages[at].msg_hdr.msg_iov = parts.as_mut_ptr();
            messages[at].msg_hdr.msg_iovlen = 2;
        }
        // SAFETY: `count` headers are there. Each points to its own two parts, and these to a
        // virtio header in `vnet` (or to nothing, with length 0) and to a packet's payload, which
        // the kernel only reads; all of them live, unchanged, in `self`.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_fd_number(),
                messages.as_mut_ptr(),
                number(count),
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("frames", &self.frames.len()).finish_non_exhaustive()
    }
}

/// A frame that was received.
#[derive(Debug)]
pub(crate) struct Received<'b> {
    /// The frame, or its beginning. It lacks the VLAN tag that the kernel has taken out.
    pub(crate) packet: Packet,
    /// Bytes of the frame behind those in `packet`.
    pub(crate) rest: &'b [u8],
    /// Whether even more bytes of the frame were lost.
    pub(crate) truncated: bool,
    /// The virtio header, with numbers in little-endian order.
    pub(crate) vnet: [u8; VNET],
    /// The VLAN tag, as it stands in a frame: protocol number and control information.
    pub(crate) tag: Option<[u8; 4]>,
}

/// Receives frames, each behind its virtio header.
pub(crate) struct Inbox {
    /// Empty packets to receive into.
    pub(crate) empty: Vec<Packet>,
    headers: Box<[mmsghdr]>,
    parts: Box<[[iovec; 3]]>,
    vnet: Box<[[u8; VNET]]>,
    controls: Box<[Control]>,
    /// Places for the bytes that do not fit a packet, of [`PAYLOAD_MAX`] bytes for each message.
    /// The kernel provides the memory only of the parts that are used.
    rests: Vec<u8>,
}

// SAFETY: the raw pointers in headers and parts are written and used within one call of `receive`.
unsafe impl Send for Inbox {}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            empty: Vec::with_capacity(MESSAGES_MAX),
            headers: vec![no_message(); MESSAGES_MAX].into(),
            parts: vec![[part(ptr::null_mut(), 0); 3]; MESSAGES_MAX].into(),
            vnet: vec![[0; VNET]; MESSAGES_MAX].into(),
            controls: vec![Control([0; CONTROL]); MESSAGES_MAX].into(),
            rests: vec![0; MESSAGES_MAX * PAYLOAD_MAX],
        }
    }

    /// Receives up to `most` frames, into as many empty packets, and gives each to `take`. Returns
    /// their number.
    pub(crate) fn receive(
        &mut self,
        fd: &PacketFd,
        most: usize,
        mut take: impl FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let places = self.empty.iter_mut().zip(self.rests.chunks_exact_mut(PAYLOAD_MAX));
        let mut count = 0;
        for (packet, rest) in places.take(most) {
            let vnet = &mut self.vnet[count];
            *vnet = [0; VNET];
            self.parts[count] = [
                part(vnet.as_mut_ptr(), VNET),
                room(packet, 0),
                part(rest.as_mut_ptr(), rest.len()),
            ];
            let header = &mut self.headers[count].msg_hdr;
            header.msg_iov = self.parts[count].as_mut_ptr();
            header.msg_iovlen = 3;
            header.msg_control = self.controls[count].0.as_mut_ptr().cast();
            header.msg_controllen = number(CONTROL);
            count += 1;
        }
        // SAFETY: `count` headers are there. Each points to its own three parts and its own
        // control buffer, whose lengths are right. The parts are a header in `vnet`, the whole
        // buffer of a packet in `empty`, and a slice of `rests`: all of them belong to `self`
        // alone, and no two overlap.
        let received = unsafe { receive(fd.as_fd_number(), &mut self.headers[..count]) }?;
        let rests = self.rests.chunks_exact(PAYLOAD_MAX);
        for (at, (mut packet, rest)) in self.empty.drain(..received).zip(rests).enumerate() {
            let header = &self.headers[at];
            let len = (header.msg_len as usize).saturating_sub(VNET);
            let front = len.min(self.parts[at][1].iov_len);
            // SAFETY: the kernel fills the parts in order, so it has written the first `front`
            // bytes of the packet's buffer, which has at least that many.
            unsafe { fill(&mut packet, front) };
            take(Received {
                packet,
                rest: &rest[..len - front],
                truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
                vnet: native(self.vnet[at]),
                tag: tag(&header.msg_hdr),
            });
        }
        Ok(received)
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("empty", &self.empty.len()).finish_non_exhaustive()
    }
}

/// Bytes of the control messages of a received frame: one `tpacket_auxdata`.
const CONTROL: usize = {
    // SAFETY: `CMSG_SPACE` only calculates.
    let space = unsafe { libc::CMSG_SPACE(AUXILIARY) };
    space as usize
};

#[expect(clippy::cast_possible_truncation, reason = "20 bytes")]
const AUXILIARY: c_uint = size_of::<tpacket_auxdata>() as c_uint;

/// A buffer for control messages, which the kernel fills.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

/// Reads the VLAN tag that the kernel has taken out of a frame.
fn tag(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: the header is one that `recvmmsg` has filled, so the kernel has set the length to the
    // part of the control buffer that it has written.
    let control = unsafe { libc::CMSG_FIRSTHDR(&raw const *message) };
    if control.is_null() {
        return None;
    }
    // SAFETY: the pointer is not null, so a whole header lies there; the buffer is aligned for it.
    let header = unsafe { *control };
    let wanted = (libc::SOL_PACKET, libc::PACKET_AUXDATA);
    // SAFETY: `CMSG_LEN` only calculates.
    let least = unsafe { libc::CMSG_LEN(AUXILIARY) } as usize;
    if (header.cmsg_level, header.cmsg_type) != wanted || (header.cmsg_len as usize) < least {
        return None;
    }
    // SAFETY: `control` points to a header in a buffer.
    let data = unsafe { libc::CMSG_DATA(control) };
    // SAFETY: by its length, the message contains these data.
    let data = unsafe { ptr::read_unaligned(data.cast::<tpacket_auxdata>()) };
    if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    // Before Linux 3.14, the kernel did not tell the protocol, which was always 802.1Q.
    let [p0, p1] = if known { data.tp_vlan_tpid } else { 0x8100 }.to_be_bytes();
    let [c0, c1] = data.tp_vlan_tci.to_be_bytes();
    Some([p0, p1, c0, c1])
}

impl PacketFd {
    fn as_fd_number(&self) -> c_int {
        self.0.as_raw_fd()
    }
}
