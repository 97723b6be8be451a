//! Emulates a network that delays, loses, duplicates, corrupts and reorders packets.
//!
//! Source: `tc-netem(8)`; S. Hemminger, "Network Emulation with `NetEm`", 2005; behaviour of Linux
//! 7.2 `net/sched/sch_netem.c`. With the same `seed`, the same packets are lost, duplicated,
//! corrupted, reordered and delayed as in Linux, and delays are as long as in Linux; except with a
//! correlation, because its first value is random.
//! Differs: a duplicate is enqueued in this qdisc, and not at the root of the tree: so a qdisc
//! above, such as a second `netem`, sees the packet once. Of a datagram, only the payload is
//! corrupted, because the kernel writes the headers; packets without payload stay whole. The tables
//! of distributions are built in; they are computed, and differ from those of `iproute2` by
//! rounding and in their most extreme values. A packet that a child `etf` drops because it is late
//! no longer counts against `limit`; in Linux it counts for ever. For the child, and in the
//! statistics of the tree, the waiting time of a packet starts when `netem` passes the packet on.
//! Invariant: without jitter and reordering, a packet leaves at the first opportunity after
//! `delay`, and the order of packets stays the same.

mod chance;
mod show;

use onramp_queue::{DropReason, Packet, PacketList};

use crate::base::frame::complete_checksum;

use self::chance::{Correlated, Event, Lfsr113, Loss, SPREADS, Spread};
use super::time_queue::TimeQueue;
use super::{Backlog, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict, peek_by_dequeue};
use crate::base::error::Clash;
use crate::base::params::{Default as Absent, Form, Param, Site, Unit, Value, Values, signed};
use crate::base::rng::Rng;
use crate::base::{Counters, Fault, Instant};
use crate::sched::{Child, Classes, Shown, segments};

const NS_PER_SEC: u64 = 1_000_000_000;
/// The longest delay: `tc` passes a delay as a 32-bit number, in units of 64 ns.
const DELAY_MAX_NS: u64 = 64 * u32::MAX as u64;
/// The largest jitter, in nanoseconds.
const JITTER_MAX_NS: u64 = i32::MAX as u64;
const CHANCE: Unit = Unit::Row(1, &[Unit::Percent, Unit::Percent]);
const LOSSES: &[Form] = &[
    Form { word: "random", must: 1, units: &[Unit::Percent; 2] },
    Form { word: "state", must: 1, units: &[Unit::Percent; 5] },
    Form { word: "gemodel", must: 1, units: &[Unit::Percent; 4] },
];
const SLOTS: &[Form] = &[
    Form { word: "", must: 1, units: &[Unit::Nsecs, Unit::Nsecs] },
    Form {
        word: "distribution",
        must: 3,
        units: &[Unit::Choice(SPREADS), Unit::Nsecs, Unit::Nsecs],
    },
];

