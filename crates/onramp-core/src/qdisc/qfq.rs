//! Quick fair queueing (`qfq`): classes share the link by weight; what a class sends differs from
//! its share by a few packets at most.
//!
//! The class of a packet is chosen as in `drr`. Classes of the same weight and largest packet form
//! aggregates of up to eight classes, and each aggregate is scheduled as a unit; within an
//! aggregate, classes take turns by deficit round robin.
//!
//! Source: F. Checconi, L. Rizzo, P. Valente, "QFQ: Efficient Packet Scheduling With Tight
//! Guarantees", 2013; P. Valente, "Reducing the Execution Time of Fair-Queueing Packet Schedulers",
//! 2014 (QFQ+); behaviour of Linux 7.2 `net/sched/sch_qfq.c`.
//! Differs: the sum of all weights is not limited to 65,536. If a class that is asked for its next
//! packet drops all packets that it holds, the next class is asked.
//! Invariant: among classes that always hold packets, what any class has sent, divided by its
//! weight, differs by a bounded number of packets from what any other class has sent, divided by
//! its weight.

mod aggregate;
mod schedule;

use onramp_queue::{DropReason, Packet};

use self::schedule::Schedule;
use super::classes::Table;
use super::{
    AddedQuirks, Backlog, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict,
    peek_by_dequeue, shown,
};
use crate::base::params::{Default, Param, Unit, Values};
use crate::base::{Counters, Errno, Fault, Instant};
use crate::filter::Filters;
use crate::qdisc::pfifo_child;
use crate::sched::{Child, Classes, Shown, segments};

const PACKET_MAX: u32 = 1 << 16;

const RANGE: Fault = Fault::Kernel(Errno::Range, Some("integer out of range"));

pub(super) const QFQ: Kind = Kind {
    id: "qfq",
    about: "classes that share the rate by weight, with a bound on how late each one sends",
    classes: ClassKind::Added {
        params: &[
            Param::new("weight", Unit::Count, Default::Number(1), "the class's weight")
                .within(1, 1024)
                .decimal()
                .refused(RANGE)
                .reset(),
            Param::new("maxpkt", Unit::Bytes, Default::Mtus(1), "the class's largest packet")
                .within(512, PACKET_MAX as u64)
                .refused(RANGE)
                .reset(),
        ],
        check: |_| Ok(()),
        nested: false,
    },
    build: |values| {
        Box::new(Qfq {
            classes: Table::new(values.site.handle),
            schedule: Schedule::default(),
            held: Backlog::default(),
            filters: Filters::default(),
            peeked: None,
        })
    },
    shown: Shown {
        class: |values, extra, out| {
            let packet_max = extra.find("maxpkt").map(i64::unsigned_abs);
            shown::number(out, "weight", values.number("weight"));
            shown::number(out, "maxpkt", packet_max.unwrap_or_else(|| values.number("maxpkt")));
        },
        ..Shown::TABLE
    },
    quirks: Quirks {
        added: AddedQuirks {
            options_missing: "sch_qfq: missing options",
            in_use: "sch_qfq: QFQ class in use",
            ..AddedQuirks::NONE
        },
        ..Quirks::NONE
    },
    ..Kind::LEAF
};

#[derive(Debug)]
struct Qfq {
    classes: Table<Class>,
    schedule: Schedule,
    /// Packets and bytes that the classes hold.
    held: Backlog,
    filters: Filters,
    peeked: Option<Packet>,
}

const _: () = assert!(size_of::<Option<Class>>() == 128);

/// A class. It takes two cache lines, which processors fetch together.
#[derive(Debug)]
#[repr(align(64))]
struct Class {
    child: Child,
    aggregate: usize,
    /// Number of bytes that the class may still send in its turn. As in Linux, a deficit that would
    /// become negative wraps around instead, and is a very large number for a while.
    deficit: u32,
    /// Length in bytes of the class's next packet, if the class's qdisc had a packet ready when it
    /// was last asked.
    next: Option<u32>,
    /// Number of bytes and number of packets that were enqueued in the class: Linux shows these,
    /// and not what the class has sent.
    came: (u64, u64),
}

impl Class {
    /// Peeks at the next packet of the class, and stores that packet's length.
    #[inline]
    fn peek(&mut self, cx: &mut Cx<'_>, sum: &mut Backlog) -> Peek {
        let answer = self.child.peek(cx, sum);
        self.next = match answer {
            Peek::Ready(len) => Some(len),
            Peek::NotBefore(_) | Peek::Empty => None,
        };
        answer
    }
}

impl Qfq {
    /// Updates the schedule when a class has got its first packet or lost its last one.
    fn update_active(&mut self, place: usize) {
        let class = &mut self.classes[place];
        let active = self.schedule.is_active(place);
        match (class.child.held().packets > 0, active) {
            (true, false) => {
                class.deficit = self.schedule.packet_max(class.aggregate);
                self.schedule.activate(class.aggregate, place);
            }
            (false, true) => self.schedule.deactivate(class.aggregate, place),
            _ => {}
        }
    }

    /// Moves a class to an aggregate (a group of classes) with the given weight and largest packet.
    fn join(&mut self, place: usize, weight: u32, packet_max: u32) {
        let aggregate = self.schedule.aggregate(weight, packet_max);
        let class = &mut self.classes[place];
        let left = std::mem::replace(&mut class.aggregate, aggregate);
        let active = self.schedule.is_active(place);
        self.schedule.leave(left, place);
        self.schedule.join(aggregate, place, active);
    }

