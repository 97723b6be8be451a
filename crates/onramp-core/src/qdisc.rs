//! Queueing disciplines: the trait, and the table of those we have.
//!
//! Invariants, checked for every entry of [`KINDS`] by `tests/conformance.rs`:
//!
//! * conservation: enqueued = dequeued + dropped + backlog, what a `peek` took out included, and
//!   what a qdisc made itself ([`Cx::made`]);
//! * a qdisc's backlog changes only inside a call its parent makes, so a parent needs no callback;
//! * time is `cx.now`, chance comes from the seed a qdisc is built with: same calls, same packets.
//!
//! # Kinds
//!
//! | kind | what it does |
//! |---|---|
//! | `pfifo`, `bfifo` | first in, first out, limited in packets or in bytes |
//! | `pfifo_head_drop` | the same, but when full, the oldest makes room |
//! | `pfifo_fast` | three bands by priority, the first one first |
//! | `fq` | a queue for each flow, served in turn and paced |
//! | `prio` | bands with a qdisc each, the first one first |
//! | `codel` | one queue, kept short by how long packets wait |
//! | `tbf` | a rate with bursts, by a token bucket |
//! | `fq_codel` | a queue for each flow, served in turn and kept short |
//! | `htb` | classes with rates, which borrow from each other |
//! | `cbs` | a share of a link, by credits |
//! | `netem` | a network that delays, loses, duplicates, damages and reorders packets |
//! | `etf` | packets leave at the times they ask for, or not at all |
//! | `drr` | classes that send a quantum of bytes each, in turn |
//! | `ets` | bands with a qdisc each: some strictly in order, the others in turn |
//! | `qfq` | classes that share by weight, each soon after it should have sent |
//! | `multiq` | bands with a qdisc each, served in turn |
//! | `mq` | a qdisc for each transmit queue, which are served in turn |
//! | `mqprio` | transmit queues for each class of traffic, which are served in turn |
//! | `skbprio` | the highest priority first; when full, the lowest one makes room |
//! | `plug` | keeps packets until it is told to let them go |
//! | `noqueue` | what the device does not take at once is dropped |
//! | `blackhole`, `noop` | drop everything |
//! | `sfq` | a short queue for each flow, served in turn |
//! | `red` | one queue, from which packets are dropped at random before it is full |
//! | `hfsc` | classes with guarantees in real time, which share the rest |
//! | `choke` | one queue, from which flows that fill it drop each other |
//! | `pie` | one queue, from which packets are dropped at random to keep their wait short |
//! | `fq_pie` | a queue for each flow, served in turn and kept short at random |
//! | `dualpi2` | two queues, a short one for packets that can be marked, coupled by one law |
//! | `cake` | a shaper, tins by importance, and fair, short queues |
//!
//! [`Kind::help`] lists the parameters of each. They behave as those of Linux 7.2 do; the head of
//! each file in `src/qdisc/` says where they differ.
//!
//! # Statistics of `fq`
//!
//! | name | meaning |
//! |---|---|
//! | `flows` | flows known |
//! | `inactive` | of these, without packets |
//! | `throttled_flows` | of these, waiting for their time |
//! | `gc` | idle flows forgotten |
//! | `fastpath` | packets that passed all flows by |
//! | `throttled` | how often a flow had to wait |
//! | `latency_ns` | how late flows are woken, a moving average |
//! | `ce_mark` | packets marked with CE |
//! | `flows_plimit` | drops at `flow_limit` |
//! | `pkts_too_long` | gaps cut to one second |
//! | `band0_pkts` to `band2_pkts` | packets held in each band |
//! | `band0_drops` to `band2_drops` | drops at `limit` |
//! | `horizon_drops`, `horizon_caps` | packets beyond `horizon`, dropped or pulled forward |
//!
//! A flow costs 80 to 160 bytes of memory, 10,000 flows 1.25 MiB, idle or not. When there are more
//! than `buckets`, new flows take the places of those idle for 3 s.
//!
//! # Statistics of those that manage their queue
//!
//! | name | of | meaning |
//! |---|---|---|
//! | `count`, `lastcount` | `codel` | drops since the queue went bad, and when it last did |
//! | `ldelay_ns` | `codel` | what the last packet waited |
//! | `dropping`, `drop_next_ns` | `codel` | whether it drops; when next |
//! | `maxpacket` | `codel`, `fq_codel` | largest packet that CoDel judged |
//! | `ecn_mark` | all but `red`, `choke`, `sfq` | packets marked instead of dropped |
//! | `ce_mark` | `codel`, `fq_codel` | packets marked at `ce_threshold` |
//! | `drop_overlimit` | `codel`, `fq_codel` | drops at any limit |
//! | `drop_overmemory` | `fq_codel` | of these, at `memory_limit` |
//! | `new_flow_count` | `fq_codel`, `fq_pie` | how often a flow was new |
//! | `new_flows_len`, `old_flows_len` | `fq_codel`, `fq_pie` | flows in either list |
//! | `memory_used` | `fq_codel`, `fq_pie` | bytes held, headers included |
//! | `marked`, `early`, `pdrop` | `red`, `choke` | marks, drops by the law, drops at `limit` |
//! | `matched` | `choke` | packets that met one of their own flow, and died with it |
//! | `prob_mark`, `prob_mark_head`, `prob_drop` | `sfq` | RED's chance: marks, at the head, drops |
//! | `forced_mark`, `forced_mark_head`, `forced_drop` | `sfq` | the same beyond `max` |
//! | `prob_ppm`, `delay_ns`, `avg_dq_rate` | `pie` | state of the law; bytes per second |
//! | `prob` | `pie` | the probability, in units of 2^-56 |
//! | `pkts_in`, `dropped`, `overlimit`, `overmemory` | `pie`, `fq_pie` | taken in, dropped, why |
//! | `maxq` | `pie` | packets held at most |
//!
//! # Statistics of `dualpi2`
//!
//! | name | meaning |
//! |---|---|
//! | `prob_ppm` | base probability, before it is squared for one queue and coupled to the other |
//! | `prob` | the same, in units of 2^-32 |
//! | `delay_c_ns`, `delay_l_ns` | how long the first packet of either queue waits |
//! | `packets_in_c`, `packets_in_l` | taken into either queue |
//! | `maxq` | packets held at most |
//! | `ecn_mark`, `step_marks` | packets marked; of these, beyond `step_thresh` |
//! | `credit_c`, `credit_l` | by how much the one or the other queue is ahead, percent of bytes |
//! | `memory_used`, `max_memory_used`, `memory_limit` | bytes charged for packets |
//!
//! # Statistics of `cake`
//!
//! | name | meaning |
//! |---|---|
//! | `memory_used`, `memory_limit` | the most that was charged for packets at once; the limit |
//! | `capacity_estimate` | the bandwidth, or what `autorate-ingress` learned; 0 = unlimited |
//! | `bandwidth` | with `autorate-ingress`: what it lets out now, bytes per second |
//! | `min_network_size`, `max_network_size` | packets without their link header |
//! | `min_adj_size`, `max_adj_size` | the same, once the link has framed them |
//! | `avg_hdr_offset` | bytes of a link header, a moving average |
//! | `overlimits` | how often the bandwidth let nothing out |
//!
//! Of each tin, `tin0_` to `tin7_`, from the least important on:
//!
//! | name | meaning |
//! |---|---|
//! | `thresh` | its part of the bandwidth, bytes per second |
//! | `target_ns`, `interval_ns` | what its law of delays aims at |
//! | `pk_delay_ns`, `av_delay_ns`, `sp_delay_ns` | moving averages of sojourns: peak, all, least |
//! | `backlog` | bytes held |
//! | `pkts`, `bytes` | what came |
//! | `way_inds`, `way_miss`, `way_cols` | flows found elsewhere in their set, new, or sharing one |
//! | `drops`, `marks` | packets dropped, and marked with CE |
//! | `sp_flows`, `bk_flows`, `un_flows` | flows that are sparse, bulk, unresponsive |
//! | `max_len` | the largest packet |
//! | `quantum` | bytes a flow sends in a round |
//!
//! A tin takes 100 kB of memory, however many flows there are.

