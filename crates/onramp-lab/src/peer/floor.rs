//! The floor: an array of slots for each sender, and nothing shared but the slots themselves.
//!
//! No queue can move a packet between two threads for less than the line it is written in.

use onramp_queue::{Counter, Packet};
use parking_lot::{Mutex, MutexGuard};

use super::{Peer, RUN, Sink};
use crate::cell::Slot;

#[derive(Debug)]
pub(crate) struct Floor {
    arrays: Vec<Box<[Slot]>>,
    /// Where the drainer reads next, of each array.
    places: Mutex<Vec<usize>>,
}

impl Peer for Floor {
    /// The sender's array, and where it writes next.
    type End<'a> = (&'a [Slot], usize);
    type Taker<'a> = MutexGuard<'a, Vec<usize>>;

    fn new(senders: usize, credits: u32, _sink: Sink) -> Self {
        let array = |_| (0..credits).map(|_| Slot::default()).collect();
        let arrays = (0..senders).map(array).collect();
        Self { arrays, places: Mutex::new(vec![0; senders]) }
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

    fn taker(&self) -> MutexGuard<'_, Vec<usize>> {
        self.places.lock()
    }

    fn pop(&self, taker: &mut Self::Taker<'_>, sink: &mut Sink) -> bool {
        let before = sink.taken;
        for (slots, at) in self.arrays.iter().zip(taker.iter_mut()) {
            for _ in 0..RUN {
                let Some(pkt) = slots[*at].take() else { break };
                sink.put(pkt);
                *at = if *at + 1 == slots.len() { 0 } else { *at + 1 };
            }
        }
        sink.taken > before
    }
}
