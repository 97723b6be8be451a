//! How jobs (changes or queries of a running tree) reach the tree: any thread submits a job, and
//! the port's owner runs it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, TryLockError};

use onramp_queue::{DropReason, Owner, PacketList};

use super::end::drop_any;
use super::job::{JOBS_MAX, Job, TooManyJobs};
use super::run::{Caller, Run};
use super::state::PortState;
use super::{CLOSE, JOBS, Port, PortWaker, TICK_NS};
use crate::base::Instant;
use crate::base::sync::Ordering;
use crate::port::Device;
use crate::sched::Qdisc;

/// How often an owner takes over waiting jobs in one run. Jobs that come later are left to the next
/// run.
pub(super) const JOB_LOOKS: u32 = 2;

impl<D: Device> Port<D> {
    /// Lets the port's owner run `job` on the tree of qdiscs. Use `with` to change or read a
    /// running tree.
    ///
    /// Returns `Ok(true)` if the calling thread has run the job: no other thread owned the port,
    /// and jobs submitted before took little time. Returns `Ok(false)` if the job waits; the
    /// present owner runs the job as soon as its call of the device returns, or else the runner
    /// does. Jobs run in the order in which they were submitted. Senders never wait for a job to be
    /// scheduled, though a job may run before their packets and delay them by its own run time. The
    /// submitting thread never transmits, so a device that blocks does not delay that thread.
    ///
    /// Packets that a job drops are counted and go home (to their senders' memory). A job that
    /// panics kills the port. A dead port discards all jobs.
    ///
    /// # Errors
    ///
    /// Returns the job to the caller if [`JOBS_MAX`] jobs are already waiting, which means that the
    /// owner is blocked inside the device.
    pub fn with(&self, job: Job, now: Instant, waker: &dyn PortWaker) -> Result<bool, TooManyJobs> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.len() >= JOBS_MAX {
            drop(jobs);
            // If an owner found this lock taken, the owner may have left jobs behind, so wake the
            // runner.
            waker.visit_by(now);
            return Err(TooManyJobs(job));
        }
        jobs.push_back(job);
        drop(jobs);
        // Relaxed: the lock publishes the job. If an owner misses the flag, the job runs all the
        // same: this thread now becomes the owner itself or wakes the runner.
        self.requests.fetch_or(JOBS, Ordering::Relaxed);
        if let Some(owner) = self.intake.own() {
            return Ok(self.run_jobs_now(owner, Caller { now, waker, is_runner: false }));
        }
        // The owner may not look for jobs again in this run, so ask the runner to visit the port.
        waker.visit_by(now);
        Ok(false)
    }

    /// Replaces the port's root qdisc by `qdisc` and moves the packets over, in the order in which
    /// the old qdisc would have sent them. Packets that the old qdisc does not release are dropped
    /// as [`DropReason::Purged`], and the new qdisc may drop packets that exceed its limits. The
    /// replacement is a job: see [`with`](Self::with).
    ///
    /// # Errors
    ///
    /// Returns an error if too many jobs are waiting, as [`with`](Self::with) does.
    pub fn replace(
        &self,
        qdisc: Box<dyn Qdisc>,
        now: Instant,
        waker: &dyn PortWaker,
    ) -> Result<bool, TooManyJobs> {
        self.with(Box::new(|root, cx| root.succeed(qdisc, cx)), now, waker)
    }

    /// Runs the waiting jobs, until the run has lasted for [`QUOTA_NS`](super::QUOTA_NS) or has
    /// taken over jobs [`JOB_LOOKS`] times. Then leaves the port. Sends no packet, but asks the
    /// runner to send. Returns true if no job is left.
    fn run_jobs_now(&self, mut owner: Owner<'_, PortState<D>>, caller: Caller<'_>) -> bool {
        let waker = caller.waker;
        let was_busy = owner.was_busy();
        // This function sends nothing, so the quota of its run is zero packets. If the port is
        // closed or dead, the call of `self.run` at the end drops the port's packets.
        let mut run = Run::new(owner.later(caller.now), waker, &self.stats);
        // Read the counter and do not ask the qdisc, whose `backlog` may panic: here, nobody would
        // catch the panic, and the port would stay owned. The last owner has set the counter.
        let held = self.stats.backlog.get();
        for _ in 0..JOB_LOOKS {
            if !self.has_work(&owner) || !self.take_requests(&mut owner) {
                break;
            }
            let done = catch_unwind(AssertUnwindSafe(|| {
                owner.begin(&mut run);
                owner.run_jobs(&mut run);
                self.stats.backlog.set(owner.held(&self.stats));
            }));
            if let Err(panic) = done {
                self.die(&mut owner, &run, panic);
            }
            if run.is_late() {
                break;
            }
        }
        let left = self.has_work(&owner);
        // Acquire: pairs with the release in `close`.
        if self.requests.load(Ordering::Acquire) & CLOSE != 0 {
            owner.close(DropReason::Purged);
        }
        if owner.is_closed() {
            // A closed port only drops packets, so `run` sends nothing here. Packets that were
            // staged while the jobs ran must be dropped now, since no other thread may ever visit
            // the port again.
            let caller = Caller { now: run.now, is_runner: true, ..caller };
            let _ = self.run(owner, PacketList::new(), caller);
            return !left;
        }
        // The jobs may have changed when packets can leave, so ask the runner to visit the port.
        if left || held + self.stats.backlog.get() > 0 {
            waker.visit_by(run.now);
        }
        if was_busy {
            if owner.waiting() > 0 {
                // In a busy port, pushes only stage packets. So ask the runner to send the packets
                // that were staged while the jobs ran.
                waker.visit_by(run.now);
            }
            owner.leave_busy();
        } else if let Err(owner) = owner.leave_idle() {
            // Packets were staged while the jobs ran. Leave them to the runner.
            waker.visit_by(run.now);
            owner.leave_busy();
        }
        !left
    }

    /// Whether the owner should now handle the requests of other threads (to close the port, or to
    /// run jobs). `looks` is the number of times that the owner may still take over jobs in this
    /// run.
    pub(super) fn has_requests(&self, owner: &PortState<D>, looks: u32) -> bool {
        // Relaxed: after setting a flag, a thread tries to own the port or wakes the runner, so it
        // is harmless if the owner does not see the flag yet. The owner calls `has_requests` after
        // each turn, because flags may have been set while the owner was blocked inside the device.
        let requests = self.requests.load(Ordering::Relaxed);
        requests & CLOSE != 0 && !owner.is_closed() || looks > 0 && requests != 0
    }

    /// Asks the runner to visit the port if jobs wait that the owner has not run.
    pub(super) fn wake_for_requests(&self, owner: &PortState<D>, run: &Run<'_>) {
        if owner.has_jobs() {
            run.waker.visit_by(run.now);
        } else if self.has_work(owner) {
            // Another thread holds the lock of the job list, and may need this processor to release
            // the lock. So the runner is to come only after a tick.
            run.waker.visit_by(run.now.after(TICK_NS));
        }
    }

    /// Whether jobs are left: either the owner has taken them over but not run them, or they are
    /// still in the port's list.
    fn has_work(&self, owner: &PortState<D>) -> bool {
        // Relaxed: a thread that submits a job after this read wakes the runner; the lock publishes
        // the jobs.
        owner.has_jobs() || self.requests.load(Ordering::Relaxed) & JOBS != 0
    }

    /// Takes over the waiting jobs and closes the port if that was requested. Returns true if the
    /// owner now has jobs to run or packets to drop.
    #[cold]
    pub(super) fn take_requests(&self, owner: &mut PortState<D>) -> bool {
        // An owner never waits. While another thread holds the lock, the owner leaves the jobs to
        // the next owner: the thread that holds the lock asks the runner for a visit.
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
}

