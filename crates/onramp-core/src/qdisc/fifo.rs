//! First in, first out, limited to a number of packets (`pfifo`) or of bytes (`bfifo`). A full fifo
//! drops the packet that arrives; a full `pfifo_head_drop` drops its oldest packet instead.
//!
//! Source: `tc-pfifo(8)`, `tc-bfifo(8)`; behaviour of Linux 7.2 `net/sched/sch_fifo.c`.
//! Differs: nothing known.
//! Invariant: packets leave in the order they came, and a packet is dropped exactly when it would
//! exceed the limit; `pfifo_head_drop` then drops the oldest packet instead.

use onramp_queue::{DropReason, Packet, PacketList};

use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Quirks, Verdict};
use crate::base::Extra;
use crate::base::params::{Default, Param, Site, Unit, Values};
use crate::base::show::Out;
use crate::base::units::Size;
use crate::sched::{Child, Shown};

const LIMIT: Param =
    Param::new("limit", Unit::ScaledPackets, Default::QueueLen, "packets held at most");

const SHOWN: Shown = Shown { options: show, ..Shown::TABLE };

/// Shows the limit. As in `tc`, no space follows the limit of a fifo.
fn show(values: &Values<'_>, _: &Extra, out: &mut Out) {
    let limit = values.number("limit");
    match values.params[0].unit {
        Unit::Size => out.uint("limit", limit, format_args!("limit {}", Size(limit))),
        _ => out.uint("limit", limit, format_args!("limit {limit}p")),
    }
}

pub(super) const PFIFO: Kind = Kind {
    id: "pfifo",
    about: "first in, first out, limited in packets",
    params: &[LIMIT],
    build: |values| Box::new(Fifo::<false>::of(values)),
    shown: SHOWN,
    quirks: Quirks { fifo: true, ..Quirks::NONE },
    ..Kind::LEAF
};

pub(super) const BFIFO: Kind = Kind {
    id: "bfifo",
    about: "first in, first out, limited in bytes",
    params: &[Param::new("limit", Unit::Size, Default::QueueBytes, "bytes held at most")],
    build: |values| Box::new(Fifo::<true>::of(values)),
    shown: SHOWN,
    quirks: Quirks { fifo: true, ..Quirks::NONE },
    ..Kind::LEAF
};

pub(super) const PFIFO_HEAD_DROP: Kind = Kind {
    id: "pfifo_head_drop",
    about: "first in, first out, limited in packets; when full, drops the oldest packet",
    params: &[LIMIT],
    build: |values| Box::new(HeadDrop { fifo: Fifo::of(values), passing: None }),
    shown: SHOWN,
    quirks: Quirks { fifo: true, ..Quirks::NONE },
    ..Kind::LEAF
};

/// A fifo. Its limit is in bytes if `BYTES` is true, and in packets if it is false.
#[derive(Debug)]
struct Fifo<const BYTES: bool> {
    limit: u64,
    /// Size of the largest packet of the device, in bytes.
    mtu: u32,
    list: PacketList,
}

impl<const BYTES: bool> Fifo<BYTES> {
    const fn new(limit: u64, mtu: u32) -> Self {
        Self { limit, mtu, list: PacketList::new() }
    }

    fn of(values: &Values<'_>) -> Self {
        Self::new(values.number("limit"), values.site.mtu)
    }
}

#[derive(Debug)]
struct HeadDrop {
    fifo: Fifo<false>,
    /// A packet that bypassed the queue and was then refused by the device. The next dequeue
    /// returns this packet, and `pfifo_head_drop` never drops it to make room.
    passing: Option<Packet>,
}

impl<const BYTES: bool> Qdisc for Fifo<BYTES> {
    #[inline]
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if !self.accepts(&pkt) {
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        self.list.push_back(pkt);
        Verdict::Queued
    }

    #[inline]
    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
        self.list.pop_front().map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        Peek::at(self.list.front())
    }

    fn backlog(&self) -> Backlog {
        Backlog::of(&self.list)
    }

    #[inline]
    fn accepts(&self, pkt: &Packet) -> bool {
        if BYTES {
            self.list.bytes() + u64::from(pkt.len) <= self.limit
        } else {
            u64::from(self.list.len()) < self.limit
        }
    }

    /// Sets the new limit and, like Linux, drops nothing: packets beyond a smaller limit leave when
    /// their turn comes.
    fn change(&mut self, values: &Values<'_>, _cx: &mut Cx<'_>) -> bool {
        self.limit = values.number("limit");
        true
    }

    fn limit_fifo(&mut self, limit: u64) {
        self.limit = limit;
    }

    fn can_bypass(&self) -> bool {
        let least = if BYTES { u64::from(self.mtu) } else { 1 };
        self.limit >= least
    }

    fn prefetch(&self) {
        self.list.prefetch_front();
        self.list.prefetch_back();
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        cx.purge(&mut self.list);
    }
}

impl Qdisc for HeadDrop {
    #[inline]
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if !self.accepts(&pkt) {
            // With a limit of zero, the list is empty: there is no oldest packet that could make
            // room, so drop the new packet.
            let Some(oldest) = self.fifo.list.pop_front() else {
                return self.fifo.enqueue(pkt, cx);
            };
            cx.drop(oldest, DropReason::Overlimit);
            self.fifo.list.push_back(pkt);
            return Verdict::Congested;
        }
        self.fifo.list.push_back(pkt);
        Verdict::Queued
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        self.passing.take().map_or_else(|| self.fifo.dequeue(cx), Dequeue::Ready)
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        match &self.passing {
            Some(pkt) => Peek::Ready(pkt.len),
            None => self.fifo.peek(cx),
        }
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.fifo.backlog();
        self.passing.iter().for_each(|pkt| held.add(pkt));
        held
    }

    #[inline]
    fn accepts(&self, _pkt: &Packet) -> bool {
        u64::from(self.fifo.list.len() + u32::from(self.passing.is_some())) < self.fifo.limit
    }

    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        self.fifo.change(values, cx)
    }

    fn limit_fifo(&mut self, limit: u64) {
        self.fifo.limit_fifo(limit);
    }

    fn can_bypass(&self) -> bool {
        self.fifo.can_bypass()
    }

    fn keep_passing(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.passing = Some(pkt);
        Verdict::Queued
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.fifo.reset(cx);
        if let Some(pkt) = self.passing.take() {
            cx.drop(pkt, DropReason::Purged);
        }
    }
}

/// Returns the fifo that serves a class until a user attaches another qdisc to the class
/// (`qdisc_create_dflt` in Linux). `site` is that of the qdisc which has the class.
pub(crate) fn default_pfifo(site: Site) -> Box<dyn Qdisc> {
    Box::new(Fifo::<false>::new(site.queue_len().into(), site.mtu))
}

/// Returns the default `pfifo` of a class, wrapped as a child qdisc.
pub(crate) fn pfifo_child(site: Site) -> Child {
    Child::new(default_pfifo(site))
}

/// Returns a fifo that holds at most `limit` bytes (`fifo_create_dflt` in Linux).
pub(super) fn bfifo(limit: u64, mtu: u32) -> Box<dyn Qdisc> {
    Box::new(Fifo::<true>::new(limit, mtu))
}
