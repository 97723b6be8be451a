//! The path of a packet, on one screen: intake → owner → qdisc → device.
//!
//! ```text
//! push ─▶ staged, and leave
//!   └──▶ owner: take all ─▶ enqueue ─▶ dequeue a burst ─▶ transmit ─▶ ... ─▶ leave ─▶ free
//! ```
//!
//! A port is *busy* when packets come faster than is worth sending one by one. Then a push only
//! stages, until [`BATCH`] packets wait: whoever makes them so many sends them, as a batch. A
//! sender that has run out of credit sends too, instead of waiting. The keeper (a runner thread)
//! looks after what is left every [`TICK_NS`], and ends the busy period when little comes.
//!
//! Invariant: packets that are held and owned by nobody are known to the keeper. It is told
//! before the owner leaves, so it misses nothing.
//!
//! Source: the quota is Linux's `dev_tx_weight`, the shape that of `__qdisc_run`
//! (`net/sched/sch_generic.c`, 7.2). The collecting of packets is what network cards do with
//! interrupts (`ethtool -C tx-usecs`).

use std::any::Any;
use std::fmt;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use onramp_queue::{DropReason, Full, Intake, Owner, PacketList, Pushed};

use crate::qdisc::{Cx, Dequeue, KINDS, Qdisc, Spec};
use crate::stats::{PortSnapshot, PortStats};
use crate::{Device, Instant};

/// Packets an owner sends before it leaves the rest to others (`dev_tx_weight`).
pub const QUOTA: u32 = 64;
/// Packets an owner takes into the qdisc at most, in one run.
const ENQUEUE_QUOTA: u32 = 4 * QUOTA;
/// Packets that a busy port collects before a push sends them: what one segmented message takes.
pub const BATCH: u16 = 64;
/// How long a busy port may leave packets lying, nanoseconds.
pub const TICK_NS: u64 = 100_000;
/// So many packets in one tick make a port busy.
const BUSY_PACKETS: u32 = 24;
/// Fewer in one tick end that.
const IDLE_PACKETS: u32 = 12;

/// Who looks after packets that wait with no owner.
pub trait Keeper {
    /// Visits the port (calls [`Port::visit`]) at `at`, or before.
    fn keep(&self, at: Instant);

    /// Learns that the port died: see [`Port::death`].
    fn died(&self) {}
}

/// What a run did.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Packets that left the port, sent or dropped.
    pub done: u32,
    /// The quota was used up: there is more to do at once.
    pub again: bool,
}

/// A qdisc in front of one device queue, behind one intake.
///
/// A port whose qdisc or device panics is *dead*: it drops what it held and whatever still comes,
/// as [`DropReason::PortDead`]. The panic goes no further: the thread that met it had only come by
/// with a packet.
pub struct Port<D> {
    intake: Intake<Root<D>>,
    stats: PortStats,
    death: OnceLock<Box<str>>,
}

/// The owner counts on lines that producers do not touch.
const _: () = {
    const LINES: usize = 128;
    assert!(align_of::<Port<u8>>() == LINES && size_of::<Intake<Root<u8>>>().is_multiple_of(LINES));
    assert!(offset_of!(Port<u8>, intake).is_multiple_of(LINES));
};

/// What the owner works on.
struct Root<D> {
    qdisc: Box<dyn Qdisc>,
    device: D,
    /// The latest time an owner came with.
    now: Instant,
    /// Taken from the intake, not yet in the qdisc: the cap and one push at most. Not left alone
    /// in an idle intake, where nothing would bound it.
    inbox: PacketList,
    /// Dequeued, not yet taken by the device: no more than one burst.
    burst: PacketList,
    /// The device was full, and is not asked before then.
    retry_at: Instant,
    /// Start of the present tick, and packets that came in it.
    tick_start: Instant,
    tick_packets: u32,
    /// Packets that came, ever.
    came: u64,
    /// Nothing is sent any more; what comes is dropped for this.
    closed: Option<DropReason>,
}

