//! Throttled flows, which wait for their time: the flow with the earliest time is first; of flows
//! with equal times, the flow that came first.
//!
//! The flows are in a heap, with a calendar in front of it. In a heap of a million flows, each
//! level costs an access to a distant cache line. So the heap holds only the flows up to the
//! present slot (a span of time) of the calendar. A later flow lies unordered in the calendar slot
//! of its time; the flows of a slot move to the heap when the heap is empty. A bitmap shows which
//! slots are not empty, so that one processor instruction finds the next such slot among 64. Flows
//! whose time lies beyond the end of the calendar wait in another heap; the pauses that `fq` itself
//! plans are shorter.
//!
//! When a flow is to go on earlier than planned, it gets a new entry, and its old entry stays
//! behind. Entries are numbered, and the field `link` of a flow has the number of its newest entry.
//! An entry is valid if its flow still waits and the entry is the flow's newest; other entries are
//! stale. Stale entries are removed when they reach the top of a heap, and all at once when they
//! outnumber the valid ones.
//!
//! Source: Brown, "Calendar Queues", 1988; Saeed et al., "Eiffel: Efficient and Flexible Software
//! Packet Scheduling", 2019 (find first set).

mod calendar;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use self::calendar::{Calendar, slot_of};
use super::flow::{Flows, State};

/// The entry of a waiting flow: its time in the upper 64 bits, then its place number (the order in
/// which entries were made), then the number of the flow. All three are in one integer because
/// comparing integers needs no branches, which the processor could not predict in a heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(u128);

impl Entry {
    #[inline]
    fn new(time_ns: u64, place: u32, flow: u32) -> Self {
        Self(u128::from(time_ns) << 64 | u128::from(place) << 32 | u128::from(flow))
    }

    #[inline]
    fn time_ns(self) -> u64 {
        (self.0 >> 64) as u64
    }

    #[inline]
    fn place(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the upper half of the lower")]
        let place = (self.0 >> 32) as u32;
        place
    }

    #[inline]
    fn flow(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest quarter")]
        let flow = self.0 as u32;
        flow
    }

    /// Whether this entry is valid: its flow still waits, and this is the flow's newest entry.
    fn counts(self, flows: &Flows) -> bool {
        let flow = flows.get(self.flow());
        flow.state == State::Throttled && flow.link == self.place()
    }
}

/// All waiting flows. The entry of each flow takes 16 bytes. The calendar stores entries in chunks
/// of seven, which may have unused room.
#[derive(Debug, Default)]
pub(super) struct Throttled {
    /// A heap of the entries whose time lies in the present slot of the calendar, or before it. The
    /// first entry is always valid (its flow still waits for it). If this heap is empty, the
    /// calendar is empty too.
    heap: BinaryHeap<Reverse<Entry>>,
    /// The calendar. `None` until the first flow needs it.
    calendar: Option<Box<Calendar>>,
    /// A heap of the entries whose time lies beyond the end of the calendar. The first entry is
    /// always valid (its flow still waits for it).
    far: BinaryHeap<Reverse<Entry>>,
    /// The number of the present slot of the calendar.
    slot: u64,
    /// Number of all entries, and how many of them are stale (their flow no longer waits for them).
    entries: usize,
    stale: usize,
    /// The place number that the next entry gets.
    place: u32,
}

/// Returns the first entry of a heap; if the heap is empty, an entry that is later than all others.
#[inline]
fn top(heap: &BinaryHeap<Reverse<Entry>>) -> Entry {
    heap.peek().map_or(Entry(u128::MAX), |Reverse(entry)| *entry)
}

