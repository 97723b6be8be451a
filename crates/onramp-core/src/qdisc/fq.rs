//! Fair queue (`fq`): one queue for each flow; flows are served in turn, and each flow is paced at
//! its own rate.
//!
//! ```text
//! enqueue   find the flow by key; append the packet; a flow that had no packets joins its band's
//!           new flows
//! dequeue   fast path first; wake flows whose time has come; choose a band by weight, in that
//!           band a flow, new flows before old, by deficit round robin; a flow whose first packet
//!           may not leave yet is set aside until its time
//! pacing    a quantum at once, then a gap as long as the quantum takes at the flow's rate
//! ```
//!
//! The rate of a flow is the smaller of `maxrate` and the packet's own
//! [`pacing_rate`](onramp_queue::Meta::pacing_rate); instead of a rate, a packet may name its
//! earliest departure time ([`txtime_ns`](onramp_queue::Meta::txtime_ns)). While no flow has a
//! packet that may leave at once, up to 8 packets that have neither a pacing rate nor a later
//! departure time take the fast path, which is one queue for all flows.
//!
//! Source: `tc-fq(8)`; Shreedhar & Varghese, "Efficient Fair Queueing using Deficit Round Robin",
//! 1995; behaviour of Linux 7.2 `net/sched/sch_fq.c`, quirks included: `limit` applies to each
//! band, the fast path ignores `flow_limit`, a flow that has become active again joins the list of
//! the band of its last packet (band 0 if it had none), idle time is counted in jiffies of 10 ms, a
//! packet whose departure time lies before the end of its flow's wait shortens that wait (if there
//! is no `maxrate`), even if the flow is paced.
//!
//! Differs: the sender names the flow of a packet ([`flow`](onramp_queue::Meta::flow)), so there is
//! no `orphan_mask`. A change of `priomap` counts the packets that wait in their new bands, and
//! not, as in Linux, in those that they had when they came. Idle flows are collected when there are
//! more than `buckets` flows, whatever their hash. The waiting time of a packet starts when the
//! packet is pushed (below `netem`: when `netem` hands it over), and not when this qdisc enqueues
//! it: see [`enqueued_ns`](onramp_queue::Meta::enqueued_ns). Packets that leave early, by up to
//! `offload_horizon`, carry their departure time, and pacing counts from that time. Parameter
//! values that Linux clamps or wraps around are errors.
//!
//! Invariant: packets of one flow that all ask for the same rate, and for no departure time, leave
//! in the order they came. No packet leaves before the time it asks for. A flow that asks for no
//! departure times sends at most a quantum, or one packet, at once beyond its rate (and at first
//! `initial_quantum`), if no packet is larger than the quantum: as in Linux, the pause after a
//! larger packet does not include the time for small packets that left just before that packet.

mod flow;
mod index;
mod params;
mod show;
mod throttle;

use onramp_queue::{DropReason, Packet, PacketList};

use self::flow::{FAST, Flows, State, is_after, ticks};
use self::params::{Config, PARAMS};
use self::throttle::Throttled;
use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict, band_of, peek_by_dequeue};
use crate::base::Instant;
use crate::base::params::Values;
use crate::sched::Shown;
use crate::sched::scouts::{scout, turn};
use crate::sched::turns::{MANY, Turns};

const BANDS: usize = 3;

/// The greatest number of packets that the fast path holds while other packets are queued.
const FAST_MAX: usize = 8;

/// The greatest number of flows that `wake` moves in one batch.
const PARTY: usize = 16;

const NS_PER_SEC: u64 = 1_000_000_000;

pub(super) const FQ: Kind = Kind {
    id: "fq",
    about: "a queue for each flow, served in turn and paced",
    params: PARAMS,
    build: |values| Box::new(Fq::new(Config::new(values))),
    shown: Shown { extra: show::extra, ..Shown::TABLE },
    ..Kind::LEAF
};

