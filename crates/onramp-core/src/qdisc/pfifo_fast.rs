//! Three bands of packets (`pfifo_fast`), served strictly in order; within each band, packets leave
//! in the order in which they came.
//!
//! Source: `tc-pfifo_fast(8)`, `tc-prio(8)`; behaviour of Linux 7.2 `net/sched/sch_generic.c`.
//! Differs: the length of a band can also be given as an option; Linux always takes it from the
//! device. As in Linux, a band is a ring whose places become free again 16 at a time (one by one if
//! the ring has fewer than 32 places), so that a band can be full although it holds up to 15
//! packets fewer than its length.
//! Invariant: a packet leaves only when all bands before its own are empty; a band never holds more
//! packets than its length.

use onramp_queue::{DropReason, Packet, PacketList};

use super::prio::show_bands;
use super::{Backlog, Cx, Dequeue, Kind, PRIOMAP, Peek, Qdisc, Quirks, Verdict, band_of};
use crate::base::Fault;
use crate::base::params::{Default, Param, Site, Unit, Values};
use crate::sched::Shown;

pub(super) const PFIFO_FAST: Kind = Kind {
    id: "pfifo_fast",
    about: "three bands by priority, in strict order",
    params: &[Param::new(
        "txqueuelen",
        Unit::Packets,
        Default::QueueLen,
        "packets held at most in each band",
    )
    .within(1, u32::MAX as u64)],
    unknown: Fault::Argument,
    build: |values| Box::new(PfifoFast::new(values.number32("txqueuelen"))),
    shown: Shown { options: |_, _, out| show_bands(3, &PRIOMAP, out), ..Shown::TABLE },
    quirks: Quirks { follows_txqueuelen: true, ..Quirks::NONE },
    ..Kind::LEAF
};

#[derive(Debug)]
struct PfifoFast {
    bands: [Ring; 3],
    /// A packet that bypassed the bands and was then refused by the device.
    passing: Option<Packet>,
    /// Whether the last dequeue found nothing and no packet has come since. Only then may packets
    /// bypass the bands.
    is_idle: bool,
}

impl PfifoFast {
    fn new(size: u32) -> Self {
        let ring = || Ring { size, list: PacketList::new(), head: 0, used: 0 };
        Self { bands: [ring(), ring(), ring()], passing: None, is_idle: true }
    }
}

/// Returns the qdisc that a transmit queue has until a user attaches another one
/// (`default_qdisc_ops` in Linux).
pub(crate) fn default_pfifo_fast(site: Site) -> Box<dyn Qdisc> {
    Box::new(PfifoFast::new(site.queue_len()))
}

/// A band: a ring of `size` places, whose packets are in `list`.
#[derive(Debug)]
struct Ring {
    size: u32,
    list: PacketList,
    /// The place of the band's oldest packet in the ring.
    head: u32,
    /// Number of places in the ring from which the packet has left, but which are not free yet.
    used: u32,
}

impl Ring {
    #[inline]
    fn is_full(&self) -> bool {
        self.list.len() + self.used >= self.size
    }

    #[inline]
    fn pop(&mut self) -> Option<Packet> {
        let pkt = self.list.pop_front()?;
        let batch = if self.size < 32 { 1 } else { 16 };
        self.head += 1;
        self.used += 1;
        if self.used >= batch || self.head >= self.size {
            self.used = 0;
        }
        if self.head >= self.size {
            self.head = 0;
        }
        Some(pkt)
    }
}

impl Qdisc for PfifoFast {
    #[inline]
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let band = &mut self.bands[band_of(&PRIOMAP, pkt.priority)];
        if band.is_full() {
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        band.list.push_back(pkt);
        self.is_idle = false;
        Verdict::Queued
    }

    #[inline]
    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
        let next = self.passing.take().or_else(|| self.bands.iter_mut().find_map(Ring::pop));
        self.is_idle = next.is_none();
        next.map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        let first = || self.bands.iter().find_map(|band| band.list.front());
        Peek::at(self.passing.as_ref().or_else(first))
    }

    fn backlog(&self) -> Backlog {
        let lists = self.bands.iter().map(|band| &band.list);
        let mut held = Backlog::default();
        self.passing.iter().for_each(|pkt| held.add(pkt));
        lists.fold(held, |sum, list| Backlog {
            packets: sum.packets + list.len(),
            bytes: sum.bytes + list.bytes(),
        })
    }

    #[inline]
    fn accepts(&self, pkt: &Packet) -> bool {
        !self.bands[band_of(&PRIOMAP, pkt.priority)].is_full()
    }

    fn can_bypass(&self) -> bool {
        self.is_idle
    }

    /// Keeps a packet that the device refused. That packet leaves before more urgent packets, and
    /// takes no place in a ring.
    fn keep_passing(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        (self.passing, self.is_idle) = (Some(pkt), false);
        Verdict::Queued
    }

    /// Sets a new length. As with a device's `txqueuelen` in Linux, packets for which a smaller
    /// ring has no room are dropped.
    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        let size = values.number32("txqueuelen");
        for band in &mut self.bands {
            (band.size, band.head, band.used) = (size, 0, 0);
            let mut kept = PacketList::new();
            while let Some(pkt) = band.list.pop_front() {
                if kept.len() < size {
                    kept.push_back(pkt);
                } else {
                    cx.drop(pkt, DropReason::Overlimit);
                }
            }
            band.list = kept;
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        for band in &mut self.bands {
            cx.purge(&mut band.list);
            (band.head, band.used) = (0, 0);
        }
        if let Some(pkt) = self.passing.take() {
            cx.drop(pkt, DropReason::Purged);
        }
    }
}
