//! What passes the line of a relay: datagrams, and the segments of its connections.
//!
//! The payload of a packet is a head, and behind it the bytes of the datagram or the numbers of the
//! segment. A segment does not carry its part of the connection's bytes, but is as long on the wire
//! as if it did: both ends of a connection are in this program, so the bytes stay where they are.

use onramp_queue::{PAYLOAD_MAX, Packet};

/// Length of an Ethernet header, of a UDP header, and of a TCP header with time stamps, bytes.
const ETHERNET: u32 = 14;
const UDP: u32 = 8;
pub(crate) const TCP: u32 = 32;
/// Length of a TCP header with the options of a connection's begin, and without any.
const TCP_BEGIN: u32 = 40;
const TCP_PLAIN: u32 = 20;

/// Length of a head, bytes: a sum, what the packet carries, and for which connection or client.
const HEAD: usize = 24;
/// What the head of a datagram says; the numbers before are those of segments.
const DATAGRAM: u64 = 6;
/// Numbers of a segment behind the head.
const NUMBERS: usize = 3 + 2 * BLOCKS;
/// Most blocks in an acknowledgement. TCP has room for three beside time stamps (RFC 2018).
pub(crate) const BLOCKS: usize = 3;

/// A segment of a connection, in one of its two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// The client has connected.
    Syn,
    /// The target has accepted.
    SynAck,
    Data(Data),
    Ack(Ack),
    /// The connection is broken.
    Reset,
}

/// A part of the bytes of a direction. The end of the bytes counts as one byte more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) seq: u64,
    pub(crate) len: u32,
    /// Number of the transmission, from 1: a part that is sent again has another.
    pub(crate) tx: u64,
}

/// What has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    /// All bytes before this number have arrived.
    pub(crate) upto: u64,
    /// The transmission that arrived last; 0 if none.
    pub(crate) tx: u64,
    /// Whether a mark of congestion has arrived since the last acknowledgement.
    pub(crate) ce: bool,
    /// Bytes behind `upto` that have arrived: the first of each block, and the first behind it.
    /// Blocks that are not used are empty.
    pub(crate) blocks: [(u64, u64); BLOCKS],
}

impl Segment {
    /// Length of the packet with this segment, bytes. `ip` is the length of the IP header.
    fn wire_len(&self, ip: u32) -> u32 {
        let tcp = match self {
            Self::Syn | Self::SynAck => TCP_BEGIN,
            // The end of the bytes is a flag in the header.
            Self::Data(data) => TCP + data.len,
            Self::Ack(ack) => {
                let used = ack.blocks.iter().filter(|(from, to)| from < to).count();
                TCP + if used == 0 { 0 } else { 4 + 8 * u32::try_from(used).unwrap_or(0) }
            }
            Self::Reset => TCP_PLAIN,
        };
        ETHERNET + ip + tcp
    }

    /// Makes the packet that carries the segment of the connection `id`.
    pub(crate) fn packet(&self, id: u64, ip: u32) -> Packet {
        let mut numbers = [0; NUMBERS];
        // ECT(0): a qdisc may mark it.
        let ecn = if matches!(self, Self::Data(_)) { 2 } else { 0 };
        let kind = match self {
            Self::Syn => 1,
            Self::SynAck => 2,
            Self::Data(Data { seq, len, tx }) => {
                numbers[..3].copy_from_slice(&[*seq, u64::from(*len), *tx]);
                3
            }
            Self::Ack(ack) => {
                numbers[..3].copy_from_slice(&[ack.upto, ack.tx, u64::from(ack.ce)]);
                for (place, (from, to)) in numbers[3..].chunks_exact_mut(2).zip(ack.blocks) {
                    place.copy_from_slice(&[from, to]);
                }
                4
            }
            Self::Reset => 5,
        };
        let mut packet = packet(kind, id, numbers.map(u64::to_le_bytes).as_flattened());
        (packet.flow, packet.len, packet.ecn) = (id, self.wire_len(ip), ecn);
        packet
    }
}

/// Makes the packet that carries a datagram of the client `id`. Returns `None` if it does not fit a
/// packet: a datagram of IPv6 may have a few bytes too many.
pub(crate) fn datagram(id: u64, bytes: &[u8], ip: u32) -> Option<Packet> {
    if HEAD + bytes.len() > PAYLOAD_MAX {
        return None;
    }
    let mut packet = packet(DATAGRAM, id, bytes);
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    (packet.flow, packet.len) = (id, ETHERNET + ip + UDP + length);
    Some(packet)
}

/// What a packet carries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content<'p> {
    Segment(Segment),
    Datagram(&'p [u8]),
}

