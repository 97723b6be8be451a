//! A path with one lock, the root lock, in front of the qdisc. If the const parameter `BUSY` is
//! true, threads that would have to wait for the root lock take a second lock first.
//!
//! A thread that sends takes the root lock and enqueues its packet; if no thread dequeues, the
//! sender dequeues as well. The kind of the root lock makes the designs `spinlock`, `ticket`,
//! `handicap`, `adaptive`, `mutex` and `queued`.
//!
//! The designs `busylock` and `busylock-queued`: if many threads wait for the root lock, the thread
//! that dequeues gets the lock back only after many of them, and the device is idle meanwhile. So a
//! thread that sees another thread dequeue first takes a second lock. Then at most one of these
//! threads waits for the root lock beside the thread that dequeues.
//!
//! Source: Linux `__dev_xmit_skb` (`net/core/dev.c`), by its behaviour: one lock up to 2.6.35, the
//! busylock from 2.6.36 (2010, so in use from 2011) to 6.18 (2025).

use onramp_queue::{Packet, PacketList};

use super::context::{Sender, Xmit};
use super::root::Queue;
use super::{Account, BUSY as BUSYLOCK, Behind, Path, ROOT, Seat, Sent, WorkerContext, told};
use crate::cell::LockCell;
use crate::lock::Lock;
use crate::memory;

/// A path with a root lock of type `L` for each queue. The second lock is of the same type.
pub(crate) struct Locked<L: Lock, const BUSY: bool> {
    queues: Vec<Place<L>>,
}

struct Place<L: Lock> {
    busy: LockCell<L, ()>,
    queue: Queue<L>,
}

impl<L: Lock, const BUSY: bool> Locked<L, BUSY> {
    pub(crate) fn new(behind: Behind<'_>) -> Self {
        let place = |device| Place {
            busy: LockCell::new(()),
            queue: Queue::new(behind.tree, device, BUSY),
        };
        Self { queues: behind.devices.into_iter().map(place).collect() }
    }
}

impl<L: Lock, const BUSY: bool> Xmit for Locked<L, BUSY> {
    type End = ();

    fn end(&self, _seat: &Seat<'_>) {}

    #[inline]
    fn xmit(&self, pkt: Packet, (): &mut (), context: &mut WorkerContext<'_>) -> Sent {
        let Place { busy, queue } = &self.queues[context.seat.queue()];
        let phase = context.seat.phase;
        let mut first = None;
        if BUSY && queue.is_running() {
            first = busy.lock(phase, &mut context.notes.locks[BUSYLOCK]);
            if first.is_none() {
                context.take_back(pkt);
                return Sent::Stopped;
            }
        }
        let Some(mut root) = queue.root.lock(phase, &mut context.notes.locks[ROOT]) else {
            context.take_back(pkt);
            return Sent::Stopped;
        };
        context.note_staging(1, context.now);
        let mut done = PacketList::new();
        root.set_now(context.now);
        let sent = told(root.enqueue(pkt, &mut done));
        if queue.run_begin(&mut root) {
            if let Some(first) = first.take() {
                first.unlock(&mut context.notes.locks[BUSYLOCK]);
            }
            let Some(back) = queue.run(root, &mut done, context) else { return sent };
            root = back;
        }
        root.unlock(&mut context.notes.locks[ROOT]);
        if let Some(first) = first {
            first.unlock(&mut context.notes.locks[BUSYLOCK]);
        }
        // Free the packets while this thread holds no lock, so that no thread waits for a lock
        // meanwhile.
        memory::free(done, None);
        sent
    }

    fn net_tx(&self, context: &mut WorkerContext<'_>) {
        self.queues[context.seat.queue()].queue.net_tx(context);
    }

    fn watchdog(&self, context: &WorkerContext<'_>) -> onramp_core::Instant {
        self.queues[context.seat.queue()].queue.watchdog()
    }
}

impl<L: Lock, const BUSY: bool> Path for Locked<L, BUSY> {
    type Worker<'a>
        = Sender<'a, Self>
    where
        Self: 'a;

    fn worker<'a>(&'a self, seat: &'a Seat<'a>) -> Sender<'a, Self> {
        Sender::new(self, seat)
    }

    fn finish(&mut self) -> Account {
        let mut account = Account::default();
        for place in &mut self.queues {
            place.queue.finish(PacketList::new(), &mut account);
        }
        account
    }
}
