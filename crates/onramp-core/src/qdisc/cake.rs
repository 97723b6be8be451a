//! Common applications kept enhanced (`cake`): a shaper, tins (groups of flows) of different
//! importance, and in each tin a queue for each flow. Hosts and flows share the rate fairly, and
//! each queue is kept short.
//!
//! ```text
//! enqueue   code point -> tin; flow -> one of the eight queues that the flow may have; when memory
//!           runs out, drop from the head of the longest queue
//! dequeue   when the rate allows it: the most important tin within its own rate, else the tin that
//!           is due first; sparse flows, then bulk flows; COBALT lets the packet out or drops it
//! ```
//!
//! Source: Høiland-Jørgensen, Täht, Morton, "Piece of CAKE: A Comprehensive Queue Management
//! Solution for Home Gateways", 2018; `tc-cake(8)`; behaviour of Linux 7.2 `net/sched/sch_cake.c`.
//! Differs: the sender names the flow of a packet ([`flow`](onramp_queue::Meta::flow)); code point
//! and hosts come from the Ethernet frame or the IP packet in the payload. A datagram, whose
//! headers the socket writes, has the code point 0, comes from one common host, and goes to the
//! host of its [`dest`](Packet::dest). The options `nat` and `ack-filter` are refused, because
//! Onramp neither tracks connections nor looks for acknowledgements. The waiting time of a packet
//! starts when the packet is pushed (below `netem`: when `netem` hands it over), and not when this
//! qdisc enqueues it: see [`enqueued_ns`](onramp_queue::Meta::enqueued_ns). If one host has all
//! bulk flows of a tin, and more than 32, Linux visits each flow in each round, and rounds at
//! random the bytes that the flow may send in the round. Onramp does not round them, and the flow
//! that lacks the fewest bytes until it may send goes first, so Onramp need not visit each flow in
//! each round.
//! Invariant: since the qdisc was last empty, no more bytes have left than the rate allows, plus
//! one packet; packets of a flow leave in order; as long as nothing is dropped, flows of a host
//! that always have packets get the same number of bytes, give or take a quantum and a packet.

mod autorate;
mod classify;
mod cobalt;
mod former;
mod headers;
mod heap;
mod rounds;
mod shape;
mod show;
mod stats;
mod tin;
mod tins;

use onramp_queue::{DropReason, Packet, PacketList};

use self::autorate::Estimate;
use self::classify::{Classifier, Mode};
use self::cobalt::since;
use self::former::Former;
use self::heap::{Heap, tin_and_queue};
use self::shape::{Framing, Pace, Sizes};
use self::tin::Tin;
use self::tins::TinLayout;
use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict, peek_by_dequeue};
use crate::base::params::{Default, Param, U32_MAX, Unit, Values};
use crate::base::rng::Rng;
use crate::base::{Fault, Instant};
use crate::filter::Filters;
use crate::law::codel;
use crate::law::cost::memory;
use crate::sched::{FlowView, segments};

const RTT_NS: u64 = 100_000_000;
/// Names for round-trip times, which are in nanoseconds.
const PRESETS: &[(&str, u64)] = &[
    ("datacentre", 100_000),
    ("lan", 1_000_000),
    ("metro", 10_000_000),
    ("regional", 30_000_000),
    ("internet", RTT_NS),
    ("oceanic", 300_000_000),
    ("satellite", 1_000_000_000),
    ("interplanetary", 1_000_000_000_000),
];

/// The default memory limit is the memory of this number of packets of the largest size.
const PACKETS: u64 = 10_240;
/// The least value of the default memory limit, in bytes, whatever the rate.
const MEMORY_MIN: u64 = 4 << 20;

