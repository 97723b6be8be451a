//! What the owner of a port works on, and its work.

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

/// What the owner works on.
pub(super) struct PortState<D> {
    root: RootQdisc,
    device: D,
    /// The part in a rate that ports have together.
    share: Option<Share>,
    /// The latest time an owner came with.
    pub(super) now: Instant,
    /// Taken from the intake, not yet in the qdisc: a quota, the cap and one push at most. Not left
    /// alone in an idle intake, where nothing would bound it.
    pub(super) inbox: PacketList,
    /// Dequeued, not yet taken by the device: no more than one burst.
    burst: PacketList,
    /// The device was full, and is not asked before then.
    pub(super) retry_at: Instant,
    pace: Pace,
    /// What others want done with the tree, in the next turn.
    jobs: VecDeque<Job>,
    /// Packets that came, ever.
    came: u64,
    /// Nothing is sent any more; what comes is dropped for this.
    closed: Option<DropReason>,
    /// Nothing is left of what it held when it died.
    is_buried: bool,
}

/// What an owner may still send, and take into the qdisc, and what of it the device handed on.
#[derive(Default)]
pub(super) struct Quota {
    pub(super) left: u32,
    pub(super) enqueue: u32,
    pub(super) handed: u32,
    /// What it may drop of the packets that came to a port that is closed.
    pub(super) purge: u32,
    /// It is not a sender that has come by: it has time to drop a whole tree of packets.
    pub(super) at_leisure: bool,
}

/// How an owner leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// Nothing is held that could go now; the next push sends.
    Idle,
    /// Pushes only stage, until the runner's tick.
    Collecting,
    /// Pushes only stage, and the runner comes at once, if there is `more` to send.
    Staging { more: bool },
}

/// Why an owner stopped sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Nothing is held.
    Empty,
    /// Nothing may go, or the device takes nothing, before then.
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

    /// From the next turn on, everything is dropped for `reason`. False: so it was.
    pub(super) fn close(&mut self, reason: DropReason) -> bool {
        let was_open = self.closed.is_none();
        self.closed.get_or_insert(reason);
        was_open
    }

    /// From the next turn on, `jobs` are done, in order: as many as there is room for.
    pub(super) fn accept_jobs(&mut self, jobs: &mut VecDeque<Job>) {
        let room = JOBS_MAX.saturating_sub(self.jobs.len());
        self.jobs.extend(jobs.drain(..room.min(jobs.len())));
    }

    /// Whether something is to be done that nobody has come to yet.
    pub(super) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }
}

impl<D: Device> PortState<D> {
    /// Takes packets in, for the next turn.
    pub(super) fn receive(&mut self, packets: &mut PacketList) {
        let Some(newest) = packets.back() else { return };
        self.pace.received(Instant(newest.enqueued_ns));
        self.came += u64::from(packets.len());
        self.inbox.append(packets);
    }

