//! What the senders, the handles and the runners of a link share.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use onramp_core::qdisc::{Cx, Qdisc};
use onramp_core::{Clock, Device, Instant, Keeper, Mode, Port, SharedRate, Trunk};
use onramp_dev::{MonotonicClock, UdpStats};
use onramp_queue::{Credits, DropReason};

use crate::runner::{Gate, Keep, Runner, Serves, Slot};
use crate::slots::Slots;
use crate::stats::{SenderCounters, Totals};
use crate::{Flow, TrySendError};

/// The devices of a link may be of any kind.
pub(crate) type BoxDevice = Box<dyn Device>;

/// How often a flush looks.
const FLUSH_POLL: Duration = Duration::from_micros(200);
/// Packets that all senders together should have below them, for each port: what stays in the
/// processors' caches, and under fq's `limit` of 10,000.
const CREDITS_PER_PORT: u32 = 8_192;
/// Packets that any sender may have below it (if it was given so many).
const CREDITS_MIN: u32 = 4;

/// What the senders, the handles and the runners of a link share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Differs between the links of a process.
    pub(crate) id: u64,
    pub(crate) slots: Slots<BoxDevice>,
    pub(crate) udp: Vec<Arc<UdpStats>>,
    pub(crate) runners: Box<[Runner]>,
    /// Why new packets may be refused.
    pub(crate) gate: Gate,
    pub(crate) clock: MonotonicClock,
    pub(crate) credits: Credits,
    pub(crate) rate: Option<SharedRate>,
    next_flow: AtomicU64,
    live: AtomicU32,
    fair: AtomicU32,
    processors: u32,
    senders: Mutex<Senders>,
    /// Whoever adds or removes ports has it, for as long as that takes. It is taken before `plan`.
    changing: Mutex<()>,
    plan: Mutex<Plan>,
}

/// What a new port shall be. Its lock is held for a moment: by who changes what ports are, until
/// all of them are told, and by who adds one.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
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

impl Plan {
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
    live: Vec<Arc<SenderCounters>>,
    gone: Totals,
}

/// What a link is made with.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) plan: Plan,
    pub(crate) credits: Credits,
    pub(crate) rate: Option<SharedRate>,
    pub(crate) runners: usize,
    pub(crate) ports_max: usize,
    pub(crate) udp: Vec<Arc<UdpStats>>,
}

impl Serves<BoxDevice> for Arc<Shared> {
    fn runners(&self) -> &[Runner] {
        &self.runners
    }
    fn gate(&self) -> &Gate {
        &self.gate
    }
    fn slots(&self) -> &Slots<BoxDevice> {
        &self.slots
    }
}

impl Shared {
    pub(crate) fn new(setup: Setup) -> Self {
        static LINKS: AtomicU64 = AtomicU64::new(0);
        Self {
            id: LINKS.fetch_add(1, Ordering::Relaxed), // Relaxed: it only has to differ.
            slots: Slots::with_capacity(setup.ports_max),
            udp: setup.udp,
            runners: (0..setup.runners).map(|_| Runner::default()).collect(),
            gate: Gate::default(),
            clock: MonotonicClock,
            credits: setup.credits,
            rate: setup.rate,
            next_flow: AtomicU64::new(0),
            live: AtomicU32::new(0),
            fair: AtomicU32::new(u32::MAX),
            processors: thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            senders: Mutex::default(),
            changing: Mutex::default(),
            plan: Mutex::new(setup.plan),
        }
    }

