//! Recordings of what a real kernel did with packets, one by one, and the comparison with what
//! Onramp does with the same packets.
//!
//! A case is a folder with these files: `workload.csv` (the packets that came to the qdiscs, and
//! when), `tc.txt` (the `tc` commands that built the tree of qdiscs), `opts` (the rate of the wire
//! and other options), `flows.csv` (pacing rates, optional), `changes.csv` (`tc` commands that ran
//! while packets came, optional), `kernel.csv` (the packets that the kernel sent or dropped, and
//! when) and `stats.txt` (what `tc -s -d` shows of qdiscs, classes and filters in the end,
//! optional). A case may also be one text that contains the same files, each after a line `==
//! NAME`. In such a text, the lists of packets that came to the qdiscs or left them may be written
//! in a shorter form, see [`compact()`].

mod compact;
mod compare;
mod figures;
mod files;
mod frame;
mod listing;
mod machine;
mod read;
mod short;
mod tc;
mod totals;

use std::path::PathBuf;

use onramp_core::Setup;
use onramp_core::view::QdiscView;
use onramp_queue::DropReason;

pub use self::compact::{compact, ours};
pub use self::compare::{Comparison, Mode};
pub use self::figures::Figures;
pub use self::totals::Totals;

use self::machine::Played;

/// The time at which each recording begins, in nanoseconds of the kernel's monotonic clock: 20 s.
const START_NS: u64 = 20_000_000_000;

/// A recorded case: a workload (the packets that came), a tree of qdiscs, and what the kernel did
/// with the packets.
#[derive(Debug)]
pub struct Case {
    /// The name of the case's folder.
    pub name: String,
    setup: Setup,
    /// The rate of the wire in bits per second; 0 means infinitely fast.
    link_bps: u64,
    /// How long the recorder (the program that made the recording) waits, after it has sent the
    /// last packet, for packets to leave the tree, in nanoseconds. After this time the recorder
    /// gives up.
    patience_ns: u64,
    /// Whether a packet that finds the qdisc empty bypasses it.
    bypass: bool,
    /// Whether the kernel's clock ticked even while the machine was idle.
    ticks: bool,
    arrivals: Vec<Arrival>,
    changes: Vec<Change>,
    recorded: Outcome,
    /// Whether packets left the tree after the recorder had given up but before it ran `tc`. If so,
    /// the output of `tc` is not compared.
    gave_up: bool,
    /// What `tc -s -d` showed of qdiscs, classes and filters at the end of the recording; `None` if
    /// the case does not contain this output.
    shown: Option<String>,
    /// Figures of several runs of the kernel, for cases whose outcome is random; empty for other
    /// cases.
    figures: Figures,
}

/// The reason why a case cannot be replayed.
#[derive(Debug)]
pub enum CaseError {
    /// A file cannot be read, or its content is invalid.
    Broken {
        /// The name of the file, and the number of the line if the error is in one line.
        at: String,
        /// What is wrong with the file.
        why: String,
    },
    /// The tree of qdiscs uses something that Onramp does not support.
    Unsupported {
        /// The line of `tc.txt` or `changes.csv` that Onramp does not accept.
        line: String,
        /// Why Onramp does not accept the line.
        error: Box<onramp_core::ConfigError>,
    },
}

impl std::fmt::Display for CaseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broken { at, why } => write!(f, "{at}: {why}"),
            Self::Unsupported { line, error } => write!(f, "`{line}`: {error}"),
        }
    }
}

impl std::error::Error for CaseError {}

/// A packet of the workload.
#[derive(Clone, Debug)]
struct Arrival {
    time_ns: u64,
    flow: u64,
    len: u32,
    priority: u32,
    ecn: u8,
    txtime_ns: u64,
    pacing_rate: u64,
}

/// A line of `tc` that ran while packets came, and changed the tree.
#[derive(Clone, Debug)]
struct Change {
    /// The time at which the process that ran `tc` woke up, in nanoseconds of the kernel's
    /// monotonic clock.
    from_ns: u64,
    /// The time at which `tc` had finished. The kernel made the change at some instant between
    /// `from_ns` and `to_ns`.
    to_ns: u64,
    line: String,
}

/// The event that a packet was sent or was dropped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    time_ns: u64,
    packet: usize,
    ecn: u8,
    reason: Option<Reason>,
}

/// The reason for a drop, as precisely as recordings tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// The kernel reported no specific reason. For example, an AQM below another qdisc, a shaper or
    /// a filter dropped the packet.
    Unsaid,
    Overlimit,
    Congested,
    FloodProtection,
    StepNonEcn,
    BandLimit,
    FlowLimit,
    HorizonLimit,
}

