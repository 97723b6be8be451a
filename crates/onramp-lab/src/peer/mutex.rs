//! `parking-lot`: a deque behind `parking_lot::Mutex`; who pushes drains.

use std::collections::VecDeque;

use onramp_queue::{Counter, Packet};
use parking_lot::Mutex;

use super::{Peer, Sink};

#[derive(Debug)]
pub(crate) struct Shared(Mutex<(VecDeque<Packet>, Sink)>);

impl Peer for Shared {
    type End<'a> = ();
    type Taker<'a> = ();

    fn new(senders: usize, credits: u32, sink: Sink) -> Self {
        let deque = VecDeque::with_capacity(senders * credits as usize);
        Self(Mutex::new((deque, sink)))
    }

    fn end(&self, _sender: usize) {}

    #[inline]
    fn push(&self, (): &mut (), pkt: Packet, count: &Counter) -> Result<(), Packet> {
        let mut held = self.0.lock();
        let (deque, sink) = &mut *held;
        deque.push_back(pkt);
        while let Some(pkt) = deque.pop_front() {
            sink.put(pkt);
        }
        count.set(sink.taken);
        let run = sink.run();
        drop(held);
        drop(run); // Freed when the lock is let go.
        Ok(())
    }

    fn settle(&self) {
        let rest = self.0.lock().1.rest();
        drop(rest); // As above.
    }

    const DRAINED: bool = false;

    fn taker(&self) {}

    fn pop(&self, (): &mut (), _sink: &mut Sink) -> bool {
        false
    }
}
