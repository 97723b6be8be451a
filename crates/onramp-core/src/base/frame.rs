//! Frames: packets whose payload begins with an Ethernet or IP header ([`Layer`]), such as those of
//! a TAP, a packet socket or a capture.
//!
//! For a frame that was read into a [`Packet`], set the [layer](Packet::set_layer), apply the
//! [`VnetHeader`] if the device gave one, and call [`describe`]: then qdiscs know the flow, the
//! length, the priority and the ECN bits. A device that sends frames calls [`write_ce`] for packets
//! that a qdisc has marked, and [`complete_checksum`] unless the far side does that itself. Of a
//! frame with UDP in it, [`Datagram`] tells the addresses and the data.
//!
//! ```
//! use onramp_core::frame;
//! use onramp_queue::{Layer, Packet};
//!
//! // IPv4 from 192.0.2.1 to 192.0.2.2, ECN-capable, without a transport header.
//! let mut ip = [0; 20];
//! ip[..4].copy_from_slice(&[0x45, 2, 0, 20]);
//! (ip[8], ip[9]) = (64, 253);
//! ip[12..].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
//!
//! let mut packet = Packet::with_payload(&ip);
//! packet.set_layer(Layer::Ip);
//! frame::describe(&mut packet, 0);
//! assert_eq!((packet.ecn, packet.len), (2, 20));
//!
//! packet.ecn = 3; // A qdisc marks the packet.
//! assert!(frame::write_ce(&mut packet));
//! assert_eq!(packet.payload()[1], 3);
//! ```
//!
//! Source: RFC 791, 8200, 9293 and 768 (headers), 1624 (checksums that change), 3168 (CE); virtio
//! 1.3, section 5.1.6.2 (the header in front of a frame, super-frames); behaviour of Linux 7.2
//! `net/core/gso.c`, `net/ipv4/tcp_offload.c`, `include/net/inet_ecn.h`.
//! Differs: Linux also segments packets inside tunnels, and fragments of UDP (UFO).
//! Invariant: no bytes make this module panic, and it never reads or writes past the end.

mod datagram;

use std::fmt;
use std::net::IpAddr;

use onramp_queue::{Layer, Packet, PartialChecksum};

pub use self::datagram::Datagram;

use super::dissect::{Dissected, Fragment, Keys, ip_proto};
use super::rng::mix;

/// Offset of the checksum in the header of SCTP.
const SCTP_CHECKSUM: u16 = 8;

/// Reads the headers of a frame and sets what qdiscs want to know: the packet's
/// [`flow`](onramp_queue::Meta::flow), [`len`](onramp_queue::Meta::len),
/// [`ecn`](onramp_queue::Meta::ecn) and [`priority`](onramp_queue::Meta::priority).
///
/// The flow is a hash of the VLAN, the addresses, the protocol and the ports; fragments of a packet
/// have no ports, so they belong to one flow. With a random `seed`, it is hard to choose addresses
/// that share a flow with those of another; equal seeds give equal flows. The
/// priority is the one that Linux gives a packet with this type of service when it routes it. The
/// length of a super-frame counts the headers of each of its segments, as in Linux.
///
/// A frame that is not IP belongs to the flow of its protocol number, and has priority 0.
pub fn describe(pkt: &mut Packet, seed: u64) {
    let frame = Dissected::of(pkt);
    let keys = frame.keys();
    pkt.flow = flow(keys, seed);
    let tos = if keys.addresses.is_some() { keys.tos } else { 0 };
    (pkt.ecn, pkt.priority) = (tos & 3, priority(tos));
    let again = SuperFrame::of(pkt).map_or(0, |frame| (frame.count() - 1) * frame.headers);
    pkt.len = u32::try_from(pkt.payload().len() + again).unwrap_or(u32::MAX);
}

