//! The state of a link that its senders, handles and runners share.

mod close;
mod recall;

use std::collections::{BTreeSet, VecDeque};
use std::mem::offset_of;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use onramp_core::qdisc::{Cx, Qdisc};
use onramp_core::{
    Clock, Device, DeviceWaker, Edit, Instant, Mode, Port, PortOptions, PortWaker, RootQdisc,
    SharedRate,
};
use onramp_dev::MonotonicClock;
use onramp_queue::{Cancels, Credits, HeldWakes, hold_wakes, is_in_waker};

pub use self::close::CloseReport;
pub(crate) use self::close::{Lost, PATIENCE};
use self::recall::Recalls;
use crate::ingress::LinkIngress;
use crate::runner::{Rig, RoomCall, Serves, SlotWaker};
use crate::slots::{Slot, Slots};
use crate::stats::{SenderEnd, Totals};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Mutex, MutexGuard};
use crate::timing::Timing;
use crate::{PortError, TrySendError};

/// The device of a port. The devices of one link may be of different kinds.
pub(crate) type BoxDevice = Box<dyn Device>;

/// A device, with the properties that a link needs. They are read, and the device gets its handle,
/// before the link locks its configuration, because [`Device::info`] and [`Device::attach`] are
/// foreign code, which may call the link.
pub(crate) struct Described {
    device: BoxDevice,
    /// The device's handle, by which it says that it has room, and the waker behind the handle.
    device_waker: DeviceWaker,
    room_call: Arc<RoomCall>,
    mtu: u32,
    pub(crate) may_block: bool,
}

impl Described {
    pub(crate) fn new(mut device: BoxDevice) -> Self {
        let (mtu, may_block) = (device.info().mtu, device.info().may_block);
        let (room_call, device_waker) = RoomCall::attach(&mut *device);
        Self { device, device_waker, room_call, mtu, may_block }
    }
}

/// The UDP sockets over which a link was built, and their counters, in the order of the ports.
#[cfg(feature = "udp")]
#[derive(Debug, Default)]
pub(crate) struct UdpSockets {
    pub(crate) stats: Vec<Arc<onramp_dev::UdpStats>>,
    pub(crate) sockets: Vec<Arc<std::net::UdpSocket>>,
}
#[cfg(not(feature = "udp"))]
pub(crate) type UdpSockets = ();

/// Number of packets that every sender may have in flight, however many senders there are (unless
/// the builder gave it fewer credits).
pub(crate) const CREDITS_MIN: u32 = 4;

/// Greatest number of removed ports that are not settled. (Flows of such a port still wait for
/// packets that other threads were pushing into it at its removal.) The limit bounds the search for
/// a flow's successor, which passes no removed ports but these and the flow's own port.
const UNSETTLED_MAX: usize = 16;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Shared {
    read: Read,
    fair: Fair,
    written: Written,
}

/// The fair share: the number of packets that each sender may have in flight. Every sender reads
/// this number for each packet. When senders come and go, the number is written only if it changes;
/// with many senders, it stays at its minimum, [`CREDITS_MIN`], and so is not written.
#[derive(Debug)]
#[repr(align(128))]
struct Fair(AtomicU32);

/// Fields that every sender reads for each packet and that are hardly ever written.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Read {
    /// Number of the link, unique in the process.
    pub(crate) id: u64,
    pub(crate) slots: Slots<BoxDevice>,
    pub(crate) rig: Rig,
    pub(crate) clock: MonotonicClock,
    pub(crate) credits: Credits,
    /// The credits of each sender in time, unless the program sets them for a sender.
    pub(crate) credit_time: Option<Duration>,
    /// How long a sender waits until half of its packets in flight have come home, nanoseconds.
    pub(crate) patience_ns: u64,
    /// Counts the cancels of the link's senders, see [`Sender::cancel`](crate::Sender::cancel).
    pub(crate) cancels: Cancels,
    /// The number of packets that all senders together should have in flight for each port; `None`
    /// if there is no bound.
    credits_per_port: Option<u32>,
    /// Whether a sender with credits of its own keeps them: the program has not set the credits of
    /// the ports.
    pub(crate) keeps_own_credits: bool,
    processors: u32,
    /// How often the process had forked when the link was made. If the process has forked since,
    /// this is the copy of a link in a forked child.
    forks: u32,
    #[cfg_attr(not(feature = "udp"), expect(dead_code, reason = "there are no sockets"))]
    pub(crate) udp: UdpSockets,
    pub(crate) rate: Option<SharedRate>,
}