    /// All of it that may panic: qdisc and device are anybody's code. `late` says that the owner
    /// has worked for long.
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
            // Only the oldest: its age says how long a list waited, and its length is known.
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
                // It cannot be helped: what comes out goes no further.
                self.enqueue(1, false, done, quota, now, stats);
            }
        };
        // What is more than the next run sends shall compete.
        self.enqueue(self.inbox.len().saturating_sub(QUOTA), true, done, quota, now, stats);
        self.settle(stop, now)
    }

    /// Moves up to `most` packets of what came into the qdisc, but, if `asks`, none that it would
    /// drop for its limits; gives their number. Those that it makes of them count: it may take one
    /// apart into thousands.
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
            // The verdict is told by `drops`.
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

    /// Counts packets that qdiscs made.
    fn count_made(&mut self, made: u32, stats: &PortStats) {
        self.came += u64::from(made);
        stats.enqueued.add(u64::from(made));
        stats.made.add(u64::from(made));
    }

    /// Feeds the device until there is nothing to send, or no more than `left` allows.
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
            // A broken device may leave more than it got.
            let gone = offered.saturating_sub(self.burst.len());
            quota.left = quota.left.saturating_sub(gone);
            quota.handed += gone.saturating_sub(out.len());
            let gone_bytes = bytes.saturating_sub(self.burst.bytes());
            stats.count_out(gone, gone_bytes, now.since(oldest), &mut out);
            done.append(&mut out);
            if transmitted.retry_at.is_some() || !self.burst.is_empty() {
                self.root.count_requeues(self.burst.len());
                // A device that does not say when is asked after a tick.
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

    /// Tops the burst up from the qdisc; says what stops it if the burst stays empty.
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

    /// Corrects `stop` by what is left: a quota may end with the last packet, and an empty qdisc
    /// means little while the inbox is not.
    fn settle(&mut self, stop: Stop, now: Instant) -> Stop {
        self.update_share(now, matches!(stop, Stop::Until(_)) && self.inbox.is_empty());
        match stop {
            Stop::Quota if self.backlog() == 0 => Stop::Empty,
            Stop::Empty | Stop::Until(_) if !self.inbox.is_empty() => Stop::Quota,
            stop => stop,
        }
    }

    /// Tells the share whether there is something to send. What the qdisc alone keeps `waiting` for
    /// later is nothing to send.
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

    /// How the port shall be left.
    pub(super) fn leave(
        &mut self,
        mode: Mode,
        was_busy: bool,
        stop: Stop,
        visit: bool,
        now: Instant,
    ) -> Leave {
        let collects = self.pace.collects(was_busy, visit, now);
        // Packets before the qdisc mean a quota: see `settle`, and `purge`.
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

    /// What the owner may send in one run. More if that costs the device nothing and the rest would
    /// only wait for the runner.
    pub(super) fn quota(&self, mode: Mode, now: Instant) -> u32 {
        let lingers = mode == Mode::Inline || mode == Mode::Hybrid && self.pace.holds(now);
        if lingers && self.pace.is_cheap() { LONG_QUOTA } else { QUOTA }
    }

    pub(super) fn backlog(&self) -> u64 {
        let packets = self.inbox.len() + self.burst.len() + self.root.backlog().packets;
        u64::from(packets)
    }

    /// Does what others want done with the tree, but no more when it is `late`.
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

    /// Does no job any more: whoever waits for one learns that it is gone.
    fn drop_jobs(&mut self) {
        while let Some(job) = self.jobs.pop_front() {
            drop_any(job);
        }
    }

    /// Whether nothing is sent any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Drops what is held: what came up to the quota, and the tree's packets if they are few, or if
    /// the owner has time; no qdisc drops a part of what it holds.
    fn purge(
        &mut self,
        reason: DropReason,
        done: &mut PacketList,
        quota: &mut Quota,
        now: Instant,
        stats: &PortStats,
    ) -> Stop {
        self.share = None; // It has no part in the rate any more.
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

    /// Whether a dead port holds too much for an owner that has only come by.
    fn is_burden(&self, quota: &Quota, stats: &PortStats) -> bool {
        !quota.at_leisure && self.held_by_death(stats) > u64::from(quota.purge)
    }

    /// What a dead port holds, by its books: nobody asks what may be broken.
    fn held_by_death(&self, stats: &PortStats) -> u64 {
        // A broken device may have told of more packets than came.
        self.came.saturating_sub(stats.sent.get() + stats.dropped.total())
    }

    /// Ends it after a panic: nothing of it is asked any more. What it holds is dropped at once if
    /// that is little, or the owner has time; else by a visit.
    pub(super) fn die(&mut self, quota: &Quota, stats: &PortStats) {
        self.closed = Some(DropReason::PortDead);
        if !self.is_burden(quota, stats) {
            self.bury(stats);
        }
    }

    /// Whether it is dead and still holds what it held.
    fn awaits_burial(&self) -> bool {
        !self.is_buried && self.closed == Some(DropReason::PortDead)
    }

    /// Why an owner stops that met the panic.
    pub(super) fn stop_of_death(&self) -> Stop {
        if self.awaits_burial() { Stop::Quota } else { Stop::Empty }
    }

    /// Packets that it holds.
    pub(super) fn held(&self, stats: &PortStats) -> u64 {
        if self.awaits_burial() { self.held_by_death(stats) } else { self.backlog() }
    }

    /// What it holds goes home as it is: a packet that nobody spoke for says that its port died.
    /// What the panic took with it is known by number.
    fn bury(&mut self, stats: &PortStats) {
        self.is_buried = true;
        self.share = None; // As in `purge`.
        // They may be broken, and panic again.
        for qdisc in self.root.bury() {
            drop_any(qdisc);
        }
        self.drop_jobs();
        drop(std::mem::take(&mut self.inbox));
        drop(std::mem::take(&mut self.burst));
        stats.dropped.add(DropReason::PortDead, self.held_by_death(stats));
    }
}

/// Drops what may panic at that.
fn drop_any<T>(any: T) {
    let drops = AssertUnwindSafe(|| drop(any));
    catch_unwind(drops).unwrap_or_else(std::mem::forget);
}