    /// Sends the next packet of a class. According to the last peek, that packet has `len` bytes.
    fn send(&mut self, place: usize, len: u32, cx: &mut Cx<'_>) -> Dequeue {
        let class = &mut self.classes[place];
        let answer = class.child.dequeue(cx, &mut self.held);
        class.deficit = class.deficit.wrapping_sub(len);
        class.next = None;
        let aggregate = class.aggregate;
        // A class that has no more packets takes no more turns, but its aggregate stays in service,
        // because another packet may come.
        if class.child.held().packets == 0 {
            self.schedule.pause(aggregate, place);
        } else {
            let _ = class.peek(cx, &mut self.held);
        }
        if let Some(next) = class.next
            && class.deficit < next
        {
            class.deficit = class.deficit.wrapping_add(self.schedule.packet_max(aggregate));
            self.schedule.end_turn(aggregate, place);
        }
        self.schedule.charge(aggregate, len);
        if self.classes[place].child.held().packets == 0 && self.schedule.is_active(place) {
            self.update_active(place);
        }
        answer
    }
}

impl Qdisc for Qfq {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let place = match self.classes.classify(&mut self.filters, &mut pkt, cx.now) {
            Ok(_) if pkt.len > PACKET_MAX => Err(DropReason::TooBig),
            found => found,
        };
        let place = match place {
            Ok(place) => place,
            Err(reason) => {
                cx.drop(pkt, reason);
                return Verdict::Dropped;
            }
        };
        let (len, packets) = (pkt.len, u64::from(segments::count(&pkt)));
        let mut aggregate = self.classes[place].aggregate;
        if self.schedule.packet_max(aggregate) < len {
            self.join(place, self.schedule.weight(aggregate), len);
            aggregate = self.classes[place].aggregate;
        }
        let class = &mut self.classes[place];
        let active = self.schedule.is_active(place);
        let verdict = class.child.enqueue(pkt, cx, &mut self.held);
        if verdict == Verdict::Queued {
            class.came = (class.came.0 + u64::from(len), class.came.1 + packets);
        }
        if active && verdict == Verdict::Queued {
            let before = class.next;
            let _ = class.peek(cx, &mut self.held);
            // The class's qdisc will give the new packet before the packet whose length was
            // compared with the deficit, so the turn of the class may be over.
            let goes_before = class.next == Some(len) && before != Some(len);
            if goes_before && class.deficit < len && self.schedule.has_turn(aggregate, place) {
                self.schedule.end_turn(aggregate, place);
            }
        }
        self.update_active(place);
        verdict
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        let (mut wait, mut changed) = (Dequeue::Empty, false);
        while let Some((aggregate, first)) = self.schedule.next() {
            if let Some(place) = first {
                let class = &mut self.classes[place];
                match class.peek(cx, &mut self.held) {
                    Peek::Ready(len) if changed || self.schedule.allows(aggregate, len) => {
                        return self.send(place, len, cx);
                    }
                    Peek::Ready(_) => {}
                    Peek::NotBefore(then) => wait = wait.or_sooner(Dequeue::NotBefore(then)),
                    Peek::Empty => {
                        self.update_active(place);
                        continue;
                    }
                }
            }
            if changed {
                break;
            }
            self.schedule.change(self.held.packets > 0);
            changed = true;
        }
        wait
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.held;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        cx.purge_one(&mut self.peeked);
        for place in self.classes.used() {
            self.classes[place].child.reset(cx, &mut self.held);
            self.update_active(place);
        }
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        (minor == 0).then_some(&mut self.filters)
    }
}

impl Classes for Qfq {
    fn set(&mut self, minor: u16, _parent: u16, values: &Values<'_>, _now: Instant) {
        let (weight, packet_max) = (values.number32("weight"), values.number32("maxpkt"));
        match self.classes.place(minor) {
            Some(place) => {
                let aggregate = self.classes[place].aggregate;
                let now = (self.schedule.weight(aggregate), self.schedule.packet_max(aggregate));
                if now != (weight, packet_max) {
                    self.join(place, weight, packet_max);
                }
            }
            None => {
                let aggregate = self.schedule.aggregate(weight, packet_max);
                let child = pfifo_child(values.site);
                let class = Class { child, aggregate, deficit: 0, next: None, came: (0, 0) };
                let place = self.classes.add(minor, class);
                self.schedule.join(aggregate, place, false);
            }
        }
    }

    fn remove(&mut self, minor: u16, cx: &mut Cx<'_>) {
        if let Some(place) = self.classes.place(minor) {
            self.classes[place].child.reset(cx, &mut self.held);
            self.update_active(place);
            self.schedule.leave(self.classes[place].aggregate, place);
            self.classes.remove(minor);
        }
    }

    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        self.classes.get_mut(minor).map(|class| &mut class.child)
    }

    /// A class whose packet was larger than its `maxpkt` has had that packet's size since.
    fn stats(&self, minor: u16, out: &mut dyn FnMut(&'static str, i64)) {
        if let Some(class) = self.classes.get(minor) {
            out("maxpkt", self.schedule.packet_max(class.aggregate).into());
        }
    }

    fn counters(&mut self, minor: u16) -> (Counters, Backlog) {
        let Some(class) = self.classes.get(minor) else {
            return std::default::Default::default();
        };
        let (below, held) = class.child.counters();
        (Counters { bytes: class.came.0, packets: class.came.1, ..below }, held)
    }

    fn recount(&mut self, minor: u16) {
        if let Some(place) = self.classes.place(minor) {
            self.classes[place].child.recount(&mut self.held);
            self.update_active(place);
        }
    }
}

#[cfg(test)]
mod tests;