/// Fields that are written only when flows, senders and ports come and go.
#[derive(Debug)]
#[repr(align(128))]
struct Written {
    next_flow: AtomicU64,
    /// The packets that had been purged, or dropped with a port that died, when the first close
    /// began.
    before_close: OnceLock<Lost>,
    live: AtomicU32,
    senders: Mutex<Senders>,
    /// A thread that adds or removes ports holds this lock for the whole operation. A thread that
    /// takes both locks takes this one before `plan`.
    changing: Mutex<Changing>,
    /// The thread that holds the lock `changing`, if any. This lock is held for a moment only.
    changer: Mutex<Option<ThreadId>>,
    plan: Mutex<LinkConfig>,
}

/// Making a flow writes to no cache line that sending threads read. Neither does making a sender,
/// unless that changes the number of packets that each sender may have in flight.
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

/// A lock that the calling thread holds. While it holds the lock, calls of wakers are postponed
/// until after the unlock, because a waker may take the same lock.
pub(crate) struct Locked<'a, T> {
    // Fields are dropped in this order: first, the record of the holder is erased; then, the lock
    // is released; then, the postponed wakers are called.
    _holder: Option<Holder<'a>>,
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

/// The record of which thread holds a lock. The record is erased when this value is dropped.
struct Holder<'a>(&'a Mutex<Option<ThreadId>>);

impl<'a> Holder<'a> {
    /// Records that the calling thread holds the lock.
    fn record(holder: &'a Mutex<Option<ThreadId>>) -> Self {
        *holder.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current().id());
        Self(holder)
    }

    /// Whether the calling thread holds the lock. Only this thread can change the answer.
    fn is_caller(holder: &Mutex<Option<ThreadId>>) -> bool {
        let holder = *holder.lock().unwrap_or_else(PoisonError::into_inner);
        holder == Some(thread::current().id())
    }
}

impl Drop for Holder<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// State for threads that remove ports.
#[derive(Debug, Default)]
pub(crate) struct Changing {
    /// Numbers of all removed ports, the oldest first.
    gone: Vec<usize>,
    /// Numbers of the removed ports that are not settled, the oldest first: packets that other
    /// threads were pushing into these ports at the removal may still come.
    unsettled: VecDeque<usize>,
}

/// Configuration with which new ports are made. A thread that changes all ports keeps this lock
/// until it has given the change to each port. A thread that adds a port also keeps this lock while
/// it does so. So no port misses a change.
#[derive(Clone, Debug)]
pub(crate) struct LinkConfig {
    pub(crate) tree: Arc<onramp_core::Setup>,
    /// The filters for packets that come in, once for each thread that receives.
    pub(crate) ingresses: Vec<LinkIngress>,
    /// Seed of the random numbers that qdiscs draw.
    pub(crate) seed: u64,
    pub(crate) mode: Mode,
    pub(crate) burst: u16,
    /// Size of the largest packet, bytes. `None`: the size that the device reports.
    pub(crate) mtu: Option<u32>,
    /// Whether each qdisc measures the sojourn time of packets.
    pub(crate) measures: bool,
    pub(crate) timing: Timing,
    /// Whether one qdisc at the root may serve all ports together, as in Linux. If false, each port
    /// has a root of its own.
    pub(crate) shares_root: bool,
    /// Ports that have missed a change of the tree. Each gets the whole tree with the next change.
    pub(crate) stale: BTreeSet<usize>,
}