/// Defines an option whose value is one of several words. The first word is the default; it is
/// shown even if it was not given.
const fn either(key: &'static str, words: &'static [&'static str], help: &'static str) -> Param {
    Param::new(key, Unit::Words(words), Default::Number(0), help)
}

pub(super) const CAKE: Kind = Kind {
    id: "cake",
    about: "a shaper, with tins for traffic classes and a short queue for each flow",
    params: &[
        Param::new(
            "bandwidth",
            Unit::RateOr("unlimited"),
            Default::Off,
            "the highest rate at which packets leave",
        )
        .or(&["unlimited"]),
        Param::new(
            "autorate-ingress",
            Unit::Words(&["autorate-ingress"]),
            Default::Off,
            "the rate follows the arrival rate, starting from `bandwidth`",
        ),
        either("diffserv", tins::MODES, "which DSCP goes to which tin"),
        either("flows", Mode::WORDS, "what gets a fair share: flows, hosts or both"),
        either(
            "nat",
            &["nonat", "nat"],
            "tells flows apart by their addresses before NAT; only `nonat` is accepted",
        ),
        either("wash", &["nowash", "wash"], "clears the packets' DSCP"),
        Param::new(
            "ingress",
            Unit::Words(&["egress", "ingress"]),
            Default::Off,
            "for a shaper behind the bottleneck: dropped packets count as sent",
        ),
        either(
            "ack-filter",
            &["no-ack-filter", "ack-filter", "ack-filter-aggressive"],
            "drops superfluous TCP acknowledgements; only `no-ack-filter` is accepted",
        ),
        either("split-gso", &["split-gso", "no-split-gso"], "splits large packets"),
        Param::new("rtt", Unit::Named(PRESETS), Default::Number(RTT_NS), "the usual round trip")
            .or(&[
                "datacentre",
                "lan",
                "metro",
                "regional",
                "internet",
                "oceanic",
                "satellite",
                "interplanetary",
            ])
            .within(1_000, U32_MAX * 1_000)
            .refused(Fault::Usage)
            .zero_is_unsaid(),
        Param::new(
            "link",
            Unit::Words(shape::LINK_NAMES),
            Default::Off,
            "sets the overhead for a common type of link",
        )
        .folding(shape::fold_link),
        Param::new(
            "ether-vlan",
            Unit::Words(&["ether-vlan"]),
            Default::Off,
            "adds 4 bytes of overhead for a VLAN tag",
        )
        .folding(shape::fold_vlan),
        Param::new(
            "atm",
            Unit::Words(shape::CELLS),
            Default::Off,
            "how the link cuts packets into cells",
        ),
        Param::new("overhead", Unit::Signed, Default::Off, "bytes added to each packet").decimal(),
        Param::new(
            "mpu",
            Unit::Count,
            Default::Off,
            "smallest number of bytes that a packet counts for",
        )
        .within(0, 256)
        .refused(Fault::Usage)
        .decimal(),
        Param::new("memlimit", Unit::Size, Default::Off, "memory used at most").zero_is_unsaid(),
        Param::new(
            "fwmark",
            Unit::Count,
            Default::Off,
            "mask of the bits of a packet's mark that choose the tin",
        ),
    ],
    check: show::check,
    build: |values| Box::new(Cake::new(values)),
    shown: show::SHOWN,
    quirks: Quirks {
        change: |said, options| {
            // As with `tc`, a command that gives a bandwidth but not `autorate-ingress` ends the
            // estimation of the rate.
            if said.is_given("bandwidth") && !said.is_given("autorate-ingress") {
                options.set("autorate-ingress", None);
            }
            // A command that gives an overhead but no kind of link ends `raw`: the overhead is then
            // added to the packet's length without its link header.
            if said.is_given("overhead") && !said.is_given("link") {
                options.set("link", None);
            }
        },
        ..Quirks::NONE
    },
    ..Kind::LEAF
};

#[derive(Debug)]
struct Cake {
    classifier: Classifier,
    ingress: bool,
    split_gso: bool,
    framing: Framing,
    /// How the link framed the packets that came before `framing` was set and that this qdisc still
    /// holds.
    former: Former,
    sizes: Sizes,
    base: Base,
    rate: u64,
    /// The estimate of the rate at which packets come. As in Linux, this is the first configured
    /// rate while no rate is estimated.
    estimate: Estimate,
    /// Whether the shaper's rate follows the estimate.
    estimates: bool,
    pace: Pace,
    /// The time from which the shaper's rate allows the next packet, in nanoseconds.
    next_at: u64,
    /// Like `next_at`, but a dropped packet does not move this time, and a sent packet moves it by
    /// one and a half times the packet's time on the link. A packet may leave when either of the
    /// two times has passed, so drops cost at most a third of the rate.
    failsafe_at: u64,
    tins: Vec<Tin>,
    /// The tins that changes have removed, which follow on those in `tins`. They are empty.
    removed: Vec<Tin>,
    /// The number of the tin that is served now. After a change it may be a number that no tin has:
    /// then the next round begins at the first tin.
    at: usize,
    backlog: Backlog,
    memory: u64,
    memory_max: u64,
    memory_limit: u64,
    heap: Heap,
    rng: Rng,
    /// A packet that was dequeued because the parent called `peek`; `backlog` does not count this
    /// packet.
    peeked: Option<Packet>,
    overlimits: u64,
    /// When `dequeue` or `peek` last looked for a packet, in nanoseconds.
    asked_at: u64,
}

/// Parameters that, together with the rate, determine the rates of the tins and the memory limit.
#[derive(Clone, Copy, Debug)]
struct Base {
    /// The configured rate, in bytes per second.
    rate: u64,
    diffserv: u64,
    rtt: u64,
    mtu: u32,
    /// The configured memory limit, in bytes; 0 = none.
    memory_limit: u64,
}

/// The greatest number of tins (`diffserv8`).
const TINS_MAX: usize = stats::NAMES.len();

impl Base {
    fn new(values: &Values<'_>) -> Self {
        Self {
            rate: values.number("bandwidth"),
            diffserv: values.number("diffserv"),
            rtt: values.number("rtt"),
            mtu: values.site.mtu,
            memory_limit: values.number("memlimit"),
        }
    }

    /// Returns the memory limit at a rate of `rate` bytes per second, in bytes.
    #[expect(clippy::cast_possible_truncation, reason = "Linux truncates, too")]
    fn memory_limit(&self, rate: u64) -> u64 {
        let most = PACKETS * u64::from(self.mtu);
        let by_rate = u128::from(rate) * u128::from(self.rtt / 1_000) / 250_000;
        // Linux keeps the lower 32 bits of the product.
        let by_rate = u64::from(by_rate as u32).max(MEMORY_MIN);
        match self.memory_limit {
            0 if rate == 0 => most,
            0 => most.min(by_rate),
            given => given,
        }
    }
}

/// Returns a function that tells how many bytes a queue holds. The function's argument is the
/// queue's slot (its number among the queues of all tins).
fn bytes_of(tins: &[Tin]) -> impl Fn(u16) -> u64 {
    |slot| {
        let (tin, queue) = tin_and_queue(slot);
        tins.get(tin).map_or(0, |tin| tin.bytes(queue))
    }
}

impl Cake {
    fn new(values: &Values<'_>) -> Self {
        let site = values.site;
        let base = Base::new(values);
        let rate = base.rate;
        let mode = Mode::new(values.number("flows"));
        let plan = TinLayout::new(base.diffserv, rate);
        let tin = |&(rate, share): &(u64, i32)| Tin::new(rate, share, base.rtt, site.mtu, mode);
        let estimates = values.is_given("autorate-ingress");
        Self {
            tins: plan.tins.iter().map(tin).collect(),
            removed: Vec::new(),
            classifier: Classifier::new(values, mode, plan),
            ingress: values.number("ingress") == 1,
            split_gso: values.number("split-gso") == 0,
            framing: Framing::new(values),
            former: Former::default(),
            sizes: Sizes::NONE,
            base,
            rate,
            estimate: Estimate::new(rate),
            estimates,
            pace: Pace::new(rate),
            next_at: 0,
            failsafe_at: 0,
            at: 0,
            backlog: Backlog::default(),
            memory: 0,
            memory_max: 0,
            memory_limit: base.memory_limit(rate),
            heap: Heap::new(),
            rng: Rng::new(site.seed),
            peeked: None,
            overlimits: 0,
            asked_at: 0,
        }
    }

    /// Sets the rate of the shaper, in bytes per second.
    fn set_rate(&mut self, rate: u64) {
        let Base { diffserv, rtt, mtu, .. } = self.base;
        (self.rate, self.pace) = (rate, Pace::new(rate));
        self.memory_limit = self.base.memory_limit(rate);
        for (tin, (rate, share)) in self.tins.iter_mut().zip(tins::parts(diffserv, rate)) {
            tin.set_rate(rate, share, rtt, mtu);
        }
    }

    /// Updates the estimate of the rate with a packet of `bytes` bytes. A packet of several
    /// datagrams counts once, with its whole length.
    #[inline]
    fn learn(&mut self, bytes: u64, now: u64) {
        if !self.estimates {
            self.estimate.pause(now);
        } else if let Some(rate) = self.estimate.came(bytes, now) {
            self.set_rate(rate);
        }
    }

    /// Returns the number of packets that this qdisc holds, including a packet taken out by a
    /// `peek`.
    #[inline]
    fn packets(&self) -> u32 {
        self.backlog.packets + u32::from(self.peeked.is_some())
    }

    /// Whether the shaper's rate allows no packet at the time `now`.
    #[inline]
    fn has_to_wait(&self, now: u64) -> bool {
        // With the option `ingress`, a dropped packet uses up the rate as a sent one does (it moves
        // `next_at`). `failsafe_at` guarantees that at least two thirds of the rate are left for
        // packets that are sent, however many are dropped.
        since(self.next_at, now) > 0 && since(self.failsafe_at, now) > 0
    }

    /// If the tin `tin` was idle, discards the part of its rate that it did not use, so that the
    /// tin cannot send it later as a burst. If the whole qdisc was idle, does the same for the
    /// shaper's rate.
    #[inline]
    fn forget_idle_time(&mut self, tin: usize, now: u64) {
        let idle = self.packets() == 0;
        let tin = &mut self.tins[tin];
        if tin.held > 0 {
            return;
        }
        if since(tin.next_at, now) < 0 {
            tin.next_at = now;
        }
        if idle && since(self.next_at, now) < 0 {
            (self.next_at, self.failsafe_at) = (now, now);
        // As in Linux, a packet that comes to an empty qdisc and must wait for the shaper adds one
        // to the statistic `overlimits`.
        } else if idle && self.has_to_wait(now) {
            self.overlimits += 1;
        }
    }

    /// Charges a tin and the shaper for a packet with the given framing. Returns the number of
    /// bytes charged.
    #[inline]
    fn charge(
        &mut self,
        tin: usize,
        (pkt, framing): (&Packet, Framing),
        now: u64,
        dropped: bool,
    ) -> i32 {
        let len = framing.size(pkt, |_, _| {});
        if !self.pace.is_unlimited() {
            let tin = &mut self.tins[tin];
            let (tin_time, time) = (tin.pace.time(len), self.pace.time(len));
            if since(tin.next_at, now) < 0 {
                tin.next_at = tin.next_at.wrapping_add(tin_time);
            // The tin has used up its own rate, and sends all the same because other tins leave
            // some of the shaper's rate. As in Linux, move the tin's `next_at` to one packet's time
            // after now, unless it is later already.
            } else if since(tin.next_at, now.wrapping_add(tin_time)) < 0 {
                tin.next_at = now.wrapping_add(tin_time);
            }
            self.next_at = self.next_at.wrapping_add(time);
            if !dropped {
                self.failsafe_at = self.failsafe_at.wrapping_add(time + (time >> 1));
            }
        }
        len.cast_signed()
    }

    /// Appends a packet to a queue of a tin.
    #[inline]
    fn push(&mut self, tin: usize, queue: usize, pkt: Packet) {
        self.framing.size(&pkt, |net, adjusted| self.sizes.note(net, adjusted));
        self.sizes.came();
        self.backlog.add(&pkt);
        self.memory += memory(pkt.len);
        self.memory_max = self.memory_max.max(self.memory);
        self.tins[tin].push(queue, pkt);
    }

    /// Removes the packet at the head of a queue of a tin. Returns the packet and the framing that
    /// was in effect when the packet came.
    #[inline]
    fn pop(&mut self, tin: usize, queue: usize) -> Option<(Packet, Framing)> {
        let pkt = self.tins.get_mut(tin)?.pop(queue)?;
        self.backlog.sub(&pkt);
        self.memory -= memory(pkt.len);
        Some((pkt, self.former.left((tin, queue)).unwrap_or(self.framing)))
    }

    /// Drops the packet at the head of the longest queue. Returns the tin and the number of that
    /// queue, or `None` if no packet is held.
    #[cold]
    fn drop_longest(&mut self, cx: &mut Cx<'_>) -> Option<(usize, usize)> {
        let mut known = self.heap.is_known();
        let (tin, queue, pkt, framing) = loop {
            let (tin, queue) = self.heap.first(bytes_of(&self.tins));
            if let Some((pkt, framing)) = self.pop(tin, queue) {
                break (tin, queue, pkt, framing);
            }
            self.heap.forget();
            // If the heap was not rebuilt for this call, it may have named an empty queue because
            // it is out of date: rebuild the heap and look once more.
            if !std::mem::take(&mut known) {
                return None;
            }
        };
        let now = cx.now.0;
        let longest = &mut self.tins[tin];
        let aim = longest.aim;
        longest.unresponsive += u32::from(longest.flow(queue).law.full(&aim, now));
        longest.dropped(queue);
        if self.ingress {
            self.charge(tin, (&pkt, framing), now, true);
        }
        cx.drop(pkt, DropReason::Overlimit);
        self.heap.sink_first(bytes_of(&self.tins));
        Some((tin, queue))
    }

    /// Returns the number of the tin to serve, or `None` if no tin has packets.
    #[inline]
    fn choose(&mut self, now: u64) -> Option<usize> {
        if self.pace.is_unlimited() {
            return self.choose_in_turn();
        }
        let mut best = None;
        for (place, tin) in self.tins.iter().enumerate() {
            if tin.is_active() {
                let wait = since(tin.next_at, now);
                // Choose the last tin in `tins` that is within its own rate. If there is none,
                // choose the tin that must wait for the shortest time.
                if wait <= 0 || best.is_none_or(|(_, least)| wait <= least) {
                    best = Some((place, wait));
                }
            }
        }
        best.map(|(place, _)| place)
    }

    /// Returns the number of the tin to serve if no rate is configured: tins take turns, and each
    /// sends its share of bytes in a round.
    fn choose_in_turn(&mut self) -> Option<usize> {
        let (mut rounds, mut empty) = (0, true);
        if self.at >= self.tins.len() {
            // A change has left fewer tins. Linux is then at the last tin that there can be, which
            // is empty, and goes on to the first one.
            (self.at, rounds) = (0, 1);
        }
        loop {
            let tin = &mut self.tins[self.at];
            if tin.deficit >= 0 && tin.is_active() {
                return Some(self.at);
            }
            if tin.deficit <= 0 {
                tin.deficit += tin.share;
            }
            empty &= !tin.is_active();
            self.at += 1;
            if self.at == self.tins.len() {
                self.at = 0;
                // The first pass may have begun in the middle of `tins`, so each tin has been
                // examined only at the end of the second pass.
                if rounds > 0 && empty {
                    return None;
                }
                rounds = 1;
            }
        }
    }

    /// Returns the next packet of the flows, without regard to a packet that a `peek` took out.
    #[inline]
    fn next(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let now = cx.now.0;
        self.asked_at = now;
        let mut first = true;
        while self.backlog.packets > 0 {
            if self.has_to_wait(now) {
                self.overlimits += 1;
                return Dequeue::NotBefore(Instant(self.next_at.min(self.failsafe_at)));
            }
            let Some(tin) = self.choose(now) else { break };
            self.at = tin;
            while let Some(queue) = self.tins[tin].turn(&mut first, &mut self.rng) {
                match self.serve(tin, queue, cx) {
                    Served::Packet(pkt) => return Dequeue::Ready(pkt),
                    Served::Nothing => break,
                    Served::Drop => {}
                }
            }
        }
        Dequeue::Empty
    }

    /// Removes the next packet of a flow. The flow's COBALT state decides whether the packet is
    /// sent or dropped.
    #[inline]
    fn serve(&mut self, tin: usize, queue: usize, cx: &mut Cx<'_>) -> Served {
        let now = cx.now.0;
        loop {
            let Some((mut pkt, framing)) = self.pop(tin, queue) else {
                self.tins[tin].retire(queue, now);
                return Served::Nothing;
            };
            if self.heap.is_known() {
                self.heap.shrunk(tin, queue, bytes_of(&self.tins));
            }
            let Tin { aim, bulk, .. } = self.tins[tin];
            let flow = self.tins[tin].flow(queue);
            let others = if self.ingress { bulk } else { 0 };
            let (marked, reason) = flow.law.judge(&aim, now, &mut pkt, others, &mut self.rng);
            // As in Linux, the last packet of a queue may be marked but is never dropped.
            let Some(reason) = reason.filter(|_| !flow.queue.is_empty()) else {
                let tin_stats = &mut self.tins[tin].stats;
                tin_stats.marked += u64::from(marked);
                tin_stats.delayed(now.saturating_sub(pkt.enqueued_ns));
                self.pay((tin, queue), (&pkt, framing), now, false);
                self.heap.sent();
                return Served::Packet(pkt);
            };
            if self.ingress {
                self.pay((tin, queue), (&pkt, framing), now, true);
            }
            self.tins[tin].dropped(queue);
            cx.drop(pkt, reason);
            if self.ingress {
                return Served::Drop;
            }
        }
    }

    /// Charges a flow, its tin and the shaper for a packet.
    #[inline]
    fn pay(
        &mut self,
        (tin, queue): (usize, usize),
        sent: (&Packet, Framing),
        now: u64,
        dropped: bool,
    ) {
        let len = self.charge(tin, sent, now, dropped);
        let tin = &mut self.tins[tin];
        tin.deficit = tin.deficit.saturating_sub(len);
        let flow = tin.flow(queue);
        flow.deficit = flow.deficit.saturating_sub(len);
    }
}

/// The result of a flow's turn.
enum Served {
    Packet(Packet),
    Nothing,
    /// A packet was dropped but charged to its flow (option `ingress`), so it may now be the turn
    /// of another flow.
    Drop,
}

impl Cake {
    /// Makes each time until which the shaper waits as much nearer or farther as the bytes that it
    /// waits for need at its present pace, where they needed the time at the pace `before`.
    fn rescale_waits(&mut self, before: Pace, now: u64) {
        const BYTES: u32 = 1 << 20;
        let (is, was) = (self.pace.time(BYTES), before.time(BYTES));
        let rescale = |at: &mut u64| {
            if let wait @ 1.. = since(*at, now) {
                let wait =
                    u128::from(wait.unsigned_abs()) * u128::from(is) / u128::from(was.max(1));
                *at = now.wrapping_add(u64::try_from(wait).unwrap_or(u64::MAX >> 2));
            }
        };
        if !before.is_unlimited() {
            rescale(&mut self.next_at);
            rescale(&mut self.failsafe_at);
            self.tins.iter_mut().for_each(|tin| rescale(&mut tin.next_at));
        }
    }
}

impl Qdisc for Cake {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let now = cx.now.0;
        let Some(hashes) = self.classifier.hashes(&mut pkt, cx.now) else {
            cx.drop(pkt, DropReason::Filter);
            return Verdict::Dropped;
        };
        let place = self.classifier.tin(&mut pkt);
        self.forget_idle_time(place, now);
        let tin = &mut self.tins[place];
        let queue = if self.classifier.is_blind() { 0 } else { tin.place(hashes) };
        codel::stamp(&mut pkt, cx.now);
        let bytes = pkt.len.into();
        if self.split_gso && segments::is_several(&pkt) {
            let len = pkt.len;
            let parts = segments::split(pkt, cx);
            tin.stats.came(parts.len(), len);
            parts.for_each(|part| self.push(place, queue, part));
        } else {
            tin.stats.came(1, pkt.len);
            self.push(place, queue, pkt);
        }
        self.learn(bytes, now);
        self.tins[place].wake(queue, &mut self.rng);
        if self.heap.is_known() {
            self.heap.grown(place, queue, bytes_of(&self.tins));
        }
        if self.memory <= self.memory_limit {
            return Verdict::Queued;
        }
        let mut mine = false;
        while self.memory > self.memory_limit {
            let Some(longest) = self.drop_longest(cx) else { break };
            mine |= longest == (place, queue);
        }
        match (mine, self.tins[place].bytes(queue)) {
            (false, _) => Verdict::Queued,
            // The queue to which the new packet was added is empty now, so the new packet is among
            // the packets that were dropped.
            (true, 0) => Verdict::Dropped,
            (true, _) => Verdict::Congested,
        }
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        match self.peeked.take() {
            Some(pkt) => Dequeue::Ready(pkt),
            None => self.next(cx),
        }
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.backlog;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    #[inline]
    fn accepts(&self, pkt: &Packet) -> bool {
        self.memory + memory(pkt.len) <= self.memory_limit
    }

    /// Sets new parameters. As in Linux, packets of tins that no longer exist are dropped, but no
    /// packets are dropped because of a smaller `memlimit`.
    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        let new = Self::new(values);
        for tin in self.tins.iter_mut().skip(new.tins.len()) {
            for pkt in tin.drain() {
                self.backlog.sub(&pkt);
                self.memory -= memory(pkt.len);
                cx.drop(pkt, DropReason::Purged);
            }
        }
        // The tins that a change removes keep their statistics for the change that makes them
        // again.
        let mut removed = self.tins.split_off(self.tins.len().min(new.tins.len()));
        removed.append(&mut self.removed);
        let again = new.tins.len().saturating_sub(self.tins.len()).min(removed.len());
        self.tins.extend(removed.drain(..again));
        self.removed = removed;
        self.former.forget_from(self.tins.len());
        let overhead = |framing: &Framing| (framing.overhead, framing.raw);
        if overhead(&self.framing) != overhead(&new.framing) {
            self.sizes.begin_anew();
        }
        if self.framing != new.framing {
            let held = self.tins.iter().enumerate().flat_map(|(place, tin)| {
                tin.packets().map(move |(queue, packets)| ((place, queue), packets))
            });
            self.former.add(self.framing, held);
        }
        for (place, tin) in new.tins.into_iter().enumerate() {
            match self.tins.get_mut(place) {
                Some(known) => known.change(tin),
                None => self.tins.push(tin),
            }
        }
        if self.tins.len() < TINS_MAX {
            self.at = TINS_MAX - 1;
        }
        self.heap.forget();
        self.classifier.change(new.classifier);
        (self.ingress, self.split_gso, self.framing) = (new.ingress, new.split_gso, new.framing);
        let slow = self.pace;
        self.base = new.base;
        let estimated = std::mem::replace(&mut self.estimates, new.estimates);
        if estimated && self.estimates && !values.is_said("bandwidth") {
            // The present rate of the shaper comes from the estimate, and the command names no
            // other rate, so keep the present rate.
            self.set_rate(self.rate);
        } else {
            (self.rate, self.pace, self.memory_limit) = (new.rate, new.pace, new.memory_limit);
        }
        if values.site.keeps_bytes {
            self.rescale_waits(slow, cx.now.0);
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        let mut all: PacketList = self.peeked.take().into_iter().collect();
        self.tins.iter_mut().for_each(|tin| all.append(&mut tin.drain()));
        cx.purge(&mut all);
        self.backlog = Backlog::default();
        self.memory = 0;
        self.former = Former::default();
        self.heap.forget();
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        (minor == 0).then_some(&mut self.classifier.filters)
    }

    fn overlimits(&self) -> u64 {
        self.overlimits
    }

    fn flows(&self, out: &mut dyn FnMut(FlowView<'_>)) {
        self.tell_flows(out);
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.tell(out);
    }
}
