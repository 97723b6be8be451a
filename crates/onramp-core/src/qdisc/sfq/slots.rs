//! The queues of `sfq`: a slot for each flow that has packets. The longest slot is found in
//! constant time.
//!
//! Slots with the same number of packets form a list; free slots form the list of length zero. A
//! slot whose length changes moves to the head of the list of its new length. Slots with packets
//! are also in a ring, in the order in which they are served.

use std::collections::VecDeque;

use onramp_queue::{Meta, Packet, prefetch};

use crate::sched::turns::{MANY, Turns};

/// The value that means "no slot" where the number of a slot is expected.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// The packets of the slot, in a ring buffer because packets leave at both ends.
    pub(super) queue: VecDeque<Packet>,
    pub(super) bytes: u64,
    /// Number of bytes that the slot may still send in this round.
    pub(super) credit: i32,
    /// The bucket (the hash value of a flow) to which the slot belongs.
    pub(super) bucket: u32,
}

const _: () = assert!(size_of::<Slot>() == 64, "a slot is one cache line");

/// The slots before and after a slot in the list of slots of the same length. These numbers are
/// stored apart from the slots, because a change of the list would otherwise touch the memory of
/// two more slots.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    before: u32,
    after: u32,
}

#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[Slot]>,
    neighbours: Box<[Neighbours]>,
    /// The number of the slot of each bucket, or [`NONE`].
    buckets: Box<[u32]>,
    /// For each length, the first slot in the list of slots of that length, or [`NONE`].
    by_len: Box<[u32]>,
    /// The greatest number of packets in any slot.
    longest: usize,
    /// Slots with packets, in the order in which they are served.
    ring: Turns,
}

impl Slots {
    pub(super) fn new(flows: u32, buckets: u32, depth: u32) -> Self {
        let fresh = || Slot { queue: VecDeque::new(), bytes: 0, credit: 0, bucket: 0 };
        let mut slots = Self {
            slots: (0..flows).map(|_| fresh()).collect(),
            neighbours: vec![Neighbours { before: NONE, after: NONE }; flows as usize].into(),
            buckets: vec![NONE; buckets as usize].into(),
            by_len: vec![NONE; depth as usize + 1].into(),
            longest: 0,
            ring: Turns::default(),
        };
        (0..flows).for_each(|slot| slots.file(slot));
        slots
    }

    #[inline]
    pub(super) fn get(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// Calls `each` with every slot that has packets, in the order of the slots' buckets.
    pub(super) fn used(&self, mut each: impl FnMut(&Slot)) {
        let slots = self.buckets.iter().filter_map(|slot| self.slots.get(*slot as usize));
        slots.filter(|slot| !slot.queue.is_empty()).for_each(&mut each);
    }

    /// Returns the number of slots, used or not.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(NONE)
    }

    /// Returns the slot of a bucket, or [`NONE`] if the bucket has none.
    #[inline]
    pub(super) fn of_bucket(&self, bucket: usize) -> u32 {
        self.buckets[bucket]
    }

    /// Returns the number of packets in the slot of a bucket.
    pub(super) fn held(&self, bucket: usize) -> usize {
        self.slots.get(self.buckets[bucket] as usize).map_or(0, |slot| slot.queue.len())
    }

    /// Gives a free slot to a bucket. Returns that slot, or [`NONE`] if no slot is free.
    #[inline]
    pub(super) fn take(&mut self, bucket: usize) -> u32 {
        let slot = self.by_len[0];
        if slot != NONE {
            self.buckets[bucket] = slot;
            #[expect(clippy::cast_possible_truncation, reason = "there are at most 65,536")]
            let bucket = bucket as u32;
            self.get(slot).bucket = bucket;
        }
        slot
    }

    /// Appends a packet to a slot. A slot that was empty goes to the end of the order of service,
    /// and may send `credit` bytes in its first round.
    #[inline]
    pub(super) fn push(&mut self, index: u32, pkt: Packet, credit: i32) {
        self.unfile(index);
        let slot = self.get(index);
        slot.bytes += u64::from(pkt.len);
        slot.queue.push_back(pkt);
        let len = slot.queue.len();
        if len == 1 {
            slot.credit = credit;
            self.ring.push_back(index);
        }
        self.longest = self.longest.max(len);
        self.file(index);
    }

