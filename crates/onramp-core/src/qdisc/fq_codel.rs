//! Fair queue with controlled delay (`fq_codel`): a queue for each flow; the queues are served in
//! turn, and CoDel keeps each of them short.
//!
//! ```text
//! enqueue   hash the flow to a queue; beyond a limit, drop from the head of the longest queue
//! dequeue   serve the queues in turn, new ones first; CoDel drops packets or lets one leave
//! ```
//!
//! Source: RFC 8290; `tc-fq_codel(8)`; behaviour of Linux 7.2 `net/sched/sch_fq_codel.c`, with its
//! choice between queues of the same size (it drops from the first one, so the choice depends on
//! the hash).
//! Differs: flows are hashed by [`flow`](onramp_queue::Meta::flow); the waiting time of a packet
//! starts when the packet is pushed (below `netem`: when `netem` hands it over), and not when this
//! qdisc enqueues it: see [`enqueued_ns`](onramp_queue::Meta::enqueued_ns); `ce_threshold_selector`
//! sees only the ECN bits, the other bits are zero. For `memory_limit`, a packet counts as what
//! Linux would charge for a datagram of its length, whatever its buffer here is. As in Linux,
//! `memory_limit` does not count packets whose senders are charged for their memory: in Linux these
//! are the packets of local sockets; here they are the packets of a link and their duplicates.
//! Zeros that `tc` takes for "not given" are errors.
//! Invariant: packets of a flow leave in order; while none is dropped, flows that always have
//! packets get the same number of bytes, give or take a quantum and a packet.

use onramp_queue::{DropReason, Packet, PacketList};

use super::{Backlog, Cx, Dequeue, Kind, Peek, Qdisc, Verdict, peek_by_dequeue, shown};
use crate::base::params::{Default, Param, Unit, Values, look};
use crate::base::show::Out;
use crate::base::{Errno, Extra, Fault, Instant};
use crate::filter::Filters;
use crate::law::codel::{self, Codel, Law, Source};
use crate::law::cost::memory;
use crate::sched::buckets::Buckets;
use crate::sched::flows::{Flow, Flows, NEW, OLD};
use crate::sched::{FlowView, Shown};

/// Number of flows in a block. For each block, an upper bound for the backlogs of its flows is
/// kept, so that the longest flow is found quickly.
const BLOCK: usize = 32;

pub(super) const FQ_CODEL: Kind = Kind {
    id: "fq_codel",
    about: "a queue for each flow, served in turn and kept short",
    params: &[
        Param::new("limit", Unit::Packets, Default::Number(10_240), "packets held at most")
            .zero_is_unsaid(),
        Param::new("flows", Unit::Count, Default::Number(1024), "queues that flows are hashed to")
            .within(1, 65_536)
            .zero_is_unsaid()
            .once(Fault::Kernel(Errno::Invalid, None)),
        Param::new("quantum", Unit::Count, Default::Mtus(1), "bytes a flow may send in a round")
            .within(0, 1 << 20)
            .clamped(256, 1 << 20)
            .zero_is_unsaid()
            .refused(Fault::Kernel(Errno::Invalid, Some("Invalid quantum"))),
        codel::TARGET,
        codel::CE_THRESHOLD,
        codel::CE_THRESHOLD_SELECTOR,
        codel::INTERVAL,
        Param::new(
            "memory_limit",
            Unit::Size,
            Default::Number(32 << 20),
            "memory used at most, not counting packets of senders with credits",
        )
        .clamped(0, 1 << 31),
        Param::new(
            "ecn",
            Unit::Words(&["ecn", "noecn"]),
            Default::Number(0),
            "marks packets instead of dropping them",
        )
        .shown(look::flag),
        Param::new(
            "drop_batch",
            Unit::Count,
            Default::Number(64),
            "most packets that are dropped at once when a limit is exceeded",
        )
        .zero_is_unsaid(),
    ],
    build: |values| Box::new(FqCodel::new(values)),
    shown: Shown {
        options: show,
        extra: show_extra,
        class_extra: shown::codel_flow,
        ..Shown::TABLE
    },
    ..Kind::LEAF
};

/// Shows the options. Without `ce_threshold`, `ce_threshold_selector` has no effect and is not
/// shown.
fn show(values: &Values<'_>, _: &Extra, out: &mut Out) {
    for param in values.params {
        let idle = param.key == "ce_threshold_selector" && !values.is_given("ce_threshold");
        if let Some(value) = values.get(param.key).filter(|_| !idle) {
            param.show(&value, out);
        }
    }
}

fn show_extra(extra: &Extra, out: &mut Out) {
    extra.show(out, "  ", "maxpacket");
    extra.show(out, " ", "drop_overlimit");
    extra.show(out, " ", "new_flow_count");
    extra.show(out, " ", "ecn_mark");
    extra.show_some(out, " ", "ce_mark");
    extra.show_some(out, " ", "drop_overmemory");
    extra.show(out, "\n  ", "new_flows_len");
    extra.show(out, " ", "old_flows_len");
    out.text(format_args!("\n"));
}

