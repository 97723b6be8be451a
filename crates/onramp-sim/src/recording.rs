//! What a real kernel did, packet by packet, and whether we do the same.
//!
//! A case is a folder: `workload.csv` (what came), `tc.txt` (the tree), `opts` (the wire),
//! `flows.csv` (pacing rates, may be missing), `changes.csv` (lines of `tc` under way, may be
//! missing), `kernel.csv` (what left or died, and when) and `stats.txt` (what `tc -s -d` shows in
//! the end, of qdiscs, classes and filters; may be missing). The same files may stand in one text,
//! each behind a line `== NAME`; what came and what left may be shorter there: see [`compact()`].

mod compact;
mod compare;
mod figures;
mod frame;
mod listing;
mod machine;
mod read;
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

/// The recordings begin at 20 s of the kernel's monotonic clock.
const START_NS: u64 = 20_000_000_000;

/// A recorded case.
#[derive(Debug)]
pub struct Case {
    /// The name of its folder.
    pub name: String,
    setup: Setup,
    /// The wire's rate, bits per second; 0 = infinitely fast.
    link_bps: u64,
    /// How long the recorder waits for the last packet after it has sent it, before it gives up.
    patience_ns: u64,
    /// Whether packets pass an empty qdisc by.
    bypass: bool,
    /// Whether the kernel's clock ticked also when nothing went on.
    ticks: bool,
    arrivals: Vec<Arrival>,
    changes: Vec<Change>,
    recorded: Outcome,
    /// Packets left after the recorder had given up, and before `tc` looked.
    gave_up: bool,
    /// What `tc -s -d` showed in the end, of qdiscs, classes and filters, where it is known.
    shown: Option<String>,
    /// What several runs of the kernel came to, where chance has a part in it.
    figures: Figures,
}

/// Why a case cannot be replayed.
#[derive(Debug)]
pub enum CaseError {
    /// A file cannot be read, or says what cannot be.
    Broken {
        /// The file, with the line where there is one.
        at: String,
        /// What is wrong.
        why: String,
    },
    /// The tree has something that there is not here.
    Unsupported {
        /// The line of `tc.txt`.
        line: String,
        /// What is wrong with it.
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

/// A line of `tc` while packets came.
#[derive(Clone, Debug)]
struct Change {
    /// The process that ran `tc` woke up then.
    from_ns: u64,
    /// And `tc` had ended then: somewhere between, the kernel made the change.
    to_ns: u64,
    line: String,
}

/// A packet that left or died.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    time_ns: u64,
    packet: usize,
    ecn: u8,
    reason: Option<Reason>,
}

/// Why it died, as far as a recording tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// The kernel told nothing of it: an AQM below another qdisc, a shaper, a filter.
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
    /// The kernel's words, of which the first of a reason is the one that is written.
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

    /// The kernel has one word (`GENERIC`) for a plain drop of any kind.
    fn is_like(self, kernel: Self) -> bool {
        self == kernel || kernel == Self::Unsaid
    }
}

/// What a run did: which packets left and died, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    dequeues: Vec<Event>,
    /// Sorted: the order of drops at one time means nothing.
    drops: Vec<Event>,
}

impl Outcome {
    /// When packets left, nanoseconds from the beginning, in order.
    pub fn departures(&self) -> impl Iterator<Item = u64> {
        self.dequeues.iter().map(|event| event.time_ns - START_NS)
    }

    /// How many packets left and died; each duplicate is one more.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.dequeues.len() + self.drops.len()
    }

    /// When the last packet left or died, nanoseconds from the beginning; none: nobody did.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.dequeues.iter().chain(&self.drops).map(|event| event.time_ns - START_NS).max()
    }

    /// What happened up to this time, nanoseconds from the beginning.
    #[must_use]
    pub fn until(&self, end_ns: u64) -> Self {
        self.before(START_NS + end_ns + 1)
    }

    /// What happened before this time of the kernel's clock.
    fn before(&self, end_ns: u64) -> Self {
        let early = |events: &[Event]| {
            events.iter().filter(|event| event.time_ns < end_ns).cloned().collect()
        };
        Self { dequeues: early(&self.dequeues), drops: early(&self.drops) }
    }

    /// As the file `kernel.csv` has it, as far as it is read: without flows and sizes, and without
    /// reasons of drops.
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
    /// Reads a case.
    ///
    /// # Errors
    ///
    /// [`CaseError`]: what is wrong with which file.
    pub fn read(folder: impl Into<PathBuf>) -> Result<Self, CaseError> {
        let folder = folder.into();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        read::case(&name, &read::Files::of_folder(&folder))
    }

    /// Reads a case whose files stand in one text, each behind a line `== NAME`.
    ///
    /// # Errors
    ///
    /// [`CaseError`]: what is wrong with which file.
    pub fn parse(name: &str, text: &str) -> Result<Self, CaseError> {
        read::case(name, &read::Files::of_text(name, text))
    }

    /// Plays the workload through our qdiscs, and compares with what the kernel did: of one seed,
    /// or, where chance has a part in it, of the means over several.
    #[must_use]
    pub fn replay(&self) -> Comparison {
        compare::compare(self)
    }

    /// What `tc -s -d` shows after the workload: qdiscs, classes, and the filters of the root.
    #[must_use]
    pub fn listing(&self, seed: u64) -> String {
        listing::of(self, &self.replayed(seed))
    }

    /// What can be compared: everything, or, where chance has a part in it, distributions.
    #[must_use]
    pub fn mode(&self) -> Mode {
        compare::mode(self)
    }

    /// What our qdiscs say of themselves after the workload, where chance begins at `seed`.
    #[must_use]
    pub fn views(&self, seed: u64) -> Vec<QdiscView> {
        self.replayed(seed).views
    }

    /// What our qdiscs do, where chance begins at `seed`.
    #[must_use]
    pub fn play(&self, seed: u64) -> Outcome {
        self.replayed(seed).outcome
    }

    fn replayed(&self, seed: u64) -> Played {
        let guess = machine::guesses(self).swap_remove(0);
        machine::replay(self, seed, &guess)
    }

    /// The kinds of the tree's qdiscs.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.setup.specs().map(|spec| spec.kind().id)
    }

    /// What the kernel did.
    #[must_use]
    pub fn recorded(&self) -> &Outcome {
        &self.recorded
    }

    /// Where the kernel's run and ours of `seed` first differ, to the nanosecond, and all that
    /// `tc -s -d` shows otherwise in the end, if the case has what the kernel showed; nothing, if
    /// they are the same. If there are changes under way, the kernel made them at an instant that
    /// is known to some microseconds: it is enough that one of these fits.
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

    /// Where the two first differ before this time, nanoseconds from the beginning.
    #[must_use]
    pub fn exact_before(&self, seed: u64, end_ns: u64) -> Vec<String> {
        let early = |outcome: &Outcome| outcome.before(START_NS + end_ns);
        compare::first_differences(self, &early(&self.play(seed)), &early(&self.recorded))
    }

    /// What a run comes to.
    #[must_use]
    pub fn totals(&self, outcome: &Outcome) -> Totals {
        Totals::of(self, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ours are told apart as far as the kernel's words tell them.
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
