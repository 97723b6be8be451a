//! A heap that finds the queue of a `cake` with the most bytes, when memory runs out.
//!
//! Source: behaviour of Linux 7.2: the heap is built when memory first runs out, and kept up to
//! date until 65,535 packets have left since memory last ran out. As in Linux, a queue that has
//! become shorter mostly moves down by only one level of the heap, so the first queue of the heap
//! may not be the longest.

/// The greatest number of tins. In tins that are not in use, all queues are empty.
pub(super) const TINS: usize = 8;
pub(super) const QUEUES: usize = 1024;
const SLOTS: usize = TINS * QUEUES;
const PATIENCE: u32 = 65_535;

/// A slot: the number of a queue among the queues of all tins.
type Slot = u16;

#[derive(Debug)]
pub(super) struct Heap {
    slots: Box<[Slot]>,
    /// The position in the heap of each slot (queue).
    places: Box<[u16]>,
    /// Number of packets that may still leave before the heap is no longer kept up to date. 0: the
    /// heap is out of date.
    left: u32,
}

/// Returns the slot of the queue `queue` of the tin `tin`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "less than `SLOTS`")]
fn slot(tin: usize, queue: usize) -> Slot {
    (queue * TINS + tin) as Slot
}

/// Returns the tin and the number of the queue that has this slot.
#[inline]
pub(super) fn tin_and_queue(slot: Slot) -> (usize, usize) {
    (usize::from(slot) % TINS, usize::from(slot) / TINS)
}

impl Heap {
    #[expect(clippy::cast_possible_truncation, reason = "less than `SLOTS`")]
    pub(super) fn new() -> Self {
        let all: Box<[u16]> = (0..SLOTS).map(|slot| slot as u16).collect();
        Self { slots: all.clone(), places: all, left: 0 }
    }

    #[inline]
    pub(super) fn is_known(&self) -> bool {
        self.left > 0
    }

