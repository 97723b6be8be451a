//! Three bands, served strictly in order; each first in, first out.
//!
//! Source: `tc-pfifo_fast(8)`, `tc-prio(8)`; behaviour of Linux 7.2 `net/sched/sch_generic.c`.
//! Differs: the length of a band is an option here, where Linux takes it from the device.
//! Invariant: a packet leaves only when all bands before its own are empty; a packet is dropped
//! exactly when its band is full.

use onramp_queue::{DropReason, Packet, PacketList};

use super::{Backlog, Cx, Dequeue, Kind, PRIOMAP, Qdisc, Verdict, band_of};
use crate::params::{Default, Param, Unit};

pub(super) const PFIFO_FAST: Kind = Kind {
    id: "pfifo_fast",
    about: "three bands by priority, the first one first",
    params: &[Param {
        key: "txqueuelen",
        unit: Unit::Packets,
        default: Default::Number(1000),
        min: 1,
        max: u32::MAX as u64,
        help: "packets held at most in each band",
    }],
    build: |values| {
        let bands = [const { PacketList::new() }; 3];
        Box::new(PfifoFast { band_limit: values.number32("txqueuelen"), bands })
    },
};

#[derive(Debug)]
struct PfifoFast {
    band_limit: u32,
    bands: [PacketList; 3],
}

impl Qdisc for PfifoFast {
    #[inline]
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let band = &mut self.bands[band_of(&PRIOMAP, pkt.priority)];
        if band.len() >= self.band_limit {
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        band.push_back(pkt);
        Verdict::Queued
    }

    #[inline]
    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
        self.bands.iter_mut().find_map(PacketList::pop_front).map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn backlog(&self) -> Backlog {
        self.bands.iter().map(Backlog::of).fold(Backlog::default(), |sum, band| Backlog {
            packets: sum.packets + band.packets,
            bytes: sum.bytes + band.bytes,
        })
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        for band in &mut self.bands {
            cx.purge(band);
        }
    }
}
