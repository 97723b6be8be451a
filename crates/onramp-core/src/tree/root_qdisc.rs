//! The root qdisc of a tree, and the counters of the packets that pass it.

use onramp_queue::{Packet, PacketList};

#[cfg(feature = "tc")]
use super::lease::Leases;
use crate::base::Instant;
use crate::base::params::Site;
use crate::qdisc::default_pfifo;
#[cfg(feature = "tc")]
use crate::sched::front::Front;
use crate::sched::qdisc_counters::QdiscCounters;
use crate::sched::{Backlog, Cx, Dequeue, Qdisc, Verdict};

/// When packets move from an old root qdisc to a new one: how often in a row the old qdisc may
/// answer "not yet" and name a later time. After that, the packets that are left in the old qdisc
/// are dropped.
const WAITS: u32 = 64;

/// The root qdisc of a tree, with its counters. For every other qdisc, a [`Child`](crate::Child)
/// has the counters.
#[derive(Debug)]
pub struct RootQdisc {
    qdisc: Box<dyn Qdisc>,
    /// The filters of a `clsact` that each packet meets before it enters the root.
    #[cfg(feature = "tc")]
    front: Option<Box<Front>>,
    #[cfg(feature = "tc")]
    leases: Leases,
    counters: QdiscCounters,
    /// Number of packets that the device did not take and that were kept to be offered again.
    requeues: u64,
    /// Whether each qdisc of the tree measures the sojourn times of packets, from push to dequeue.
    pub(crate) measures: bool,
    /// Whether the memory of packets is charged to their senders, which have limits of their own.
    pub(crate) charged: bool,
    /// The qdisc that is about to replace `qdisc`, while the packets of `qdisc` move to it.
    next: Option<Box<dyn Qdisc>>,
}

impl RootQdisc {
    pub(crate) fn new(qdisc: Box<dyn Qdisc>) -> Self {
        let counters = QdiscCounters::roomy();
        Self {
            qdisc,
            #[cfg(feature = "tc")]
            front: None,
            #[cfg(feature = "tc")]
            leases: Leases::NONE,
            counters,
            requeues: 0,
            measures: false,
            charged: false,
            next: None,
        }
    }

    /// Returns the root, and sets whether the memory of packets is charged to their senders.
    pub(crate) fn charged(self, charged: bool) -> Self {
        Self { charged, ..self }
    }