/// Which list of a band a flow is in: that of the new flows or that of the old flows. A flow that
/// had no packets joins the list of new flows.
type Age = usize;
const NEW: Age = 0;
const OLD: Age = 1;

#[derive(Debug, Default)]
struct Band {
    /// Number of bytes that this band may still send in this round.
    credit: i64,
    /// The flows of this band that may send: the list of new flows, then the list of old flows (see
    /// [`Age`]).
    lists: [Turns; 2],
    packets: u32,
}

impl Band {
    /// Returns the list in which the next flow to serve is (new flows first), and that flow.
    /// Returns `None` if this band has no flow, or may send no more bytes in this round.
    #[inline]
    fn first(&self) -> Option<(Age, u32)> {
        let age = if self.lists[NEW].is_empty() { OLD } else { NEW };
        let first = self.lists[age].first()?;
        (self.credit > 0).then_some((age, first))
    }
}

/// The counters that `tc -s` shows.
#[derive(Debug, Default)]
struct Stats {
    gc: u64,
    fastpath: u64,
    throttled: u64,
    /// Moving average of how late throttled flows were woken, in nanoseconds.
    latency_ns: u64,
    ce_mark: u64,
    flows_plimit: u64,
    pkts_too_long: u64,
    band_drops: [u64; BANDS],
    horizon_drops: u64,
    horizon_caps: u64,
}

#[derive(Debug)]
struct Fq {
    config: Config,
    flows: Flows,
    throttled: Throttled,
    bands: [Band; BANDS],
    /// The number of the band that is served now.
    band: usize,
    /// Number of flows that hold no packet.
    inactive: usize,
    backlog: Backlog,
    /// A packet that was dequeued because the parent called `peek`; `backlog` does not count this
    /// packet.
    peeked: Option<Packet>,
    /// The last `dequeue` that found no packet asked to be called again at this time plus the timer
    /// slack. In nanoseconds.
    timer_ns: u64,
    stats: Stats,
}

impl Fq {
    fn new(config: Config) -> Self {
        Self {
            config,
            flows: Flows::new(),
            throttled: Throttled::default(),
            bands: Default::default(),
            band: 0,
            inactive: 0,
            backlog: Backlog::default(),
            peeked: None,
            timer_ns: 0,
            stats: Stats::default(),
        }
    }

    /// Whether `pkt` may take the fast path instead of its flow's queue.
    #[inline]
    fn takes_fast_path(&self, pkt: &Packet, now_ns: u64) -> bool {
        if has_rate(pkt) || self.config.maxrate != u64::MAX {
            return false;
        }
        let ahead_ns = now_ns.saturating_add(self.config.offload_horizon_ns);
        if pkt.txtime_ns > ahead_ns {
            return false;
        }
        // A packet on the fast path must not overtake flows that could send now. These include
        // throttled flows whose time has come but that have not been woken yet.
        self.backlog.packets == 0
            || self.flows.len() == self.inactive + self.throttled.len()
                && self.flows.packets(FAST) < FAST_MAX
                && self.throttled.first_ns() > ahead_ns
    }

    /// Compares the departure time of `pkt` with the horizon. Returns `Err(pkt)` if that time lies
    /// beyond the horizon and the packet must be dropped; otherwise returns the packet, whose time
    /// may have been moved to the horizon.
    #[inline]
    fn check_horizon(&mut self, mut pkt: Packet, now_ns: u64) -> Result<Packet, Packet> {
        let horizon_ns = now_ns.saturating_add(self.config.horizon_ns);
        if pkt.txtime_ns > horizon_ns {
            if self.config.horizon_drop {
                self.stats.horizon_drops += 1;
                return Err(pkt);
            }
            self.stats.horizon_caps += 1;
            pkt.txtime_ns = horizon_ns;
        }
        Ok(pkt)
    }

