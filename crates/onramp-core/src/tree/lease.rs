//! Changes of a running tree that hold for a time, unless they are renewed.

use std::sync::Arc;

use super::edit::{Edit, Reach};
use crate::base::Instant;
use crate::base::sync::{AtomicU64, Ordering};

/// For how long a change of a running tree holds: a rate, for example, that a program may only use
/// until another program or host takes it away. [`RootQdisc::hold`](super::RootQdisc::hold) gives
/// the lease to a tree, together with the change that the tree makes by itself when the lease ends.
/// Copies are the same lease, which several trees may hold.
///
/// The tree looks at the clock before it releases packets. So a qdisc releases no packet by the old
/// change after the end, however late the thread is that gave the lease, also none that was due
/// before. What has left the qdiscs, and waits because the device was full, still leaves: at most a
/// burst ([`QUOTA`](crate::QUOTA) packets).
#[derive(Clone, Debug)]
pub struct Lease(Arc<AtomicU64>);

/// A lease on the way to the tree that is to hold it. If it does not arrive, the lease is over, as
/// nobody would end it: so a job that gives it to a tree has this in it.
#[derive(Debug)]
pub struct Pending(Guard);

/// What a lease has in place of its end when it is over: no lease ends at this time.
const OVER: u64 = 0;

impl Lease {
    /// Returns a lease until `end`, by the clock of the port that will hold it.
    #[must_use]
    pub fn new(end: Instant) -> Self {
        Self(Arc::new(AtomicU64::new(end.0.max(1))))
    }

    /// Returns the lease for a tree that is to hold it.
    #[must_use]
    pub fn pending(&self) -> Pending {
        Pending(Guard(self.clone()))
    }

    /// Moves the end to `end`, if that is later. Returns false if the lease is over: because it has
    /// ended in a tree that holds it, or because a tree has let it go, as another change gave its
    /// place other parameters. Then the change has to be made again, with a new lease.
    #[must_use]
    pub fn renew(&self, end: Instant) -> bool {
        // Relaxed: the word publishes no other data. What a tree does when the lease has ended, it
        // does in its own memory.
        let mut old = self.0.load(Ordering::Relaxed);
        while old != OVER {
            let new = old.max(end.0);
            // Relaxed: as above.
            match self.0.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(is) => old = is,
            }
        }
        false
    }

    /// Whether the lease is over, in the sense of [`renew`](Self::renew).
    #[must_use]
    pub fn is_over(&self) -> bool {
        // Relaxed: as in `renew`.
        self.0.load(Ordering::Relaxed) == OVER
    }

    /// Ends the lease if its time has come. Returns until when it holds; `None`: it is over.
    fn check(&self, now: Instant) -> Option<Instant> {
        // Relaxed: as in `renew`.
        let mut end = self.0.load(Ordering::Relaxed);
        while end <= now.0 {
            // Relaxed: as in `renew`.
            match self.0.compare_exchange(end, OVER, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return None,
                Err(is) => end = is,
            }
        }
        Some(Instant(end))
    }
}

/// A lease that a tree holds, and the change that the tree makes at the end.
#[derive(Debug)]
struct Held {
    lease: Guard,
    after: Edit,
}

/// Ends its lease when dropped: a lease that a tree has let go cannot end there any more, so it may
/// not be renewed.
#[derive(Debug)]
struct Guard(Lease);

impl Drop for Guard {
    fn drop(&mut self) {
        // Relaxed: as in `renew`.
        self.0.0.store(OVER, Ordering::Relaxed);
    }
}

/// The leases that a tree holds.
#[derive(Debug)]
pub(super) struct Leases {
    held: Vec<Held>,
    /// Before this time, none of them ends.
    pub(super) first: Instant,
}

impl Leases {
    pub(super) const NONE: Self = Self { held: Vec::new(), first: Instant::MAX };

    /// Takes a lease, and the change at its end.
    pub(super) fn hold(&mut self, Pending(lease): Pending, after: Edit) {
        self.let_go(after.reach());
        // If another tree that holds the lease has seen its end already, it has ended here, too.
        let end = lease.0.check(Instant(0)).unwrap_or(Instant(0));
        self.first = self.first.min(end);
        self.held.push(Held { lease, after });
    }

    /// Returns the changes of the leases that have ended at `now`.
    pub(super) fn ended(&mut self, now: Instant) -> Vec<Edit> {
        let mut first = Instant::MAX;
        let ended = self.held.extract_if(.., |held| {
            let end = held.lease.0.check(now);
            first = first.min(end.unwrap_or(Instant::MAX));
            end.is_none()
        });
        let ended = ended.map(|held| held.after).collect();
        self.first = first;
        ended
    }

    /// Lets go of the leases of the qdiscs and classes that an edit reaches.
    pub(super) fn let_go(&mut self, reach: Reach<'_>) {
        self.held.retain(|held| !reach.includes(held.after.reach()));
    }
}