fn law(values: &Values<'_>) -> Law {
    Law::new(values, values.number("ecn") == 0).select(values.number("ce_threshold_selector"))
}

#[derive(Debug)]
struct FqCodel {
    limit: u32,
    memory_limit: u64,
    drop_batch: u32,
    law: Law,
    buckets: Buckets,
    flows: Flows<Codel>,
    /// For each block of flows: an upper bound in bytes; no flow of the block has a larger backlog.
    bounds: Box<[u64]>,
    held: Held,
    /// A packet that was dequeued because the parent called `peek`, or a packet that bypassed the
    /// queue and was then refused by the device; `held` does not count this packet.
    peeked: Option<Packet>,
    drop_overlimit: u64,
    drop_overmemory: u64,
    /// The time of the last `dequeue` or `peek` that looked for a packet.
    asked_at: Instant,
}

/// The packets that all flows together hold.
#[derive(Debug, std::default::Default)]
struct Held {
    backlog: Backlog,
    memory: u64,
    /// Whether the packets' senders are charged for their memory, so that `memory_limit` does not
    /// count it.
    charged: bool,
}

impl Held {
    #[inline]
    fn add(&mut self, pkt: &Packet) {
        self.backlog.add(pkt);
        self.memory += self.memory_of(pkt);
    }

    #[inline]
    fn sub(&mut self, pkt: &Packet) {
        self.backlog.sub(pkt);
        self.memory -= self.memory_of(pkt);
    }

    /// Returns how many bytes a packet adds to the field `memory`.
    #[inline]
    fn memory_of(&self, pkt: &Packet) -> u64 {
        if self.charged { 0 } else { memory(pkt.len) }
    }
}

/// Gives the CoDel law access to a flow's queue.
struct Head<'a, 'c> {
    queue: &'a mut PacketList,
    held: &'a mut Held,
    cx: &'a mut Cx<'c>,
}

impl Source for Head<'_, '_> {
    #[inline]
    fn pop(&mut self) -> Option<Packet> {
        let pkt = self.queue.pop_front()?;
        self.held.sub(&pkt);
        Some(pkt)
    }

    #[inline]
    fn bytes(&self) -> u64 {
        self.held.backlog.bytes
    }

    fn drop(&mut self, pkt: Packet) {
        self.cx.drop(pkt, DropReason::Congested);
    }
}

impl FqCodel {
    fn new(values: &Values<'_>) -> Self {
        let count = values.number32("flows");
        Self {
            limit: values.number32("limit"),
            memory_limit: values.number("memory_limit"),
            drop_batch: values.number32("drop_batch"),
            law: law(values),
            buckets: Buckets::new(values, count),
            flows: Flows::new(count, values.number32("quantum")),
            bounds: vec![0; (count as usize).div_ceil(BLOCK)].into(),
            held: Held::default(),
            peeked: None,
            drop_overlimit: 0,
            drop_overmemory: 0,
            asked_at: Instant(0),
        }
    }

    /// Returns the flow with the most bytes; of flows with equally many, the first. Flows are
    /// grouped in blocks, each with an upper bound for the backlogs of its flows. Only this
    /// function lowers the bounds.
    fn longest(&mut self) -> usize {
        loop {
            let (block, bound) = first_max(self.bounds.iter().copied());
            let begin = block * BLOCK;
            let flows = &self.flows.all()[begin..];
            let bytes = flows.iter().take(BLOCK).map(|flow| flow.queue.bytes());
            let (place, most) = first_max(bytes);
            if most == bound {
                return begin + place;
            }
            self.bounds[block] = most;
        }
    }

    /// Drops packets from the head of the longest flow, until half of its bytes or `drop_batch`
    /// packets are gone. Returns the flow.
    #[cold]
    fn drop_batch(&mut self, cx: &mut Cx<'_>, over_memory: bool) -> usize {
        let index = self.longest();
        let Flow { queue, law, .. } = self.flows.get_mut(index);
        let enough = queue.bytes() / 2;
        let (mut count, mut bytes) = (0, 0);
        while let Some(pkt) = queue.pop_front() {
            self.held.sub(&pkt);
            count += 1;
            bytes += u64::from(pkt.len);
            cx.drop(pkt, DropReason::Overlimit);
            if count == self.drop_batch || bytes >= enough {
                break;
            }
        }
        law.count = law.count.wrapping_add(count);
        self.drop_overlimit += u64::from(count);
        self.drop_overmemory += if over_memory { count.into() } else { 0 };
        index
    }

