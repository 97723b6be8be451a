//! Decides which aggregate of `qfq` (a group of classes) is served next, by virtual times, groups
//! of aggregates, and the four sets of such groups.
//!
//! Times are virtual: bytes sent divided by weight, as fixed-point numbers that wrap around. For
//! each aggregate there are two of them: its service should begin at `start` and end at `finish`.
//! Aggregates whose service takes about the same time share a group; within a group, they are
//! sorted by their rounded starts, in slots. A group is eligible when the start of its first slot
//! has come. An eligible group is ready when no ready group of longer services finishes before it;
//! otherwise it is blocked. The aggregate to serve next is the first one of the ready group with
//! the shortest services. Each step takes constant time, because sets are bits of a word.

use super::super::classes::{Links, List};
use super::aggregate::{Aggregate, GROUPS, SLOT_BITS};

/// The number one as a fixed-point number.
const ONE: u32 = 1 << 30;
/// The greatest number of classes in an aggregate.
const CLASSES_MAX: u32 = 8;
/// Number of slots in a group.
const SLOTS: usize = 32;

/// The states of a group. A group that is ineligible and blocked has the state `INELIGIBLE +
/// BLOCKED`. For each of the four states, there is a set of groups, whose number is the state.
const READY: usize = 0;
const INELIGIBLE: usize = 1;
const BLOCKED: usize = 2;

#[derive(Clone, Copy, Debug, Default)]
struct Group {
    start: u64,
    finish: u64,
    slots: [List; SLOTS],
    /// The place of the first slot in `slots`; and a bit for each slot from there on, which is set
    /// if the slot is not empty.
    front: usize,
    full: u32,
}

#[derive(Debug)]
pub(super) struct Schedule {
    aggregates: Vec<Aggregate>,
    /// Numbers of aggregates that have no classes; these numbers can be used again.
    unused: Vec<usize>,
    /// Aggregates that have room for another class; the last one in this list is tried first.
    roomy: Vec<usize>,
    /// The links of the lists of aggregates in a slot.
    links: Links,
    /// The links of the lists of classes in an aggregate.
    turns: Links,
    served: Option<usize>,
    now: u64,
    /// The virtual time at which groups were last made eligible (their start had come).
    before: u64,
    weights: u32,
    inverse_weights: u32,
    /// The four sets of groups, one for each state. A set has a bit for each group.
    sets: [u32; 4],
    groups: Box<[Group; GROUPS]>,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            aggregates: Vec::new(),
            unused: Vec::new(),
            roomy: Vec::new(),
            links: Links::default(),
            turns: Links::default(),
            served: None,
            now: 0,
            before: 0,
            weights: 0,
            inverse_weights: 0,
            sets: [0; 4],
            groups: Box::new([Group::default(); GROUPS]),
        }
    }
}

/// Whether the virtual time `a` comes after `b`, even if the numbers have wrapped around.
#[inline]
const fn after(a: u64, b: u64) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 63
}

/// Returns the length of a slot of group `index`, as a number of bits of virtual time: the slot is
/// 2 to this power long.
const fn slot_bits(index: usize) -> usize {
    SLOT_BITS as usize + index
}

const fn rounded(time: u64, index: usize) -> u64 {
    time & !((1 << slot_bits(index)) - 1)
}

/// Returns how many slots of group `index` lie between two virtual times that are rounded to slots.
fn slots_between(from: u64, to: u64, index: usize) -> usize {
    usize::try_from(to.wrapping_sub(from) >> slot_bits(index)).unwrap_or(usize::MAX)
}

/// Returns a set with all groups whose number is below `index`.
const fn below(index: usize) -> u32 {
    (1 << index) - 1
}

/// Returns the number of the first group in a set, or `None` if the set is empty.
#[inline]
const fn first_of(set: u32) -> Option<usize> {
    if set == 0 { None } else { Some(set.trailing_zeros() as usize) }
}

/// Functions that manage classes and aggregates.
impl Schedule {
    #[inline]
    pub(super) fn is_active(&self, class: usize) -> bool {
        self.turns.has(class)
    }

    #[inline]
    pub(super) fn packet_max(&self, aggregate: usize) -> u32 {
        self.aggregates[aggregate].packet_max
    }

    pub(super) fn weight(&self, aggregate: usize) -> u32 {
        self.aggregates[aggregate].weight
    }

