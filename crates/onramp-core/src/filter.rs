//! Filters: which class a packet belongs to.
//!
//! The filters of a qdisc, or of a class, are asked in the order of their preferences, and within a
//! preference in an order that depends on the kind of filter. The search ends at the first filter
//! that matches and whose actions do not say `continue`. A filter that is added without `pref` gets
//! the next lower preference, from 49152 downwards. So of several such filters, the filter that was
//! added last is asked first.
//!
//! | kind | what it looks at |
//! |---|---|
//! | `matchall` | nothing |
//! | `fw` | the packet's mark |
//! | `u32` | words of the packet, under masks |
//! | `basic` | an expression of `cmp`, `u32`, `meta`, `nbyte` |
//! | `flower` | fields of the headers |
//! | `flow` | fields, from which the filter computes the class |
//! | `bpf` | the packet, by a program, classic or eBPF |
//!
//! | action | what it does |
//! |---|---|
//! | `ok`, `pass`, `drop`, `shot`, `pipe`, `reclassify`, `continue`, `goto chain N` | says what
//! happens to the packet next |
//! | `police` | says what happens next, by the rate at which packets come |
//! | `skbedit` | changes priority, mark or queue of the packet |
//!
//! Besides those of qdiscs and classes, there are the filters of `clsact`, which each packet meets
//! before it enters the root, and those for packets that come in: see [`Ingress`](crate::Ingress).
//!
//! [`dissect`](crate::dissect) describes how the headers are found in a packet's bytes.
//!
//! ```
//! use onramp_core::qdisc::Dequeue;
//! use onramp_core::{Instant, Setup, Tree};
//! use onramp_queue::Packet;
//!
//! let mut setup = Setup::default();
//! for line in [
//!     "tc qdisc add dev e0 root handle 1: prio",
//!     "tc filter add dev e0 parent 1: protocol ip prio 1 u32 match ip dport 53 0xffff flowid 1:1",
//!     "tc filter add dev e0 parent 1: protocol ip prio 2 flower dst_ip 10.0.0.0/8 classid 1:3 \
//!         action police rate 8mbit burst 3000 conform-exceed drop/ok",
//! ] {
//!     setup.apply(line)?;
//! }
//! let mut tree = Tree::of(&setup, 1514, 0).expect("there is a root");
//! let now = Instant(1_000_000_000);
//! let dests = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:53"];
//! for (cookie, dest) in dests.iter().enumerate() {
//!     let mut pkt = Packet::with_payload(&[0; 1400]);
//!     pkt.set_dest(dest.parse().ok());
//!     pkt.cookie = cookie as u64;
//!     let _ = tree.enqueue(now, pkt);
//! }
//! // Of the three packets to port 80, the policer's burst of 3,000 bytes lets two pass. The packet
//! // to port 53 is sent first, because its class has the highest priority.
//! assert_eq!(tree.drops().count(), 1);
//! let Dequeue::Ready(first) = tree.dequeue(now) else { panic!("three are held") };
//! assert_eq!((first.cookie, tree.backlog().packets), (3, 2));
//! # Ok::<(), onramp_core::ConfigError>(())
//! ```
//!
//! Source: `tc(8)`, sections "CLASSIFIERS" and "FILTERS"; behaviour of Linux 7.2
//! `net/sched/cls_api.c`, `cls_matchall.c`, `cls_fw.c`, `cls_basic.c`.
//! Differs: the file of each kind lists its differences; no shared blocks, no templates of chains,
//! no offload, no `mirred`. A filter with `indev` matches only packets that come in at this device:
//! of a packet that leaves, Onramp does not know by which device it has come in. If this device is
//! deleted, the filter is still listed with its name.
//! Invariant: actions restart the classification of a packet at most 16 times; at the next restart,
//! the packet is dropped.

mod action;
mod bpf;
mod control;
#[cfg(feature = "ebpf")]
mod ebpf;
#[cfg(not(feature = "ebpf"))]
#[path = "filter/no_ebpf.rs"]
mod ebpf;
mod edit;
mod ematch;
mod files;
mod flow;
mod flower;
mod head;
mod lines;
mod police;
mod protocol;
mod quoted;
mod read;
mod reader;
pub mod reference;
mod show;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod words;

use std::collections::BTreeMap;

use onramp_queue::{Layer, Packet};

use self::control::Control;
use self::ematch::Tree;
use self::flow::Flow;
use self::flower::Flower;
use self::words::{Node, Step};
use crate::base::dissect::Dissected;
use crate::base::{Handle, Instant};

pub use self::bpf::Bpf;
pub use self::ebpf::Ebpf;
pub(crate) use self::edit::FilterEdit;
pub use self::files::with_files;
pub(crate) use self::head::Head;
pub use self::read::FilterSpec;
pub(crate) use self::reader::Reader;
pub use self::show::{Query, show_filter, show_filters};
pub(crate) use self::table::{How, Table};

