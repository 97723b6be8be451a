//! The ports of a link: more may come, and their numbers stay.

use std::fmt;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use onramp_core::{Device, Port};
use onramp_queue::{Due, Marks, Succession};

/// A port, what is known of it, and when it wants to be visited.
#[repr(C)]
pub(crate) struct Slot<D> {
    pub(crate) port: Port<D>,
    pub(crate) known: Known,
    pub(crate) visits: Visits,
}

/// What everybody reads and hardly anybody writes.
#[repr(align(128))]
pub(crate) struct Known {
    /// Largest packet of its device, bytes.
    pub(crate) mtu: u32,
    /// Its device may keep its caller for long.
    pub(crate) may_block: bool,
    /// The runner it belongs to.
    pub(crate) home: usize,
    /// Tells the runners that something is noted there.
    mark: Option<(Arc<Marks>, usize)>,
    /// Whether it takes packets, and which ports take over.
    pub(crate) succession: Succession,
}

/// What owners and runners write.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Visits {
    pub(crate) due: Due,
    /// Times it asked for a visit, and times that took a wake-up.
    pub(crate) asked: AtomicU64,
    pub(crate) woke: AtomicU64,
    /// Somebody waits until it takes packets again: see [`Slot::want_room`].
    wanted: AtomicBool,
    /// Its tree is not what the link says it is: it could not be told. Who has the plan writes it.
    stale: AtomicBool,
    /// Visits in a row that found it owned.
    vain: AtomicU8,
}

/// What every sender reads lies on no line that owners, runners or other senders write.
const _: () = {
    const LINES: usize = 128;
    assert!(offset_of!(Slot<Box<dyn Device>>, known).is_multiple_of(LINES));
    assert!(offset_of!(Slot<Box<dyn Device>>, visits).is_multiple_of(LINES));
    assert!(size_of::<Known>() == LINES && size_of::<Visits>() == LINES);
};

impl<D: Device> Slot<D> {
    pub(crate) fn new(port: Port<D>, mtu: u32, may_block: bool, home: usize) -> Self {
        let succession = Succession::default();
        let known = Known { mtu, may_block, home, mark: None, succession };
        Self { port, known, visits: Visits::default() }
    }

    /// Whether it has missed a change of its tree.
    pub(crate) fn is_stale(&self) -> bool {
        self.visits.stale.load(Ordering::Relaxed) // Relaxed: the lock on the plan guards it.
    }

    pub(crate) fn set_stale(&self, stale: bool) {
        self.visits.stale.store(stale, Ordering::Relaxed); // Relaxed: as above.
    }

    /// The next round looks at it.
    pub(crate) fn mark(&self) {
        if let Some((marks, port)) = &self.known.mark {
            marks.set(*port);
        }
    }

    /// The look has come.
    pub(crate) fn unmark(&self) {
        if let Some((marks, port)) = &self.known.mark {
            marks.clear(*port);
        }
    }

    /// Somebody waits until it takes packets again, and asks for a visit next.
    pub(crate) fn want_room(&self) {
        // Release: pairs with the acquire in `takes_wish`.
        self.visits.wanted.store(true, Ordering::Release);
    }

    /// Takes the wish away, if there is one.
    pub(crate) fn take_wish(&self) -> bool {
        // Relaxed: who wishes asks for a visit after that, which orders it.
        self.visits.wanted.load(Ordering::Relaxed)
            // Acquire: pairs with the release in `want_room`.
            && self.visits.wanted.swap(false, Ordering::Acquire)
    }

    /// A visit found it owned, or not. Gives how many did so in a row.
    pub(crate) fn visited(&self, owned: bool) -> u8 {
        // Relaxed: only who visits writes it, and another number only changes when it comes again.
        let vain =
            if owned { self.visits.vain.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.visits.vain.store(vain, Ordering::Relaxed); // Relaxed: as above.
        vain
    }

    /// Times it asked for a visit, and times that took a wake-up.
    pub(crate) fn calls(&self) -> (u64, u64) {
        // Relaxed: numbers for people.
        (self.visits.asked.load(Ordering::Relaxed), self.visits.woke.load(Ordering::Relaxed))
    }
}

impl<D> Slot<D> {
    /// It takes packets, and new flows.
    pub(crate) fn is_open(&self) -> bool {
        self.known.succession.is_open()
    }
}

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
        slot.known.mark = Some((self.marks.clone(), port));
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

    /// A few of those that may want a visit, and where to go on: see [`Marks::some`].
    pub(crate) fn some_marked(
        &self,
        from: usize,
    ) -> (impl Iterator<Item = (usize, &Slot<D>)>, usize) {
        let (some, next) = self.marks.some(from);
        (some.filter_map(|port| Some((port, self.get(port)?))), next)
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
