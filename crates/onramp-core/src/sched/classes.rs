//! A table of the classes that users add to a qdisc, found by their minor numbers; and linked lists
//! of numbers that keep classes in an order.
//!
//! Every operation on a table or a list takes constant time, except those that visit all classes.

use std::ops::{Index, IndexMut};

use onramp_queue::{DropReason, Packet, prefetch};

use crate::base::{Handle, Instant};
use crate::filter::{Decision, Filters};

/// The classes of a qdisc. Each has a place (an index), which stays the same as long as the class
/// exists.
#[derive(Debug)]
pub(crate) struct Table<T> {
    handle: Handle,
    /// For each minor number: the place of the class plus one, or 0 if there is no such class.
    places: Vec<u16>,
    classes: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Table<T> {
    /// Creates a table without classes, for the qdisc with the handle `handle`.
    pub(crate) const fn new(handle: Handle) -> Self {
        Self { handle, places: Vec::new(), classes: Vec::new(), free: Vec::new() }
    }

    /// Returns the place of class `minor`, or `None` if there is no such class.
    #[inline]
    pub(crate) fn place(&self, minor: u16) -> Option<usize> {
        usize::from(*self.places.get(usize::from(minor))?).checked_sub(1)
    }

    pub(crate) fn get_mut(&mut self, minor: u16) -> Option<&mut T> {
        self.place(minor).map(|place| &mut self[place])
    }

    pub(crate) fn get(&self, minor: u16) -> Option<&T> {
        self.place(minor).map(|place| &self[place])
    }

    /// Adds a class and returns its place. There must be no class `minor` yet.
    pub(crate) fn add(&mut self, minor: u16, class: T) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.classes.push(None);
            self.classes.len() - 1
        });
        self.classes[place] = Some(class);
        let row = usize::from(minor);
        self.places.resize(self.places.len().max(row + 1), 0);
        // `place + 1` fits into 16 bits, because a qdisc has at most 65,535 classes.
        self.places[row] = u16::try_from(place + 1).expect("class numbers have 16 bits");
        place
    }

    pub(crate) fn remove(&mut self, minor: u16) -> Option<T> {
        let place = self.place(minor)?;
        self.places[usize::from(minor)] = 0;
        self.free.push(place);
        self.classes[place].take()
    }

    /// Returns the places of all classes.
    pub(crate) fn used(&self) -> Vec<usize> {
        (0..self.classes.len()).filter(|place| self.classes[*place].is_some()).collect()
    }

    /// Returns all classes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.classes.iter_mut().flatten()
    }

    /// Asks the processor to prefetch the class at `place`, without reading the class.
    #[inline]
    pub(crate) fn prefetch(&self, place: usize) {
        prefetch(&self.classes[place]);
    }

    /// Returns the number of places, including those that no class uses.
    pub(crate) fn len(&self) -> usize {
        self.classes.len()
    }

    /// Returns the place of the class that a packet's priority names, or `None` if the priority
    /// names no class of this qdisc.
    #[inline]
    pub(crate) fn named(&self, priority: u32) -> Option<usize> {
        let named = Handle::from_priority(priority);
        if named.major == self.handle.major { self.place(named.minor) } else { None }
    }

    /// Returns the place of the class to which a packet belongs: the class that the packet's
    /// priority names, or else the class that the filters choose.
    ///
    /// # Errors
    ///
    /// Returns the drop reason if the packet belongs to no class and must be dropped.
    #[inline]
    pub(crate) fn classify(
        &self,
        filters: &mut Filters,
        pkt: &mut Packet,
        now: Instant,
    ) -> Result<usize, DropReason> {
        if let Some(place) = self.named(pkt.priority) {
            return Ok(place);
        }
        match filters.classify(pkt, now) {
            Decision::Class(class) if class.major == self.handle.major => {
                self.place(class.minor).ok_or(DropReason::Unclassified)
            }
            Decision::Class(_) | Decision::Unknown => Err(DropReason::Unclassified),
            Decision::Drop => Err(DropReason::Filter),
        }
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;
    #[inline]
    fn index(&self, place: usize) -> &T {
        self.classes[place].as_ref().expect("a place stands for a class")
    }
}

impl<T> IndexMut<usize> for Table<T> {
    #[inline]
    fn index_mut(&mut self, place: usize) -> &mut T {
        self.classes[place].as_mut().expect("a place stands for a class")
    }
}

/// Stands for "no number": at the end of a list, and in an empty list.
const NONE: u32 = u32::MAX;
/// The value of a number's `before` if the number is in no list.
const OUT: u32 = u32::MAX - 1;

/// For each number: the number before it and the number behind it in its list. A number is in at
/// most one list.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Link>);

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    behind: u32,
}

impl Links {
    /// Whether `number` is in one of the lists.
    #[inline]
    pub(crate) fn has(&self, number: usize) -> bool {
        self.0.get(number).is_some_and(|link| link.before != OUT)
    }

