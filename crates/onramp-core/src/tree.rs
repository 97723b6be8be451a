//! A qdisc alone, to embed where packets and time come from elsewhere.

#[cfg(feature = "tc")]
mod apply;
#[cfg(feature = "tc")]
mod edit;
#[cfg(feature = "tc")]
mod look;
mod root_qdisc;

use onramp_queue::{DropReason, Packet, PacketList};

use crate::base::Instant;
use crate::sched::{Backlog, Cx, Dequeue, Qdisc, Verdict};
use crate::tc::Spec;

#[cfg(feature = "tc")]
pub use self::edit::Edit;
pub use self::root_qdisc::RootQdisc;

/// A qdisc without threads, sockets or clock: packets go in and out by calls, and time is an
/// argument.
///
/// The same calls give the same packets. Time may stand still between calls, but not go back.
///
/// A caller who keeps its own buffers says in [`cookie`](onramp_queue::Meta::cookie) which one a
/// packet stands for, and gets it back when the packet leaves, whether sent or dropped:
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
/// // Four buffers of one flow, at one time.
/// let buffers = [[0_u8; 1500]; 4];
/// let now = Instant(1_000_000_000);
/// for (i, buffer) in buffers.iter().enumerate() {
///     let mut pkt = Packet::new(buffer.len() as u32);
///     pkt.flow = 7;
///     pkt.cookie = i as u64;
///     tree.enqueue(now, pkt);
/// }
///
/// // Two may leave at once; the next one after as long as they take at 12 Mbit/s.
/// for i in 0..2 {
///     let Dequeue::Ready(pkt) = tree.dequeue(now) else { panic!("the quantum allows two") };
///     assert_eq!(pkt.cookie, i);
/// }
/// let Dequeue::NotBefore(then) = tree.dequeue(now) else { panic!("the third has to wait") };
/// assert_eq!(then, now.after(2_000_000));
///
/// // The rest, thrown away: two packets with their cookies, and why.
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
}

/// What passed a [`Tree`] since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Packets taken in, dropped or not, and those that qdiscs made.
    pub enqueued_packets: u64,
    /// Of these, packets that qdiscs made: the duplicates of `netem`.
    pub made_packets: u64,
    /// Packets that left through a dequeue.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets dropped, by the number of their reason.
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

    /// Packets dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Packets dropped.
    #[must_use]
    pub fn dropped_packets(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

/// Why [`Tree::dequeue_list`] stopped.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It gave as many packets as it was asked for; there may be more.
    Full,
    /// What is left waits: ask again then.
    NotBefore(Instant),
    /// Nothing is left.
    Empty,
}

impl Tree {
    /// Builds the qdisc for packets of at most `mtu` bytes, link header included.
    #[must_use]
    pub fn new(spec: &Spec, mtu: u32) -> Self {
        Self {
            root: RootQdisc::new(spec.build(mtu)),
            #[cfg(feature = "tc")]
            built_from: apply::BuiltFrom::spec(spec, mtu),
            drops: PacketList::new(),
            totals: Totals::ZERO,
        }
    }

    /// The same, for packets whose senders have bounds of their own, such as sockets have: as in
    /// Linux, the `memory_limit` of `fq_codel` does not count them. All packets of a link are such,
    /// for it has credits; those of a tree are not, unless this says so.
    #[must_use]
    pub fn charged_to_senders(mut self) -> Self {
        self.root = self.root.charged(true);
        self
    }

    /// Gives `pkt` back, counted as sent, if nothing is held and the root lets packets pass it by
    /// then: `tc` calls it the bypass. Else takes it in, or drops it.
    ///
    /// To be called when the device would take the packet at once.
    ///
    /// # Errors
    ///
    /// What [`enqueue`](Self::enqueue) said.
    pub fn pass_or_enqueue(&mut self, now: Instant, pkt: Packet) -> Result<Packet, Verdict> {
        if self.root.backlog().packets > 0 || !self.root.qdisc().can_bypass() {
            return Err(self.enqueue(now, pkt));
        }
        self.totals.enqueued_packets += 1;
        self.totals.sent_packets += 1;
        self.totals.sent_bytes += u64::from(pkt.len);
        let mut drops = PacketList::new();
        let cx = self.root.call(now, &mut drops);
        self.root.passed(&pkt, &cx);
        Ok(pkt)
    }

