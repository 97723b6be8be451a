//! The state of a port that only its owner uses, and the steps of the owner's work.

use std::collections::VecDeque;

use onramp_queue::{Cancels, DropReason, PacketList, Taken};

use super::job::Job;
use super::own_time::OwnTime;
use super::pace::Pace;
use super::run::{Leave, Run, Stop};
use super::{FRUITLESS_MAX, LONG_QUOTA, Mode, PortOptions, QUOTA, TICK_NS, WALK_LOOK, WALK_NS};
use crate::base::sync::thread_local;
use crate::base::{Instant, Wakes};
use crate::port::{Device, DeviceWaker, Share, Transmitted};
use crate::sched::{Cx, Dequeue, Qdisc};
use crate::tree::RootQdisc;

/// The state of a port behind its intake. Only the port's owner uses it.
pub(super) struct PortState<D> {
    pub(super) root: RootQdisc,
    pub(super) device: D,
    /// The port's part of a rate that several ports have in common, if any.
    pub(super) share: Option<Share>,
    /// The latest time that any owner of this port has used. No later owner uses an earlier time.
    pub(super) now: Instant,
    /// Packets taken from the intake that are not yet in the qdisc: at most `QUOTA` packets, plus
    /// the cap of the intake, plus the packets of one push. The owner leaves the intake idle only
    /// when `inbox` is empty: a thread that pushes to an idle intake becomes the owner and appends
    /// its packets to `inbox`, however many are there already.
    pub(super) inbox: PacketList,
    /// Packets taken from the intake that are newer than those in `inbox` and not yet in order: see
    /// `collect`. While there are any, the owner takes no others, and does not leave the intake
    /// idle.
    pub(super) taken: Taken,
    /// The thread that owned the port last, by its [`here`].
    pub(super) owner: usize,
    /// The number of packets that the qdisc held when that thread became the owner, less those of
    /// the bursts for which the qdisc was asked to prefetch since. The processors of earlier owners
    /// have them in their caches.
    pub(super) elsewhere: u32,
    /// How many packets that the qdisc was asked to prefetch have not left it yet.
    pub(super) asked: u32,
    /// Packets that have left the qdisc but that the device has not taken yet: at most one burst.
    pub(super) burst: PacketList,
    /// The device was full: time before which it is not offered packets again, unless it says
    /// (`room`) that it has room.
    pub(super) retry_at: Instant,
    pub(super) room: DeviceWaker,
    pub(super) cancels: Cancels,
    pub(super) own_time: OwnTime,
    pub(super) pace: Pace,
    /// Jobs (changes and queries of the tree) that run in the owner's next turn.
    pub(super) jobs: VecDeque<Job>,
    /// Number of packets that have come to this port since it was created: from its intake, or made
    /// by its qdiscs.
    pub(super) came: u64,
    /// If set, the port is closed: it sends nothing, and drops all packets for this reason.
    pub(super) closed: Option<DropReason>,
    /// Whether a dead port has already dropped the packets that it held when it died.
    pub(super) is_buried: bool,
}

thread_local! {
    static HERE: u8 = const { 0 };
}

/// Returns a number that no other thread has while this one runs.
fn here() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// A burst that is offered to the device.
pub(super) struct Offer {
    packets: u32,
    bytes: u64,
    /// When the first packet was pushed.
    oldest: Instant,
}

impl Offer {
    /// Counts the burst.
    pub(super) fn of(burst: &PacketList, run: &Run<'_>) -> Self {
        let (packets, bytes) = (burst.len(), burst.bytes());
        run.stats.bursts.add(1);
        run.stats.burst_packets.record(u64::from(packets));
        let oldest = burst.front().map_or(run.now, |pkt| Instant(pkt.enqueued_ns));
        Self { packets, bytes, oldest }
    }
}

impl<D: Device> PortState<D> {
    pub(super) fn new(qdisc: Box<dyn Qdisc>, mut device: D, options: PortOptions) -> Self {
        let room = options.device_waker.unwrap_or_else(|| {
            let room = DeviceWaker::default();
            device.attach(room.clone());
            room
        });
        Self {
            root: RootQdisc::new(qdisc).charged(true),
            device,
            share: options.share,
            now: Instant(0),
            inbox: PacketList::new(),
            taken: Taken::default(),
            owner: 0,
            elsewhere: 0,
            asked: 0,
            burst: PacketList::new(),
            retry_at: Instant(0),
            room,
            cancels: options.cancels,
            own_time: OwnTime::new(
                options.catch_up_ns,
                Wakes::new(options.slack_ns, options.rest_ns),
            ),
            pace: Pace::default(),
            jobs: VecDeque::new(),
            came: 0,
            closed: None,
            is_buried: false,
        }
    }

