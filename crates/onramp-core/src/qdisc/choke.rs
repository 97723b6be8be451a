//! CHOKe: RED that also compares each new packet with a packet drawn at random from the queue, and
//! drops both if they belong to the same flow. So flows that fill the queue lose the most packets.
//!
//! Source: Pan, Prabhakar and Psounis, "CHOKe, a Stateless Active Queue Management Scheme for
//! Approximating Fair Bandwidth Allocation", 2000; `tc-choke(8)`; behaviour of Linux 7.2
//! `net/sched/sch_choke.c`.
//! Differs: random numbers come from a seed. Packets belong to the same flow if their
//! [`flow`](onramp_queue::Meta::flow) is equal. A packet that is dropped from within the queue
//! leaves a gap in the table of packets. Onramp removes these gaps before they fill the table; in
//! Linux they may fill it, and packets in the table are then lost, or never leave.
//! Invariant: packets leave in the order they came; nothing is dropped while the average queue
//! length is at most `min` and the queue holds fewer than `limit` packets.

use std::collections::VecDeque;

use onramp_queue::{DropReason, Packet};

use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict, shown};
use crate::base::params::{Default, Param, U32_MAX, Unit, Values};
use crate::base::rng::Rng;
use crate::base::show::Out;
use crate::base::{Clash, Extra, Fault, ecn};
use crate::law::red::{self, Average, Red, Shape};
use crate::sched::Shown;

const LIMIT_MAX: u64 = (128 << 10) - 1;

/// How often a random place of the queue is tried. If no try finds a packet, the oldest packet is
/// taken.
const TRIES: u32 = 3;

pub(super) const CHOKE: Kind = Kind {
    id: "choke",
    about: "one queue that drops mostly packets of the flows that fill it",
    params: &[
        Param::new("limit", Unit::Packets, Default::Off, "packets held at most; required").reset(),
        Param::new(
            "min",
            Unit::Packets,
            Default::Off,
            "average queue length from which packets are dropped at random",
        )
        .reset(),
        Param::new(
            "max",
            Unit::Packets,
            Default::Off,
            "average queue length from which all packets are dropped",
        )
        .reset(),
        Param::new(
            "burst",
            Unit::Packets,
            Default::Off,
            "packets that may arrive at once without drops",
        )
        .reset(),
        Param::new("avpkt", Unit::Bytes, Default::Number(1000), "size of a usual packet, bytes")
            .at_least(1)
            .refused(Fault::Usage)
            .reset(),
        red::PROBABILITY.reset(),
        Param::new(
            "bandwidth",
            Unit::Rate,
            Default::Off,
            "rate of the link, by which the average falls while the queue is idle; required",
        )
        .within(0, U32_MAX)
        .refused(Fault::Usage)
        .reset(),
        Param::new(
            "ecn",
            Unit::Words(&["ecn"]),
            Default::Off,
            "marks packets instead of dropping them where their sender understands ECN",
        )
        .reset(),
    ],
    check,
    build: |values| Box::new(Choke::new(values)),
    shown: Shown {
        options: show,
        extra: |extra, out| {
            shown::row(out, extra, "  ", &["marked", "early", "pdrop", "other", "matched"]);
            out.text(format_args!("\n"));
        },
        ..Shown::TABLE
    },
    ..Kind::LEAF
};

fn check(values: &Values<'_>) -> Result<(), Clash> {
    for (key, what) in [("limit", "packets, 1 to 131071"), ("bandwidth", "a rate")] {
        if values.number(key) == 0 {
            return Err(Clash::usage(key, format!("is missing: expected {what}")));
        }
    }
    let (shape, limit) = (shape(values), values.number32("limit"));
    shape.check_limit(limit)?;
    shape.check()?;
    if u64::from(limit) > LIMIT_MAX {
        return Err(("limit", format!("{limit} is too large: expected at most {LIMIT_MAX}")).into());
    }
    shape.check_bits()
}

/// Returns the RED parameters that follow from the qdisc's parameters.
fn shape(values: &Values<'_>) -> Shape {
    Shape::of(values, values.number32("limit"), 1)
}

