//! Bands with a qdisc each, served in turn, a packet each: one for each queue of a card.
//!
//! A packet's band is that of the class the filters name, else what its flow's key says.
//!
//! Source: Linux `Documentation/networking/multiqueue.rst`; behaviour of Linux 7.2
//! `net/sched/sch_multiq.c`.
//! Differs: in Linux the bands are the card's transmit queues, a packet's band is the queue that
//! the stack or `skbedit queue_mapping` chose, and a band whose queue is full is passed over. A
//! port has one queue: so `bands` is an option, the filters name classes (`classid 1:3` is queue
//! 2), and the rest is spread by flows, as the stack does, with a hash of our own.
//! Invariant: between two packets of a band that always holds some, every other band sends one at
//! most.

use onramp_queue::{DropReason, Packet};

use super::{Backlog, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Verdict};
use crate::filter::{Decision, Filters};
use crate::params::{Default, Param, Unit};
use crate::{Child, Classes, Handle, Instant};

pub(super) const MULTIQ: Kind = Kind {
    id: "multiq",
    about: "bands with a qdisc each, served in turn",
    params: &[Param::new("bands", Unit::Count, Default::Number(1), "bands").within(1, 4096)],
    classes: ClassKind::Fixed(|values| u16::try_from(values.number("bands")).unwrap_or(0)),
    build: |values| {
        Box::new(Multiq {
            handle: values.site.handle,
            bands: (0..values.number("bands")).map(|_| Child::pfifo()).collect(),
            current: 0,
            held: Backlog::default(),
            filters: Filters::default(),
        })
    },
    ..Kind::LEAF
};

#[derive(Debug)]
struct Multiq {
    handle: Handle,
    bands: Vec<Child>,
    /// The band that sent last.
    current: usize,
    held: Backlog,
    filters: Filters,
}

impl Multiq {
    /// The band of a packet; none: an action said that it dies.
    #[inline]
    fn band(&mut self, pkt: &mut Packet, now: Instant) -> Option<usize> {
        let band = match self.filters.classify(pkt, now) {
            Decision::Drop => return None,
            Decision::Class(class) if class.major == self.handle.major => {
                usize::from(class.minor).wrapping_sub(1)
            }
            Decision::Class(_) => 0,
            Decision::Unknown => {
                // The upper half of the product is evenly spread (Fibonacci hashing).
                let hash = pkt.flow.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
                usize::try_from((hash * self.bands.len() as u64) >> 32).unwrap_or(0)
            }
        };
        Some(if band < self.bands.len() { band } else { 0 })
    }

    /// The bands in the order they are asked.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let next = self.current + 1;
        (next..self.bands.len()).chain(0..next)
    }
}

impl Qdisc for Multiq {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let Some(band) = self.band(&mut pkt, cx.now) else {
            cx.drop(pkt, DropReason::Filter);
            return Verdict::Dropped;
        };
        self.bands[band].enqueue(pkt, cx, &mut self.held)
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let mut wait = Dequeue::Empty;
        for band in self.order() {
            if self.bands[band].is_idle() {
                continue;
            }
            match self.bands[band].dequeue(cx, &mut self.held) {
                Dequeue::Ready(pkt) => {
                    self.current = band;
                    return Dequeue::Ready(pkt);
                }
                later => wait = wait.or_sooner(later),
            }
        }
        wait
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        let mut wait = Peek::Empty;
        for band in self.order() {
            if self.bands[band].is_idle() {
                continue;
            }
            match self.bands[band].peek(cx, &mut self.held) {
                Peek::Ready(len) => return Peek::Ready(len),
                later => wait = wait.or_sooner(later),
            }
        }
        wait
    }

    fn backlog(&self) -> Backlog {
        self.held
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        for band in &mut self.bands {
            band.reset(cx, &mut self.held);
        }
        self.current = 0;
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
        self.bands.get_mut(usize::from(minor).wrapping_sub(1))
    }

    fn recount(&mut self, minor: u16) {
        if let Some(band) = self.bands.get_mut(usize::from(minor).wrapping_sub(1)) {
            band.recount(&mut self.held);
        }
    }
}
