//! A root qdisc with one child for each transmit queue of a device: `mq`, and `mqprio`, which gives
//! each traffic class its own queues.
//!
//! A packet goes to the queue that was chosen for it ([`set_queue`](Packet::set_queue)), if the
//! packet may use that queue. Otherwise the key of the packet's flow selects one of the queues that
//! the packet may use: with `mq`, all queues; with `mqprio`, the queues of the traffic class to
//! which `map` assigns the low four bits of the packet's priority.
//!
//! In Linux, the queues belong to the device, which takes packets from each queue as it likes. A
//! [`Tree`](crate::Tree) has one output, so this qdisc takes a packet from each queue in turn. The
//! ports of a link are its queues: see [`Setup::build_port`](crate::Setup::build_port).
//!
//! Source: `tc-mq(8)`, `tc-mqprio(8)`; behaviour of Linux 7.2 `net/sched/sch_mq.c`, `sch_mqprio.c`,
//! `net/core/dev.c` (`skb_tx_hash`).
//! Differs: `mq` has as many queues as `queues` says, or else as the highest class that was given a
//! qdisc; `mqprio` has the queues that `queues` names. The hash function is Onramp's own. No
//! hardware schedules packets: `mqprio` needs `hw 0`, as in Linux on every device without such
//! hardware, and has no `mode`, `shaper`, `min_rate` and `max_rate`. A class that has lost its
//! qdisc gets a `pfifo`; in Linux, its packets are dropped.
//! Invariant: between two packets of a queue that always holds packets, each of the other queues
//! sends at most one packet; packets of a traffic class leave only through the queues of that
//! class.

use onramp_queue::Packet;

use super::multiq::{TurnBands, spread};
use super::pfifo_fast::default_pfifo_fast;
use super::{Backlog, Changes, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict};
use crate::base::error::Clash;
use crate::base::params::{Default, Param, Site, Unit, Value, Values, look};
use crate::base::show::Out;
use crate::base::{Errno, Extra, Fault};
use crate::sched::{Child, Classes, Shown};

/// The greatest number of transmit queues that a device may have.
const QUEUES_MAX: u16 = 4096;

/// The greatest number of traffic classes (`TC_QOPT_MAX_QUEUE` in Linux).
const CLASSES_MAX: usize = 16;

/// How `mq` and `mqprio` differ from other kinds: they stand only at the root; `tc` lists their
/// classes as children of `root`, and lists their default children.
const ROOT: Quirks = Quirks {
    stands_at_root: true,
    classes_at_root: true,
    shown_below: Some("pfifo_fast"),
    ..Quirks::NONE
};

pub(super) const MQ: Kind = Kind {
    id: "mq",
    about: "a qdisc for each transmit queue, which are served in turn",
    params: &[Param::new(
        "queues",
        Unit::Count,
        Default::Off,
        "number of transmit queues; off: as many as have a qdisc of their own",
    )
    .within(1, QUEUES_MAX as u64)
    .shown(look::never)],
    classes: ClassKind::Fixed(|values| {
        u16::try_from(values.number("queues")).ok().filter(|n| *n > 0).unwrap_or(QUEUES_MAX)
    }),
    build: |values| {
        let fixed = values.is_given("queues");
        let queues = values.number("queues").max(1);
        Box::new(Mq { queues: turns(queues, values.site), fixed, map: None, site: values.site })
    },
    quirks: Quirks { has_queue_trees: true, ..ROOT },
    ..Kind::LEAF
};