    /// Appends packets that the owner has pushed to `inbox`, so that the next turn moves them into
    /// the qdisc.
    pub(super) fn receive(&mut self, packets: &mut PacketList) {
        self.came += u64::from(packets.len());
        self.admit(packets);
    }

    fn admit(&mut self, packets: &mut PacketList) {
        let Some(newest) = packets.back() else { return };
        self.pace.received(Instant(newest.enqueued_ns));
        self.inbox.append(packets);
    }

    /// Puts the packets that were taken from the intake in order, and then appends them to `inbox`.
    /// If that takes longer than [`WALK_NS`], leaves the rest of the work to the next owner,
    /// because a sender may be the owner, and wants to go on. The runner of a closed port does all
    /// of it, because no other owner may come.
    pub(super) fn collect(&mut self, run: &Run<'_>) {
        let hurries = self.closed.is_none() || !run.is_runner;
        while !self.taken.order(WALK_LOOK) {
            if hurries && run.lasts() >= WALK_NS {
                return;
            }
        }
        let mut packets = std::mem::take(&mut self.taken).ordered();
        self.admit(&mut packets);
    }

    /// Whether the port holds packets that are not yet in the qdisc.
    pub(super) fn has_staged(&self) -> bool {
        !self.inbox.is_empty() || !self.taken.is_empty()
    }

    /// Returns the time that an owner which read the clock at `now` must use. A thread reads the
    /// clock before it becomes the owner, so `now` may be older than the previous owner's time; a
    /// time that runs backwards would put packets of one flow out of order.
    pub(super) fn later(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        self.now
    }

    /// Does one turn of the owner's work: runs jobs, then enqueues and sends packets until the
    /// quota is used up or no packet may leave.
    ///
    /// Qdiscs and devices are foreign code and may panic, even in `backlog`. A panic that nobody
    /// catches would leave the port owned for ever. So an owner calls qdiscs and devices only
    /// inside `catch_unwind`: in this function and, in `Port::run_jobs_now`, in `run_jobs` and
    /// `held`. The only exception is `Port::die`: it calls `held` of a dead port, which asks no
    /// foreign qdisc.
    pub(super) fn turn(&mut self, run: &mut Run<'_>) -> Stop {
        self.begin(run);
        if self.has_jobs() {
            self.run_jobs(run);
            // A job may have brought a lease whose time is over.
            self.end_leases(run);
        }
        if let Some(reason) = self.closed {
            let stop = self.purge(reason, run);
            run.stats.backlog.set(self.held(run.stats));
            return stop;
        }
        if let Some(oldest) = self.oldest_arrival() {
            // Record how long only the oldest packet has waited in the intake. One value per turn
            // is enough, because the owner takes all staged packets together.
            run.stats.staging_ns.record(run.now.since(oldest));
        }
        if self.cancels.stand() {
            self.drop_staged(run);
        }
        let stop = loop {
            let behind = self.own_time.is_behind(run.now);
            let came = self.enqueue(QUOTA, true, run);
            let stop = self.send(run);
            if stop == Stop::Quota || self.inbox.is_empty() || run.quota.enqueue == 0 {
                break stop;
            }
            if came == 0 && !behind {
                // The qdisc is full, and no packet may leave now. So enqueue one packet, and let
                // the qdisc decide which packet to drop.
                self.enqueue(1, false, run);
            }
            if run.is_late() {
                break Stop::Quota;
            }
        };
        // A run usually sends at most `QUOTA` packets. If more are left in `inbox`, move them into
        // the qdisc, so that it can schedule them, and because this processor has them in its
        // caches: the next owner, on another one, would wait for each.
        self.enqueue(u32::MAX, true, run);
        self.settle(stop, run)
    }