/// What an owner may still send, and what of it the device handed on.
struct Quota {
    left: u32,
    handed: u32,
}

/// Why an owner stopped sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Nothing is held.
    Empty,
    /// Nothing may go, or the device takes nothing, before then.
    Until(Instant),
    /// The quota is used up.
    Quota,
}

impl<D: Device> Port<D> {
    /// Puts `qdisc` in front of `device`, and an intake for `cap` packets in front of both.
    pub fn new(qdisc: Box<dyn Qdisc>, device: D, cap: u16) -> Self {
        let root = Root {
            qdisc,
            device,
            now: Instant(0),
            inbox: PacketList::new(),
            burst: PacketList::new(),
            retry_at: Instant(0),
            tick_start: Instant(0),
            tick_packets: 0,
            came: 0,
            closed: None,
        };
        let intake = Intake::new(root, cap, BATCH.min(cap));
        Self { intake, stats: PortStats::default(), death: OnceLock::new() }
    }

    /// Accepts packets for scheduling. Their fate is told by completions and statistics.
    ///
    /// Stages them and leaves (`None`), or, as owner, sends up to a quota.
    ///
    /// # Errors
    ///
    /// Gives the packets back when the intake is at its cap.
    #[inline]
    pub fn xmit(
        &self,
        packets: PacketList,
        now: Instant,
        keeper: &impl Keeper,
    ) -> Result<Option<Ran>, Full> {
        Ok(match self.intake.push(packets)? {
            Pushed::Staged => None,
            Pushed::Owner { owner, fresh } => Some(self.run(owner, fresh, now, keeper, false)),
        })
    }

    /// Sends up to a quota: for a sender that would have to wait. `None`: somebody owns the port.
    pub fn help(&self, now: Instant, keeper: &impl Keeper) -> Option<Ran> {
        let owner = self.intake.own()?;
        self.stats.helped.add(1);
        Some(self.run(owner, PacketList::new(), now, keeper, false))
    }

    /// The keeper's visit. `None`: somebody owns the port; come again after a tick.
    pub fn visit(&self, now: Instant, keeper: &impl Keeper) -> Option<Ran> {
        let owner = self.intake.own()?;
        Some(self.run(owner, PacketList::new(), now, keeper, true))
    }

    /// The owner's work: take what came, send up to a quota, leave.
    fn run(
        &self,
        mut owner: Owner<'_, Root<D>>,
        mut fresh: PacketList,
        now: Instant,
        keeper: &impl Keeper,
        visit: bool,
    ) -> Ran {
        let was_busy = owner.was_busy();
        // Threads read the clock before they get hold of the port, and may be late. Time that went
        // back would put packets of one flow out of order.
        let now = now.max(owner.now);
        owner.now = now;
        let mut done = PacketList::new(); // goes home when the port is let go
        let mut quota = Quota { left: QUOTA, handed: 0 };
        self.stats.runs.add(1);
        let stop = loop {
            let takes = owner.inbox.is_empty();
            owner.receive(&mut fresh);
            if takes {
                let mut taken = owner.take();
                owner.receive(&mut taken);
            }
            let turn = AssertUnwindSafe(|| owner.turn(&mut done, &mut quota, now, &self.stats));
            let stop = catch_unwind(turn).unwrap_or_else(|panic| {
                let _ = self.death.set(why(&*panic)); // It dies once.
                owner.bury(&self.stats);
                keeper.died();
                Stop::Empty
            });
            self.stats.backlog.set(owner.backlog());
            if let Stop::Until(at) = stop {
                keeper.keep(at);
            }
            if owner.is_busy(was_busy, stop, visit, now) {
                self.stats.busy.add(u64::from(!was_busy));
                // The keeper ticks by itself; others only make sure of it, later than its tick.
                keeper.keep(now.after(if visit { TICK_NS } else { 2 * TICK_NS }));
                owner.leave_busy();
                break stop;
            }
            match owner.leave_idle() {
                Ok(()) => break stop,
                Err(still) => owner = still,
            }
        };
        Ran { done: done.len() + quota.handed, again: stop == Stop::Quota }
    }

