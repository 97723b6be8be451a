//! Marks of congestion in the two ECN bits of a packet: RFC 3168.

use onramp_queue::Meta;

/// Not capable of ECN: losses alone tell the sender.
const NOT_ECT: u8 = 0;
/// Congestion experienced.
const CE: u8 = 3;

/// Marks a packet; false if its sender would not understand. One that carries the mark already
/// counts as marked, as in Linux.
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
