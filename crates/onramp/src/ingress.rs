//! The filters that packets meet when they come in at a link's device.

use std::sync::{Arc, PoisonError, TryLockError};

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use onramp_core::filter::FilterSpec;
use onramp_core::view::QdiscView;
use onramp_core::{Change, Ingress, Instant, Setup};
use onramp_queue::Packet;

/// The filters of a link's `ingress` or `clsact` for packets that come in at the link's device, as
/// one thread asks them: see [`Link::ingress`](crate::Link::ingress). All clones ask the same
/// filters. In a child of `fork`, another thread of the parent may hold them for ever: do not use a
/// copy there.
#[derive(Clone, Debug)]
pub struct LinkIngress(Arc<Gate>);

#[derive(Debug)]
struct Gate {
    /// Whether a packet would meet any filter. If not, a thread need not lock the filters.
    is_met: AtomicBool,
    /// The filters. Only the thread that receives packets and threads that change or list the
    /// filters lock them.
    filters: Mutex<Ingress>,
}

/// Filters that a thread has locked, to ask them about a batch of packets.
#[derive(Debug)]
pub struct HeldIngress<'a>(Option<MutexGuard<'a, Ingress>>);

impl HeldIngress<'_> {
    /// Asks the filters about a packet, as [`Ingress::passes`] does.
    #[must_use]
    #[inline]
    pub fn passes(&mut self, now: Instant, pkt: &mut Packet) -> bool {
        self.0.as_mut().is_none_or(|filters| filters.passes(now, pkt))
    }
}

impl LinkIngress {
    pub(crate) fn of(setup: &Setup) -> Self {
        let filters = Ingress::of(setup);
        let (is_met, filters) = (AtomicBool::new(filters.is_met()), Mutex::new(filters));
        Self(Arc::new(Gate { is_met, filters }))
    }

    /// Whether a packet would meet any filter.
    #[must_use]
    #[inline]
    pub fn is_met(&self) -> bool {
        self.0.is_met.load(Ordering::Relaxed) // Relaxed: a packet may meet new filters a bit later.
    }

    /// Locks the filters for a batch of packets. Waits while a command changes or lists them. Drop
    /// the result before you send the packets: until then, such a command waits, and a thread that
    /// changes or lists the filters of the link while it holds them itself waits for ever.
    #[must_use]
    pub fn hold(&self) -> HeldIngress<'_> {
        HeldIngress(self.is_met().then(|| self.lock()))
    }

    /// Locks the filters as [`hold`](Self::hold) does, but returns `None` instead of waiting. Use
    /// it in a [`Device`](onramp_core::Device) that hands packets on: its caller must not wait.
    #[must_use]
    pub fn try_hold(&self) -> Option<HeldIngress<'_>> {
        if !self.is_met() {
            return Some(HeldIngress(None));
        }
        match self.0.filters.try_lock() {
            Ok(filters) => Some(HeldIngress(Some(filters))),
            Err(TryLockError::Poisoned(lock)) => Some(HeldIngress(Some(lock.into_inner()))),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ingress> {
        // The filters are valid at every moment, also if a thread has panicked with the lock.
        self.0.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn edit(&self, edit: impl FnOnce(&mut Ingress)) {
        let mut filters = self.lock();
        edit(&mut filters);
        self.0.is_met.store(filters.is_met(), Ordering::Relaxed); // Relaxed: see `is_met`.
    }

    pub(crate) fn follow(&self, setup: &Setup, change: &Change) {
        self.edit(|filters| filters.follow(setup, change));
    }

    pub(crate) fn set(&self, setup: &Setup) {
        self.edit(|filters| filters.set(setup));
    }

    pub(crate) fn specs(&self) -> Vec<FilterSpec> {
        self.lock().filters().cloned().collect()
    }

    pub(crate) fn add_to(&self, setup: &Setup, views: &mut Vec<QdiscView>) {
        self.lock().add_to(setup, views);
    }
}
