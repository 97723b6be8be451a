//! Hierarchical fair service curves (`hfsc`): classes have guarantees in real time, and share the
//! rest of the link by virtual time.
//!
//! Source: Stoica, Zhang, Ng 1997 (see `hfsc/curve.rs`); `tc-hfsc(7)`, `tc-hfsc(8)`; behaviour of
//! Linux 7.2 `net/sched/sch_hfsc.c`.
//! Differs: a change of a leaf class restarts its curves. If a class has `sc` and also `rt`, then
//! `sc` sets only `ls`; if it has `sc` and also `ls`, then `sc` sets only `rt`; the order of the
//! options does not matter. When a class gets its first child class, the qdisc below it is removed;
//! Linux empties that qdisc and keeps it, but cannot use, change or delete it.
//! Invariant: at any time, a class with a curve `rt` has been served at least as much as the curve
//! demands since the class became busy, less a packet, as long as all these curves together do not
//! exceed the rate of the link.

mod change;
mod class;
mod curve;
mod sched;
mod show;

use std::collections::{BTreeMap, BTreeSet};

use onramp_queue::{DropReason, Packet};

use self::class::{Class, Limit, Real, Share};
use self::curve::{Curve, tick, tick_ns};
use super::{
    AddedQuirks, Backlog, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict,
    peek_by_dequeue,
};
use crate::base::params::{Default as Absent, Param, Site, Unit, Values};
use crate::base::{Clash, Counters, Handle, Instant};
use crate::filter::{Decision, Filters};
use crate::sched::{Child, Classes};

/// The largest number that a curve may contain. Linux keeps rates in 32 bits of bytes per second,
/// and times in 32 bits of microseconds.
const CURVE_MAX: u64 = u32::MAX as u64 * 1_000;

const fn curve(key: &'static str, help: &'static str) -> Param {
    Param::new(key, Unit::Curve, Absent::Off, help).within(0, CURVE_MAX)
}

pub(super) const HFSC: Kind = Kind {
    id: "hfsc",
    about: "classes with real-time guarantees, which share the rest of the rate",
    params: &[Param::new(
        "default",
        Unit::Minor,
        Absent::Off,
        "class of packets that no filter assigns to a class",
    )
    .reset()
    .single()
    .short()],
    classes: ClassKind::Added {
        params: &[
            curve("rt", "real-time guarantee, for leaf classes"),
            curve("ls", "share of the parent's rate"),
            curve("sc", "sets both `rt` and `ls`"),
            curve("ul", "upper limit of the class's share"),
        ],
        check: check_class,
        nested: true,
    },
    build: |values| Box::new(Hfsc::new(values)),
    shown: show::SHOWN,
    quirks: Quirks {
        added: AddedQuirks {
            root_is_class: true,
            inner_has_no_qdisc: true,
            in_use: "HFSC class in use",
            ..AddedQuirks::NONE
        },
        ..Quirks::NONE
    },
    ..Kind::LEAF
};

fn check_class(values: &Values<'_>) -> Result<(), Clash> {
    for key in ["rt", "ls", "sc", "ul"] {
        let rates = values.list(key).into_iter().step_by(2);
        if rates.max().unwrap_or(0) > u64::from(u32::MAX) {
            return Err(Clash::usage(key, "a rate is at most 34359738360bit"));
        }
    }
    let curve = |key| Curve::of(&values.list(key)).is_some();
    if !["rt", "ls", "sc"].into_iter().any(curve) {
        Err(Clash::usage("sc", "the class needs a curve: rt, ls or sc, with a rate above zero"))
    } else if values.is_given("ul") && !curve("ls") && !curve("sc") {
        Err(Clash::usage("ul", "it needs ls or sc"))
    } else {
        Ok(())
    }
}

/// The place of the root in the list of classes.
const ROOT: usize = 0;

fn default_class(values: &Values<'_>) -> u16 {
    u16::try_from(values.number("default")).expect("a class number")
}

