//! How a packet passes through a port, in one file: intake → owner → qdisc → device.
//!
//! ```text
//! push ─▶ staged, and leave
//!   └──▶ owner: take all ─▶ enqueue ─▶ dequeue a burst ─▶ transmit ─▶ ... ─▶ leave ─▶ free
//! ```
//!
//! A port is *busy* when packets arrive so fast that sending them one by one would be wasteful. In
//! a busy port, a push only stages packets. A sender that has run out of credit becomes the owner
//! and sends the staged packets as a batch, instead of waiting. The runner (a background thread)
//! visits a busy port every [`TICK_NS`] nanoseconds, sends the packets that are left, and ends the
//! busy period when few packets arrive. If the runner is late, the push that brings the number of
//! staged packets to [`COLLECT`] sends them.
//!
//! Invariant: the runner knows of every port that holds packets and has no owner. An owner that
//! leaves packets behind, or leaves the port busy, tells the runner before it leaves, so the runner
//! misses no packet.
//!
//! Source: [`QUOTA`] is Linux's `dev_tx_weight`, and the owner's loop has the shape of
//! `__qdisc_run` (`net/sched/sch_generic.c`, 7.2). Network cards collect packets in the same way
//! between two interrupts (`ethtool -C tx-usecs`).

mod cancel;
mod control;
mod device;
mod end;
mod job;
mod lent;
mod own_time;
mod pace;
mod read;
mod run;
mod share;
mod state;

use std::collections::VecDeque;
use std::fmt;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use onramp_queue::{Cancels, Full, Intake, Owner, PacketList, Pushed};

pub use self::device::{Device, DeviceInfo, DeviceWaker, Transmitted};
pub use self::job::{JOBS_MAX, Job, TooManyJobs};
pub use self::own_time::CATCH_UP_NS;
pub use self::share::{Share, SharedRate};

use self::control::JOB_LOOKS;
use self::run::{Caller, Leave, Quota, Run, Stop};
use self::state::PortState;
use crate::base::Instant;
use crate::base::stats::PortStats;
use crate::base::sync::{AtomicU8, Mutex};
use crate::sched::Qdisc;

/// The largest number of packets that an owner sends in one run (from becoming owner to leaving the
/// port), as `dev_tx_weight` in Linux. The owner leaves the other packets to other threads.
pub const QUOTA: u32 = 64;
/// The owner's quota instead of [`QUOTA`] if the device sends bursts without a call into the kernel
/// (so sending costs little), and if packets that the owner leaves behind would have to wait for
/// the runner.
const LONG_QUOTA: u32 = 4 * QUOTA;
/// Once an owner's run has lasted for this many nanoseconds, the owner begins no further burst in
/// that run.
pub const QUOTA_NS: u64 = 100_000;
/// Once an owner's run has lasted for this many nanoseconds, the owner puts no further packets that
/// it took from the intake in order. Half of [`QUOTA_NS`], so that it can also send some.
const WALK_NS: u64 = QUOTA_NS / 2;
/// After putting this many packets in order, an owner looks at the clock.
const WALK_LOOK: u32 = 64;
/// The largest number of packets that an owner moves from the intake into the qdisc in one run.
const ENQUEUE_QUOTA: u32 = 4 * QUOTA;
/// How often in a row an owner that catches up may ask the qdisc without getting a packet, before
/// the owner skips to the present. Some kinds of qdiscs round down the instants that they name. The
/// number exceeds [`ENQUEUE_QUOTA`], because the owner also asks after each arrival.
const FRUITLESS_MAX: u32 = ENQUEUE_QUOTA + QUOTA;
/// When this many packets are staged in a busy port, the thread that pushes the last of them
/// becomes the owner and sends some of them.
///
/// The number is high, so that few pushes ever send: a push that also sends other threads' packets
/// takes far longer than a push that only stages packets, and so decides the tail latency of
/// pushes.
pub const COLLECT: u16 = 1_024;
/// Time between two visits of the runner to a busy port, in nanoseconds.
pub const TICK_NS: u64 = 100_000;

/// Which threads send the packets of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Threads that push packets become owners and send. A busy port collects packets, and its
    /// runner sends those that are left.
    #[default]
    Hybrid,
    /// Threads that push packets become owners and send. If an owner's quota ends with packets
    /// left, the runner sends these.
    Inline,
    /// Only the runner sends. A thread that pushes packets only stages them, and wakes the runner
    /// if no packet was staged before.
    Dedicated,
}