use std::fmt::Debug;

use onramp_queue::{DropReason, Packet, PacketList};

use crate::class::Classes;
use crate::error::Clash;
use crate::filter::Filters;
use crate::params::{Param, Values};
use crate::view::{FlowView, Shown};
use crate::{Fault, Instant};

pub(crate) mod ingress;
mod time_queue;

pub(crate) use self::fifo::default_pfifo;
pub(crate) use self::pfifo_fast::default_pfifo_fast;

pub use crate::spec::Spec;

/// What a call gets from outside.
#[derive(Debug)]
pub struct Cx<'a> {
    /// The present, the same for a whole burst.
    pub now: Instant,
    /// Dropped packets, freed by the caller after it has let go of the qdisc. They come here by
    /// [`drop`](Self::drop).
    pub drops: &'a mut PacketList,
    /// Packets that qdiscs have made themselves: they are enqueued like those that came.
    pub made: u32,
    /// Whether each qdisc measures how long packets take from push to dequeue.
    pub(crate) measures: bool,
    /// Whether a packet's memory is charged to its sender, who has a bound of its own, as sockets
    /// have (`skb->sk`).
    pub(crate) charged: bool,
    /// Why the last packet was dropped, and how many were dropped before all that were dropped for
    /// the same in a row.
    last: Option<(DropReason, u32)>,
}

