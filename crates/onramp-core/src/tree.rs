//! A tree of qdiscs without a port, for programs that bring their own packets, threads and clock.

#[cfg(feature = "tc")]
mod apply;
#[cfg(feature = "tc")]
mod edit;
#[cfg(feature = "tc")]
mod ingress;
#[cfg(feature = "tc")]
mod lease;
#[cfg(feature = "tc")]
mod look;
#[cfg(feature = "tc")]
mod make;
mod root_qdisc;
mod tree_of;

use onramp_queue::{DropReason, Packet, PacketList};

use crate::base::Instant;
use crate::sched::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};
use crate::tc::Spec;

#[cfg(feature = "tc")]
pub use self::edit::Edit;
#[cfg(feature = "tc")]
pub use self::ingress::Ingress;
#[cfg(feature = "tc")]
pub use self::lease::{Lease, Pending};
pub use self::root_qdisc::RootQdisc;
pub use self::tree_of::TreeOf;

/// A tree of qdiscs without threads, sockets or a clock. Calls move packets in and out, and every
/// call takes the time as an argument.
///
/// The same sequence of calls always gives the same results. A call may pass the same time as the
/// call before it, or a later time, but no earlier time.
///
/// A tree may have qdiscs of kinds that the program wrote itself: see [`Kinds`](crate::Kinds).
///
/// A program that has a buffer or another value for each packet uses a [`TreeOf`], where packets
/// carry the values through the tree. A program that keeps its buffers in a table stores the number
/// of a packet's buffer in [`cookie`](onramp_queue::Meta::cookie). The packet still carries the
/// cookie when it leaves the tree, whether sent or dropped:
///
/// ```
/// use onramp_core::qdisc::Dequeue;
/// use onramp_core::Spec;
/// use onramp_core::{Instant, Tree};
/// use onramp_queue::Packet;
///
/// let spec: Spec = "fq maxrate 12mbit initial_quantum 3000 timer_slack 0".parse()?;
/// let mut tree = Tree::new(&spec, 1500);
///
/// // Enqueue four buffers as packets of one flow, all at the same time.
/// let buffers = [[0_u8; 1500]; 4];
/// let now = Instant(1_000_000_000);
/// for (i, buffer) in buffers.iter().enumerate() {
///     let mut pkt = Packet::new(buffer.len() as u32);
///     pkt.flow = 7;
///     pkt.cookie = i as u64;
///     tree.enqueue(now, pkt);
/// }
///
/// // Two packets may leave at once. The third must wait for the time that the first two take at
/// // 12 Mbit/s, 2 ms.
/// for i in 0..2 {
///     let Dequeue::Ready(pkt) = tree.dequeue(now) else { panic!("the quantum allows two") };
///     assert_eq!(pkt.cookie, i);
/// }
/// let Dequeue::NotBefore(then) = tree.dequeue(now) else { panic!("the third has to wait") };
/// assert_eq!(then, now.after(2_000_000));
///
/// // Drop the two packets that are left, and print for each the number of its buffer and why it
/// // was dropped.
/// tree.reset(then);
/// for pkt in tree.drops() {
///     println!("buffer {} was dropped: {}", pkt.cookie, pkt.drop_reason.unwrap().about());
/// }
/// # Ok::<(), onramp_core::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Tree {
    root: RootQdisc,
    #[cfg(feature = "tc")]
    built_from: apply::BuiltFrom,
    drops: PacketList,
    totals: Totals,
    /// The cookies of the packets that qdiscs have copied, for a [`TreeOf`].
    copied: Option<Vec<u64>>,
}

/// What a [`Tree`] has counted since it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Number of packets that were given to the tree, whether dropped or not, plus packets that its
    /// qdiscs made.
    pub enqueued_packets: u64,
    /// Number of packets, included in `enqueued_packets`, that qdiscs made themselves: the
    /// duplicates of `netem`, and the parts of packets that a qdisc split.
    pub made_packets: u64,
    /// Number of packets that left the tree to be sent, by a dequeue or by a bypass (without being
    /// enqueued).
    pub sent_packets: u64,
    /// Bytes of the packets counted in `sent_packets`.
    pub sent_bytes: u64,
    /// Number of dropped packets for each drop reason, indexed by the number of the reason.
    dropped: [u64; DropReason::ALL.len()],
}

