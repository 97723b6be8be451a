//! A design of the transmit path with a ring for each sender: senders share nothing but the right
//! to be the owner.
//!
//! A thread that sends writes its packet into its own ring, which no other thread writes. Then it
//! tries to become the owner of the queue; if another thread is the owner, the sending thread is
//! done. The owner walks over all rings round robin, takes at most [`RUN`] packets of each,
//! enqueues them in the qdisc, dequeues and feeds the device. It begins each walk one ring further.
//! After it has released the lock of the qdisc, it looks at the rings once more, and goes on if
//! they have new packets. A packet that finds its ring full is dropped.
//!
//! So a sender writes only lines of its own, but the owner has to look at the ring of each sender,
//! whether it sends or not.
//!
//! The rings are those of the crate `rtrb`. The simulated machine does not see what that crate
//! does, so the path itself says which lines it touches: see [`Lines`].
//!
//! Source: L. Lamport: "Specifying concurrent program modules", 1983 (a ring for one producer and
//! one consumer). How the owner collects the packets is this crate's choice.

use onramp_core::Instant;
use onramp_queue::{Packet, PacketList};
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::context::{Sender, Xmit};
use super::drain::{Staged, drain};
use super::root::Queue;
use super::{Account, Behind, Path, RINGS, Seat, Sent, WorkerContext};
use crate::cell::LockCell;
use crate::lock::Spin;
use crate::sync::ParkingMutex;
use crate::sync::atomic::{Ordering, fence};

/// The drop reason of packets that find their ring full.
#[cfg(any(feature = "full", sim))]
pub(crate) const RING_FULL: &str = "ring_full";
/// Number of packets that a ring holds.
const RING: usize = 256;
/// Largest number of packets that the owner takes out of one ring before it goes to the next one.
const RUN: usize = 64;

/// The path `ring-per-sender`. Each queue of the device has a qdisc, and in front of the qdisc a
/// ring for each sender that uses the queue.
pub(crate) struct RingPerSender {
    queues: Vec<Place>,
}

struct Place {
    rings: Rings,
    queue: Queue<Spin>,
}

/// The rings of one queue.
struct Rings {
    /// The senders' ends, until their senders come for them.
    producers: Vec<ParkingMutex<Option<Producer<Packet>>>>,
    /// The other ends. Only the owner takes this lock, or a thread that has just been the owner.
    ends: LockCell<Spin, Ends>,
    lines: Vec<Lines>,
}

/// The owner's ends of all rings of a queue.
struct Ends {
    consumers: Vec<Consumer<Packet>>,
    /// The ring with which the next walk begins.
    first: usize,
}

/// A sender's end of its ring.
pub(crate) struct End {
    producer: Producer<Packet>,
    /// Number of packets that the ring has room for, as far as the sender knows.
    room: usize,
}

impl RingPerSender {
    pub(crate) fn new(threads: usize, behind: Behind<'_>) -> Self {
        let rings = threads.div_ceil(behind.devices.len().max(1));
        let place = |device| {
            let (producers, consumers): (Vec<_>, Vec<_>) =
                (0..rings).map(|_| RingBuffer::new(RING)).unzip();
            let rings = Rings {
                producers: producers.into_iter().map(|end| ParkingMutex::new(Some(end))).collect(),
                ends: LockCell::new(Ends { consumers, first: 0 }),
                lines: (0..rings).map(|_| Lines::new()).collect(),
            };
            Place { rings, queue: Queue::new(behind.tree, device, false) }
        };
        Self { queues: behind.devices.into_iter().map(place).collect() }
    }

    fn place(&self, context: &WorkerContext<'_>) -> &Place {
        &self.queues[context.seat.queue()]
    }
}

/// Returns the number of a sender's ring among those of its queue.
fn ring(seat: &Seat<'_>) -> usize {
    seat.thread / seat.queues
}

impl Staged for Rings {
    fn collect(&self, context: &mut WorkerContext<'_>) -> PacketList {
        let mut batch = PacketList::new();
        let notes = &mut context.notes.locks[RINGS];
        let Some(mut guard) = self.ends.lock(context.seat.phase, notes) else { return batch };
        let ends = &mut *guard;
        let rings = ends.consumers.len();
        for step in 0..rings {
            let at = (ends.first + step) % rings;
            let (consumer, lines) = (&mut ends.consumers[at], &self.lines[at]);
            lines.looks();
            let count = consumer.slots().min(RUN);
            if let Ok(chunk) = consumer.read_chunk(count) {
                for pkt in chunk {
                    batch.push_back(pkt);
                }
                lines.taken(count);
            }
        }
        ends.first = (ends.first + 1) % rings;
        guard.unlock(notes);
        batch
    }

    fn is_filled(&self, context: &mut WorkerContext<'_>) -> bool {
        let notes = &mut context.notes.locks[RINGS];
        let Some(guard) = self.ends.lock(context.seat.phase, notes) else { return false };
        let waits = |(consumer, lines): (&Consumer<Packet>, &Lines)| {
            lines.looks();
            !consumer.is_empty()
        };
        let is_filled = guard.consumers.iter().zip(&self.lines).any(waits);
        guard.unlock(notes);
        is_filled
    }
}

