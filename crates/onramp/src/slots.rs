//! The ports of a link. Ports may be added while others look them up, and the number of a port
//! never changes.

use std::fmt;
use std::mem::offset_of;
use std::sync::{Arc, OnceLock};

use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use onramp_core::{Device, Instant, Port, Ran};
use onramp_queue::{Due, Marks, Succession};

/// A port of a link, with fixed facts about the port and with the time at which the port wants to
/// be visited by a runner.
#[repr(C)]
pub(crate) struct Slot<D> {
    pub(crate) port: Port<D>,
    pub(crate) known: Known,
}

/// Fields that all threads read and that are hardly ever written.
#[repr(align(128))]
pub(crate) struct Known {
    /// Size of the largest packet of the port's device, bytes.
    pub(crate) mtu: u32,
    /// Whether the port's device may block its caller for a long time.
    pub(crate) may_block: bool,
    /// Number of the runner that serves the port.
    pub(crate) home: usize,
    /// What is written when the port wants visits. It is shared with the port's device, which may
    /// outlive the link.
    visits: Arc<Visits>,
    /// The set of marks of all ports, and the index of this port's mark. A set mark tells the
    /// runners that the port wants a visit.
    mark: Option<(Arc<Marks>, usize)>,
    /// Whether the port accepts packets, and which ports take over its flows after its removal.
    pub(crate) succession: Succession,
}

/// Fields that the port's owners and the runners write.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Visits {
    pub(crate) due: Due,
    /// Number of times that the port asked for a visit, and how many of these requests woke a
    /// runner.
    pub(crate) asked: AtomicU64,
    pub(crate) woke: AtomicU64,
    /// Whether a sender waits until the port accepts packets again: see [`Slot::want_room`].
    wanted: AtomicBool,
    /// Number of consecutive visits in which another thread owned the port.
    vain: AtomicU8,
}

/// Fields that every sender reads share no cache line with fields that owners, runners or other
/// senders write.
const _: () = {
    const LINES: usize = 128;
    assert!(offset_of!(Slot<Box<dyn Device>>, known).is_multiple_of(LINES));
    assert!(size_of::<Known>() == LINES && size_of::<Visits>() == LINES);
};

impl Visits {
    /// Notes that the port wants a visit at `at` or before. Returns true if it did not want one so
    /// early yet; the caller must then mark the port and wake its runner.
    #[inline]
    pub(crate) fn ask(&self, at: Instant) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed); // Relaxed: `asked` is only a statistic.
        at.0 < self.due.note(at.0)
    }
}

impl<D: Device> Slot<D> {
    pub(crate) fn new(port: Port<D>, mtu: u32, may_block: bool, home: usize) -> Self {
        let (visits, succession) = (Arc::default(), Succession::default());
        let known = Known { mtu, may_block, home, visits, mark: None, succession };
        Self { port, known }
    }

    /// Returns the notes of when the port wants to be visited, and why.
    #[inline]
    pub(crate) fn visits(&self) -> &Visits {
        &self.known.visits
    }

    /// Returns the same notes, for a thread that may outlive the port.
    pub(crate) fn share_visits(&self) -> Arc<Visits> {
        self.known.visits.clone()
    }

    /// Sets the port's mark, so that a runner looks at the port in its next round.
    pub(crate) fn mark(&self) {
        if let Some((marks, port)) = &self.known.mark {
            marks.set(*port);
        }
    }

    /// Clears the port's mark, because a runner is about to look at the port.
    pub(crate) fn unmark(&self) {
        if let Some((marks, port)) = &self.known.mark {
            marks.clear(*port);
        }
    }

    /// Records that a sender waits until the port accepts packets again. After this call, the
    /// calling thread must ask for a visit of a runner to the port, because a runner reads the
    /// record only when it visits the port.
    pub(crate) fn want_room(&self) {
        // Release: publishes what the sender did before; pairs with the acquire in `take_wish`.
        self.visits().wanted.store(true, Ordering::Release);
    }

    /// Removes the record that a sender waits until the port accepts packets again (see
    /// [`want_room`](Self::want_room)). Returns whether there was such a record.
    pub(crate) fn take_wish(&self) -> bool {
        // Relaxed: a thread that sets `wanted` then asks for a visit of a runner, and this request
        // makes the flag visible to the runner that visits the port.
        self.visits().wanted.load(Ordering::Relaxed)
            // Acquire: makes visible what the sender did; pairs with the release in `want_room`.
            && self.visits().wanted.swap(false, Ordering::Acquire)
    }