    /// Returns the number of packets that this qdisc holds, including a packet taken out by a
    /// `peek`.
    #[inline]
    fn packets(&self) -> u32 {
        self.held.backlog.packets + u32::from(self.peeked.is_some())
    }
}

/// Returns the place and the value of the greatest of `values`; of equal values, the first.
fn first_max(values: impl Iterator<Item = u64>) -> (usize, u64) {
    let mut best = (0, 0);
    for (place, value) in values.enumerate() {
        if value > best.1 {
            best = (place, value);
        }
    }
    best
}

impl Qdisc for FqCodel {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let index = match self.buckets.of(&mut pkt, cx.now) {
            Ok(index) => index,
            Err(reason) => {
                cx.drop(pkt, reason);
                return Verdict::Dropped;
            }
        };
        codel::stamp(&mut pkt, cx.now);
        if self.held.backlog.packets == 0 {
            self.held.charged = cx.charged;
        }
        self.held.add(&pkt);
        self.flows.push(index, pkt);
        let bound = &mut self.bounds[index / BLOCK];
        *bound = self.flows.get(index).queue.bytes().max(*bound);
        let over_memory = self.held.memory > self.memory_limit;
        if self.packets() <= self.limit && !over_memory {
            return Verdict::Queued;
        }
        if self.drop_batch(cx, over_memory) != index {
            return Verdict::Queued;
        }
        let gone = self.flows.get(index).queue.is_empty();
        if gone { Verdict::Dropped } else { Verdict::Congested }
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        let now = cx.now;
        self.asked_at = now;
        while let Some((age, index)) = self.flows.turn() {
            let flow = self.flows.get_mut(index);
            let mut head = Head { queue: &mut flow.queue, held: &mut self.held, cx };
            if let Some(pkt) = flow.law.dequeue(&mut self.law, now, &mut head) {
                flow.charge(&pkt);
                return Dequeue::Ready(pkt);
            }
            self.flows.retire(age);
        }
        Dequeue::Empty
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        peek_by_dequeue(self, |qdisc| &mut qdisc.peeked, cx)
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.held.backlog;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    #[inline]
    fn accepts(&self, pkt: &Packet) -> bool {
        // A packet that is larger than `memory_limit` never fits. If no held packet counts for
        // `memory_limit`, accept even such a packet, so that the port passes the packet to
        // `enqueue`, which drops it: otherwise the port would keep the packet for ever.
        let fits = match self.held.memory {
            0 => true,
            memory => memory + self.held.memory_of(pkt) <= self.memory_limit,
        };
        self.packets() < self.limit && fits
    }

    fn can_bypass(&self) -> bool {
        self.buckets.filters.is_empty()
    }

    fn keep_passing(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.peeked = Some(pkt);
        Verdict::Queued
    }

    fn prefetch_next(&self, most: u32) {
        self.flows.prefetch_next(most);
    }

    fn prefetch_flows(&self, coming: &PacketList, most: u32) {
        let flows = coming.metas().take(most as usize).map(|meta| meta.flow);
        self.flows.prefetch_flows(flows.map(|flow| self.buckets.hash(flow)));
    }

    /// Sets new parameters. As in Linux, packets beyond the new limits are dequeued and dropped.
    fn change(&mut self, values: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        self.limit = values.number32("limit");
        self.memory_limit = values.number("memory_limit");
        self.drop_batch = values.number32("drop_batch");
        self.law.change(law(values));
        self.flows.set_quantum(values.number32("quantum"));
        while self.packets() > self.limit || self.held.memory > self.memory_limit {
            let Dequeue::Ready(pkt) = self.dequeue(cx) else { break };
            cx.drop(pkt, DropReason::Overlimit);
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        cx.purge(&mut self.flows.reset());
        cx.purge_one(&mut self.peeked);
        self.bounds.fill(0);
        self.held = Held { charged: self.held.charged, ..Held::default() };
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        (minor == 0).then_some(&mut self.buckets.filters)
    }

    fn flows(&self, out: &mut dyn FnMut(FlowView<'_>)) {
        for (minor, flow) in (1..=u16::MAX).zip(self.flows.all()) {
            let Some(deficit) = flow.deficit() else { continue };
            let extra = &flow.law.of_flow(deficit, self.asked_at);
            let backlog = Backlog::of(&flow.queue);
            out(FlowView { minor, backlog, drops: 0, overlimits: 0, extra });
        }
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("maxpacket", self.law.max_packet.into());
        out("drop_overlimit", self.drop_overlimit);
        out("new_flow_count", self.flows.new_flow_count);
        out("ecn_mark", self.law.ecn_mark);
        out("ce_mark", self.law.ce_mark);
        out("drop_overmemory", self.drop_overmemory);
        out("memory_used", self.held.memory);
        out("new_flows_len", self.flows.listed(NEW));
        out("old_flows_len", self.flows.listed(OLD));
    }
}