    /// Removes the newest packet of a slot if `newest` is true, else the oldest packet. A slot that
    /// has lost its last packet is free, but stays in the ring and in its bucket until
    /// [`leave`](Self::leave).
    #[inline]
    pub(super) fn pop(&mut self, index: u32, newest: bool) -> Option<Packet> {
        let was = self.get(index).queue.len();
        self.unfile(index);
        let slot = self.get(index);
        let pkt = if newest { slot.queue.pop_back() } else { slot.queue.pop_front() };
        slot.bytes -= pkt.as_ref().map_or(0, |pkt| u64::from(pkt.len));
        if self.by_len[was] == NONE && self.longest == was {
            self.longest = was.saturating_sub(1);
        }
        self.file(index);
        pkt
    }

    /// Returns the slot to serve next, or [`NONE`] if no slot has packets.
    #[inline]
    pub(super) fn first(&self) -> u32 {
        self.ring.first().unwrap_or(NONE)
    }

    /// Moves the first slot of the ring to the end.
    #[inline]
    pub(super) fn turn(&mut self) {
        let first = self.first();
        self.ring.pop_front();
        self.ring.push_back(first);
    }

    /// Removes the first slot of the ring, which has no packets, from the ring and from its bucket.
    #[inline]
    pub(super) fn leave(&mut self) {
        let bucket = self.get(self.first()).bucket;
        self.buckets[bucket as usize] = NONE;
        self.ring.pop_front();
    }

    /// Returns the slot with the most packets; of several, the slot that reached this length last.
    /// If no slot has more than one packet, returns the slot that is served next.
    #[inline]
    pub(super) fn longest(&self) -> u32 {
        if self.longest > 1 { self.by_len[self.longest] } else { self.first() }
    }

    /// Removes all packets of a slot and passes them to `into`; the slot no longer belongs to a
    /// bucket.
    pub(super) fn clear(&mut self, index: u32, mut into: impl FnMut(Packet)) {
        while !self.get(index).queue.is_empty() {
            self.pop(index, false).into_iter().for_each(&mut into);
        }
        let bucket = self.get(index).bucket as usize;
        if self.buckets[bucket] == index {
            self.buckets[bucket] = NONE;
        }
    }

    /// Removes all slots from the ring (the order of service).
    pub(super) fn disband(&mut self) {
        self.ring.clear();
    }

    /// Prefetches the slots of these buckets and the ends of those slots' queues, because packets
    /// for these buckets are about to come.
    #[inline]
    pub(super) fn prefetch_flows(&self, buckets: impl Iterator<Item = usize> + Clone) {
        if self.slots.len() <= MANY {
            return;
        }
        let slots = || buckets.clone().filter_map(|at| self.slots.get(self.buckets[at] as usize));
        buckets.clone().for_each(|at| prefetch(&self.buckets[at]));
        slots().for_each(prefetch);
        slots().filter_map(|slot| slot.queue.back()).for_each(prefetch);
    }

    /// Prefetches the slots and packets that are served after the present ones.
    #[inline]
    pub(super) fn look_ahead(&self) {
        if let Some([far, nearer, near]) = self.ring.look_ahead() {
            prefetch(&self.slots[far as usize]);
            self.slots[nearer as usize].queue.front().into_iter().for_each(prefetch);
            let front = self.slots[near as usize].queue.front();
            front.into_iter().for_each(|pkt| prefetch::<Meta>(pkt));
        }
    }

    /// Puts a slot at the head of the list of slots that have the same length.
    #[inline]
    fn file(&mut self, index: u32) {
        let len = self.get(index).queue.len();
        let after = std::mem::replace(&mut self.by_len[len], index);
        self.neighbours[index as usize] = Neighbours { before: NONE, after };
        if after != NONE {
            self.neighbours[after as usize].before = index;
        }
    }

    /// Removes a slot from the list of slots that have the same length.
    #[inline]
    fn unfile(&mut self, index: u32) {
        let len = self.get(index).queue.len();
        let Neighbours { before, after } = self.neighbours[index as usize];
        if before == NONE {
            self.by_len[len] = after;
        } else {
            self.neighbours[before as usize].after = after;
        }
        if after != NONE {
            self.neighbours[after as usize].before = before;
        }
    }
}