impl<'a> Cx<'a> {
    /// Drops go to `drops`.
    #[inline]
    pub fn new(now: Instant, drops: &'a mut PacketList) -> Self {
        Self { now, drops, made: 0, measures: false, charged: false, last: None }
    }
}

impl Cx<'_> {
    /// The same, for a tree where each qdisc measures how long packets stay, or where the memory of
    /// packets is charged to their senders.
    #[inline]
    pub(crate) fn of_tree(self, measures: bool, charged: bool) -> Self {
        Self { measures, charged, ..self }
    }

    /// Drops `pkt`, saying why.
    pub fn drop(&mut self, mut pkt: Packet, reason: DropReason) {
        pkt.drop_reason = Some(reason);
        if self.last.is_none_or(|(last, _)| last != reason) {
            self.last = Some((reason, self.drops.len()));
        }
        self.drops.push_back(pkt);
    }

    /// Why all packets were dropped that came after the first `before`, if that is one reason.
    #[inline]
    pub(crate) fn reason_since(&self, before: u32) -> Option<DropReason> {
        self.last.filter(|(_, since)| *since <= before).map(|(reason, _)| reason)
    }

    /// Drops all of `list`.
    pub(crate) fn purge(&mut self, list: &mut PacketList) {
        while let Some(pkt) = list.pop_front() {
            self.drop(pkt, DropReason::Purged);
        }
    }
}

/// The fate of an enqueue (`NET_XMIT_*`).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Queued.
    Queued,
    /// Queued, but another packet of its flow was dropped for it (`NET_XMIT_CN`). Where one of
    /// another flow was dropped, the answer is [`Queued`](Self::Queued).
    Congested,
    /// Dropped; it is in `cx.drops`.
    Dropped,
}

/// The answer to a dequeue.
#[must_use]
#[derive(Debug)]
pub enum Dequeue {
    /// Send this.
    Ready(Packet),
    /// Something is held, but nothing may go now: ask again then (`qdisc_watchdog`), or when
    /// something has come.
    NotBefore(Instant),
    /// Nothing is held.
    Empty,
}

impl Dequeue {
    /// Of two answers without a packet, the one with the earlier time.
    #[inline]
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::NotBefore(a), Self::NotBefore(b)) => Self::NotBefore(a.min(b)),
            (Self::Empty, other) => other,
            (this, _) => this,
        }
    }
}

