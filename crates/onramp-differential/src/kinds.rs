//! The kinds of qdiscs: how exactly each can be compared with the kernel, where in a tree it may
//! stand, and how its options are chosen. Each kind is one row of the table [`KINDS`].

mod bare;
mod classful;
mod fair;
mod random;

pub(crate) use self::classful::{drr_class, hfsc_class, htb_class, qfq_class};

use crate::draw::Draw;
use crate::plan::{Compared, Opt};

/// Where in a tree a qdisc may stand, so that Linux behaves as documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The qdisc may stand anywhere in a tree.
    Any,
    /// The qdisc may stand only at the root.
    Root,
    /// The qdisc may stand at the root, and below qdiscs that expect a child to hold packets back.
    /// Other schedulers of Linux stop at a child that has packets but returns none.
    Holds,
}

/// What a qdisc has below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// The qdisc has no child qdisc and no class.
    Nothing,
    /// The qdisc has one child qdisc, below class 1.
    One,
    /// The qdisc has a child qdisc for each band. The options give the number of bands.
    Bands,
    /// The qdisc has classes, which are added by `tc class` lines.
    Classes,
}

/// A row of the table of kinds.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The name of the kind, as `tc` spells it.
    pub id: &'static str,
    /// The most exact comparison with the kernel that the kind allows. Options may allow less.
    pub compared: Compared,
    /// Where in a tree the kind may stand.
    pub place: Place,
    /// What the kind has below it: child qdiscs, classes or nothing.
    pub below: Below,
    /// Whether the options of a qdisc of this kind may change during the run.
    pub changes: bool,
    /// Whether the kind hashes flows to buckets. In Onramp, flows with consecutive numbers never
    /// share a bucket, but in Linux some of them do, so cases of this kind have few flows.
    pub hashes: bool,
    /// Chooses random options for a qdisc of this kind.
    pub options: fn(&mut Site<'_>),
}

/// A place in the tree for which options are chosen, and the options chosen so far.
#[derive(Debug)]
pub struct Site<'a> {
    /// The random generator.
    pub draw: &'a mut Draw,
    /// The rate that the qdisc or class is likely to get, in bits per second.
    pub rate: u64,
    /// Whether the qdisc stands at the root.
    pub root: bool,
    /// Whether the options are for a change of an existing qdisc. Options that can only be set at
    /// creation are left out.
    pub changing: bool,
    /// Whether `tc` lines change the tree during the run. If so, timers must have no slack, that
    /// is, no permission to fire late.
    pub strict: bool,
    /// The number of bands of the qdisc.
    pub bands: u16,
    /// The options chosen so far.
    pub options: Vec<Opt>,
}

impl Site<'_> {
    /// Adds an option that the line requires.
    pub(crate) fn need(&mut self, text: impl Into<String>) {
        self.options.push(Opt { text: text.into(), needed: true, compared: Compared::Exact });
    }

    /// Adds an option that the line requires, with random values.
    pub(crate) fn needs(&mut self, text: impl FnOnce(&mut Draw) -> String) {
        let text = text(self.draw);
        self.need(text);
    }

    /// Adds an option in `percent` of the cases. With this option, the result can still be compared
    /// exactly.
    pub(crate) fn may(&mut self, percent: u64, text: impl FnOnce(&mut Draw) -> String) {
        self.put(percent, Compared::Exact, text);
    }

    /// Adds an option in `percent` of the cases. With the option, results depend on random choices
    /// and are compared by distribution.
    pub(crate) fn chance(&mut self, percent: u64, text: impl FnOnce(&mut Draw) -> String) {
        self.put(percent, Compared::Chance, text);
    }

    fn put(&mut self, percent: u64, compared: Compared, text: impl FnOnce(&mut Draw) -> String) {
        if self.draw.likely(percent) {
            let text = text(self.draw);
            self.options.push(Opt { text, needed: false, compared });
        }
    }

    /// Adds the option `word`, which has no value, in `percent` of the cases.
    pub(crate) fn flag(&mut self, percent: u64, word: &str) {
        self.may(percent, |_| word.to_owned());
    }

    /// Returns a random number of packets that take between about 2 ms and 1 s at this place's
    /// rate.
    pub(crate) fn packets(&mut self) -> u64 {
        let second = (self.rate / 8 / 1000).max(20);
        self.draw.spread(second.div_ceil(500).max(2), second)
    }

    /// Returns a random number of bytes: as many as [`packets`](Self::packets) packets have, but at
    /// least 3,000.
    pub(crate) fn bytes(&mut self) -> u64 {
        (self.packets() * 1000).max(3000)
    }
}

/// Returns a random time between `least` and `most` microseconds, as `tc` reads it.
pub(crate) fn time(draw: &mut Draw, least_us: u64, most_us: u64) -> String {
    format!("{}us", draw.spread(least_us, most_us))
}

/// Returns a random percentage between `least` and `most`, as `tc` reads it.
pub(crate) fn percent(draw: &mut Draw, least: u64, most: u64) -> String {
    let parts = draw.between(least * 10, most * 10);
    format!("{}.{}%", parts / 10, parts % 10)
}

const EXACT: Kind = Kind {
    id: "",
    compared: Compared::Exact,
    place: Place::Any,
    below: Below::Nothing,
    changes: true,
    hashes: false,
    options: |_| {},
};