impl Totals {
    const ZERO: Self = Self {
        enqueued_packets: 0,
        made_packets: 0,
        sent_packets: 0,
        sent_bytes: 0,
        dropped: [0; DropReason::ALL.len()],
    };

    /// Returns the number of packets that were dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Returns the totals of this tree and of the tree `behind` it as those of one, if all packets
    /// that `behind` was given have left this tree. A packet that has left this tree, but that
    /// `behind` was not given yet, counts as held.
    #[must_use]
    pub fn with_behind(mut self, behind: &Self) -> Self {
        self.enqueued_packets += behind.made_packets;
        self.made_packets += behind.made_packets;
        (self.sent_packets, self.sent_bytes) = (behind.sent_packets, behind.sent_bytes);
        for (own, more) in self.dropped.iter_mut().zip(behind.dropped) {
            *own += more;
        }
        self
    }

    /// Returns the number of packets that were dropped for any reason.
    #[must_use]
    pub fn dropped_packets(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

/// The reason why [`Tree::dequeue_list`] stopped.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// `dequeue_list` returned as many packets as requested. More packets may be ready.
    Full,
    /// The tree holds packets, but none may leave before this time. Call `dequeue_list` again then.
    NotBefore(Instant),
    /// The tree holds no packet.
    Empty,
}

impl Tree {
    /// Builds a tree of one qdisc, for packets of at most `mtu` bytes, including the link header.
    #[must_use]
    pub fn new(spec: &Spec, mtu: u32) -> Self {
        Self {
            root: RootQdisc::new(spec.build(mtu)),
            #[cfg(feature = "tc")]
            built_from: apply::BuiltFrom::spec(spec, mtu),
            drops: PacketList::new(),
            totals: Totals::ZERO,
            copied: None,
        }
    }

    /// Returns the tree, set up for packets whose senders have limits of their own, as sockets
    /// have. As in Linux, such packets do not count towards the `memory_limit` of `fq_codel`. A
    /// link always charges packets to their senders, by credits; a tree does so only after
    /// `charged_to_senders`.
    #[must_use]
    pub fn charged_to_senders(mut self) -> Self {
        self.root = self.root.charged(true);
        self
    }

    /// Lets `pkt` bypass the tree if the tree is empty and its root qdisc allows a bypass (as `tc`
    /// calls it): the packet is not enqueued, but counted as sent and returned as `Ok`. Any other
    /// packet is enqueued or dropped.
    ///
    /// Call `pass_or_enqueue` only if the device would transmit the packet at once.
    ///
    /// # Errors
    ///
    /// If the packet did not bypass the tree, returns the verdict of [`enqueue`](Self::enqueue) on
    /// the packet.
    pub fn pass_or_enqueue(&mut self, now: Instant, pkt: Packet) -> Result<Packet, Verdict> {
        self.totals.enqueued_packets += 1;
        let Some(pkt) = self.admit(now, pkt) else { return Err(Verdict::Dropped) };
        if self.root.backlog().packets > 0 || !self.root.qdisc().can_bypass() {
            return Err(self.call(now, |root, cx| root.enqueue(pkt, cx)));
        }
        self.totals.sent_packets += 1;
        self.totals.sent_bytes += u64::from(pkt.len);
        let mut drops = PacketList::new();
        let cx = self.root.call(now, &mut drops);
        self.root.passed(&pkt, &cx);
        Ok(pkt)
    }

    /// Enqueues or drops `pkt`. Call `keep_or_enqueue` when a packet could bypass the tree but the
    /// device takes no packet now. If the tree is empty and allows a bypass, `pkt` leaves before
    /// any packet that is enqueued later.
    pub fn keep_or_enqueue(&mut self, now: Instant, pkt: Packet) -> Verdict {
        self.totals.enqueued_packets += 1;
        let Some(pkt) = self.admit(now, pkt) else { return Verdict::Dropped };
        let passes = self.root.backlog().packets == 0 && self.root.qdisc().can_bypass();
        // In Linux, a packet that could bypass the qdisc has been offered to the device, was
        // refused, and is put back into the qdisc, which counts as a requeue.
        self.root.count_requeues(u32::from(passes));
        self.call(now, |root, cx| match passes {
            true => root.qdisc_mut().keep_passing(pkt, cx),
            false => root.enqueue(pkt, cx),
        })
    }

