//! A design of the transmit path (the way of a packet from a sender to the device): each processor
//! has a list of packets with a lock of its own, and one thread, the drainer, collects the packets
//! of all lists.
//!
//! A thread that sends appends its packet to the list of its processor, where it competes only with
//! threads of the same processor. Then the thread tries to become the drainer; if another thread is
//! the drainer, the sending thread is done. The drainer takes the packets out of all lists in turn,
//! enqueues them in the qdisc, dequeues and feeds the device. After it has released the lock of the
//! qdisc, it checks the lists once more, and goes on if they have new packets.
//!
//! A sender keeps using the list of one processor while it has packets in flight, even if it now
//! runs on another processor, because its packets could otherwise overtake each other.
//!
//! Source: the prototype that Gregory Haskins and Peter Morreale described on netdev in March 2009,
//! and whose code they never published. How the drainer collects the packets is this crate's
//! reading of the description.

use onramp_core::Instant;
use onramp_queue::{Packet, PacketList};

use super::context::{Sender, Xmit};
use super::drain::{Staged, drain};
use super::root::Queue;
use super::{Account, Behind, PERCPU, Path, Seat, Sent, WorkerContext};
use crate::cell::{LockCell, Padded};
use crate::lock::Spin;
use crate::pin;
use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// The design `percpu-queue` of the transmit path. Each queue of the device has a qdisc, and in
/// front of the qdisc a list of packets for each processor.
pub(crate) struct PerCpu {
    queues: Vec<Place>,
}

struct Place {
    cpus: Vec<Cpu>,
    queue: Queue<Spin>,
}

/// The list of packets that sending threads on one processor have appended, and that the drainer
/// has not collected yet.
struct Cpu {
    list: LockCell<Spin, PacketList>,
    filled: Padded<AtomicBool>,
}

impl PerCpu {
    pub(crate) fn new(behind: Behind<'_>) -> Self {
        let cpus = pin::allowed().ok().and_then(|cpus| cpus.last().copied()).unwrap_or(0) + 1;
        let cpu = |_| Cpu {
            list: LockCell::new(PacketList::new()),
            filled: Padded(AtomicBool::new(false)),
        };
        let place = |device| Place {
            cpus: (0..cpus).map(cpu).collect(),
            queue: Queue::new(behind.tree, device, false),
        };
        Self { queues: behind.devices.into_iter().map(place).collect() }
    }
}

impl Staged for Vec<Cpu> {
    fn is_filled(&self, _context: &mut WorkerContext<'_>) -> bool {
        // Relaxed: the fence in `drain`, before this call, orders the load.
        self.iter().any(|cpu| cpu.filled.0.load(Ordering::Relaxed))
    }

    fn collect(&self, context: &mut WorkerContext<'_>) -> PacketList {
        let mut batch = PacketList::new();
        for cpu in self {
            // Relaxed: if this load misses that a sender has filled the list, the drainer finds
            // that out later, by `is_filled`.
            if cpu.filled.0.load(Ordering::Relaxed) {
                let notes = &mut context.notes.locks[PERCPU];
                let Some(mut list) = cpu.list.lock(context.seat.phase, notes) else { break };
                // Relaxed: the list's lock orders the store.
                cpu.filled.0.store(false, Ordering::Relaxed);
                batch.append(&mut list);
                list.unlock(notes);
            }
        }
        batch
    }
}

impl Xmit for PerCpu {
    type End = ();

    fn end(&self, _seat: &Seat<'_>) {}

    #[inline]
    fn xmit(&self, pkt: Packet, (): &mut (), context: &mut WorkerContext<'_>) -> Sent {
        let place = &self.queues[context.seat.queue()];
        if context.is_alone() {
            context.cpu = pin::current();
        }
        let cpu = &place.cpus[context.cpu % place.cpus.len()];
        let notes = &mut context.notes.locks[PERCPU];
        let Some(mut list) = cpu.list.lock(context.seat.phase, notes) else {
            context.take_back(pkt);
            return Sent::Stopped;
        };
        list.push_back(pkt);
        // Relaxed: the list's lock and the fence below order the store.
        cpu.filled.0.store(true, Ordering::Relaxed);
        list.unlock(notes);
        // SeqCst: pairs with the fence in `drain`. Either the drainer sees that this list was
        // filled, or this thread sees that there is no drainer, and becomes the drainer.
        fence(Ordering::SeqCst);
        drain(&place.queue, &place.cpus, context);
        Sent::Staged
    }

    fn net_tx(&self, context: &mut WorkerContext<'_>) {
        let Place { cpus, queue } = &self.queues[context.seat.queue()];
        drain(queue, cpus, context);
    }

    fn watchdog(&self, context: &WorkerContext<'_>) -> Instant {
        self.queues[context.seat.queue()].queue.watchdog()
    }
}

impl Path for PerCpu {
    type Worker<'a> = Sender<'a, Self>;

    fn worker<'a>(&'a self, seat: &'a Seat<'a>) -> Sender<'a, Self> {
        Sender::new(self, seat)
    }

    fn finish(&mut self) -> Account {
        let mut account = Account::default();
        for place in &mut self.queues {
            let mut late = PacketList::new();
            for cpu in &mut place.cpus {
                late.append(cpu.list.get_mut());
            }
            place.queue.finish(late, &mut account);
        }
        account
    }
}
