//! The experiment of 2004: pairs of senders and receivers communicate over a loopback device. It
//! compares one transmit queue behind a lock for all senders with one queue per sender and no lock.
//!
//! The lock of Linux's loopback device protected only its counters. In this experiment the queue,
//! its counters and the way to the receivers are the same code in every design. The designs differ
//! only in whether senders share one queue and take its lock for each packet, or have one queue
//! each.
//!
//! In the stream load, a sender sends as fast as its packets return. In the request-response load,
//! the receiver of a pair answers each packet, and the sender waits for all answers to a burst.

mod queue;
mod rr;
mod stream;

use std::time::Duration;

use onramp_dev::Network;

use self::queue::{Own, Queues, Shared};
use crate::exchange::Talk;
use crate::lock::{Spin, StdMutex};
use crate::lockstat::{LockCounts, LockRow};
use crate::measure::{Latency, Rounds, Steps, rotated};
use crate::thread_group::Window;
use crate::{Error, Load};

/// Number of payload bytes in a packet.
pub const PAYLOAD: usize = 120;
/// Largest number of packets that a sender of a stream may have in flight.
pub const CREDITS: u32 = 64;
/// Largest number of packets in flight of all threads together.
pub const PACKETS_MAX: usize = 1 << 20;

/// A design: how senders share queues and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// One queue with its counters, behind a spinlock.
    Spinlock,
    /// One queue with its counters, behind a mutex whose waiters sleep.
    Mutex,
    /// One queue with its counters per sender, and no lock.
    PerQueue,
}

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of pairs (a sender and a receiver) to measure with, one after another.
    pub pairs: Vec<usize>,
    /// Measured time of each design in a round.
    pub window: Duration,
    /// Number of rounds. Each round starts with another design.
    pub rounds: usize,
    /// The work of the senders: a stream, or requests that are answered.
    pub load: Load,
}

/// Results of one design in one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Number of packets received per second, answers included.
    pub packets_per_second: f64,
    /// Number of bursts answered completely, per second; `None` for a stream, which has no bursts.
    pub transactions_per_second: Option<f64>,
    /// Processor time of the process per received packet, nanoseconds.
    pub cpu_ns_per_packet: f64,
    /// Number of context switches of the process per second.
    pub switches_per_second: f64,
}

/// The measurements of one design with one number of pairs.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The design that was measured.
    pub design: Design,
    /// Number of pairs of a sender and a receiver.
    pub pairs: usize,
    /// Results of the rounds, in order.
    pub rounds: Vec<Round>,
    /// Time from the first request of a burst to its last answer, over all rounds, nanoseconds;
    /// empty for a stream.
    pub latency: Latency,
    /// Statistics of the lock. They come from a separate round, because measuring them takes time.
    /// `None` for a design without a lock.
    pub lock: Option<LockRow>,
    /// Number of packets sent in all rounds, including the warm-up. Each of them was received and
    /// returned to its sender.
    pub packets: u64,
}

impl Design {
    /// All designs that the experiment measures.
    pub const ALL: [Self; 3] = [Self::Spinlock, Self::Mutex, Self::PerQueue];

    /// Returns the design's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spinlock => "spinlock",
            Self::Mutex => "mutex",
            Self::PerQueue => "per-queue",
        }
    }
}

impl Rounds for Measurement {
    type Round = Round;

    fn rounds(&self) -> &[Round] {
        &self.rounds
    }
}

/// Runs the experiment. Returns the measurements that have at least one round. A measurement fails
/// if threads cannot be started, or a packet is lost.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Vec<Measurement> {
    let mut cells = Vec::new();
    for &pairs in &plan.pairs {
        let empty = |design| Measurement {
            design,
            pairs,
            rounds: Vec::new(),
            latency: Latency::default(),
            lock: None,
            packets: 0,
        };
        let mut row = Design::ALL.map(empty);
        for round in 0..plan.rounds {
            for &design in rotated(&Design::ALL, round) {
                let (name, part) = (name(design, pairs), format!("round {}", round + 1));
                let found = steps.step(name, part, || measure(design, pairs, plan, false));
                let Some(outcome) = found else { continue };
                let cell = &mut row[design as usize];
                cell.packets += outcome.sent;
                cell.latency.merge(&outcome.latency);
                cell.rounds.push(outcome.round());
            }
        }
        for cell in &mut row {
            let (design, name) = (cell.design, name(cell.design, pairs));
            let found = steps.step(name, "locks", || measure(design, pairs, plan, true));
            let Some(outcome) = found else { continue };
            cell.packets += outcome.sent;
            cell.lock = outcome.kind.map(|kind| LockRow {
                name: "xmit_lock".to_owned(),
                kind,
                counts: outcome.lock,
                window_ns: outcome.window.ns,
            });
        }
        cells.extend(row.into_iter().filter(|cell| !cell.rounds.is_empty()));
    }
    cells
}