    /// Records whether another thread owned the port during a runner's visit. Returns at how many
    /// visits in a row, this one included, another thread owned the port.
    pub(crate) fn visited(&self, owned: bool) -> u8 {
        // Relaxed: only the visiting runner writes this count of visits, and a stale count only
        // changes the time of the next visit.
        let vain =
            if owned { self.visits().vain.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        // Relaxed: only this thread counts visits.
        self.visits().vain.store(vain, Ordering::Relaxed);
        vain
    }

    /// Whether the run `ran`, which the calling thread has made, left packets in the port: packets
    /// that wait for their time or for the device, or that other threads only stage because the
    /// port is busy. If another thread has owned the port since, that thread answers for them.
    pub(crate) fn may_hold_packets(&self, ran: Ran) -> bool {
        ran.again || self.port.stats().backlog.get() > 0 || self.port.is_busy()
    }

    /// Returns how often the port asked for a visit, and how many of these requests woke a runner.
    pub(crate) fn calls(&self) -> (u64, u64) {
        // Relaxed: the numbers are only statistics.
        (self.visits().asked.load(Ordering::Relaxed), self.visits().woke.load(Ordering::Relaxed))
    }
}

impl<D> Slot<D> {
    /// Whether the port accepts packets and new flows.
    pub(crate) fn is_open(&self) -> bool {
        self.known.succession.is_open()
    }
}

/// The ports of a link by number. One thread at a time adds ports (its caller holds a lock); any
/// number of threads look ports up meanwhile.
pub(crate) struct Slots<D> {
    /// Each port is boxed, so that places for ports that do not exist yet cost little memory.
    cells: Box<[OnceLock<Box<Slot<D>>>]>,
    len: AtomicUsize,
    /// The marks of all ports. The port of a set mark may want a visit of a runner.
    marks: Arc<Marks>,
}

impl<D> Slots<D> {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let cells = (0..capacity).map(|_| OnceLock::new()).collect();
        Self { cells, len: AtomicUsize::new(0), marks: Arc::new(Marks::new(capacity)) }
    }

    /// Returns the marks of all ports. They outlive the ports if need be.
    pub(crate) fn marks(&self) -> Arc<Marks> {
        self.marks.clone()
    }

    /// Adds a port and returns its number. If there is no place for it, returns `None` and drops
    /// the port.
    pub(crate) fn add(&self, mut slot: Slot<D>) -> Option<usize> {
        let port = self.len();
        slot.known.mark = Some((self.marks.clone(), port));
        self.cells.get(port)?.set(Box::new(slot)).ok()?;
        // Release: publishes the new port; pairs with the acquire in `len`.
        self.len.store(port + 1, Ordering::Release);
        Some(port)
    }

    /// Returns the number of ports that were ever added, removed ports included.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        // Acquire: makes the ports visible; pairs with the release in `add`.
        self.len.load(Ordering::Acquire)
    }

    /// Returns the greatest number of ports that may ever be added.
    pub(crate) fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// Returns the port with this number, or `None` if no such port was added.
    #[inline]
    pub(crate) fn get(&self, port: usize) -> Option<&Slot<D>> {
        self.cells.get(port)?.get().map(|slot| &**slot)
    }

    /// Returns the marked ports, which may want a visit of a runner.
    pub(crate) fn marked(&self) -> impl Iterator<Item = &Slot<D>> {
        self.marks.iter().filter_map(|port| self.get(port))
    }

    /// Returns a few of the marked ports, which may want a visit, and the number at which the next
    /// call should continue: see [`Marks::some`].
    pub(crate) fn some_marked(
        &self,
        from: usize,
    ) -> (impl Iterator<Item = (usize, &Slot<D>)>, usize) {
        let (some, next) = self.marks.some(from);
        (some.filter_map(|port| Some((port, self.get(port)?))), next)
    }

    /// Returns all ports in the order of their numbers, removed ports included.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot<D>> {
        (0..self.len()).filter_map(|port| self.get(port))
    }

    /// Returns the numbers of the ports that accept packets.
    pub(crate) fn open(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|port| self.get(*port).is_some_and(Slot::is_open))
    }
}

impl<D> fmt::Debug for Slot<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("port", &self.port).finish_non_exhaustive()
    }
}

impl<D> fmt::Debug for Slots<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