pub(super) const MQPRIO: Kind = Kind {
    id: "mqprio",
    about: "transmit queues for each class of traffic, which are served in turn",
    params: &[
        Param::new("num_tc", Unit::Count, Default::Number(8), "number of classes of traffic")
            .within(1, CLASSES_MAX as u64)
            .refused(CLASSES_WRONG),
        Param::new(
            "map",
            Unit::Many(16),
            Default::List(&[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 1, 1, 3, 3, 3, 3]),
            "the class of traffic of each priority, counted from 0",
        )
        .within(0, CLASSES_MAX as u64 - 1)
        .refused(MAP_WRONG),
        Param::new(
            "queues",
            Unit::Ranges(CLASSES_MAX),
            Default::Off,
            "of each class of traffic, the number of its queues and the first one",
        ),
        Param::new(
            "hw",
            Unit::Count,
            Default::Number(1),
            "leaves the scheduling to the hardware; only 0 is accepted",
        )
        .within(0, u8::MAX as u64)
        .refused(Fault::Usage),
    ],
    unknown: Fault::Argument,
    changes: Changes::No,
    check,
    classes: ClassKind::Fixed(|values| {
        u16::try_from(ranges(values).iter().map(|range| range.end()).max().unwrap_or(0))
            .unwrap_or(0)
    }),
    build: |values| {
        let ranges = ranges(values);
        let count = ranges.iter().map(|range| range.end()).max().unwrap_or(1).max(1);
        Box::new(Mq {
            queues: turns(count as u64, values.site),
            site: values.site,
            fixed: true,
            map: Some(Box::new(map(values).map(|tc| {
                // If the option values have not been checked, a traffic class may have no range of
                // queues: use the first queue.
                ranges.get(tc).copied().unwrap_or(Range { count: 1, first: 0 })
            }))),
        })
    },
    shown: Shown { options: show, ..Shown::TABLE },
    quirks: Quirks { chooses_queue: true, ..ROOT },
};

const CLASSES_WRONG: Fault =
    Fault::Kernel(Errno::Invalid, Some("Number of traffic classes is outside valid range"));
const MAP_WRONG: Fault = Fault::Kernel(
    Errno::Invalid,
    Some("Invalid traffic class in priority to traffic class mapping"),
);
const NO_OFFLOAD: Fault =
    Fault::Kernel(Errno::NotSupported, Some("Device does not support hardware offload"));

/// The queues of a traffic class: their number, and the number of the first one.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    count: usize,
    first: usize,
}

impl Range {
    /// Returns one more than the number of the last queue.
    const fn end(self) -> usize {
        self.first + self.count
    }
}

fn ranges(values: &Values<'_>) -> Vec<Range> {
    let range = |number: &u64| Range {
        count: usize::try_from(number >> 16).unwrap_or(0),
        first: usize::from(u16::try_from(number & 0xFFFF).unwrap_or(0)),
    };
    let list = values.list("queues");
    let most = usize::try_from(values.number("num_tc")).unwrap_or(CLASSES_MAX);
    list.iter().take(most).map(range).collect()
}

/// Returns the traffic class of each of the 16 priorities. A priority for which `map` gives no
/// class belongs to class 0.
fn map(values: &Values<'_>) -> [usize; 16] {
    let mut map = [0; 16];
    for (place, tc) in map.iter_mut().zip(values.list("map")) {
        *place = usize::try_from(tc).unwrap_or(0);
    }
    map
}

fn check(values: &Values<'_>) -> Result<(), Clash> {
    if values.number("hw") > 0 {
        let why = "no device of Onramp does it in hardware: use `hw 0`".into();
        return Err(Clash { key: "hw", why, fault: NO_OFFLOAD });
    }
    let wrong = |why: String| Err(("queues", why).into());
    let classes = usize::try_from(values.number("num_tc")).unwrap_or(CLASSES_MAX);
    if let Some(tc) = map(values).iter().find(|tc| **tc >= classes) {
        let why = format!("there is no class {tc}: the classes are 0 to {}", classes - 1);
        return Err(Clash { key: "map", why, fault: MAP_WRONG });
    }
    let ranges = ranges(values);
    for tc in 0..classes {
        let range = ranges.get(tc).filter(|range| range.count > 0);
        let Some(range) = range else { return wrong(format!("no queues for class {tc}")) };
        if range.end() > usize::from(QUEUES_MAX) {
            return wrong(format!(
                "the queues of class {tc} exceed the limit of {QUEUES_MAX} queues"
            ));
        }
        for (other, before) in ranges[..tc].iter().enumerate() {
            if range.first < before.end() && before.first < range.end() {
                return wrong(format!(
                    "class {other}: {}@{} overlap with class {tc}: {}@{}",
                    before.count, before.first, range.count, range.first
                ));
            }
        }
    }
    match values.get("queues") {
        Some(Value::List(list)) if list.len() > classes => {
            let why = format!("there are {classes} classes, and queues for {}", list.len());
            Err(Clash::usage("queues", why))
        }
        _ => Ok(()),
    }
}