    /// Finds or creates the flow of a packet and prepares the flow to take the packet. Returns
    /// `None` if the flow already holds `flow_limit` packets.
    #[inline]
    fn flow_for(&mut self, key: u64, band: usize, now_ns: u64) -> Option<u32> {
        let config = &self.config;
        let found = self.flows.find_or_insert(key, config.initial_quantum, now_ns, config.buckets);
        if found.fresh {
            self.stats.gc += u64::from(found.collected);
            self.inactive = self.inactive + 1 - found.collected as usize;
        }
        let held = self.flows.packets(found.index);
        if held >= config.flow_limit {
            self.stats.flows_plimit += 1;
            return None;
        }
        let flow = self.flows.get_mut(found.index);
        if flow.state == State::Detached {
            let filled_at = flow.link.wrapping_add(config.refill_delay_ticks);
            // As in Linux, only a flow that was idle for longer than `refill_delay` may send a full
            // quantum again: otherwise a flow could exceed its fair share by pausing briefly.
            if is_after(ticks(now_ns), filled_at) {
                flow.credit = flow.credit.max(config.quantum);
            }
            self.append(found.index, NEW);
        }
        #[expect(clippy::cast_possible_truncation, reason = "there are three")]
        let band8 = band as u8;
        self.flows.get_mut(found.index).band = band8;
        self.bands[band].packets += 1;
        self.inactive -= usize::from(held == 0);
        Some(found.index)
    }

    /// Ends or shortens the wait of a throttled flow if a new packet asks for a departure time
    /// before the end of the wait.
    #[inline]
    fn advance(&mut self, index: u32, txtime_ns: u64, now_ns: u64) {
        let flow = self.flows.get_mut(index);
        if flow.state != State::Throttled
            || txtime_ns >= flow.time_next_ns
            || self.config.maxrate != u64::MAX
        {
            return;
        }
        flow.time_next_ns = txtime_ns;
        if txtime_ns > now_ns.saturating_add(self.config.offload_horizon_ns) {
            self.throttled.push_again(&mut self.flows, index);
        } else {
            self.append(index, OLD);
            self.throttled.forget_one(&self.flows);
        }
    }

    /// Appends a flow to the list `age` of the flow's band.
    #[inline]
    fn append(&mut self, index: u32, age: Age) {
        let flow = self.flows.get_mut(index);
        flow.state = State::Listed;
        self.bands[usize::from(flow.band)].lists[age].push_back(index);
    }

    /// Removes the first flow from the list `age` of the current band.
    #[inline]
    fn unlink_first(&mut self, age: Age) {
        self.bands[self.band].lists[age].pop_front();
    }

    /// Moves each throttled flow whose time has come to the old flows of its band.
    #[inline]
    fn wake(&mut self, now_ns: u64) {
        let ahead_ns = now_ns.saturating_add(self.config.offload_horizon_ns);
        let first_ns = self.throttled.first_ns();
        if first_ns > ahead_ns {
            return;
        }
        if let Some(late_ns @ 1..) = now_ns.checked_sub(first_ns) {
            let latency_ns = &mut self.stats.latency_ns;
            *latency_ns = *latency_ns - (*latency_ns >> 3) + (late_ns >> 3);
        }
        // Wake the flows in batches, so that the processor fetches the memory of all flows of a
        // batch at the same time.
        loop {
            let (mut party, mut size) = ([0; PARTY], 0);
            while size < PARTY
                && let Some(index) = self.throttled.pop_due(&self.flows, ahead_ns)
            {
                self.flows.prefetch_flow(index);
                party[size] = index;
                size += 1;
            }
            for &index in &party[..size] {
                self.flows.prefetch_packet(index);
                self.append(index, OLD);
            }
            if size < PARTY {
                return;
            }
        }
    }

    /// Removes and returns the next packet of the flows, or returns `None` if no packet may leave
    /// now.
    #[inline]
    fn next(&mut self, now_ns: u64) -> Option<Packet> {
        self.wake(now_ns);
        loop {
            let (age, index) = self.choose()?;
            if let Some(pkt) = self.serve(age, index, now_ns) {
                return Some(pkt);
            }
        }
    }

