//! The state that the owner of a port works on, and the steps of the owner's work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use onramp_queue::{DropReason, PacketList};

use super::pace::Pace;
use super::{JOBS_MAX, Job, LONG_QUOTA, Mode, QUOTA, TICK_NS};
use crate::base::Instant;
use crate::base::stats::PortStats;
use crate::port::{Device, Share};
use crate::sched::{Cx, Dequeue, Qdisc};
use crate::tree::RootQdisc;

/// The state behind a port's intake. Only the port's owner touches it.
pub(super) struct PortState<D> {
    root: RootQdisc,
    device: D,
    /// The port's part of a rate that several ports have in common, if any.
    share: Option<Share>,
    /// The latest time that any owner of this port has used.
    pub(super) now: Instant,
    /// Packets taken from the intake that are not yet in the qdisc. At most `QUOTA` packets, plus
    /// the cap of the intake, plus the packets of one push. The owner leaves the intake idle only
    /// when `inbox` is empty, because in an idle intake nothing would bound `inbox`.
    pub(super) inbox: PacketList,
    /// Packets that are dequeued but not yet taken by the device: at most one burst.
    burst: PacketList,
    /// Time before which the device, which was full, is not offered packets again.
    pub(super) retry_at: Instant,
    pace: Pace,
    /// Jobs (changes and queries of the tree) to be run in the next turn.
    jobs: VecDeque<Job>,
    /// Number of packets that this port has received from its intake, or that its qdiscs have made,
    /// since the port was created.
    came: u64,
    /// If set, the port is closed: it sends nothing, and drops packets for this reason.
    closed: Option<DropReason>,
    /// Whether a dead port has already dropped all that it held when it died.
    is_buried: bool,
}

/// What an owner may still do in one run, in packets: `left` to send and `enqueue` to move into the
/// qdisc. `handed` counts the packets that the device passed on to somebody else.
#[derive(Default)]
pub(super) struct Quota {
    pub(super) left: u32,
    pub(super) enqueue: u32,
    pub(super) handed: u32,
    /// Most packets that the owner may still drop if the port is closed.
    pub(super) purge: u32,
    /// Whether the owner has time to drop a whole tree of packets. False for a sender that only
    /// passes by with its own packets.
    pub(super) at_leisure: bool,
}

/// The state in which an owner leaves the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// The port holds no packet that could leave now. The next push sends.
    Idle,
    /// Pushes only stage packets, until the runner's next tick.
    Collecting,
    /// Pushes only stage packets. The runner visits at once if there is `more` to send.
    Staging { more: bool },
}

/// The reason why an owner stopped sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The port holds no packet.
    Empty,
    /// No packet may leave before this time, or the device takes no packet before this time.
    Until(Instant),
    /// The quota is used up.
    Quota,
}

impl<D> PortState<D> {
    pub(super) fn new(qdisc: Box<dyn Qdisc>, device: D, share: Option<Share>) -> Self {
        Self {
            root: RootQdisc::new(qdisc).charged(true),
            device,
            share,
            now: Instant(0),
            inbox: PacketList::new(),
            burst: PacketList::new(),
            retry_at: Instant(0),
            pace: Pace::default(),
            jobs: VecDeque::new(),
            came: 0,
            closed: None,
            is_buried: false,
        }
    }

    /// Closes the port: from the next turn on, all packets are dropped for `reason`. Returns false
    /// if the port was already closed; the port then keeps its first reason.
    pub(super) fn close(&mut self, reason: DropReason) -> bool {
        let was_open = self.closed.is_none();
        self.closed.get_or_insert(reason);
        was_open
    }

    /// Moves `jobs` into the state, as many as fit, to be run in order in the next turn.
    pub(super) fn accept_jobs(&mut self, jobs: &mut VecDeque<Job>) {
        let room = JOBS_MAX.saturating_sub(self.jobs.len());
        self.jobs.extend(jobs.drain(..room.min(jobs.len())));
    }

    /// Whether jobs are waiting here.
    pub(super) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }
}

impl<D: Device> PortState<D> {
    /// Appends packets to `inbox`, for the next turn.
    pub(super) fn receive(&mut self, packets: &mut PacketList) {
        let Some(newest) = packets.back() else { return };
        self.pace.received(Instant(newest.enqueued_ns));
        self.came += u64::from(packets.len());
        self.inbox.append(packets);
    }

