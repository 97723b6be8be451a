//! What a real kernel did, packet by packet, and whether we do the same.
//!
//! A case is a folder: `workload.csv` (what came), `tc.txt` (the tree), `opts` (the wire),
//! `flows.csv` (pacing rates, may be missing), `changes.csv` (lines of `tc` under way, may be
//! missing) and `kernel.csv` (what left or died, and when). The same files may stand in one text,
//! each behind a line `== NAME`.

mod compare;
mod frame;
mod machine;
mod read;
mod tc;
mod totals;

use std::path::PathBuf;

use onramp_core::Setup;
use onramp_core::view::QdiscView;
use onramp_queue::DropReason;

pub use self::compare::{Comparison, Mode};
pub use self::totals::Totals;

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
    /// Whether packets pass an empty qdisc by.
    bypass: bool,
    arrivals: Vec<Arrival>,
    changes: Vec<Change>,
    recorded: Outcome,
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

    /// What can be compared: everything, or, where chance has a part in it, distributions.
    #[must_use]
    pub fn mode(&self) -> Mode {
        compare::mode(self)
    }

    /// What our qdiscs say of themselves after the workload, where chance begins at `seed`.
    #[must_use]
    pub fn views(&self, seed: u64) -> Vec<QdiscView> {
        self.replayed(seed).1
    }

    /// What our qdiscs do, where chance begins at `seed`.
    #[must_use]
    pub fn play(&self, seed: u64) -> Outcome {
        self.replayed(seed).0
    }

    fn replayed(&self, seed: u64) -> (Outcome, Vec<QdiscView>) {
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

    /// Where the kernel's run and ours of `seed` first differ, to the nanosecond; nothing, if they
    /// are the same. If there are changes under way, the kernel made them at an instant that is
    /// known to some microseconds: it is enough that one of these fits.
    #[must_use]
    pub fn exact(&self, seed: u64) -> Vec<String> {
        let mut told = Vec::new();
        for guess in machine::guesses(self) {
            let (ours, _) = machine::replay(self, seed, &guess);
            let differences = compare::first_differences(self, &ours, &self.recorded);
            if differences.is_empty() {
                return differences;
            }
            if told.is_empty() {
                told = differences;
            }
        }
        told
    }

    /// What a run comes to.
    #[must_use]
    pub fn totals(&self, outcome: &Outcome) -> Totals {
        Totals::of(self, outcome)
    }
}