/// Shows the options of `mqprio`, on several lines.
fn show(values: &Values<'_>, _: &Extra, out: &mut Out) {
    let (classes, map) = (values.number("num_tc"), map(values));
    out.uint("tc", classes, format_args!("tc {classes} map "));
    map.iter().for_each(|tc| out.text(format_args!("{tc} ")));
    let ranges = ranges(values);
    out.text(format_args!("{LINE}queues:"));
    for range in &ranges {
        out.text(format_args!("({}:{}) ", range.first, range.end().saturating_sub(1)));
    }
    out.json(|json| {
        json.open_array(Some("map"));
        map.iter().for_each(|tc| json.raw(None, format_args!("{tc}")));
        json.close_array();
        json.open_array(Some("queues"));
        for range in &ranges {
            json.open_array(None);
            json.raw(None, format_args!("{}", range.first));
            json.raw(None, format_args!("{}", range.end().saturating_sub(1)));
            json.close_array();
        }
        json.close_array();
    });
    out.string("mode", "dcb", format_args!("{LINE}mode:dcb"));
    out.string("shaper", "dcb", format_args!("{LINE}shaper:dcb"));
}

/// Text that begins a new line in the list of options.
const LINE: &str = "\n             ";

fn turns(queues: u64, site: Site) -> TurnBands {
    TurnBands::new((0..queues).map(|_| Child::new(default_pfifo_fast(site))).collect())
}

#[derive(Debug)]
struct Mq {
    queues: TurnBands,
    /// Whether the number of queues is fixed. If it is not, giving a qdisc to a queue that does not
    /// exist adds queues.
    fixed: bool,
    /// The queues that packets of each priority may use; `None` means all queues.
    map: Option<Box<[Range; 16]>>,
    /// What is known of the device, for the qdiscs of further queues.
    site: Site,
}

impl Mq {
    #[inline]
    fn queue(&self, pkt: &Packet) -> usize {
        let all = Range { count: self.queues.children.len(), first: 0 };
        let range = self.map.as_ref().map_or(all, |map| map[(pkt.priority & 15) as usize]);
        match pkt.chosen_queue().map(usize::from) {
            Some(chosen) if (range.first..range.end()).contains(&chosen) => chosen,
            _ => range.first + spread(pkt.flow, range.count),
        }
    }
}

impl Qdisc for Mq {
    #[inline]
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.queues.enqueue(self.queue(&pkt), pkt, cx)
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        self.queues.dequeue(cx)
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        self.queues.peek(cx)
    }

    fn backlog(&self) -> Backlog {
        self.queues.held
    }

    #[inline]
    fn accepts(&self, pkt: &Packet) -> bool {
        self.queues.children[self.queue(pkt)].accepts(pkt)
    }

    /// Sets new parameters; without `queues`, the number of queues stays the same.
    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        self.fixed = values.is_given("queues");
        if self.fixed {
            let count = values.number32("queues") as usize;
            let new = || Child::new(default_pfifo_fast(values.site));
            self.queues.resize(count, new, cx);
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.queues.reset(cx);
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }
}

impl Classes for Mq {
    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        self.queues.child(minor)
    }

    fn recount(&mut self, minor: u16) {
        self.queues.recount(minor);
    }

    fn graft(&mut self, minor: u16, qdisc: Box<dyn Qdisc>, cx: &mut Cx<'_>) {
        let children = &mut self.queues.children;
        if !self.fixed && usize::from(minor) > children.len() {
            let site = self.site;
            children.resize_with(minor.into(), || Child::new(default_pfifo_fast(site)));
        }
        self.queues.graft(minor, qdisc, cx);
    }
}
