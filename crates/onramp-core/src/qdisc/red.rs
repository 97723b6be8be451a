//! Random early detection: packets are dropped at random before the queue is full.
//!
//! RED decides by the backlog of class `1:1`, whose qdisc is a `bfifo` until a user attaches
//! another one.
//!
//! Source: Floyd and Jacobson 1993; `tc-red(8)`; behaviour of Linux 7.2 `net/sched/sch_red.c`.
//! Differs: random numbers come from a seed. With `adaptive`, the average queue length is checked
//! at fixed times of the clock, as in a qdisc that was created when the machine started. Qevents
//! (filters that are run when RED marks or drops) do not exist here.
//! Invariant: RED drops nothing while the average queue length is below `min`; while it is beyond
//! `max`, every packet that cannot be marked is dropped.

use onramp_queue::{DropReason, Packet};

use super::{Backlog, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict, shown};
use crate::base::params::{Default, Param, U32_MAX, Unit, Values};
use crate::base::show::Out;
use crate::base::{Clash, Counters, Errno, Extra, Fault, ecn};
use crate::law::red::{self, Adaption, Average, Red, Shape};
use crate::sched::{Child, Classes, Shown};

/// The rate at which an idle queue is assumed to send by default: 10 Mbit/s, in bytes per second.
const BANDWIDTH: u64 = 10_000_000 / 8;

/// Defines an option that is on if one of the words `words` is given.
const fn switch(words: &'static [&'static str], help: &'static str) -> Param {
    Param::new(words[0], Unit::Words(words), Default::Off, help).reset()
}

pub(super) const RED: Kind = Kind {
    id: "red",
    about: "one queue that drops packets at random before it is full",
    params: &[
        Param::new("limit", Unit::Size, Default::Off, "bytes held at most; required").reset(),
        Param::new(
            "min",
            Unit::Size,
            Default::Off,
            "average queue length from which packets are dropped at random, bytes",
        )
        .reset(),
        Param::new(
            "max",
            Unit::Size,
            Default::Off,
            "average queue length from which all packets are dropped, bytes",
        )
        .reset(),
        Param::new("avpkt", Unit::Size, Default::Off, "size of a usual packet, bytes; required")
            .reset(),
        Param::new(
            "burst",
            Unit::Count,
            Default::Off,
            "packets that may arrive at once without drops",
        )
        .reset(),
        red::PROBABILITY.reset(),
        Param::new(
            "bandwidth",
            Unit::Rate,
            Default::Number(BANDWIDTH),
            "rate of the link, by which the average falls while the queue is idle",
        )
        .within(0, U32_MAX)
        .refused(Fault::Usage)
        .reset(),
        switch(
            &["ecn"],
            "marks packets instead of dropping them where their sender understands ECN",
        ),
        switch(&["harddrop"], "with `ecn`: drops packets when the average exceeds `max`"),
        switch(
            &["nodrop"],
            "with `ecn`: keeps packets that cannot be marked instead of dropping them",
        ),
        Param::new(
            "adaptive",
            Unit::Words(&["adaptive", "adaptative"]),
            Default::Off,
            "adapts `probability` to keep the average halfway between `min` and `max`",
        )
        .reset(),
    ],
    check,
    classes: ClassKind::Fixed(|_| 1),
    build: |values| Box::new(RedQdisc::new(values)),
    shown: Shown {
        options: show,
        extra: |extra, out| {
            shown::row(out, extra, "  ", &["marked", "early", "pdrop", "other"]);
            out.text(format_args!(" \n"));
        },
        class: |_, _, _| {},
        ..Shown::TABLE
    },
    quirks: Quirks {
        renews_child: true,
        bfifo_below: Some(|values| values.number("limit")),
        default_child: Some(|values| Some(child(values))),
        ..Quirks::ONE_PLACE
    },
    ..Kind::LEAF
};

fn check(values: &Values<'_>) -> Result<(), Clash> {
    for key in ["limit", "avpkt"] {
        if values.number(key) == 0 {
            return Err(Clash::usage(key, "is missing: expected bytes, 1 to 4294967295"));
        }
    }
    let shape = shape(values);
    shape.check()?;
    if values.is_given("nodrop") && !values.is_given("ecn") {
        let clash = Clash::from(("nodrop", "has a meaning only with ecn"));
        let said = "sch_red: nodrop mode is only meaningful with ECN";
        return Err(clash.said(Errno::Invalid, said));
    }
    shape.check_bits()
}

/// Returns the RED parameters that follow from the qdisc's parameters.
fn shape(values: &Values<'_>) -> Shape {
    let or = |key, default| if values.number(key) == 0 { default } else { values.number32(key) };
    let (limit, avpkt) = (values.number32("limit"), values.number32("avpkt"));
    let given_min = values.number32("min");
    let max = or("max", if given_min == 0 { limit / 4 } else { given_min.saturating_mul(3) });
    let min = or("min", max / 3);
    Shape::of_bounds(values, min, max, avpkt)
}

