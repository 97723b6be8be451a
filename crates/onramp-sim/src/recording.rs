//! What a real kernel did, packet by packet, and whether we do the same.
//!
//! A case is a folder: `workload.csv` (what came), `tc.txt` (the tree), `opts` (the wire),
//! `flows.csv` (pacing rates, may be missing) and `kernel.csv` (what left or died, and when).

mod compare;
mod frame;
mod machine;
mod read;

use std::path::PathBuf;

use onramp_core::Setup;
use onramp_core::view::QdiscView;
use onramp_queue::DropReason;

pub use self::compare::{Comparison, Mode};

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

#[derive(Debug, Default)]
struct Outcome {
    dequeues: Vec<Event>,
    /// Sorted: the order of drops at one time means nothing.
    drops: Vec<Event>,
}

impl Case {
    /// Reads a case.
    ///
    /// # Errors
    ///
    /// [`CaseError`]: what is wrong with which file.
    pub fn read(folder: impl Into<PathBuf>) -> Result<Self, CaseError> {
        read::case(&folder.into())
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
        machine::replay(self, seed).1
    }
}