pub(super) const NETEM: Kind = Kind {
    id: "netem",
    about: "a network that delays, loses, duplicates, damages and reorders packets",
    params: &[
        Param::new("limit", Unit::ScaledPackets, Absent::Number(1000), "packets delayed at most")
            .reset()
            .short(),
        Param::new(
            "delay",
            Unit::Row(1, &[Unit::Usecs, Unit::Usecs, Unit::Percent]),
            Absent::Off,
            "delay, its jitter, and its correlation with the previous delay",
        )
        .or(&["latency"])
        .within(0, DELAY_MAX_NS)
        .refused(Fault::Usage)
        .reset()
        .all_short(),
        Param::new(
            "distribution",
            Unit::Choice(SPREADS),
            Absent::Off,
            "random distribution of the delays",
        )
        .short(),
        Param::new("reorder", CHANCE, Absent::Off, "share of packets that leave at once").short(),
        Param::new(
            "gap",
            Unit::Count,
            Absent::Off,
            "with `reorder`: only every N-th packet may leave at once",
        )
        .reset()
        .zero_is_unsaid()
        .short(),
        Param::new("loss", Unit::Forms(LOSSES), Absent::Off, "which share of packets is lost")
            .or(&["drop"])
            .reset()
            .single()
            .all_short(),
        Param::new(
            "ecn",
            Unit::Words(&["ecn"]),
            Absent::Off,
            "marks packets (CE) instead of losing them",
        )
        .short(),
        Param::new("duplicate", CHANCE, Absent::Off, "share of packets that are sent twice")
            .reset()
            .short(),
        Param::new("corrupt", CHANCE, Absent::Off, "share of packets in which one bit is flipped")
            .short(),
        Param::new(
            "rate",
            Unit::Row(1, &[Unit::Rate, Unit::Signed, Unit::Count, Unit::Signed]),
            Absent::Off,
            "rate; bytes added to each packet, size of a cell in bytes, bytes added to each cell",
        )
        .short(),
        Param::new("slot", Unit::Forms(SLOTS), Absent::Off, "time between slots").short(),
        Param::new(
            "packets",
            Unit::Count,
            Absent::Off,
            "packets in a slot at most; a change of `slot` resets it",
        ),
        Param::new(
            "bytes",
            Unit::Size,
            Absent::Off,
            "bytes in a slot at most; a change of `slot` resets it",
        ),
        Param::new("seed", Unit::Count, Absent::Off, "seed of the random numbers")
            .within(0, u64::MAX),
    ],
    check,
    classes: ClassKind::Fixed(|_| 1),
    build: |values| Box::new(Netem::new(values)),
    shown: Shown { options: show::options, ..Shown::TABLE },
    quirks: Quirks {
        hides_empty_place: true,
        default_child: Some(|_| None),
        change: |said, options| {
            // A change without `reorder` and `gap` keeps the probability to reorder but sets `gap`
            // to 0, so that no packet is reordered.
            if !said.is_given("reorder") && !said.is_given("gap") {
                options.set("gap", Some(Value::Number(0)));
            }
            // The limits of a slot belong to `slot`.
            if said.is_given("slot") {
                for key in ["packets", "bytes"].into_iter().filter(|key| !said.is_given(key)) {
                    options.set(key, None);
                }
            }
        },
        written: |options| {
            let values = options.values();
            let delay = values.list("delay");
            let delays = |place: usize| delay.get(place).is_some_and(|ns| *ns > 0);
            let reorders = delays(0) && gap(&values) > 0;
            let spreads = delays(0) && delays(1);
            let loses = values.is_given("loss");
            for (key, acts) in [
                ("reorder", reorders),
                ("gap", reorders),
                ("distribution", spreads),
                ("ecn", loses),
            ] {
                if !acts {
                    options.set(key, None);
                }
            }
        },
        ..Quirks::ONE_PLACE
    },
    ..Kind::LEAF
};

fn check(values: &Values<'_>) -> Result<(), Clash> {
    let delay = values.list("delay");
    let delay = |place: usize| delay.get(place).copied().unwrap_or(0);
    let wrong = |key, why: &str| Err(Clash::usage(key, why));
    if values.is_given("reorder") && delay(0) == 0 {
        return wrong("reorder", "it needs a delay");
    }
    if values.is_given("gap") && !values.is_given("reorder") {
        return wrong("gap", "it needs reorder");
    }
    if values.is_given("ecn") && !values.is_given("loss") {
        return wrong("ecn", "it needs loss");
    }
    if values.is_given("distribution") && (delay(0) == 0 || delay(1) == 0) {
        return wrong("distribution", "it needs a delay and its jitter");
    }
    if values.list("rate").get(2).is_some_and(|cell| *cell > u64::from(u32::MAX)) {
        return wrong("rate", "expected a cell of at most 4294967295 bytes");
    }
    let slot = values.list("slot");
    for key in ["packets", "bytes"] {
        if values.is_given(key) && slot.is_empty() {
            return wrong(key, "it needs slot");
        }
        if values.number(key) > JITTER_MAX_NS {
            return wrong(key, "expected at most 2147483647 in a slot");
        }
    }
    match slot[..] {
        [_, _, _, 0] => wrong("slot", "a distribution needs a jitter"),
        [0, min, max] if max < min => wrong("slot", "the second time is less than the first"),
        _ => Ok(()),
    }
}