const HASH: Kind = Kind { compared: Compared::Hash, hashes: true, ..EXACT };
const CHANCE: Kind = Kind { compared: Compared::Chance, ..EXACT };

/// All kinds that are run on the kernel. `sfq` and `netem` are compared exactly unless an option
/// makes them random (RED and `perturb`; loss, jitter and similar). [`LEFT_OUT`] lists the kinds
/// that are missing here.
pub const KINDS: &[Kind] = &[
    Kind { id: "pfifo", options: bare::pfifo, ..EXACT },
    Kind { id: "bfifo", options: bare::bfifo, ..EXACT },
    Kind { id: "pfifo_head_drop", options: bare::pfifo, ..EXACT },
    Kind { id: "pfifo_fast", changes: false, place: Place::Root, ..EXACT },
    Kind { id: "skbprio", options: bare::skbprio, ..EXACT },
    Kind { id: "blackhole", changes: false, ..EXACT },
    Kind { id: "plug", options: bare::plug, place: Place::Root, ..EXACT },
    Kind { id: "codel", options: bare::codel, ..EXACT },
    Kind { id: "etf", options: bare::etf, place: Place::Root, changes: false, ..EXACT },
    Kind { id: "fq", options: fair::fq, place: Place::Holds, ..EXACT },
    Kind { id: "fq_codel", options: fair::fq_codel, ..HASH },
    Kind { id: "sfq", options: fair::sfq, changes: false, ..HASH },
    Kind { id: "prio", options: classful::prio, below: Below::Bands, ..EXACT },
    Kind { id: "ets", options: classful::ets, below: Below::Bands, ..EXACT },
    Kind { id: "drr", below: Below::Classes, changes: false, ..EXACT },
    Kind { id: "qfq", below: Below::Classes, changes: false, ..EXACT },
    Kind {
        id: "htb",
        options: classful::htb,
        below: Below::Classes,
        place: Place::Holds,
        changes: false,
        ..EXACT
    },
    Kind {
        id: "hfsc",
        options: classful::hfsc,
        below: Below::Classes,
        place: Place::Holds,
        changes: false,
        ..EXACT
    },
    Kind { id: "tbf", options: classful::tbf, below: Below::One, place: Place::Holds, ..EXACT },
    // The options of a `cbs` do not change during the run: with lower slopes, a `cbs` can need
    // hours to earn back the credit that it owes from before the change.
    Kind {
        id: "cbs",
        options: classful::cbs,
        below: Below::One,
        place: Place::Root,
        changes: false,
        ..EXACT
    },
    Kind { id: "netem", options: random::netem, below: Below::One, place: Place::Holds, ..EXACT },
    Kind { id: "red", options: random::red, below: Below::One, ..CHANCE },
    Kind { id: "choke", options: random::choke, ..CHANCE },
    Kind { id: "pie", options: random::pie, ..CHANCE },
    Kind { id: "fq_pie", options: random::fq_pie, hashes: true, ..CHANCE },
    Kind { id: "dualpi2", changes: false, ..CHANCE },
    Kind { id: "cake", options: fair::cake, place: Place::Holds, ..CHANCE },
];

/// In [`LEFT_OUT`], an empty list of options stands for all options of a kind.
pub const ALL: &str = "*";

/// Kinds and options that are not compared with the kernel, and the reason. An empty list of
/// options stands for the whole kind.
pub const LEFT_OUT: &[(&str, &[&str], &str)] = &[
    ("mq", &[], "its classes are the device's transmit queues, and the kernel's device has one"),
    (
        "mqprio",
        &[],
        "its classes are the device's transmit queues, and the kernel's device has one",
    ),
    ("multiq", &[], "its bands are the device's transmit queues, and the kernel's device has one"),
    ("noop", &[], "tc cannot add it"),
    ("series", &[], "Linux does not have it"),
    (
        "noqueue",
        &[],
        "in Linux its device is never busy; here it keeps a packet while the device is busy",
    ),
    ("ingress", &[], "it sees no outgoing packets"),
    ("pfifo_fast", &["txqueuelen"], "in Linux this is an option of the device"),
    ("dualpi2", &[ALL], "tc 6.1 knows none of its options"),
    ("fq", &["bands", "priomap", "weights", "offload_horizon"], "tc 6.1 does not know it"),
    ("netem", &["seed"], "tc 6.1 does not know it"),
    ("etf", &["offload"], "it is refused without hardware"),
    ("htb", &["debug"], "without effect"),
    ("htb", &["offload"], "it is refused without hardware"),
    ("cbs", &["port_rate"], "Linux takes the speed from the driver"),
    ("prio", &["multiqueue"], "without effect, and refused by the kernel"),
    ("netem", &["distribution"], "the kernel's tc has no files with the distributions"),
    (
        "netem",
        &["corrupt"],
        "the recorder of the kernel identifies packets and marks by their bytes",
    ),
    (
        "cake",
        &["nonat"],
        "the kernel refuses it without connection tracking, even to switch it off",
    ),
];

/// Returns the row of the kind `id`, or `None` if the table has none.
#[must_use]
pub fn kind(id: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.id == id)
}