impl Throttled {
    /// Returns the number of flows that wait.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.entries - self.stale
    }

    /// Returns when the first waiting flow may go on, in nanoseconds; `u64::MAX` if no flow waits.
    #[inline]
    pub(super) fn first_ns(&self) -> u64 {
        top(&self.heap).min(top(&self.far)).time_ns()
    }

    /// Makes a flow wait until the time in its field `time_next_ns`.
    #[inline]
    pub(super) fn push(&mut self, flows: &mut Flows, index: u32) {
        if self.place == u32::MAX {
            self.renumber(flows, index);
        }
        let flow = flows.get_mut(index);
        flow.state = State::Throttled;
        flow.link = self.place;
        self.put(Entry::new(flow.time_next_ns, self.place, index));
        self.place += 1;
    }

    #[inline]
    fn put(&mut self, entry: Entry) {
        self.entries += 1;
        let slot = slot_of(entry.time_ns());
        if self.heap.is_empty() {
            // If the heap is empty, the calendar is too, so any slot may become the present slot.
            self.slot = slot;
        }
        if slot <= self.slot {
            self.heap.push(Reverse(entry));
        } else if slot - self.slot < Calendar::SLOTS {
            self.calendar.get_or_insert_with(Calendar::new).push(slot, entry);
        } else {
            self.far.push(Reverse(entry));
        }
    }

    /// Makes a flow that already waits do so until the time in its field `time_next_ns`, which has
    /// changed.
    #[cold]
    pub(super) fn push_again(&mut self, flows: &mut Flows, index: u32) {
        self.stale += 1;
        self.push(flows, index);
        self.sweep(flows);
    }

    /// Notes that a flow no longer waits, so that its entry is stale.
    #[cold]
    pub(super) fn forget_one(&mut self, flows: &Flows) {
        self.stale += 1;
        self.sweep(flows);
    }

    /// Removes and returns the first waiting flow if its time has come; otherwise returns `None`.
    #[inline]
    pub(super) fn pop_due(&mut self, flows: &Flows, now_ns: u64) -> Option<u32> {
        if self.first_ns() > now_ns {
            return None;
        }
        let is_near = top(&self.heap) <= top(&self.far);
        let heap = if is_near { &mut self.heap } else { &mut self.far };
        let Reverse(entry) = heap.pop()?;
        self.entries -= 1;
        self.refill();
        if self.stale > 0 {
            self.sweep(flows);
        }
        if self.entries == 0 {
            self.place = 0;
        }
        Some(entry.flow())
    }

    /// If the heap is empty, moves the entries of the calendar's next slot that is not empty to the
    /// heap.
    #[inline]
    fn refill(&mut self) {
        if self.heap.is_empty()
            && let Some(calendar) = &mut self.calendar
            && let Some(slot) = calendar.first_slot(self.slot)
        {
            self.slot = slot;
            calendar.take(slot, |entry| self.heap.push(Reverse(entry)));
        }
    }

    /// Removes stale entries (whose flow no longer waits for them) from the tops of `heap` and
    /// `far`. If the stale entries outnumber the valid ones, removes all of them.
    fn sweep(&mut self, flows: &Flows) {
        if self.stale > self.len() {
            let place = self.place;
            let held = self.drain();
            self.place = place;
            held.filter(|entry| entry.counts(flows)).for_each(|entry| self.put(entry));
        }
        while self.heap.peek().is_some_and(|Reverse(entry)| !entry.counts(flows)) {
            self.heap.pop();
            self.forget();
            self.refill();
        }
        while self.far.peek().is_some_and(|Reverse(entry)| !entry.counts(flows)) {
            self.far.pop();
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.entries -= 1;
        self.stale -= 1;
    }

    /// Removes and returns all entries, in no particular order.
    fn drain(&mut self) -> impl Iterator<Item = Entry> + use<> {
        let Self { heap, calendar, far, .. } = std::mem::take(self);
        let mut held: Vec<Entry> =
            heap.into_iter().chain(far).map(|Reverse(entry)| entry).collect();
        calendar.into_iter().for_each(|mut calendar| calendar.drain(|entry| held.push(entry)));
        held.into_iter()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives all entries new place numbers from zero on, which is needed once in 2^32 entries.
    /// Leaves out the flow `moving`, because the caller adds that flow afterwards.
    #[cold]
    fn renumber(&mut self, flows: &mut Flows, moving: u32) {
        let mut held: Vec<Entry> = self.drain().collect();
        held.retain(|entry| entry.flow() != moving && entry.counts(flows));
        held.sort_unstable();
        held.into_iter().for_each(|entry| self.push(flows, entry.flow()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(times: &[u64]) -> (Flows, Throttled, Vec<u32>) {
        let (mut flows, mut throttled, mut indices) = (Flows::new(), Throttled::default(), vec![]);
        for (key, time) in times.iter().enumerate() {
            let index = flows.find_or_insert(key as u64, 0, 0, usize::MAX).index;
            flows.get_mut(index).time_next_ns = *time;
            throttled.push(&mut flows, index);
            indices.push(index);
        }
        (flows, throttled, indices)
    }

    fn pop_all(flows: &mut Flows, throttled: &mut Throttled) -> Vec<u32> {
        std::iter::from_fn(|| {
            let index = throttled.pop_due(flows, u64::MAX - 1)?;
            flows.get_mut(index).state = State::Listed;
            Some(index)
        })
        .collect()
    }

    #[test]
    fn places_survive_their_renumbering() {
        let (mut flows, mut throttled, i) = waiting(&[5, 5, 9]);
        flows.get_mut(i[2]).time_next_ns = 5;
        throttled.push_again(&mut flows, i[2]);
        throttled.place = u32::MAX;
        let last = flows.find_or_insert(3, 0, 0, usize::MAX).index;
        flows.get_mut(last).time_next_ns = 5;
        throttled.push(&mut flows, last);
        assert_eq!((throttled.place, throttled.len()), (4, 4), "the stale entry is gone");
        assert_eq!(pop_all(&mut flows, &mut throttled), [i[0], i[1], i[2], last]);
    }

    #[test]
    fn those_that_do_not_wait_any_more_are_forgotten() {
        let (mut flows, mut throttled, i) = waiting(&[5, 6, 7, 8, 9]);
        for index in [i[0], i[3]] {
            flows.get_mut(index).state = State::Listed;
            throttled.forget_one(&flows);
        }
        assert_eq!((throttled.len(), throttled.first_ns()), (3, 6));
        assert_eq!(pop_all(&mut flows, &mut throttled), [i[1], i[2], i[4]]);
        assert_eq!((throttled.len(), throttled.first_ns()), (0, u64::MAX));
    }

    #[test]
    fn stale_entries_are_at_most_half() {
        let (mut flows, mut throttled, i) = waiting(&[1 << 40, 1 << 41, 1 << 42]);
        for step in 1..10_000 {
            flows.get_mut(i[2]).time_next_ns = (1 << 41) - step;
            throttled.push_again(&mut flows, i[2]);
            assert!(throttled.entries <= 2 * throttled.len());
            assert_eq!(throttled.len(), 3);
        }
        assert_eq!(pop_all(&mut flows, &mut throttled), [i[0], i[2], i[1]]);
    }

    /// The waiting flows leave in the same order as from a sorted list, whether their times lie in
    /// the present slot, in later slots or beyond the calendar.
    #[test]
    fn the_earliest_is_first_near_and_far() {
        let mut rng = crate::base::rng::Rng::new(1);
        let mut below = |most: u64| rng.next_u64() % most;
        for spread_bits in [3, 17, 20, 29, 31, 40] {
            let (mut flows, mut throttled, _) = waiting(&[]);
            let mut model: Vec<(u64, usize, u32)> = Vec::new();
            let mut now_ns = 0;
            for step in 0..3_000 {
                if below(5) < 3 {
                    let time_ns = now_ns + below(1 << spread_bits);
                    let index = flows.find_or_insert(step as u64, 0, 0, usize::MAX).index;
                    flows.get_mut(index).time_next_ns = time_ns;
                    throttled.push(&mut flows, index);
                    model.push((time_ns, 2 * step, index));
                } else {
                    now_ns += below(1 << spread_bits) / 8;
                    model.sort_unstable();
                    let due = model.first().filter(|first| first.0 <= now_ns).map(|first| first.2);
                    model.drain(..usize::from(due.is_some()));
                    assert_eq!(throttled.pop_due(&flows, now_ns), due);
                }
                if let Some(place) = model.len().checked_sub(1).filter(|_| below(4) == 0) {
                    let (time_ns, _, index) = model.swap_remove(step % (place + 1));
                    if time_ns > now_ns && below(2) == 0 {
                        let earlier_ns = now_ns + below(time_ns - now_ns);
                        flows.get_mut(index).time_next_ns = earlier_ns;
                        throttled.push_again(&mut flows, index);
                        model.push((earlier_ns, 2 * step + 1, index));
                    } else {
                        flows.get_mut(index).state = State::Listed;
                        throttled.forget_one(&flows);
                    }
                }
                let first_ns = model.iter().map(|entry| entry.0).min();
                assert_eq!(throttled.first_ns(), first_ns.unwrap_or(u64::MAX));
                assert_eq!(throttled.len(), model.len());
            }
        }
    }
}
