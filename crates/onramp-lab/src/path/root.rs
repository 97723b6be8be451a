//! A qdisc behind a root lock, and the device behind the qdisc: the part that all designs with
//! locks share.
//!
//! The thread that has set `running` dequeues under the root lock, releases the lock while the
//! device works, and takes the lock again for the next batch. When it takes the lock again, it
//! competes with the threads that enqueue.
//!
//! Source: the structure of `__qdisc_run`, `qdisc_restart` and `sch_direct_xmit` in Linux
//! (`net/sched/sch_generic.c`, 2.6.25 to 7.2), by their behaviour.

use std::collections::BTreeMap;

use onramp_core::Setup;
use onramp_core::qdisc::{Cx, Dequeue, Qdisc, Verdict};
use onramp_core::{Device, Instant, QUOTA};
use onramp_queue::{DropReason, Packet, PacketList};

use super::{Account, DEVICE, ROOT, WorkerContext};
use crate::cell::{Guard, LockCell, Padded};
use crate::lock::{Lock, Spin};
use crate::measure::PhaseCell;
use crate::memory;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The data behind the root lock.
#[derive(Debug)]
pub(crate) struct Root {
    qdisc: Box<dyn Qdisc>,
    /// Whether a thread is dequeuing. While one is, all other threads only enqueue.
    pub(crate) running: bool,
    /// The latest clock reading that any thread has passed to `set_now`.
    now: Instant,
    /// Packets that must be sent before the packets of the qdisc: packets that bypassed the qdisc,
    /// and packets that the device did not take.
    next: PacketList,
    /// Whether a packet that finds the qdisc empty may bypass the qdisc (`TCQ_F_CAN_BYPASS`).
    bypass: bool,
    dropped: [u64; DropReason::ALL.len()],
}

/// The data behind the transmit lock.
struct Transmit {
    device: Box<dyn Device>,
    /// Number of packets that the device took.
    sent: u64,
}

/// One queue of the device, with its qdisc.
pub(crate) struct Queue<L: Lock> {
    pub(crate) root: LockCell<L, Root>,
    /// A copy of `Root::running` that can be read without the lock, and is only a hint. `None` for
    /// designs that do not read it.
    running: Option<Padded<AtomicBool>>,
    transmit: LockCell<Spin, Transmit>,
    /// Time at which a thread must run the qdisc even if no thread sends.
    watchdog: Padded<AtomicU64>,
}

/// A phase of the experiment that never becomes `Stop`: a thread that waits for the transmit lock
/// in this phase never gives up. Only the thread that has set `running` takes that lock.
static GOES_ON: PhaseCell = PhaseCell::new();

impl Root {
    fn new(tree: &Setup, mtu: u32) -> Self {
        let qdisc = tree.build(mtu, 0).expect("a tree has a root");
        Self {
            bypass: qdisc.can_bypass(),
            qdisc,
            running: false,
            now: Instant(0),
            next: PacketList::new(),
            dropped: [0; DropReason::ALL.len()],
        }
    }

    /// Advances the qdisc's time to `now`. Threads read the clock before they get the lock, so
    /// `now` may be older than the time that another thread has set; the qdisc's time never goes
    /// back.
    pub(crate) fn set_now(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Enqueues a packet. If no thread dequeues, the qdisc is empty and its kind may be bypassed,
    /// the packet bypasses the qdisc instead. Dropped packets are added to `done`.
    #[inline]
    pub(crate) fn enqueue(&mut self, pkt: Packet, done: &mut PacketList) -> Verdict {
        if self.bypass && !self.running && self.is_empty() {
            self.next.push_back(pkt);
            return Verdict::Queued;
        }
        let mut drops = PacketList::new();
        let verdict = self.qdisc.enqueue(pkt, &mut Cx::new(self.now, &mut drops));
        self.count(&mut drops, done);
        verdict
    }

    /// Dequeues up to `max` packets. Also returns the time at which the qdisc must be run again;
    /// `Instant::MAX` if the qdisc does not ask for that.
    fn dequeue(&mut self, max: u32, done: &mut PacketList) -> (PacketList, Instant) {
        let mut burst = std::mem::take(&mut self.next);
        let (mut drops, mut again) = (PacketList::new(), Instant::MAX);
        if self.bypass && self.qdisc.backlog().packets == 0 {
            return (burst, again);
        }
        let mut cx = Cx::new(self.now, &mut drops);
        while burst.len() < max {
            match self.qdisc.dequeue(&mut cx) {
                Dequeue::Ready(pkt) => {
                    pkt.prefetch();
                    burst.push_back(pkt);
                }
                Dequeue::NotBefore(at) => {
                    again = at;
                    break;
                }
                Dequeue::Empty => break,
            }
        }
        self.count(&mut drops, done);
        (burst, again)
    }

    fn count(&mut self, drops: &mut PacketList, done: &mut PacketList) {
        for meta in drops.metas() {
            self.dropped[meta.drop_reason.unwrap_or(DropReason::DeviceError) as usize] += 1;
        }
        done.append(drops);
    }

    fn is_empty(&self) -> bool {
        self.next.is_empty() && self.qdisc.backlog().packets == 0
    }
}

impl<L: Lock> Queue<L> {
    /// Makes a queue; `hints` says whether this design will call `is_running`.
    pub(crate) fn new(tree: &Setup, device: Box<dyn Device>, hints: bool) -> Self {
        let mtu = device.info().mtu;
        Self {
            root: LockCell::new(Root::new(tree, mtu)),
            running: hints.then(Padded::default),
            transmit: LockCell::new(Transmit { device, sent: 0 }),
            watchdog: Padded(AtomicU64::new(u64::MAX)),
        }
    }