    /// Makes room for the numbers before and behind `number`, which is in no list yet.
    pub(crate) fn grow(&mut self, number: usize) {
        if self.0.len() <= number {
            self.0.resize(number + 1, Link { before: OUT, behind: NONE });
        }
    }
}

/// A linked list of numbers, whose links are stored in a [`Links`]. [`Links::grow`] must have made
/// room for each number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    first: u32,
    last: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

/// Converts a number to 32 bits. Nothing is lost, because numbers are indexes of a vector with
/// fewer than 2^32 - 2 elements.
#[expect(clippy::cast_possible_truncation, reason = "said above")]
#[inline]
const fn short(number: usize) -> u32 {
    number as u32
}

impl List {
    #[inline]
    pub(crate) fn first(self) -> Option<usize> {
        (self.first != NONE).then_some(self.first as usize)
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.first == NONE
    }

    #[inline]
    pub(crate) fn push_back(&mut self, links: &mut Links, number: usize) {
        let number = short(number);
        links.0[number as usize] = Link { before: self.last, behind: NONE };
        match self.last {
            NONE => self.first = number,
            last => links.0[last as usize].behind = number,
        }
        self.last = number;
    }

    #[inline]
    pub(crate) fn push_front(&mut self, links: &mut Links, number: usize) {
        let number = short(number);
        links.0[number as usize] = Link { before: NONE, behind: self.first };
        match self.first {
            NONE => self.last = number,
            first => links.0[first as usize].before = number,
        }
        self.first = number;
    }

    #[inline]
    pub(crate) fn remove(&mut self, links: &mut Links, number: usize) {
        let Link { before, behind } = links.0[number];
        match before {
            NONE => self.first = behind,
            before => links.0[before as usize].behind = behind,
        }
        match behind {
            NONE => self.last = before,
            behind => links.0[behind as usize].before = before,
        }
        links.0[number] = Link { before: OUT, behind: NONE };
    }

    /// Moves `number`, which must be in the list, to the end of the list.
    #[inline]
    pub(crate) fn move_back(&mut self, links: &mut Links, number: usize) {
        if self.last != short(number) {
            self.remove(links, number);
            self.push_back(links, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns all numbers of a list in their order.
    fn numbers(list: List, links: &Links) -> Vec<usize> {
        let next = |number: &usize| match links.0[*number].behind {
            NONE => None,
            behind => Some(behind as usize),
        };
        std::iter::successors(list.first(), next).collect()
    }

    proptest! {
        /// Random operations on a list give the same results as on a vector.
        #[test]
        fn lists_keep_their_order(steps in prop::collection::vec((0_u8..4, 0_usize..9), 0..200)) {
            let (mut links, mut list, mut model) = (Links::default(), List::default(), vec![]);
            links.grow(8);
            for (step, number) in steps {
                match (step, links.has(number)) {
                    (0, false) => {
                        list.push_back(&mut links, number);
                        model.push(number);
                    }
                    (1, false) => {
                        list.push_front(&mut links, number);
                        model.insert(0, number);
                    }
                    (2, true) => {
                        list.move_back(&mut links, number);
                        model.retain(|other| *other != number);
                        model.push(number);
                    }
                    (3, true) => {
                        list.remove(&mut links, number);
                        model.retain(|other| *other != number);
                    }
                    _ => {}
                }
                prop_assert_eq!(numbers(list, &links), model.clone());
                prop_assert_eq!(list.first(), model.first().copied());
                prop_assert_eq!(list.is_empty(), model.is_empty());
                prop_assert!((0..9).all(|number| links.has(number) == model.contains(&number)));
            }
        }

        /// Random operations on a table give the same results as on a map, and a class keeps its
        /// place as long as it exists.
        #[test]
        fn classes_are_found_by_their_numbers(
            steps in prop::collection::vec((any::<bool>(), 1_u16..20), 0..100),
        ) {
            let mut table = Table::new(Handle::new(1, 0));
            let mut model = std::collections::BTreeMap::new();
            for (add, minor) in steps {
                match (add, model.contains_key(&minor)) {
                    (true, false) => {
                        model.insert(minor, table.add(minor, minor));
                    }
                    (false, true) => {
                        model.remove(&minor);
                        prop_assert_eq!(table.remove(minor), Some(minor));
                    }
                    _ => {}
                }
                for minor in 0..30 {
                    prop_assert_eq!(table.place(minor), model.get(&minor).copied());
                }
                prop_assert_eq!(table.used().len(), model.len());
            }
        }
    }

    #[test]
    fn numbers_go_up_to_ffff() {
        let mut table = Table::new(Handle::new(1, 0));
        for minor in 1..=u16::MAX {
            table.add(minor, minor);
        }
        assert!((1..=u16::MAX).all(|minor| table.get(minor) == Some(&minor)));
        assert_eq!(table.get(0), None);
    }
}
