//! The root of a tree.

use onramp_queue::Packet;

use crate::meter::Meter;
use crate::qdisc::{Backlog, Cx, Dequeue, Qdisc, Verdict};

/// The root qdisc of a tree, and what passed it: for it, what [`Child`](crate::Child) is for the
/// others.
#[derive(Debug)]
pub struct Trunk {
    qdisc: Box<dyn Qdisc>,
    meter: Meter,
    /// Packets that were given back to be offered to the device again.
    requeues: u64,
}

impl Trunk {
    pub(crate) fn new(qdisc: Box<dyn Qdisc>) -> Self {
        Self { qdisc, meter: Meter::roomy(), requeues: 0 }
    }

    /// The qdisc, only to look at.
    #[inline]
    pub(crate) fn qdisc(&self) -> &dyn Qdisc {
        &*self.qdisc
    }

    /// The qdisc itself; what goes in or out is not counted.
    pub(crate) fn qdisc_mut(&mut self) -> &mut dyn Qdisc {
        &mut *self.qdisc
    }

    /// What it holds.
    #[inline]
    pub(crate) fn backlog(&self) -> Backlog {
        self.qdisc.backlog()
    }

    /// [`Qdisc::enqueue`], without a look at what it drops: that of the caller counts for many.
    #[inline]
    pub(crate) fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.qdisc.enqueue(pkt, cx)
    }

    /// [`Qdisc::dequeue`]; counts what leaves. As to drops, see [`enqueue`](Self::enqueue).
    #[inline]
    pub(crate) fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let answer = self.qdisc.dequeue(cx);
        if let Dequeue::Ready(pkt) = &answer {
            self.meter.count(pkt, cx);
        }
        answer
    }

    /// Counts what was dropped since there were `before` packets in `cx.drops`.
    #[inline]
    pub(crate) fn look(&mut self, before: u32, cx: &Cx<'_>) {
        self.meter.look(before, cx);
    }

    /// Counts a packet that passed the qdisc by, as Linux does.
    #[inline]
    pub(crate) fn passed(&mut self, pkt: &Packet, cx: &Cx<'_>) {
        self.meter.count(pkt, cx);
    }

    /// Counts packets that the device did not take.
    #[inline]
    pub(crate) fn count_requeues(&mut self, packets: u32) {
        self.requeues += u64::from(packets);
    }

    /// Puts `qdisc` in the place of the one there is, which has nothing left; counts anew.
    pub(crate) fn put(&mut self, qdisc: Box<dyn Qdisc>) -> Box<dyn Qdisc> {
        std::mem::replace(self, Self::new(qdisc)).qdisc
    }

    /// What passed, and how often the device took nothing.
    pub(crate) fn metered(&mut self) -> (&mut dyn Qdisc, &Meter, u64) {
        (&mut *self.qdisc, &self.meter, self.requeues)
    }
}