fn show(values: &Values<'_>, _: &Extra, out: &mut Out) {
    let (shape, weight) = shape(values).checked();
    shown::packets(out, "limit", values.number("limit"));
    shown::packets(out, "min", shape.min.into());
    shown::packets(out, "max", shape.max.into());
    let idle = (values.number32("avpkt"), values.number("bandwidth"));
    red::show_queue(values, (shape, weight), idle, out);
}

#[derive(Debug)]
struct Choke {
    limit: u32,
    ecn: bool,
    law: Red,
    average: Average,
    rng: Rng,
    /// The packets in the order in which they came. A packet that was dropped leaves a gap
    /// (`None`), but there is never a gap at the front.
    places: VecDeque<Option<Packet>>,
    backlog: Backlog,
    stats: Stats,
}

#[derive(Debug, std::default::Default)]
struct Stats {
    marked: u64,
    early: u64,
    pdrop: u64,
    matched: u64,
    overlimits: u64,
}

impl Choke {
    fn new(values: &Values<'_>) -> Self {
        let (shape, weight) = shape(values).checked();
        let mut rng = Rng::new(values.site.seed);
        let mut law = Red::new(&shape, weight, rng.next_u64());
        law.damp(values.number32("avpkt"), values.number("bandwidth"));
        Self {
            limit: values.number32("limit"),
            ecn: values.is_given("ecn"),
            law,
            average: Average::EMPTY,
            rng,
            places: VecDeque::new(),
            backlog: Backlog::default(),
            stats: Stats::default(),
        }
    }

    /// Draws a queued packet at random. Returns the packet's place if the packet belongs to `flow`,
    /// else `None`.
    #[inline]
    fn match_at_random(&mut self, flow: u64) -> Option<usize> {
        let len = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        let mut draw = || self.rng.below(len) as usize;
        let has = |place: &usize| self.places.get(*place).is_some_and(Option::is_some);
        let place = (0..TRIES).map(|_| draw()).find(has).unwrap_or(0);
        let drawn = self.places.get(place)?.as_ref()?;
        (drawn.flow == flow).then_some(place)
    }

    fn drop_at(&mut self, place: usize, cx: &mut Cx<'_>) {
        let Some(pkt) = self.places.get_mut(place).and_then(Option::take) else { return };
        self.backlog.sub(&pkt);
        cx.drop(pkt, DropReason::Congested);
        self.trim();
    }

    /// Removes the gaps at the front of the queue. As in Linux, gaps at the end of the queue stay,
    /// and a random draw may hit them.
    #[inline]
    fn trim(&mut self) {
        while let Some(None) = self.places.front() {
            self.places.pop_front();
        }
    }

    /// Decides about a new packet: it is dropped together with a queued packet of its flow, dropped
    /// by RED, marked, or left as it is. Returns the reason for a drop, or `None` if the new packet
    /// may stay.
    #[inline]
    fn chokes(&mut self, pkt: &mut Packet, cx: &mut Cx<'_>) -> Option<DropReason> {
        let held = u64::from(self.backlog.packets);
        self.law.update(&mut self.average, held, cx.now);
        if !self.law.is_beyond_min(&self.average) {
            self.average.spare();
            return None;
        }
        if let Some(place) = self.match_at_random(pkt.flow) {
            self.stats.matched += 1;
            self.drop_at(place, cx);
            return Some(DropReason::Congested);
        }
        let forced = self.law.is_beyond_max(&self.average);
        if forced {
            self.average.spare();
        } else if !self.law.draws(&mut self.average) {
            return None;
        }
        self.stats.overlimits += 1;
        if self.ecn && ecn::mark(pkt) {
            self.stats.marked += 1;
            return None;
        }
        self.stats.early += 1;
        Some(if forced { DropReason::Overlimit } else { DropReason::Congested })
    }
}

impl Qdisc for Choke {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if let Some(reason) = self.chokes(&mut pkt, cx) {
            cx.drop(pkt, reason);
            return Verdict::Dropped;
        }
        if !self.accepts(&pkt) {
            self.stats.pdrop += 1;
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        self.backlog.add(&pkt);
        if self.places.len() > 2 * self.limit as usize {
            self.places.retain(Option::is_some);
        }
        self.places.push_back(Some(pkt));
        Verdict::Queued
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let Some(pkt) = self.places.pop_front().flatten() else {
            self.average.rest(cx.now);
            return Dequeue::Empty;
        };
        self.trim();
        self.backlog.sub(&pkt);
        Dequeue::Ready(pkt)
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        Peek::at(self.places.front().and_then(Option::as_ref))
    }

