//! Measures how exactly packets leave a shaper, and what that costs: with several slacks (how late
//! a runner may come on purpose) and spin budgets (how long it spins to come on time).
//!
//! One thread sends as fast as it may, so packets always wait in the qdisc, and the qdisc releases
//! one after the other at the rate of the measurement. The link's own time makes the intention of a
//! packet known: it is the instant with which the port calls the qdisc when the qdisc releases the
//! packet. A qdisc around the one that is measured writes this instant into the packet, and the
//! device compares it with the clock when it gets the packet. The difference is the error of the
//! departure.
//!
//! Time that a port cannot catch up on moves the instants themselves. It is no error of a single
//! packet, but is missing in the rate, and is counted by itself.

mod ours;
mod timed;

use std::fmt;
use std::time::Duration;

use crate::measure::{Latency, Rounds, Steps, rotated};

/// Size of a packet on the wire, bytes, headers included.
pub const PACKET: u32 = 1_000;
/// Number of bytes that a shaper sends at once after a pause: two packets.
pub const BURST: u32 = 2 * PACKET;
/// Smallest and greatest rate that can be measured, packets per second.
pub const RATES: std::ops::RangeInclusive<u64> = 10..=1_000_000;

/// A kind of qdisc that holds packets back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shaper {
    /// The token bucket filter, with a burst of [`BURST`] bytes.
    Tbf,
    /// The hierarchical token bucket, with one class and a burst of [`BURST`] bytes.
    Htb,
    /// Common applications kept enhanced, with a bandwidth.
    Cake,
    /// Fair queueing, with a greatest rate for each flow and a quantum of one packet.
    Fq,
}

impl Shaper {
    /// All kinds, in the order in which they are measured.
    pub const ALL: [Self; 4] = [Self::Tbf, Self::Htb, Self::Cake, Self::Fq];

    /// Returns the name of the kind, as `tc` has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tbf => "tbf",
            Self::Htb => "htb",
            Self::Cake => "cake",
            Self::Fq => "fq",
        }
    }

    /// Returns the commands of `tc`, without the word `tc`, that put the qdisc at the root of the
    /// device `dev`, for `rate` packets of [`PACKET`] bytes per second.
    pub(crate) fn lines(self, dev: &str, rate: u64) -> Vec<String> {
        let bits = rate * u64::from(PACKET) * 8;
        let root = |qdisc: String| format!("qdisc replace dev {dev} root {qdisc}");
        match self {
            Self::Tbf => vec![root(format!("tbf rate {bits}bit burst {BURST} limit 10000000"))],
            Self::Htb => vec![
                root("handle 1: htb default 1".to_owned()),
                format!(
                    "class add dev {dev} parent 1: classid 1:1 htb rate {bits}bit ceil {bits}bit \
                     burst {BURST} cburst {BURST} quantum {PACKET}"
                ),
            ],
            Self::Cake => vec![root(format!("cake bandwidth {bits}bit besteffort flowblind"))],
            Self::Fq => vec![root(format!(
                "fq maxrate {bits}bit quantum {PACKET} initial_quantum {PACKET} flow_limit 10000"
            ))],
        }
    }
}

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Kinds of qdiscs to measure.
    pub shapers: Vec<Shaper>,
    /// Rates to measure with, packets per second, each within [`RATES`].
    pub rates: Vec<u64>,
    /// Slacks to measure with.
    pub slacks: Vec<Duration>,
    /// Spin budgets to measure with.
    pub spins: Vec<Duration>,
    /// Measured time of each measurement in a round.
    pub window: Duration,
    /// Number of rounds. Each round starts with another measurement.
    pub rounds: usize,
}

/// One combination of settings that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The kind of qdisc.
    pub shaper: Shaper,
    /// The rate of the qdisc, packets per second.
    pub rate: u64,
    /// How late the runner may come on purpose.
    pub slack: Duration,
    /// How long the runner spins before each instant.
    pub spin: Duration,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shaper, rate, slack, spin } = self;
        let name = shaper.name();
        write!(f, "{name} at {rate} packets/s, slack {slack:?}, spin {spin:?}")
    }
}

impl Plan {
    /// Returns everything that is measured in a round.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &shaper in &self.shapers {
            for &rate in &self.rates {
                for &slack in &self.slacks {
                    cells.extend(self.spins.iter().map(|&spin| Cell { shaper, rate, slack, spin }));
                }
            }
        }
        cells
    }
}

/// Results of one measurement in one round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Number of packets that left per second.
    pub packets_per_second: f64,
    /// User and system time of the process for each packet that left, nanoseconds: of the runner
    /// and of the sender. `None` if none left.
    pub cpu_ns_per_packet: Option<f64>,
    /// The sender's part of `cpu_ns_per_packet`. `None` if none left.
    pub sender_cpu_ns_per_packet: Option<f64>,
    /// Number of times that the runner woke for each packet that left. `None` if none left.
    pub wakeups_per_packet: Option<f64>,
    /// Share of the window that the port could not catch up on, because its runner came too late.
    pub lost_share: f64,
}

/// The measurements of one combination of settings.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// What was measured.
    pub cell: Cell,
    /// Results of the rounds, in order.
    pub rounds: Vec<Round>,
    /// Time from the instant at which the qdisc released a packet until the device got it, over all
    /// packets of the windows of all rounds; nanoseconds.
    pub error: Latency,
    /// Number of packets that were sent in all rounds, warm-ups included.
    pub packets: u64,
    /// Number of packets that the qdisc dropped in all rounds, warm-ups included.
    pub dropped: u64,
}

impl Rounds for Measurement {
    type Round = Round;

    fn rounds(&self) -> &[Round] {
        &self.rounds
    }
}

/// Results of one run of one measurement.
#[derive(Debug)]
struct Outcome {
    round: Round,
    error: Latency,
    packets: u64,
    dropped: u64,
}

/// Runs the experiment. Returns the measurements that have at least one round. A measurement fails
/// if its link cannot be made, if no packet leaves, or if packets are lost or duplicated.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Vec<Measurement> {
    let empty = |cell| Measurement {
        cell,
        rounds: Vec::new(),
        error: Latency::default(),
        packets: 0,
        dropped: 0,
    };
    let mut all: Vec<Measurement> = plan.cells().into_iter().map(empty).collect();
    let order: Vec<usize> = (0..all.len()).collect();
    for round in 0..plan.rounds {
        for &place in rotated(&order, round) {
            let measurement = &mut all[place];
            let (cell, part) = (measurement.cell, format!("round {}", round + 1));
            let found = steps.step(cell, part, || ours::measure(cell, plan.window));
            let Some(outcome) = found else { continue };
            measurement.rounds.push(outcome.round);
            measurement.error.merge(&outcome.error);
            measurement.packets += outcome.packets;
            measurement.dropped += outcome.dropped;
        }
    }
    all.retain(|measurement| !measurement.rounds.is_empty());
    all
}
