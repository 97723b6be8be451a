//! The path of a packet, on one screen: intake → owner → qdisc → device.
//!
//! ```text
//! push ─▶ staged, and leave
//!   └──▶ owner: take all ─▶ enqueue ─▶ dequeue a burst ─▶ transmit ─▶ ... ─▶ leave ─▶ free
//! ```
//!
//! A port is *busy* when packets come faster than is worth sending one by one. Then a push only
//! stages. A sender that has run out of credit sends, as a batch, instead of waiting. The runner
//! (a runner thread) looks after what is left every [`TICK_NS`], and ends the busy period when
//! little comes. Should it be late, the push that makes [`COLLECT`] packets wait sends.
//!
//! Invariant: packets that are held and owned by nobody are known to the runner. It is told
//! before the owner leaves, so it misses nothing.
//!
//! Source: the quota is Linux's `dev_tx_weight`, the shape that of `__qdisc_run`
//! (`net/sched/sch_generic.c`, 7.2). The collecting of packets is what network cards do with
//! interrupts (`ethtool -C tx-usecs`).

mod device;
mod pace;
mod share;
mod state;

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{OnceLock, PoisonError, TryLockError};

use onramp_queue::{DropReason, Full, Intake, Owner, PacketList, Pushed};

pub use self::device::{Device, DeviceInfo, Transmitted};
pub use self::share::{Share, SharedRate};

use self::state::{Leave, PortState, Quota, Stop};
use crate::base::Instant;
use crate::base::stats::{PortSnapshot, PortStats};
use crate::base::sync::{AtomicU8, Mutex, MutexGuard, Ordering};
use crate::sched::{Cx, Qdisc};
use crate::tree::RootQdisc;

/// Packets an owner sends before it leaves the rest to others (`dev_tx_weight`).
pub const QUOTA: u32 = 64;
/// As [`QUOTA`], where the rest would wait for the runner, and a burst costs the device no call.
const LONG_QUOTA: u32 = 4 * QUOTA;
/// An owner begins no further burst when it has worked for so long.
pub const QUOTA_NS: u64 = 100_000;
/// Packets an owner takes into the qdisc at most, in one run.
const ENQUEUE_QUOTA: u32 = 4 * QUOTA;
/// Packets that wait in a busy port before a push sends some of them.
///
/// So many that few pushes ever do: the tail of a push is that of a sender that sends for others.
pub const COLLECT: u16 = 1_024;
/// How long a busy port may leave packets lying, nanoseconds.
pub const TICK_NS: u64 = 100_000;

/// Who sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Senders, as owners; a busy port collects, and its runner looks after what is left.
    #[default]
    Hybrid,
    /// Senders, as owners; the runner takes over when a quota ends with packets left.
    Inline,
    /// The runner alone: a sender only stages, and calls the runner if nothing waited before.
    Dedicated,
}

/// Who looks after packets that wait with no owner.
pub trait PortWaker {
    /// Visits the port (calls [`Port::visit`]) at `at`, or before.
    fn visit_by(&self, at: Instant);

    /// Somebody came by at `now`: if a visit that was asked for is long overdue, another may have
    /// to come.
    fn check_overdue(&self, _now: Instant) {}

    /// Nanoseconds that have passed since `now`, if somebody looks at a clock: the owner's quota
    /// has a bound in time, too.
    fn elapsed(&self, _now: Instant) -> u64 {
        0
    }

    /// Learns that the port is about to die: before anybody can see its [death](Port::death).
    fn dies(&self) {}

    /// Learns that the port died, and can be asked [why](Port::death): who waits for it may look.
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
    intake: Intake<PortState<D>>,
    known: Known,
    stats: PortStats,
    /// What the next owner has to do first, or the present one as soon as it is back from the
    /// device.
    requests: AtomicU8,
    jobs: Mutex<VecDeque<Job>>,
}

/// What every sender reads, and what is written once at most: on lines of its own.
#[repr(align(128))]
struct Known {
    mode: Mode,
    death: OnceLock<Box<str>>,
}

/// Something to do with the tree of a port: see [`Port::with`].
pub type Job = Box<dyn FnOnce(&mut RootQdisc, &mut Cx<'_>) + Send>;

/// A job that could not be taken: [`JOBS_MAX`] wait already.
pub struct TooManyJobs(pub Job);

impl fmt::Debug for TooManyJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TooManyJobs")
    }
}