    /// Advances to the next band that has flows and may still send bytes in this round. Returns the
    /// list of the flow to serve and that flow, or `None` if no flow may send.
    #[inline]
    fn choose(&mut self) -> Option<(Age, u32)> {
        let mut barren = 0;
        loop {
            if let Some(first) = self.bands[self.band].first() {
                return Some(first);
            }
            if barren == BANDS {
                return None;
            }
            self.band = if self.band + 1 == BANDS { 0 } else { self.band + 1 };
            let weight = self.config.weights[self.band];
            let band = &mut self.bands[self.band];
            band.credit = (band.credit + weight).min(weight);
            // A band that has sent more bytes than it may send in a round (`credit` is negative: a
            // deficit) can still have flows with packets. Each visit adds `weight` to `credit`, so
            // the search goes on until all bands, one after another, may send bytes but have no
            // flow.
            barren = if band.credit > 0 { barren + 1 } else { 0 };
        }
    }

    /// Takes a packet from the flow `index`, which is the first flow in the list `age` of the
    /// current band. If that flow cannot send now, moves it to another list and returns `None`.
    #[inline]
    fn serve(&mut self, age: Age, index: u32, now_ns: u64) -> Option<Packet> {
        if let Some([far, _, near]) = self.bands[self.band].lists[age].look_ahead() {
            self.flows.prefetch_flow(far);
            self.flows.prefetch_packet(near);
        }
        let flow = self.flows.get_mut(index);
        if flow.credit <= 0 {
            flow.credit += self.config.quantum;
            self.unlink_first(age);
            self.append(index, OLD);
            return None;
        }
        let time_next_ns = flow.time_next_ns;
        let Some(head) = self.flows.head(index) else {
            self.unlink_first(age);
            if age == NEW {
                // A flow without packets still passes through the list of old flows once: if it
                // could become a new flow again at once, it could starve old flows.
                self.append(index, OLD);
            } else {
                let flow = self.flows.get_mut(index);
                flow.state = State::Detached;
                // Linux also sets the lowest bit of the time at which a flow became idle (`jiffies
                // | 1`), to mark the flow as detached. Do the same, so that the age of the flow is
                // the same as in Linux.
                flow.link = ticks(now_ns) | 1;
            }
            return None;
        };
        let due_ns = head.time_ns.max(time_next_ns);
        if due_ns > now_ns.saturating_add(self.config.offload_horizon_ns) {
            self.unlink_first(age);
            self.flows.get_mut(index).time_next_ns = due_ns;
            self.throttled.push(&mut self.flows, index);
            self.stats.throttled += 1;
            return None;
        }
        let mut pkt = self.flows.pop(index, head)?;
        self.inactive += usize::from(self.flows.is_empty(index));
        self.bands[band_of(&self.config.priomap, pkt.priority)].packets -= 1;
        self.bands[self.band].credit -= i64::from(pkt.len);
        self.mark(&mut pkt, now_ns, due_ns);
        self.pace(index, &pkt, now_ns, due_ns);
        // The packet leaves before its time, by at most `offload_horizon`: tell the device when to
        // send it.
        if pkt.txtime_ns == 0 && due_ns > now_ns {
            pkt.txtime_ns = due_ns;
        }
        Some(pkt)
    }

    /// Sets the CE mark on an ECN-capable packet that waited longer than `ce_threshold`.
    #[inline]
    fn mark(&mut self, pkt: &mut Packet, now_ns: u64, due_ns: u64) {
        if now_ns.saturating_sub(due_ns) > self.config.ce_threshold_ns {
            if matches!(pkt.ecn, 1 | 2) {
                pkt.ecn = 3;
            }
            // As in Linux, the counter includes packets that waited for too long but cannot carry a
            // mark.
            self.stats.ce_mark += 1;
        }
    }

