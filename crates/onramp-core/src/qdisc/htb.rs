//! Hierarchical token bucket (`htb`): classes in a tree, each with a rate of its own and a ceiling.
//! A class that needs more than its rate borrows what its parent does not use.
//!
//! Each class has a token bucket for `rate` and one for `ceil`. While the bucket for `rate` has
//! tokens, the class may send; while only the bucket for `ceil` has tokens, the class may borrow
//! from its parent, if the parent may send or borrow in turn; otherwise the class waits. A class
//! lends to its children by priority; children of the same priority take turns of `quantum` bytes.
//! A class that lends stands on a higher level of the tree than those that borrow from it; lower
//! levels are served first. Filters at the qdisc and at inner classes choose the class of a packet;
//! packets for which no class is found go to a separate queue that no rate limits.
//!
//! Source: `tc-htb(8)`; M. Devera, "HTB Linux queuing discipline manual", 2002; S. Floyd and V.
//! Jacobson, "Link-sharing and Resource Management Models for Packet Networks", 1995; behaviour of
//! Linux 7.2 `net/sched/sch_htb.c`.
//! Differs: Linux limits the work that one call does on waiting classes to two jiffies; this qdisc
//! does not. The default of a burst is what `tc` computes for exact timers: a packet of `mtu`
//! bytes, plus what the rate sends in a nanosecond.
//! Invariant: between any two packets of a class, the class sends no more bytes than `ceil` allows
//! in the time between the two packets, plus `cburst` and one packet.

mod borrow;
mod change;
mod class;
mod show;
mod turns;
mod wait;

use std::array;

use onramp_queue::{DropReason, Packet, PacketList};

use self::borrow::each_bit;
use self::class::{Below, Class, LEVELS, Mode, PRIORITIES};
use self::turns::ActiveClasses;
use self::wait::Waiting;
use super::{
    AddedQuirks, Backlog, Changes, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict,
    peek_by_dequeue,
};
use crate::base::params::{Default, Param, Site, Unit, Values};
use crate::base::{Clash, Errno, Fault, Handle, Instant};
use crate::filter::{Decision, Filters};
use crate::law::cost::{LINKLAYER, MPU, OVERHEAD};
use crate::sched::{Child, Classes};

pub(super) const HTB: Kind = Kind {
    id: "htb",
    about: "classes with rates, which borrow from each other",
    params: &[
        Param::new(
            "default",
            Unit::Minor,
            Default::Number(0),
            "class of packets that no filter assigns to a class",
        )
        .short(),
        Param::new(
            "r2q",
            Unit::Count,
            Default::Number(RATE_TO_QUANTUM),
            "a class's quantum is its rate divided by this number",
        )
        .decimal()
        .short(),
        Param::new(
            "direct_qlen",
            Unit::Count,
            Default::QueueLen,
            "packets held at most that belong to no class",
        )
        .decimal()
        .short(),
        Param::new("debug", Unit::Count, Default::Off, "without effect").short(),
        Param::new(
            "offload",
            Unit::Words(&["offload"]),
            Default::Off,
            "leaves the scheduling to the device; not supported",
        )
        .short(),
    ],
    changes: Changes::No,
    check: |values| match values.is_given("offload") {
        true => {
            let clash = Clash::from(("offload", "no device of Onramp can do it; leave it out"));
            Err(clash.said(Errno::NotSupported, "hw-tc-offload ethtool feature flag must be on"))
        }
        false => Ok(()),
    },
    classes: ClassKind::Added { params: CLASS, check: |_| Ok(()), nested: true },
    build: |values| Box::new(Htb::new(values)),
    shown: show::SHOWN,
    quirks: Quirks {
        added: AddedQuirks {
            deepest: (LEVELS, "sch_htb: tree is too deep"),
            any_parent: true,
            inner_has_no_qdisc: true,
            in_use: "HTB class in use",
            of_leaves: &["prio", "quantum"],
            ..AddedQuirks::NONE
        },
        ..Quirks::NONE
    },
    ..Kind::LEAF
};

