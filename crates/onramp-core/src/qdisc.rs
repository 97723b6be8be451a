//! Queueing disciplines (qdiscs): the trait, and the table of all kinds.
//!
//! Invariants, checked for every entry of [`KINDS`] by `tests/conformance.rs`:
//!
//! * conservation: enqueued = dequeued + dropped + backlog; a packet that a `peek` has taken out of
//!   its queue counts as backlog, and a packet that the qdisc has made itself ([`Cx::made`]) counts
//!   as enqueued;
//! * the backlog of a qdisc changes only during a call from its parent, so a parent needs no
//!   callback;
//! * a qdisc knows no time but `cx.now`, and no random numbers but those from the seed with which
//!   the qdisc is built: the same calls give the same packets.
//!
//! # Kinds
//!
//! [`KINDS`] is the table of all kinds. [`Kind::about`] says in a line what a kind does;
//! [`Kind::help`] lists its parameters. The kinds behave as those of Linux 7.2; the head of each
//! file in `src/qdisc/` says where a kind differs.
//!
//! # Statistics of `fq`
//!
//! | name | meaning |
//! |---|---|
//! | `flows` | flows that exist |
//! | `inactive` | flows without packets |
//! | `throttled_flows` | flows that wait until their next packet may leave |
//! | `gc` | idle flows removed to make room |
//! | `fastpath` | packets that took the fast path, which bypasses the flows |
//! | `throttled` | how often a flow had to wait |
//! | `latency_ns` | moving average of how late waiting flows are woken |
//! | `ce_mark` | packets that waited longer than `ce_threshold`; marked with CE where possible |
//! | `flows_plimit` | packets dropped at `flow_limit` |
//! | `pkts_too_long` | gaps between packets that were shortened to one second |
//! | `band0_pkts` to `band2_pkts` | packets that each band holds |
//! | `band0_drops` to `band2_drops` | packets that each band dropped at `limit` |
//! | `horizon_drops` | packets dropped because their departure time lay beyond `horizon` |
//! | `horizon_caps` | packets beyond `horizon` that got an earlier departure time |
//!
//! A flow costs 80 to 160 bytes of memory, whether it is idle or not; 10,000 flows cost 1.25 MiB.
//! When there are more than `buckets` flows, new flows take the places of flows that have been idle
//! for 3 s.
//!
//! # Statistics of kinds with active queue management
//!
//! | name | of | meaning |
//! |---|---|---|
//! | `count` | `codel` | drop count from which CoDel computes the time to its next drop |
//! | `lastcount` | `codel` | what `count` was when CoDel last began to drop |
//! | `ldelay_ns` | `codel` | how long the last packet waited |
//! | `dropping`, `drop_next_ns` | `codel` | whether CoDel is dropping; when it drops next |
//! | `maxpacket` | `codel`, `fq_codel` | size of the largest packet that CoDel has seen |
//! | `ecn_mark` | all but `red`, `choke`, `sfq` | packets marked instead of dropped |
//! | `ce_mark` | `codel`, `fq_codel` | packets marked at `ce_threshold` |
//! | `drop_overlimit` | `codel`, `fq_codel` | packets dropped at any limit |
//! | `drop_overmemory` | `fq_codel` | packets dropped at `memory_limit`, part of `drop_overlimit` |
//! | `new_flow_count` | `fq_codel`, `fq_pie` | how often a flow joined the list of new flows |
//! | `new_flows_len`, `old_flows_len` | `fq_codel`, `fq_pie` | number of new flows, of old flows |
//! | `memory_used` | `fq_codel`, `fq_pie` | bytes of memory charged for packets, with headers |
//! | `marked`, `early` | `red`, `choke` | packets that RED marked; packets that RED dropped |
//! | `pdrop` | `red`, `choke` | packets dropped at `limit` |
//! | `matched` | `choke` | new packets dropped together with a queued one of their flow |
//! | `prob_mark`, `prob_mark_head` | `sfq` | packets marked at random: on arrival, at the head |
//! | `prob_drop` | `sfq` | packets dropped at random |
//! | `forced_mark`, `forced_mark_head` | `sfq` | packets marked above `max`: on arrival, at head |
//! | `forced_drop` | `sfq` | packets dropped because the average length exceeds `max` |
//! | `prob_ppm`, `delay_ns` | `pie` | drop probability; how long packets wait |
//! | `avg_dq_rate` | `pie` | average number of bytes sent per second |
//! | `prob` | `pie` | the drop probability, in units of 2^-56 |
//! | `pkts_in`, `dropped` | `pie`, `fq_pie` | packets taken in; packets dropped |
//! | `overlimit` | `pie`, `fq_pie` | packets dropped at `limit`, part of `dropped` |
//! | `overmemory` | `fq_pie` | packets dropped at `memory_limit`, part of `dropped` |
//! | `maxq` | `pie` | the most packets held at once |
//!
//! # Statistics of `dualpi2`
//!
//! | name | meaning |
//! |---|---|
//! | `prob_ppm` | base probability, before it is squared (classic) or multiplied (L-queue) |
//! | `prob` | the base probability, in units of 2^-32 |
//! | `delay_c_ns`, `delay_l_ns` | waiting time of the first packet: classic queue, L-queue |
//! | `packets_in_c`, `packets_in_l` | packets taken into the classic and the L-queue |
//! | `maxq` | the most packets held at once |
//! | `ecn_mark` | packets marked |
//! | `step_marks` | packets marked because they waited beyond `step_thresh`, part of `ecn_mark` |
//! | `credit_c`, `credit_l` | WRR credit if this queue is next, in bytes times percent; else 0 |
//! | `memory_used`, `max_memory_used` | bytes charged for packets: now, and the most so far |
//! | `memory_limit` | the most bytes that may be charged for packets |
//!
//! # Statistics of `cake`
//!
//! | name | meaning |
//! |---|---|
//! | `memory_used`, `memory_limit` | the most bytes charged for packets at once; the limit |
//! | `capacity_estimate` | bandwidth or estimate (`autorate-ingress`), bytes/s; 0 = unlimited |
//! | `bandwidth` | with `autorate-ingress`: the present rate of the shaper, bytes per second |
//! | `min_network_size`, `max_network_size` | bytes of packets without their link header |
//! | `min_adj_size`, `max_adj_size` | bytes of packets on the wire, with the link's framing |
//! | `avg_hdr_offset` | moving average of the length of a link header, in bytes |
//! | `overlimits` | how often packets had to wait because of the bandwidth |
//!
//! Each tin has the following statistics, with the prefixes `tin0_` to `tin7_`, from the least
//! important tin on:
//!
//! | name | meaning |
//! |---|---|
//! | `thresh` | the tin's part of the bandwidth, bytes per second |
//! | `target_ns`, `interval_ns` | target and interval of COBALT, the tin's queue management |
//! | `pk_delay_ns`, `sp_delay_ns` | moving averages of sojourn times: near peaks; near lows |
//! | `av_delay_ns` | moving average of all sojourn times |
//! | `backlog` | bytes held |
//! | `pkts`, `bytes` | packets and bytes that came |
//! | `way_inds` | packets whose flow got another queue of its set than the one it hashes to |
//! | `way_miss`, `way_cols` | packets that began a flow; packets of flows that share a queue |
//! | `drops`, `marks` | packets dropped, and packets marked with CE |
//! | `sp_flows`, `bk_flows`, `un_flows` | flows that are sparse, bulk, unresponsive |
//! | `max_len` | size of the largest packet |
//! | `quantum` | bytes that a flow sends in a round |
//!
//! A tin takes 100 kB of memory, however many flows there are.

