//! The path of a packet through a port, in one file: intake → owner → qdisc → device.
//!
//! ```text
//! push ─▶ staged, and leave
//!   └──▶ owner: take all ─▶ enqueue ─▶ dequeue a burst ─▶ transmit ─▶ ... ─▶ leave ─▶ free
//! ```
//!
//! A port is *busy* when packets arrive so fast that sending them one by one would be wasteful. In
//! a busy port, a push only stages packets. A sender that has run out of credit becomes the owner
//! and sends the staged packets as a batch, instead of waiting. The runner (a background thread)
//! visits the port every [`TICK_NS`] nanoseconds, sends the packets that are left, and ends the
//! busy period when few packets arrive. If the runner is late, the push that brings the number of
//! staged packets to [`COLLECT`] sends them.
//!
//! Invariant: the runner knows of every port that holds packets and has no owner. The owner tells
//! the runner before the owner leaves the port, so the runner misses no packet.
//!
//! Source: the quota is Linux's `dev_tx_weight`, and the loop has the shape of `__qdisc_run`
//! (`net/sched/sch_generic.c`, 7.2). Network cards collect packets in the same way between two
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

/// Most packets that an owner sends in one run before it leaves the rest to other threads
/// (`dev_tx_weight`).
pub const QUOTA: u32 = 64;
/// Replaces [`QUOTA`] where the rest would have to wait for the runner and where the device sends a
/// burst without a call into the kernel.
const LONG_QUOTA: u32 = 4 * QUOTA;
/// Nanoseconds after which an owner begins no further burst in the same run.
pub const QUOTA_NS: u64 = 100_000;
/// Most packets that an owner moves into the qdisc in one run.
const ENQUEUE_QUOTA: u32 = 4 * QUOTA;
/// Number of packets staged in a busy port at which the push itself sends some of them.
///
/// The number is high so that few pushes ever send: a push that also sends other threads' packets
/// takes far longer than a push that only stages, and sets the tail latency of pushes.
pub const COLLECT: u16 = 1_024;
/// Longest time for which a busy port may leave staged packets unsent, in nanoseconds.
pub const TICK_NS: u64 = 100_000;

/// Which threads send the packets of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Senders send, as owners. A busy port collects packets, and its runner sends what is left.
    #[default]
    Hybrid,
    /// Senders send, as owners. The runner continues when an owner's quota ends with packets left.
    Inline,
    /// Only the runner sends. A sender only stages packets, and wakes the runner if no packet was
    /// staged before.
    Dedicated,
}

/// How a port asks its runner for a visit, and how the port learns how much time has passed. The
/// code that manages ports and runners implements this trait.
pub trait PortWaker {
    /// Makes the runner visit the port (call [`Port::visit`]) at time `at`, or earlier.
    fn visit_by(&self, at: Instant);

    /// Tells the implementer that a sender uses the port at time `now`. If the runner's visit is
    /// long overdue, the implementer may send another runner.
    fn check_overdue(&self, _now: Instant) {}

    /// Returns the nanoseconds that have passed since `now`, or 0 if the implementer reads no
    /// clock. The port uses the result to bound an owner's run by time ([`QUOTA_NS`]).
    fn elapsed(&self, _now: Instant) -> u64 {
        0
    }

    /// Tells the implementer that the port is about to die. The port calls `dies` before any thread
    /// can see its [death](Port::death).
    fn dies(&self) {}

    /// Tells the implementer that the port has died and that [`death`](Port::death) returns the
    /// cause, so that threads waiting for the port can be woken.
    fn died(&self) {}
}

/// The result of one run of an owner.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Number of packets that left the port in this run, sent or dropped.
    pub done: u32,
    /// Whether the run ended because its quota was used up, so that more work is ready at once.
    pub again: bool,
}

/// One transmit queue: an intake, then a tree of qdiscs, then one device queue.
///
/// A port whose qdisc or device panics is *dead*: the port drops the packets that it holds and all
/// packets that still arrive, as [`DropReason::PortDead`]. The port catches the panic, because the
/// panicking thread is usually a sender that only passed by with a packet.
pub struct Port<D> {
    intake: Intake<PortState<D>>,
    known: Known,
    stats: PortStats,
    /// Flags (`CLOSE`, `JOBS`) that ask for work. The next owner handles the flags first; the
    /// present owner handles them as soon as its call of the device returns.
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

/// A change or query of a port's tree, to be run by the port's owner: see [`Port::with`].
pub type Job = Box<dyn FnOnce(&mut RootQdisc, &mut Cx<'_>) + Send>;

/// The error for a job that the port refused because [`JOBS_MAX`] jobs are already waiting.
/// Contains the refused job.
pub struct TooManyJobs(pub Job);

impl fmt::Debug for TooManyJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TooManyJobs")
    }
}

