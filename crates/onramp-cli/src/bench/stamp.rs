//! The content of every datagram in a verified run: a magic number, the flow, the sequence number,
//! and a pattern that belongs to the flow.

/// The magic number: the word "onramp" and a version, by which datagrams of this benchmark are told
/// from those of other programs.
const MAGIC: [u8; 8] = *b"onramp\x00\x01";
/// Length in bytes of the magic number, the flow and the sequence number.
pub(crate) const LEN: usize = 24;

/// Returns a datagram of `flow` with everything but its sequence number, which the caller must
/// still set.
pub(crate) fn template(flow: usize, size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..size).map(|at| filling(flow, at)).collect();
    if size >= LEN {
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&(flow as u64).to_be_bytes());
        bytes[16..LEN].copy_from_slice(&0u64.to_be_bytes());
    }
    bytes
}

#[expect(clippy::cast_possible_truncation, reason = "a pattern, not a number")]
fn filling(flow: usize, at: usize) -> u8 {
    (flow.wrapping_mul(31) ^ at.wrapping_mul(7)) as u8
}

/// Writes `sequence` into a prepared datagram.
pub(crate) fn set_sequence(datagram: &mut [u8], sequence: u64) {
    datagram[16..LEN].copy_from_slice(&sequence.to_be_bytes());
}

/// What [`read`] finds in a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The datagram is intact and has this sequence number.
    Sequence(u64),
    /// The datagram is from this benchmark but of another flow, with this number.
    OfFlow(u64),
    /// The datagram is from this benchmark but shorter, longer or changed.
    Damaged,
    /// The datagram is from another program.
    Foreign,
}

/// Reads a datagram and compares it with `template`, the prepared datagram of the flow that it
/// should belong to.
pub(crate) fn read(datagram: &[u8], template: &[u8]) -> Content {
    let Some((head, sequence)) = datagram.get(..16).zip(datagram.get(16..LEN)) else {
        return Content::Foreign;
    };
    if head[..8] != MAGIC {
        return Content::Foreign;
    }
    if head[8..] != template[8..16] {
        return Content::OfFlow(be64(&head[8..]));
    }
    if datagram.len() != template.len() || datagram[LEN..] != template[LEN..] {
        return Content::Damaged;
    }
    Content::Sequence(be64(sequence))
}

fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let template = template(3, 120);
        let mut datagram = template.clone();
        set_sequence(&mut datagram, 1 << 40);
        assert_eq!(read(&datagram, &template), Content::Sequence(1 << 40));
        assert_eq!(read(&datagram[..119], &template), Content::Damaged);
        assert_eq!(read(&datagram, &super::template(4, 120)), Content::OfFlow(3));
        datagram[100] ^= 1;
        assert_eq!(read(&datagram, &template), Content::Damaged);
        datagram[0] ^= 1;
        assert_eq!(read(&datagram, &template), Content::Foreign);
        assert_eq!(read(&[], &template), Content::Foreign);
    }

    #[test]
    fn without_room_for_a_stamp() {
        assert_eq!(template(1, 10).len(), 10);
    }
}