    /// Charges a flow for a packet, and computes when the flow's next packet may leave.
    #[inline]
    fn pace(&mut self, index: u32, pkt: &Packet, now_ns: u64, due_ns: u64) {
        let flow = self.flows.get_mut(index);
        flow.credit = flow.credit.saturating_sub_unsigned(pkt.len);
        let by_sender = has_rate(pkt) && pkt.txtime_ns == 0;
        if !self.config.pacing || (self.config.maxrate == u64::MAX && !by_sender) {
            return;
        }
        let mut rate = self.config.maxrate;
        let mut bytes = u64::from(pkt.len);
        if pkt.txtime_ns == 0 {
            if by_sender {
                rate = rate.min(pkt.pacing_rate);
            }
            // A flow with a rate up to `low_rate_threshold` pauses after each packet; a faster flow
            // sends a whole quantum before it pauses.
            if rate <= self.config.low_rate_threshold {
                flow.credit = 0;
            } else {
                bytes = bytes.max(u64::from(self.config.quantum.unsigned_abs()));
                if flow.credit > 0 {
                    return;
                }
            }
        }
        // A pause stays as planned even if the sender sets a higher rate meanwhile, so no pause is
        // longer than a second.
        let mut gap_ns = bytes * NS_PER_SEC / rate.max(1);
        if gap_ns > NS_PER_SEC {
            gap_ns = NS_PER_SEC;
            self.stats.pkts_too_long += 1;
        }
        // If the flow was woken late, shorten the pause by the same time, but at most by half of
        // the pause.
        if flow.time_next_ns != 0 {
            gap_ns -= (gap_ns / 2).min(now_ns.saturating_sub(flow.time_next_ns));
        }
        flow.time_next_ns = now_ns.max(due_ns).saturating_add(gap_ns);
    }

    /// Returns when the caller should call `dequeue` again: at `timer_ns` plus the timer slack. So
    /// that many flows share one timer, `timer_ns` changes only if it lies before the time of the
    /// first throttled flow (less `offload_horizon`), or after that time by more than the slack.
    fn next_ask(&mut self) -> Instant {
        let first_ns = self.throttled.first_ns().saturating_sub(self.config.offload_horizon_ns);
        let slack_ns = self.config.timer_slack_ns;
        if !(first_ns..=first_ns.saturating_add(slack_ns)).contains(&self.timer_ns) {
            self.timer_ns = first_ns;
        }
        Instant(self.timer_ns).after(slack_ns)
    }
}

/// Whether the sender set a pacing rate for the packet; 0 and `u64::MAX` both mean that it set
/// none.
#[inline]
fn has_rate(pkt: &Packet) -> bool {
    pkt.pacing_rate.wrapping_sub(1) < u64::MAX - 1
}

impl Qdisc for Fq {
    #[inline]
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let now_ns = cx.now.0;
        let band = band_of(&self.config.priomap, pkt.priority);
        if self.bands[band].packets >= self.config.limit {
            self.stats.band_drops[band] += 1;
            cx.drop(pkt, DropReason::FqBandLimit);
            return Verdict::Dropped;
        }
        let pkt = match self.check_horizon(pkt, now_ns) {
            Ok(pkt) => pkt,
            Err(pkt) => {
                cx.drop(pkt, DropReason::FqHorizonLimit);
                return Verdict::Dropped;
            }
        };
        let index = if self.takes_fast_path(&pkt, now_ns) {
            self.stats.fastpath += 1;
            FAST
        } else if let Some(index) = self.flow_for(pkt.flow, band, now_ns) {
            if pkt.txtime_ns != 0 {
                self.advance(index, pkt.txtime_ns, now_ns);
            }
            index
        } else {
            cx.drop(pkt, DropReason::FqFlowLimit);
            return Verdict::Dropped;
        };
        self.backlog.add(&pkt);
        self.flows.push(index, pkt, now_ns);
        Verdict::Queued
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        if self.backlog.packets == 0 {
            return Dequeue::Empty;
        }
        let now_ns = cx.now.0;
        let pkt = match self.flows.head(FAST) {
            Some(head) => self.flows.pop(FAST, head),
            None => self.next(now_ns),
        };
        let Some(pkt) = pkt else { return Dequeue::NotBefore(self.next_ask()) };
        self.backlog.sub(&pkt);
        Dequeue::Ready(pkt)
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.backlog;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    /// A packet without a rate and a departure time takes the fast path of an empty `fq`.
    fn lets_pass(&self, pkt: &Packet, now: Instant) -> bool {
        pkt.txtime_ns == 0 && self.takes_fast_path(pkt, now.0) && self.accepts(pkt)
    }

