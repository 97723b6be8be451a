//! What the link made of packets that came before its framing was changed: a packet keeps the size
//! that it had when it came.
//!
//! Packets of a flow leave in order, so it is enough to know how many each flow holds of each
//! framing. Nothing is known, and nothing costs, until a framing changes.

use std::collections::BTreeMap;

use super::shape::Framing;

/// A tin and a queue.
type Place = (usize, usize);

/// The framings that were, the oldest first, with the packets of each that are held.
#[derive(Debug, Default)]
pub(super) struct Former(Vec<(Framing, BTreeMap<Place, u32>)>);

impl Former {
    /// The framing is no more; these packets are held, in all, in these places.
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

    /// Forgets the places of tins from this one on, which are empty.
    pub(super) fn forget_from(&mut self, tin: usize) {
        self.0.retain_mut(|(_, held)| {
            held.retain(|place, _| place.0 < tin);
            !held.is_empty()
        });
    }

    /// The framing of the packet that leaves this place, if it is a former one.
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
