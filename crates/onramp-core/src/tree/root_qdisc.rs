//! The root of a tree.

use onramp_queue::{Packet, PacketList};

use crate::base::Instant;
use crate::qdisc::default_pfifo;
use crate::sched::qdisc_counters::QdiscCounters;
use crate::sched::{Backlog, Cx, Dequeue, Qdisc, Verdict};

/// Times in a row that a qdisc may put its next packet off, with the time it named come, while its
/// packets move over. One that does so oftener never lets go of it.
const WAITS: u32 = 64;

/// The root qdisc of a tree, and what passed it: for it, what [`Child`](crate::Child) is for the
/// others.
#[derive(Debug)]
pub struct RootQdisc {
    qdisc: Box<dyn Qdisc>,
    counters: QdiscCounters,
    /// Packets that were given back to be offered to the device again.
    requeues: u64,
    /// Whether each qdisc measures how long packets take from push to dequeue.
    pub(crate) measures: bool,
    /// Whether the memory of packets that come is charged to their senders.
    pub(crate) charged: bool,
    /// To take the qdisc's place.
    next: Option<Box<dyn Qdisc>>,
}

impl RootQdisc {
    pub(crate) fn new(qdisc: Box<dyn Qdisc>) -> Self {
        let counters = QdiscCounters::roomy();
        Self { qdisc, counters, requeues: 0, measures: false, charged: false, next: None }
    }

    /// The same; the memory of packets that come is charged to their senders.
    pub(crate) fn charged(self, charged: bool) -> Self {
        Self { charged, ..self }
    }

    /// What a call to its qdiscs gets from outside.
    #[inline]
    pub(crate) fn call<'a>(&self, now: Instant, drops: &'a mut PacketList) -> Cx<'a> {
        Cx::new(now, drops).of_tree(self.measures, self.charged)
    }

    /// From now on, each qdisc measures how long packets take from push to dequeue, or no longer.
    pub fn measure(&mut self, measures: bool) {
        self.measures = measures;
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
            self.counters.count(pkt, cx);
        }
        answer
    }

    /// Counts what was dropped since there were `before` packets in `cx.drops`.
    #[inline]
    pub(crate) fn count_dropped(&mut self, before: u32, cx: &Cx<'_>) {
        self.counters.count_dropped(before, cx);
    }

    /// Counts a packet that passed the qdisc by, as Linux does.
    #[inline]
    pub(crate) fn passed(&mut self, pkt: &Packet, cx: &Cx<'_>) {
        self.counters.count(pkt, cx);
    }

    /// Counts packets that the device did not take.
    #[inline]
    pub(crate) fn count_requeues(&mut self, packets: u32) {
        self.requeues += u64::from(packets);
    }

    /// Puts `qdisc` in the place of the one there is, which has nothing left; counts anew.
    pub(crate) fn put(&mut self, qdisc: Box<dyn Qdisc>) -> Box<dyn Qdisc> {
        let next = Self { measures: self.measures, ..Self::new(qdisc) }.charged(self.charged);
        std::mem::replace(self, next).qdisc
    }

    /// Puts `qdisc` in the place of the one there is, and moves its packets over, in the order in
    /// which it would have sent them.
    ///
    /// They come out at the times they would have come out at. So the old qdisc keeps its own
    /// order, and its clock only runs ahead; what it never lets go of is dropped. Both stay here
    /// until that is done: if the old one panics, it is not dropped by the unwinding, where its
    /// drop might panic again.
    pub fn succeed(&mut self, qdisc: Box<dyn Qdisc>, cx: &mut Cx<'_>) {
        self.next = Some(qdisc);
        let mut moved = PacketList::new();
        let mut ahead = Cx::new(cx.now, cx.drops);
        let mut waits = 0;
        loop {
            match self.qdisc.dequeue(&mut ahead) {
                Dequeue::Ready(pkt) => {
                    moved.push_back(pkt);
                    waits = 0;
                }
                Dequeue::NotBefore(then) if then > ahead.now && waits < WAITS => {
                    // Some round down: who comes exactly then is put off again, for ever.
                    ahead.now = then.after(u64::from(waits > 0));
                    waits += 1;
                }
                Dequeue::NotBefore(_) | Dequeue::Empty => break,
            }
        }
        self.qdisc.reset(&mut ahead);
        let made = ahead.made;
        if let Some(next) = self.next.take() {
            drop(self.put(next));
        }
        let before = cx.drops.len();
        for pkt in moved {
            let _ = self.qdisc.enqueue(pkt, cx);
        }
        cx.made += made;
        self.counters.count_dropped(before, cx);
    }

    /// The qdiscs, to be dropped: they may be broken, and panic.
    pub(crate) fn bury(&mut self) -> [Option<Box<dyn Qdisc>>; 2] {
        let next = self.next.take();
        [Some(self.put(default_pfifo())), next]
    }

    /// What passed, and how often the device took nothing.
    pub(crate) fn with_counters(&mut self) -> (&mut dyn Qdisc, &QdiscCounters, u64) {
        (&mut *self.qdisc, &self.counters, self.requeues)
    }
}