    /// Returns the number of an aggregate that has this weight and largest packet and has room for
    /// another class.
    pub(super) fn aggregate(&mut self, weight: u32, packet_max: u32) -> usize {
        let fits = |number: &&usize| {
            let aggregate = &self.aggregates[**number];
            (aggregate.weight, aggregate.packet_max) == (weight, packet_max)
        };
        if let Some(number) = self.roomy.iter().rev().find(fits) {
            return *number;
        }
        let number = self.unused.pop().unwrap_or_else(|| {
            self.aggregates.push(Aggregate::default());
            self.aggregates.len() - 1
        });
        self.aggregates[number] = Aggregate { weight, packet_max, ..Aggregate::default() };
        self.links.grow(number);
        self.roomy.push(number);
        number
    }

    fn set_classes(&mut self, number: usize, classes: u32) {
        let aggregate = &mut self.aggregates[number];
        if classes == CLASSES_MAX {
            self.roomy.retain(|other| *other != number);
        } else if aggregate.classes == CLASSES_MAX {
            self.roomy.push(number);
        }
        aggregate.budget_max = classes * aggregate.packet_max;
        aggregate.inverse = ONE / (aggregate.weight * classes);
        if aggregate.classes == 0 {
            aggregate.group = aggregate.fitting_group();
        }
        self.weights =
            self.weights + aggregate.weight * classes - aggregate.weight * aggregate.classes;
        self.inverse_weights = ONE / self.weights;
        aggregate.classes = classes;
    }

    /// Adds a class to an aggregate. If `active` is true, the class has packets, and takes turns at
    /// once.
    pub(super) fn join(&mut self, number: usize, class: usize, active: bool) {
        self.turns.grow(class);
        self.set_classes(number, self.aggregates[number].classes + 1);
        if active {
            self.activate(number, class);
        }
    }

    /// Removes a class from its aggregate.
    pub(super) fn leave(&mut self, number: usize, class: usize) {
        if self.is_active(class) {
            self.deactivate(number, class);
        }
        let aggregate = &mut self.aggregates[number];
        if aggregate.classes > 1 {
            let classes = aggregate.classes - 1;
            return self.set_classes(number, classes);
        }
        aggregate.classes = 0;
        self.weights -= aggregate.weight;
        self.inverse_weights = ONE.checked_div(self.weights).unwrap_or(self.inverse_weights);
        self.roomy.retain(|other| *other != number);
        self.unused.push(number);
        if self.served == Some(number) {
            self.served = self.choose();
        }
    }

    /// Notes that a class of the aggregate `number` has packets to send.
    pub(super) fn activate(&mut self, number: usize, class: usize) {
        let aggregate = &mut self.aggregates[number];
        let first = aggregate.active.is_empty();
        aggregate.active.push_back(&mut self.turns, class);
        if !first || self.served == Some(number) {
            return;
        }
        aggregate.recharge();
        self.set_start(number);
        let aggregate = &mut self.aggregates[number];
        aggregate.plan();
        if self.served.is_some() {
            self.insert(number);
        } else {
            self.served = Some(number);
            (self.now, self.before) = (aggregate.start, aggregate.start);
        }
    }

    /// Notes that a class has no more packets to send. The aggregate of the class stays in service.
    pub(super) fn pause(&mut self, number: usize, class: usize) {
        self.aggregates[number].active.remove(&mut self.turns, class);
    }

    /// Notes that a class has lost its packets. If no other class of its aggregate has packets, the
    /// aggregate leaves service or stops waiting for service.
    pub(super) fn deactivate(&mut self, number: usize, class: usize) {
        self.pause(number, class);
        let aggregate = &mut self.aggregates[number];
        if !aggregate.active.is_empty() {
            return;
        }
        if self.served == Some(number) {
            aggregate.settle();
            self.served = self.choose();
        } else if self.links.has(number) {
            aggregate.finish = aggregate.start;
            self.remove(number);
        }
    }

    /// Ends the turn of a class: the next class of the aggregate gets the turn.
    pub(super) fn end_turn(&mut self, number: usize, class: usize) {
        self.aggregates[number].active.move_back(&mut self.turns, class);
    }

    /// Whether a class has the turn in its aggregate.
    pub(super) fn has_turn(&self, number: usize, class: usize) -> bool {
        self.aggregates[number].active.first() == Some(class)
    }
}

/// Functions that choose and charge the aggregate in service.
impl Schedule {
    /// Returns the number of the aggregate in service, and the class that has the turn in it.
    #[inline]
    pub(super) fn next(&self) -> Option<(usize, Option<usize>)> {
        self.served.map(|number| (number, self.aggregates[number].active.first()))
    }