#[derive(Debug)]
struct Hfsc {
    handle: Handle,
    default: u16,
    /// The classes: the root first. A class keeps its place as long as it exists.
    classes: Vec<Class>,
    /// The places of removed classes, for new classes.
    free: Vec<usize>,
    /// The minor numbers of the classes with their places in `classes`, sorted by minor number.
    minors: Vec<(u16, usize)>,
    /// Classes with guarantees whose next packet is not eligible yet (may not be sent under the
    /// guarantee yet), by the time at which it becomes eligible.
    waiting: BTreeMap<(u64, u64), usize>,
    /// Classes with guarantees whose next packet is eligible (may be sent under the guarantee), by
    /// deadline; of equal deadlines, by the time at which the packet became eligible.
    ready: BTreeMap<(u64, u64, u64), usize>,
    /// The last sequence number given to a class; these numbers keep classes with equal times in
    /// order.
    turn: u64,
    /// The time at which the next class may send, as computed the last time that no class could.
    timer: Instant,
    /// The classes whose qdisc has held packets of which none was ready yet, by the time at which
    /// the qdisc wanted to be asked again (`Class::timer`), which may have passed.
    timers: BTreeSet<(Instant, usize)>,
    peeked: Option<Packet>,
    /// Former qdiscs of leaf classes that have since got children. Their packets still count in
    /// `held`.
    orphans: Vec<Child>,
    /// Number of packets and bytes held, without a packet taken out by a `peek`.
    held: Backlog,
    /// How often packets were held but no class could send.
    overlimits: u64,
}

impl Hfsc {
    fn new(values: &Values<'_>) -> Self {
        Self {
            handle: values.site.handle,
            default: default_class(values),
            classes: vec![Class::new(None, values.site)],
            free: Vec::new(),
            minors: vec![(0, ROOT)],
            waiting: BTreeMap::new(),
            ready: BTreeMap::new(),
            turn: 0,
            timer: Instant(0),
            timers: BTreeSet::new(),
            peeked: None,
            orphans: Vec::new(),
            held: Backlog::default(),
            overlimits: 0,
        }
    }

    fn find(&self, minor: u16) -> Option<usize> {
        let place = self.minors.binary_search_by_key(&minor, |(minor, _)| *minor).ok()?;
        Some(self.minors[place].1)
    }

    fn leaf(&self, minor: u16) -> Option<usize> {
        self.find(minor).filter(|class| self.classes[*class].level == 0)
    }

    /// Returns the place of the class to which a packet goes, or as an error the reason to drop the
    /// packet.
    fn classify(&mut self, pkt: &mut Packet, now: Instant) -> Result<usize, DropReason> {
        let named = Handle::from_priority(pkt.priority);
        if named.major == self.handle.major
            && let Some(class) = self.leaf(named.minor)
        {
            return Ok(class);
        }
        let mut head = ROOT;
        loop {
            let named = match self.classes[head].filters.classify(pkt, now) {
                Decision::Class(named) => named,
                Decision::Drop => return Err(DropReason::Filter),
                Decision::Unknown => break,
            };
            let found = Some(named.minor).filter(|_| named.major == self.handle.major);
            let Some(class) = found.and_then(|minor| self.find(minor)) else { break };
            match self.classes[class].level {
                0 => return Ok(class),
                // A filter of an inner class may only name a class on a lower level.
                level if level < self.classes[head].level => head = class,
                _ => break,
            }
        }
        self.leaf(self.default).ok_or(DropReason::Unclassified)
    }

    /// Returns the class that sends next: the class with the most urgent guarantee, else the class
    /// whose share is furthest behind; the second value is true for a guarantee. If no class may
    /// send, returns as an error when to ask again.
    fn choose(&mut self, now: Instant) -> Result<(usize, bool), Instant> {
        let now_tick = tick(now.0);
        if let Some(class) = self.most_urgent(now_tick) {
            return Ok((class, true));
        }
        self.furthest_behind(now_tick).map(|class| (class, false)).ok_or_else(|| {
            let eligible = self.waiting.first_key_value().map(|((e, _), _)| *e);
            let allowed = Some(self.classes[ROOT].below.f_min()).filter(|f| *f > 0);
            let next = eligible.into_iter().chain(allowed).min().unwrap_or(0);
            self.timer = Instant(tick_ns(next)).max(now.after(1));
            self.next_timer(now)
        })
    }