/// The options of a [`Port`].
#[derive(Debug)]
pub struct PortOptions {
    /// Which threads send. The default is [`Mode::Hybrid`].
    pub mode: Mode,
    /// The port's part of a rate that several ports have in common. The default is none.
    pub share: Option<Share>,
    /// How far the qdiscs of the port may lag behind the clock, in nanoseconds, when an owner comes
    /// later than the port asked for: the owner sends at once what was due in this time. The
    /// default is [`CATCH_UP_NS`]. A port with 0 sends at once what its qdisc allows for a single
    /// instant, as Linux does, and loses rate whenever a timer is late.
    pub catch_up_ns: u64,
    /// How long after the instant at which the qdisc may release its next packet the port asks its
    /// runner to come, in nanoseconds. The runner then sends at once what was due in this time, so
    /// one wake-up serves many packets, rates stay exact, and packets leave up to the slack later.
    /// An owner that comes earlier, for example because it pushes a packet, sends what is due then.
    /// Visits for other reasons, such as a device that was full, are not put off. The slack comes
    /// on top of `catch_up_ns`. The default is 0.
    pub slack_ns: u64,
    /// How often, at most, the port asks its runner to come for instants at which the qdisc may
    /// release packets: once in this time, in nanoseconds. Unlike a slack, it puts nothing off
    /// where the instants are further apart: see [`Wakes`](crate::Wakes). It grows while packets
    /// wait, up to [`PortWaker::rest_ns`]. The default is 0.
    pub rest_ns: u64,
    /// Counts the cancels that may concern packets of the port: see [`Pool::cancel`]. While one
    /// stands, the owner looks for cancelled packets and drops them. The default counts none.
    ///
    /// [`Pool::cancel`]: onramp_queue::Pool::cancel
    pub cancels: Cancels,
    /// The handle by which the device tells the port that it has room again, if the caller has
    /// [attached](Device::attach) the handle to the device already. With the default, `None`, the
    /// port makes a handle and attaches it. No thread is woken by such a handle; the next owner of
    /// the port offers the device its packets.
    pub device_waker: Option<DeviceWaker>,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Hybrid,
            share: None,
            catch_up_ns: CATCH_UP_NS,
            slack_ns: 0,
            rest_ns: 0,
            cancels: Cancels::default(),
            device_waker: None,
        }
    }
}

/// How a port asks its runner for a visit, and how the port learns how much time has passed. The
/// code that manages ports and runners (for a link: crate `onramp`) implements this trait.
///
/// The methods must not panic. A thread calls them while it owns a port, and the port does not
/// catch all such panics. After a panic that it does not catch, the port would stay owned for ever:
/// its packets would never leave or be dropped, and it could not be closed.
pub trait PortWaker {
    /// Asks the runner to visit the port (call [`Port::visit`]) at time `at` or earlier.
    fn visit_by(&self, at: Instant);

    /// Tells the implementor that a sender uses the port at time `now`. If the runner's visit is
    /// long overdue, the implementor may start another runner.
    fn check_overdue(&self, _now: Instant) {}

    /// Returns the nanoseconds that have passed since `now`, or 0 if the implementor reads no
    /// clock. The port uses the result to bound an owner's run by time ([`QUOTA_NS`]).
    fn elapsed(&self, _now: Instant) -> u64 {
        0
    }

    /// Returns how long, at most, the port leaves its runner alone while packets wait for instants
    /// (see [`Wakes::rest_up_to`](crate::Wakes::rest_up_to)), nanoseconds; for example
    /// [`WakeCost::rest_ns`](crate::WakeCost::rest_ns). A port whose
    /// [`rest_ns`](PortOptions::rest_ns) is 0 does not rest, and others rest at least so long. The
    /// default is 0.
    fn rest_ns(&self) -> u64 {
        0
    }

    /// Tells the implementor that the port is about to die of a panic. The port calls `dies` before
    /// any thread can see its [death](Port::death).
    fn dies(&self) {}

    /// Tells the implementor that the port has died and that [`death`](Port::death) returns the
    /// cause. The implementor can now wake threads that wait for the port.
    fn died(&self) {}
}

/// The result of one run of an owner, from becoming owner to leaving the port.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Number of packets that left the port in this run, sent or dropped.
    pub done: u32,
    /// Whether the run ended because its quota was used up, so that the port still holds packets
    /// which the next owner can send at once.
    pub again: bool,
}

/// One transmit queue: an intake, then a tree of qdiscs, then one queue of a device.
///
/// A port whose qdisc or device panics is *dead*: the port drops the packets that it holds and all
/// packets that still arrive, as [`DropReason::PortDead`](onramp_queue::DropReason::PortDead). The
/// port catches the panic, because the thread that panics is usually a sender that only pushed a
/// packet.
pub struct Port<D> {
    intake: Intake<PortState<D>>,
    known: Known,
    stats: PortStats,
    /// Flags (`CLOSE`, `JOBS`) by which other threads ask the owner for work other than sending.
    /// The next owner handles the flags first; the present owner handles them as soon as its call
    /// of the device returns.
    requests: AtomicU8,
    jobs: Mutex<VecDeque<Job>>,
}

