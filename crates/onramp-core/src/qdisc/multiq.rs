//! Bands, each with a qdisc, that take turns and send one packet per turn: one band for each queue
//! of a network card.
//!
//! A packet goes to the band of the class that the filters name, else to a band that is selected by
//! the key of the packet's flow.
//!
//! Source: Linux `Documentation/networking/multiqueue.rst`; behaviour of Linux 7.2
//! `net/sched/sch_multiq.c`.
//! Differs: in Linux the bands are the card's transmit queues, a packet's band is the queue that
//! the stack or `skbedit queue_mapping` chose, and a band whose queue is full is passed over. A
//! port has one queue: so `bands` is an option, the filters name classes (`classid 1:3` is queue
//! 2), and other packets are spread over the bands by flow, as the stack does, with Onramp's own
//! hash function.
//! Invariant: between two packets of a band that always holds packets, each of the other bands
//! sends at most one packet.

use onramp_queue::{DropReason, Packet};

use super::{Backlog, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict};
use crate::base::params::{Default, Param, Unit, Values};
use crate::base::{Handle, Instant};
use crate::filter::{Decision, Filters};
use crate::qdisc::pfifo_child;
use crate::sched::{Child, Classes, Shown};

pub(super) const MULTIQ: Kind = Kind {
    id: "multiq",
    about: "bands with a qdisc each, served in turn",
    params: &[Param::new("bands", Unit::Count, Default::Number(1), "bands").within(1, 4096)],
    classes: ClassKind::Fixed(|values| u16::try_from(values.number("bands")).expect("16 bits")),
    build: |values| {
        Box::new(Multiq {
            handle: values.site.handle,
            bands: TurnBands::new(
                (0..values.number("bands")).map(|_| pfifo_child(values.site)).collect(),
            ),
            filters: Filters::default(),
        })
    },
    shown: Shown {
        options: |values, _, out| {
            let bands = values.number("bands");
            out.uint("bands", bands, format_args!("bands {bands}"));
            out.uint("max_bands", bands, format_args!("/{bands} "));
        },
        class: |_, _, _| {},
        ..Shown::TABLE
    },
    quirks: Quirks { bands_of_queues: Some("bands"), ..Quirks::NONE },
    ..Kind::LEAF
};

/// Returns which of `places` places the flow `flow` goes to. (This is Fibonacci hashing: the upper
/// half of the product is evenly spread.)
#[inline]
pub(super) fn spread(flow: u64, places: usize) -> usize {
    let hash = flow.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    usize::try_from((hash * places as u64) >> 32).unwrap_or(0)
}

/// Changes the number of children to `count`. Children that are removed drop the packets that they
/// hold.
pub(super) fn resize(
    children: &mut Vec<Child>,
    count: usize,
    new: impl FnMut() -> Child,
    held: &mut Backlog,
    cx: &mut Cx<'_>,
) {
    for child in children.iter_mut().skip(count) {
        child.reset(cx, held);
    }
    children.resize_with(count, new);
}

/// Children that take turns and send one packet per turn.
#[derive(Debug)]
pub(super) struct TurnBands {
    pub(super) children: Vec<Child>,
    /// The place of the child that sent last.
    current: usize,
    pub(super) held: Backlog,
}

impl TurnBands {
    pub(super) fn new(children: Vec<Child>) -> Self {
        Self { children, current: 0, held: Backlog::default() }
    }

    #[inline]
    pub(super) fn enqueue(&mut self, place: usize, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.children[place].enqueue(pkt, cx, &mut self.held)
    }

    /// Returns the places of the children in the order in which they are asked for a packet: first
    /// the one after the child that sent last.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let next = self.current + 1;
        (next..self.children.len()).chain(0..next)
    }

    #[inline]
    pub(super) fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let mut wait = Dequeue::Empty;
        for place in self.order() {
            if self.children[place].is_idle() {
                continue;
            }
            match self.children[place].dequeue(cx, &mut self.held) {
                Dequeue::Ready(pkt) => {
                    self.current = place;
                    return Dequeue::Ready(pkt);
                }
                later => wait = wait.or_sooner(later),
            }
        }
        wait
    }

    pub(super) fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        let mut wait = Peek::Empty;
        for place in self.order() {
            if self.children[place].is_idle() {
                continue;
            }
            match self.children[place].peek(cx, &mut self.held) {
                Peek::Ready(len) => return Peek::Ready(len),
                later => wait = wait.or_sooner(later),
            }
        }
        wait
    }

    pub(super) fn reset(&mut self, cx: &mut Cx<'_>) {
        for child in &mut self.children {
            child.reset(cx, &mut self.held);
        }
        self.current = 0;
    }

    /// Changes the number of children, as the function [`resize`] does.
    pub(super) fn resize(&mut self, count: usize, new: impl FnMut() -> Child, cx: &mut Cx<'_>) {
        resize(&mut self.children, count, new, &mut self.held, cx);
        self.current = self.current.min(count.saturating_sub(1));
    }

    pub(super) fn child(&mut self, minor: u16) -> Option<&mut Child> {
        self.children.get_mut(usize::from(minor).wrapping_sub(1))
    }

    pub(super) fn graft(&mut self, minor: u16, qdisc: Box<dyn Qdisc>, cx: &mut Cx<'_>) {
        if let Some(child) = self.children.get_mut(usize::from(minor).wrapping_sub(1)) {
            child.reset(cx, &mut self.held);
            *child = Child::new(qdisc);
            self.held.packets += child.held().packets;
            self.held.bytes += child.held().bytes;
        }
    }

    pub(super) fn recount(&mut self, minor: u16) {
        if let Some(child) = self.children.get_mut(usize::from(minor).wrapping_sub(1)) {
            child.recount(&mut self.held);
        }
    }
}

#[derive(Debug)]
struct Multiq {
    handle: Handle,
    bands: TurnBands,
    filters: Filters,
}

impl Multiq {
    /// Returns the band of a packet, or `None` if a filter's action drops the packet.
    #[inline]
    fn band(&mut self, pkt: &mut Packet, now: Instant) -> Option<usize> {
        let bands = self.bands.children.len();
        let band = match self.filters.classify(pkt, now) {
            Decision::Drop => return None,
            Decision::Class(class) if class.major == self.handle.major => {
                usize::from(class.minor).wrapping_sub(1)
            }
            Decision::Class(_) => 0,
            Decision::Unknown => spread(pkt.flow, bands),
        };
        Some(if band < bands { band } else { 0 })
    }
}

impl Qdisc for Multiq {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let Some(band) = self.band(&mut pkt, cx.now) else {
            cx.drop(pkt, DropReason::Filter);
            return Verdict::Dropped;
        };
        self.bands.enqueue(band, pkt, cx)
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        self.bands.dequeue(cx)
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        self.bands.peek(cx)
    }

    fn backlog(&self) -> Backlog {
        self.bands.held
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.bands.reset(cx);
    }

    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        let new = || pfifo_child(values.site);
        self.bands.resize(values.number32("bands") as usize, new, cx);
        true
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        (minor == 0).then_some(&mut self.filters)
    }
}

impl Classes for Multiq {
    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        self.bands.child(minor)
    }

    fn recount(&mut self, minor: u16) {
        self.bands.recount(minor);
    }
}