    /// Whether at least `len` bytes of the aggregate's budget are left.
    #[inline]
    pub(super) fn allows(&self, number: usize, len: u32) -> bool {
        self.aggregates[number].left >= len
    }

    /// Charges the aggregate in service for `len` bytes that it has sent, and moves the virtual
    /// time forward.
    #[inline]
    pub(super) fn charge(&mut self, number: usize, len: u32) {
        let left = &mut self.aggregates[number].left;
        *left = left.saturating_sub(len);
        let service = u64::from(len) * u64::from(self.inverse_weights);
        self.now = self.now.wrapping_add(service);
    }

    /// Ends the service of the present aggregate, and chooses the next one. `held` says whether the
    /// qdisc holds any packets.
    pub(super) fn change(&mut self, held: bool) {
        let Some(number) = self.served else { return };
        let aggregate = &mut self.aggregates[number];
        aggregate.settle();
        aggregate.recharge();
        if !aggregate.active.is_empty() {
            aggregate.start = aggregate.finish;
            aggregate.plan();
            self.insert(number);
        } else if !held {
            self.served = None;
            return;
        }
        self.served = self.choose();
    }

    /// Sets the start of an aggregate that had nothing to send. The start is the aggregate's last
    /// finish; but if that finish has passed, or is too far in the future for the slots, the start
    /// is about the present virtual time.
    fn set_start(&mut self, number: usize) {
        let aggregate = &mut self.aggregates[number];
        let index = aggregate.group;
        let finish = rounded(aggregate.finish, index);
        let limit = rounded(self.now, index).wrapping_add(1 << slot_bits(index));
        if after(aggregate.finish, self.now) && !after(finish, limit) {
            aggregate.start = aggregate.finish;
            return;
        }
        // The aggregate must not finish before ready groups of longer services, because it would
        // then block those groups.
        let longer = first_of(self.sets[READY] & !below(index));
        aggregate.start = match longer.map(|longer| self.groups[longer].finish) {
            Some(theirs) if after(finish, theirs) && after(limit, theirs) => theirs,
            Some(theirs) if after(finish, theirs) => limit,
            _ => self.now,
        };
    }
}

/// Functions that manage groups and their sets.
impl Schedule {
    /// Puts an aggregate into the slot of its group in which its start lies.
    fn insert(&mut self, number: usize) {
        let (start, index) = {
            let aggregate = &self.aggregates[number];
            (rounded(aggregate.start, aggregate.group), aggregate.group)
        };
        let group = &mut self.groups[index];
        if group.full == 0 {
            if self.sets[READY] == 0 && after(start, self.now) && self.served.is_none() {
                self.now = start;
            }
            self.place(index, start);
        } else if after(group.start, self.aggregates[number].start) {
            // The aggregate starts before the group's first slot. Add slots in front of that slot,
            // but only as many as are free behind the last slot in use, because the slots form a
            // ring.
            let room = group.full.leading_zeros() as usize;
            let slots = slots_between(start, group.start, index).min(room);
            group.full <<= slots;
            group.front = (group.front + SLOTS - slots) % SLOTS;
            let start = group.start.wrapping_sub((slots as u64) << slot_bits(index));
            [INELIGIBLE, BLOCKED, INELIGIBLE | BLOCKED]
                .iter()
                .for_each(|set| self.sets[*set] &= !(1 << index));
            self.place(index, start);
        }
        let group = &mut self.groups[index];
        let aggregate = &mut self.aggregates[number];
        let mut slot = match after(group.start, start) {
            true => 0,
            false => slots_between(group.start, start, index),
        };
        if slot > SLOTS - 2 {
            let last = group.start.wrapping_add(((SLOTS - 2) as u64) << slot_bits(index));
            let beyond = start.wrapping_sub(last);
            aggregate.start = aggregate.start.wrapping_sub(beyond);
            aggregate.finish = aggregate.finish.wrapping_sub(beyond);
            slot = SLOTS - 2;
        }
        aggregate.slot = (group.front + slot) % SLOTS;
        group.slots[aggregate.slot].push_front(&mut self.links, number);
        group.full |= 1 << slot;
    }