/// How often actions may restart the classification of a packet before the packet is dropped.
const RESTARTS_MAX: u32 = 16;
/// How many `u32` hash tables a packet may pass through in a row, each linked from the one before.
const TABLES_MAX: usize = 8;

/// The result of asking the filters of a qdisc or class about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No filter has matched the packet.
    Unknown,
    /// The packet belongs to this class.
    Class(Handle),
    /// The actions of a filter have decided to drop the packet.
    Drop,
}

/// Which way the packets go about which filters are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The packets come in at the device.
    In,
    /// The packets are about to leave through the device.
    Out,
}

impl Way {
    /// Returns the length of a packet in bytes, as counters and rates use it. As in Linux, a packet
    /// that comes in counts without its link header, and a packet that leaves counts with it.
    #[inline]
    pub(crate) fn len(self, pkt: &Packet) -> u32 {
        match (self, pkt.layer()) {
            (Self::Out, _) | (Self::In, Layer::Ip) => pkt.len,
            (Self::In, Layer::Ethernet | Layer::Datagram) => pkt.len.saturating_sub(ETHERNET),
        }
    }
}

/// Length of an Ethernet header in bytes.
const ETHERNET: u32 = 14;

/// The filters of a qdisc or of a class, in the order in which they are asked.
#[derive(Debug, Default)]
pub struct Filters {
    /// The filters, sorted by chain, then preference, then the order that their kind defines. The
    /// nodes of a `u32` hash table stand behind the table, sorted by their buckets.
    #[expect(clippy::vec_box, reason = "an edit moves all filters behind the one that it adds")]
    filters: Vec<Box<FilterSpec>>,
    /// The hash tables of `u32`, by their handles.
    tables: BTreeMap<u32, Nodes>,
}

/// Where the nodes (the filters) of a `u32` hash table are.
#[derive(Clone, Copy, Debug)]
struct Nodes {
    chain: u32,
    pref: u16,
    /// The first part of the ranks of the table and its nodes.
    born: u64,
    /// Number of buckets.
    divisor: u32,
}

/// The rest of a bucket of a `u32` hash table, whose nodes a search has not tried yet.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Index of the next node, if there is one.
    next: usize,
    /// The numbers of the table and the bucket, as handles of the bucket's nodes contain them.
    name: u32,
}

/// What a filter of each kind compares with the packet.
#[derive(Clone, Debug)]
enum Matcher {
    Matchall,
    /// The packet's mark, under the mask (the second number), must equal the first number.
    Mark(u32, u32),
    /// The packet's mark names the class, as `MAJOR:MINOR`. The filter matches only if the mark is
    /// not 0 and the major number is the given one or 0.
    MarkIsClass(u16),
    U32(Box<Node>),
    /// A hash table of `u32` with this number of buckets.
    Table(u32),
    /// The line `u32` without options: it creates the first `u32` hash table of its preference, and
    /// no filter.
    Root,
    Basic(Tree),
    Flower(Box<Flower>),
    Flow(Box<Flow>),
    /// A classic BPF program. With `direct-action`, also the filter's class, to which a packet
    /// belongs if the program accepts it.
    Bpf(Bpf, Option<Handle>),
    /// An eBPF program. With `direct-action`, also the filter's class. The program finds the minor
    /// number of this class in `tc_classid` when it starts, and may write another there.
    Ebpf(Ebpf, Option<Handle>),
}

/// The result of comparing a packet with a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    No,
    Yes,
    /// The packet matches and belongs to this class.
    Class(Handle),
    /// The packet matches and is dropped.
    Drop,
}

/// What the filters know about a packet: which way it goes, and what they have computed so far.
/// Each part is computed when a filter first needs it.
#[derive(Debug)]
struct Look {
    way: Way,
    dissected: Option<Dissected>,
    row: Option<flower::Row>,
}

impl Look {
    fn new(way: Way) -> Self {
        Self { way, dissected: None, row: None }
    }

    #[inline]
    fn at(&mut self, pkt: &Packet) -> &Dissected {
        self.dissected.get_or_insert_with(|| Dissected::of(pkt))
    }

    #[inline]
    fn row(&mut self, pkt: &Packet) -> &flower::Row {
        let dissected = self.dissected.get_or_insert_with(|| Dissected::of(pkt));
        self.row.get_or_insert_with(|| flower::row_of(dissected))
    }
}