    /// Runs jobs, enqueues packets and sends. Contains all calls that may panic, since qdiscs and
    /// devices are foreign code. `late` returns true once the owner has worked for
    /// [`QUOTA_NS`](super::QUOTA_NS).
    pub(super) fn turn(
        &mut self,
        done: &mut PacketList,
        quota: &mut Quota,
        late: &dyn Fn() -> bool,
        now: Instant,
        stats: &PortStats,
    ) -> Stop {
        if !self.jobs.is_empty() {
            self.run_jobs(done, late, now, stats);
        }
        if let Some(reason) = self.closed {
            return self.purge(reason, done, quota, now, stats);
        }
        if let Some(oldest) = self.inbox.front() {
            // Record only the oldest packet: its age is the time for which the whole list waited,
            // and other counters have the length of the list.
            stats.staging_ns.record(now.since(Instant(oldest.enqueued_ns)));
        }
        let stop = loop {
            let came = self.enqueue(QUOTA, true, done, quota, now, stats);
            let stop = self.send(done, quota, late, now, stats);
            if stop == Stop::Quota || self.inbox.is_empty() || quota.enqueue == 0 {
                break stop;
            }
            if late() {
                break Stop::Quota;
            }
            if came == 0 {
                // The qdisc is full and has nothing to send now, so enqueue and let the qdisc drop.
                self.enqueue(1, false, done, quota, now, stats);
            }
        };
        // Enqueue what exceeds the next run, so that the qdisc can schedule it.
        self.enqueue(self.inbox.len().saturating_sub(QUOTA), true, done, quota, now, stats);
        self.settle(stop, now)
    }

    /// Moves up to `most` packets from `inbox` into the qdisc and returns their number. If `asks`
    /// is true, the function stops at the first packet that the qdisc would drop for its limits.
    /// Packets that the qdisc makes count towards `most` as well, since a qdisc may split one
    /// packet into thousands.
    fn enqueue(
        &mut self,
        most: u32,
        asks: bool,
        done: &mut PacketList,
        quota: &mut Quota,
        now: Instant,
        stats: &PortStats,
    ) -> u32 {
        let mut drops = PacketList::new();
        let mut cx = self.root.call(now, &mut drops);
        let (most, mut came) = (most.min(quota.enqueue), 0_u32);
        self.root.qdisc().prefetch_flows(&self.inbox, most);
        while came.saturating_add(cx.made) < most
            && self.inbox.front().is_some_and(|pkt| !asks || self.root.qdisc().accepts(pkt))
            && let Some(pkt) = self.inbox.pop_front()
        {
            // Ignore the verdict: `drops` has the dropped packets.
            let _ = self.root.enqueue(pkt, &mut cx);
            came += 1;
        }
        self.root.count_dropped(0, &cx);
        let made = cx.made;
        quota.enqueue = quota.enqueue.saturating_sub(came.saturating_add(made));
        self.pace.enqueued(came);
        stats.enqueued.add(u64::from(came));
        self.count_made(made, stats);
        stats.count_drops(&drops);
        done.append(&mut drops);
        came
    }

    /// Counts `made` packets that qdiscs created, for example by splitting one.
    fn count_made(&mut self, made: u32, stats: &PortStats) {
        self.came += u64::from(made);
        stats.enqueued.add(u64::from(made));
        stats.made.add(u64::from(made));
    }

    /// Gives bursts to the device until nothing is left to send or `quota.left` is used up.
    fn send(
        &mut self,
        done: &mut PacketList,
        quota: &mut Quota,
        late: &dyn Fn() -> bool,
        now: Instant,
        stats: &PortStats,
    ) -> Stop {
        if now < self.retry_at {
            return Stop::Until(self.retry_at);
        }
        self.update_share(now, false);
        loop {
            let next = self.fill(quota.left.min(QUOTA), done, now, stats);
            if self.burst.is_empty() {
                return next;
            }
            stats.bursts.add(1);
            let (offered, bytes) = (self.burst.len(), self.burst.bytes());
            stats.burst_packets.record(u64::from(offered));
            let oldest = self.burst.front().map_or(now, |pkt| Instant(pkt.enqueued_ns));
            let mut out = PacketList::new();
            let transmitted = self.device.transmit(&mut self.burst, &mut out, now);
            self.pace.transmitted(transmitted.calls);
            // Saturating, because a broken device may leave more packets than it was offered.
            let gone = offered.saturating_sub(self.burst.len());
            quota.left = quota.left.saturating_sub(gone);
            quota.handed += gone.saturating_sub(out.len());
            let gone_bytes = bytes.saturating_sub(self.burst.bytes());
            stats.count_out(gone, gone_bytes, now.since(oldest), &mut out);
            done.append(&mut out);
            if transmitted.retry_at.is_some() || !self.burst.is_empty() {
                self.root.count_requeues(self.burst.len());
                // A device that gives no time is asked again after a tick.
                self.retry_at = transmitted.retry_at.unwrap_or_else(|| now.after(TICK_NS));
                return Stop::Until(self.retry_at);
            }
            if next != Stop::Quota || quota.left == 0 {
                return next;
            }
            if late() {
                return Stop::Quota;
            }
        }
    }