/// Rounds a time down to whole microseconds, then to units of 64 ns, as `tc` does.
const fn ticks_ns(ns: u64) -> u64 {
    ns / 1_000 * 1_000 / 64 * 64
}

/// Returns the gap: every how many packets one packet may leave without delay; 0: no packet may.
fn gap(values: &Values<'_>) -> u64 {
    match values.is_given("gap") {
        true => values.number("gap"),
        false => values.is_given("reorder").into(),
    }
}

/// A wire that sends at a rate, either whole packets or packets cut into cells.
#[derive(Debug)]
struct Wire {
    /// The rate in bytes per second; 0 = sending takes no time.
    rate: u64,
    overhead: i32,
    cell: u32,
    cell_overhead: i32,
}

impl Wire {
    fn new(numbers: &[u64]) -> Self {
        let number = |place: usize| numbers.get(place).copied().unwrap_or(0);
        Self {
            rate: number(0),
            overhead: signed(number(1)),
            cell: u32::try_from(number(2)).unwrap_or(u32::MAX),
            cell_overhead: signed(number(3)),
        }
    }

    /// Returns how long a packet of `len` bytes takes on the wire, in nanoseconds; the rate must
    /// not be 0.
    fn time_ns(&self, len: u32) -> u64 {
        let mut bytes = u64::from(len).saturating_add_signed(self.overhead.into());
        if self.cell > 0 {
            let cell = u64::from(self.cell).saturating_add_signed(self.cell_overhead.into());
            bytes = bytes.div_ceil(self.cell.into()).saturating_mul(cell);
        }
        let ns = u128::from(bytes) * u128::from(NS_PER_SEC) / u128::from(self.rate);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Slots: spans of time. Packets are held back until the next slot begins, and then leave together.
#[derive(Debug)]
struct Slots {
    /// When the next slot begins, in nanoseconds; 0 = there are no slots.
    next_ns: u64,
    packets_left: i64,
    bytes_left: i64,
    packets: i64,
    bytes: i64,
    spread: Option<Spread>,
    /// The least and the greatest time between two slots; or, with a distribution, the mean and the
    /// standard deviation of that time. In nanoseconds.
    times_ns: [i64; 2],
}

impl Slots {
    fn new(values: &Values<'_>) -> Self {
        let list = values.list("slot");
        let (spread, times_ns) = match list[..] {
            [0, min] => (None, [min, min]),
            [0, min, max] => (None, [min, max]),
            [_, spread, mean, deviation] => {
                (Some(Spread::named(spread)), [mean, deviation.min(JITTER_MAX_NS)])
            }
            _ => (None, [0, 0]),
        };
        let many = |key| match values.number(key) {
            0 => i64::from(i32::MAX),
            number => i64::try_from(number).unwrap_or(i64::MAX),
        };
        let (packets, bytes) = (many("packets"), many("bytes"));
        // The first slot began long ago, so that the first packet does not wait.
        let next_ns = u64::from(times_ns != [0, 0]);
        let times_ns = times_ns.map(|ns| i64::try_from(ns).unwrap_or(i64::MAX));
        Self { next_ns, packets_left: packets, bytes_left: bytes, packets, bytes, spread, times_ns }
    }

    fn plan(&mut self, now: Instant, rng: &mut Lfsr113, other: &mut Rng) {
        let [low, high] = self.times_ns;
        let wait_ns = match &self.spread {
            Some(spread) => spread.at(low, high, || rng.next()),
            None => {
                let range = i128::from(high - low) * i128::from(other.next_u32());
                low + i64::try_from(range >> 32).unwrap_or(0)
            }
        };
        self.next_ns = now.0.saturating_add_signed(wait_ns).max(1);
        (self.packets_left, self.bytes_left) = (self.packets, self.bytes);
    }
}

#[derive(Debug)]
struct Netem {
    limit: u32,
    delay_ns: i64,
    jitter_ns: i64,
    spread: Spread,
    follow: Correlated,
    /// Every how many packets one packet may leave without delay; 0: no packet may.
    gap: u64,
    /// Number of packets delayed since the last packet that was not delayed.
    in_gap: u64,
    reorder: Event,
    loss: Loss,
    ecn: bool,
    duplicate: Event,
    corrupt: Event,
    wire: Wire,
    slots: Slots,
    rng: Lfsr113,
    /// A second source of random numbers, for draws that do not depend on the option `seed` in
    /// Linux either.
    other: Rng,
    queue: TimeQueue,
    /// Packets that leave without delay, each with the time in nanoseconds at which it came. The
    /// packet that came last leaves first.
    ahead: Vec<(u64, Packet)>,
    /// Number of packets that were put into `ahead`, so that they left before earlier ones.
    reordered: u64,
    child: Option<Child>,
    peeked: Option<Packet>,
    /// The packets and bytes held, except a packet taken out by a `peek`.
    held: Backlog,
}

impl Netem {
    fn new(values: &Values<'_>) -> Self {
        let mut other = Rng::new(values.site.seed);
        let seed = values.is_given("seed").then(|| values.number("seed"));
        let seed = seed.unwrap_or_else(|| other.next_u64());
        let delay = values.list("delay");
        let number = |place: usize| delay.get(place).copied().unwrap_or(0);
        let part = u32::try_from(number(2)).unwrap_or(u32::MAX);
        let signed_ns = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        Self {
            limit: values.number32("limit"),
            delay_ns: signed_ns(ticks_ns(number(0))),
            jitter_ns: signed_ns(ticks_ns(number(1)).min(JITTER_MAX_NS)),
            spread: Spread::named(values.number("distribution")),
            follow: Correlated::new(part, other.next_u32()),
            gap: gap(values),
            in_gap: 0,
            reorder: Event::of(values, "reorder", other.next_u32()),
            loss: Loss::of(values, other.next_u32()),
            ecn: values.is_given("ecn"),
            duplicate: Event::of(values, "duplicate", other.next_u32()),
            corrupt: Event::of(values, "corrupt", other.next_u32()),
            wire: Wire::new(&values.list("rate")),
            slots: Slots::new(values),
            rng: Lfsr113::new(seed),
            other,
            queue: TimeQueue::default(),
            ahead: Vec::new(),
            reordered: 0,
            child: None,
            peeked: None,
            held: Backlog::default(),
        }
    }

    /// Loses, duplicates or corrupts a packet at random, and enqueues what is left. `twice` says
    /// that the packet was chosen to be duplicated.
    fn pass(&mut self, mut pkt: Packet, twice: bool, cx: &mut Cx<'_>) -> Verdict {
        let mut copies = 1 + u32::from(twice);
        if self.loss.strikes(&mut self.rng) && !(self.ecn && set_ce(&mut pkt)) {
            copies -= 1;
        }
        if copies == 0 {
            cx.drop(pkt, DropReason::Impaired);
            return Verdict::Dropped;
        }
        let copy = (copies > 1).then(|| cx.duplicate(&pkt));
        let mut rest = PacketList::new();
        if self.corrupt.happens(&mut self.rng) {
            if segments::is_several(&pkt) {
                rest = segments::split(pkt, cx);
                // `split` returns at least one packet, so no empty packet is ever created in its
                // place.
                pkt = rest.pop_front().unwrap_or_else(|| Packet::new(0));
            }
            self.damage(&mut pkt);
        }
        if !self.accepts(&pkt) {
            cx.drop(pkt, DropReason::Overlimit);
            rest.for_each(|part| cx.drop(part, DropReason::Overlimit));
            copy.into_iter().for_each(|copy| cx.drop(copy, DropReason::Overlimit));
            return Verdict::Dropped;
        }
        if let Some(copy) = copy {
            // `cx` (the context of the call) tells the caller if the copy was dropped; the result
            // of this function is only about the original packet.
            let _ = self.pass(copy, false, cx);
        }
        self.put(pkt, cx.now);
        // The result of this function is about the first part of the split packet. That part is
        // queued, whatever happens to the other parts.
        for part in rest {
            let _ = self.enqueue(part, cx);
        }
        Verdict::Queued
    }

    /// Inverts a random bit of the packet's payload. If the sender of a frame has left its checksum
    /// to the device, computes it first: otherwise the device would make the damaged frame right.
    fn damage(&mut self, pkt: &mut Packet) {
        complete_checksum(pkt);
        let len = u32::try_from(pkt.payload().len()).unwrap_or(u32::MAX);
        let place = self.other.below(len) as usize;
        let bit = self.other.below(8);
        if let Some(byte) = pkt.payload_mut().get_mut(place) {
            *byte ^= 1 << bit;
        }
    }

    /// Puts a packet into the queue, at the place of the time at which the packet is to leave.
    #[inline]
    fn put(&mut self, pkt: Packet, now: Instant) {
        self.held.add(&pkt);
        let delayed =
            self.gap == 0 || self.in_gap < self.gap - 1 || self.reorder.spares(&mut self.rng);
        if !delayed {
            self.in_gap = 0;
            self.reordered += 1;
            self.ahead.push((now.0, pkt));
            return;
        }
        let (follow, rng) = (&mut self.follow, &mut self.rng);
        let mut delay_ns = self.spread.at(self.delay_ns, self.jitter_ns, || follow.draw(rng));
        let mut from_ns = now.0;
        if self.wire.rate > 0 {
            let ahead_ns = self.ahead.first().map(|(at_ns, _)| *at_ns);
            if let Some(last_ns) = self.queue.last_ns().max(ahead_ns) {
                // The wire is free when the last packet has left it. But the delay is counted from
                // now, so the time that the packet waits for the wire is part of the delay.
                let waited_ns = i128::from(last_ns) - i128::from(now.0);
                delay_ns = i64::try_from(i128::from(delay_ns) - waited_ns).unwrap_or(0).max(0);
                from_ns = last_ns;
            }
            from_ns = from_ns.saturating_add(self.wire.time_ns(pkt.len));
        }
        self.in_gap += 1;
        self.queue.push(from_ns.saturating_add_signed(delay_ns), pkt);
    }

    /// Returns `Ok` if the first packet may leave; otherwise returns as an error when it may leave,
    /// or `None` if there is no packet.
    #[inline]
    fn due(&mut self, now: Instant) -> Result<(), Option<Instant>> {
        let first_ns = self.queue.first_ns().ok_or(None)?;
        if self.slots.next_ns > 0 && self.slots.next_ns < first_ns {
            self.slots.plan(now, &mut self.rng, &mut self.other);
        }
        let at_ns = first_ns.max(self.slots.next_ns);
        if at_ns <= now.0 { Ok(()) } else { Err(Some(Instant(at_ns))) }
    }

    /// Removes the first packet of the queue.
    #[inline]
    fn pop(&mut self, now: Instant) -> Option<Packet> {
        let pkt = self.queue.pop()?;
        self.held.sub(&pkt);
        if self.slots.next_ns > 0 {
            self.slots.packets_left -= 1;
            self.slots.bytes_left -= i64::from(pkt.len);
            if self.slots.packets_left <= 0 || self.slots.bytes_left <= 0 {
                self.slots.plan(now, &mut self.rng, &mut self.other);
            }
        }
        Some(pkt)
    }
}

/// Sets the CE mark of the packet if the packet is ECN-capable. Returns whether it is ECN-capable.
fn set_ce(pkt: &mut Packet) -> bool {
    let knows = pkt.ecn != 0;
    if knows {
        pkt.ecn = 3;
    }
    knows
}

impl Qdisc for Netem {
    #[inline]
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let twice = self.duplicate.happens(&mut self.rng);
        self.pass(pkt, twice, cx)
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        loop {
            if let Some((_, pkt)) = self.ahead.pop() {
                self.held.sub(&pkt);
                return Dequeue::Ready(pkt);
            }
            let due = self.due(cx.now);
            if due.is_ok()
                && let Some(mut pkt) = self.pop(cx.now)
            {
                let Some(child) = &mut self.child else { return Dequeue::Ready(pkt) };
                // The child must not count the emulated delay as waiting time, because it cannot
                // shorten that delay.
                pkt.enqueued_ns = cx.now.0;
                // `cx` (the context of the call) tells the caller if the packet was dropped, so the
                // result of the child's `enqueue` is not needed.
                let _ = child.enqueue(pkt, cx, &mut self.held);
                continue;
            }
            let wait = due.err().flatten().map_or(Dequeue::Empty, Dequeue::NotBefore);
            let Some(child) = &mut self.child else { return wait };
            let mut answer = child.dequeue(cx, &mut self.held);
            if due.is_err_and(|wait| wait.is_some()) && !matches!(answer, Dequeue::Ready(_)) {
                // As in Linux, ask the child twice: at the first call, the child may have dropped
                // packets without giving one.
                answer = child.dequeue(cx, &mut self.held);
            }
            return match answer {
                Dequeue::Ready(pkt) => Dequeue::Ready(pkt),
                later => later.or_sooner(wait),
            };
        }
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.held;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    #[inline]
    fn accepts(&self, _pkt: &Packet) -> bool {
        self.backlog().packets < self.limit
    }

    /// Sets new parameters and, like Linux, drops nothing: packets that are held keep the times at
    /// which they are to leave. A `seed` restarts the random numbers; without a `seed`, their
    /// sequence goes on.
    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        let seed = self.other.next_u64();
        let site = Site { seed, ..values.site };
        let new = Self::new(&Values { site, ..*values });
        let Self { queue, ahead, child, peeked, held, reordered, slots, .. } =
            std::mem::replace(self, new);
        (self.queue, self.ahead, self.child) = (queue, ahead, child);
        (self.peeked, self.held, self.reordered) = (peeked, held, reordered);
        if !values.is_said("slot") {
            self.slots = slots;
        } else if self.slots.next_ns > 0 {
            // A slot begins now.
            self.slots.next_ns = cx.now.0.max(1);
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        let ahead = std::mem::take(&mut self.ahead).into_iter().map(|(_, pkt)| pkt);
        let queued = std::iter::from_fn(|| self.queue.pop());
        for pkt in self.peeked.take().into_iter().chain(ahead).chain(queued) {
            cx.drop(pkt, DropReason::Purged);
        }
        if let Some(child) = &mut self.child {
            child.reset(cx, &mut self.held);
        }
        self.held = Backlog::default();
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }

    fn requeues(&self) -> u64 {
        self.reordered
    }
}

/// The only class of `netem` holds packets whose delay is over.
impl Classes for Netem {
    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        self.child.as_mut().filter(|_| minor == 1)
    }

    /// Returns zeros: as in Linux, the class of this qdisc counts nothing.
    fn counters(&mut self, _minor: u16) -> (Counters, Backlog) {
        (Counters::default(), Backlog::default())
    }

    fn recount(&mut self, _minor: u16) {
        if let Some(child) = &mut self.child {
            child.recount(&mut self.held);
        }
    }

    fn ungraft(&mut self, _minor: u16, cx: &mut Cx<'_>) {
        if let Some(mut child) = self.child.take() {
            child.reset(cx, &mut self.held);
        }
    }

    fn graft(&mut self, minor: u16, qdisc: Box<dyn Qdisc>, cx: &mut Cx<'_>) {
        self.ungraft(minor, cx);
        let child = self.child.insert(Child::new(qdisc));
        self.held.packets += child.held().packets;
        self.held.bytes += child.held().bytes;
    }
}