impl Reason {
    /// The kernel's words for drop reasons, each with the reason that it means. If several words
    /// mean the same reason, Onramp writes the first of these words.
    const WORDS: [(&str, Self); 13] = [
        ("GENERIC", Self::Unsaid),
        ("NOT_SPECIFIED", Self::Unsaid),
        ("TC_RECLASSIFY_LOOP", Self::Unsaid),
        ("QUEUE_PURGE", Self::Unsaid),
        ("TC_EGRESS", Self::Unsaid),
        ("OVERLIMIT", Self::Overlimit),
        ("MAXFLOWS", Self::Overlimit),
        ("CONGESTED", Self::Congested),
        ("L4S_STEP_NON_ECN", Self::StepNonEcn),
        ("FLOOD_PROTECTION", Self::FloodProtection),
        ("BAND_LIMIT", Self::BandLimit),
        ("FLOW_LIMIT", Self::FlowLimit),
        ("HORIZON_LIMIT", Self::HorizonLimit),
    ];

    fn read(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(name, _)| *name == word).map(|(_, reason)| *reason)
    }

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, reason)| *reason == self).map_or("", |(name, _)| name)
    }

    fn ours(reason: DropReason) -> Self {
        match reason {
            DropReason::Overlimit => Self::Overlimit,
            DropReason::Congested => Self::Congested,
            DropReason::FloodProtection => Self::FloodProtection,
            DropReason::L4sStepNonEcn => Self::StepNonEcn,
            DropReason::FqBandLimit => Self::BandLimit,
            DropReason::FqFlowLimit => Self::FlowLimit,
            DropReason::FqHorizonLimit => Self::HorizonLimit,
            _ => Self::Unsaid,
        }
    }

    /// Whether a reason of Onramp's run matches the kernel's reason. The kernel has one word
    /// (`GENERIC`) for plain drops of any kind, so the kernel's `Unsaid` matches every reason.
    fn is_like(self, kernel: Self) -> bool {
        self == kernel || kernel == Self::Unsaid
    }
}

/// The outcome of a run: which packets were sent and which were dropped, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    dequeues: Vec<Event>,
    /// The drops, sorted by time and then by packet, because the order of drops at the same time
    /// has no meaning.
    drops: Vec<Event>,
}

impl Outcome {
    /// Returns the times at which packets were sent, in order, in nanoseconds since the beginning
    /// of the recording.
    pub fn departures(&self) -> impl Iterator<Item = u64> {
        self.dequeues.iter().map(|event| event.time_ns - START_NS)
    }

    /// Returns the number of packets that were sent or dropped. If a qdisc duplicated a packet,
    /// each copy is counted, too.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.dequeues.len() + self.drops.len()
    }

    /// Returns the time at which the last packet was sent or dropped, in nanoseconds since the
    /// beginning of the recording; `None` if no packet was sent or dropped.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.dequeues.iter().chain(&self.drops).map(|event| event.time_ns - START_NS).max()
    }

    /// Returns the events of this outcome up to and including the time `end_ns`, in nanoseconds
    /// since the beginning of the recording.
    #[must_use]
    pub fn until(&self, end_ns: u64) -> Self {
        self.before(START_NS + end_ns + 1)
    }

    /// Returns the events of this outcome before the time `end_ns`, in nanoseconds of the kernel's
    /// monotonic clock.
    fn before(&self, end_ns: u64) -> Self {
        let early = |events: &[Event]| {
            events.iter().filter(|event| event.time_ns < end_ns).cloned().collect()
        };
        Self { dequeues: early(&self.dequeues), drops: early(&self.drops) }
    }

    /// Returns the outcome in the format of the file `kernel.csv`, with only the columns that this
    /// module reads: the columns for flows and sizes are missing. The reason of every drop is
    /// written as `GENERIC`.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = String::from("event,time_ns,idx,ecn,reason\n");
        let rows = self.dequeues.iter().map(|event| ("deq", event, ""));
        for (what, event, why) in rows.chain(self.drops.iter().map(|e| ("drop", e, "GENERIC"))) {
            let Event { time_ns, packet, ecn, .. } = event;
            text += &format!("{what},{},{packet},{ecn},{why}\n", time_ns - START_NS);
        }
        text
    }
}

impl Case {
    /// Reads a case from the files in its folder.
    ///
    /// # Errors
    ///
    /// [`CaseError`]: says which file is wrong, and why.
    pub fn read(folder: impl Into<PathBuf>) -> Result<Self, CaseError> {
        let folder = folder.into();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        read::case(&name, &files::Files::of_folder(&folder))
    }

    /// Reads a case from one text that contains all files, each after a line `== NAME`.
    ///
    /// # Errors
    ///
    /// [`CaseError`]: says which file is wrong, and why.
    pub fn parse(name: &str, text: &str) -> Result<Self, CaseError> {
        read::case(name, &files::Files::of_text(name, text))
    }

    /// Plays the workload through Onramp's qdiscs and compares the outcome with what the kernel
    /// did. If the outcome of the case is random and Onramp's run with the first seed differs from
    /// the kernel's run, compares the kernel's run with the mean of Onramp's runs with several
    /// seeds.
    #[must_use]
    pub fn replay(&self) -> Comparison {
        compare::compare(self)
    }

