//! The ports of a link: more may come, and their numbers stay.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use onramp_queue::Marks;

use crate::runner::Slot;

/// Ports by number. One at a time adds (its caller has a lock); any number look.
pub(crate) struct Slots<D> {
    /// Boxed, so that room for more costs little.
    cells: Box<[OnceLock<Box<Slot<D>>>]>,
    len: AtomicUsize,
    /// Those that may want a visit.
    marks: Arc<Marks>,
}

impl<D> Slots<D> {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let cells = (0..capacity).map(|_| OnceLock::new()).collect();
        Self { cells, len: AtomicUsize::new(0), marks: Arc::new(Marks::new(capacity)) }
    }

    /// Adds a port and gives its number; `None`: there is no room, and the port is dropped.
    pub(crate) fn add(&self, mut slot: Slot<D>) -> Option<usize> {
        let port = self.len();
        slot.mark = Some((self.marks.clone(), port));
        self.cells.get(port)?.set(Box::new(slot)).ok()?;
        // Release: the cell; pairs with the acquire in `len`.
        self.len.store(port + 1, Ordering::Release);
        Some(port)
    }

    /// Ports there are or were.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        // Acquire: pairs with the release in `add`.
        self.len.load(Ordering::Acquire)
    }

    /// Ports there may be.
    pub(crate) fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// The port with this number.
    #[inline]
    pub(crate) fn get(&self, port: usize) -> Option<&Slot<D>> {
        self.cells.get(port)?.get().map(|slot| &**slot)
    }

    /// Those that may want a visit.
    pub(crate) fn marked(&self) -> impl Iterator<Item = &Slot<D>> {
        self.marks.iter().filter_map(|port| self.get(port))
    }

    /// All of them, in order, also those that are gone.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot<D>> {
        (0..self.len()).filter_map(|port| self.get(port))
    }

    /// The numbers of those that take packets.
    pub(crate) fn open(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|port| self.get(*port).is_some_and(Slot::is_open))
    }
}

impl<D> fmt::Debug for Slots<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
