//! What the senders, the handles and the runners of a link share.

mod close;

use std::collections::VecDeque;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;

use onramp_core::qdisc::{Cx, Qdisc};
use onramp_core::{Clock, Device, Instant, Mode, Port, PortWaker, RootQdisc, SharedRate};
use onramp_dev::MonotonicClock;
use onramp_queue::{Credits, HeldWakes, hold_wakes, is_in_waker};

use self::close::Lost;
use crate::builder::SocketCounters;
use crate::runner::{Rig, Serves, SlotWaker};
use crate::slots::{Slot, Slots};
use crate::stats::{SenderEnd, Totals};
use crate::{PortError, TrySendError};

/// The devices of a link may be of any kind.
pub(crate) type BoxDevice = Box<dyn Device>;

/// Packets that all senders together should have below them, for each port: what stays in the
/// processors' caches, and under fq's `limit` of 10,000.
const CREDITS_PER_PORT: u32 = 8_192;
/// Packets that any sender may have below it (if it was given so many).
const CREDITS_MIN: u32 = 4;

/// At most so many ports that went count as having packets on their way in. A flow passes at most
/// these, and its own port, on the way to its successor.
const UNSETTLED_MAX: usize = 16;

/// What the senders, the handles and the runners of a link share.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Shared {
    read: Read,
    fair: Fair,
    written: Written,
}

/// Packets that each sender may have below it. Every sender reads it for each packet; it is written
/// when senders come and go, and changes it only while they are few.
#[derive(Debug)]
#[repr(align(128))]
struct Fair(AtomicU32);

/// What every sender reads for each packet, and hardly anybody writes.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Read {
    /// Differs between the links of a process.
    pub(crate) id: u64,
    pub(crate) slots: Slots<BoxDevice>,
    pub(crate) rig: Rig,
    pub(crate) clock: MonotonicClock,
    pub(crate) credits: Credits,
    processors: u32,
    /// How often the process had forked when the link was made.
    forks: u32,
    #[cfg_attr(not(feature = "udp"), expect(dead_code, reason = "there are no sockets"))]
    pub(crate) udp: SocketCounters,
    pub(crate) rate: Option<SharedRate>,
}

/// What is written as flows, senders and ports come and go.
#[derive(Debug)]
#[repr(align(128))]
struct Written {
    next_flow: AtomicU64,
    /// What was lost before the first close began.
    before_close: OnceLock<Lost>,
    live: AtomicU32,
    senders: Mutex<Senders>,
    /// Whoever adds or removes ports has it, for as long as that takes. It is taken before `plan`.
    changing: Mutex<Changing>,
    plan: Mutex<LinkConfig>,
}

/// To make a flow, or a sender that changes nobody's share, takes no line from those that send.
const _: () = {
    const LINES: usize = 128;
    let (fair, written) = (offset_of!(Shared, fair), offset_of!(Shared, written));
    assert!(fair.is_multiple_of(LINES) && written.is_multiple_of(LINES));
    assert!(fair >= size_of::<Read>() && written >= fair + size_of::<Fair>());
};

impl Deref for Shared {
    type Target = Read;
    #[inline]
    fn deref(&self) -> &Read {
        &self.read
    }
}

/// A lock that the calling thread has. The thread wakers wakers back while it holds the lock, and
/// calls them after it: a waker may want the same lock.
pub(crate) struct Locked<'a, T> {
    // The fields go in this order: first the lock, then the wakers.
    guard: MutexGuard<'a, T>,
    _held: Option<HeldWakes>,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// What those who remove ports know.
#[derive(Debug, Default)]
pub(crate) struct Changing {
    /// Ports that went, the oldest first, and those of them into which packets may be on their way.
    gone: Vec<usize>,
    unsettled: VecDeque<usize>,
}

/// What a new port shall be. A thread that changes all ports holds the lock until each is told; a
/// thread that adds a port holds it meanwhile too, so that no port misses a change.
#[derive(Clone, Debug)]
pub(crate) struct LinkConfig {
    pub(crate) tree: Arc<onramp_core::Setup>,
    /// Where chance begins.
    pub(crate) seed: u64,
    pub(crate) mode: Mode,
    pub(crate) burst: u16,
    /// Largest packet, bytes; `None`: what the device says.
    pub(crate) mtu: Option<u32>,
    /// Whether each qdisc measures how long packets stay.
    pub(crate) measures: bool,
    /// Whether a qdisc at the root serves all ports together, as Linux's does, and not each port by
    /// itself.
    pub(crate) shares_root: bool,
}

impl LinkConfig {
    /// The tree for a port, whose device says that its packets have at most `mtu` bytes.
    pub(crate) fn build(&self, port: usize, mtu: u32) -> Option<Box<dyn Qdisc>> {
        self.tree.build_port(port, self.mtu(mtu), self.seed(port))
    }