impl Xmit for RingPerSender {
    type End = End;

    fn end(&self, seat: &Seat<'_>) -> End {
        let producer = &self.queues[seat.queue()].rings.producers[ring(seat)];
        let producer = producer.lock().take();
        let producer = producer.unwrap_or_else(|| unreachable!("each sender comes once"));
        End { producer, room: RING }
    }

    #[inline]
    fn xmit(&self, pkt: Packet, end: &mut End, context: &mut WorkerContext<'_>) -> Sent {
        let Place { rings, queue } = self.place(context);
        let lines = &rings.lines[ring(context.seat)];
        if end.room == 0 {
            lines.looks_for_room();
            end.room = end.producer.slots();
        }
        if let Err(PushError::Full(pkt)) = end.producer.push(pkt) {
            context.take_back(pkt);
            return Sent::Dropped;
        }
        lines.pushed();
        end.room = end.room.saturating_sub(1);
        // SeqCst: pairs with the fence in `drain`. Either the drainer sees this packet, or this
        // thread sees that there is no drainer, and becomes the drainer.
        fence(Ordering::SeqCst);
        drain(queue, rings, context);
        Sent::Staged
    }

    fn net_tx(&self, context: &mut WorkerContext<'_>) {
        let Place { rings, queue } = self.place(context);
        drain(queue, rings, context);
    }

    fn watchdog(&self, context: &WorkerContext<'_>) -> Instant {
        self.place(context).queue.watchdog()
    }
}

impl Path for RingPerSender {
    type Worker<'a> = Sender<'a, Self>;

    fn worker<'a>(&'a self, seat: &'a Seat<'a>) -> Sender<'a, Self> {
        Sender::new(self, seat)
    }

    fn finish(&mut self) -> Account {
        let mut account = Account::default();
        for Place { rings, queue } in &mut self.queues {
            let mut late = PacketList::new();
            for consumer in &mut rings.ends.get_mut().consumers {
                while let Ok(pkt) = consumer.pop() {
                    late.push_back(pkt);
                }
            }
            queue.finish(late, &mut account);
        }
        account
    }
}

/// Says to the simulated machine which lines of a ring a thread touches: the tail, which the sender
/// writes; the head, which the owner writes; and the slots, of which a line holds several. On a
/// real machine, `rtrb` itself touches them, and these functions do nothing.
#[cfg(not(sim))]
#[derive(Debug)]
struct Lines;

#[cfg(not(sim))]
#[expect(clippy::unused_self, reason = "used on the simulated machine")]
impl Lines {
    const fn new() -> Self {
        Self
    }
    #[inline]
    const fn pushed(&self) {}
    #[inline]
    const fn looks_for_room(&self) {}
    #[inline]
    const fn looks(&self) {}
    #[inline]
    const fn taken(&self, _count: usize) {}
}

#[cfg(sim)]
use simulated::Lines;

#[cfg(sim)]
mod simulated {
    use super::RING;
    use crate::cell::Padded;
    use crate::sync::atomic::{AtomicU64, Ordering};

    /// Stands for the memory of a ring: accesses to it are charged as those to the ring.
    #[derive(Debug)]
    pub(super) struct Lines {
        /// Number of packets that came. The sender alone writes it.
        tail: Padded<AtomicU64>,
        /// Number of packets that were taken. The owner alone writes it.
        head: Padded<AtomicU64>,
        slots: Padded<[AtomicU64; RING]>,
    }

    /// Returns the slot of the packet with this number.
    fn slot(number: u64) -> usize {
        usize::try_from(number % RING as u64).unwrap_or(0)
    }

    impl Lines {
        pub(super) fn new() -> Self {
            let zero = || Padded(AtomicU64::new(0));
            let slots = Padded([const { AtomicU64::new(0) }; RING]);
            Self { tail: zero(), head: zero(), slots }
        }

        /// The sender has pushed a packet.
        pub(super) fn pushed(&self) {
            // Relaxed: all simulated threads run in one real thread; `rtrb` orders its own memory.
            let tail = self.tail.0.load(Ordering::Relaxed);
            self.slots.0[slot(tail)].store(tail, Ordering::Relaxed); // Relaxed, as above.
            self.tail.0.store(tail + 1, Ordering::Relaxed); // Relaxed, as above.
        }

        /// The sender looks how many packets the owner has taken.
        pub(super) fn looks_for_room(&self) {
            let _ = self.head.0.load(Ordering::Relaxed); // Relaxed, as above.
        }

        /// The owner looks how many packets came.
        pub(super) fn looks(&self) {
            let _ = self.tail.0.load(Ordering::Relaxed); // Relaxed, as above.
        }

        /// The owner has taken `count` packets.
        pub(super) fn taken(&self, count: usize) {
            if count == 0 {
                return;
            }
            let head = self.head.0.load(Ordering::Relaxed); // Relaxed, as above.
            let until = head + count as u64;
            for number in head..until {
                let _ = self.slots.0[slot(number)].load(Ordering::Relaxed); // Relaxed, as above.
            }
            self.head.0.store(until, Ordering::Relaxed); // Relaxed, as above.
        }
    }
}
