//! The floor: an array of slots for each sender, and nothing shared but the slots themselves.
//!
//! No queue can move a packet between two threads for less than the line it is written in.

use onramp_queue::{Counter, Packet};

use super::{Peer, RUN, Sink};
use crate::cell::Slot;

#[derive(Debug)]
pub(crate) struct Floor {
    arrays: Vec<Box<[Slot]>>,
}

impl Peer for Floor {
    /// The sender's array, and where it writes next.
    type End<'a> = (&'a [Slot], usize);
    /// Where it reads next, of each array.
    type Taker<'a> = Vec<usize>;

    fn new(senders: usize, credits: u32, _sink: Sink) -> Self {
        let array = |_| (0..credits).map(|_| Slot::default()).collect();
        Self { arrays: (0..senders).map(array).collect() }
    }

    fn end(&self, sender: usize) -> (&[Slot], usize) {
        (&self.arrays[sender], 0)
    }

    #[inline]
    fn push(
        &self,
        (slots, at): &mut Self::End<'_>,
        pkt: Packet,
        _count: &Counter,
    ) -> Result<(), Packet> {
        slots[*at].put(pkt)?;
        *at = if *at + 1 == slots.len() { 0 } else { *at + 1 };
        Ok(())
    }

    fn taker(&self) -> Vec<usize> {
        vec![0; self.arrays.len()]
    }

    fn pop(&self, taker: &mut Vec<usize>, sink: &mut Sink) -> bool {
        let before = sink.taken;
        for (slots, at) in self.arrays.iter().zip(taker) {
            for _ in 0..RUN {
                let Some(pkt) = slots[*at].take() else { break };
                sink.put(pkt);
                *at = if *at + 1 == slots.len() { 0 } else { *at + 1 };
            }
        }
        sink.taken > before
    }
}