impl LinkConfig {
    /// Notes whether a port has missed a change of the tree.
    pub(crate) fn set_stale(&mut self, port: usize, stale: bool) {
        if stale {
            self.stale.insert(port);
        } else {
            self.stale.remove(&port);
        }
    }

    /// Builds the tree of qdiscs for a port whose device reports that its packets have at most
    /// `mtu` bytes.
    pub(crate) fn build(&self, port: usize, mtu: u32) -> Option<Box<dyn Qdisc>> {
        self.tree.build_port(port, self.mtu(mtu), self.seed(port))
    }

    /// Returns the size in bytes of the largest packet of a port whose device reports the size
    /// `mtu`.
    pub(crate) fn mtu(&self, mtu: u32) -> u32 {
        self.mtu.unwrap_or(mtu)
    }

    /// Returns the seed of the random numbers of a port.
    pub(crate) fn seed(&self, port: usize) -> u64 {
        // Neighbouring seeds do no harm: a good generator makes unrelated random numbers of them.
        self.seed.wrapping_add(port as u64)
    }
}

/// The senders of a link with their counters: those that exist, and the sums over those that were
/// dropped.
#[derive(Debug, Default)]
struct Senders {
    live: Vec<Arc<SenderEnd>>,
    gone: Totals,
    recalls: Recalls,
}

#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) plan: LinkConfig,
    pub(crate) credits: Credits,
    pub(crate) credits_per_port: Option<u32>,
    pub(crate) keeps_own_credits: bool,
    pub(crate) credit_time: Option<Duration>,
    pub(crate) patience_ns: u64,
    pub(crate) rate: Option<SharedRate>,
    pub(crate) runners: usize,
    pub(crate) priority: Option<onramp_dev::Priority>,
    /// In a link without threads, the timer that the program waits for.
    pub(crate) timer: Option<onramp_dev::Timer>,
    pub(crate) ports_max: usize,
    pub(crate) udp: UdpSockets,
}

/// Keeps a link open. Links and senders own it together, but runners do not. So when the last link
/// and the last sender are dropped, the link closes and its runners end.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close(Duration::ZERO);
    }
}

impl Serves<BoxDevice> for Shared {
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
    fn recall(&self) {
        self.recall_all(self.clock.now());
    }
}

impl Shared {
    pub(crate) fn new(setup: Setup) -> Self {
        static LINKS: AtomicU64 = AtomicU64::new(0);
        let read = Read {
            id: LINKS.fetch_add(1, Ordering::Relaxed), // Relaxed: a link's id need only be unique.
            slots: Slots::with_capacity(setup.ports_max),
            rig: match setup.timer {
                Some(timer) => Rig::by_hand(timer),
                None => Rig::new(setup.runners, setup.priority).spinning(setup.plan.timing.spin_ns),
            },
            clock: MonotonicClock,
            credits: setup.credits,
            credit_time: setup.credit_time,
            patience_ns: setup.patience_ns,
            cancels: Cancels::default(),
            credits_per_port: setup.credits_per_port,
            keeps_own_credits: setup.keeps_own_credits,
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
            changer: Mutex::default(),
            plan: Mutex::new(setup.plan),
        };
        Self { read, fair: Fair(AtomicU32::new(u32::MAX)), written }
    }

    /// Whether this is the copy of a link in a forked child. The child has no runners, and some of
    /// the copy's locks may stay locked forever. So the copy sends nothing and waits for nothing.
    #[inline]
    pub(crate) fn is_copy(&self) -> bool {
        onramp_dev::forks() != self.forks
    }

    /// Whether the link accepts no packets and no changes any more, because it is being closed or
    /// is a copy in a forked child.
    pub(crate) fn is_closed(&self) -> bool {
        self.rig.gate.is_closed() || self.is_copy()
    }