fn name(design: Design, pairs: usize) -> String {
    format!("{}, {pairs} pairs", design.name())
}

/// Results of one run of one design.
#[derive(Debug, Default)]
struct Outcome {
    window: Window,
    /// Number of packets received in the measured window.
    counted: u64,
    /// Number of bursts answered in the measured window.
    transactions: Option<u64>,
    latency: Latency,
    sent: u64,
    lock: LockCounts,
    kind: Option<&'static str>,
}

impl Outcome {
    fn round(&self) -> Round {
        let per_second = |count| self.window.per_second(count);
        Round {
            packets_per_second: per_second(self.counted),
            transactions_per_second: self.transactions.map(per_second),
            cpu_ns_per_packet: self.window.cpu_ns_per(self.counted),
            switches_per_second: per_second(self.window.usage.switches()),
        }
    }
}

fn measure(design: Design, pairs: usize, plan: &Plan, noted: bool) -> Result<Outcome, Error> {
    let network = match plan.load {
        Load::Stream => stream::network(pairs),
        Load::Rr(burst) => talk(pairs, burst, plan).network(),
    };
    match design {
        Design::Spinlock => through(&Shared::<Spin>::new(&network), &network, pairs, plan, noted),
        Design::Mutex => through(&Shared::<StdMutex>::new(&network), &network, pairs, plan, noted),
        Design::PerQueue => through(&Own::new(&network), &network, pairs, plan, noted),
    }
}

fn through<Q: Queues>(
    queues: &Q,
    network: &Network,
    pairs: usize,
    plan: &Plan,
    noted: bool,
) -> Result<Outcome, Error> {
    match plan.load {
        Load::Stream => stream::run(queues, network, pairs, plan.window, noted),
        Load::Rr(burst) => rr::run(queues, network, talk(pairs, burst, plan), noted),
    }
}

fn talk(pairs: usize, burst: u32, plan: &Plan) -> Talk {
    Talk::new(pairs, burst as usize, plan.window)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BURST_MAX;
    use crate::measure::Spread;

    /// Every design delivers every packet (`run` fails otherwise), and only designs with a lock
    /// have statistics of a lock.
    #[test]
    fn every_design_delivers_everything() {
        let window = Duration::from_millis(30);
        for load in [Load::Stream, Load::Rr(1), Load::Rr(5), Load::Rr(64)] {
            let plan = Plan { pairs: vec![1, 3], window, rounds: 2, load };
            let (cells, told) = Steps::whole(|steps| run(&plan, steps));
            assert_eq!((cells.len(), told), (6, 18));
            for (cell, design) in cells.iter().zip(Design::ALL.into_iter().cycle()) {
                assert_eq!((cell.design, cell.rounds.len()), (design, 2));
                let lock = cell.lock.as_ref().map_or("per-queue", |lock| lock.kind);
                assert_eq!(lock, design.name(), "the lock that the design is named after");
                let whole = u64::from(load.burst().map_or(1, |burst| 2 * burst));
                assert_eq!(cell.packets % whole, 0, "whole transactions: {cell:?}");
                for round in &cell.rounds {
                    let transactions = round.transactions_per_second;
                    assert_eq!(transactions.is_some(), load != Load::Stream);
                }
            }
            assert!(cells.iter().any(|cell| cell.packets > 0), "somebody had a turn");
        }
    }

    #[test]
    fn the_longest_burst_is_answered() {
        let window = Duration::from_millis(10);
        let plan = Plan { pairs: vec![1], window, rounds: 1, load: Load::Rr(BURST_MAX) };
        let (cells, _) = Steps::whole(|steps| run(&plan, steps));
        assert!(cells.iter().all(|cell| cell.packets % u64::from(2 * BURST_MAX) == 0), "{cells:?}");
    }

    #[test]
    fn figures_over_rounds() {
        let round = |rate| Round {
            packets_per_second: rate,
            transactions_per_second: None,
            cpu_ns_per_packet: 1.0,
            switches_per_second: 0.0,
        };
        let cell = |rates: [f64; 3]| Measurement {
            design: Design::Mutex,
            pairs: 1,
            rounds: rates.map(round).to_vec(),
            latency: Latency::default(),
            lock: None,
            packets: 0,
        };
        let (slow, fast) = (cell([1.0, 2.0, 4.0]), cell([3.0, 4.0, 4.0]));
        let rate = |round: &Round| round.packets_per_second;
        assert_eq!(slow.spread(rate).map(|spread| spread.median), Some(2.0));
        let ratio = fast.ratio(&slow, rate).expect("three rounds");
        assert_eq!(ratio, Spread { median: 2.0, min: 1.0, max: 3.0 });
    }
}
