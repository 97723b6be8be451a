//! Classes that take turns, each sending a quantum of bytes per turn.
//!
//! A packet goes to the class that its priority names (`0x10003` is `1:3`), else to the class that
//! the filters name; if neither names a class, the packet is dropped.
//!
//! Source: M. Shreedhar and G. Varghese, "Efficient Fair Queuing Using Deficit Round-Robin", 1995;
//! `tc-drr(8)`; behaviour of Linux 7.2 `net/sched/sch_drr.c`.
//! Differs: if a class drops all its packets when it is asked for one, Onramp asks the next class;
//! Linux sends nothing until the qdisc is called again.
//! Invariant: among classes that always hold packets, what each class has sent in any number of
//! rounds differs from the sum of its quanta by less than its largest packet.

use onramp_queue::{Packet, PacketList};

use super::classes::Table;
use super::rounds::{Rounds, Turn, bounded};
use super::{
    AddedQuirks, Backlog, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict,
    peek_by_dequeue, shown,
};
use crate::base::params::{Default, Param, Unit, Values};
use crate::base::units::Size;
use crate::base::{Counters, Errno, Fault, Instant};
use crate::filter::Filters;
use crate::qdisc::pfifo_child;
use crate::sched::turns::MANY;
use crate::sched::{Child, Classes, Shown};

pub(super) const DRR: Kind = Kind {
    id: "drr",
    about: "classes that send a quantum of bytes each, in turn",
    classes: ClassKind::Added {
        params: &[Param::new(
            "quantum",
            Unit::Size,
            Default::Mtus(1),
            "bytes sent in each round, at least 256",
        )
        .at_least(1)
        .refused(Fault::Kernel(Errno::Invalid, Some("Specified DRR quantum cannot be zero")))],
        check: |_| Ok(()),
        nested: false,
    },
    build: |values| {
        Box::new(Drr {
            classes: Table::new(values.site.handle),
            rounds: Rounds::default(),
            held: Backlog::default(),
            filters: Filters::default(),
            peeked: None,
        })
    },
    shown: Shown {
        class: |values, _, out| shown::size(out, "quantum", bounded(values.number("quantum"))),
        class_extra: |extra, out| {
            let deficit = extra.get("deficit").unsigned_abs();
            out.uint("deficit", deficit, format_args!(" deficit {} \n", Size(deficit)));
        },
        ..Shown::TABLE
    },
    quirks: Quirks {
        added: AddedQuirks {
            options_missing: "DRR options are required for this operation",
            in_use: "DRR class is in use",
            filters_at_class: "DRR classid must be zero",
            ..AddedQuirks::NONE
        },
        ..Quirks::NONE
    },
    ..Kind::LEAF
};

#[derive(Debug)]
struct Drr {
    classes: Table<Turn>,
    rounds: Rounds,
    /// Packets and bytes that the classes hold.
    held: Backlog,
    filters: Filters,
    peeked: Option<Packet>,
}

impl Qdisc for Drr {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        match self.classes.classify(&mut self.filters, &mut pkt, cx.now) {
            Ok(place) => {
                let class = &mut self.classes[place];
                self.rounds.enqueue(place, class, pkt, cx, &mut self.held)
            }
            Err(reason) => {
                cx.drop(pkt, reason);
                Verdict::Dropped
            }
        }
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        self.rounds.dequeue(&mut self.classes, cx, &mut self.held)
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.held;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    fn prefetch_flows(&self, coming: &PacketList, most: u32) {
        if self.classes.len() > MANY {
            let coming = coming.metas().take(most as usize);
            Rounds::prefetch_flows(
                &self.classes,
                coming.filter_map(|pkt| self.classes.named(pkt.priority)),
            );
        }
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        if let Some(pkt) = self.peeked.take() {
            cx.drop(pkt, onramp_queue::DropReason::Purged);
        }
        self.classes.iter_mut().for_each(|class| class.child.reset(cx, &mut self.held));
        self.rounds.clear(self.classes.iter_mut());
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        (minor == 0).then_some(&mut self.filters)
    }
}

impl Classes for Drr {
    fn set(&mut self, minor: u16, _parent: u16, values: &Values<'_>, _now: Instant) {
        let quantum = values.number("quantum");
        match self.classes.get_mut(minor) {
            Some(class) if values.is_given("quantum") => class.quantum = bounded(quantum),
            Some(_) => {}
            None => {
                self.classes.add(minor, Turn::new(pfifo_child(values.site), quantum));
            }
        }
    }

    fn remove(&mut self, minor: u16, cx: &mut Cx<'_>) {
        if let Some(place) = self.classes.place(minor) {
            let class = &mut self.classes[place];
            class.child.reset(cx, &mut self.held);
            self.rounds.update_active(place, class);
            self.classes.remove(minor);
        }
    }

    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        self.classes.get_mut(minor).map(|class| &mut class.child)
    }

    fn counters(&mut self, minor: u16) -> (Counters, Backlog) {
        self.child(minor)
            .map_or_else(std::default::Default::default, |child| child.class_over_qdisc())
    }

    fn recount(&mut self, minor: u16) {
        if let Some(place) = self.classes.place(minor) {
            let class = &mut self.classes[place];
            class.child.recount(&mut self.held);
            self.rounds.update_active(place, class);
        }
    }

    fn stats(&self, minor: u16, out: &mut dyn FnMut(&'static str, i64)) {
        if let Some(class) = self.classes.get(minor) {
            let active = class.child.held().packets > 0;
            let deficit = if active { class.deficit } else { 0 };
            out("deficit", i64::try_from(deficit).unwrap_or(i64::MAX));
        }
    }
}
