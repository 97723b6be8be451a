//! Filters: which class a packet belongs to.
//!
//! The filters of a qdisc, or of a class, are asked by preference, and among those of one
//! preference in the order of their kind, until one has matched whose actions do not say
//! `continue`. Without `pref`, a filter gets the one before all such others, from 49152 downwards:
//! what is added last is asked first.
//!
//! | kind | what it looks at |
//! |---|---|
//! | `matchall` | nothing |
//! | `fw` | the packet's mark |
//! | `u32` | words of the packet, under masks |
//! | `basic` | an expression of `cmp`, `u32`, `meta`, `nbyte` |
//! | `flower` | fields of the headers |
//! | `flow` | fields, from which it computes the class |
//! | `bpf` | what a program says, classic or eBPF |
//!
//! | action | what it does |
//! |---|---|
//! | `ok`, `pass`, `drop`, `shot`, `pipe`, `reclassify`, `continue`, `goto chain N` | what next |
//! | `police` | says so by the rate of what comes |
//! | `skbedit` | changes priority, mark or queue |
//!
//! What a packet's bytes are, [`dissect`](crate::dissect) says.
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
//! // 3,000 bytes are room for two packets to 10.0.0.0/8; port 53 goes first.
//! assert_eq!(tree.drops().count(), 1);
//! let Dequeue::Ready(first) = tree.dequeue(now) else { panic!("three are held") };
//! assert_eq!((first.cookie, tree.backlog().packets), (3, 2));
//! # Ok::<(), onramp_core::ConfigError>(())
//! ```
//!
//! Source: `tc(8)`, sections "CLASSIFIERS" and "FILTERS"; behaviour of Linux 7.2
//! `net/sched/cls_api.c`, `cls_matchall.c`, `cls_fw.c`, `cls_basic.c`.
//! Differs: what the kinds say; no shared blocks, no templates of chains, no offload.
//! Invariant: to classify ends after at most 16 new beginnings; then the packet dies.

mod action;
mod bpf;
mod ebpf;
mod ematch;
mod files;
mod flow;
mod flower;
mod police;
mod read;
mod reader;
#[cfg(test)]
mod tests;
mod words;

use onramp_queue::Packet;

use self::action::Control;
use self::ematch::Tree;
use self::flow::Flow;
use self::flower::Flower;
use self::words::Selector;
use crate::dissect::Dissected;
use crate::{Handle, Instant};

pub use self::bpf::Bpf;
pub use self::ebpf::Ebpf;
pub use self::files::with_files;
pub use self::read::FilterSpec;
pub(crate) use self::read::Head;
pub(crate) use self::reader::Reader;

/// How often it may begin anew.
const RESTARTS_MAX: u32 = 16;

/// What filters say of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// None has matched.
    Unknown,
    /// It belongs to this class.
    Class(Handle),
    /// An action said so.
    Drop,
}

/// The filters of a qdisc or of a class, by preference.
#[derive(Debug, Default)]
pub struct Filters {
    /// By chain, preference, and what the kind says.
    filters: Vec<FilterSpec>,
}

/// The kinds.
#[derive(Clone, Debug)]
enum Matcher {
    Matchall,
    /// Value and mask.
    Mark(u32, u32),
    /// The mark is the class, if it is one of the qdisc of this major number.
    MarkIsClass(u16),
    /// Keys, and whether something happens when they match.
    U32(Selector, bool),
    Basic(Tree),
    Flower(Box<Flower>),
    Flow(Box<Flow>),
    Bpf(Bpf),
    /// With `direct-action`, the class that the program gets.
    Ebpf(Ebpf, Option<Handle>),
}

/// What a filter says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    No,
    /// No, and no other of its preference is to be asked.
    Leave,
    Yes,
    /// Yes, and it belongs to this class.
    Class(Handle),
    /// Yes, and it dies.
    Drop,
}

/// What was found out of a packet, when somebody asked.
#[derive(Debug, Default)]
struct Look {
    dissected: Option<Dissected>,
    row: Option<flower::Row>,
}

impl Look {
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
    /// What the answer of a program means.
    fn answered(value: u32) -> Self {
        match value {
            0 => Self::No,
            u32::MAX => Self::Yes,
            class => Self::Class(Handle::from_priority(class)),
        }
    }
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
            Self::U32(_, false) => Match::No,
            Self::U32(selector, true) => selector.matches(look, pkt),
            Self::Basic(tree) => tree.holds(look, pkt).into(),
            Self::Flower(flower) => flower.matches(look, pkt).into(),
            Self::Flow(flow) => flow.class_of(look, pkt, now).map_or(Match::No, Match::Class),
            Self::Bpf(program) => Match::answered(program.answer(look, pkt)),
            Self::Ebpf(program, None) => {
                program.answer(look, pkt, 0).map_or(Match::No, |said| Match::answered(said.value))
            }
            Self::Ebpf(program, Some(class)) => program.act(look, pkt, *class),
        }
    }

    /// Whether no other filter of its preference is asked when its actions say `continue`.
    fn is_alone(&self) -> bool {
        matches!(self, Self::Matchall | Self::Flower(_))
    }
}

impl Filters {
    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Adds a filter.
    pub(crate) fn add(&mut self, filter: FilterSpec) {
        let place = filter.place_in(&self.filters);
        self.filters.insert(place, filter);
    }

    /// Has these from now on. Those that were there already keep what their actions know.
    pub(crate) fn set<'a>(&mut self, filters: impl Iterator<Item = &'a FilterSpec>) {
        let mut before = std::mem::take(&mut self.filters);
        for filter in filters {
            let there = before.iter().position(|other| other.is_like(filter));
            self.add(there.map_or_else(|| filter.clone(), |there| before.swap_remove(there)));
        }
    }

    /// Asks the filters, in order, until one has matched.
    #[inline]
    pub(crate) fn classify(&mut self, pkt: &mut Packet, now: Instant) -> Decision {
        if self.is_empty() {
            return Decision::Unknown;
        }
        self.walk(pkt, now)
    }

    fn walk(&mut self, pkt: &mut Packet, now: Instant) -> Decision {
        let mut look = Look::default();
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
            let class = match filter.matcher.test(&mut look, pkt, now) {
                Match::No => continue,
                Match::Leave => {
                    at = self.behind(at);
                    continue;
                }
                Match::Yes => filter.class.unwrap_or_default(),
                Match::Class(class) => class,
                Match::Drop => return Decision::Drop,
            };
            match action::run(&mut filter.actions, &mut look, pkt, now) {
                Control::Ok | Control::Pipe | Control::Jump(_) => return Decision::Class(class),
                Control::Drop => return Decision::Drop,
                Control::Next => {
                    if filter.matcher.is_alone() {
                        at = self.behind(at);
                    }
                    continue;
                }
                Control::Again => chain = 0,
                Control::Goto(to) => chain = to,
            }
            restarts += 1;
            if restarts > RESTARTS_MAX {
                return Decision::Drop;
            }
            at = self.filters.partition_point(|filter| filter.chain < chain);
        }
    }

    /// The first filter behind those of the preference of that before `at`.
    fn behind(&self, at: usize) -> usize {
        let place = |filter: &FilterSpec| (filter.chain, filter.pref);
        let last = place(&self.filters[at - 1]);
        at + self.filters[at..].iter().take_while(|filter| place(filter) == last).count()
    }
}