    /// Enqueues `pkt` or drops it.
    pub fn enqueue(&mut self, now: Instant, pkt: Packet) -> Verdict {
        self.totals.enqueued_packets += 1;
        let Some(pkt) = self.admit(now, pkt) else { return Verdict::Dropped };
        self.call(now, |root, cx| root.enqueue(pkt, cx))
    }

    /// Enqueues `packets` in order. Returns the number of packets that were dropped, including
    /// packets that the tree already held and that were dropped to make room.
    pub fn enqueue_list(&mut self, now: Instant, packets: PacketList) -> u32 {
        self.totals.enqueued_packets += u64::from(packets.len());
        let mut stopped = PacketList::new();
        let dropped = self.call(now, |root, cx| {
            root.qdisc().prefetch_flows(&packets, packets.len());
            for pkt in packets {
                if let Some(pkt) = root.admit(pkt, now, &mut stopped) {
                    // `call` counts the dropped packets, so the verdict is not needed.
                    let _ = root.enqueue(pkt, cx);
                }
            }
            cx.drops.len()
        });
        let all = dropped + stopped.len();
        self.settle(0, stopped);
        all
    }

    /// Returns the next packet if one may leave now. Otherwise says when one may leave, or that the
    /// tree is empty.
    pub fn dequeue(&mut self, now: Instant) -> Dequeue {
        let answer = self.call(now, |root, cx| root.dequeue(cx));
        if let Dequeue::Ready(pkt) = &answer {
            self.totals.sent_packets += 1;
            self.totals.sent_bytes += u64::from(pkt.len);
        }
        answer
    }

    /// Appends packets that may leave now, at most `max_packets`, to `out`. Returns why it stopped.
    pub fn dequeue_list(
        &mut self,
        now: Instant,
        max_packets: u32,
        out: &mut PacketList,
    ) -> Stopped {
        let before = (out.len(), out.bytes());
        let stopped = self.call(now, |root, cx| {
            for _ in 0..max_packets {
                match root.dequeue(cx) {
                    Dequeue::Ready(pkt) => out.push_back(pkt),
                    Dequeue::NotBefore(then) => return Stopped::NotBefore(then),
                    Dequeue::Empty => return Stopped::Empty,
                }
            }
            Stopped::Full
        });
        self.totals.sent_packets += u64::from(out.len() - before.0);
        self.totals.sent_bytes += out.bytes() - before.1;
        stopped
    }

    /// Returns when the next packet may leave: `now` if one may leave now, a later time if all have
    /// to wait, and `None` if the tree holds no packet. Use it to set a timer; a loop that dequeues
    /// until no packet may leave learns the same from [`Dequeue::NotBefore`].
    ///
    /// The packet stays in the tree. To find the time, qdiscs may have to drop packets, or to
    /// choose the next packet for good: see [`Qdisc::peek`].
    ///
    /// If a program sets its timer to this time, each of many packets that are due a little after
    /// one another costs a wake-up. [`Wakes`](crate::Wakes) adds a slack to the time, so that one
    /// wake-up serves all packets that are due within the slack. At the wake-up, dequeue at the
    /// instants at which the packets were due, one after another up to the present: otherwise a
    /// shaper would lose the time of the slack, and its rate would fall.
    ///
    /// ```
    /// use onramp_core::{Instant, Tree, Wakes};
    /// use onramp_queue::Packet;
    ///
    /// // 1,000 bytes take 1 ms.
    /// let mut tree = Tree::new(&"tbf rate 8mbit burst 1000b limit 90000b".parse()?, 1_000);
    /// let ms = |n: u64| Instant(1_000_000_000 + n * 1_000_000);
    /// assert_eq!(tree.next_at(ms(0)), None);
    /// for _ in 0..6 {
    ///     let _ = tree.enqueue(ms(0), Packet::new(1_000));
    /// }
    /// assert_eq!(tree.next_at(ms(0)), Some(ms(0)));
    ///
    /// let mut wakes = Wakes::new(3_000_000, 0); // 3 ms of slack
    /// let (mut now, mut served) = (ms(0), Vec::new());
    /// while let Some(mut due) = tree.next_at(now) {
    ///     let present = wakes.ask(due); // a real loop sleeps until then
    ///     let before = tree.totals().sent_packets;
    ///     while due <= present {
    ///         now = due;
    ///         let _ = tree.dequeue(now);
    ///         let Some(next) = tree.next_at(now) else { break };
    ///         due = next;
    ///     }
    ///     served.push((present, tree.totals().sent_packets - before));
    /// }
    /// // Two wake-ups serve six packets: at 3 ms those due at 0 to 3 ms, at 7 ms the other two.
    /// assert_eq!(served, [(ms(3), 4), (ms(7), 2)]);
    /// # Ok::<(), onramp_core::ConfigError>(())
    /// ```
    pub fn next_at(&mut self, now: Instant) -> Option<Instant> {
        match self.call(now, |root, cx| root.qdisc_mut().peek(cx)) {
            Peek::Ready(_) => Some(now),
            // A kind of the program's own may round the time down, to one that is over.
            Peek::NotBefore(then) => Some(then.max(now.after(1))),
            Peek::Empty => None,
        }
    }