/// Most jobs that may wait for a port, for example while its owner is blocked inside the device.
pub const JOBS_MAX: usize = 1_024;

/// Most times that an owner looks for jobs in one run. Later jobs are left to the next run.
const JOB_LOOKS: u32 = 2;

/// Bits of [`Port::requests`]: `CLOSE` asks the owner to close the port, and `JOBS` tells the owner
/// that jobs are waiting.
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
        Self::with_mode(qdisc, device, cap, Mode::Hybrid, None)
    }

    /// Creates a port like [`new`](Self::new), with a choice of the threads that send (`mode`) and
    /// with the port's part of a rate that several ports have in common (`share`).
    pub fn with_mode(
        qdisc: Box<dyn Qdisc>,
        device: D,
        cap: u16,
        mode: Mode,
        share: Option<Share>,
    ) -> Self {
        let dedicated = mode == Mode::Dedicated;
        // In dedicated mode, the list must never reach `batch` packets: otherwise the push that
        // makes the list full would become the owner.
        let cap = if dedicated { cap.min(u16::MAX - 1) } else { cap };
        let batch = if dedicated { u16::MAX } else { COLLECT.min(cap) };
        let intake = Intake::new(PortState::new(qdisc, device, share), cap, batch);
        if dedicated && let Some(owner) = intake.own() {
            owner.leave_busy(); // Left busy, the intake only stages what is pushed.
        }
        Self {
            intake,
            known: Known { mode, death: OnceLock::new() },
            stats: PortStats::default(),
            requests: AtomicU8::new(0),
            jobs: Mutex::new(VecDeque::new()),
        }
    }

    /// Pushes packets into the port. Completions and statistics report later whether each packet
    /// was sent or dropped.
    ///
    /// Returns `Ok(None)` if the call only staged the packets. Otherwise the calling thread became
    /// the owner and sent up to a quota of packets.
    ///
    /// # Errors
    ///
    /// Returns the packets to the caller if the intake holds its cap of packets.
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

    /// Asks the processor to prefetch the memory that a push writes and that other senders write
    /// too. Call `prefetch` shortly before [`xmit`](Self::xmit).
    #[inline]
    pub fn prefetch(&self) {
        self.intake.prefetch();
    }

    /// Sends up to a quota of packets. A sender that would otherwise have to wait for credit calls
    /// `help`. Returns `None` if another thread owns the port or if only the runner may send.
    pub fn help(&self, now: Instant, waker: &impl PortWaker) -> Option<Ran> {
        if self.known.mode == Mode::Dedicated {
            waker.check_overdue(now);
            return None;
        }
        let owner = self.intake.own()?;
        self.stats.helped.add(1);
        Some(self.run(owner, PacketList::new(), now, waker, false))
    }

    /// Sends up to a quota of packets, on behalf of the runner. Returns `None` if another thread
    /// owns the port; the runner should then visit again after a tick.
    pub fn visit(&self, now: Instant, waker: &impl PortWaker) -> Option<Ran> {
        let owner = self.intake.own()?;
        Some(self.run(owner, PacketList::new(), now, waker, true))
    }

    /// Does the owner's work: takes the staged packets, sends up to a quota of packets and leaves
    /// the port.
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
        // A thread reads the clock before it becomes the owner, so `now` may be older than the
        // previous owner's time. A time that runs backwards would put packets of one flow out of
        // order.
        let now = now.max(owner.now);
        owner.now = now;
        let mut done = PacketList::new(); // finished packets; they go home after the owner left
        let mut quota = Quota {
            left: owner.quota(self.known.mode, now),
            enqueue: ENQUEUE_QUOTA,
            handed: 0,
            // A sender always drops all of its own packets; only other senders' packets are
            // limited.
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
            // Relaxed: after setting a flag, the requester tries to own the port or wakes the
            // runner, so a stale read is harmless. The check here serves requests made while the
            // owner was blocked inside the device for a long time.
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
                waker.visit_by(owner.retry_at); // Retry when the device asked for it.
            }
            match owner.leave(self.known.mode, was_busy, stop, visit, now) {
                Leave::Idle => match owner.leave_idle() {
                    Ok(()) => break stop,
                    Err(still) => {
                        owner = still;
                        continue;
                    }
                },
                // After a visit, the runner asks for its next tick. A sender only makes sure of
                // that tick, with a later deadline.
                Leave::Collecting if visit => waker.visit_by(now.after(TICK_NS)),
                Leave::Collecting => waker.visit_by(now.after(2 * TICK_NS)),
                // A push into an empty intake wakes the runner itself. So wake the runner here only
                // if packets are already waiting.
                Leave::Staging { more } if more || owner.waiting() > 0 => waker.visit_by(now),
                Leave::Staging { .. } => {}
            }
            self.stats.busy.add(u64::from(!was_busy));
            owner.leave_busy();
            break stop;
        };
        Ran { done: done.len() + quota.handed, again: stop == Stop::Quota }
    }

    /// Returns the port's counters.
    pub fn stats(&self) -> &PortStats {
        &self.stats
    }

    /// Returns the present values of the port's counters.
    pub fn snapshot(&self) -> PortSnapshot {
        self.stats.snapshot(u64::from(self.intake.waiting()))
    }

    /// Returns the message of the panic that killed the port, or `None` if the port is alive.
    pub fn death(&self) -> Option<&str> {
        self.known.death.get().map(|why| &**why)
    }

    /// Whether the port holds no packet and has no owner. Only a hint while senders are active.
    pub fn is_quiet(&self) -> bool {
        // The order matters: once the intake is quiet, the last owner has already stored the
        // backlog that it left.
        self.intake.is_quiet() && self.stats.backlog.get() == 0
    }

    /// Whether the intake holds its cap of packets. Only a hint: the answer may be stale.
    pub fn is_full(&self) -> bool {
        self.intake.waiting() >= u32::from(self.intake.cap())
    }

    /// Whether the port is busy, so that pushes only stage packets. Only a hint: the answer may be
    /// stale.
    pub fn is_busy(&self) -> bool {
        self.intake.is_busy()
    }

    /// Drops all packets that the port holds and all packets that still arrive, as
    /// [`DropReason::Purged`]. Returns `None` if another thread owns the port; that owner closes
    /// the port as soon as its call of the device returns. Call `close` again in that case.
    pub fn close(&self, now: Instant, waker: &impl PortWaker) -> Option<Ran> {
        // Release: publishes what the closing thread did before; pairs with the acquire in
        // `take_requests`.
        self.requests.fetch_or(CLOSE, Ordering::Release);
        let mut owner = self.intake.own()?;
        // Close before the run, so that it asks the device for nothing.
        owner.close(DropReason::Purged);
        Some(self.run(owner, PacketList::new(), now, waker, true))
    }

    /// Runs `job` on the port's tree. Use `with` to change or read a running tree.
    ///
    /// Returns `Ok(true)` if the calling thread has run the job: nobody owned the port and little
    /// other work came first. Returns `Ok(false)` if the job waits; the present owner runs the job
    /// as soon as its call of the device returns, or else the runner does. Jobs run in the order in
    /// which they were submitted. Senders never wait for a job to be scheduled, though a job may
    /// run before their packets and delay them by its own run time. The submitting thread never
    /// transmits, so a device that blocks does not delay that thread.
    ///
    /// Packets that a job drops are counted and go home. A job that panics kills the port. A dead
    /// port discards all jobs.
    ///
    /// # Errors
    ///
    /// Returns the job to the caller if [`JOBS_MAX`] jobs are already waiting, which means that the
    /// device blocks.
    pub fn with(
        &self,
        job: Job,
        now: Instant,
        waker: &impl PortWaker,
    ) -> Result<bool, TooManyJobs> {
        let mut jobs = self.jobs();
        if jobs.len() >= JOBS_MAX {
            drop(jobs);
            waker.visit_by(now); // An owner that found the lock taken may have left jobs.
            return Err(TooManyJobs(job));
        }
        jobs.push_back(job);
        drop(jobs);
        // Relaxed: as in `run`; the lock publishes the job.
        self.requests.fetch_or(JOBS, Ordering::Relaxed);
        if let Some(owner) = self.intake.own() {
            return Ok(self.run_jobs_now(owner, now, waker));
        }
        waker.visit_by(now); // The owner may already have made its last look for jobs.
        Ok(false)
    }

    /// Replaces the port's root qdisc by `qdisc` and moves the packets over, in the order in which
    /// the old qdisc would have sent them. Packets that the old qdisc does not release are dropped
    /// as [`DropReason::Purged`], and the new qdisc may drop packets that exceed its limits. The
    /// replacement is a job: see [`with`](Self::with).
    ///
    /// # Errors
    ///
    /// Returns an error in the same case as [`with`](Self::with).
    pub fn replace(
        &self,
        qdisc: Box<dyn Qdisc>,
        now: Instant,
        waker: &impl PortWaker,
    ) -> Result<bool, TooManyJobs> {
        self.with(Box::new(|root, cx| root.succeed(qdisc, cx)), now, waker)
    }

    /// Runs the waiting jobs, up to a quota, and sends no packet: sending is left to the runner.
    /// Returns true if no job is left.
    fn run_jobs_now(
        &self,
        mut owner: Owner<'_, PortState<D>>,
        now: Instant,
        waker: &impl PortWaker,
    ) -> bool {
        let was_busy = owner.was_busy();
        let now = now.max(owner.now); // Time must not run backwards: see `run`.
        owner.now = now;
        let mut done = PacketList::new(); // finished packets; they go home after the owner left
        let held = owner.held(&self.stats);
        let late = || waker.elapsed(now) >= QUOTA_NS;
        for _ in 0..JOB_LOOKS {
            if !self.is_wanted(&owner) || !self.take_requests(&mut owner) {
                break;
            }
            // The quota is zero, since this function sends nothing. A dead port is buried below.
            let mut quota = Quota::default();
            self.guard(&mut owner, &mut quota, waker, |owner, _| {
                owner.run_jobs(&mut done, &late, now, &self.stats);
            });
            if late() {
                break;
            }
        }
        let left = self.is_wanted(&owner);
        // Acquire: pairs with the release in `close`.
        if self.requests.load(Ordering::Acquire) & CLOSE != 0 {
            owner.close(DropReason::Purged);
        }
        if owner.is_closed() {
            // A closed port only drops packets, so `run` sends nothing here. Packets staged
            // meanwhile must be dropped now, since no other thread may ever visit the port again.
            let _ = self.run(owner, PacketList::new(), now, waker, true);
            return !left;
        }
        // The jobs may have changed when packets can leave, so let the runner look.
        if left || held + owner.held(&self.stats) > 0 {
            waker.visit_by(now);
        }
        if was_busy {
            if owner.waiting() > 0 {
                waker.visit_by(now); // Packets staged meanwhile have no owner.
            }
            owner.leave_busy();
        } else if let Err(owner) = owner.leave_idle() {
            waker.visit_by(now); // Packets staged meanwhile have no owner.
            owner.leave_busy();
        }
        !left
    }

    /// Asks the runner for a visit if jobs are left.
    fn wake_for_requests(&self, owner: &PortState<D>, now: Instant, waker: &impl PortWaker) {
        if owner.has_jobs() {
            waker.visit_by(now);
        } else if self.is_wanted(owner) {
            // Another thread holds the lock of the job list, and may need this processor to release
            // the lock.
            waker.visit_by(now.after(TICK_NS));
        }
    }

    /// Whether jobs are left, either taken over by the owner or still in the port's list.
    fn is_wanted(&self, owner: &PortState<D>) -> bool {
        // Relaxed: a thread that submits a job after this read wakes the runner; the lock publishes
        // the jobs.
        owner.has_jobs() || self.requests.load(Ordering::Relaxed) & JOBS != 0
    }

    /// Calls `f`, which runs foreign code (qdisc, device, jobs) that may panic. Returns `None` if
    /// `f` panicked; the port is dead then.
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
        std::mem::forget(panic); // Dropping the payload is foreign code and may panic too.
        if first {
            waker.died();
        }
    }

    /// Takes over the waiting jobs and the request to close the port. Returns true if the owner has
    /// more to do.
    #[cold]
    fn take_requests(&self, owner: &mut PortState<D>) -> bool {
        // An owner never waits. While another thread holds the lock, the owner leaves the jobs to
        // the next owner, whose visit the holder of the lock asks for.
        let jobs = match self.jobs.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(lock)) => Some(lock.into_inner()),
            Ok(lock) => Some(lock),
        };
        if let Some(mut jobs) = jobs {
            owner.accept_jobs(&mut jobs);
            if jobs.is_empty() {
                // Relaxed: the lock publishes the jobs.
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

/// Returns the message of a panic.
fn why(panic: &(dyn Any + Send)) -> Box<str> {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic").into()
}

impl<D> fmt::Debug for Port<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("intake", &self.intake).finish_non_exhaustive()
    }
}
