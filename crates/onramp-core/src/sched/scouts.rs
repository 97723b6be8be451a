//! Prefetches the packets that the queues of several flows will release next.

use onramp_queue::{PacketList, Scout};

/// The largest number of queues whose packets are prefetched at the same time.
pub(crate) const SCOUTS: usize = 8;

/// Scouts through the queues of the flows that are served next, in the order of their turns.
pub(crate) struct Scouts<'a> {
    /// Each with the number of packets that it has not prefetched yet.
    scouts: [Option<(Scout<'a>, u32)>; SCOUTS],
    len: usize,
    /// How many more packets may leave.
    left: u32,
}

impl<'a> Scouts<'a> {
    /// Makes scouts for a dequeue of up to `most` packets.
    pub(crate) fn new(most: u32) -> Self {
        Self { scouts: [const { None }; SCOUTS], len: 0, left: most }
    }

    /// Adds the queue of the next flow, which may send `credit` bytes in its turn. Returns false if
    /// the dequeue will not come to the queue of another flow, or if there are many scouts.
    pub(crate) fn add(&mut self, queue: &'a PacketList, credit: u64) -> bool {
        let packets = u64::from(queue.len());
        // A flow sends as long as it has credit, so its last packet may exceed it.
        let turn = (credit.saturating_mul(packets)).div_ceil(queue.bytes().max(1));
        let count = self.left.min(queue.len()).min(u32::try_from(turn).unwrap_or(u32::MAX));
        if count > 0 {
            self.scouts[self.len] = Some((queue.scout(), count - 1));
            (self.len, self.left) = (self.len + 1, self.left - count);
        }
        self.left > 0 && self.len < SCOUTS
    }

    /// Prefetches the packets, one of each queue in turn.
    pub(crate) fn run(mut self) {
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for (scout, left) in self.scouts.iter_mut().flatten() {
                if *left > 0 {
                    *left -= 1;
                    scout.advance();
                    goes_on = true;
                }
            }
        }
    }
}