impl From<bool> for Match {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

impl Match {
    /// Converts the number that a `bpf` program returned without `direct-action`: 0 means no match,
    /// 2^32 - 1 means the filter's own class, and any other number means the class of this number.
    fn answered(value: u32) -> Self {
        match value {
            0 => Self::No,
            u32::MAX => Self::Yes,
            class => Self::Class(Handle::from_priority(class)),
        }
    }

    /// Converts the number that a `bpf` program returned with `direct-action`, such as `TC_ACT_OK`.
    /// `class` is the class of the packet if the program accepts it.
    fn decided(value: u32, class: Handle) -> Self {
        match value {
            act::OK => Self::Class(class),
            // For `STOLEN`, `REDIRECT` and `TRAP`, Linux takes the packet out of the qdisc. No
            // qdisc here can redirect a packet, so the packet is dropped.
            act::SHOT | act::STOLEN | act::REDIRECT | act::TRAP => Self::Drop,
            _ => Self::No,
        }
    }
}

/// The numbers that programs with `direct-action` return (`TC_ACT_OK` and so on).
mod act {
    pub(super) const OK: u32 = 0;
    pub(super) const SHOT: u32 = 2;
    pub(super) const STOLEN: u32 = 4;
    pub(super) const REDIRECT: u32 = 7;
    pub(super) const TRAP: u32 = 8;
}

impl Matcher {
    #[inline]
    fn test(&self, look: &mut Look, pkt: &Packet, now: Instant) -> Match {
        match self {
            Self::Matchall => Match::Yes,
            Self::Mark(value, mask) => (pkt.mark & mask == *value).into(),
            Self::MarkIsClass(major) => {
                let class = Handle::from_priority(pkt.mark);
                if pkt.mark != 0 && (class.major == 0 || class.major == *major) {
                    Match::Class(class)
                } else {
                    Match::No
                }
            }
            // Never reached: `Filters::tables` searches the hash tables of `u32` filters instead.
            Self::U32(_) | Self::Table(_) | Self::Root => Match::No,
            Self::Basic(tree) => tree.holds(look, pkt).into(),
            Self::Flower(flower) => flower.matches(look, pkt).into(),
            Self::Flow(flow) => flow.class_of(look, pkt, now).map_or(Match::No, Match::Class),
            Self::Bpf(program, None) => Match::answered(program.answer(look, pkt)),
            Self::Bpf(program, Some(class)) => Match::decided(program.answer(look, pkt), *class),
            Self::Ebpf(program, None) => {
                program.answer(look, pkt, 0).map_or(Match::No, |said| Match::answered(said.value))
            }
            Self::Ebpf(program, Some(class)) => program.act(look, pkt, *class),
        }
    }

    /// Whether, after the actions of this filter say `continue`, the other filters of the same
    /// preference are skipped.
    fn is_alone(&self) -> bool {
        matches!(self, Self::Matchall | Self::Flower(_))
    }
}

impl FilterSpec {
    /// Returns the class of a packet and what the actions of this filter decide, or `None` if the
    /// filter does not match.
    #[inline]
    fn answer(
        &mut self,
        look: &mut Look,
        pkt: &mut Packet,
        now: Instant,
    ) -> Option<(Handle, Control)> {
        match self.matcher.test(look, pkt, now) {
            Match::No => None,
            Match::Yes => self.act(None, look, pkt, now),
            Match::Class(class) => self.act(Some(class), look, pkt, now),
            Match::Drop => Some((Handle::default(), Control::Drop)),
        }
    }

    /// Counts a match of this filter, runs its actions, and returns the packet's class and what the
    /// actions decide. The class is `class` if the matcher found one, and otherwise the filter's
    /// own class. Returns `None` if the filter has an `indev` by which the packet has not come in.
    #[inline]
    fn act(
        &mut self,
        class: Option<Handle>,
        look: &mut Look,
        pkt: &mut Packet,
        now: Instant,
    ) -> Option<(Handle, Control)> {
        if self.indev.is_some() && !(look.way == Way::In && self.indev_is_own) {
            return None;
        }
        self.hits += 1;
        let control = match self.matcher {
            // As in Linux, a program with `direct-action` decides alone: the actions never run.
            Matcher::Bpf(_, Some(_)) | Matcher::Ebpf(_, Some(_)) => Control::Ok,
            _ => action::run(&mut self.actions, look, pkt, now),
        };
        Some((class.or(self.class).unwrap_or_default(), control))
    }
}

impl Filters {
    /// Whether there are no filters at this qdisc or class.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Returns the filters, in the order in which they are asked, with their counters.
    pub fn specs(&self) -> impl Iterator<Item = &FilterSpec> {
        self.filters.iter().map(|filter| &**filter)
    }

    /// Asks the filters in order until one matches, and returns what it decides about the packet.
    #[inline]
    pub(crate) fn classify(&mut self, pkt: &mut Packet, now: Instant) -> Decision {
        if self.is_empty() {
            return Decision::Unknown;
        }
        self.walk(Way::Out, pkt, now)
    }