    /// Largest packet of a port, whose device says that its packets have at most `mtu` bytes.
    pub(crate) fn mtu(&self, mtu: u32) -> u32 {
        self.mtu.unwrap_or(mtu)
    }

    /// Where a port's chance begins.
    pub(crate) fn seed(&self, port: usize) -> u64 {
        // Neighbours in the sequence of any good generator have nothing to do with each other.
        self.seed.wrapping_add(port as u64)
    }
}

/// Who counts what was submitted.
#[derive(Debug, Default)]
struct Senders {
    live: Vec<Arc<SenderEnd>>,
    gone: Totals,
    /// The share of credits when all were last told to look at it, or a smaller one since.
    told_share: u32,
}

/// What a link is made with.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) plan: LinkConfig,
    pub(crate) credits: Credits,
    pub(crate) rate: Option<SharedRate>,
    pub(crate) runners: usize,
    pub(crate) ports_max: usize,
    pub(crate) udp: SocketCounters,
}

impl Serves<BoxDevice> for Arc<Shared> {
    fn rig(&self) -> &Rig {
        &self.rig
    }
    fn slots(&self) -> &Slots<BoxDevice> {
        &self.slots
    }
    fn has_room(&self, slot: &Slot<BoxDevice>) -> bool {
        !slot.port.is_full() && !self.is_leaving(slot)
    }
    fn ring(&self) {
        self.ring_all();
    }
}

impl Shared {
    pub(crate) fn new(setup: Setup) -> Self {
        static LINKS: AtomicU64 = AtomicU64::new(0);
        let read = Read {
            id: LINKS.fetch_add(1, Ordering::Relaxed), // Relaxed: it only has to differ.
            slots: Slots::with_capacity(setup.ports_max),
            rig: Rig::new(setup.runners),
            clock: MonotonicClock,
            credits: setup.credits,
            processors: thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            forks: onramp_dev::watch_forks(),
            udp: setup.udp,
            rate: setup.rate,
        };
        let written = Written {
            next_flow: AtomicU64::new(0),
            before_close: OnceLock::new(),
            live: AtomicU32::new(0),
            senders: Mutex::default(),
            changing: Mutex::default(),
            plan: Mutex::new(setup.plan),
        };
        Self { read, fair: Fair(AtomicU32::new(u32::MAX)), written }
    }

    /// Whether this is the copy that a forked child has: without runners, and with locks that
    /// nobody may ever open. It sends nothing and waits for nothing.
    #[inline]
    pub(crate) fn is_copy(&self) -> bool {
        onramp_dev::forks() != self.forks
    }

    /// The link takes no packets and no changes any more: it closes, or this is a copy.
    pub(crate) fn is_closed(&self) -> bool {
        self.rig.gate.is_closed() || self.is_copy()
    }