/// The answer to a peek.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// The next packet has so many bytes.
    Ready(u32),
    /// As [`Dequeue::NotBefore`].
    NotBefore(Instant),
    /// Nothing is held.
    Empty,
}

impl Peek {
    /// At the first of a list.
    #[inline]
    pub(crate) fn at(first: Option<&Packet>) -> Self {
        first.map_or(Self::Empty, |pkt| Self::Ready(pkt.len))
    }

    /// Of two answers without a packet, the one with the earlier time.
    #[inline]
    pub(crate) fn or_sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::NotBefore(a), Self::NotBefore(b)) => Self::NotBefore(a.min(b)),
            (Self::Empty, other) => other,
            (this, _) => this,
        }
    }

    /// At what `dequeue` gave, which `stash` keeps from now on (`qdisc_peek_dequeued`). The qdisc
    /// still counts it in its backlog, and hands it out at its next dequeue.
    pub(crate) fn stash(stash: &mut Option<Packet>, dequeue: impl FnOnce() -> Dequeue) -> Self {
        if stash.is_none() {
            match dequeue() {
                Dequeue::Ready(pkt) => *stash = Some(pkt),
                Dequeue::NotBefore(then) => return Self::NotBefore(then),
                Dequeue::Empty => {}
            }
        }
        Self::at(stash.as_ref())
    }
}

/// Packets and wire bytes held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Packets.
    pub packets: u32,
    /// Bytes.
    pub bytes: u64,
}

impl Backlog {
    /// One packet more.
    #[inline]
    pub(crate) fn add(&mut self, pkt: &Packet) {
        self.packets += 1;
        self.bytes += u64::from(pkt.len);
    }

    /// One packet less.
    #[inline]
    pub(crate) fn sub(&mut self, pkt: &Packet) {
        self.packets -= 1;
        self.bytes -= u64::from(pkt.len);
    }

    /// What `list` holds.
    pub(crate) fn of(list: &PacketList) -> Self {
        Self { packets: list.len(), bytes: list.bytes() }
    }
}

