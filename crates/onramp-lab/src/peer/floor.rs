//! `floor`: the queue with the least possible cost. Each sender has an array, and the drainer (the
//! one thread that empties them) takes many packets at a time.
//!
//! Senders share no cache line with each other. With the drainer they share one line for several
//! packets. No queue that stores packets in its own memory can do better; the remaining cost is
//! that the packets' memory moves from one processor to another.

use onramp_queue::{Counter, Packet};

use super::ring::Rings;
use super::{Peer, Sink};

/// The rings of the crate `rtrb`, one for each sender, emptied in chunks.
#[derive(Debug)]
pub(crate) struct Floor(Rings);

impl Peer for Floor {
    type End<'a> = rtrb::Producer<Packet>;
    type Taker = Vec<rtrb::Consumer<Packet>>;

    fn new(senders: usize, credits: u32, sink: Sink) -> (Self, Self::Taker) {
        let (rings, consumers) = Rings::new(senders, credits, sink);
        (Self(rings), consumers)
    }

    fn end(&self, sender: usize) -> rtrb::Producer<Packet> {
        self.0.end(sender)
    }

    #[inline]
    fn push(
        &self,
        end: &mut rtrb::Producer<Packet>,
        pkt: Packet,
        count: &Counter,
    ) -> Result<(), Packet> {
        self.0.push(end, pkt, count)
    }

    fn pop(&self, taker: &mut Self::Taker, sink: &mut Sink) -> bool {
        let before = sink.taken;
        for consumer in taker.iter_mut() {
            if let Ok(chunk) = consumer.read_chunk(consumer.slots()) {
                for pkt in chunk {
                    sink.put(pkt);
                }
            }
            sink.free_run();
        }
        sink.taken > before
    }
}
