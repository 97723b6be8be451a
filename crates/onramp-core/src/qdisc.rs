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
//! [`KINDS`] is their table. [`Kind::about`] says in a line what a kind does, [`Kind::help`] lists
//! its parameters. They behave as those of Linux 7.2 do; the head of each file in `src/qdisc/` says
//! where they differ.
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
mod sfq;
mod skbprio;
mod tbf;

pub(crate) use self::fifo::{default_pfifo, pfifo_child};

pub use crate::sched::{
    AddedQuirks, Backlog, Changes, Check, ClassKind, ClassOption, Cx, Dequeue, FilterPlaces, Kind,
    Peek, Qdisc, Quirks, SetOption, Verdict,
};

use crate::base::shown;
use crate::sched::{classes, rounds, time_queue};

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

/// Every qdisc. Parser, help, listings, documents and tests iterate over it.
///
/// To add a qdisc, write `qdisc/NAME.rs` with a [`Kind`], and name it above and here.
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
];

/// What stands where packets come in.
pub const INGRESS: &[Kind] = ingress::KINDS;