    fn backlog(&self) -> Backlog {
        self.backlog
    }

    #[inline]
    fn accepts(&self, _pkt: &Packet) -> bool {
        self.backlog.packets < self.limit
    }

    /// Sets new parameters. As in Linux, the table of packets has 2^n - 1 places, the least such
    /// number that is not below `limit`. If the size of the table changes, as many of the oldest
    /// packets stay as fit, and the others are dropped. The average queue length starts anew.
    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        let new = Self::new(values);
        let room = (new.limit + 1).next_power_of_two() - 1;
        if (self.limit + 1).next_power_of_two() != room + 1 {
            self.places.retain(Option::is_some);
            for pkt in self.places.drain(self.places.len().min(room as usize)..).flatten() {
                self.backlog.sub(&pkt);
                cx.drop(pkt, DropReason::Overlimit);
            }
        }
        (self.limit, self.ecn) = (new.limit, new.ecn);
        self.law.change(new.law);
        self.average = Average::EMPTY;
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        for pkt in self.places.drain(..).flatten() {
            cx.drop(pkt, DropReason::Purged);
        }
        self.backlog = Backlog::default();
        self.average = Average::EMPTY;
    }

    fn overlimits(&self) -> u64 {
        self.stats.overlimits
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("marked", self.stats.marked);
        out("early", self.stats.early);
        out("pdrop", self.stats.pdrop);
        out("matched", self.stats.matched);
    }
}

#[cfg(test)]
mod tests {
    use onramp_queue::PacketList;

    use super::*;
    use crate::base::Instant;
    use crate::tc::Spec;

    fn pkt(flow: u64) -> Packet {
        let mut pkt = Packet::new(1000);
        pkt.flow = flow;
        pkt
    }

    /// The queue has ten places: two packets, then eight gaps. A random draw tries up to three
    /// places. If all three are gaps, the draw takes the oldest packet.
    #[test]
    fn a_draw_meets_the_gaps_that_drops_left_at_the_end() {
        let spec: Spec =
            "choke limit 100 min 5 max 50 burst 20 bandwidth 10mbit".parse().expect("a line");
        let mut choke = Choke::new(&spec.values(1514));
        let mut drops = PacketList::new();
        let mut cx = Cx::new(Instant(0), &mut drops);
        for flow in 0..10 {
            choke.backlog.add(&pkt(flow));
            choke.places.push_back(Some(pkt(flow)));
        }
        (2..10).for_each(|place| choke.drop_at(place, &mut cx));
        assert_eq!((choke.backlog.packets, choke.places.len()), (2, 10));
        let mut met = |flow| (0..30_000).filter(|_| choke.match_at_random(flow).is_some()).count();
        let (first, second) = (met(0), met(1));
        // A try finds the second packet with probability 0.1 and a gap with probability 0.8, so the
        // draw takes the second packet with probability 0.1 (1 + 0.8 + 0.64) = 0.244. The draw
        // takes the first packet, which is the oldest, also after three gaps: with probability
        // 0.244 + 0.512.
        assert!((7_100..7_540).contains(&second), "{second}");
        assert!((22_400..22_960).contains(&first), "{first}");
    }

    #[test]
    fn gaps_at_the_front_are_given_up() {
        let spec: Spec =
            "choke limit 100 min 5 max 50 burst 20 bandwidth 10mbit".parse().expect("a line");
        let mut choke = Choke::new(&spec.values(1514));
        let mut drops = PacketList::new();
        let mut cx = Cx::new(Instant(0), &mut drops);
        for flow in 0..4 {
            choke.backlog.add(&pkt(flow));
            choke.places.push_back(Some(pkt(flow)));
        }
        (1..3).for_each(|place| choke.drop_at(place, &mut cx));
        assert_eq!(choke.places.len(), 4);
        choke.drop_at(0, &mut cx);
        assert_eq!(choke.places.len(), 1);
        choke.drop_at(0, &mut cx);
        assert!(choke.places.is_empty() && choke.backlog.packets == 0);
    }
}