    /// Locks out all other threads that add or remove ports, until the returned lock is dropped.
    ///
    /// # Errors
    ///
    /// [`PortError::Closed`] if the link is closed; [`PortError::Nested`] if a waker makes this
    /// call while a port is being added or removed, or if a device makes this call in the thread
    /// that adds or removes a port.
    pub(crate) fn changing(&self) -> Result<Locked<'_, Changing>, PortError> {
        if self.is_copy() {
            return Err(PortError::Closed);
        }
        if Holder::is_caller(&self.written.changer) {
            // A thread that removes a port sends packets of the port, so a device that this thread
            // calls may make this call. Waiting for the lock would be waiting for itself.
            return Err(PortError::Nested);
        }
        let lock = &self.written.changing;
        let guard = if is_in_waker() {
            // This call is made by a waker. The thread that runs the waker may hold the lock
            // itself, or may be a runner for which a removal of a port waits, so waiting for the
            // lock could deadlock.
            match lock.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(PortError::Nested),
                Err(TryLockError::Poisoned(lock)) => lock.into_inner(),
                Ok(guard) => guard,
            }
        } else {
            lock.lock().unwrap_or_else(PoisonError::into_inner)
        };
        let _holder = Some(Holder::record(&self.written.changer));
        let changing = Locked { _holder, guard, _held: None };
        if self.is_closed() { Err(PortError::Closed) } else { Ok(changing) }
    }

    /// Locks the configuration of new ports. While the lock is held, no other thread adds or
    /// changes ports, and wakers that this thread would call are postponed. Returns `None` in a
    /// forked child, where the lock may have been held by another thread when the process forked.
    pub(crate) fn plan(&self) -> Option<Locked<'_, LinkConfig>> {
        if self.is_copy() {
            return None;
        }
        let _held = Some(hold_wakes());
        let guard = self.written.plan.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Locked { _holder: None, guard, _held })
    }

    /// Locks the configuration as [`plan`](Self::plan) does, in order to change it. Returns `None`
    /// if the link is closed.
    pub(crate) fn open_plan(&self) -> Option<Locked<'_, LinkConfig>> {
        self.plan().filter(|_| !self.is_closed())
    }

    /// Adds a port over `device`, and returns its number. Returns `None` if the link may have no
    /// further port. The caller holds the lock on `plan`, and shares the credits out anew
    /// afterwards.
    pub(crate) fn add_port(&self, device: Described, plan: &LinkConfig) -> Option<usize> {
        let number = self.slots.len();
        if number >= self.slots.capacity() {
            return None;
        }
        let Described { device, device_waker, room_call, mtu, may_block } = device;
        let qdisc = plan.build(number, mtu)?;
        let options = PortOptions {
            mode: plan.mode,
            share: self.rate.as_ref().map(|rate| rate.share(number)),
            catch_up_ns: plan.timing.catch_up_ns,
            slack_ns: plan.timing.slack_ns,
            rest_ns: plan.timing.rest_ns,
            cancels: self.cancels.clone(),
            device_waker: Some(device_waker),
        };
        let port = Port::with_options(qdisc, device, plan.burst, options);
        let (front, measures) = (Edit::front(&plan.tree), plan.measures);
        let begin = Box::new(move |root: &mut RootQdisc, cx: &mut Cx<'_>| {
            root.edit(front, cx);
            root.measure(measures);
        });
        let done = port.with(begin, Instant(0), &Nobody);
        debug_assert!(done.is_ok_and(|done| done), "nobody else knows the port");
        let home = number % self.rig.runners.len();
        let slot = Slot::new(port, mtu, may_block, home);
        // Senders may use the port as soon as it is added, so the device must know it by then.
        room_call.lead_to(&self.rig, &self.slots, &slot, number);
        self.slots.add(slot)
    }

    /// Returns the port with this number, which must be the number of a port of this link.
    #[inline]
    pub(crate) fn slot(&self, port: usize) -> &Slot<BoxDevice> {
        self.slots.get(port).unwrap_or_else(|| unreachable!("ports stay: {port}"))
    }

    /// Whether a port accepts no packet at present. The result is only a hint, because it may
    /// change at any time.
    pub(crate) fn is_full(&self, port: usize) -> bool {
        let slot = self.slot(port);
        slot.port.is_full() || self.is_leaving(slot)
    }

    /// Whether a port accepts no packets although it may still hold some: it is about to be
    /// removed, or it was removed while other threads were pushing packets into it. If newer
    /// packets went to its successors meanwhile, they could overtake these packets. A dead port
    /// does not count, because it drops its packets.
    pub(crate) fn is_leaving(&self, slot: &Slot<BoxDevice>) -> bool {
        let succession = &slot.known.succession;
        let waits = |patience| {
            // A sender whose own packet is in this port sees that the port is not quiet (not empty)
            // until that packet has left, so the sender's next packet cannot overtake it.
            !slot.port.is_quiet()
                && slot.port.death().is_none()
                && !self.rig.gate.is_closed()
                && self.clock.now().0 < patience
        };
        succession.is_leaving() || succession.is_gone() && waits(succession.patience())
    }

    /// Settles removed ports: flows no longer wait for packets that may still be in such a port,
    /// and no longer pass the port on the way to their successor. Settles each port whose waiting
    /// time is over, and the oldest ports beyond the last [`UNSETTLED_MAX`] removed ones. If a
    /// packet is still on its way into a port of the second kind, newer packets of its flow may
    /// overtake it; but the packet has then been on its way for as long as the removal of
    /// [`UNSETTLED_MAX`] ports took.
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

    /// Records that `port` was removed.
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

    /// Whether every packet goes to the port of its flow and no packet is refused: the link is
    /// open, and no port has been removed or has died.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.rig.gate.is_open() && !self.is_copy()
    }

    /// Returns why the packets of a flow (its `port` and its `key`) are refused for good, or `None`
    /// if they are not.
    #[cold]
    pub(crate) fn refusal(&self, port: usize, key: u64) -> Option<TrySendError> {
        if self.is_closed() {
            return Some(TrySendError::Closed);
        }
        let slot = self.slot(self.route(port, key));
        slot.port.death().map(|_| TrySendError::PortDead)
    }

    /// Returns the port that serves a flow whose own port is `port` and whose key is `key`: either
    /// `port` itself, or the port that took over the flow.
    #[inline]
    pub(crate) fn route(&self, port: usize, key: u64) -> usize {
        if self.rig.gate.is_open() { port } else { self.successor(self.front(port), key) }
    }

    /// Returns the port whose tree serves the flows of `port`: the first port if one root serves
    /// all ports, otherwise `port` itself.
    pub(crate) fn front(&self, port: usize) -> usize {
        if self.rig.gate.is_one() { 0 } else { port }
    }

    /// Returns the range of ports whose trees serve flows: all ports, or only the first one if one
    /// root serves all ports.
    pub(crate) fn fronts(&self) -> Range<usize> {
        if self.rig.gate.is_one() { 0..1 } else { 0..self.slots.len() }
    }

    /// Follows a change of the tree: if one root serves all ports, sends all flows through the
    /// first port; otherwise, sends each flow through its own port. Returns true if this is
    /// different from before. Then the trees of all ports have to be rebuilt without the packets
    /// that they hold, because newer packets could overtake those packets.
    pub(crate) fn follow(&self, plan: &mut LinkConfig) -> bool {
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
            plan.stale.extend(0..self.slots.len());
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

    pub(crate) fn new_key(&self) -> u64 {
        // Relaxed: a flow's key only has to be unique.
        self.written.next_flow.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the port for the number `n`: a port that accepts packets and, if any such port is
    /// alive, a living one. Consecutive values of `n` spread evenly over the ports.
    pub(crate) fn spread(&self, n: u64) -> usize {
        if !self.rig.gate.has_changed() {
            // All ports are alive, and none was removed.
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
        // No port accepts packets any more: all were removed meanwhile, and the link is closing.
        port.unwrap_or(0)
    }

    /// Returns the number of packets that each sender may have in flight at present, if its own
    /// credits do not bound it more tightly.
    #[inline]
    pub(crate) fn fair_credits(&self) -> u32 {
        self.fair.0.load(Ordering::Relaxed) // Relaxed: any recent share will do.
    }

    /// Returns the number of senders, and the number of packets that each of them may have in
    /// flight at present.
    pub(crate) fn senders_and_credits(&self) -> (u32, u32) {
        // Relaxed: any recent number of senders will do.
        let live = self.written.live.load(Ordering::Relaxed);
        (live, self.fair_credits().min(self.credits.packets))
    }

    /// Shares the credits of all open ports out among the senders anew, after the number of senders
    /// has changed by `change`.
    pub(crate) fn share_out(&self, change: i32) {
        // The lock lets only one thread at a time share out credits, so that an older
        // computation never overwrites the result of a newer one.
        let Some(senders) = self.senders() else { return };
        let ports = if self.rig.gate.is_one() { 1 } else { self.slots.open().count() };
        let ports = u32::try_from(ports).unwrap_or(u32::MAX);
        // Relaxed: any recent number of senders will do.
        let live = self.written.live.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
        let live = live.wrapping_add_signed(change);
        let share = self.credits_per_port.map_or(u32::MAX, |credits| {
            (credits.saturating_mul(ports) / live.max(1)).max(CREDITS_MIN)
        });
        // Relaxed: only a thread that holds the lock on the senders writes the share.
        let before = self.fair.0.load(Ordering::Relaxed);
        if before == share {
            return;
        }
        // SeqCst: pairs with `share_for`. Either a sender that looks for a credit sees the new
        // share, or this thread sees below that the sender lacks a credit.
        self.fair.0.store(share, Ordering::SeqCst);
        // Wake each sender that had no room with the share before, and has room with this one.
        let has_room_now = |end: &&Arc<SenderEnd>| {
            // SeqCst: see the store above.
            (before..share).contains(&end.lacks_with.load(Ordering::SeqCst))
        };
        let ends: Vec<_> = senders.live.iter().filter(has_room_now).cloned().collect();
        // Release the lock first, as in `ring_all`.
        drop(senders);
        ends.iter().for_each(|end| end.bell.ring());
    }

    /// Returns the number of packets that the sender of `end`, which has `out` packets out and
    /// looks for a credit, may have in flight. If the sender has no room then, the thread that
    /// raises the number rings its bell.
    pub(crate) fn share_for(&self, end: &SenderEnd, out: u32) -> u32 {
        // SeqCst: pairs with `share_out`. Either the thread that raises the share sees that this
        // sender lacks a credit, or this sender sees the new share.
        end.lacks_with.store(out, Ordering::SeqCst);
        self.fair.0.load(Ordering::SeqCst) // SeqCst: see the store above.
    }

    /// Whether the link has more senders than the machine has processors.
    pub(crate) fn crowded(&self) -> bool {
        // Relaxed: any recent number of senders will do.
        self.written.live.load(Ordering::Relaxed) > self.processors
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

    /// Returns the sums of the counters of all senders, dropped senders included. In a forked
    /// child, all sums are zero.
    pub(crate) fn sender_totals(&self) -> Totals {
        let Some(senders) = self.senders() else { return Totals::default() };
        let mut totals = senders.gone;
        for end in &senders.live {
            totals.add(&end.counters);
        }
        totals
    }

    /// Wakes every waiting sender (rings its bell), so that it checks again whether the link is
    /// open and what became of its port.
    pub(crate) fn ring_all(&self) {
        let Some(senders) = self.senders() else { return };
        let ends = senders.live.clone();
        // Release the lock first: a waker is arbitrary code, which may make or drop a sender and so
        // take this lock.
        drop(senders);
        ends.iter().for_each(|end| end.bell.ring());
    }

    /// Locks the list of senders. Returns `None` in a forked child, where the lock may have been
    /// held by another thread when the process forked.
    fn senders(&self) -> Option<MutexGuard<'_, Senders>> {
        if self.is_copy() {
            return None;
        }
        Some(self.written.senders.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The waker of a port that no other thread knows yet, so nobody needs to be woken.
struct Nobody;

impl PortWaker for Nobody {
    fn visit_by(&self, _at: Instant) {}
}

#[cfg(test)]
mod tests;
