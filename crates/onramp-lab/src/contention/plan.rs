//! The plan of the experiment.

use std::fmt;
use std::time::Duration;

use onramp_core::Spec;

use super::{Design, Load, Manners};
use crate::memory::Memory;

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

/// Returns how long threads send before they are measured for the time `window`: a fifth of it, but
/// at least 20 ms and at most half a second.
#[must_use]
pub fn warm_up(window: Duration) -> Duration {
    (window / 5).clamp(Duration::from_millis(20), Duration::from_millis(500))
}

impl Plan {
    /// Returns how long the threads of a run send before they are measured.
    #[must_use]
    pub fn warm_up(&self) -> Duration {
        warm_up(self.window)
    }

    /// Returns all combinations of settings that have `threads` threads, in the order of the first
    /// round.
    pub(super) fn cells(&self, threads: usize) -> Vec<Measurement> {
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
