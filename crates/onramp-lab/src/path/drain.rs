//! The drainer of designs in which senders leave their packets in places of their own: one thread
//! at a time collects the packets of all places, enqueues them in the qdisc and feeds the device.

use onramp_core::Instant;
use onramp_queue::PacketList;

use super::root::Queue;
use super::{ROOT, WorkerContext};
use crate::lock::Spin;
use crate::memory;
use crate::sync::atomic::{Ordering, fence};

/// Largest number of times that one call of `drain` collects and sends packets (Linux's
/// `MAX_SOFTIRQ_RESTART`). The number is limited because the drainer is itself a sender, whose own
/// sending must go on.
const ROUNDS: usize = 10;

/// The places in which senders leave their packets.
pub(super) trait Staged {
    /// Takes packets out of all places, one place after another. Called by one thread at a time. If
    /// the experiment stops meanwhile, the remaining packets stay where they are.
    fn collect(&self, context: &mut WorkerContext<'_>) -> PacketList;

    /// Whether packets wait in any place. Other threads may leave or collect packets at the same
    /// time.
    fn is_filled(&self, context: &mut WorkerContext<'_>) -> bool;
}

/// If no other thread is the drainer, the calling thread becomes the drainer: it collects the
/// packets of all places and sends them.
///
/// A sender calls this function after a fence (`SeqCst`) that follows the moment in which it left
/// its packet.
pub(super) fn drain(queue: &Queue<Spin>, staged: &impl Staged, context: &mut WorkerContext<'_>) {
    for _ in 0..ROUNDS {
        let Some(mut root) = queue.root.try_lock(&mut context.notes.locks[ROOT]) else {
            return;
        };
        if !queue.run_begin(&mut root) {
            root.unlock(&mut context.notes.locks[ROOT]);
            return;
        }
        let mut done = PacketList::new();
        root.set_now(context.now);
        let batch = staged.collect(context);
        if let Some(oldest) = batch.front().map(|oldest| Instant(oldest.enqueued_ns)) {
            context.note_staging(batch.len(), oldest);
        }
        for pkt in batch {
            // Ignore the qdisc's verdict on the packet: the packet's sender does not wait for it.
            let _ = root.enqueue(pkt, &mut done);
        }
        context.scheduled = false;
        let Some(root) = queue.run(root, &mut done, context) else { return };
        root.unlock(&mut context.notes.locks[ROOT]);
        memory::free(done, None);
        // SeqCst: pairs with the fence of a sender, before its call of this function. Either the
        // drainer sees the packet that the sender left, or the sender sees that there is no
        // drainer, and becomes the drainer.
        fence(Ordering::SeqCst);
        if !context.scheduled && !staged.is_filled(context) {
            return;
        }
    }
    context.scheduled = true;
}