    /// Keeps everybody else from adding and removing ports.
    ///
    /// # Errors
    ///
    /// [`PortError::Closed`], [`PortError::Nested`].
    pub(crate) fn changing(&self) -> Result<Locked<'_, Changing>, PortError> {
        if self.is_copy() {
            return Err(PortError::Closed);
        }
        let lock = &self.written.changing;
        let guard = if is_in_waker() {
            // This may be the thread that has the lock, or the runner that a removal waits for.
            match lock.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(PortError::Nested),
                Err(TryLockError::Poisoned(lock)) => lock.into_inner(),
                Ok(guard) => guard,
            }
        } else {
            lock.lock().unwrap_or_else(PoisonError::into_inner)
        };
        let changing = Locked { guard, _held: None };
        if self.is_closed() { Err(PortError::Closed) } else { Ok(changing) }
    }

    /// What new ports shall be; wakers everybody else from adding and changing ports, and wakers
    /// from being called by this thread. `None`: this is a copy, and somebody may have had the lock
    /// as the process forked.
    pub(crate) fn plan(&self) -> Option<Locked<'_, LinkConfig>> {
        if self.is_copy() {
            return None;
        }
        let _held = Some(hold_wakes());
        let guard = self.written.plan.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Locked { guard, _held })
    }

    /// The same, to change what there is. `None`: the link is closed.
    pub(crate) fn open_plan(&self) -> Option<Locked<'_, LinkConfig>> {
        self.plan().filter(|_| !self.is_closed())
    }

    /// Adds a port over `device`; `None`: there is no room. The caller has the lock on `plan`, and
    /// shares the credits out.
    pub(crate) fn add_port(&self, device: BoxDevice, plan: &LinkConfig) -> Option<usize> {
        let port = self.slots.len();
        if port >= self.slots.capacity() {
            return None;
        }
        let (mtu, may_block) = (device.info().mtu, device.info().may_block);
        let qdisc = plan.build(port, mtu)?;
        let share = self.rate.as_ref().map(|rate| rate.share(port));
        let port = Port::with_mode(qdisc, device, plan.burst, plan.mode, share);
        if plan.measures {
            let measure = Box::new(|root: &mut RootQdisc, _: &mut Cx<'_>| root.measure(true));
            let done = port.with(measure, Instant(0), &Nobody);
            debug_assert!(done.is_ok_and(|done| done), "nobody else knows the port");
        }
        let home = self.slots.len() % self.rig.runners.len();
        self.slots.add(Slot::new(port, mtu, may_block, home))
    }

    /// A port by its number, which came from us.
    #[inline]
    pub(crate) fn slot(&self, port: usize) -> &Slot<BoxDevice> {
        self.slots.get(port).unwrap_or_else(|| unreachable!("ports stay: {port}"))
    }

    /// Whether a port takes nothing just now. A hint.
    pub(crate) fn is_full(&self, port: usize) -> bool {
        let slot = self.slot(port);
        slot.port.is_full() || self.is_leaving(slot)
    }

    /// Whether a port takes no packets, and still has some: it is to go, or it went as some were on
    /// their way in. What goes to its successors meanwhile could overtake these; not those in a port
    /// that is dead, which are dropped.
    pub(crate) fn is_leaving(&self, slot: &Slot<BoxDevice>) -> bool {
        let succession = &slot.known.succession;
        let waits = |patience| {
            // A sender that put a packet here sees the port not quiet until the packet has left,
            // so its next packet does not overtake it.
            !slot.port.is_quiet()
                && slot.port.death().is_none()
                && !self.rig.gate.is_closed()
                && self.clock.now().0 < patience
        };
        succession.is_leaving() || succession.is_gone() && waits(succession.patience())
    }

    /// Settles ports that went: all that nobody waits for any more, and so many others that a flow
    /// passes few on its way. A packet that is still on its way into one of these may then be
    /// overtaken; it has been for as long as the removal of [`UNSETTLED_MAX`] ports took.
    pub(crate) fn settle(&self, changing: &mut Changing) {
        let now = self.clock.now().0;
        while let Some(&oldest) = changing.unsettled.front() {
            let settled = &self.slot(oldest).known.succession;
            if changing.unsettled.len() <= UNSETTLED_MAX && now < settled.patience() {
                break;
            }
            settled.settle();
            changing.unsettled.pop_front();
            for port in changing.gone.iter().filter(|port| **port != oldest) {
                self.slot(*port).known.succession.skip(oldest, settled);
            }
        }
    }

    /// Notes that a port went.
    pub(crate) fn note_gone(&self, port: usize, changing: &mut Changing) {
        changing.gone.push(port);
        changing.unsettled.push_back(port);
        self.settle(changing);
    }

    pub(crate) fn ports(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn waker<'a>(&'a self, slot: &'a Slot<BoxDevice>) -> SlotWaker<'a, BoxDevice> {
        SlotWaker { rig: &self.read.rig, slot, clock: &self.read.clock }
    }

    /// Whether packets go to the port of their flow, and none is refused.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.rig.gate.is_open() && !self.is_copy()
    }

    /// Why packets of the flow `key` of `port` are refused for good, if they are.
    #[cold]
    pub(crate) fn refusal(&self, port: usize, key: u64) -> Option<TrySendError> {
        if self.is_closed() {
            return Some(TrySendError::Closed);
        }
        let slot = self.slot(self.route(port, key));
        slot.port.death().map(|_| TrySendError::PortDead)
    }

    /// The port that serves the flow `key` of `port`: that one, or who took over from it.
    #[inline]
    pub(crate) fn route(&self, port: usize, key: u64) -> usize {
        if self.rig.gate.is_open() { port } else { self.successor(self.front(port), key) }
    }

    /// The port whose tree serves the flows of `port`.
    pub(crate) fn front(&self, port: usize) -> usize {
        if self.rig.gate.is_one() { 0 } else { port }
    }

    /// The ports whose trees serve flows, all of them or the first.
    pub(crate) fn fronts(&self) -> Range<usize> {
        if self.rig.gate.is_one() { 0..1 } else { 0..usize::MAX }
    }

    /// Sends all flows through the first port if the root of the tree serves all of them together,
    /// else each through its own. True: it was otherwise, and the trees of all ports are to be
    /// built anew, without what they hold: packets that came before could be overtaken.
    pub(crate) fn follow(&self, plan: &LinkConfig) -> bool {
        let first = self.slot(0);
        let one = plan.shares_root
            && plan.tree.has_one_root()
            && self.ports() > 1
            && first.is_open()
            && first.port.death().is_none();
        let moves = one != self.rig.gate.is_one();
        if moves {
            self.rig.gate.set_one(one);
            self.share_out(0);
            self.slots.iter().for_each(|slot| slot.set_stale(true));
        }
        moves
    }

    #[cold]
    fn successor(&self, mut port: usize, key: u64) -> usize {
        loop {
            let slot = self.slot(port);
            match slot.known.succession.successor(key) {
                Some(successor) if !self.is_leaving(slot) => port = successor,
                _ => return port,
            }
        }
    }

    /// Numbers a new flow.
    pub(crate) fn new_key(&self) -> u64 {
        // Relaxed: a number that only has to differ.
        self.written.next_flow.fetch_add(1, Ordering::Relaxed)
    }

    /// An open port for whatever has the number `n`, a living one if there is one: they spread
    /// evenly.
    pub(crate) fn spread(&self, n: u64) -> usize {
        if !self.rig.gate.has_changed() {
            // All of them live and stay.
            return usize::try_from(n % self.ports().max(1) as u64).unwrap_or(0);
        }
        let living = |port: &usize| self.slot(*port).port.death().is_none();
        let (open, alive) = (self.slots.open().count(), self.slots.open().filter(living).count());
        let index = |count: usize| usize::try_from(n % count as u64).unwrap_or(0);
        let port = if alive > 0 {
            self.slots.open().filter(living).nth(index(alive))
        } else {
            self.slots.open().nth(index(open.max(1)))
        };
        port.unwrap_or(0) // All of them went meanwhile: the link closes.
    }

    /// Packets that each of the present senders may have below it.
    #[inline]
    pub(crate) fn fair_credits(&self) -> u32 {
        self.fair.0.load(Ordering::Relaxed) // Relaxed: any recent number will do.
    }

    /// Shares the credits of all open ports out again, after `change` of the number of senders.
    pub(crate) fn share_out(&self, change: i32) {
        // One after another, so that the last result is that of the last numbers.
        let Some(mut senders) = self.senders() else { return };
        let ports = if self.rig.gate.is_one() { 1 } else { self.slots.open().count() };
        let ports = u32::try_from(ports).unwrap_or(u32::MAX);
        // Relaxed: see `fair_credits`.
        let before = self.written.live.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
        let live = before.wrapping_add_signed(change);
        let share = CREDITS_PER_PORT.saturating_mul(ports) / live.max(1);
        let share = share.max(CREDITS_MIN);
        // Relaxed: as above.
        if self.fair.0.load(Ordering::Relaxed) != share {
            self.fair.0.store(share, Ordering::Relaxed); // Relaxed: as above.
        }
        // A sender that waits with a small share may have room now. Not for each sender that goes:
        // all that wait would look each time.
        let useful = share.min(self.credits.packets);
        let grown = useful >= senders.told_share.saturating_mul(2)
            || useful == self.credits.packets && senders.told_share < useful;
        if grown || useful < senders.told_share {
            senders.told_share = useful;
        }
        drop(senders);
        if grown {
            self.ring_all();
        }
    }

    /// Whether there are more senders than processors.
    pub(crate) fn crowded(&self) -> bool {
        self.written.live.load(Ordering::Relaxed) > self.processors // Relaxed: as above.
    }

    pub(crate) fn add_sender(&self, end: Arc<SenderEnd>) {
        if let Some(mut senders) = self.senders() {
            senders.live.push(end);
            drop(senders);
            self.share_out(1);
        }
    }

    pub(crate) fn remove_sender(&self, end: &Arc<SenderEnd>) {
        if let Some(mut senders) = self.senders() {
            senders.gone.add(&end.counters);
            senders.live.retain(|live| !Arc::ptr_eq(live, end));
            drop(senders);
            self.share_out(-1);
        }
    }

    /// What all senders counted, those that are gone too. Nothing, in a copy.
    pub(crate) fn sender_totals(&self) -> Totals {
        let Some(senders) = self.senders() else { return Totals::default() };
        let mut totals = senders.gone;
        for end in &senders.live {
            totals.add(&end.counters);
        }
        totals
    }

    /// Has everybody who waits for a packet to come home look at the gate and the ports again.
    pub(crate) fn ring_all(&self) {
        let Some(senders) = self.senders() else { return };
        let ends = senders.live.clone();
        // A waker is anybody's code, which may make or drop a sender.
        drop(senders);
        ends.iter().for_each(|end| end.bell.ring());
    }

    /// `None`: this is a copy, and somebody may have had them as the process forked.
    fn senders(&self) -> Option<MutexGuard<'_, Senders>> {
        if self.is_copy() {
            return None;
        }
        Some(self.written.senders.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Looks after a port that nobody has seen yet.
struct Nobody;

impl PortWaker for Nobody {
    fn visit_by(&self, _at: Instant) {}
}

#[cfg(test)]
mod tests;