    /// Sets the qdiscs' time to the instant at which the owner's work begins, counts how late the
    /// owner has come, and ends the leases whose time has come.
    pub(super) fn begin(&mut self, run: &mut Run<'_>) {
        if let Some(late) = self.own_time.begin(run.now, self.oldest_arrival()) {
            run.stats.count_late(late.late_ns, late.lost_ns);
            self.own_time.rest_up_to(run.waker.rest_ns());
        }
        if std::mem::replace(&mut self.owner, here()) != here() {
            (self.elsewhere, self.asked) = (self.root.backlog().packets, 0);
        }
        self.end_leases(run);
    }

    /// Makes the changes of the leases that have ended. Looks at the present, not at the time that
    /// the run uses: the owner may have stood still since it read the clock, or have called a
    /// device that blocks.
    #[inline]
    fn end_leases(&mut self, run: &mut Run<'_>) {
        if self.has_leases_to_end(run) && self.closed.is_none() {
            self.end_leases_until(run.present(), run);
        }
    }

    /// Whether the end of a lease may have come.
    #[inline]
    pub(super) fn has_leases_to_end(&self, run: &Run<'_>) -> bool {
        let first = self.root.leases_end();
        first != Instant::MAX && run.present() >= first
    }

    /// Returns when the first packet of `inbox` was pushed.
    fn oldest_arrival(&self) -> Option<Instant> {
        self.inbox.front().map(|pkt| Instant(pkt.enqueued_ns))
    }

    /// Moves up to `most` packets from `inbox` into the qdisc and returns how many it has moved. If
    /// `asks` is true, stops at the first packet for which the qdisc would have to drop a packet
    /// because of its limits. While the owner catches up, stops at the first packet that was pushed
    /// later than the qdisc's time. Otherwise such a packet was pushed while the owner stood still
    /// after it had read the clock, so the time of the qdisc and of the run goes on to the push: no
    /// packet is enqueued before its push. Packets that the qdisc makes itself count towards `most`
    /// as well, since a qdisc may split one packet into thousands.
    fn enqueue(&mut self, most: u32, asks: bool, run: &mut Run<'_>) -> u32 {
        let (mut drops, mut stopped) = (PacketList::new(), PacketList::new());
        let now = self.own_time.now();
        let newest = if self.own_time.is_behind(run.now) { now } else { Instant::MAX };
        let mut cx = self.root.call(now, &mut drops);
        let (most, mut came) = (most.min(run.quota.enqueue), 0_u32);
        self.root.qdisc().prefetch_flows(&self.inbox, most);
        while came.saturating_add(cx.made) < most
            && self.inbox.front().is_some_and(|pkt| {
                pkt.enqueued_ns <= newest.0 && (!asks || self.root.qdisc().accepts(pkt))
            })
            && let Some(pkt) = self.inbox.pop_front()
        {
            cx.now = cx.now.max(Instant(pkt.enqueued_ns));
            came += 1;
            if let Some(pkt) = self.root.admit(pkt, cx.now, &mut stopped) {
                // The qdisc's verdict on the packet is not needed: if the qdisc drops packets,
                // `drops` receives them.
                let _ = self.root.enqueue(pkt, &mut cx);
            }
        }
        self.root.count_dropped(0, &cx);
        let (made, latest) = (cx.made, cx.now);
        drops.append(&mut stopped);
        self.own_time.skip_to(latest);
        run.now = self.later(run.now.max(latest));
        run.quota.enqueue = run.quota.enqueue.saturating_sub(came.saturating_add(made));
        self.pace.enqueued(came);
        run.stats.enqueued.add(u64::from(came));
        self.count_made(made, run);
        run.finish(&mut drops);
        came
    }

    /// Counts `made` packets that qdiscs have made themselves, for example by splitting a packet.
    pub(super) fn count_made(&mut self, made: u32, run: &Run<'_>) {
        self.came += u64::from(made);
        run.stats.enqueued.add(u64::from(made));
        run.stats.made.add(u64::from(made));
    }