    /// Fills the burst from the qdisc up to `left` packets. Returns why the filling stopped.
    fn fill(&mut self, left: u32, done: &mut PacketList, now: Instant, stats: &PortStats) -> Stop {
        let mut drops = PacketList::new();
        let mut cx = self.root.call(now, &mut drops);
        let stop = loop {
            if self.burst.len() >= left {
                break Stop::Quota;
            }
            if let Some(at) = self.share.as_mut().and_then(|share| share.not_before(now))
                && self.root.backlog().packets > 0
            {
                break Stop::Until(at);
            }
            match self.root.dequeue(&mut cx) {
                Dequeue::Ready(pkt) => {
                    pkt.prefetch();
                    if let Some(share) = &mut self.share {
                        share.charge(pkt.len);
                    }
                    self.burst.push_back(pkt);
                }
                Dequeue::NotBefore(at) => break Stop::Until(at),
                Dequeue::Empty => break Stop::Empty,
            }
        };
        self.root.count_dropped(0, &cx);
        let made = cx.made;
        self.count_made(made, stats);
        stats.count_drops(&drops);
        done.append(&mut drops);
        stop
    }

    /// Corrects `stop` for what is left. The quota may have ended exactly with the last packet, so
    /// that nothing is left to send. An empty qdisc does not mean an empty port while packets are
    /// in `inbox`.
    fn settle(&mut self, stop: Stop, now: Instant) -> Stop {
        self.update_share(now, matches!(stop, Stop::Until(_)) && self.inbox.is_empty());
        match stop {
            Stop::Quota if self.backlog() == 0 => Stop::Empty,
            Stop::Empty | Stop::Until(_) if !self.inbox.is_empty() => Stop::Quota,
            stop => stop,
        }
    }

    /// Tells the share whether the port has something to send. With `waiting`, packets that only
    /// the qdisc, not the share, holds back until later do not count as something to send.
    #[inline]
    fn update_share(&mut self, now: Instant, waiting: bool) {
        if self.share.is_none() {
            return;
        }
        let held = self.backlog() > 0;
        if let Some(share) = &mut self.share {
            let later = waiting && share.not_before(now).is_none();
            share.update_active(now, held && !later);
        }
    }

    /// Decides in which state the owner leaves the port.
    pub(super) fn leave(
        &mut self,
        mode: Mode,
        was_busy: bool,
        stop: Stop,
        visit: bool,
        now: Instant,
    ) -> Leave {
        let collects = self.pace.collects(was_busy, visit, now);
        // Packets left in `inbox` always give `Stop::Quota`: see `settle` and `purge`.
        let more = stop == Stop::Quota;
        match mode {
            _ if self.closed.is_some() && !more => Leave::Idle,
            _ if self.closed.is_some() => Leave::Staging { more },
            Mode::Dedicated => Leave::Staging { more },
            Mode::Hybrid if collects || more && !self.pace.holds(now) => Leave::Collecting,
            _ if more => Leave::Staging { more },
            _ => Leave::Idle,
        }
    }

    /// Returns how many packets the owner may send in one run. The quota is larger if bursts cost
    /// the device no call and the rest would only wait for the runner.
    pub(super) fn quota(&self, mode: Mode, now: Instant) -> u32 {
        let lingers = mode == Mode::Inline || mode == Mode::Hybrid && self.pace.holds(now);
        if lingers && self.pace.is_cheap() { LONG_QUOTA } else { QUOTA }
    }

    pub(super) fn backlog(&self) -> u64 {
        let packets = self.inbox.len() + self.burst.len() + self.root.backlog().packets;
        u64::from(packets)
    }

    /// Runs the waiting jobs, and stops early once the owner is `late`.
    pub(super) fn run_jobs(
        &mut self,
        done: &mut PacketList,
        late: &dyn Fn() -> bool,
        now: Instant,
        stats: &PortStats,
    ) {
        if self.closed == Some(DropReason::PortDead) {
            return self.drop_jobs();
        }
        let mut drops = PacketList::new();
        let mut cx = self.root.call(now, &mut drops);
        while let Some(job) = self.jobs.pop_front() {
            job(&mut self.root, &mut cx);
            if late() {
                break;
            }
        }
        let made = cx.made;
        self.count_made(made, stats);
        stats.count_drops(&drops);
        done.append(&mut drops);
    }