impl<D> PortState<D> {
    /// Moves as many of `jobs` as fit into the owner's state, where they run in order in the
    /// owner's next turn.
    pub(super) fn accept_jobs(&mut self, jobs: &mut VecDeque<Job>) {
        let room = JOBS_MAX.saturating_sub(self.jobs.len());
        self.jobs.extend(jobs.drain(..room.min(jobs.len())));
    }

    /// Whether the owner has taken over jobs that have not run yet.
    pub(super) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }
}

impl<D: Device> PortState<D> {
    /// Runs the jobs that the owner has taken over, but stops early once the run has lasted too
    /// long.
    pub(super) fn run_jobs(&mut self, run: &mut Run<'_>) {
        if self.closed == Some(DropReason::PortDead) {
            return self.drop_jobs();
        }
        // Not the present time: while the port is behind the clock, the qdiscs have not yet lived
        // through the instants that were due, and a later time would take these from them.
        let mut drops = PacketList::new();
        let mut cx = self.root.call(self.own_time.now(), &mut drops);
        while let Some(job) = self.jobs.pop_front() {
            job(&mut self.root, &mut cx);
            if run.is_late() {
                break;
            }
        }
        let made = cx.made;
        self.count_made(made, run);
        run.finish(&mut drops);
        if self.backlog() == 0 {
            // The jobs dropped what the port held, so nothing is due any more.
            self.own_time.give_up(run.now);
        }
    }

    /// Makes the changes of the leases that have ended, in the time of the qdiscs, as jobs do.
    #[cold]
    pub(super) fn end_leases_until(&mut self, present: Instant, run: &mut Run<'_>) {
        let mut drops = PacketList::new();
        let mut cx = self.root.call(self.own_time.now(), &mut drops);
        self.root.end_leases(present, &mut cx);
        let made = cx.made;
        self.count_made(made, run);
        run.finish(&mut drops);
    }

    /// Drops all jobs that have not run. A job whose result a thread awaits holds the sending half
    /// of a channel. Dropping the job tells this thread that the job will not run.
    pub(super) fn drop_jobs(&mut self) {
        while let Some(job) = self.jobs.pop_front() {
            drop_any(job);
        }
    }
}