    /// What it counted.
    pub fn stats(&self) -> &PortStats {
        &self.stats
    }

    /// What it counted, as plain values.
    pub fn snapshot(&self) -> PortSnapshot {
        self.stats.snapshot(u64::from(self.intake.waiting()))
    }

    /// Why the port is dead, if it is: what its qdisc or its device said as it panicked.
    pub fn death(&self) -> Option<&str> {
        self.death.get().map(|why| &**why)
    }

    /// Whether nothing is held and nobody is at it. A hint while senders run.
    pub fn is_quiet(&self) -> bool {
        // In this order: with the intake quiet, the last owner has counted what it left.
        self.intake.is_quiet() && self.stats.backlog.get() == 0
    }

    /// Whether the intake is at its cap. A hint.
    pub fn is_full(&self) -> bool {
        self.intake.waiting() >= u32::from(self.intake.cap())
    }

    /// Whether packets are being collected. A hint.
    pub fn is_busy(&self) -> bool {
        self.intake.is_busy()
    }

    /// Drops everything that is held, and whatever still comes, as [`DropReason::Purged`].
    /// `None`: somebody owns the port; try again.
    pub fn close(&self, now: Instant, keeper: &impl Keeper) -> Option<Ran> {
        let mut owner = self.intake.own()?;
        owner.closed.get_or_insert(DropReason::Purged);
        Some(self.run(owner, PacketList::new(), now, keeper, true))
    }
}

impl<D: Device> Root<D> {
    /// Takes packets in, for the next turn.
    fn receive(&mut self, packets: &mut PacketList) {
        self.came += u64::from(packets.len());
        self.inbox.append(packets);
    }

    /// All of it that may panic: qdisc and device are anybody's code.
    fn turn(
        &mut self,
        done: &mut PacketList,
        quota: &mut Quota,
        now: Instant,
        stats: &PortStats,
    ) -> Stop {
        if let Some(reason) = self.closed {
            return self.purge(reason, done, now, stats);
        }
        self.enqueue(done, now, stats);
        self.send(done, quota, now, stats)
    }

    /// Moves what came into the qdisc.
    fn enqueue(&mut self, done: &mut PacketList, now: Instant, stats: &PortStats) {
        let Some(oldest) = self.inbox.front() else { return };
        // Only the oldest: a take is one event, and its length is known.
        stats.staging_ns.record(now.since(Instant(oldest.enqueued_ns)));
        let mut drops = PacketList::new();
        let mut cx = Cx { now, drops: &mut drops };
        let came = self.inbox.len().min(ENQUEUE_QUOTA);
        for pkt in self.inbox.by_ref().take(came as usize) {
            // The verdict is told by `drops`.
            let _ = self.qdisc.enqueue(pkt, &mut cx);
        }
        self.tick_packets += came;
        stats.enqueued.add(u64::from(came));
        stats.count_drops(&drops);
        done.append(&mut drops);
    }

    /// Feeds the device until there is nothing to send, or no more than `quota` allows.
    fn send(
        &mut self,
        done: &mut PacketList,
        quota: &mut Quota,
        now: Instant,
        stats: &PortStats,
    ) -> Stop {
        if now < self.retry_at {
            return Stop::Until(self.retry_at);
        }
        loop {
            let next = self.fill(quota.left, done, now, stats);
            if self.burst.is_empty() {
                return self.settle(next);
            }
            stats.bursts.add(1);
            let (offered, bytes) = (self.burst.len(), self.burst.bytes());
            stats.burst_packets.record(u64::from(offered));
            let oldest = self.burst.front().map_or(now, |pkt| Instant(pkt.enqueued_ns));
            let mut out = PacketList::new();
            let transmitted = self.device.transmit(&mut self.burst, &mut out, now);
            let gone = offered - self.burst.len();
            quota.left = quota.left.saturating_sub(gone);
            quota.handed += gone.saturating_sub(out.len());
            stats.count_out(gone, bytes - self.burst.bytes(), now.since(oldest), &mut out);
            done.append(&mut out);
            if transmitted.retry_at.is_some() || !self.burst.is_empty() {
                // A device that does not say when is asked after a tick.
                self.retry_at = transmitted.retry_at.unwrap_or_else(|| now.after(TICK_NS));
                return Stop::Until(self.retry_at);
            }
            if next != Stop::Quota || quota.left == 0 {
                return self.settle(next);
            }
        }
    }