/// Hashes what the packets of a flow have in common.
fn flow(keys: &Keys, seed: u64) -> u64 {
    let vlan = keys.vlan.map_or(0, |vlan| u64::from(vlan.id) | 1 << 12);
    let mut hash = mix(seed ^ vlan << 16 ^ u64::from(keys.ethertype));
    let Some((from, to)) = keys.addresses else { return hash };
    for address in [from, to] {
        match address {
            IpAddr::V4(v4) => hash = mix(hash ^ u64::from(v4.to_bits())),
            IpAddr::V6(v6) => {
                let bits = v6.to_bits();
                hash = mix(hash ^ (bits >> 64) as u64);
                #[expect(clippy::cast_possible_truncation, reason = "the other half")]
                let low = bits as u64;
                hash = mix(hash ^ low);
            }
        }
    }
    let (source, dest) = keys.ports.unwrap_or_default();
    let ports = u64::from(source) << 16 | u64::from(dest);
    mix(hash ^ u64::from(keys.protocol) << 32 ^ ports)
}

/// Returns the priority that Linux gives a packet with this type of service (`rt_tos2priority`).
/// Only two bits matter: 0x10 (low delay) means interactive, 0x08 (throughput) means bulk, both
/// mean interactive bulk, and neither means best effort.
///
/// Source: `tc-prio(8)`, its table.
#[must_use]
pub const fn priority(tos: u8) -> u32 {
    match tos >> 3 & 3 {
        0 => 0,
        1 => 2,
        2 => 6,
        _ => 4,
    }
}

/// Writes "congestion experienced" (CE) into the IP header of a frame, and corrects the checksum of
/// an IPv4 header. Returns false, and writes nothing, if the frame is not IP or not ECN-capable.
pub fn write_ce(pkt: &mut Packet) -> bool {
    let frame = Dissected::of(pkt);
    let keys = frame.keys();
    let (Some((from, _)), true) = (keys.addresses, keys.tos & 3 != 0) else { return false };
    let Some(at) = frame.in_payload(keys.network) else { return false };
    // The headers have been read, so these bytes are there.
    let ip = &mut pkt.payload_mut()[at..];
    if from.is_ipv6() {
        ip[1] |= 0x30;
        return true;
    }
    let before = u16::from_be_bytes([ip[0], ip[1]]);
    ip[1] |= 3;
    let after = u16::from_be_bytes([ip[0], ip[1]]);
    let sum = u16::from_be_bytes([ip[10], ip[11]]);
    ip[10..12].copy_from_slice(&corrected(sum, before, after).to_be_bytes());
    true
}

/// Returns the checksum of a header in which one word has changed from `before` to `after`; `sum`
/// is the checksum before the change (RFC 1624).
pub(crate) fn corrected(sum: u16, before: u16, after: u16) -> u16 {
    !folded(u64::from(!sum) + u64::from(!before) + u64::from(after))
}

/// Finds out whether the sender of a frame of TCP or UDP has left its checksum to the device, where
/// nothing beside the frame says so (AF_XDP), and if so sets the
/// [partial checksum](Packet::partial_checksum). Returns whether it did.
///
/// Such a frame has the sum of the pseudo-header in its checksum field. If a frame with that sum is
/// right as it is, it is left alone; so a frame whose sender has computed the checksum is never
/// changed, unless it was damaged on its way: one in 65,536 of those is mended by mistake.
pub fn find_partial_checksum(pkt: &mut Packet) -> bool {
    let found = Dissected::of(pkt);
    let keys = found.keys();
    let offset: u16 = match keys.protocol {
        ip_proto::TCP => 16,
        ip_proto::UDP => 6,
        _ => return false,
    };
    let (Some((from, to)), Fragment::No) = (keys.addresses, keys.fragment) else { return false };
    let place = |at: usize| found.in_payload(at).and_then(|at| u16::try_from(at).ok());
    let (network, start) = (place(keys.network), keys.transport.and_then(place));
    let (Some(network), Some(start)) = (network, start) else { return false };
    let frame = pkt.payload();
    let (ip, transport) = (usize::from(network), usize::from(start));
    // A short frame is padded, with zeros, so its own header says where it ends.
    let number = |at: usize| frame.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let told = if from.is_ipv4() { (ip + 2, ip) } else { (ip + 4, ip + 40) };
    let end = number(told.0).map_or(0, |length| usize::from(length) + told.1);
    let Some(data) = frame.get(transport..end) else { return false };
    let field = usize::from(offset);
    let Some(field) = data.get(field..field + 2) else { return false };
    let pseudo = pseudo_header(from, to, keys.protocol, data.len());
    let is_pseudo = u16::from_be_bytes([field[0], field[1]]) == folded(pseudo);
    let padded = frame[end..].iter().any(|byte| *byte != 0);
    if !is_pseudo || padded || folded(pseudo + sum(data)) == u16::MAX {
        return false;
    }
    pkt.set_partial_checksum(Some(PartialChecksum { start, offset }));
    true
}