    /// Gives bursts of packets to the device until no packet may leave or the quota is used up.
    /// Returns the reason for stopping.
    fn send(&mut self, run: &mut Run<'_>) -> Stop {
        let now = run.now;
        if now < self.retry_at {
            if !self.room.take() {
                self.own_time.give_up(now);
                return Stop::Until(self.retry_at);
            }
            self.retry_at = now;
        }
        self.update_share(self.own_time.now(), false);
        loop {
            let next = self.fill(run);
            let cancelled = if self.cancels.stand() { self.drop_dequeued(run) } else { 0 };
            if self.burst.is_empty() {
                if cancelled == 0 {
                    return next;
                }
            } else {
                let (offer, mut out) = (Offer::of(&self.burst, run), PacketList::new());
                let answer = self.device.transmit(&mut self.burst, &mut out, run.now);
                if !self.transmitted(&offer, answer, &mut out, run) {
                    // From now on, the device and not the qdisc holds the packets back.
                    self.own_time.give_up(run.now);
                    return Stop::Until(self.retry_at);
                }
            }
            if next != Stop::Quota || run.quota.send == 0 {
                return next;
            }
            if run.is_late() {
                return Stop::Quota;
            }
        }
    }

    /// Counts what the device did with an offer: `out` are the packets that it has sent or dropped.
    /// Returns false if the device is to be offered no more packets for now, because it is full or
    /// has asked for a pause; `retry_at` then says until when.
    pub(super) fn transmitted(
        &mut self,
        offer: &Offer,
        answer: Transmitted,
        out: &mut PacketList,
        run: &mut Run<'_>,
    ) -> bool {
        let now = run.now;
        self.pace.transmitted(answer.calls);
        // The subtraction saturates, because a broken device may leave more packets in the burst
        // than it was offered.
        let gone = offer.packets.saturating_sub(self.burst.len());
        run.quota.send = run.quota.send.saturating_sub(gone);
        run.quota.handed += gone.saturating_sub(out.len());
        let gone_bytes = offer.bytes.saturating_sub(self.burst.bytes());
        run.stats.count_out(gone, gone_bytes, offer.oldest, now, out);
        run.done.append(out);
        if answer.retry_at.is_none() && self.burst.is_empty() {
            return true;
        }
        self.root.count_requeues(self.burst.len());
        // If the device is full but names no time, it is offered packets again after a tick; if it
        // has said meanwhile that it has room, at once.
        let retry_at = answer.retry_at.unwrap_or_else(|| now.after(TICK_NS));
        self.retry_at = if self.room.want() { now } else { retry_at };
        false
    }

    /// Moves packets from the qdisc into `burst`, up to [`QUOTA`] packets in all, at the instants
    /// at which they were due (see the module `own_time`). Returns the reason for stopping.
    fn fill(&mut self, run: &mut Run<'_>) -> Stop {
        let most = run.quota.send.min(QUOTA);
        let mut drops = PacketList::new();
        let mut cx = self.root.call(self.own_time.now(), &mut drops);
        let mut fruitless = 0;
        let stop = loop {
            if self.burst.len() >= most {
                break Stop::Quota;
            }
            let due = match self.next(&mut cx) {
                Dequeue::Ready(pkt) => {
                    self.ask_ahead(most - self.burst.len());
                    pkt.prefetch();
                    self.burst.push_back(pkt);
                    fruitless = 0;
                    continue;
                }
                Dequeue::NotBefore(at) => Some(at),
                Dequeue::Empty => {
                    self.own_time.ran_dry();
                    None
                }
            };
            if !self.own_time.is_behind(run.now) {
                break due.map_or(Stop::Empty, Stop::Until);
            }
            fruitless += 1;
            if fruitless > FRUITLESS_MAX {
                self.own_time.skip_to(run.now);
            } else if !self.catch_up(due, run) {
                break Stop::Quota;
            }
            cx.now = self.own_time.now();
        };
        match stop {
            Stop::Until(at) => self.own_time.wait_for(Some(at)),
            Stop::Quota => {
                let behind = self.own_time.is_behind(run.now);
                self.own_time.wait_for(behind.then(|| self.own_time.now()));
            }
            Stop::Empty => self.own_time.wait_for(None),
        }
        self.root.count_dropped(0, &cx);
        let made = cx.made;
        self.count_made(made, run);
        run.finish(&mut drops);
        stop
    }

