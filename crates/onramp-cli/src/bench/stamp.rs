//! What every datagram of a verified run carries: magic, flow, sequence, and a filling that
//! belongs to the flow.

/// "onramp" and a version, so that a stray datagram is told from ours.
const MAGIC: [u8; 8] = *b"onramp\x00\x01";
/// Bytes of magic, flow and sequence.
pub(crate) const LEN: usize = 24;

/// A prepared datagram of `flow`: the sequence is still to be set.
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

/// What a datagram says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The datagram with this sequence, intact.
    Sequence(u64),
    /// Ours, but of another flow.
    OfFlow(u64),
    /// Ours, but shorter, longer or changed.
    Damaged,
    /// Not ours: somebody else's datagram strayed here.
    Foreign,
}

/// Reads a datagram, given the prepared one of the flow it should belong to.
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