    /// Returns when the first timer after `now` ends; a timer is that of the scheduler, or that of
    /// a class whose qdisc made it wait.
    fn next_timer(&self, now: Instant) -> Instant {
        let of_class = self.timers.range((now.after(1), 0)..).next().map(|(timer, _)| *timer);
        let timers = of_class.into_iter().chain([self.timer]);
        timers.filter(|timer| *timer > now).min().unwrap_or_else(|| now.after(1))
    }

    /// Notes that the qdisc of `class` has no packet ready before `then`.
    fn set_timer(&mut self, class: usize, then: Instant) {
        self.forget_timer(class);
        self.classes[class].timer = Some(then);
        self.timers.insert((then, class));
    }

    fn forget_timer(&mut self, class: usize) {
        if let Some(timer) = self.classes[class].timer.take() {
            self.timers.remove(&(timer, class));
        }
    }

    /// Accounts for a packet of `len` bytes that the qdisc of `class` gave: adds its bytes, and
    /// computes when the next packet of the class is due.
    fn sent(&mut self, class: usize, len: u32, guaranteed: bool, cx: &mut Cx<'_>) {
        self.serve(class, len.into());
        let Some(real) = &mut self.classes[class].real else { return };
        if guaranteed {
            real.cumul += u64::from(len);
        }
        if self.classes[class].child.held().packets > 0 {
            let next = self.next_len(class, cx);
            if self.classes[class].child.held().packets > 0 {
                self.plan(class, next, guaranteed);
                return;
            }
        }
        self.forget_real(class);
    }

    /// Returns the length of the next packet of `class`, in bytes; 0 if no packet is ready. After
    /// this call, the next packet that the class's qdisc gives is that packet.
    fn next_len(&mut self, class: usize, cx: &mut Cx<'_>) -> u32 {
        let len = match self.classes[class].child.peek(cx, &mut self.held) {
            Peek::Ready(len) => len,
            Peek::NotBefore(then) => {
                self.set_timer(class, then);
                0
            }
            Peek::Empty => 0,
        };
        self.settle(class);
        len
    }

    /// Makes a leaf class passive if its qdisc holds no more packets.
    fn settle(&mut self, class: usize) {
        let own = &self.classes[class];
        if own.level == 0 && own.child.held().packets == 0 && self.is_active(class) {
            self.serve(class, 0);
            self.forget_real(class);
        }
    }
}

impl Qdisc for Hfsc {
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let class = match self.classify(&mut pkt, cx.now) {
            Ok(class) => class,
            Err(reason) => {
                cx.drop(pkt, reason);
                return Verdict::Dropped;
            }
        };
        let len = pkt.len;
        let verdict = self.classes[class].child.enqueue(pkt, cx, &mut self.held);
        if self.classes[class].child.held().packets == 0 {
            self.settle(class);
        } else if !self.is_active(class) {
            self.activate(class, len, tick(cx.now.0));
            if self.classes[class].real.is_some() {
                // The deadline of the class was computed for this packet. A peek makes sure that
                // the class's qdisc gives this packet first.
                self.next_len(class, cx);
            }
        }
        verdict
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if !self.orphans.is_empty() {
            self.purge_orphans(cx);
        }
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        while self.held.packets > 0 {
            let (class, guaranteed) = match self.choose(cx.now) {
                Ok(chosen) => chosen,
                Err(then) => {
                    self.overlimits += 1;
                    return Dequeue::NotBefore(then);
                }
            };
            let dropped = cx.drops.len();
            let answer = self.classes[class].child.dequeue(cx, &mut self.held);
            if cx.drops.len() > dropped {
                self.settle(class);
            }
            match answer {
                Dequeue::Ready(pkt) => {
                    self.sent(class, pkt.len, guaranteed, cx);
                    return Dequeue::Ready(pkt);
                }
                // As in Linux, if the qdisc of one class makes it wait, all classes wait until some
                // class's timer ends.
                Dequeue::NotBefore(then) => {
                    self.set_timer(class, then);
                    return Dequeue::NotBefore(self.next_timer(cx.now));
                }
                Dequeue::Empty => self.settle(class),
            }
        }
        Dequeue::Empty
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.held;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    fn change(&mut self, values: &Values<'_>, _cx: &mut Cx<'_>) -> bool {
        self.default = default_class(values);
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.purge_orphans(cx);
        cx.purge_one(&mut self.peeked);
        for class in &mut self.classes {
            class.child.reset(cx, &mut self.held);
            class.restart();
            class.timer = None;
        }
        self.waiting.clear();
        self.ready.clear();
        self.timers.clear();
    }