mod blackhole;
mod cake;
mod cbs;
mod choke;
mod codel;
mod drr;
mod dualpi2;
mod etf;
mod ets;
mod fifo;
mod fq;
mod fq_codel;
mod fq_pie;
mod hfsc;
mod htb;
mod ingress;
mod mq;
mod multiq;
mod netem;
pub(crate) mod pfifo_fast;
mod pie;
mod plug;
mod prio;
mod qfq;
mod red;
mod series;
mod sfq;
mod skbprio;
mod tbf;

pub(crate) use self::fifo::{default_pfifo, pfifo_child};

pub use crate::sched::{
    AddedQuirks, Backlog, BuildChild, Changes, Check, ClassKind, ClassOption, Cx, Dequeue,
    FilterPlaces, Kind, Peek, Qdisc, Quirks, SetOption, Verdict,
};

use crate::base::shown;
use crate::sched::peek_by_dequeue;
use crate::sched::{classes, rounds, time_queue};

/// The default map from the 16 packet priorities to three bands, as in `tc-prio(8)`.
pub(crate) const PRIOMAP: [u8; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// The map [`PRIOMAP`] as the default value of a parameter.
pub(crate) const PRIOMAP_NUMBERS: [u64; 16] = {
    let mut numbers = [0; 16];
    let mut i = 0;
    while i < 16 {
        numbers[i] = PRIOMAP[i] as u64;
        i += 1;
    }
    numbers
};

/// Returns the band of a packet; only the low four bits of its priority count.
#[inline]
pub(crate) fn band_of(priomap: &[u8; 16], priority: u32) -> usize {
    usize::from(priomap[(priority & 15) as usize])
}

/// The table of all kinds of qdiscs. The parser, the help, listings, documents and tests iterate
/// over it.
///
/// To add a qdisc, write `qdisc/NAME.rs` with a [`Kind`], and add its name to the modules above and
/// to this table.
pub const KINDS: &[Kind] = &[
    fifo::PFIFO,
    fifo::BFIFO,
    fifo::PFIFO_HEAD_DROP,
    pfifo_fast::PFIFO_FAST,
    fq::FQ,
    prio::PRIO,
    codel::CODEL,
    tbf::TBF,
    fq_codel::FQ_CODEL,
    htb::HTB,
    cbs::CBS,
    netem::NETEM,
    etf::ETF,
    drr::DRR,
    ets::ETS,
    qfq::QFQ,
    multiq::MULTIQ,
    skbprio::SKBPRIO,
    plug::PLUG,
    blackhole::BLACKHOLE,
    blackhole::NOOP,
    blackhole::NOQUEUE,
    sfq::SFQ,
    red::RED,
    hfsc::HFSC,
    choke::CHOKE,
    pie::PIE,
    fq_pie::FQ_PIE,
    cake::CAKE,
    dualpi2::DUALPI2,
    mq::MQ,
    mq::MQPRIO,
    series::SERIES,
];

/// The kinds of qdiscs that only hold filters for packets as they come in to a device or leave it.
/// Such a qdisc is never part of a tree of qdiscs.
pub const INGRESS: &[Kind] = ingress::KINDS;
