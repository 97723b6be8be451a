//! Classes that take turns, in the order of their minor numbers.

/// A set of numbers, stored as bits, so that the search for the next number in the set checks 64
/// numbers at a time.
#[derive(Debug, Default)]
struct Numbers {
    /// A bit for each number, which is set if the number is in the set.
    words: Vec<u64>,
    /// A bit for each word of `words`, which is set if the word is not zero.
    index: Vec<u64>,
}

#[inline]
fn place(number: usize) -> (usize, u64) {
    (number / 64, 1 << (number % 64))
}

/// Returns the position of the first bit set in `words`, searching from the position `number` on.
#[inline]
fn first_bit(words: &[u64], number: usize) -> Option<usize> {
    let (mut at, bit) = place(number);
    let mut mask = bit.wrapping_neg();
    while let Some(word) = words.get(at) {
        let rest = word & mask;
        if rest != 0 {
            return Some(at * 64 + rest.trailing_zeros() as usize);
        }
        (at, mask) = (at + 1, u64::MAX);
    }
    None
}

impl Numbers {
    #[inline]
    fn insert(&mut self, number: usize) {
        let (at, bit) = place(number);
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
            self.index.resize(at / 64 + 1, 0);
        }
        self.words[at] |= bit;
        self.index[at / 64] |= place(at).1;
    }

    #[inline]
    fn remove(&mut self, number: usize) {
        let (at, bit) = place(number);
        if let Some(word) = self.words.get_mut(at) {
            *word &= !bit;
            if *word == 0 {
                self.index[at / 64] &= !place(at).1;
            }
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.index.iter().all(|word| *word == 0)
    }

    /// Returns the least number in the set that is at least `number`.
    #[inline]
    fn first_from(&self, number: usize) -> Option<usize> {
        let word = self.words.get(number / 64)? & place(number).1.wrapping_neg();
        if word != 0 {
            return Some(number / 64 * 64 + word.trailing_zeros() as usize);
        }
        let at = first_bit(&self.index, number / 64 + 1)?;
        Some(at * 64 + self.words[at].trailing_zeros() as usize)
    }
}

/// Classes that take turns, by their minor numbers.
#[derive(Debug, Default)]
pub(super) struct ActiveClasses {
    members: Numbers,
    /// The class that has the turn. If no class has it, the round is over, unless `left` names the
    /// class that had the turn last.
    current: Option<u16>,
    /// The class that had the turn when it was removed, if any. The turn then passes to the first
    /// class from that number on.
    left: Option<u16>,
}

impl ActiveClasses {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    #[inline]
    pub(super) fn insert(&mut self, number: u16) {
        self.members.insert(number.into());
    }

    /// Removes a class; if that class has the turn, the next class gets the turn.
    #[inline]
    pub(super) fn remove(&mut self, number: u16) {
        if self.current == Some(number) {
            self.advance();
        }
        self.members.remove(number.into());
    }

    /// Removes a class that may come back soon. If the class has the turn and is added again before
    /// anybody calls `current`, the class keeps the turn.
    #[inline]
    pub(super) fn remove_keeping_turn(&mut self, number: u16) {
        if self.current == Some(number) {
            (self.current, self.left) = (None, Some(number));
        }
        self.members.remove(number.into());
    }

    /// Passes the turn to the next class, unless the round is over.
    #[inline]
    pub(super) fn advance(&mut self) {
        if let Some(current) = self.current {
            self.current = self.first_from(usize::from(current) + 1);
        }
    }

    /// Returns the class that has the turn, or `None` if the round is over.
    #[inline]
    pub(super) fn current(&mut self) -> Option<u16> {
        let left = std::mem::take(&mut self.left);
        if let Some(left) = left.filter(|_| self.current.is_none()) {
            self.current = self.first_from(left.into());
        }
        self.current
    }

    /// Begins a round: gives the turn to the first class.
    #[inline]
    pub(super) fn rewind(&mut self) {
        self.current = self.first_from(0);
    }

    #[inline]
    fn first_from(&self, number: usize) -> Option<u16> {
        #[expect(clippy::cast_possible_truncation, reason = "numbers come from 16 bits")]
        self.members.first_from(number).map(|number| number as u16)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_an_ordered_set(
            steps in prop::collection::vec((any::<bool>(), 0_usize..9_000), 1..200),
        ) {
            let (mut numbers, mut model) = (Numbers::default(), BTreeSet::new());
            for (comes, number) in steps {
                let number = if number < 8_000 { number % 300 } else { number * 7 };
                if comes {
                    numbers.insert(number);
                    model.insert(number);
                } else {
                    numbers.remove(number);
                    model.remove(&number);
                }
                prop_assert_eq!(numbers.is_empty(), model.is_empty());
                for from in [0, number, number + 1, number / 2] {
                    prop_assert_eq!(numbers.first_from(from), model.range(from..).next().copied());
                }
            }
        }
    }

    #[test]
    fn the_turn_goes_round() {
        let mut turns = ActiveClasses::default();
        [30, 10, 20].into_iter().for_each(|number| turns.insert(number));
        assert_eq!(turns.current(), None, "no round has begun");
        turns.rewind();
        assert_eq!(turns.current(), Some(10));
        turns.advance();
        turns.remove(20);
        assert_eq!(turns.current(), Some(30), "the next one gets it");
        turns.remove_keeping_turn(30);
        turns.insert(25);
        assert_eq!(turns.current(), None, "nobody from 30 on");
        turns.rewind();
        turns.advance();
        turns.remove_keeping_turn(25);
        turns.insert(25);
        assert_eq!(turns.current(), Some(25), "it came back in time");
        turns.advance();
        assert_eq!(turns.current(), None);
    }
}
