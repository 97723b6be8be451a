//! Former framings (how the link framed packets earlier): a packet keeps the size on the wire that
//! it had when it came, even if the framing of the link is changed later.
//!
//! Packets of a flow leave in order, so it suffices to count how many packets of each framing each
//! flow holds. This module stores nothing and costs nothing until a framing changes.

use std::collections::BTreeMap;

use super::shape::Framing;

/// Where a packet is: the number of a tin, and the number of a queue of that tin.
type Place = (usize, usize);

/// The former framings, the oldest first. Each has a map from a queue to the number of packets in
/// this queue that came while the framing was in use.
#[derive(Debug, Default)]
pub(super) struct Former(Vec<(Framing, BTreeMap<Place, u32>)>);

impl Former {
    /// Notes that `framing` is no longer in use. `held` lists, for each queue, the number of
    /// packets that the queue holds, packets of older framings included.
    pub(super) fn add(&mut self, framing: Framing, held: impl Iterator<Item = (Place, u32)>) {
        let known = |place: Place| -> u32 {
            self.0.iter().filter_map(|(_, held)| held.get(&place)).copied().sum()
        };
        let new: BTreeMap<Place, u32> = held
            .map(|(place, packets)| (place, packets.saturating_sub(known(place))))
            .filter(|(_, packets)| *packets > 0)
            .collect();
        if !new.is_empty() {
            self.0.push((framing, new));
        }
    }

    /// Forgets the queues of the tin `tin` and of all later tins; these queues hold no packets.
    pub(super) fn forget_from(&mut self, tin: usize) {
        self.0.retain_mut(|(_, held)| {
            held.retain(|place, _| place.0 < tin);
            !held.is_empty()
        });
    }

    /// Notes that the first packet of the queue `place` leaves. Returns the framing that was in use
    /// when this packet came, or `None` if this is the present framing.
    #[inline]
    pub(super) fn left(&mut self, place: Place) -> Option<Framing> {
        if self.0.is_empty() { None } else { self.find(place) }
    }

    #[cold]
    fn find(&mut self, place: Place) -> Option<Framing> {
        let at = self.0.iter().position(|(_, held)| held.contains_key(&place))?;
        let (framing, held) = &mut self.0[at];
        let (framing, packets) = (*framing, held.get_mut(&place)?);
        *packets -= 1;
        if *packets == 0 {
            held.remove(&place);
        }
        if held.is_empty() {
            self.0.remove(at);
        }
        Some(framing)
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::Cells;
    use super::*;

    #[test]
    fn packets_leave_the_oldest_framing_first() {
        let framing = |overhead| Framing { overhead, raw: true, mpu: 0, cells: Cells::None };
        let (one, other) = ((0, 7), (2, 9));
        let mut former = Former::default();
        assert!(former.left(one).is_none());
        former.add(framing(1), [(one, 1), (other, 2)].into_iter());
        former.add(framing(2), [(one, 3), (other, 2)].into_iter());
        let mut left = |place| former.left(place).map(|framing| framing.overhead);
        assert_eq!([left(one), left(one), left(one), left(one)], [Some(1), Some(2), Some(2), None]);
        assert_eq!(left(other), Some(1));
        former.forget_from(2);
        assert!(former.left(other).is_none());
        assert!(former.0.is_empty());
    }
}