/// Jobs that may wait for a port whose owner does not come back from the device.
pub const JOBS_MAX: usize = 1_024;

/// How often an owner looks for jobs, in one run. More are left to the next one.
const JOB_LOOKS: u32 = 2;

/// Bits of [`Port::requests`].
const CLOSE: u8 = 1;
const JOBS: u8 = 2;

/// The owner counts on lines that producers do not touch, and these read none that it writes.
const _: () = {
    const LINES: usize = 128;
    assert!(
        align_of::<Port<u8>>() == LINES && size_of::<Intake<PortState<u8>>>().is_multiple_of(LINES)
    );
    assert!(offset_of!(Port<u8>, intake).is_multiple_of(LINES));
    assert!(offset_of!(Port<u8>, known).is_multiple_of(LINES) && size_of::<Known>() == LINES);
};

impl<D: Device> Port<D> {
    /// Puts `qdisc` in front of `device`, and an intake for `cap` packets in front of both.
    pub fn new(qdisc: Box<dyn Qdisc>, device: D, cap: u16) -> Self {
        Self::with_mode(qdisc, device, cap, Mode::Hybrid, None)
    }

    /// As [`new`](Self::new); `mode` says who sends, and `share` is the port's part in a rate that
    /// several ports have together.
    pub fn with_mode(
        qdisc: Box<dyn Qdisc>,
        device: D,
        cap: u16,
        mode: Mode,
        share: Option<Share>,
    ) -> Self {
        let dedicated = mode == Mode::Dedicated;
        // A list that is never full makes no owner.
        let cap = if dedicated { cap.min(u16::MAX - 1) } else { cap };
        let batch = if dedicated { u16::MAX } else { COLLECT.min(cap) };
        let intake = Intake::new(PortState::new(qdisc, device, share), cap, batch);
        if dedicated && let Some(owner) = intake.own() {
            owner.leave_busy(); // So that a push only stages.
        }
        Self {
            intake,
            known: Known { mode, death: OnceLock::new() },
            stats: PortStats::default(),
            requests: AtomicU8::new(0),
            jobs: Mutex::new(VecDeque::new()),
        }
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
        waker: &impl PortWaker,
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
            Pushed::Owner { owner, fresh } => Some(self.run(owner, fresh, now, waker, false)),
        })
    }

    /// Asks the processor for what a push needs, which other senders write: `xmit` is about to
    /// come.
    #[inline]
    pub fn prefetch(&self) {
        self.intake.prefetch();
    }

    /// Sends up to a quota: for a sender that would have to wait. `None`: somebody owns the port,
    /// or the runner alone sends.
    pub fn help(&self, now: Instant, waker: &impl PortWaker) -> Option<Ran> {
        if self.known.mode == Mode::Dedicated {
            waker.check_overdue(now);
            return None;
        }
        let owner = self.intake.own()?;
        self.stats.helped.add(1);
        Some(self.run(owner, PacketList::new(), now, waker, false))
    }

    /// The runner's visit. `None`: somebody owns the port; come again after a tick.
    pub fn visit(&self, now: Instant, waker: &impl PortWaker) -> Option<Ran> {
        let owner = self.intake.own()?;
        Some(self.run(owner, PacketList::new(), now, waker, true))
    }

    /// The owner's work: take what came, send up to a quota, leave.
    fn run(
        &self,
        mut owner: Owner<'_, PortState<D>>,
        mut fresh: PacketList,
        now: Instant,
        waker: &impl PortWaker,
        visit: bool,
    ) -> Ran {
        if !visit {
            waker.check_overdue(now);
        }
        let was_busy = owner.was_busy();
        // Threads read the clock before they get hold of the port, and may be late. Time that went
        // back would put packets of one flow out of order.
        let now = now.max(owner.now);
        owner.now = now;
        let mut done = PacketList::new(); // goes home when the port is let go
        let mut quota = Quota {
            left: owner.quota(self.known.mode, now),
            enqueue: ENQUEUE_QUOTA,
            handed: 0,
            // To drop its own packets is no work for others.
            purge: if visit { u32::from(u16::MAX) } else { ENQUEUE_QUOTA + fresh.len() },
            at_leisure: visit,
        };
        let late = || waker.elapsed(now) >= QUOTA_NS;
        let mut jobs = JOB_LOOKS;
        self.stats.runs.add(1);
        let stop = loop {
            let takes = owner.inbox.len() <= QUOTA;
            owner.receive(&mut fresh);
            if takes {
                let mut taken = owner.take();
                owner.receive(&mut taken);
            }
            let turn = self.guard(&mut owner, &mut quota, waker, |owner, quota| {
                owner.turn(&mut done, quota, &late, now, &self.stats)
            });
            let stop = turn.unwrap_or_else(|| owner.stop_of_death());
            // Relaxed: who asks tries to own the port, or has the runner come, after that. This is
            // for an owner that was away for long, in a device that blocks.
            let requests = self.requests.load(Ordering::Relaxed);
            let closes = requests & CLOSE != 0 && !owner.is_closed();
            if (closes || jobs > 0 && requests != 0) && self.take_requests(&mut owner) {
                jobs = jobs.saturating_sub(1);
                continue;
            }
            self.wake_for_requests(&owner, now, waker);
            if let Stop::Until(at) = stop {
                waker.visit_by(at);
            } else if now < owner.retry_at {
                waker.visit_by(owner.retry_at); // More waits, but the device is asked when it said.
            }
            match owner.leave(self.known.mode, was_busy, stop, visit, now) {
                Leave::Idle => match owner.leave_idle() {
                    Ok(()) => break stop,
                    Err(still) => {
                        owner = still;
                        continue;
                    }
                },
                // The runner ticks by itself; others only make sure of it, after its tick.
                Leave::Collecting if visit => waker.visit_by(now.after(TICK_NS)),
                Leave::Collecting => waker.visit_by(now.after(2 * TICK_NS)),
                // What comes from here on finds nothing waiting, and calls the runner itself.
                Leave::Staging { more } if more || owner.waiting() > 0 => waker.visit_by(now),
                Leave::Staging { .. } => {}
            }
            self.stats.busy.add(u64::from(!was_busy));
            owner.leave_busy();
            break stop;
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
        self.known.death.get().map(|why| &**why)
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
    /// `None`: somebody owns the port, and closes it as soon as it is back from the device; try
    /// again.
    pub fn close(&self, now: Instant, waker: &impl PortWaker) -> Option<Ran> {
        // Release: why; pairs with the acquire in `take_requests`.
        self.requests.fetch_or(CLOSE, Ordering::Release);
        let mut owner = self.intake.own()?;
        owner.close(DropReason::Purged); // Before it asks the device for anything.
        Some(self.run(owner, PacketList::new(), now, waker, true))
    }

    /// Has `job` done with the tree: here and now, if nobody owns the port and little is to be done
    /// before (then gives true), else by the present owner as soon as it is back from the device,
    /// or by the runner. Jobs are done in the order they come. Nobody who sends waits for one, but
    /// for its time; and who brings one sends nothing: a device that blocks does not keep it.
    ///
    /// What a job drops is counted, and goes home. One that panics kills the port. A dead port
    /// drops all jobs.
    ///
    /// # Errors
    ///
    /// Gives the job back when [`JOBS_MAX`] of them wait: the device blocks.
    pub fn with(
        &self,
        job: Job,
        now: Instant,
        waker: &impl PortWaker,
    ) -> Result<bool, TooManyJobs> {
        let mut jobs = self.jobs();
        if jobs.len() >= JOBS_MAX {
            drop(jobs);
            waker.visit_by(now); // An owner that found the lock taken left them lying.
            return Err(TooManyJobs(job));
        }
        jobs.push_back(job);
        drop(jobs);
        self.requests.fetch_or(JOBS, Ordering::Relaxed); // Relaxed: as in `run`; the lock has them.
        if let Some(owner) = self.intake.own() {
            return Ok(self.run_jobs_now(owner, now, waker));
        }
        waker.visit_by(now); // The owner may have looked for jobs for the last time.
        Ok(false)
    }

    /// Puts `qdisc` in the place of the one there is, and moves its packets over, in the order in
    /// which it would have sent them. What the old one does not let go of is dropped as
    /// [`DropReason::Purged`]; the new one may drop by its limits. A job: see [`with`](Self::with).
    ///
    /// # Errors
    ///
    /// As of [`with`](Self::with).
    pub fn replace(
        &self,
        qdisc: Box<dyn Qdisc>,
        now: Instant,
        waker: &impl PortWaker,
    ) -> Result<bool, TooManyJobs> {
        self.with(Box::new(|root, cx| root.succeed(qdisc, cx)), now, waker)
    }

    /// Does what others want, up to a quota, and sends nothing: that is the runner's. True: nothing
    /// is left to do.
    fn run_jobs_now(
        &self,
        mut owner: Owner<'_, PortState<D>>,
        now: Instant,
        waker: &impl PortWaker,
    ) -> bool {
        let was_busy = owner.was_busy();
        let now = now.max(owner.now); // As in `run`.
        owner.now = now;
        let mut done = PacketList::new(); // goes home when the port is let go
        let held = owner.held(&self.stats);
        let late = || waker.elapsed(now) >= QUOTA_NS;
        for _ in 0..JOB_LOOKS {
            if !self.is_wanted(&owner) || !self.take_requests(&mut owner) {
                break;
            }
            let mut quota = Quota::default(); // Nothing is sent; a dead port is buried below.
            self.guard(&mut owner, &mut quota, waker, |owner, _| {
                owner.run_jobs(&mut done, &late, now, &self.stats);
            });
            if late() {
                break;
            }
        }
        let left = self.is_wanted(&owner);
        // Acquire: why; pairs with the release in `close`.
        if self.requests.load(Ordering::Acquire) & CLOSE != 0 {
            owner.close(DropReason::Purged);
        }
        if owner.is_closed() {
            // Nothing is sent, and nobody may come any more for what was staged meanwhile.
            let _ = self.run(owner, PacketList::new(), now, waker, true);
            return !left;
        }
        // What is held may leave earlier now.
        if left || held + owner.held(&self.stats) > 0 {
            waker.visit_by(now);
        }
        if was_busy {
            if owner.waiting() > 0 {
                waker.visit_by(now); // What came meanwhile requests somebody to look.
            }
            owner.leave_busy();
        } else if let Err(owner) = owner.leave_idle() {
            waker.visit_by(now); // As above.
            owner.leave_busy();
        }
        !left
    }

    /// Has the runner come if jobs are left to do.
    fn wake_for_requests(&self, owner: &PortState<D>, now: Instant, waker: &impl PortWaker) {
        if owner.has_jobs() {
            waker.visit_by(now);
        } else if self.is_wanted(owner) {
            // Somebody has the lock, and may need the processor to let go of it.
            waker.visit_by(now.after(TICK_NS));
        }
    }

    /// Whether jobs are left to do.
    fn is_wanted(&self, owner: &PortState<D>) -> bool {
        // Relaxed: who brings one after this look calls the runner; the lock has the jobs.
        owner.has_jobs() || self.requests.load(Ordering::Relaxed) & JOBS != 0
    }

    /// Calls what may panic: anybody's code. `None`: it did, and the port is dead.
    fn guard<R>(
        &self,
        owner: &mut PortState<D>,
        quota: &mut Quota,
        waker: &impl PortWaker,
        f: impl FnOnce(&mut PortState<D>, &mut Quota) -> R,
    ) -> Option<R> {
        let call = AssertUnwindSafe(|| {
            let result = f(owner, quota);
            self.stats.backlog.set(owner.held(&self.stats));
            result
        });
        catch_unwind(call).map_err(|panic| self.die(owner, quota, waker, panic)).ok()
    }

    #[cold]
    fn die(
        &self,
        owner: &mut PortState<D>,
        quota: &Quota,
        waker: &impl PortWaker,
        panic: Box<dyn Any + Send>,
    ) {
        owner.die(quota, &self.stats);
        self.stats.backlog.set(owner.held(&self.stats));
        waker.dies();
        let first = self.known.death.set(why(&*panic)).is_ok();
        std::mem::forget(panic); // Its drop is anybody's code, too.
        if first {
            waker.died();
        }
    }

    /// Does what others want of the owner. True: there is more to do for it.
    #[cold]
    fn take_requests(&self, owner: &mut PortState<D>) -> bool {
        // An owner waits for nobody: while somebody has the lock, the next owner does it, whom that
        // one has come.
        let jobs = match self.jobs.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(lock)) => Some(lock.into_inner()),
            Ok(lock) => Some(lock),
        };
        if let Some(mut jobs) = jobs {
            owner.accept_jobs(&mut jobs);
            if jobs.is_empty() {
                // Relaxed: as above, the lock has them.
                self.requests.fetch_and(!JOBS, Ordering::Relaxed);
            }
        }
        // Acquire: pairs with the release in `close`.
        let closes = self.requests.load(Ordering::Acquire) & CLOSE != 0;
        let closes = closes && owner.close(DropReason::Purged);
        closes || owner.has_jobs()
    }

    fn jobs(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
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