/// Computes the checksum that the sender of a frame has left to the device
/// ([`Packet::partial_checksum`]), and writes it into the frame. Does nothing if the frame is
/// complete. A super-frame has to be segmented first.
///
/// The cost is a pass over the frame's bytes.
pub fn complete_checksum(pkt: &mut Packet) {
    if let Some(partial) = pkt.partial_checksum() {
        pkt.set_partial_checksum(None);
        write_checksum(partial, pkt.payload_mut());
    }
}

/// Computes the checksum that is missing in the bytes of a frame, and writes it. Does nothing if
/// the frame is too short to have the checksum.
pub fn write_checksum(partial: PartialChecksum, frame: &mut [u8]) {
    let covered = frame.get_mut(usize::from(partial.start)..).unwrap_or_default();
    let sum = !folded(sum(covered));
    let field = covered.get_mut(usize::from(partial.offset)..).and_then(<[u8]>::first_chunk_mut);
    if let Some(field) = field {
        // In UDP, zero means that there is no checksum. 0xffff is the same number in this
        // arithmetic, and right for every protocol.
        *field = if sum == 0 { u16::MAX } else { sum }.to_be_bytes();
    }
}

/// Adds up the words of the pseudo-header of a transport header that is `length` bytes long
/// together with its data.
fn pseudo_header(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> u64 {
    let address = |address| match address {
        IpAddr::V4(v4) => sum(&v4.octets()),
        IpAddr::V6(v6) => sum(&v6.octets()),
    };
    u64::from(protocol) + length as u64 + address(from) + address(to)
}

/// Adds up the words of `bytes`, of two bytes each. A last byte without a second counts as if a
/// zero followed.
fn sum(bytes: &[u8]) -> u64 {
    let (chunks, rest) = bytes.as_chunks();
    // Pairs of words may be added at once, because folding adds the halves of the sum.
    let pairs: u64 = chunks.iter().map(|chunk| u64::from(u32::from_be_bytes(*chunk))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    pairs + u64::from(u32::from_be_bytes(last))
}

/// Folds a sum of words to one word, in one's complement arithmetic.
fn folded(mut sum: u64) -> u16 {
    while sum > u64::from(u16::MAX) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    #[expect(clippy::cast_possible_truncation, reason = "folded")]
    let word = sum as u16;
    word
}

/// How to segment a super-frame: a TCP or UDP packet that is larger than the link allows, because
/// its sender has left it to the device to cut it into segments
/// ([`gso_size`](onramp_queue::Meta::gso_size)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuperFrame {
    /// Offsets in the payload of the IP header, of the transport header, and of the data.
    network: usize,
    transport: usize,
    headers: usize,
    /// Bytes of data in the whole frame, and in each segment but the last.
    data: usize,
    size: usize,
    v6: bool,
    tcp: bool,
    checksum: PartialChecksum,
}

impl SuperFrame {
    /// Reads the headers of a super-frame. Returns `None` if the packet is not a super-frame: its
    /// payload fits one segment, or it is not TCP or UDP, or its sender has computed the checksum.
    #[must_use]
    pub fn of(pkt: &Packet) -> Option<Self> {
        if pkt.gso_size == 0 || pkt.layer() == Layer::Datagram {
            return None;
        }
        let checksum = pkt.partial_checksum()?;
        let frame = Dissected::of(pkt);
        let keys = frame.keys();
        let network = frame.in_payload(keys.network)?;
        let transport = frame.in_payload(keys.transport?)?;
        let tcp = keys.protocol == ip_proto::TCP;
        let header = match keys.protocol {
            ip_proto::TCP => 4 * usize::from(pkt.payload().get(transport + 12)? >> 4),
            ip_proto::UDP => 8,
            _ => return None,
        };
        let (shortest, field) = if tcp { (20, 16) } else { (8, 6) };
        let expected = usize::from(checksum.start) == transport && checksum.offset == field;
        let (headers, size) = (transport + header, usize::from(pkt.gso_size));
        let data = pkt.payload().len().checked_sub(headers)?;
        if header < shortest || !expected || keys.fragment != Fragment::No || data <= size {
            return None;
        }
        let v6 = keys.addresses?.0.is_ipv6();
        Some(Self { network, transport, headers, data, size, v6, tcp, checksum })
    }

    /// Returns the number of segments, at least 2.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.data.div_ceil(self.size)
    }

    /// Returns the length in bytes of the headers that each segment has.
    #[must_use]
    pub const fn headers(&self) -> usize {
        self.headers
    }

    /// Writes the segment with this index into `segment`, whose old contents are lost. `whole` is
    /// the payload of the super-frame.
    ///
    /// The segment's checksum is [partial](Self::partial_checksum), like that of the whole.
    ///
    /// # Panics
    ///
    /// Panics when `index` is not below [`count`](Self::count), or when `whole` is shorter than the
    /// payload that [`of`](Self::of) has read.
    pub fn write_segment(&self, whole: &[u8], index: usize, segment: &mut Vec<u8>) {
        let from = self.headers + index * self.size;
        let end = self.headers + self.data;
        segment.clear();
        segment.extend_from_slice(&whole[..self.headers]);
        segment.extend_from_slice(&whole[from..end.min(from + self.size)]);
        self.correct_ip(index, segment);
        let length = segment.len() - self.transport;
        let transport = &mut segment[self.transport..];
        if self.tcp {
            let number: [u8; 4] = transport[4..8].try_into().expect("four bytes");
            #[expect(clippy::cast_possible_truncation, reason = "sequence numbers wrap around")]
            let number = u32::from_be_bytes(number).wrapping_add((index * self.size) as u32);
            transport[4..8].copy_from_slice(&number.to_be_bytes());
            if from + self.size < end {
                transport[13] &= !(tcp_flag::FIN | tcp_flag::PSH);
            }
            if index > 0 {
                transport[13] &= !tcp_flag::CWR;
            }
        } else {
            transport[4..6].copy_from_slice(&word(length));
        }
        // The field contains the sum of the pseudo-header, of which only the length differs.
        let at = usize::from(self.checksum.offset);
        let pseudo = u16::from_be_bytes([transport[at], transport[at + 1]]);
        let before = u16::from_be_bytes(word(self.headers + self.data - self.transport));
        let after = u16::from_be_bytes(word(length));
        let pseudo = folded(u64::from(pseudo) + u64::from(!before) + u64::from(after));
        transport[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
    }

    /// Corrects the IP header of a segment: the length, and in IPv4 the identification and the
    /// checksum.
    fn correct_ip(&self, index: usize, segment: &mut [u8]) {
        let length = segment.len() - self.network;
        let ip = &mut segment[self.network..self.transport];
        if self.v6 {
            ip[4..6].copy_from_slice(&word(length - 40));
            return;
        }
        ip[2..4].copy_from_slice(&word(length));
        #[expect(clippy::cast_possible_truncation, reason = "identifications wrap around")]
        let number = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(index as u16);
        ip[4..6].copy_from_slice(&number.to_be_bytes());
        ip[10..12].fill(0);
        let sum = !folded(sum(ip));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    /// Returns the checksum that is missing in each segment.
    #[must_use]
    pub const fn partial_checksum(&self) -> PartialChecksum {
        self.checksum
    }
}

/// Returns a length as a field of a header. No frame is longer than the field can say.
fn word(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}

/// Flags of TCP. In a super-frame, FIN and PSH belong to the last segment, and CWR to the first.
mod tcp_flag {
    pub(super) const FIN: u8 = 0x01;
    pub(super) const PSH: u8 = 0x08;
    pub(super) const CWR: u8 = 0x80;
}

/// The header that a TAP or a packet socket puts in front of a frame if asked
/// (`struct virtio_net_hdr`): which checksum is missing, and how to segment the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    flags: u8,
    gso_type: u8,
    headers: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

/// Largest length in bytes of a frame's headers that is believed: Ethernet with two tags, IP with
/// all options and extension headers in use, TCP with all options.
const HEADERS_MAX: u16 = 256;

/// Values of the fields of a [`VnetHeader`].
mod vnet {
    pub(super) const NEEDS_CHECKSUM: u8 = 1;
    pub(super) const GSO_NONE: u8 = 0;
    pub(super) const GSO_TCP_V4: u8 = 1;
    pub(super) const GSO_TCP_V6: u8 = 4;
    pub(super) const GSO_UDP: u8 = 5;
    pub(super) const GSO_ECN: u8 = 0x80;
}

impl VnetHeader {
    /// Length of the header in bytes.
    pub const LEN: usize = 10;

    /// Reads a header with numbers in little-endian order (a TAP writes such headers after
    /// `TUNSETVNETLE`).
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1] = bytes;
        Self {
            flags,
            gso_type,
            headers: u16::from_le_bytes([h0, h1]),
            gso_size: u16::from_le_bytes([g0, g1]),
            checksum_start: u16::from_le_bytes([s0, s1]),
            checksum_offset: u16::from_le_bytes([o0, o1]),
        }
    }

    /// Writes the header with numbers in little-endian order.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        let [h0, h1] = self.headers.to_le_bytes();
        let [g0, g1] = self.gso_size.to_le_bytes();
        let [s0, s1] = self.checksum_start.to_le_bytes();
        let [o0, o1] = self.checksum_offset.to_le_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
    }

    /// Makes the header for a packet, so that the far side completes its checksum and segments it.
    #[must_use]
    pub fn of(pkt: &Packet) -> Self {
        let mut header = Self::default();
        if let Some(PartialChecksum { start, offset }) = pkt.partial_checksum() {
            header.flags = vnet::NEEDS_CHECKSUM;
            (header.checksum_start, header.checksum_offset) = (start, offset);
        }
        if let Some(frame) = SuperFrame::of(pkt) {
            header.gso_type = match (frame.tcp, frame.v6) {
                (true, false) => vnet::GSO_TCP_V4,
                (true, true) => vnet::GSO_TCP_V6,
                (false, _) => vnet::GSO_UDP,
            };
            if frame.tcp && pkt.payload()[frame.transport + 13] & tcp_flag::CWR != 0 {
                header.gso_type |= vnet::GSO_ECN;
            }
            header.gso_size = pkt.gso_size;
            header.headers = u16::try_from(frame.headers).unwrap_or(u16::MAX);
        }
        header
    }

    /// Tells a packet what the header says about its payload: sets
    /// [`gso_size`](onramp_queue::Meta::gso_size) and the [partial
    /// checksum](Packet::partial_checksum). Completes the checksum of SCTP, which is no sum of
    /// words, so that no device would do it. Set the payload and the layer first.
    ///
    /// # Errors
    ///
    /// [`VnetError`] if the header contradicts the payload, or asks for a segmentation that is not
    /// known. The packet is then unchanged.
    pub fn apply(self, pkt: &mut Packet) -> Result<(), VnetError> {
        let (start, offset) = (self.checksum_start, self.checksum_offset);
        let checksum =
            (self.flags & vnet::NEEDS_CHECKSUM != 0).then_some(PartialChecksum { start, offset });
        if checksum.is_some() && usize::from(start) + usize::from(offset) + 2 > pkt.payload().len()
        {
            return Err(VnetError::Checksum { start, offset });
        }
        let gso_size = match self.gso_type & !vnet::GSO_ECN {
            vnet::GSO_NONE => 0,
            vnet::GSO_TCP_V4 | vnet::GSO_TCP_V6 | vnet::GSO_UDP => {
                match (self.gso_size, checksum) {
                    (0, _) => return Err(VnetError::NoSize),
                    (_, None) => return Err(VnetError::NoChecksum),
                    (size, Some(_)) => size,
                }
            }
            _ => return Err(VnetError::Type(self.gso_type)),
        };
        let before = (pkt.partial_checksum(), pkt.gso_size);
        // The header does not say that the checksum of SCTP is a CRC.
        let crc = checksum.filter(|partial| gso_size == 0 && is_sctp(pkt, *partial));
        if let Some(partial) = crc {
            write_crc(partial, pkt.payload_mut());
        }
        pkt.set_partial_checksum(checksum.filter(|_| crc.is_none()));
        pkt.gso_size = gso_size;
        // A frame of one segment needs no segmentation.
        let segment = usize::from(self.headers.min(HEADERS_MAX)) + usize::from(gso_size);
        if gso_size > 0 && pkt.payload().len() > segment && SuperFrame::of(pkt).is_none() {
            pkt.set_partial_checksum(before.0);
            pkt.gso_size = before.1;
            return Err(VnetError::Headers);
        }
        Ok(())
    }
}

