//! Bare queues that are rings and channels of other crates.

use std::sync::mpsc;

use crossbeam_queue::ArrayQueue;
use onramp_queue::{Counter, Packet};
use parking_lot::Mutex;
use thingbuf::ThingBuf;
use thingbuf::recycling::Recycle;

use super::{Peer, RUN, Sink};

/// `array-queue`: crossbeam's bounded queue for many producers and many consumers.
#[derive(Debug)]
pub(crate) struct Array(ArrayQueue<Packet>);

impl Peer for Array {
    type End<'a> = ();
    type Taker = ();

    fn new(senders: usize, credits: u32, _sink: Sink) -> (Self, ()) {
        (Self(ArrayQueue::new(senders * credits as usize)), ())
    }

    fn end(&self, _sender: usize) {}

    #[inline]
    fn push(&self, (): &mut (), pkt: Packet, _count: &Counter) -> Result<(), Packet> {
        self.0.push(pkt)
    }

    fn pop(&self, (): &mut (), sink: &mut Sink) -> bool {
        pop_run(sink, || self.0.pop())
    }
}

/// `thingbuf`: a bounded queue whose slots are written in place, without allocating.
#[derive(Debug)]
pub(crate) struct Things(ThingBuf<Option<Packet>, Emptied>);

/// A recycling strategy of `thingbuf`: a slot whose packet was taken is reused as it is.
#[derive(Debug)]
struct Emptied;

impl Recycle<Option<Packet>> for Emptied {
    fn new_element(&self) -> Option<Packet> {
        None
    }

    fn recycle(&self, element: &mut Option<Packet>) {
        *element = None;
    }
}

impl Peer for Things {
    type End<'a> = ();
    type Taker = ();

    fn new(senders: usize, credits: u32, _sink: Sink) -> (Self, ()) {
        (Self(ThingBuf::with_recycle(senders * credits as usize, Emptied)), ())
    }

    fn end(&self, _sender: usize) {}

    #[inline]
    fn push(&self, (): &mut (), pkt: Packet, _count: &Counter) -> Result<(), Packet> {
        match self.0.push_ref() {
            Ok(mut slot) => {
                *slot = Some(pkt);
                Ok(())
            }
            Err(_) => Err(pkt),
        }
    }

    fn pop(&self, (): &mut (), sink: &mut Sink) -> bool {
        pop_run(sink, || self.0.pop_ref().and_then(|mut slot| slot.take()))
    }
}

/// `rtrb`: a ring for one producer and one consumer; each sender has its own ring.
#[derive(Debug)]
pub(crate) struct Rings {
    producers: Vec<Mutex<Option<rtrb::Producer<Packet>>>>,
}

impl Peer for Rings {
    type End<'a> = rtrb::Producer<Packet>;
    type Taker = Vec<rtrb::Consumer<Packet>>;

    fn new(senders: usize, credits: u32, _sink: Sink) -> (Self, Self::Taker) {
        let rings = (0..senders).map(|_| rtrb::RingBuffer::new(credits as usize));
        let (producers, consumers): (Vec<_>, Vec<_>) = rings.unzip();
        let producers = producers.into_iter().map(|producer| Mutex::new(Some(producer)));
        (Self { producers: producers.collect() }, consumers)
    }

    fn end(&self, sender: usize) -> rtrb::Producer<Packet> {
        let producer = self.producers[sender].lock().take();
        producer.unwrap_or_else(|| unreachable!("each sender comes once"))
    }

    #[inline]
    fn push(
        &self,
        end: &mut rtrb::Producer<Packet>,
        pkt: Packet,
        _count: &Counter,
    ) -> Result<(), Packet> {
        end.push(pkt).map_err(|rtrb::PushError::Full(pkt)| pkt)
    }

    fn pop(&self, taker: &mut Self::Taker, sink: &mut Sink) -> bool {
        let mut came = false;
        for consumer in taker.iter_mut() {
            came |= pop_run(sink, || consumer.pop().ok());
        }
        came
    }
}

/// `std-mpsc`: the channel of the standard library. It has no limit of its own; the senders'
/// credits limit it.
#[derive(Debug)]
pub(crate) struct Channel(mpsc::Sender<Packet>);

impl Peer for Channel {
    type End<'a> = mpsc::Sender<Packet>;
    type Taker = mpsc::Receiver<Packet>;

    fn new(_senders: usize, _credits: u32, _sink: Sink) -> (Self, Self::Taker) {
        let (sender, receiver) = mpsc::channel();
        (Self(sender), receiver)
    }

    fn end(&self, _sender: usize) -> mpsc::Sender<Packet> {
        self.0.clone()
    }

    #[inline]
    fn push(
        &self,
        end: &mut mpsc::Sender<Packet>,
        pkt: Packet,
        _count: &Counter,
    ) -> Result<(), Packet> {
        end.send(pkt).map_err(|mpsc::SendError(pkt)| pkt)
    }

    fn pop(&self, taker: &mut Self::Taker, sink: &mut Sink) -> bool {
        pop_run(sink, || taker.try_recv().ok())
    }
}

/// Pops at most [`RUN`] packets and passes them to `sink`, which frees them. Returns false if there
/// was no packet.
#[inline]
fn pop_run(sink: &mut Sink, mut pop: impl FnMut() -> Option<Packet>) -> bool {
    for popped in 0..RUN {
        let Some(pkt) = pop() else { return popped > 0 };
        sink.put(pkt);
    }
    true
}
