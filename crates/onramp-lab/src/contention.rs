//! Many threads in front of one queue: one design of the transmit path after another.
//!
//! Every cell (a design with so many threads) runs twice a round: once with nothing measured but
//! the process's account and the packets sent, for rates and CPU time; once with clocks at locks
//! and calls, for tables and histograms. All designs run in each round, beginning with another in
//! each, so that what else the machine does meets all of them.
//!
//! The designs have in common, whatever the [`Manners`]: packets, credits and their sizes, the
//! pools that packets come from and the batches in which they go home, look-ahead where packets are
//! taken and dequeued, the quota of a run, and that a sender without credit sleeps until half of
//! its packets came home. What else a program does beside its design is a matter of manners.
//!
//! What the comparison does not hide:
//!
//! * The kernel does not preempt the holder of a spinlock. Threads of a program are preempted
//!   anywhere, and with more threads than processors the lock designs suffer from that. The more
//!   often threads give way while they hold nothing, the rarer it is.
//! * A sender whose packet is dropped in its own call gives way, with every design that tells it
//!   so. Otherwise it would keep the lock's holder from the processor for a whole time slice.
//! * `onramp` counts and times what a `Link` counts and times; the others only what they must.

#[cfg(test)]
mod conformance;
mod design;
mod drive;
mod row;
mod trial;

use std::fmt;
use std::time::Duration;

use onramp_core::Spec;

use crate::Error;
use crate::measure::rotated;
use crate::memory::Memory;

pub use crate::Load;
pub use design::Design;
pub use row::{Ratio, Row};

/// What designs do beside their way of keeping threads from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    /// Each as it was: the designs of Linux never give way by themselves, and the queues of other
    /// crates have a thread of their own that drains.
    Linux,
    /// Each as Onramp: where there are more senders than processors, a sender that has sent for
    /// [`Sender::SLICE`](onramp::Sender::SLICE) gives way; a sender asks for the line of a
    /// lock-free list before it reads the clock; and the senders of a queue drain it.
    Equal,
}

impl Manners {
    /// Both.
    pub const ALL: &[Self] = &[Self::Linux, Self::Equal];

    /// As on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Equal => "equal",
        }
    }
}

/// What runs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// The design.
    pub design: Design,
    /// What it does beside. Onramp does the same with both: its rows show how well two runs agree.
    pub manners: Manners,
    /// Sending threads.
    pub threads: usize,
    /// Packets that each may have below it; `None`: as many as the design has by itself.
    pub credits: Option<u32>,
    /// Where packets come from.
    pub memory: Memory,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Designs, in the order of the first round.
    pub designs: Vec<Design>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Queues of the device, each with a qdisc of its own.
    pub queues: usize,
    /// The qdisc.
    pub qdisc: Spec,
    /// What designs do beside, one after another.
    pub manners: Vec<Manners>,
    /// Time that the device takes for a packet, nanoseconds.
    pub device_ns: u64,
    /// Threads are bound to processors, in turn.
    pub pin: bool,
    /// Length of a run, without its warm-up.
    pub window: Duration,
    /// Rounds.
    pub rounds: usize,
    /// What threads do.
    pub load: Load,
    /// Packets that a sender may have below it, one number after another; `None`: as many as the
    /// design has by itself.
    pub credits: Vec<Option<u32>>,
    /// Where packets come from, one after another. Only queues alone have [`Memory::Malloc`]; with
    /// it, transmit paths are left out.
    pub memory: Vec<Memory>,
}

impl Plan {
    /// What threads do before they are measured.
    #[must_use]
    pub fn warm_up(&self) -> Duration {
        (self.window / 5).clamp(Duration::from_millis(20), Duration::from_millis(500))
    }

    /// The cells with so many threads, in the order of the first round.
    fn cells(&self, threads: usize) -> Vec<Measurement> {
        let mut cells = Vec::new();
        for &manners in &self.manners {
            for &design in &self.designs {
                for &credits in &self.credits {
                    let memory = self.memory.iter().copied();
                    let memory =
                        memory.filter(|memory| *memory == Memory::Pool || design.is_peer());
                    let cell = |memory| Measurement { design, manners, threads, credits, memory };
                    cells.extend(memory.map(cell));
                }
            }
        }
        cells
    }

    /// How long it will take, about.
    #[must_use]
    pub fn expected(&self) -> Duration {
        let cells: usize = self.threads.iter().map(|threads| self.cells(*threads).len()).sum();
        let runs = 2 * self.rounds * cells;
        (self.window + self.warm_up()) * u32::try_from(runs).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { design, manners, threads, .. } = self;
        write!(f, "{} with {threads} threads, {} manners", design.name(), manners.name())?;
        if let Some(credits) = self.credits {
            write!(f, ", {credits} credits")?;
        }
        if self.memory == Memory::Malloc { f.write_str(", malloc") } else { Ok(()) }
    }
}

/// Measures; tells `progress` before each run what it is about to do.
///
/// Rows come by number of threads, then by manners, then in the order of the designs asked for.
///
/// # Errors
///
/// [`Error`]: threads could not be started or bound, or packets do not add up.
///
/// # Panics
///
/// Panics when the plan has no rounds or no queues.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Vec<Row>, Error> {
    assert!(plan.rounds > 0 && plan.queues > 0, "at least one round, and one queue");
    let mut rows = Vec::new();
    for &threads in &plan.threads {
        let cells = plan.cells(threads);
        let mut found: Vec<Row> = cells.iter().map(|cell| Row::new(*cell)).collect();
        for round in 0..plan.rounds {
            for cell in rotated(&cells, round) {
                for timed in [false, true] {
                    let (round, of) = (round + 1, plan.rounds);
                    progress(&format!("{cell}, round {round} of {of}"));
                    let trial = trial::run(plan, *cell, timed)?;
                    if let Some(row) = found.iter_mut().find(|row| row.cell() == *cell) {
                        row.add(trial);
                    }
                }
            }
        }
        rows.extend(found);
    }
    Ok(rows)
}