/// Which of three bands serves a priority, by default: `tc-prio(8)`.
pub(crate) const PRIOMAP: [u8; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// The same, as a default.
pub(crate) const PRIOMAP_NUMBERS: [u64; 16] = {
    let mut numbers = [0; 16];
    let mut i = 0;
    while i < 16 {
        numbers[i] = PRIOMAP[i] as u64;
        i += 1;
    }
    numbers
};

/// The band of a packet; only the low four bits of its priority count.
#[inline]
pub(crate) fn band_of(priomap: &[u8; 16], priority: u32) -> usize {
    usize::from(priomap[(priority & 15) as usize])
}

/// A queueing discipline. `&mut self` is the root lock.
pub trait Qdisc: Send + Debug {
    /// Takes `pkt` in, or drops it into `cx`.
    fn enqueue(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict;

    /// Lets the next packet out.
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue;

    /// Says what [`dequeue`](Self::dequeue) would give. To find out, it may have to drop packets,
    /// or to take one out of its place for good: as in Linux, most kinds are settled on a packet
    /// once they were asked, and a better one that comes later has to wait.
    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek;

    /// What is held, children included. O(1).
    fn backlog(&self) -> Backlog;

    /// Whether it would take `pkt` now, and drop nothing for its limits.
    ///
    /// A port asks before it enqueues, as long as its device takes what comes out: packets that
    /// were only collected on their way are no backlog. A qdisc that drops by chance, or by how
    /// long packets waited, takes every packet.
    fn accepts(&self, _pkt: &Packet) -> bool {
        true
    }

    /// The first `most` packets of `coming` are about to be enqueued: a qdisc with many flows asks
    /// the processor for theirs, for all at once instead of one after another.
    fn foresee(&self, _coming: &PacketList, _most: u32) {}

    /// It is soon to be called, as one of many: asks the processor for the packets at its ends.
    fn prefetch(&self) {}

    /// Takes new parameters and keeps what it holds, but for what the new limits do not allow.
    /// False: it cannot, and stays as it is; no kind says so whose [`Changes`] let it be asked.
    fn change(&mut self, values: &Values<'_>, _cx: &mut Cx<'_>) -> bool {
        values.params.is_empty()
    }

    /// What a `tbf` above it does with its own limit when it changes: a fifo, of bytes or of
    /// packets, takes the number for its limit (`fifo_set_limit`); others do nothing.
    #[doc(hidden)]
    fn limit_fifo(&mut self, _limit: u64) {}

    /// Whether a packet may pass it by while it holds nothing and the device takes what comes
    /// (`TCQ_F_CAN_BYPASS`). What passed, it knows nothing of.
    fn can_bypass(&self) -> bool {
        false
    }

    /// Takes in a packet that may pass it by, when it holds nothing, but the device takes nothing
    /// either (`dev_requeue_skb`): the next to leave, whatever comes.
    fn keep_passing(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        self.enqueue(pkt, cx)
    }

    /// Drops everything.
    fn reset(&mut self, cx: &mut Cx<'_>);

    /// Its classes, if it has any.
    fn classes(&mut self) -> Option<&mut dyn Classes> {
        None
    }

    /// The filters at class `minor` (0 = at the qdisc), if any are asked there.
    fn filters(&mut self, _minor: u16) -> Option<&mut Filters> {
        None
    }

    /// How often it held packets back, or met its limit, where Linux counts it
    /// (`qdisc_qstats_overlimit`).
    fn overlimits(&self) -> u64 {
        0
    }

    /// Drops below it that it does not count, where Linux does not.
    fn uncounted(&self) -> u64 {
        0
    }

    /// Flows that it knows of, which `tc class show` lists as classes, by their numbers.
    fn flows(&self, _out: &mut dyn FnMut(FlowView<'_>)) {}

    /// Names and values of its own statistics, such as `tc -s qdisc show` prints below the common
    /// ones. Allocates nothing.
    fn stats(&self, _out: &mut dyn FnMut(&'static str, u64)) {}
}

/// A row of [`KINDS`]: all the rest of the system knows of a qdisc.
#[derive(Debug)]
pub struct Kind {
    /// Name in the command language.
    pub id: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Its parameters, in the order they are shown.
    pub params: &'static [Param],
    /// Who refuses an option that it does not have.
    pub unknown: Fault,
    /// Whether Linux lets its parameters change while it stands.
    pub changes: Changes,
    /// What must hold between the parameters.
    pub check: Check,
    /// Where its classes come from.
    pub classes: ClassKind,
    /// Builds one.
    pub build: fn(&Values<'_>) -> Box<dyn Qdisc>,
    /// How `tc` shows it, where the table of parameters does not say it all.
    pub shown: Shown,
}

/// Whether the parameters of a qdisc may change while it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// They may.
    Yes,
    /// They may not; a change that gives none is fine.
    Bare,
    /// No change is taken: `tc` sends the options even if none is given.
    No,
}

/// Checks parameters against each other; an error names one of them, and says what is wrong.
pub type Check = fn(&Values<'_>) -> Result<(), Clash>;

/// Where the classes of a qdisc come from.
#[derive(Clone, Copy, Debug)]
pub enum ClassKind {
    /// It has none.
    None,
    /// It has so many, numbered from 1.
    Fixed(fn(&Values<'_>) -> u16),
    /// Users add them.
    Added {
        /// Their parameters.
        params: &'static [Param],
        /// What must hold between these.
        check: Check,
        /// Whether a class may stand below another.
        nested: bool,
    },
}

impl Kind {
    /// What most kinds do not have, to be written as `..Kind::LEAF`.
    const LEAF: Self = Self {
        id: "",
        about: "",
        params: &[],
        unknown: Fault::Usage,
        changes: Changes::Yes,
        check: |_| Ok(()),
        classes: ClassKind::None,
        build: |_| unreachable!("every kind says how it is built"),
        shown: Shown::TABLE,
    };

    /// How many classes may stand below one another (`TC_HTB_MAXDEPTH`).
    pub(crate) fn deepest(&self) -> usize {
        if self.id == "htb" { htb::DEPTH_MAX } else { usize::MAX }
    }

    /// Whether a change makes what stands below it anew, as it was at first.
    pub(crate) fn renews_child(&self) -> bool {
        self.id == "red"
    }

    /// Whether it is one queue with a `limit`, which a parent may set.
    pub(crate) fn is_fifo(&self) -> bool {
        ["pfifo", "bfifo", "pfifo_head_drop"].contains(&self.id)
    }

    /// The limit that a change to these values gives to a fifo below.
    pub(crate) fn limit_below(&self, values: &Values<'_>) -> Option<u64> {
        (self.id == "tbf").then(|| tbf::limit(values))
    }

    /// Whether it stands at the root alone: its classes are the device's transmit queues.
    #[must_use]
    pub fn stands_at_root(&self) -> bool {
        matches!(self.id, "mq" | "mqprio")
    }

    /// Whether it has a place for one child, which is no choice of a class.
    pub(crate) fn has_one_place(&self) -> bool {
        matches!(self.id, "cbs" | "netem" | "red" | "tbf")
    }

    /// What stands below its classes if nobody says, where `tc qdisc show` lists it
    /// (`qdisc_hash_add`, not invisible).
    pub(crate) fn shown_below(&self) -> Option<&'static str> {
        match self.id {
            "mq" | "mqprio" => Some("pfifo_fast"),
            "cbs" => Some("pfifo"),
            _ => None,
        }
    }

    /// Help for people: a line for each option of its classes.
    #[must_use]
    pub fn class_help(&self) -> String {
        let ClassKind::Added { params, .. } = self.classes else {
            return format!("Qdisc \"{}\" is classless.\n", self.id);
        };
        let lines = params.iter().map(|param| format!("  {}\n", param.help()));
        lines.fold(format!("classes of {}:\n", self.id), |text, line| text + &line)
    }

    /// Help for people: a line on the qdisc, then one for each option.
    #[must_use]
    pub fn help(&self) -> String {
        let mut text = format!("{}: {}\n", self.id, self.about);
        for param in self.params {
            text.push_str("  ");
            text.push_str(&param.help());
            text.push('\n');
        }
        text
    }
}

macro_rules! qdiscs {
    ($($module:ident: $($kind:ident),+;)*) => {
        $(mod $module;)*
        /// Every qdisc. Parser, help and the tests iterate over it.
        pub const KINDS: &[Kind] = &[$($($module::$kind),+),*];
    };
}

/// What stands where packets come in.
pub const INGRESS: &[Kind] = ingress::KINDS;

// To add a qdisc: write `qdisc/NAME.rs` with a `Kind`, and name both here.
qdiscs! {
    fifo: PFIFO, BFIFO, PFIFO_HEAD_DROP;
    pfifo_fast: PFIFO_FAST;
    fq: FQ;
    prio: PRIO;
    codel: CODEL;
    tbf: TBF;
    fq_codel: FQ_CODEL;
    htb: HTB;
    cbs: CBS;
    netem: NETEM;
    etf: ETF;
    drr: DRR;
    ets: ETS;
    qfq: QFQ;
    multiq: MULTIQ;
    skbprio: SKBPRIO;
    plug: PLUG;
    blackhole: BLACKHOLE, NOOP, NOQUEUE;
    sfq: SFQ;
    red: RED;
    hfsc: HFSC;
    choke: CHOKE;
    pie: PIE;
    fq_pie: FQ_PIE;
    cake: CAKE;
    dualpi2: DUALPI2;
    mq: MQ, MQPRIO;
}

mod classes;
mod rounds;
pub(crate) mod shown;
