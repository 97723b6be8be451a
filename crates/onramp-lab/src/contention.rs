//! Experiments in which many threads send through one queue. The designs of the transmit path are
//! measured one after another.
//!
//! Each combination of a design, a number of threads and the other settings runs twice in each
//! round. The first run measures only the resources of the process and the packets sent, for rates
//! and CPU time. The second run also times locks and send calls, for tables and histograms. Each
//! round runs all designs, starting with another one each time, so that other load on the machine
//! affects all designs alike.
//!
//! All designs, whatever their [`Manners`] (what a design does besides handing packets over, such
//! as yielding the processor), have in common: packets, credits and their sizes, the pools that
//! packets come from, the batches in which packets return to their pools, prefetching where packets
//! are taken and dequeued, and the quota (the most packets that a thread dequeues in one run of the
//! qdisc). With every design, a sender without credit sleeps until half of its packets have
//! returned.
//!
//! These differences between the designs remain in the comparison:
//!
//! * The kernel does not preempt the holder of a spinlock. Threads of a program can be preempted
//!   anywhere. If there are more threads than processors, the designs with locks lose time when a
//!   lock's holder is preempted. Threads that often yield while they hold no lock are preempted
//!   less often while they hold one.
//! * A sender whose packet is dropped within the sender's own call yields, with every design that
//!   tells the sender about the drop. Otherwise the sender would keep the lock's holder off the
//!   processor for a whole time slice.
//! * The design `onramp` counts and times everything that a `Link` counts and times; the other
//!   designs count only what they must.

#[cfg(test)]
mod conformance;
mod design;
mod drive;
mod row;
mod trial;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use onramp_core::Spec;

use crate::measure::{Steps, rotated};
use crate::memory::Memory;

pub use crate::Load;
pub use crate::manners::Manners;
pub use design::Design;
pub use row::{Ratio, Row};

/// Approximate time to start a sending thread and to wait for its end, nanoseconds.
const THREAD_NS: u64 = 200_000;

/// One measurement of the experiment: one design with one combination of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// The design that was measured.
    pub design: Design,
    /// Whether the design behaves as it originally did, or like Onramp. Onramp behaves the same
    /// with both settings, so its two rows show how well two runs agree.
    pub manners: Manners,
    /// Number of sending threads.
    pub threads: usize,
    /// Largest number of packets that each sender may have in flight; `None` means the design's own
    /// default.
    pub credits: Option<u32>,
    /// The allocator that packets come from.
    pub memory: Memory,
}

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Designs to measure, in the order of the first round.
    pub designs: Vec<Design>,
    /// Numbers of sending threads to measure with, one after another.
    pub threads: Vec<usize>,
    /// Number of queues of the device, each with its own qdisc.
    pub queues: usize,
    /// The qdisc in front of each queue of the device.
    pub qdisc: Spec,
    /// Kinds of behaviour (a design's original one, or that of Onramp) to measure, one after
    /// another.
    pub manners: Vec<Manners>,
    /// Time that the device takes for a packet, nanoseconds.
    pub device_ns: u64,
    /// Whether threads are bound to processors; thread after thread gets the next processor.
    pub pin: bool,
    /// Length of a run, without its warm-up.
    pub window: Duration,
    /// Number of rounds; each round runs all combinations of settings.
    pub rounds: usize,
    /// The work of the sending threads: a stream, or bursts whose end the sender waits for.
    pub load: Load,
    /// Numbers of packets that a sender may have in flight, measured one after another; `None`
    /// means the design's own default.
    pub credits: Vec<Option<u32>>,
    /// Allocators of packets, measured one after another. Only bare queues (queues without qdisc
    /// and device) support [`Memory::Malloc`]; with it, complete transmit paths are left out.
    pub memory: Vec<Memory>,
}

impl Plan {
    /// Returns how long the threads of a run send before they are measured.
    #[must_use]
    pub fn warm_up(&self) -> Duration {
        (self.window / 5).clamp(Duration::from_millis(20), Duration::from_millis(500))
    }

    /// Returns all combinations of settings that have `threads` threads, in the order of the first
    /// round.
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

    /// Returns the number of runs of the experiment.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.threads.iter().map(|threads| self.runs_with(*threads)).sum()
    }

    fn runs_with(&self, threads: usize) -> usize {
        2 * self.rounds * self.cells(threads).len()
    }

    /// Returns approximately how long the experiment will take.
    #[must_use]
    pub fn expected(&self) -> Duration {
        let with = |threads: &usize| {
            let threads_ns = u64::try_from(*threads).unwrap_or(u64::MAX).saturating_mul(THREAD_NS);
            let run = self.window + self.warm_up() + Duration::from_nanos(threads_ns);
            run.saturating_mul(u32::try_from(self.runs_with(*threads)).unwrap_or(u32::MAX))
        };
        self.threads.iter().map(with).fold(Duration::ZERO, Duration::saturating_add)
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

/// Runs the experiment.
///
/// The returned rows are ordered by number of threads, then by manners, then by the plan's order of
/// designs. A cell of which not even one run was measured has no row. A run fails if threads could
/// not be started or bound, if no packet leaves, or if packets were lost or duplicated.
///
/// # Panics
///
/// Panics if the plan has no rounds or no queues.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Vec<Row> {
    assert!(plan.rounds > 0 && plan.queues > 0, "at least one round, and one queue");
    rounds(plan, 0..plan.rounds, steps)
}

/// Runs only these rounds of the experiment; rounds are counted from 0.
pub(crate) fn rounds(plan: &Plan, numbers: Range<usize>, steps: &mut Steps<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for &threads in &plan.threads {
        let cells = plan.cells(threads);
        let mut found: Vec<Row> = cells.iter().map(|cell| Row::new(*cell)).collect();
        for round in numbers.clone() {
            for cell in rotated(&cells, round) {
                for timed in [false, true] {
                    let part = format!("round {} of {}", round + 1, plan.rounds);
                    let trial = steps.step(cell, part, || trial::run(plan, *cell, timed));
                    let row = found.iter_mut().find(|row| row.cell() == *cell);
                    if let Some((row, trial)) = row.zip(trial) {
                        row.add(trial);
                    }
                }
            }
        }
        rows.extend(found.into_iter().filter(Row::is_measured));
    }
    rows
}