const CLASS: &[Param] = &[
    Param::new("rate", Unit::Rate, Default::Needed, "the rate that the class is guaranteed")
        .at_least(1)
        .refused(Fault::Usage)
        .reset()
        .single(),
    Param::new(
        "ceil",
        Unit::Rate,
        Default::Off,
        "highest rate of the class, including what it borrows",
    )
    .reset()
    .single(),
    Param::new("burst", Unit::Burst, Default::Off, "bytes the class may send at once at `ceil`")
        .or(&["buffer", "maxburst"])
        .reset()
        .short(),
    Param::new(
        "cburst",
        Unit::Burst,
        Default::Off,
        "bytes the class may send at once at unlimited speed",
    )
    .or(&["cbuffer", "cmaxburst"])
    .reset()
    .short(),
    Param::new(
        "prio",
        Unit::Count,
        Default::Number(0),
        "classes with smaller numbers borrow first; at most 7",
    )
    .reset()
    .short(),
    Param::new("quantum", Unit::Bytes, Default::Off, "bytes the class sends in its turn")
        .reset()
        .short(),
    Param::new(
        "mtu",
        Unit::Bytes,
        Default::Number(1600),
        "largest packet in bytes, from which a burst that is not given follows",
    )
    .reset()
    .short(),
    OVERHEAD,
    MPU.short(),
    LINKLAYER,
];

/// The default of the parameter `r2q`.
const RATE_TO_QUANTUM: u64 = 10;
/// A level of the tree on which no class waits for tokens is not checked again for this time, in
/// nanoseconds.
const QUIET_NS: u64 = 1_000_000_000;
/// The longest time until this qdisc checks again whether a waiting class may send, in nanoseconds.
const LOOK_NS: u64 = 5_000_000_000;
/// One more than the highest level.
const ABOVE_ALL: u8 = 8;
const _: () = assert!(ABOVE_ALL as usize == LEVELS);
/// The value that means "no class" where the place of a class is expected.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Htb {
    handle: Handle,
    /// What is known of the device, for the default qdiscs of classes.
    site: Site,
    default: u16,
    rate_to_quantum: u64,
    direct_limit: u32,

    classes: Vec<Class>,
    /// The places in `classes` of classes that were removed. The next classes that are added get
    /// these places; until then, an idle leaf without packets is there, which no number names.
    free: Vec<usize>,
    /// Maps a minor number to the place of the class in `classes`.
    places: Vec<u32>,
    /// Classes that may send with their own tokens and have packets, by level and priority. The
    /// classes of one level and priority make a row.
    rows: [[ActiveClasses; PRIORITIES]; LEVELS],
    /// For each level, a bit for each priority, which is set if the row of that level and priority
    /// is not empty.
    row_mask: [u8; LEVELS],
    /// Classes that may not send with their own tokens, by level; each waits for the time at which
    /// this may change.
    waiting: [Waiting; LEVELS],
    /// For each level, the time at which its waiting classes must be checked, in nanoseconds. No
    /// class that waits on the level changes its state before that time.
    next_event_ns: [u64; LEVELS],

    /// Packets for which no class was found.
    direct: PacketList,
    /// A packet that was dequeued because the parent called `peek`; `held` does not count this
    /// packet.
    peeked: Option<Packet>,
    held: Backlog,
    /// Former qdiscs of leaf classes that have since got children. Their packets still count in
    /// `held`.
    orphans: Vec<Child>,
    filters: Filters,
    direct_packets: u64,
    overlimits: u64,
}

/// Where the classification sends a packet.
enum Goes {
    Direct,
    /// The packet goes to the class at this place in `classes`.
    To(usize),
    Nowhere,
}

impl Htb {
    fn new(values: &Values<'_>) -> Self {
        Self {
            handle: values.site.handle,
            site: values.site,
            default: u16::try_from(values.number("default")).expect("a class number"),
            rate_to_quantum: values.number("r2q"),
            direct_limit: values.number32("direct_qlen"),
            classes: Vec::new(),
            free: Vec::new(),
            places: Vec::new(),
            rows: array::from_fn(|_| array::from_fn(|_| ActiveClasses::default())),
            row_mask: [0; LEVELS],
            waiting: array::from_fn(|_| Waiting::default()),
            next_event_ns: [0; LEVELS],
            direct: PacketList::new(),
            peeked: None,
            held: Backlog::default(),
            orphans: Vec::new(),
            filters: Filters::default(),
            direct_packets: 0,
            overlimits: 0,
        }
    }

    /// Returns the place of the class with this minor number, or `None` if there is no such class.
    #[inline]
    fn place(&self, minor: u16) -> Option<usize> {
        let place = self.places.get(usize::from(minor)).filter(|place| **place != NONE);
        place.map(|place| *place as usize)
    }