    /// Tops the burst up from the qdisc; says what stops it if the burst stays empty.
    fn fill(&mut self, left: u32, done: &mut PacketList, now: Instant, stats: &PortStats) -> Stop {
        let mut drops = PacketList::new();
        let mut cx = Cx { now, drops: &mut drops };
        let stop = loop {
            if self.burst.len() >= left {
                break Stop::Quota;
            }
            match self.qdisc.dequeue(&mut cx) {
                Dequeue::Ready(pkt) => {
                    pkt.prefetch();
                    self.burst.push_back(pkt);
                }
                Dequeue::NotBefore(at) => break Stop::Until(at),
                Dequeue::Empty => break Stop::Empty,
            }
        };
        stats.count_drops(&drops);
        done.append(&mut drops);
        stop
    }

    /// Corrects `stop` by what is left: a quota may end with the last packet, and an empty qdisc
    /// means little while the inbox is not.
    fn settle(&self, stop: Stop) -> Stop {
        match stop {
            Stop::Quota if self.backlog() == 0 => Stop::Empty,
            Stop::Empty | Stop::Until(_) if !self.inbox.is_empty() => Stop::Quota,
            stop => stop,
        }
    }

    /// Whether the port shall be left busy.
    fn is_busy(&mut self, was_busy: bool, stop: Stop, visit: bool, now: Instant) -> bool {
        let came = self.tick_packets;
        let tick_over = now.since(self.tick_start) >= TICK_NS;
        if tick_over {
            (self.tick_start, self.tick_packets) = (now, 0);
        }
        match stop {
            _ if self.closed.is_some() => false,
            Stop::Quota => true,
            _ if !self.inbox.is_empty() => true,
            _ if was_busy => !(visit && tick_over && came < IDLE_PACKETS),
            _ => !tick_over && came >= BUSY_PACKETS,
        }
    }

    fn backlog(&self) -> u64 {
        let packets = self.inbox.len() + self.burst.len() + self.qdisc.backlog().packets;
        u64::from(packets)
    }

    /// Drops all that is held.
    fn purge(
        &mut self,
        reason: DropReason,
        done: &mut PacketList,
        now: Instant,
        stats: &PortStats,
    ) -> Stop {
        let mut drops = PacketList::new();
        let mut cx = Cx { now, drops: &mut drops };
        let mut held = std::mem::take(&mut self.inbox);
        held.append(&mut self.burst);
        for pkt in held {
            cx.drop(pkt, reason);
        }
        self.qdisc.reset(&mut cx);
        stats.count_drops(&drops);
        done.append(&mut drops);
        Stop::Empty
    }

    /// Ends it after a panic. What it holds goes home as it is: a packet that nobody spoke for
    /// says that its port died. What the panic took with it is known by number.
    fn bury(&mut self, stats: &PortStats) {
        self.closed = Some(DropReason::PortDead);
        let qdisc = std::mem::replace(&mut self.qdisc, Spec::new(&KINDS[0]).build(0));
        // It may be broken, and panic again.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(qdisc)));
        drop(std::mem::take(&mut self.inbox));
        drop(std::mem::take(&mut self.burst));
        let lost = self.came - stats.sent.get() - stats.dropped.total();
        stats.dropped.add(DropReason::PortDead, lost);
    }
}

/// What a panic said.
fn why(panic: &(dyn Any + Send)) -> Box<str> {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic").into()
}

impl<D> fmt::Debug for Port<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("intake", &self.intake).finish_non_exhaustive()
    }
}