    /// Creates the context for calling this tree's qdiscs. Dropped packets go to `drops`.
    #[inline]
    pub(crate) fn call<'a>(&self, now: Instant, drops: &'a mut PacketList) -> Cx<'a> {
        Cx::new(now, drops).of_tree(self.measures, self.charged)
    }

    /// Switches on or off whether each qdisc of the tree measures the sojourn times of packets,
    /// from push to dequeue.
    pub fn measure(&mut self, measures: bool) {
        self.measures = measures;
    }

    /// Returns the root qdisc, to read from it.
    #[inline]
    pub(crate) fn qdisc(&self) -> &dyn Qdisc {
        &*self.qdisc
    }

    /// Returns the root qdisc, to change it. Packets that enter or leave through this reference are
    /// not counted.
    pub(crate) fn qdisc_mut(&mut self) -> &mut dyn Qdisc {
        &mut *self.qdisc
    }

    /// Returns the packets and bytes that the root qdisc holds.
    #[inline]
    pub(crate) fn backlog(&self) -> Backlog {
        self.qdisc.backlog()
    }

    /// Asks the filters of a `clsact` about a packet that is to enter the root. Returns the packet
    /// if it may, and otherwise appends it to `stopped`: such a packet counts as dropped by the
    /// `clsact`, and not by the root.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        pkt: Packet,
        now: Instant,
        stopped: &mut PacketList,
    ) -> Option<Packet> {
        #[cfg(feature = "tc")]
        if let Some(front) = &mut self.front {
            return front.admit(pkt, now, stopped);
        }
        #[cfg(not(feature = "tc"))]
        let _ = (now, stopped);
        Some(pkt)
    }

    #[cfg(feature = "tc")]
    pub(super) const fn leases_mut(&mut self) -> &mut Leases {
        &mut self.leases
    }

    /// Returns a time before which no lease ends that the tree holds.
    #[inline]
    pub(crate) const fn leases_end(&self) -> Instant {
        #[cfg(feature = "tc")]
        return self.leases.first;
        #[cfg(not(feature = "tc"))]
        Instant::MAX
    }

    /// Lets go of all leases, and makes no change at their ends.
    pub(crate) fn let_leases_go(&mut self) {
        #[cfg(feature = "tc")]
        {
            self.leases = Leases::NONE;
        }
    }

    /// Makes the changes of the leases that have ended at `now`.
    pub(crate) fn end_leases(&mut self, now: Instant, cx: &mut Cx<'_>) {
        #[cfg(feature = "tc")]
        for after in self.leases.ended(now) {
            self.make(after, cx);
        }
        #[cfg(not(feature = "tc"))]
        let _ = (now, cx);
    }

    /// Returns the filters in front of the root, if a `clsact` has a place for them.
    #[cfg(feature = "tc")]
    pub(crate) fn front_mut(&mut self) -> Option<&mut Front> {
        self.front.as_deref_mut()
    }

    /// Replaces the filters in front of the root. If `front` has the same filters as are there,
    /// they stay, with their counters and the state of their actions.
    #[cfg(feature = "tc")]
    pub(crate) fn set_front(&mut self, front: Option<Box<Front>>) {
        let stays =
            self.front.as_ref().zip(front.as_ref()).is_some_and(|(old, new)| old.is_like(new));
        if !stays {
            self.front = front;
        }
    }

    /// Calls [`Qdisc::enqueue`] without counting drops. The caller counts the drops of many packets
    /// at once, with `count_dropped`.
    #[inline]
    pub(crate) fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.qdisc.enqueue(pkt, cx)
    }

    /// Calls [`Qdisc::dequeue`] and counts the packet that leaves. The caller counts drops, as for
    /// [`enqueue`](Self::enqueue).
    #[inline]
    pub(crate) fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let answer = self.qdisc.dequeue(cx);
        if let Dequeue::Ready(pkt) = &answer {
            self.counters.count(pkt, cx);
        }
        answer
    }

    /// Counts the packets that were dropped since `cx.drops` held `before` packets.
    #[inline]
    pub(crate) fn count_dropped(&mut self, before: u32, cx: &Cx<'_>) {
        self.counters.count_dropped(before, cx);
    }

    /// Counts a packet that bypassed the qdisc as a packet that left it, as Linux does.
    #[inline]
    pub(crate) fn passed(&mut self, pkt: &Packet, cx: &Cx<'_>) {
        self.counters.count(pkt, cx);
    }

    /// Whether `pkt`, whose payload lies elsewhere, would enter an empty tree at `now` and leave it
    /// at once, unchanged.
    pub(crate) fn lets_pass(&self, pkt: &Packet, now: Instant) -> bool {
        #[cfg(feature = "tc")]
        if self.front.is_some() {
            return false;
        }
        self.qdisc.backlog().packets == 0 && self.qdisc.lets_pass(pkt, now)
    }

    /// Counts a packet of `parts` datagrams that a port has passed by the qdisc.
    pub(crate) fn passed_lent(&mut self, pkt: &Packet, parts: u32, cx: &Cx<'_>) {
        self.qdisc.passed();
        self.counters.count_parts(pkt, parts, cx);
    }

    /// Counts packets that the device did not take and that were put back.
    #[inline]
    pub(crate) fn count_requeues(&mut self, packets: u32) {
        self.requeues += u64::from(packets);
    }

    /// Replaces the root qdisc by `qdisc`, sets the counters to zero, and returns the old root
    /// qdisc, which should be empty.
    pub(crate) fn put(&mut self, qdisc: Box<dyn Qdisc>) -> Box<dyn Qdisc> {
        let next = Self { measures: self.measures, ..Self::new(qdisc) }.charged(self.charged);
        #[cfg(feature = "tc")]
        let next = Self { front: self.front.take(), ..next };
        std::mem::replace(self, next).qdisc
    }

    /// Replaces the root qdisc by `qdisc` and moves the packets to it, in the order in which the
    /// old qdisc would have sent them.
    ///
    /// Packets are dequeued from the old qdisc at the times at which they would have left, so they
    /// keep the order that the old qdisc gives them. All packets move within this call; only the
    /// time that is passed to the old qdisc runs ahead of the clock. Packets that the old qdisc
    /// never releases are dropped. Both qdiscs stay in `self` until all packets have moved: if the
    /// old qdisc panics, unwinding must not drop it, because that drop might panic again.
    pub fn succeed(&mut self, qdisc: Box<dyn Qdisc>, cx: &mut Cx<'_>) {
        self.next = Some(qdisc);
        let mut moved = PacketList::new();
        let mut ahead = Cx::new(cx.now, cx.drops);
        ahead.copied = cx.copied.as_deref_mut();
        let mut waits = 0;
        loop {
            match self.qdisc.dequeue(&mut ahead) {
                Dequeue::Ready(pkt) => {
                    moved.push_back(pkt);
                    waits = 0;
                }
                Dequeue::NotBefore(then) if then > ahead.now && waits < WAITS => {
                    // Some kinds of qdisc round down the time that they return. If such a qdisc is
                    // asked again at that time, it returns the same time again, for ever. So from
                    // the second wait in a row on, ask 1 ns later.
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

    /// Takes the qdiscs out of a dead tree. They may be broken, so dropping a qdisc may panic,
    /// which the caller must catch.
    pub(crate) fn bury(&mut self) -> [Option<Box<dyn Qdisc>>; 2] {
        let next = self.next.take();
        [Some(self.put(default_pfifo(Site::default()))), next]
    }

    /// Returns the root qdisc, its counters, and the number of packets that the device did not take
    /// and that were put back.
    pub(crate) fn with_counters(&mut self) -> (&mut dyn Qdisc, &QdiscCounters, u64) {
        (&mut *self.qdisc, &self.counters, self.requeues)
    }
}