/// Whether the checksum that is missing is that of SCTP.
fn is_sctp(pkt: &Packet, partial: PartialChecksum) -> bool {
    if partial.offset != SCTP_CHECKSUM {
        return false;
    }
    let found = Dissected::of(pkt);
    let keys = found.keys();
    keys.protocol == ip_proto::SCTP
        && keys.fragment == Fragment::No
        && keys.transport.and_then(|at| found.in_payload(at)) == Some(partial.start.into())
}

/// Computes the CRC-32C from the header of SCTP to the end of the frame, and writes it into its
/// field. Does nothing if the field lies behind the end.
///
/// Source: RFC 9260, appendix A.
fn write_crc(partial: PartialChecksum, frame: &mut [u8]) {
    /// The polynomial of CRC-32C, lowest power in the highest bit.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let covered = frame.get_mut(usize::from(partial.start)..).unwrap_or_default();
    let at = usize::from(partial.offset);
    let Some(field) = covered.get_mut(at..at + 4) else { return };
    field.fill(0);
    let bit = |crc: u32, _| (crc >> 1) ^ (POLYNOMIAL * (crc & 1));
    let crc = covered.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit));
    covered[at..at + 4].copy_from_slice(&(!crc).to_le_bytes());
}

/// Error: a [`VnetHeader`] cannot belong to its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VnetError {
    /// The checksum field lies behind the end of the frame.
    Checksum {
        /// Offset of the first byte that the checksum covers.
        start: u16,
        /// Offset of the field from there.
        offset: u16,
    },
    /// The frame is to be segmented, but its segments have no data.
    NoSize,
    /// The frame is to be segmented, but its checksum is not left to the device.
    NoChecksum,
    /// The frame is to be segmented, but its headers are not those of TCP or UDP in IP.
    Headers,
    /// The frame is to be segmented in a way of this number, which is not known.
    Type(u8),
}

impl fmt::Display for VnetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("virtio header: ")?;
        match self {
            Self::Checksum { start, offset } => {
                write!(f, "a checksum at byte {start} + {offset} lies behind the end of the frame")
            }
            Self::NoSize => f.write_str("segments of 0 bytes"),
            Self::NoChecksum => f.write_str("a frame to be segmented has its checksum already"),
            Self::Headers => f.write_str("a frame to be segmented is neither TCP nor UDP"),
            Self::Type(number) => write!(f, "segmentation of the unknown type {number}"),
        }
    }
}

impl std::error::Error for VnetError {}

#[cfg(test)]
mod tests;