/// Returns the usual packet size in bytes, and the rate in bytes per second at which an idle queue
/// is assumed to send.
fn idle(values: &Values<'_>) -> (u32, u64) {
    let rate = values.number("bandwidth");
    (values.number32("avpkt"), if rate == 0 { BANDWIDTH } else { rate })
}

fn show(values: &Values<'_>, _: &Extra, out: &mut Out) {
    let (shape, weight) = shape(values).checked();
    shown::size(out, "limit", values.number("limit"));
    shown::size(out, "min", shape.min.into());
    shown::size(out, "max", shape.max.into());
    red::show_queue(values, (shape, weight), idle(values), out);
}

/// Returns the qdisc that holds the packets until a user attaches another one.
fn child(values: &Values<'_>) -> Box<dyn Qdisc> {
    super::fifo::bfifo(values.number("limit"), values.site.mtu)
}

#[derive(Debug)]
struct RedQdisc {
    child: Child,
    held: Backlog,
    law: Red,
    average: Average,
    adaption: Option<Adaption>,
    ecn: bool,
    harddrop: bool,
    nodrop: bool,
    stats: Stats,
}

#[derive(Debug, std::default::Default)]
struct Stats {
    marked: u64,
    early: u64,
    pdrop: u64,
    overlimits: u64,
}

impl RedQdisc {
    fn new(values: &Values<'_>) -> Self {
        let (shape, weight) = shape(values).checked();
        let mut law = Red::new(&shape, weight, values.site.seed);
        let (packet, rate) = idle(values);
        law.damp(packet, rate);
        Self {
            child: Child::new(child(values)),
            held: Backlog::default(),
            law,
            average: Average::EMPTY,
            adaption: values.is_given("adaptive").then(Adaption::default),
            ecn: values.is_given("ecn"),
            harddrop: values.is_given("harddrop"),
            nodrop: values.is_given("nodrop"),
            stats: Stats::default(),
        }
    }

    /// Decides what happens to a packet that RED has chosen. Returns true if the packet must be
    /// dropped; otherwise the packet was marked, or stays because of `nodrop`.
    #[cold]
    fn goes(&mut self, pkt: &mut Packet, forced: bool) -> bool {
        self.stats.overlimits += 1;
        if self.ecn && !(forced && self.harddrop) {
            if ecn::mark(pkt) {
                self.stats.marked += 1;
                return false;
            }
            if self.nodrop {
                return false;
            }
        }
        self.stats.early += 1;
        true
    }
}

impl Qdisc for RedQdisc {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if let Some(adaption) = &mut self.adaption {
            adaption.run(&mut self.law, &self.average, cx.now);
        }
        let forced = match self.law.judge(&mut self.average, self.held.bytes, cx.now) {
            red::Verdict::Spare => None,
            red::Verdict::Early => Some(false),
            red::Verdict::Forced => Some(true),
        };
        if let Some(forced) = forced
            && self.goes(&mut pkt, forced)
        {
            let reason = if forced { DropReason::Overlimit } else { DropReason::Congested };
            cx.drop(pkt, reason);
            return Verdict::Dropped;
        }
        let verdict = self.child.enqueue(pkt, cx, &mut self.held);
        self.stats.pdrop += u64::from(verdict != Verdict::Queued);
        verdict
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let answer = self.child.dequeue(cx, &mut self.held);
        if !matches!(answer, Dequeue::Ready(_)) {
            self.average.rest(cx.now);
        }
        answer
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        self.child.peek(cx, &mut self.held)
    }

    fn backlog(&self) -> Backlog {
        self.held
    }

    fn accepts(&self, pkt: &Packet) -> bool {
        self.child.accepts(pkt)
    }

    /// Sets new parameters. As in Linux, a new `bfifo` of `limit` bytes replaces the child, which
    /// drops the packets that it holds. The average queue length starts anew.
    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        self.child.reset(cx, &mut self.held);
        let new = Self::new(values);
        self.child = new.child;
        self.adaption = new.adaption.map(|_| Adaption::from(cx.now));
        self.law.change(new.law);
        (self.ecn, self.harddrop, self.nodrop) = (new.ecn, new.harddrop, new.nodrop);
        self.average = Average::EMPTY;
        self.average.rest(cx.now);
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.child.reset(cx, &mut self.held);
        self.average = Average::EMPTY;
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }

    fn overlimits(&self) -> u64 {
        self.stats.overlimits
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("marked", self.stats.marked);
        out("early", self.stats.early);
        out("pdrop", self.stats.pdrop);
    }
}

impl Classes for RedQdisc {
    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        (minor == 1).then_some(&mut self.child)
    }

    /// Returns zeros: as in Linux, the class of this qdisc counts nothing.
    fn counters(&mut self, _minor: u16) -> (Counters, Backlog) {
        (Counters::default(), Backlog::default())
    }

    fn recount(&mut self, _minor: u16) {
        self.child.recount(&mut self.held);
    }
}