    /// Takes `pkt` in, or drops it, when packets may pass by but the device takes nothing now: if
    /// nothing is held, it has passed the qdisc, and is the next to leave, whatever comes.
    pub fn keep_or_enqueue(&mut self, now: Instant, pkt: Packet) -> Verdict {
        self.totals.enqueued_packets += 1;
        let passes = self.root.backlog().packets == 0 && self.root.qdisc().can_bypass();
        // In Linux the device has refused it, and it was put back.
        self.root.count_requeues(u32::from(passes));
        self.call(now, |root, cx| match passes {
            true => root.qdisc_mut().keep_passing(pkt, cx),
            false => root.enqueue(pkt, cx),
        })
    }

    /// Takes `pkt` in, or drops it.
    pub fn enqueue(&mut self, now: Instant, pkt: Packet) -> Verdict {
        self.totals.enqueued_packets += 1;
        self.call(now, |root, cx| root.enqueue(pkt, cx))
    }

    /// Takes `packets` in, in order; says how many were dropped, also of those held before.
    pub fn enqueue_list(&mut self, now: Instant, packets: PacketList) -> u32 {
        self.totals.enqueued_packets += u64::from(packets.len());
        self.call(now, |root, cx| {
            root.qdisc().prefetch_flows(&packets, packets.len());
            for pkt in packets {
                // What is dropped is counted below.
                let _ = root.enqueue(pkt, cx);
            }
            cx.drops.len()
        })
    }

    /// Lets the next packet out.
    pub fn dequeue(&mut self, now: Instant) -> Dequeue {
        let answer = self.call(now, |root, cx| root.dequeue(cx));
        if let Dequeue::Ready(pkt) = &answer {
            self.totals.sent_packets += 1;
            self.totals.sent_bytes += u64::from(pkt.len);
        }
        answer
    }

    /// Appends to `out` what may leave now, at most `max_packets`.
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

    /// Hands over the packets dropped since the last call, each with its
    /// [`drop_reason`](onramp_queue::Meta::drop_reason).
    ///
    /// They are held until then: a caller who does not want them calls it all the same.
    #[must_use = "dropping the list frees the packets"]
    pub fn drops(&mut self) -> PacketList {
        std::mem::take(&mut self.drops)
    }

    /// The root itself, for its classes and filters. What goes in or out here is not counted.
    pub fn root(&mut self) -> &mut dyn Qdisc {
        self.root.qdisc_mut()
    }

    /// What is held, drops not counted.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        self.root.backlog()
    }

    /// Drops all that is held, and forgets all flows; totals stay.
    pub fn reset(&mut self, now: Instant) {
        self.call(now, |root, cx| root.qdisc_mut().reset(cx));
    }

    /// From now on, each qdisc of the tree measures how long packets take from push to dequeue, or
    /// no longer does.
    pub fn measure(&mut self, measures: bool) {
        self.root.measure(measures);
    }

    /// What passed since the tree was made.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Names and values of the qdisc's own statistics: see [`Qdisc::stats`].
    pub fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.root.qdisc().stats(out);
    }

    /// Calls the qdisc; counts and keeps what it drops.
    #[inline]
    fn call<R>(&mut self, now: Instant, f: impl FnOnce(&mut RootQdisc, &mut Cx<'_>) -> R) -> R {
        let mut drops = PacketList::new();
        let mut cx = self.root.call(now, &mut drops);
        let result = f(&mut self.root, &mut cx);
        self.root.count_dropped(0, &cx);
        let made = cx.made;
        self.settle(made, drops);
        result
    }

    /// Counts what a call made and dropped, and keeps the latter.
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
