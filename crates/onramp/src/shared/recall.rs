//! Recalls: wake-ups at a certain time, for tasks that wait for something of which no other thread
//! tells them, such as that a link is empty, or that some of their packets are home, but fewer than
//! they wait for. A runner, or the program that does the runner's work,
//! makes them.

use std::mem;
use std::sync::Arc;

use onramp_core::Instant;
use onramp_queue::{Bell, NEVER};

use super::Shared;
use crate::stats::SenderEnd;
use crate::sync::atomic::Ordering;

/// The tasks that have asked for a recall.
#[derive(Debug, Default)]
pub(super) struct Recalls {
    bells: Vec<Arc<Bell>>,
    /// After a close of the link has ended, so that no runner comes any more: the number of ports
    /// that it could not close.
    ended: Option<usize>,
}

impl Shared {
    /// Has `bell` rung at `at`, or earlier if another task asked for an earlier time, and when a
    /// close of the link ends. Call this before looking whether there is anything to wait for, so
    /// that no ring is missed.
    ///
    /// # Errors
    ///
    /// If nobody would ring the bell any more, because a close has ended: returns the number of
    /// ports that this close could not close. 0 in the copy of a link in a forked child.
    pub(crate) fn recall_at(&self, bell: &Arc<Bell>, at: Instant) -> Result<(), usize> {
        let Some(mut senders) = self.senders() else { return Err(0) };
        let Recalls { bells, ended } = &mut senders.recalls;
        if let Some(blocked) = *ended {
            return Err(blocked);
        }
        if !bells.iter().any(|other| Arc::ptr_eq(other, bell)) {
            bells.push(Arc::clone(bell));
        }
        drop(senders);
        self.rig.recall_by(at);
        Ok(())
    }

    /// Withdraws the request of a task that no longer waits.
    pub(crate) fn forget_recall(&self, bell: &Arc<Bell>) {
        if let Some(mut senders) = self.senders() {
            senders.recalls.bells.retain(|other| !Arc::ptr_eq(other, bell));
        }
    }

    /// Has the bell of `end`, a sender's, rung at `at`. Takes no lock. Call this before looking
    /// whether there is anything to wait for.
    pub(crate) fn look_at(&self, end: &SenderEnd, at: Instant) {
        // Relaxed: `recall_by` publishes the request.
        end.looks_at.store(at.0, Ordering::Relaxed);
        self.rig.recall_by(at);
    }

    /// Wakes the tasks that have asked for a recall, and the tasks of the senders that want to look
    /// at `now` or before. A task that still waits asks again.
    pub(super) fn recall_all(&self, now: Instant) {
        let Some(mut senders) = self.senders() else { return };
        let mut bells = mem::take(&mut senders.recalls.bells);
        let mut next = NEVER;
        for end in &senders.live {
            // Relaxed: the thread that calls this has taken the time of the recall, and so sees all
            // requests that were made before.
            let at = end.looks_at.load(Ordering::Relaxed);
            if at > now.0 {
                next = next.min(at);
            } else {
                bells.push(Arc::clone(&end.bell));
                // If this fails, the sender has stored a later time meanwhile, and asked for it.
                // Relaxed: as above.
                let relaxed = Ordering::Relaxed;
                let _ = end.looks_at.compare_exchange(at, NEVER, relaxed, relaxed);
            }
        }
        // Release the lock first, as in `ring_all`.
        drop(senders);
        self.rig.recall_later(next);
        bells.iter().for_each(|bell| bell.ring());
    }

    /// At the end of a close that could not close `blocked` ports: wakes the tasks that have asked
    /// for a recall, and refuses further requests.
    pub(crate) fn end_recalls(&self, blocked: usize) {
        if let Some(mut senders) = self.senders() {
            senders.recalls.ended = Some(blocked);
        }
        self.recall_all(Instant(NEVER - 1));
    }

    /// Returns the number of tasks that have asked for a recall.
    #[cfg(test)]
    pub(crate) fn recalls(&self) -> usize {
        self.senders().map_or(0, |senders| senders.recalls.bells.len())
    }
}
