//! Marks packets with congestion in their two ECN bits: RFC 3168.

use onramp_queue::Meta;

/// Not ECN-capable: the sender learns of congestion only from lost packets.
const NOT_ECT: u8 = 0;
/// The mark "congestion experienced", which tells the sender of congestion.
const CE: u8 = 3;

/// Marks a packet with "congestion experienced". Returns false if the sender of the packet does not
/// support ECN. For a packet that already carries the mark, the function returns true, as in Linux.
#[inline]
pub(crate) fn mark(pkt: &mut Meta) -> bool {
    if pkt.ecn == NOT_ECT {
        return false;
    }
    pkt.ecn = CE;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_those_that_cannot_carry_it_are_marked() {
        for (before, after, marked) in [(0, 0, false), (1, 3, true), (2, 3, true), (3, 3, true)] {
            let mut meta = Meta { ecn: before, ..Meta::default() };
            assert_eq!((mark(&mut meta), meta.ecn), (marked, after));
        }
    }
}
