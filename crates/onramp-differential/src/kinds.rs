//! The kinds of qdiscs: how much of each can be compared, where it may stand, and how its options
//! are chosen. One row says it all.

mod bare;
mod classful;
mod fair;
mod random;

pub(crate) use self::classful::{drr_class, hfsc_class, htb_class, qfq_class};

use crate::draw::Draw;
use crate::plan::{Compared, Opt};

/// Where a qdisc may stand so that it behaves as it is documented to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Anywhere.
    Any,
    /// At the root alone.
    Root,
    /// At the root, and below qdiscs that expect children to hold packets back: a scheduler of
    /// Linux stops at a child that has packets and gives none.
    Holds,
}

/// What stands below a qdisc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// Nothing.
    Nothing,
    /// One qdisc, below class 1.
    One,
    /// A qdisc for each band; the options say how many there are.
    Bands,
    /// Classes that are added.
    Classes,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its name.
    pub id: &'static str,
    /// How much can be compared, whatever its options are.
    pub compared: Compared,
    /// Where it may stand.
    pub place: Place,
    /// What stands below it.
    pub below: Below,
    /// Whether its options may change under way.
    pub changes: bool,
    /// Whether it hashes flows to buckets. Here flows whose numbers follow each other never share
    /// one, in Linux some do: only few flows are compared.
    pub hashes: bool,
    /// Chooses its options.
    pub options: fn(&mut Site<'_>),
}

/// Where options are chosen for.
#[derive(Debug)]
pub struct Site<'a> {
    /// Chance.
    pub draw: &'a mut Draw,
    /// Bits per second that it is likely to get.
    pub rate: u64,
    /// It stands at the root.
    pub root: bool,
    /// Options change while it stands: what was chosen once is left out.
    pub changing: bool,
    /// Lines change under way: nothing may hang on when timers fire that have slack.
    pub strict: bool,
    /// Bands that it has.
    pub bands: u16,
    /// What was chosen.
    pub options: Vec<Opt>,
}

impl Site<'_> {
    /// An option that has to be there.
    pub(crate) fn need(&mut self, text: impl Into<String>) {
        self.options.push(Opt { text: text.into(), needed: true, compared: Compared::Exact });
    }

    /// The same, with chance.
    pub(crate) fn needs(&mut self, text: impl FnOnce(&mut Draw) -> String) {
        let text = text(self.draw);
        self.need(text);
    }

    /// An option that is there in so many of a hundred cases.
    pub(crate) fn may(&mut self, percent: u64, text: impl FnOnce(&mut Draw) -> String) {
        self.put(percent, Compared::Exact, text);
    }

    /// The same, of one that lets chance in.
    pub(crate) fn chance(&mut self, percent: u64, text: impl FnOnce(&mut Draw) -> String) {
        self.put(percent, Compared::Chance, text);
    }

    fn put(&mut self, percent: u64, compared: Compared, text: impl FnOnce(&mut Draw) -> String) {
        if self.draw.likely(percent) {
            let text = text(self.draw);
            self.options.push(Opt { text, needed: false, compared });
        }
    }

    /// A flag.
    pub(crate) fn flag(&mut self, percent: u64, word: &str) {
        self.may(percent, |_| word.to_owned());
    }

    /// Packets that take from a millisecond to a second at the rate here.
    pub(crate) fn packets(&mut self) -> u64 {
        let second = (self.rate / 8 / 1000).max(20);
        self.draw.spread(second.div_ceil(500).max(2), second)
    }

    /// The same, in bytes.
    pub(crate) fn bytes(&mut self) -> u64 {
        (self.packets() * 1000).max(3000)
    }
}

/// A time of tc between these microseconds.
pub(crate) fn time(draw: &mut Draw, least_us: u64, most_us: u64) -> String {
    format!("{}us", draw.spread(least_us, most_us))
}

/// A share of tc, in percent.
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

/// All kinds that are put to the kernel. `sfq` and `netem` are exact until an option lets chance in
/// (RED and `perturb`; loss, jitter and their like): see the options. The list of what is not here
/// is [`LEFT_OUT`].
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
    // Not changed under way: one that owes much by old slopes can wait for hours.
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

/// All options of a kind.
pub const ALL: &str = "*";

/// Kinds and options that are not put to the kernel, and why.
pub const LEFT_OUT: &[(&str, &[&str], &str)] = &[
    ("mq", &[], "its classes are the device's queues, and the kernel's device has one"),
    ("mqprio", &[], "its classes are the device's queues, and the kernel's device has one"),
    ("multiq", &[], "its bands are the device's queues, and the kernel's device has one"),
    ("noop", &[], "tc cannot add it"),
    ("noqueue", &[], "its device is never busy, in Linux; here it keeps a packet for it"),
    ("ingress", &[], "it sees no packet that leaves"),
    ("clsact", &[], "its filters are asked by nobody here"),
    ("pfifo_fast", &["txqueuelen"], "an option of the device's, in Linux"),
    ("dualpi2", &[ALL], "tc 6.1 knows none of its options"),
    ("fq", &["bands", "priomap", "weights", "offload_horizon"], "tc 6.1 does not know it"),
    ("netem", &["seed"], "tc 6.1 does not know it"),
    ("etf", &["offload"], "it is refused without hardware"),
    ("htb", &["debug"], "without effect"),
    ("htb", &["offload"], "it is refused without hardware"),
    ("cbs", &["port_rate"], "Linux asks the driver"),
    ("prio", &["multiqueue"], "without effect, and refused by the kernel"),
    ("netem", &["distribution"], "the kernel's tc has no tables"),
    ("netem", &["corrupt"], "the recorder of the kernel knows packets, and marks, by their bytes"),
    ("cake", &["nonat"], "it is refused without connection tracking, also to be switched off"),
];

/// The row of a kind.
#[must_use]
pub fn kind(id: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.id == id)
}