    /// Keeps everybody else from adding and removing ports.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What new ports shall be; keeps everybody else from adding and changing ports.
    pub(crate) fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a port over `device`; `None`: there is no room. The caller has the lock on `plan`, and
    /// shares the credits out.
    pub(crate) fn add_port(&self, device: BoxDevice, plan: &Plan) -> Option<usize> {
        let port = self.slots.len();
        if port >= self.slots.capacity() {
            return None;
        }
        let mtu = device.info().mtu;
        let qdisc = plan.build(port, mtu)?;
        let share = self.rate.as_ref().map(|rate| rate.share(port));
        let port = Port::with_mode(qdisc, device, plan.burst, plan.mode, share);
        if plan.measures {
            let measure = Box::new(|trunk: &mut Trunk, _: &mut Cx<'_>| trunk.measure(true));
            let done = port.with(measure, Instant(0), &Nobody);
            debug_assert!(done.is_ok_and(|done| done), "nobody else knows the port");
        }
        let home = self.slots.len() % self.runners.len();
        self.slots.add(Slot::new(port, mtu, home))
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
    /// their way in. What goes to its heirs meanwhile could overtake these.
    pub(crate) fn is_leaving(&self, slot: &Slot<BoxDevice>) -> bool {
        let waits = |patience| {
            // Who brought one finds it here, or sent.
            !slot.port.is_quiet() && !self.gate.is_closed() && self.clock.now() < patience
        };
        slot.is_leaving() || slot.patience().is_some_and(waits)
    }

    pub(crate) fn ports(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn keep<'a>(&'a self, slot: &'a Slot<BoxDevice>) -> Keep<'a, BoxDevice> {
        Keep { runners: &self.runners, gate: &self.gate, slot, clock: &self.clock }
    }

    /// Why packets of `flow` are refused for good, if they are.
    #[inline]
    pub(crate) fn refusal(&self, flow: &Flow) -> Option<TrySendError> {
        if self.gate.is_open() { None } else { self.reason(flow) }
    }

    #[cold]
    fn reason(&self, flow: &Flow) -> Option<TrySendError> {
        if self.gate.is_closed() {
            return Some(TrySendError::Closed);
        }
        let slot = self.slot(self.route(flow.port, flow.key));
        slot.port.death().map(|_| TrySendError::PortDead)
    }

    /// The port that serves the flow `key` of `port`: that one, or who took over from it.
    #[inline]
    pub(crate) fn route(&self, port: usize, key: u64) -> usize {
        if self.gate.is_open() { port } else { self.heir(self.front(port), key) }
    }

    /// The port whose tree serves the flows of `port`.
    pub(crate) fn front(&self, port: usize) -> usize {
        if self.gate.is_one() { 0 } else { port }
    }

    /// The ports whose trees serve flows, all of them or the first.
    pub(crate) fn fronts(&self) -> Range<usize> {
        if self.gate.is_one() { 0..1 } else { 0..usize::MAX }
    }

    /// Sends all flows through the first port if the root of the tree serves all of them together,
    /// else each through its own. True: it was otherwise, and the trees of all ports are to be
    /// built anew, without what they hold: packets that came before could be overtaken.
    pub(crate) fn follow(&self, plan: &Plan) -> bool {
        let first = self.slot(0);
        let one = plan.shares_root
            && plan.tree.has_one_root()
            && self.ports() > 1
            && first.is_open()
            && first.port.death().is_none();
        let moves = one != self.gate.is_one();
        if moves {
            self.gate.set_one(one);
            self.share_out(0);
            self.slots.iter().for_each(|slot| slot.set_stale(true));
        }
        moves
    }

    #[cold]
    fn heir(&self, mut port: usize, key: u64) -> usize {
        loop {
            let slot = self.slot(port);
            match slot.heir(key) {
                Some(heir) if !self.is_leaving(slot) => port = heir,
                _ => return port,
            }
        }
    }

    /// Numbers a new flow.
    pub(crate) fn new_key(&self) -> u64 {
        // Relaxed: a number that only has to differ.
        self.next_flow.fetch_add(1, Ordering::Relaxed)
    }

    /// An open port for whatever has the number `n`, a living one if there is one: they spread
    /// evenly.
    pub(crate) fn spread(&self, n: u64) -> usize {
        if !self.gate.has_changed() {
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
        self.fair.load(Ordering::Relaxed) // Relaxed: any recent number will do.
    }

    /// Shares the credits of all open ports out again, after `change` of the number of senders.
    pub(crate) fn share_out(&self, change: i32) {
        // One after another, so that the last result is that of the last numbers.
        let _one = self.senders();
        let ports = if self.gate.is_one() { 1 } else { self.slots.open().count() };
        let ports = u32::try_from(ports).unwrap_or(u32::MAX);
        // Relaxed: see `fair_credits`.
        let before = self.live.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
        let live = before.wrapping_add_signed(change);
        let share = CREDITS_PER_PORT.saturating_mul(ports) / live.max(1);
        self.fair.store(share.max(CREDITS_MIN), Ordering::Relaxed); // Relaxed: as above.
    }

    /// Whether there are more senders than processors.
    pub(crate) fn crowded(&self) -> bool {
        self.live.load(Ordering::Relaxed) > self.processors // Relaxed: as in `fair_credits`.
    }

    pub(crate) fn add_sender(&self, counters: Arc<SenderCounters>) {
        self.senders().live.push(counters);
        self.share_out(1);
    }

    pub(crate) fn remove_sender(&self, counters: &Arc<SenderCounters>) {
        let mut senders = self.senders();
        senders.gone.add(counters);
        senders.live.retain(|live| !Arc::ptr_eq(live, counters));
        drop(senders);
        self.share_out(-1);
    }

    /// What all senders counted, those that are gone too.
    pub(crate) fn sender_totals(&self) -> Totals {
        let senders = self.senders();
        let mut totals = senders.gone;
        for sender in &senders.live {
            totals.add(sender);
        }
        totals
    }

    fn senders(&self) -> MutexGuard<'_, Senders> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn purged(&self) -> u64 {
        self.slots.iter().map(|slot| slot.port.stats().dropped.get(DropReason::Purged)).sum()
    }

    /// Waits until the ports that `these` names hold nothing, at most `timeout`. True if so.
    pub(crate) fn flush(&self, timeout: Duration, these: impl Fn(usize) -> bool) -> bool {
        let deadline = self.clock.now() + timeout;
        let slots = || (0..self.ports()).filter(|port| these(*port)).map(|port| self.slot(port));
        loop {
            for slot in slots() {
                let _ = slot.port.help(self.clock.now(), &self.keep(slot));
            }
            if slots().all(|slot| slot.port.is_quiet()) {
                return true;
            }
            let left = deadline.since(self.clock.now());
            if left == 0 {
                return false;
            }
            thread::sleep(Duration::from_nanos(left).min(FLUSH_POLL));
        }
    }

    /// Closes a port for good: what it holds, and what still comes, is purged.
    pub(crate) fn close_port(&self, slot: &Slot<BoxDevice>) {
        let give_up = self.clock.now() + OWNER_PATIENCE;
        while slot.port.close(self.clock.now(), &self.keep(slot)).is_none() {
            // Its owner leaves after at most a quota, unless the device blocks: then the port
            // keeps what it holds.
            if self.clock.now() > give_up {
                break;
            }
            thread::yield_now();
        }
    }
}

/// Looks after a port that nobody has seen yet.
struct Nobody;

impl Keeper for Nobody {
    fn keep(&self, _at: Instant) {}
}

/// How long a close waits for the owner of a port.
const OWNER_PATIENCE: Duration = Duration::from_secs(1);