    /// Whether a thread is dequeuing. The answer is only a hint.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        // Relaxed: the value is only a hint.
        self.running.as_ref().is_some_and(|running| running.0.load(Ordering::Relaxed))
    }

    #[inline]
    fn set_running(&self, root: &mut Root, running: bool) {
        root.running = running;
        if let Some(hint) = &self.running {
            hint.0.store(running, Ordering::Relaxed); // Relaxed: the value is only a hint.
        }
    }

    /// Makes the calling thread the one that dequeues, unless another thread is dequeuing
    /// (`qdisc_run_begin`). Returns true if the calling thread now dequeues.
    #[inline]
    pub(crate) fn run_begin(&self, root: &mut Root) -> bool {
        let begins = !root.running;
        if begins {
            self.set_running(root, true);
        }
        begins
    }

    /// Dequeues and sends until no packet is left or the quota is used up. The calling thread must
    /// be the one that dequeues. Returns the root lock's guard, or `None`, with the lock not held,
    /// if the experiment was stopped meanwhile.
    pub(crate) fn run<'a>(
        &'a self,
        mut root: Guard<'a, L, Root>,
        done: &mut PacketList,
        context: &mut WorkerContext<'_>,
    ) -> Option<Guard<'a, L, Root>> {
        let mut left = QUOTA;
        loop {
            let (mut burst, again) = root.dequeue(left, done);
            // Relaxed: the time publishes no other data. A thread that sleeps until an outdated
            // time may wake too early, which is harmless, or too late. But this thread reads its
            // own store before it sleeps, so it wakes in time and runs the qdisc.
            if self.watchdog.0.load(Ordering::Relaxed) != again.0 {
                // Relaxed: the time publishes no other data.
                self.watchdog.0.store(again.0, Ordering::Relaxed);
            }
            if burst.is_empty() {
                self.set_running(&mut root, false);
                return Some(root);
            }
            let now = root.now;
            root.unlock(&mut context.notes.locks[ROOT]);
            let sent = self.transmit(&mut burst, done, now, context);
            let taken = &mut context.notes.locks[ROOT];
            let Some(back) = self.root.lock_as_owner(context.seat.phase, taken) else {
                // The experiment was stopped. The device must have taken all packets: nobody would
                // count a packet that is still in `burst`.
                debug_assert!(burst.is_empty(), "the devices of the laboratory take everything");
                return None;
            };
            root = back;
            left = left.saturating_sub(sent);
            root.next = burst;
            if left == 0 || !root.next.is_empty() {
                context.scheduled |= !root.is_empty();
                self.set_running(&mut root, false);
                return Some(root);
            }
        }
    }

    fn transmit(
        &self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
        context: &mut WorkerContext<'_>,
    ) -> u32 {
        let notes = &mut context.notes.locks[DEVICE];
        let locked = self.transmit.lock(&GOES_ON, notes);
        let mut transmit = locked.unwrap_or_else(|| unreachable!("nobody says stop"));
        let mut out = PacketList::new();
        let _ = transmit.device.transmit(burst, &mut out, now);
        let sent = out.len();
        transmit.sent += u64::from(sent);
        transmit.unlock(notes);
        done.append(&mut out);
        sent
    }

    /// Runs the qdisc, unless another thread is running it.
    pub(crate) fn net_tx(&self, context: &mut WorkerContext<'_>) {
        let taken = &mut context.notes.locks[ROOT];
        let Some(mut root) = self.root.lock(context.seat.phase, taken) else { return };
        let mut done = PacketList::new();
        root.set_now(context.now);
        if self.run_begin(&mut root) {
            let Some(back) = self.run(root, &mut done, context) else { return };
            root = back;
        }
        root.unlock(&mut context.notes.locks[ROOT]);
        memory::free(done, None);
    }

    pub(crate) fn watchdog(&self) -> Instant {
        // Relaxed: the time publishes no other data.
        Instant(self.watchdog.0.load(Ordering::Relaxed))
    }

    /// Sends all packets that are left, even those whose time has not come, and adds the counts of
    /// this queue to `account`.
    pub(crate) fn finish(&mut self, late: PacketList, account: &mut Account) {
        let (root, transmit) = (self.root.get_mut(), self.transmit.get_mut());
        let mut done = PacketList::new();
        for pkt in late {
            let _ = root.enqueue(pkt, &mut done); // The root counts a drop of `pkt`.
        }
        loop {
            let (mut burst, again) = root.dequeue(QUOTA, &mut done);
            if burst.is_empty() && again == Instant::MAX {
                break;
            }
            root.set_now(if again == Instant::MAX { root.now } else { again });
            let mut out = PacketList::new();
            let _ = transmit.device.transmit(&mut burst, &mut out, root.now);
            transmit.sent += u64::from(out.len());
            root.next = burst;
        }
        account.sent += transmit.sent;
        account.held += u64::from(root.qdisc.backlog().packets);
        add_drops(&mut account.dropped, |reason| root.dropped[reason as usize]);
    }
}

/// Adds `count(reason)` to the entry of each drop reason in `into`; adds no entry for zero drops.
pub(crate) fn add_drops(into: &mut BTreeMap<&'static str, u64>, count: impl Fn(DropReason) -> u64) {
    for reason in DropReason::ALL {
        let dropped = count(*reason);
        if dropped > 0 {
            *into.entry(reason.name()).or_default() += dropped;
        }
    }
}