    fn passed(&mut self) {
        self.stats.fastpath += 1;
    }

    fn accepts(&self, pkt: &Packet) -> bool {
        let (config, held) = (&self.config, self.backlog.packets as usize);
        let band = band_of(&config.priomap, pkt.priority);
        // A flow cannot hold more packets than the whole qdisc, so look the flow up only if the
        // whole qdisc holds at least `flow_limit` packets.
        self.bands[band].packets < config.limit
            && (held < config.flow_limit || self.flows.held(pkt.flow) < config.flow_limit)
    }

    fn prefetch_flows(&self, coming: &PacketList, most: u32) {
        // If there are few flows and few packets, their memory stays in the processor's caches, and
        // prefetching would gain nothing.
        if self.flows.len().max(self.backlog.packets as usize) > MANY {
            self.flows.prefetch_flows(coming.metas().take(most as usize).map(|meta| meta.flow));
        }
    }

    fn prefetch_next(&self, most: u32) {
        let lists = &self.bands[self.band].lists;
        let turns = lists[NEW].iter().chain(lists[OLD].iter());
        let prefetch = |index| self.flows.prefetch_flow(index);
        let credit = |index| match index {
            FAST => i32::MAX,
            _ => turn(self.flows.get(index).credit, self.config.quantum),
        };
        let queue_of = |index| (self.flows.in_order(index), credit(index));
        let fast = (!self.flows.in_order(FAST).is_empty()).then_some(FAST);
        scout(most, fast.into_iter().chain(turns), prefetch, queue_of);
    }

    /// Sets new parameters. As in Linux, packets beyond a smaller `limit` are dequeued and dropped,
    /// but only as many as may leave at the present time. Unlike at enqueue, `limit` here applies
    /// to all bands together. A new `buckets` applies only when new flows are added.
    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        self.config = Config::new(values);
        // The priority map may have changed, so count the packets of each band anew.
        self.bands.iter_mut().for_each(|band| band.packets = 0);
        for pkt in self.flows.metas() {
            self.bands[band_of(&self.config.priomap, pkt.priority)].packets += 1;
        }
        while self.backlog().packets > self.config.limit {
            let Dequeue::Ready(pkt) = self.dequeue(cx) else { break };
            cx.drop(pkt, DropReason::Overlimit);
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        for pkt in self.flows.drain().chain(self.peeked.take()) {
            cx.drop(pkt, DropReason::Purged);
        }
        self.flows = Flows::new();
        self.throttled.clear();
        self.bands = Default::default();
        self.band = 0;
        self.inactive = 0;
        self.backlog = Backlog::default();
        self.timer_ns = 0;
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        let stats = &self.stats;
        out("flows", self.flows.len() as u64);
        out("inactive", self.inactive as u64);
        out("throttled_flows", self.throttled.len() as u64);
        out("gc", stats.gc);
        out("fastpath", stats.fastpath);
        out("throttled", stats.throttled);
        out("latency_ns", stats.latency_ns);
        out("ce_mark", stats.ce_mark);
        out("flows_plimit", stats.flows_plimit);
        out("pkts_too_long", stats.pkts_too_long);
        for (packets, drops, band) in [
            ("band0_pkts", "band0_drops", 0),
            ("band1_pkts", "band1_drops", 1),
            ("band2_pkts", "band2_drops", 2),
        ] {
            out(packets, u64::from(self.bands[band].packets));
            out(drops, stats.band_drops[band]);
        }
        out("horizon_drops", stats.horizon_drops);
        out("horizon_caps", stats.horizon_caps);
    }
}
