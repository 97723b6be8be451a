//! `parking-lot`: a deque behind `parking_lot::Mutex`. The threads that push also drain the deque.

use std::collections::VecDeque;

use onramp_queue::{Counter, Packet};

use super::{Peer, Sink};
use crate::memory::{self, Freed};
use crate::sync::ParkingMutex as Mutex;

#[derive(Debug)]
pub(crate) struct Shared {
    held: Mutex<(VecDeque<Packet>, Sink)>,
    freed: Option<Freed>,
}

impl Peer for Shared {
    type End<'a> = ();
    type Taker = ();

    fn new(senders: usize, credits: u32, sink: Sink) -> (Self, ()) {
        let deque = VecDeque::with_capacity(senders * credits as usize);
        let freed = sink.freed.clone();
        (Self { held: Mutex::new((deque, sink)), freed }, ())
    }

    fn end(&self, _sender: usize) {}

    #[inline]
    fn push(&self, (): &mut (), pkt: Packet, count: &Counter) -> Result<(), Packet> {
        let mut held = self.held.lock();
        let (deque, sink) = &mut *held;
        deque.push_back(pkt);
        while let Some(pkt) = deque.pop_front() {
            sink.put(pkt);
        }
        count.set(sink.taken);
        let run = sink.run();
        drop(held);
        // Free the packets after the release of the lock, so that no thread waits for the lock
        // meanwhile.
        memory::free(run, self.freed.as_ref());
        Ok(())
    }

    fn settle(&self) {
        let rest = self.held.lock().1.rest();
        // Free the packets after the release of the lock, so that no thread waits for the lock
        // meanwhile.
        memory::free(rest, self.freed.as_ref());
    }

    const DRAINED: bool = false;
}
