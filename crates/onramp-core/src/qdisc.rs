//! Queueing disciplines: the trait, and the table of those we have.
//!
//! Invariants, checked for every entry of [`KINDS`] by `tests/conformance.rs`:
//!
//! * conservation: enqueued = dequeued + dropped + backlog;
//! * a qdisc's backlog changes only inside a call its parent makes, so a parent needs no callback;
//! * time is `cx.now`, chance is `cx`'s: same calls, same packets out.
//!
//! # Kinds
//!
//! | kind | what it does |
//! |---|---|
//! | `pfifo`, `bfifo` | first in, first out, limited in packets or in bytes |
//! | `pfifo_fast` | three bands by priority, the first one first |
//! | `fq` | a queue for each flow, served in turn and paced |
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

use std::fmt::Debug;

use onramp_queue::{DropReason, Packet, PacketList};

use crate::Instant;
use crate::params::{Param, Values};

pub use crate::spec::Spec;

/// What a call gets from outside.
#[derive(Debug)]
pub struct Cx<'a> {
    /// The present, the same for a whole burst.
    pub now: Instant,
    /// Dropped packets, freed by the caller after it has let go of the qdisc.
    pub drops: &'a mut PacketList,
}

impl Cx<'_> {
    /// Drops `pkt`, saying why.
    pub fn drop(&mut self, mut pkt: Packet, reason: DropReason) {
        pkt.drop_reason = Some(reason);
        self.drops.push_back(pkt);
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
    /// Queued, but another packet was dropped for it (`NET_XMIT_CN`).
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

/// Packets and wire bytes held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Packets.
    pub packets: u32,
    /// Bytes.
    pub bytes: u64,
}

impl Backlog {
    /// What `list` holds.
    pub(crate) fn of(list: &PacketList) -> Self {
        Self { packets: list.len(), bytes: list.bytes() }
    }
}

/// Which of three bands serves a priority, by default: `tc-prio(8)`.
pub(crate) const PRIOMAP: [u8; 16] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

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

    /// Drops everything.
    fn reset(&mut self, cx: &mut Cx<'_>);

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
    /// Builds one.
    pub build: fn(&Values<'_>) -> Box<dyn Qdisc>,
}

impl Kind {
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

    /// The options it has, for messages.
    pub(crate) fn options(&self) -> String {
        let names: Vec<&str> = self.params.iter().flat_map(Param::names).copied().collect();
        if names.is_empty() {
            return format!("{} takes no options", self.id);
        }
        format!("{} takes {}", self.id, names.join(", "))
    }
}

macro_rules! qdiscs {
    ($($module:ident: $($kind:ident),+;)*) => {
        $(mod $module;)*
        /// Every qdisc. Parser, help and the tests iterate over it.
        pub const KINDS: &[Kind] = &[$($($module::$kind),+),*];
    };
}

// To add a qdisc: write `qdisc/NAME.rs` with a `Kind`, and name both here.
qdiscs! {
    fifo: PFIFO, BFIFO;
    pfifo_fast: PFIFO_FAST;
    fq: FQ;
}