    fn overlimits(&self) -> u64 {
        self.overlimits
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        self.find(minor).map(|class| &mut self.classes[class].filters)
    }
}

impl Classes for Hfsc {
    fn set(&mut self, minor: u16, parent: u16, values: &Values<'_>, now: Instant) {
        let curve = |key| Curve::of(&values.list(key));
        let either = |key| curve(key).or_else(|| curve("sc"));
        let (rt, ls) = (either("rt"), either("ls"));
        let there = self.find(minor);
        // The new limit of a class that has sent bytes counts from now on.
        let start = there.map_or(0, |_| tick(now.0));
        let class = there.unwrap_or_else(|| self.add(minor, parent, values.site));
        let total = self.classes[class].total;
        let limit = curve("ul").map(|curve| Limit::new(curve, start, total));
        if self.classes[class].level > 0 {
            if let Some(curve) = ls.or(rt) {
                self.change_share(class, curve, limit);
            }
        } else {
            self.part(class);
            self.classes[class].share = ls.map(|ls| Share { limit, ..Share::new(ls, total) });
        }
        let own = &mut self.classes[class];
        own.real = rt.map(Real::new);
        if own.child.held().packets > 0 {
            self.activate(class, 0, tick(now.0));
        }
    }

    fn remove(&mut self, minor: u16, cx: &mut Cx<'_>) {
        let Some(class) = self.find(minor).filter(|class| *class != ROOT) else { return };
        self.classes[class].child.reset(cx, &mut self.held);
        self.settle(class);
        if let Ok(place) = self.minors.binary_search_by_key(&minor, |(minor, _)| *minor) {
            self.minors.remove(place);
        }
        self.count_child(class, Some(self.classes[class].level), None);
        self.forget_timer(class);
        self.classes[class] = Class::new(None, Site::default());
        self.free.push(class);
    }

    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        let class = self.leaf(minor)?;
        Some(&mut self.classes[class].child)
    }

    fn has_root(&self) -> bool {
        true
    }

    fn counters(&mut self, minor: u16) -> (Counters, Backlog) {
        let class = self.find(minor).map(|class| &self.classes[class].child);
        class.map_or_else(Default::default, Child::class_counters)
    }

    fn stats(&self, minor: u16, out: &mut dyn FnMut(&'static str, i64)) {
        let Some(class) = self.find(minor).map(|class| &self.classes[class]) else { return };
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        out("period", class.share.as_ref().map_or(0, |share| share.period.into()));
        out("work", if minor == 0 { 0 } else { bytes(class.total) });
        out("rtwork", class.real.as_ref().map_or(0, |real| bytes(real.cumul)));
        out("level", class.level.into());
    }

    fn recount(&mut self, minor: u16) {
        if let Some(class) = self.find(minor) {
            self.classes[class].child.recount(&mut self.held);
            self.settle(class);
        }
    }
}

#[cfg(test)]
mod tests;