    /// Plays the workload with the seed `seed` and returns what `tc -s -d` would then show of
    /// Onramp's tree: the qdiscs, the classes, and the filters of the root and in front of it.
    #[must_use]
    pub fn listing(&self, seed: u64) -> String {
        listing::of(self, &self.replayed(seed))
    }

    /// Returns how the kernel's run and Onramp's runs of this case are compared: exactly, or by
    /// distributions if the outcome is random.
    #[must_use]
    pub fn mode(&self) -> Mode {
        compare::mode(self)
    }

    /// Plays the workload with the seed `seed` and returns what Onramp's qdiscs then report about
    /// themselves.
    #[must_use]
    pub fn views(&self, seed: u64) -> Vec<QdiscView> {
        self.replayed(seed).views
    }

    /// Plays the workload through Onramp's qdiscs with seed `seed` and returns the outcome.
    #[must_use]
    pub fn play(&self, seed: u64) -> Outcome {
        self.replayed(seed).outcome
    }

    fn replayed(&self, seed: u64) -> Played {
        let guess = machine::guesses(self).swap_remove(0);
        machine::replay(self, seed, &guess)
    }

    /// Returns the kinds of the qdiscs in the tree.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.setup.specs().map(|spec| spec.kind().id)
    }

    /// Returns what the kernel did: the outcome of the recorded run.
    #[must_use]
    pub fn recorded(&self) -> &Outcome {
        &self.recorded
    }

    /// Compares the kernel's run with Onramp's run of seed `seed`, to the nanosecond. Returns the
    /// first difference in the packets sent and the first in the packets dropped. If there is none,
    /// returns differences of the output of `tc -s -d`, if the case contains that output. Returns
    /// nothing if the runs are the same. The instant of a change by `tc` is known only to within
    /// some microseconds, so several instants are tried, and it is enough that the runs are the
    /// same for one of them.
    #[must_use]
    pub fn exact(&self, seed: u64) -> Vec<String> {
        let mut told = Vec::new();
        for guess in machine::guesses(self) {
            let ours = machine::replay(self, seed, &guess);
            let mut differences = compare::first_differences(self, &ours.outcome, &self.recorded);
            if differences.is_empty() {
                differences = listing::differences(self, &ours);
            }
            if differences.is_empty() {
                return differences;
            }
            if told.is_empty() {
                told = differences;
            }
        }
        told
    }

    /// Compares those events of the kernel's run and of Onramp's run with seed `seed` that happened
    /// before the time `end_ns`, in nanoseconds since the beginning of the recording. Returns the
    /// first difference in the packets sent and the first in the packets dropped.
    #[must_use]
    pub fn exact_before(&self, seed: u64, end_ns: u64) -> Vec<String> {
        let early = |outcome: &Outcome| outcome.before(START_NS + end_ns);
        compare::first_differences(self, &early(&self.play(seed)), &early(&self.recorded))
    }

    /// Returns the totals of an outcome of this case, by which random outcomes are compared.
    #[must_use]
    pub fn totals(&self, outcome: &Outcome) -> Totals {
        Totals::of(self, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drop reason for which the kernel has a separate word maps to a `Reason` of its own, and
    /// two such reasons never match. Every other drop reason maps to `Unsaid`.
    #[test]
    fn reasons_are_as_far_apart_as_the_kernels() {
        let known = [
            (DropReason::Overlimit, Reason::Overlimit, "OVERLIMIT"),
            (DropReason::Congested, Reason::Congested, "CONGESTED"),
            (DropReason::FloodProtection, Reason::FloodProtection, "FLOOD_PROTECTION"),
            (DropReason::L4sStepNonEcn, Reason::StepNonEcn, "L4S_STEP_NON_ECN"),
            (DropReason::FqBandLimit, Reason::BandLimit, "BAND_LIMIT"),
            (DropReason::FqFlowLimit, Reason::FlowLimit, "FLOW_LIMIT"),
            (DropReason::FqHorizonLimit, Reason::HorizonLimit, "HORIZON_LIMIT"),
        ];
        for &reason in DropReason::ALL {
            let of = known.iter().find(|(ours, ..)| *ours == reason);
            let expected = of.map_or(Reason::Unsaid, |(_, reason, _)| *reason);
            assert_eq!(Reason::ours(reason), expected, "{reason:?}");
        }
        for (_, reason, word) in known {
            assert_eq!((reason.word(), Reason::read(word)), (word, Some(reason)));
            assert!(reason.is_like(reason) && reason.is_like(Reason::Unsaid));
            assert!(!Reason::Unsaid.is_like(reason), "{word}: a plain drop is not of any kind");
            for (_, other, _) in known.iter().filter(|(_, other, _)| *other != reason) {
                assert!(!reason.is_like(*other), "{word}");
            }
        }
        assert_eq!((Reason::Unsaid.word(), Reason::read("")), ("GENERIC", None));
    }
}