    /// Counts a packet that has left the qdisc. With it, the burst has room for `room` packets. If
    /// all packets for which the qdisc was asked have left, asks it to prefetch the next ones: only
    /// now it is certain that packets may leave.
    #[inline]
    fn ask_ahead(&mut self, room: u32) {
        if self.asked > 0 {
            self.asked -= 1;
        } else if self.elsewhere > 0 {
            let next = self.elsewhere.min(room);
            self.elsewhere -= next;
            self.asked = next.saturating_sub(1);
            if self.asked > 0 {
                self.root.qdisc().prefetch_next(self.asked);
            }
        }
    }

    /// Brings a port that is behind the clock one step forward, when its qdisc has no packet to
    /// release at the present instant of its time: to the instant `due` that the qdisc named, or to
    /// the next arrival of a packet. Returns false if the quota of the run does not suffice.
    #[cold]
    fn catch_up(&mut self, due: Option<Instant>, run: &mut Run<'_>) -> bool {
        let arrival = self.oldest_arrival();
        let came = arrival.is_some_and(|at| at <= self.own_time.now());
        if came && self.enqueue(1, false, run) > 0 {
            // The qdisc was full at this instant and dropped a packet, as in `turn`.
            return true;
        }
        let next = due.map_or(run.now, |due| due.min(run.now));
        if run.quota.enqueue == 0 && arrival.is_some_and(|at| at <= next) {
            // The next packet arrived before the qdisc could release another one. The next owner
            // enqueues it at that instant.
            return false;
        }
        self.own_time.advance(run.now, due, arrival);
        self.enqueue(QUOTA, true, run);
        true
    }

    /// Takes the next packet from the qdisc, unless the port has used up its part of a shared rate.
    #[inline]
    fn next(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Some(at) = self.share.as_mut().and_then(|share| share.not_before(cx.now))
            && self.root.backlog().packets > 0
        {
            return Dequeue::NotBefore(at);
        }
        let answer = self.root.dequeue(cx);
        if let (Some(share), Dequeue::Ready(pkt)) = (&mut self.share, &answer) {
            share.charge(pkt.len);
        }
        answer
    }

    /// Counts the packets that the port holds after a turn, and corrects the reason `stop` for
    /// which the turn ended: to `Empty` if the quota ended exactly with the last packet; to `Quota`
    /// if no packet of the qdisc can leave now, but other packets are not in the qdisc yet.
    fn settle(&mut self, stop: Stop, run: &Run<'_>) -> Stop {
        let waiting = matches!(stop, Stop::Until(_)) && !self.has_staged();
        self.update_share(self.own_time.now(), waiting);
        let backlog = self.backlog();
        run.stats.backlog.set(backlog);
        match stop {
            Stop::Quota if backlog == 0 => {
                self.own_time.ran_dry();
                Stop::Empty
            }
            Stop::Empty | Stop::Until(_) if self.has_staged() => Stop::Quota,
            stop => stop,
        }
    }

    /// Tells the port's part of a shared rate whether the port has packets to send. `waiting` says
    /// that the owner stopped because no packet may leave now. If the qdisc holds the packets back,
    /// and the shared rate does not, the port counts as having no packets to send.
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

    /// Whether the port is to collect packets from now on (pushes only stage packets), judged by
    /// the recent traffic.
    pub(super) fn collects(&mut self, run: &Run<'_>) -> bool {
        self.pace.collects(run.was_busy, run.is_runner, run.now)
    }

    /// Decides how the owner leaves the port: see [`Leave`].
    pub(super) fn how_to_leave(
        &self,
        mode: Mode,
        collects: bool,
        stop: Stop,
        now: Instant,
    ) -> Leave {
        // If packets are left in `inbox` or `taken`, `stop` is always `Stop::Quota`: `settle` and
        // `purge` return nothing else in this case.
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

    /// Returns how many packets the owner may send in one run. The number is larger if bursts cost
    /// the device no call into the kernel and the packets left behind would only wait for the
    /// runner.
    pub(super) fn quota(&self, mode: Mode, now: Instant) -> u32 {
        let lingers = mode == Mode::Inline || mode == Mode::Hybrid && self.pace.holds(now);
        if lingers && self.pace.is_cheap() { LONG_QUOTA } else { QUOTA }
    }

    pub(super) fn backlog(&self) -> u64 {
        let staged = self.inbox.len() + self.taken.len();
        u64::from(staged + self.burst.len() + self.root.backlog().packets)
    }
}