    #[inline]
    fn named(&self, class: Handle) -> Option<usize> {
        if class.major == self.handle.major { self.place(class.minor) } else { None }
    }

    #[inline]
    fn classify(&mut self, pkt: &mut Packet, now: Instant) -> Goes {
        let class = Handle::from_priority(pkt.priority);
        if class == self.handle {
            return Goes::Direct;
        }
        let mut at = self.named(class);
        // The number of steps is bounded, because filters may form a circle; packets that meet such
        // a circle go to the default class.
        for _ in 0..LEVELS {
            let filters = match at {
                Some(place) if self.classes[place].is_leaf() => return Goes::To(place),
                Some(place) => &mut self.classes[place].filters,
                None => &mut self.filters,
            };
            match filters.classify(pkt, now) {
                Decision::Class(class) if class == self.handle && self.place(0).is_none() => {
                    return Goes::Direct;
                }
                Decision::Class(class) => match self.named(class) {
                    Some(place) => at = Some(place),
                    None => break,
                },
                Decision::Drop => return Goes::Nowhere,
                Decision::Unknown => break,
            }
        }
        match self.place(self.default) {
            Some(place) if self.classes[place].is_leaf() => Goes::To(place),
            _ => Goes::Direct,
        }
    }

    fn enqueue_direct(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if self.direct.len() >= self.direct_limit {
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        self.direct_packets += 1;
        self.held.add(&pkt);
        self.direct.push_back(pkt);
        Verdict::Queued
    }
}

impl Qdisc for Htb {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let place = match self.classify(&mut pkt, cx.now) {
            Goes::To(place) => place,
            Goes::Direct => return self.enqueue_direct(pkt, cx),
            Goes::Nowhere => {
                cx.drop(pkt, DropReason::Filter);
                return Verdict::Dropped;
            }
        };
        let class = &mut self.classes[place];
        let Below::Leaf(child) = &mut class.below else {
            cx.drop(pkt, DropReason::Unclassified);
            return Verdict::Dropped;
        };
        let verdict = child.enqueue(pkt, cx, &mut self.held);
        class.stats.drops += u64::from(verdict != Verdict::Queued);
        if child.held().packets > 0 {
            self.activate(place);
        }
        verdict
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if !self.orphans.is_empty() {
            self.purge_orphans(cx);
        }
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        if let Some(pkt) = self.direct.pop_front() {
            self.held.sub(&pkt);
            return Dequeue::Ready(pkt);
        }
        if self.held.packets == 0 {
            return Dequeue::Empty;
        }
        let now = cx.now;
        let mut next = now.after(LOOK_NS);
        for level in 0..LEVELS {
            if self.next_event_ns[level] <= now.0 {
                self.next_event_ns[level] = u64::MAX;
                self.next_event_ns[level] = self.run_events(level, now);
            }
            next = next.min(Instant(self.next_event_ns[level]));
            for priority in each_bit(self.row_mask[level]) {
                match self.serve(level, priority, cx) {
                    Ok(pkt) => return Dequeue::Ready(pkt),
                    Err(then) => next = next.min(then),
                }
            }
        }
        if self.held.packets == 0 { Dequeue::Empty } else { Dequeue::NotBefore(next) }
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
        self.purge_orphans(cx);
        for class in &mut self.classes {
            match &mut class.below {
                Below::Leaf(child) => child.reset(cx, &mut self.held),
                below @ Below::Inner(_) => *below = Below::inner(),
            }
            class.active = 0;
            class.mode = Mode::CanSend;
            class.waits = 0;
        }
        for pkt in std::mem::take(&mut self.direct) {
            self.held.sub(&pkt);
            cx.drop(pkt, DropReason::Purged);
        }
        cx.purge_one(&mut self.peeked);
        self.rows = array::from_fn(|_| array::from_fn(|_| ActiveClasses::default()));
        self.row_mask = [0; LEVELS];
        self.waiting.iter_mut().for_each(Waiting::clear);
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        match (minor, self.place(minor)) {
            (0, _) => Some(&mut self.filters),
            (_, place) => place.map(|place| &mut self.classes[place].filters),
        }
    }

    fn overlimits(&self) -> u64 {
        self.overlimits
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("direct_packets_stat", self.direct_packets);
        out("overlimits", self.overlimits);
    }
}
