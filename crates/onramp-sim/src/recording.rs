//! Recordings of what a real kernel did, packet by packet, and the comparison with what Onramp
//! does.
//!
//! A case is a folder with these files: `workload.csv` (the packets that came), `tc.txt` (the
//! tree), `opts` (the wire), `flows.csv` (pacing rates, optional), `changes.csv` (lines of `tc`
//! that ran while packets came, optional), `kernel.csv` (the packets that were sent or dropped, and
//! when) and `stats.txt` (what `tc -s -d` shows of qdiscs, classes and filters in the end,
//! optional). A case may also be one text that contains the same files, each after a line `==
//! NAME`; in such a text the packets that came and left may be written in a shorter form, see
//! [`compact()`].

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

/// The time of the kernel's monotonic clock at which each recording begins, in nanoseconds: 20 s.
const START_NS: u64 = 20_000_000_000;

/// A recorded case: a workload, a tree of qdiscs, and what the kernel did.
#[derive(Debug)]
pub struct Case {
    /// The name of the case's folder.
    pub name: String,
    setup: Setup,
    /// The rate of the wire in bits per second; 0 means infinitely fast.
    link_bps: u64,
    /// How long the recorder waits for packets to leave after it has sent the last packet, in
    /// nanoseconds. Then the recorder gives up.
    patience_ns: u64,
    /// Whether packets bypass an empty qdisc.
    bypass: bool,
    /// Whether the kernel's clock ticked also while the machine was idle.
    ticks: bool,
    arrivals: Vec<Arrival>,
    changes: Vec<Change>,
    recorded: Outcome,
    /// Whether packets left after the recorder had given up and before it ran `tc`.
    gave_up: bool,
    /// What `tc -s -d` showed of qdiscs, classes and filters in the end; `None` if the case does
    /// not have this text.
    shown: Option<String>,
    /// Figures of several runs of the kernel, for cases whose outcome is random.
    figures: Figures,
}

/// The reason why a case cannot be replayed.
#[derive(Debug)]
pub enum CaseError {
    /// A file cannot be read, or its content is invalid.
    Broken {
        /// The name of the file, with the line number where there is one.
        at: String,
        /// What is wrong with the file.
        why: String,
    },
    /// The tree uses something that Onramp does not support.
    Unsupported {
        /// The line of `tc.txt` or `changes.csv`.
        line: String,
        /// What is wrong with the line.
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

/// A line of `tc` that ran while packets came.
#[derive(Clone, Debug)]
struct Change {
    /// The time at which the process that ran `tc` woke up, in nanoseconds of the kernel's clock.
    from_ns: u64,
    /// The time at which `tc` had ended. The kernel made the change at some instant between
    /// `from_ns` and `to_ns`.
    to_ns: u64,
    line: String,
}

/// A packet that was sent or dropped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    time_ns: u64,
    packet: usize,
    ecn: u8,
    reason: Option<Reason>,
}

/// The reason for a drop, as precisely as a recording tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// The kernel reported no specific reason; for example an AQM below another qdisc, a shaper or
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
    /// The kernel's words for drop reasons. Where several words mean the same reason, Onramp writes
    /// the first of them.
    const WORDS: [(&str, Self); 12] = [
        ("GENERIC", Self::Unsaid),
        ("NOT_SPECIFIED", Self::Unsaid),
        ("TC_RECLASSIFY_LOOP", Self::Unsaid),
        ("QUEUE_PURGE", Self::Unsaid),
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

    /// Whether the two reasons match. The kernel has one word (`GENERIC`) for a plain drop of any
    /// kind, so a kernel reason of `Unsaid` matches each reason.
    fn is_like(self, kernel: Self) -> bool {
        self == kernel || kernel == Self::Unsaid
    }
}

/// The outcome of a run: which packets were sent and which were dropped, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    dequeues: Vec<Event>,
    /// The drops, sorted, because the order of drops at the same time means nothing.
    drops: Vec<Event>,
}

impl Outcome {
    /// Returns the times at which packets were sent, in nanoseconds since the beginning, in order.
    pub fn departures(&self) -> impl Iterator<Item = u64> {
        self.dequeues.iter().map(|event| event.time_ns - START_NS)
    }

    /// Returns the number of packets that were sent or dropped; each duplicate counts as one more.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.dequeues.len() + self.drops.len()
    }

    /// Returns the time at which the last packet was sent or dropped, in nanoseconds since the
    /// beginning; `None` if no packet was.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.dequeues.iter().chain(&self.drops).map(|event| event.time_ns - START_NS).max()
    }

    /// Returns the part of the outcome up to and including time `end_ns`, in nanoseconds since the
    /// beginning.
    #[must_use]
    pub fn until(&self, end_ns: u64) -> Self {
        self.before(START_NS + end_ns + 1)
    }

    /// Returns the part of the outcome before time `end_ns` of the kernel's clock.
    fn before(&self, end_ns: u64) -> Self {
        let early = |events: &[Event]| {
            events.iter().filter(|event| event.time_ns < end_ns).cloned().collect()
        };
        Self { dequeues: early(&self.dequeues), drops: early(&self.drops) }
    }

    /// Returns the outcome in the format of the file `kernel.csv`, but only with the columns that
    /// this module reads: without flows and sizes, and with `GENERIC` as the reason for every drop.
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
    /// Reads a case from its folder.
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
    /// did. For a random case, it compares with the mean over several seeds, unless the run of the
    /// first seed is already the same.
    #[must_use]
    pub fn replay(&self) -> Comparison {
        compare::compare(self)
    }

    /// Returns what `tc -s -d` shows after the workload has been played with seed `seed`: qdiscs,
    /// classes, and the filters of the root.
    #[must_use]
    pub fn listing(&self, seed: u64) -> String {
        listing::of(self, &self.replayed(seed))
    }

    /// Returns how the case can be compared: exactly, or, if the outcome is random, by
    /// distributions.
    #[must_use]
    pub fn mode(&self) -> Mode {
        compare::mode(self)
    }

    /// Returns what Onramp's qdiscs report after the workload has been played with seed `seed`.
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

    /// Returns the outcome that the kernel recorded.
    #[must_use]
    pub fn recorded(&self) -> &Outcome {
        &self.recorded
    }

    /// Compares the kernel's run with Onramp's run of seed `seed`, to the nanosecond. Returns the
    /// first differences, or, if the case contains what the kernel showed in the end, all
    /// differences of the output of `tc -s -d`; returns nothing if the runs are the same. The
    /// instant of a change by `tc` is known only to within some microseconds, so it is enough that
    /// the runs are the same for one instant in that time.
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

    /// Returns the first differences between the kernel's run and Onramp's run of seed `seed`
    /// before time `end_ns`, in nanoseconds since the beginning.
    #[must_use]
    pub fn exact_before(&self, seed: u64, end_ns: u64) -> Vec<String> {
        let early = |outcome: &Outcome| outcome.before(START_NS + end_ns);
        compare::first_differences(self, &early(&self.play(seed)), &early(&self.recorded))
    }

    /// Returns the totals of an outcome, for a comparison by distributions.
    #[must_use]
    pub fn totals(&self, outcome: &Outcome) -> Totals {
        Totals::of(self, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Onramp's drop reasons map to as many different reasons as the kernel's words distinguish.
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