    /// Sets the start of a group's first slot to `start`, and puts the group into the set of its
    /// state.
    fn place(&mut self, index: usize, start: u64) {
        let finish = start.wrapping_add(2 << slot_bits(index));
        let group = &mut self.groups[index];
        (group.start, group.finish) = (start, finish);
        let mut state = if after(start, self.now) { INELIGIBLE } else { READY };
        if let Some(longer) = first_of(self.sets[READY] & !below(index))
            && after(finish, self.groups[longer].finish)
        {
            state |= BLOCKED;
        }
        self.sets[state] |= 1 << index;
    }

    /// Moves those groups of `mask` that are in the set `from` to the set `to`.
    fn shift(&mut self, mask: u32, from: usize, to: usize) {
        let moved = self.sets[from] & mask;
        self.sets[from] &= !moved;
        self.sets[to] |= moved;
    }

    /// Returns the first aggregate of a group, or `None` if the group is empty. Skips empty slots
    /// at the front of the group.
    fn front(&mut self, index: usize) -> Option<usize> {
        let group = &mut self.groups[index];
        let empty = first_of(group.full)?;
        group.full >>= empty;
        group.front = (group.front + empty) % SLOTS;
        group.slots[group.front].first()
    }

    /// Removes an aggregate from its slot in the group `index`.
    fn unlink(&mut self, index: usize, number: usize) {
        let group = &mut self.groups[index];
        let slot = self.aggregates[number].slot;
        let list = &mut group.slots[slot];
        list.remove(&mut self.links, number);
        if list.is_empty() {
            group.full &= !(1 << ((slot + SLOTS - group.front) % SLOTS));
        }
    }

    /// Removes a waiting aggregate from its group.
    fn remove(&mut self, number: usize) {
        let index = self.aggregates[number].group;
        self.unlink(index, number);
        let Some(next) = self.front(index) else {
            self.sets.iter_mut().for_each(|set| *set &= !(1 << index));
            return;
        };
        let start = rounded(self.aggregates[next].start, index);
        if start != self.groups[index].start {
            self.sets.iter_mut().for_each(|set| *set &= !(1 << index));
            self.place(index, start);
        }
    }

    /// Chooses the aggregate to serve next, removes it from its slot and returns its number; `None`
    /// if no aggregate waits.
    fn choose(&mut self) -> Option<usize> {
        self.make_eligible();
        let index = first_of(self.sets[READY])?;
        let number = self.front(index)?;
        let (first, finish) = (self.groups[index].start, self.groups[index].finish);
        self.unlink(index, number);
        match self.front(index) {
            None => self.sets[READY] &= !(1 << index),
            Some(next) => {
                let start = rounded(self.aggregates[next].start, index);
                if start == first {
                    return Some(number);
                }
                self.sets[READY] &= !(1 << index);
                self.place(index, start);
            }
        }
        self.unblock(index, finish);
        Some(number)
    }

    /// Makes those groups eligible whose start has come. If no group is ready, the virtual time
    /// first jumps to the start of the first waiting group.
    fn make_eligible(&mut self) {
        let waiting = self.sets[INELIGIBLE] | self.sets[INELIGIBLE | BLOCKED];
        if let Some(first) = first_of(waiting) {
            let start = self.groups[first].start;
            if self.sets[READY] == 0 && after(start, self.now) {
                self.now = start;
            }
            // A new slot of a group has begun if, in the virtual time, the bit that stands for the
            // length of the group's slots or any higher bit has changed.
            let changed = (self.now ^ self.before) >> SLOT_BITS;
            let mask = match u64::BITS - changed.leading_zeros() {
                bits @ 0..=31 => below(bits as usize),
                _ => u32::MAX,
            };
            self.shift(mask, INELIGIBLE, READY);
            self.shift(mask, INELIGIBLE | BLOCKED, BLOCKED);
        }
        self.before = self.now;
        if self.sets[READY] == 0 {
            // No ready group is left that could block other groups, so the blocked groups become
            // ready.
            self.shift(u32::MAX, BLOCKED, READY);
        }
    }

    /// Unblocks the groups that the group `index` has blocked: that group, which would have
    /// finished at `finish`, is no longer ready.
    fn unblock(&mut self, index: usize, finish: u64) {
        let longer = first_of(self.sets[READY] & !below(index + 1));
        if longer.is_some_and(|longer| !after(self.groups[longer].finish, finish)) {
            return;
        }
        self.shift(below(index), BLOCKED, READY);
        self.shift(below(index), INELIGIBLE | BLOCKED, INELIGIBLE);
    }
}

#[cfg(test)]
mod checks;