    /// Notes that a packet has left the qdisc.
    #[inline]
    pub(super) fn sent(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Marks the heap as out of date, so that it is rebuilt when it is needed next.
    pub(super) fn forget(&mut self) {
        self.left = 0;
    }

    /// Returns the tin and the number of the longest queue, as far as the heap knows. Rebuilds the
    /// heap if it is out of date.
    pub(super) fn first(&mut self, bytes: impl Fn(Slot) -> u64) -> (usize, usize) {
        if self.left == 0 {
            for place in (0..SLOTS / 2).rev() {
                self.sink(place, &bytes);
            }
        }
        self.left = PATIENCE;
        tin_and_queue(self.slots[0])
    }

    /// Moves the first queue of the heap down, after a packet of that queue was dropped.
    pub(super) fn sink_first(&mut self, bytes: impl Fn(Slot) -> u64) {
        self.sink(0, &bytes);
    }

    /// Moves a queue down in the heap after one of its packets has left.
    #[cold]
    pub(super) fn shrunk(&mut self, tin: usize, queue: usize, bytes: impl Fn(Slot) -> u64) {
        self.sink(self.places[usize::from(slot(tin, queue))].into(), &bytes);
    }

    /// Moves a queue up in the heap after a packet was added to it.
    #[cold]
    pub(super) fn grown(&mut self, tin: usize, queue: usize, bytes: impl Fn(Slot) -> u64) {
        let mut place = usize::from(self.places[usize::from(slot(tin, queue))]);
        while place > 0 {
            let above = (place - 1) / 2;
            if bytes(self.slots[place]) <= bytes(self.slots[above]) {
                break;
            }
            self.swap(place, above);
            place = above;
        }
    }

    /// Moves a queue down in the heap, below longer queues. As in Linux, only the first step
    /// compares the queues on the next level with the queue that moves down; each further step
    /// compares them with the queue that has just moved up. So a queue mostly moves down by one
    /// level only.
    fn sink(&mut self, from: usize, bytes: &impl Fn(Slot) -> u64) {
        let mut place = from;
        let mut most = bytes(self.slots[place]);
        loop {
            let mut longest = place;
            for below in [2 * place + 1, 2 * place + 2] {
                let held = self.slots.get(below).map_or(0, |slot| bytes(*slot));
                if held > most {
                    (longest, most) = (below, held);
                }
            }
            if longest == place {
                break;
            }
            self.swap(place, longest);
            place = longest;
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "less than `SLOTS`")]
    fn swap(&mut self, a: usize, b: usize) {
        self.slots.swap(a, b);
        self.places[usize::from(self.slots[a])] = a as u16;
        self.places[usize::from(self.slots[b])] = b as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fattest_comes_first_and_sinks_by_one_level() {
        let mut sizes = vec![0_u64; SLOTS];
        for (queue, bytes) in [(7, 500), (8, 400), (900, 900), (1, 300), (2, 100)] {
            sizes[usize::from(slot(0, queue))] = bytes;
        }
        let mut heap = Heap::new();
        assert_eq!(heap.first(|slot| sizes[usize::from(slot)]), (0, 900));
        sizes[usize::from(slot(0, 900))] = 0;
        heap.sink_first(|slot| sizes[usize::from(slot)]);
        // Queue 7 is longer than queue 8, but an empty queue stands above queue 7 in the heap: when
        // queue 900 rose to the top, the empty queue that it replaced moved down by one level only.
        assert_eq!(heap.first(|slot| sizes[usize::from(slot)]), (0, 8));
        sizes[usize::from(slot(3, 5))] = 1000;
        heap.grown(3, 5, |slot| sizes[usize::from(slot)]);
        assert_eq!(heap.first(|slot| sizes[usize::from(slot)]), (3, 5));
    }

    /// While queues grow and shrink at random, the heap stays consistent: `places` says for each
    /// slot where `slots` holds it, no queue that has just grown is below a shorter queue, and a
    /// rebuilt heap begins with the longest queue.
    #[test]
    fn places_and_slots_agree() {
        let (mut sizes, mut rng) = (vec![0_u64; SLOTS], crate::base::rng::Rng::new(3));
        let mut heap = Heap::new();
        let mut below = |most: usize| rng.next_u32() as usize % most;
        for step in 0..3_000 {
            // Use few queues, whose numbers are far from each other, so that these queues often are
            // above or below each other in the heap.
            let (tin, queue) = (below(2) * 5, below(40) * 25);
            let at = usize::from(slot(tin, queue));
            let grows = below(3) > 0;
            let bytes = below(1_500) as u64;
            if grows {
                sizes[at] += bytes;
                heap.grown(tin, queue, |slot| sizes[usize::from(slot)]);
            } else {
                sizes[at] = sizes[at].saturating_sub(bytes);
                heap.shrunk(tin, queue, |slot| sizes[usize::from(slot)]);
            }
            let place = usize::from(heap.places[at]);
            assert_eq!(usize::from(heap.slots[place]), at, "step {step}");
            let held = |place: usize| sizes[usize::from(heap.slots[place])];
            if grows && place > 0 {
                assert!(held(place) <= held((place - 1) / 2), "step {step}");
            }
            if step % 100 == 0 {
                let all = |(slot, place): (usize, &u16)| {
                    usize::from(heap.slots[usize::from(*place)]) == slot
                };
                assert!(heap.places.iter().enumerate().all(all), "step {step}");
                heap.forget();
                let (tin, queue) = heap.first(|slot| sizes[usize::from(slot)]);
                let first = sizes[usize::from(slot(tin, queue))];
                assert_eq!(Some(&first), sizes.iter().max(), "step {step}");
            }
        }
    }

    #[test]
    fn it_is_forgotten_when_enough_has_left() {
        let mut heap = Heap::new();
        assert!(!heap.is_known());
        heap.first(|_| 0);
        (0..PATIENCE - 1).for_each(|_| heap.sent());
        assert!(heap.is_known());
        heap.sent();
        assert!(!heap.is_known());
    }
}