    /// Returns the packets that were dropped since the last call of `drops`, each with its
    /// [`drop_reason`](onramp_queue::Meta::drop_reason).
    ///
    /// The tree keeps dropped packets until `drops` is called. Call `drops` from time to time even
    /// if you do not need the dropped packets, to free their memory.
    #[must_use = "dropping the list frees the packets"]
    pub fn drops(&mut self) -> PacketList {
        std::mem::take(&mut self.drops)
    }

    /// Returns the root qdisc, to reach its classes and filters. Packets that enter or leave
    /// through this reference are not counted in [`totals`](Self::totals).
    pub fn root(&mut self) -> &mut dyn Qdisc {
        self.root.qdisc_mut()
    }

    /// Returns how many packets and bytes the tree holds, without dropped packets that wait for
    /// [`drops`](Self::drops).
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        self.root.backlog()
    }

    /// Drops all packets that the tree holds and sets the state of all flows back. The totals are
    /// kept.
    pub fn reset(&mut self, now: Instant) {
        self.call(now, |root, cx| root.qdisc_mut().reset(cx));
    }

    /// Switches on or off whether each qdisc of the tree measures the sojourn times of packets,
    /// from push to dequeue.
    pub fn measure(&mut self, measures: bool) {
        self.root.measure(measures);
    }

    /// From now on, the tree notes the cookie of each packet that a qdisc copies (such as `netem`
    /// with `duplicate`), until [`take_copies`](Self::take_copies) takes it. Call it if you keep
    /// something of each packet outside the tree, and count the packets that still need it.
    pub fn note_copies(&mut self) {
        self.copied.get_or_insert_default();
    }

    /// Returns the cookies of the packets that qdiscs have copied since the last call, one for each
    /// copy. Returns none if [`note_copies`](Self::note_copies) was not called.
    #[must_use]
    pub fn take_copies(&mut self) -> Vec<u64> {
        self.copied.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns what the tree has counted since it was created.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Calls `out` with the name and value of each statistic that is specific to the root's kind:
    /// see [`Qdisc::stats`].
    pub fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.root.qdisc().stats(out);
    }

    /// Asks the filters in front of the root about a packet. Returns the packet if it may enter the
    /// root, and otherwise counts and keeps it.
    #[inline]
    fn admit(&mut self, now: Instant, pkt: Packet) -> Option<Packet> {
        let mut stopped = PacketList::new();
        let pkt = self.root.admit(pkt, now, &mut stopped);
        if pkt.is_none() {
            self.settle(0, stopped);
        }
        pkt
    }

    /// Runs `f` on the root qdisc. Then counts and keeps the packets that `f` dropped.
    #[inline]
    fn call<R>(&mut self, now: Instant, f: impl FnOnce(&mut RootQdisc, &mut Cx<'_>) -> R) -> R {
        let mut drops = PacketList::new();
        let mut cx = self.root.call(now, &mut drops);
        cx.copied = self.copied.as_mut();
        let result = f(&mut self.root, &mut cx);
        self.root.count_dropped(0, &cx);
        let made = cx.made;
        self.settle(made, drops);
        result
    }

    /// Counts the packets that a call has made and dropped. Keeps the dropped packets until
    /// [`drops`](Self::drops) is called.
    fn settle(&mut self, made: u32, mut drops: PacketList) {
        self.totals.made_packets += u64::from(made);
        self.totals.enqueued_packets += u64::from(made);
        while let Some(pkt) = drops.pop_front() {
            if let Some(reason) = pkt.drop_reason {
                self.totals.dropped[reason as usize] += 1;
            }
            self.drops.push_back(pkt);
        }
    }
}