/// Fields that every sender reads and that are written at most once. They have cache lines of their
/// own, so that no write slows the readers.
#[repr(align(128))]
struct Known {
    mode: Mode,
    death: OnceLock<Box<str>>,
}

/// Bits of [`Port::requests`]: `CLOSE` asks the owner to close the port, and `JOBS` tells the owner
/// that jobs (changes or queries of the tree) are waiting.
const CLOSE: u8 = 1;
const JOBS: u8 = 2;

/// Checks the memory layout: the counters that the owner writes and the fields that senders read
/// lie on different cache lines.
const _: () = {
    const LINES: usize = 128;
    assert!(
        align_of::<Port<u8>>() == LINES && size_of::<Intake<PortState<u8>>>().is_multiple_of(LINES)
    );
    assert!(offset_of!(Port<u8>, intake).is_multiple_of(LINES));
    assert!(offset_of!(Port<u8>, known).is_multiple_of(LINES) && size_of::<Known>() == LINES);
};

impl<D: Device> Port<D> {
    /// Creates a port in [`Mode::Hybrid`] from `qdisc` and `device`, with an intake for at most
    /// `cap` packets.
    pub fn new(qdisc: Box<dyn Qdisc>, device: D, cap: u16) -> Self {
        Self::with_options(qdisc, device, cap, PortOptions::default())
    }

    /// Creates a port like [`new`](Self::new), with options. Gives the device a [`DeviceWaker`],
    /// unless the options have one.
    pub fn with_options(qdisc: Box<dyn Qdisc>, device: D, cap: u16, options: PortOptions) -> Self {
        let mode = options.mode;
        let dedicated = mode == Mode::Dedicated;
        // In dedicated mode, a sender must never become the owner. The intake makes a thread the
        // owner when its push brings the number of staged packets to `batch`, so `batch` is greater
        // than `cap`.
        let cap = if dedicated { cap.min(u16::MAX - 1) } else { cap };
        let batch = if dedicated { u16::MAX } else { COLLECT.min(cap) };
        let intake = Intake::new(PortState::new(qdisc, device, options), cap, batch);
        if dedicated && let Some(owner) = intake.own() {
            // Mark the intake as busy, so that pushes only stage packets and no sender becomes the
            // owner.
            owner.leave_busy();
        }
        Self {
            intake,
            known: Known { mode, death: OnceLock::new() },
            stats: PortStats::default(),
            requests: AtomicU8::new(0),
            jobs: Mutex::new(VecDeque::new()),
        }
    }

    /// Pushes packets into the port. Whether each packet was sent or dropped is known later, from
    /// completions and statistics.
    ///
    /// Returns `Ok(None)` if the call only staged the packets. Otherwise the calling thread became
    /// the owner and sent up to a quota of packets.
    ///
    /// # Errors
    ///
    /// Returns the packets to the caller if the intake is full: it would hold more than its cap of
    /// packets.
    #[inline]
    pub fn xmit(
        &self,
        packets: PacketList,
        now: Instant,
        waker: &dyn PortWaker,
    ) -> Result<Option<Ran>, Full> {
        Ok(match self.intake.push(packets)? {
            Pushed::Staged { first } => {
                match self.known.mode {
                    Mode::Dedicated if first => waker.visit_by(now),
                    Mode::Dedicated => waker.check_overdue(now),
                    Mode::Hybrid | Mode::Inline => {}
                }
                None
            }
            Pushed::Owner { owner, fresh } => {
                Some(self.run(owner, fresh, Caller { now, waker, is_runner: false }))
            }
        })
    }

    /// Asks the processor to prefetch the memory that every push writes, so that the write is
    /// faster. Call `prefetch` shortly before [`xmit`](Self::xmit).
    #[inline]
    pub fn prefetch(&self) {
        self.intake.prefetch();
    }

    /// Lets a thread that would otherwise have to wait for credit become the owner and send up to a
    /// quota of packets. Returns `None` if another thread owns the port, or if only the runner may
    /// send.
    pub fn help(&self, now: Instant, waker: &dyn PortWaker) -> Option<Ran> {
        if self.known.mode == Mode::Dedicated {
            waker.check_overdue(now);
            return None;
        }
        let owner = self.intake.own()?;
        self.stats.helped.add(1);
        Some(self.run(owner, PacketList::new(), Caller { now, waker, is_runner: false }))
    }

    /// Lets the runner become the owner and send up to a quota of packets. Returns `None` if
    /// another thread owns the port; the runner should then visit the port again after [`TICK_NS`].
    pub fn visit(&self, now: Instant, waker: &dyn PortWaker) -> Option<Ran> {
        let owner = self.intake.own()?;
        Some(self.run(owner, PacketList::new(), Caller { now, waker, is_runner: true }))
    }