    /// Whether a packet meets any filter: whether there is one in chain 0, where each search
    /// begins.
    #[inline]
    pub(crate) fn are_met(&self) -> bool {
        self.filters.first().is_some_and(|filter| filter.chain == 0)
    }

    /// Asks the filters in order until one matches, and returns what it decides about the packet,
    /// which goes this way.
    pub(crate) fn walk(&mut self, way: Way, pkt: &mut Packet, now: Instant) -> Decision {
        let mut look = Look::new(way);
        let (mut chain, mut at, mut restarts) = (0, 0, 0);
        loop {
            let Some(filter) = self.filters.get_mut(at).filter(|filter| filter.chain == chain)
            else {
                return Decision::Unknown;
            };
            at += 1;
            if !filter.takes(&mut look, pkt) {
                continue;
            }
            let answer = match &filter.matcher {
                Matcher::Table(_) => {
                    let root = Bucket { next: at, name: filter.handle };
                    let answer = self.tables(root, &mut look, pkt, now);
                    if answer.is_none() {
                        at = self.behind(at);
                    }
                    answer
                }
                _ => filter.answer(&mut look, pkt, now),
            };
            match answer {
                None => continue,
                Some((_, Control::Drop)) => return Decision::Drop,
                Some((_, Control::Next)) => {
                    if self.filters[at - 1].matcher.is_alone() {
                        at = self.behind(at);
                    }
                    continue;
                }
                Some((_, Control::Again)) => chain = 0,
                Some((_, Control::Goto(to))) => chain = to,
                Some((class, _)) => return Decision::Class(class),
            }
            restarts += 1;
            if restarts > RESTARTS_MAX {
                return Decision::Drop;
            }
            at = self.filters.partition_point(|filter| filter.chain < chain);
        }
    }

    /// Walks through the `u32` hash tables, beginning in the bucket `bucket`, to the first node
    /// that matches and whose actions do not say `continue`. Returns what this node decides, or
    /// `None` if there is no such node.
    fn tables(
        &mut self,
        mut bucket: Bucket,
        look: &mut Look,
        pkt: &mut Packet,
        now: Instant,
    ) -> Option<(Handle, Control)> {
        let mut stack: [(usize, Bucket, words::Place); TABLES_MAX] = Default::default();
        let mut depth = 0;
        let mut place = words::Place::default();
        loop {
            let step = match self.node(bucket) {
                Some(node) => {
                    bucket.next += 1;
                    (bucket.next - 1, node.step(look, pkt, place))
                }
                // No node is left in this bucket: go back to the node that led into this table.
                None => {
                    depth = usize::checked_sub(depth, 1)?;
                    let (at, rest, before) = std::mem::take(&mut stack[depth]);
                    (bucket, place) = (rest, place.back_to(before));
                    let Matcher::U32(node) = &self.filters[at].matcher else { return None };
                    (at, if node.is_terminal() { Step::Match } else { Step::Next })
                }
            };
            match step {
                (_, Step::Next) => {}
                (_, Step::Leave) => return None,
                (at, Step::Into { table, hash, place: there }) => {
                    *stack.get_mut(depth)? = (at, bucket, place);
                    depth += 1;
                    (bucket, place) = (self.bucket(table, hash), there);
                }
                (at, Step::Match) => match self.filters[at].act(None, look, pkt, now) {
                    None | Some((_, Control::Next)) => {}
                    answer => return answer,
                },
            }
        }
    }

    /// Returns the next node of a bucket, or `None` if the bucket has no further node.
    #[inline]
    fn node(&self, bucket: Bucket) -> Option<&Node> {
        let filter = self.filters.get(bucket.next)?;
        match &filter.matcher {
            Matcher::U32(node) if filter.handle & !words::NODE == bucket.name => Some(node),
            _ => None,
        }
    }

    /// Returns the bucket of a hash table for this hash. The bucket is empty if there is no such
    /// table.
    fn bucket(&self, table: u32, hash: u32) -> Bucket {
        let Some(nodes) = self.tables.get(&table) else { return Bucket::default() };
        let name = table | (hash % nodes.divisor) << 12;
        let first = nodes.first(name);
        Bucket { next: self.filters.partition_point(|filter| filter.place() < first), name }
    }

    /// Returns the index of the first filter at or after `at` whose preference differs from that of
    /// the filter before `at`.
    fn behind(&self, at: usize) -> usize {
        let place = |filter: &FilterSpec| (filter.chain, filter.pref);
        let last = place(&self.filters[at - 1]);
        at + self.filters[at..].partition_point(|filter| place(filter) == last)
    }
}
