//! A lock-free list in front of the root lock.
//!
//! Who sends pushes. If something was in the list, whoever put it there is bound to come for all
//! of it, and the sender leaves. Who finds the list empty takes the root lock, takes the whole
//! list, turns it around, enqueues it as a batch, and runs the qdisc if nobody does. So one thread
//! beside the owner stands at the lock, and the lock is taken once for a batch.
//!
//! What waits in the list is bounded: beyond the cap packets are dropped at the door.
//!
//! Source: Eric Dumazet: "net: dev: use a llist in front of the qdisc" (netdev, October 2025; in
//! Linux 6.19), with the cap of its own that 7.2 gave it (`net.core.qdisc_max_burst`); by its
//! behaviour.

use std::sync::atomic::{AtomicU64, Ordering};

use onramp_core::Instant;
use onramp_core::qdisc::Verdict;
use onramp_queue::{Packet, PacketList};

use super::context::{Sender, Xmit};
use super::root::Queue;
use super::{Account, Behind, Path, ROOT, Seat, Sent, WorkerContext, told};
use crate::cell::{Padded, Stack};
use crate::lock::Spin;
use crate::memory;

/// Packets that wait in the list at most (`net.core.qdisc_max_burst`).
const CAP: u64 = 1_000;
/// The name of a drop at the door.
pub(crate) const BURST_CAP: &str = "burst_cap";

/// The path.
pub(crate) struct Llist {
    queues: Vec<Place>,
}

struct Place {
    list: Stack,
    /// Packets that found others before them in the list, since it was last taken.
    count: Padded<AtomicU64>,
    queue: Queue<Spin>,
}

impl Llist {
    pub(crate) fn new(behind: Behind<'_>) -> Self {
        let place = |device| Place {
            list: Stack::default(),
            count: Padded(AtomicU64::new(0)),
            queue: Queue::new(behind.tree, device, false),
        };
        Self { queues: behind.devices.into_iter().map(place).collect() }
    }
}

impl Xmit for Llist {
    #[inline]
    fn prefetch(&self, context: &WorkerContext<'_>) {
        self.queues[context.seat.queue()].list.prefetch();
    }

    #[inline]
    fn xmit(&self, pkt: Packet, context: &mut WorkerContext<'_>) -> Sent {
        let Place { list, count, queue } = &self.queues[context.seat.queue()];
        // Relaxed: a bound, not a hand-over. Who pushes into an empty list need not count.
        if !list.is_empty() && count.0.fetch_add(1, Ordering::Relaxed) >= CAP {
            context.take_back(pkt);
            return Sent::Dropped;
        }
        if !list.push(pkt) {
            return Sent::Staged;
        }
        let taken = &mut context.notes.locks[ROOT];
        let Some(mut root) = queue.root.lock(context.seat.phase, taken) else {
            return Sent::Staged;
        };
        let batch = list.take();
        count.0.store(0, Ordering::Relaxed); // Relaxed: as above.
        let oldest = batch.front().map_or(context.now, |oldest| Instant(oldest.enqueued_ns));
        context.note_staging(batch.len(), oldest);
        let (mut done, alone) = (PacketList::new(), batch.len() == 1);
        let mut verdict = Verdict::Queued;
        root.set_now(context.now);
        for pkt in batch {
            verdict = root.enqueue(pkt, &mut done);
        }
        // Only a batch of one learns what became of it.
        let sent = if alone { told(verdict) } else { Sent::Staged };
        if queue.run_begin(&mut root) {
            let Some(back) = queue.run(root, &mut done, context) else { return sent };
            root = back;
        }
        root.unlock(&mut context.notes.locks[ROOT]);
        memory::free(done, None); // The lock is not held.
        sent
    }

    fn net_tx(&self, context: &mut WorkerContext<'_>) {
        self.queues[context.seat.queue()].queue.net_tx(context);
    }

    fn watchdog(&self, context: &WorkerContext<'_>) -> Instant {
        self.queues[context.seat.queue()].queue.watchdog()
    }
}

impl Path for Llist {
    type Worker<'a> = Sender<'a, Self>;

    fn worker<'a>(&'a self, seat: &'a Seat<'a>) -> Sender<'a, Self> {
        Sender::new(self, seat)
    }

    fn finish(&mut self) -> Account {
        let mut account = Account::default();
        for place in &mut self.queues {
            let late = place.list.take();
            place.queue.finish(late, &mut account);
        }
        account
    }
}