    /// Drops all jobs without running them. Dropping a job tells the thread that waits for the job
    /// that the job will not run.
    fn drop_jobs(&mut self) {
        while let Some(job) = self.jobs.pop_front() {
            drop_any(job);
        }
    }

    /// Whether the port is closed, and so sends nothing.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Drops the packets of a closed port: first packets of `burst` and `inbox`, up to
    /// `quota.purge`, then the packets of the tree. The tree is dropped only if its packets fit
    /// into the rest of the quota or if the owner has time, because a qdisc can only drop all of
    /// its packets at once.
    fn purge(
        &mut self,
        reason: DropReason,
        done: &mut PacketList,
        quota: &mut Quota,
        now: Instant,
        stats: &PortStats,
    ) -> Stop {
        self.share = None; // A closed port takes no part of the shared rate.
        if !self.is_buried && self.closed == Some(DropReason::PortDead) {
            if self.is_burden(quota, stats) {
                return Stop::Quota;
            }
            self.bury(stats);
        }
        let mut drops = PacketList::new();
        let mut cx = Cx::new(now, &mut drops);
        for pkt in self.burst.by_ref().chain(self.inbox.by_ref()).take(quota.purge as usize) {
            cx.drop(pkt, reason);
        }
        quota.purge = quota.purge.saturating_sub(cx.drops.len());
        let rests = !quota.at_leisure && self.root.backlog().packets > quota.purge;
        if !rests {
            self.root.qdisc_mut().reset(&mut cx);
        }
        stats.count_drops(&drops);
        done.append(&mut drops);
        if rests || !self.inbox.is_empty() { Stop::Quota } else { Stop::Empty }
    }

    /// Whether a dead port holds more packets than a sender that only passes by should drop.
    fn is_burden(&self, quota: &Quota, stats: &PortStats) -> bool {
        !quota.at_leisure && self.held_by_death(stats) > u64::from(quota.purge)
    }

    /// Returns the number of packets that a dead port holds, computed from counters. The qdisc and
    /// the device may be broken, so neither is asked.
    fn held_by_death(&self, stats: &PortStats) -> u64 {
        // Saturating, because a broken device may have reported more packets than it was given.
        self.came.saturating_sub(stats.sent.get() + stats.dropped.total())
    }

    /// Closes the port after a panic and never calls its qdisc or device again. Drops the packets
    /// at once if they are few or the owner has time; otherwise the runner's visit drops them.
    pub(super) fn die(&mut self, quota: &Quota, stats: &PortStats) {
        self.closed = Some(DropReason::PortDead);
        if !self.is_burden(quota, stats) {
            self.bury(stats);
        }
    }

    /// Whether the port is dead and still holds the packets that it held when it died.
    fn awaits_burial(&self) -> bool {
        !self.is_buried && self.closed == Some(DropReason::PortDead)
    }

    /// Returns why an owner stops after a panic in its turn.
    pub(super) fn stop_of_death(&self) -> Stop {
        if self.awaits_burial() { Stop::Quota } else { Stop::Empty }
    }

    /// Returns the number of packets that the port holds.
    pub(super) fn held(&self, stats: &PortStats) -> u64 {
        if self.awaits_burial() { self.held_by_death(stats) } else { self.backlog() }
    }

    /// Drops all that a dead port holds. Packets are marked `PortDead` at push, so unprocessed
    /// packets already carry that reason. Packets that the panic itself destroyed are counted as
    /// the difference of the counters.
    fn bury(&mut self, stats: &PortStats) {
        self.is_buried = true;
        self.share = None; // A dead port takes no part of the shared rate.
        // The qdiscs may be broken, so that dropping one panics again.
        for qdisc in self.root.bury() {
            drop_any(qdisc);
        }
        self.drop_jobs();
        drop(std::mem::take(&mut self.inbox));
        drop(std::mem::take(&mut self.burst));
        stats.dropped.add(DropReason::PortDead, self.held_by_death(stats));
    }
}

/// Drops a value whose `drop` may panic, and leaks the panic's payload.
fn drop_any<T>(any: T) {
    let drops = AssertUnwindSafe(|| drop(any));
    catch_unwind(drops).unwrap_or_else(std::mem::forget);
}