    /// Does the owner's work: takes the staged packets, sends up to a quota of packets and leaves
    /// the port. `fresh` are packets that the owner has just pushed. `caller` says which thread
    /// became the owner.
    fn run(
        &self,
        mut owner: Owner<'_, PortState<D>>,
        fresh: PacketList,
        caller: Caller<'_>,
    ) -> Ran {
        let run = self.begin(&mut owner, fresh.len(), caller);
        self.go_on(owner, fresh, run)
    }

    /// Does the work of an owner whose run has begun: see [`run`](Self::run).
    fn go_on(
        &self,
        mut owner: Owner<'_, PortState<D>>,
        mut fresh: PacketList,
        mut run: Run<'_>,
    ) -> Ran {
        let mut looks = JOB_LOOKS;
        let stop = loop {
            let takes = owner.inbox.len() <= QUOTA;
            owner.receive(&mut fresh);
            if takes {
                self.take(&mut owner, &run);
            }
            let turn = catch_unwind(AssertUnwindSafe(|| owner.turn(&mut run)));
            let stop = turn.unwrap_or_else(|panic| self.die(&mut owner, &run, panic));
            if self.has_requests(&owner, looks) && self.take_requests(&mut owner) {
                looks = looks.saturating_sub(1);
                continue;
            }
            match self.leave(owner, &run, stop) {
                Ok(()) => break stop,
                Err(still) => owner = still,
            }
        };
        Ran { done: run.done.len() + run.quota.handed, again: stop == Stop::Quota }
    }

    /// Takes the staged packets and puts them in order, or goes on where an earlier owner stopped.
    fn take(&self, owner: &mut Owner<'_, PortState<D>>, run: &Run<'_>) {
        if owner.taken.is_empty() {
            let taken = owner.take_unordered();
            owner.came += u64::from(taken.len());
            owner.taken = taken;
        }
        owner.collect(run);
    }

    /// Begins the run of an owner that has just pushed `fresh` packets: sets the run's time and
    /// quota.
    fn begin<'a>(
        &'a self,
        owner: &mut Owner<'_, PortState<D>>,
        fresh: u32,
        caller: Caller<'a>,
    ) -> Run<'a> {
        let Caller { now, waker, is_runner } = caller;
        if !is_runner {
            waker.check_overdue(now);
        }
        self.stats.runs.add(1);
        let mut run = Run::new(owner.later(now), waker, &self.stats);
        run.is_runner = is_runner;
        run.was_busy = owner.was_busy();
        run.quota = Quota {
            send: owner.quota(self.known.mode, run.now),
            enqueue: ENQUEUE_QUOTA,
            handed: 0,
            // In a closed port, a sender drops all packets that it has just pushed, and at most
            // `ENQUEUE_QUOTA` packets of other senders.
            purge: if is_runner { u32::from(u16::MAX) } else { ENQUEUE_QUOTA + fresh },
        };
        run
    }

    /// Asks the runner to visit the port when needed, then leaves the port. If the port was to
    /// become idle and other threads have pushed packets meanwhile, returns `owner` instead, and
    /// the caller goes on as the owner.
    fn leave<'a>(
        &self,
        mut owner: Owner<'a, PortState<D>>,
        run: &Run<'_>,
        stop: Stop,
    ) -> Result<(), Owner<'a, PortState<D>>> {
        let Run { now, waker, .. } = *run;
        self.wake_for_requests(&owner, run);
        if now < owner.retry_at {
            // The device was full: the runner offers it the packets again at the time that the
            // device named, or at once if the device has said meanwhile that it has room.
            waker.visit_by(if owner.room.is_announced() { now } else { owner.retry_at });
        } else if let Stop::Until(at) = stop {
            waker.visit_by(owner.own_time.visit_at(at, now));
        }
        let collects = owner.collects(run);
        match owner.how_to_leave(self.known.mode, collects, stop, now) {
            Leave::Idle => return owner.leave_idle(),
            // The runner visits a busy port once per tick, and asks for its next visit itself. A
            // sender that leaves the port asks for a visit after two ticks, in case the runner has
            // not asked for an earlier one.
            Leave::Collecting if run.is_runner => waker.visit_by(now.after(TICK_NS)),
            Leave::Collecting => waker.visit_by(now.after(2 * TICK_NS)),
            // Wake the runner only if packets could be sent now or are already staged. Otherwise
            // the port is in dedicated mode, in which the next push wakes the runner.
            Leave::Staging { more } if more || owner.waiting() > 0 => waker.visit_by(now),
            Leave::Staging { .. } => {}
        }
        self.stats.busy.add(u64::from(!run.was_busy));
        owner.leave_busy();
        Ok(())
    }
}

impl<D> fmt::Debug for Port<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("intake", &self.intake).finish_non_exhaustive()
    }
}
