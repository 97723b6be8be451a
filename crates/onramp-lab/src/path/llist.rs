//! A path with a lock-free list in front of the root lock.
//!
//! A thread that sends pushes its packet onto the list. If the list was not empty, the thread that
//! found it empty is already bound to take the whole list, so the sender is done. A thread that
//! found the list empty takes the root lock, takes the whole list, reverses it, enqueues it as a
//! batch, and runs the qdisc unless another thread does. So besides the lock's holder at most one
//! thread waits for the lock, and the lock is taken once per batch.
//!
//! The list is bounded: packets beyond the cap are dropped instead of being pushed.
//!
//! Source: Eric Dumazet: "net: dev: use a llist in front of the qdisc" (netdev, October 2025; in
//! Linux 6.19), with the separate cap that Linux 7.2 added (`net.core.qdisc_max_burst`). This
//! module imitates the behaviour of the patch and has none of its code.

use onramp_core::Instant;
use onramp_core::qdisc::Verdict;
use onramp_queue::{Packet, PacketList};

use super::context::{Sender, Xmit};
use super::root::Queue;
use super::{Account, Behind, Path, ROOT, Seat, Sent, WorkerContext, told};
use crate::cell::{Padded, Stack};
use crate::lock::Lock;
use crate::memory;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Largest number of packets that may wait in the list (`net.core.qdisc_max_burst`).
const CAP: u64 = 1_000;
/// The drop reason of packets that find the list at its cap.
pub(crate) const BURST_CAP: &str = "burst_cap";

/// The path `llist`, with a lock-free list and a root lock of type `L` for each queue.
pub(crate) struct Llist<L: Lock> {
    queues: Vec<Place<L>>,
}

struct Place<L: Lock> {
    list: Stack,
    /// Number of packets that came while the list was not empty, since the list was last taken.
    /// Packets that were dropped at the cap count, too.
    count: Padded<AtomicU64>,
    queue: Queue<L>,
}

impl<L: Lock> Llist<L> {
    pub(crate) fn new(behind: Behind<'_>) -> Self {
        let place = |device| Place {
            list: Stack::default(),
            count: Padded(AtomicU64::new(0)),
            queue: Queue::new(behind.tree, device, false),
        };
        Self { queues: behind.devices.into_iter().map(place).collect() }
    }
}

impl<L: Lock> Xmit for Llist<L> {
    type End = ();

    fn end(&self, _seat: &Seat<'_>) {}

    #[inline]
    fn prefetch(&self, context: &WorkerContext<'_>) {
        self.queues[context.seat.queue()].list.prefetch();
    }

    #[inline]
    fn xmit(&self, pkt: Packet, (): &mut (), context: &mut WorkerContext<'_>) -> Sent {
        let Place { list, count, queue } = &self.queues[context.seat.queue()];
        // Relaxed: the counter only limits the length of the list and publishes no packet. A push
        // onto an empty list is not counted.
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
        count.0.store(0, Ordering::Relaxed); // Relaxed: the counter only limits the list.
        let oldest = batch.front().map_or(context.now, |oldest| Instant(oldest.enqueued_ns));
        context.note_staging(batch.len(), oldest);
        let (mut done, alone) = (PacketList::new(), batch.len() == 1);
        let mut verdict = Verdict::Queued;
        root.set_now(context.now);
        for pkt in batch {
            verdict = root.enqueue(pkt, &mut done);
        }
        // `verdict` is the qdisc's verdict on the last packet of the batch. Return it only if the
        // batch has a single packet, which is then the sender's own. The last packet of a larger
        // batch belongs to another push.
        let sent = if alone { told(verdict) } else { Sent::Staged };
        if queue.run_begin(&mut root) {
            let Some(back) = queue.run(root, &mut done, context) else { return sent };
            root = back;
        }
        root.unlock(&mut context.notes.locks[ROOT]);
        // Free the packets after the release of the lock, so that no thread waits for the lock
        // meanwhile.
        memory::free(done, None);
        sent
    }

    fn net_tx(&self, context: &mut WorkerContext<'_>) {
        self.queues[context.seat.queue()].queue.net_tx(context);
    }

    fn watchdog(&self, context: &WorkerContext<'_>) -> Instant {
        self.queues[context.seat.queue()].queue.watchdog()
    }
}

impl<L: Lock> Path for Llist<L> {
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