/// Reads a packet: the number of its connection or client, and what it carries. Returns `None` if a
/// qdisc has corrupted it.
pub(crate) fn read(payload: &[u8]) -> Option<(u64, Content<'_>)> {
    let (head, body) = payload.split_at_checked(HEAD)?;
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
    let (kind, id) = (number(&head[8..16])?, number(&head[16..])?);
    if number(&head[..8])? != sum(kind, id, body) {
        return None;
    }
    if kind == DATAGRAM {
        return Some((id, Content::Datagram(body)));
    }
    let mut numbers = [0; NUMBERS];
    for (place, bytes) in numbers.iter_mut().zip(body.chunks(8)) {
        *place = number(bytes)?;
    }
    let [first, second, third, blocks @ ..] = numbers;
    let segment = match kind {
        1 => Segment::Syn,
        2 => Segment::SynAck,
        3 => Segment::Data(Data { seq: first, len: u32::try_from(second).ok()?, tx: third }),
        4 => {
            let blocks = std::array::from_fn(|block| (blocks[2 * block], blocks[2 * block + 1]));
            Segment::Ack(Ack { upto: first, tx: second, ce: third != 0, blocks })
        }
        5 => Segment::Reset,
        _ => return None,
    };
    Some((id, Content::Segment(segment)))
}

fn packet(kind: u64, id: u64, body: &[u8]) -> Packet {
    let head = [sum(kind, id, body), kind, id].map(u64::to_le_bytes);
    Packet::with_payload(&[head.as_flattened(), body].concat())
}

/// A sum that the change of any one bit changes, and that few changes of more bits leave as it is.
fn sum(kind: u64, id: u64, body: &[u8]) -> u64 {
    let word = |part: &[u8]| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    };
    let words = [kind, id].into_iter().chain(body.chunks(8).map(word));
    // The factor is odd and the shifts go to the right, so a step loses nothing. The factor spreads
    // a bit over all higher ones, and the shift brings it back to the lower ones.
    let mix = |number: u64| {
        let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        number ^ (number >> 32)
    };
    words.fold(0, |sum, word| mix(mix(sum ^ word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_a_changed_bit_is_noticed() {
        let ack = Ack { upto: 7, tx: 9, ce: true, blocks: [(10, 20), (0, 0), (30, 31)] };
        let data = Data { seq: 1 << 40, len: 1_448, tx: 3 };
        let all = [Segment::Syn, Segment::SynAck, Segment::Data(data), Segment::Ack(ack)];
        for segment in all.into_iter().chain([Segment::Reset]) {
            let packet = segment.packet(5, 20);
            assert_eq!(read(packet.payload()), Some((5, Content::Segment(segment))));
            assert_changes_are_noticed(packet.payload());
        }
        let packet = datagram(5, b"hello, you there", 40).expect("it is small");
        let read = read(packet.payload());
        assert_eq!(read, Some((5, Content::Datagram(b"hello, you there"))));
        assert_changes_are_noticed(packet.payload());
    }

    fn assert_changes_are_noticed(payload: &[u8]) {
        for bit in 0..8 * payload.len() {
            let mut changed = payload.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&changed), None, "bit {bit}");
            for other in 0..bit {
                let mut changed = changed.clone();
                changed[other / 8] ^= 1 << (other % 8);
                assert_eq!(read(&changed), None, "bits {bit} and {other}");
            }
        }
        assert_eq!(read(&payload[..HEAD - 1]), None);
    }

    /// The lengths are those of the frames that a TCP of Linux would send.
    #[test]
    fn lengths_are_those_of_frames() {
        let ack = |blocks| Segment::Ack(Ack { upto: 7, tx: 9, ce: true, blocks }).packet(1, 20).len;
        assert_eq!(ack([(0, 0); BLOCKS]), 66);
        assert_eq!(ack([(1, 2), (3, 4), (0, 0)]), 86);
        assert_eq!(Segment::Data(Data { seq: 0, len: 1_448, tx: 1 }).packet(1, 20).len, 1_514);
        assert_eq!(Segment::Data(Data { seq: 0, len: 1_428, tx: 1 }).packet(1, 40).len, 1_514);
        assert_eq!((Segment::Syn.packet(1, 20).len, Segment::Reset.packet(1, 40).len), (74, 74));
        assert_eq!(datagram(1, &[0; 1_472], 20).expect("it is small").len, 1_514);
        let largest = datagram(1, &[0; PAYLOAD_MAX - HEAD], 40).expect("it just fits");
        assert_eq!(largest.payload().len(), PAYLOAD_MAX);
        assert!(datagram(1, &[0; PAYLOAD_MAX - HEAD + 1], 40).is_none());
    }
}
