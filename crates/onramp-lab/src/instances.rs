//! The experiment of 2009: it measures how the packet rate of a design changes as more and more
//! senders use it.
//!
//! The transmit paths, the packets and the way of measuring are those of [`contention`]. For each
//! design and each round, this module divides the rate with each number of senders by the rate with
//! the first number.
//!
//! Source: the measurements of 2009 on netdev, in which 8 senders together sent half as many
//! packets as one sender alone.

use std::time::Duration;

use onramp_core::Spec;

use crate::Load;
use crate::contention::{self, Design, Manners};
use crate::measure::{Latency, Rounds, Spread, Steps};
use crate::memory::Memory;

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Designs to measure.
    pub designs: Vec<Design>,
    /// Numbers of senders to measure with. The rate with each number is compared with the rate with
    /// the first number.
    pub threads: Vec<usize>,
    /// The qdisc that all designs have in front of the device.
    pub qdisc: Spec,
    /// Time that the device takes per packet, nanoseconds.
    pub device_ns: u64,
    /// Whether threads are bound to processors; thread after thread gets the next processor.
    pub pin: bool,
    /// Time for which each combination of a design and a number of senders is measured in a round.
    pub window: Duration,
    /// Number of rounds. Each round starts with another design.
    pub rounds: usize,
    /// The work of the senders: a stream, or bursts whose end the sender waits for.
    pub load: Load,
}

/// The measurements of one design with one number of senders.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The design that was measured.
    pub design: Design,
    /// Number of senders.
    pub threads: usize,
    /// Results of the rounds, in order.
    pub rounds: Vec<Round>,
    /// Time from before a burst's first packet until all of the burst has left, over all rounds,
    /// nanoseconds; empty for a stream.
    pub latency: Latency,
}

/// Results of one design in one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Number of packets that left the device, per second.
    pub packets_per_second: f64,
    /// Number of bursts that left completely, per second; `None` for a stream, which has no bursts.
    pub transactions_per_second: Option<f64>,
    /// Processor time of the process per packet that left, nanoseconds; `None` if no packet left.
    pub cpu_ns_per_packet: Option<f64>,
    /// Packet rate divided by the rate with the first number of senders in the same round; `None`
    /// if that rate is zero or was not measured.
    pub scaling: Option<f64>,
    /// Jain's fairness index of the numbers of packets that the senders sent.
    pub jain: f64,
}

impl Rounds for Measurement {
    type Round = Round;

    fn rounds(&self) -> &[Round] {
        &self.rounds
    }
}

/// Runs the experiment. Returns the measurements that have at least one round. A measurement fails
/// if threads cannot be started or bound, or if packets are lost or duplicated.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Vec<Measurement> {
    let mut cells: Vec<Measurement> = Vec::new();
    for &design in &plan.designs {
        let empty = |&threads| {
            let latency = Latency::default();
            Measurement { design, threads, rounds: Vec::new(), latency }
        };
        cells.extend(plan.threads.iter().map(empty));
    }
    let whole = contention::Plan {
        designs: plan.designs.clone(),
        threads: plan.threads.clone(),
        queues: 1,
        qdisc: plan.qdisc.clone(),
        manners: vec![Manners::Equal],
        device_ns: plan.device_ns,
        pin: plan.pin,
        window: plan.window,
        rounds: plan.rounds,
        load: plan.load,
        credits: vec![None],
        memory: vec![Memory::Pool],
    };
    for number in 0..plan.rounds {
        // Let `contention` run one round at a time, so that both rates of a quotient come from the
        // same round.
        let rows = contention::rounds(&whole, number..number + 1, steps);
        let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
        let rate = |design: Design, threads: Option<&usize>| {
            let row = rows.iter().find(|r| r.design == design && Some(&r.threads) == threads);
            row.and_then(|row| median(row.packets_per_second())).unwrap_or(0.0)
        };
        for cell in &mut cells {
            let Measurement { design, threads, .. } = *cell;
            let row = rows.iter().find(|row| (row.design, row.threads) == (design, threads));
            let Some(row) = row else { continue };
            let packets_per_second = rate(design, Some(&threads));
            let first = rate(design, plan.threads.first());
            cell.latency.merge(&row.transaction);
            cell.rounds.push(Round {
                packets_per_second,
                transactions_per_second: median(row.transactions_per_second()),
                cpu_ns_per_packet: median(row.cpu_ns_per_packet()),
                scaling: (first > 0.0).then(|| packets_per_second / first),
                jain: median(row.jain()).unwrap_or(0.0),
            });
        }
    }
    cells.retain(|cell| !cell.rounds.is_empty());
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each round measures every design with every number of senders. `run` itself fails if packets
    /// are lost.
    #[test]
    fn every_design_is_measured_with_every_number_of_senders() {
        for load in [Load::Stream, Load::Rr(1), Load::Rr(5), Load::Rr(64)] {
            let plan = Plan {
                designs: vec![Design::Mutex, Design::Onramp],
                threads: vec![1, 3],
                qdisc: "pfifo".parse().expect("a qdisc"),
                device_ns: 0,
                pin: false,
                window: Duration::from_millis(30),
                rounds: 2,
                load,
            };
            let (cells, told) = Steps::whole(|steps| run(&plan, steps));
            let found: Vec<_> = cells.iter().map(|cell| (cell.design, cell.threads)).collect();
            let (mutex, onramp) = (Design::Mutex, Design::Onramp);
            assert_eq!(found, [(mutex, 1), (mutex, 3), (onramp, 1), (onramp, 3)]);
            assert!(told >= 8, "{told}");
            for cell in &cells {
                assert_eq!(cell.rounds.len(), 2);
                let own =
                    |round: &Round| cell.threads != 1 || round.scaling.is_none_or(|own| own == 1.0);
                assert!(cell.rounds.iter().all(own), "the first stands to itself as 1: {cell:?}");
                let known = |round: &Round| round.transactions_per_second.is_some();
                assert!(cell.rounds.iter().all(|round| known(round) == (load != Load::Stream)));
                assert!(load != Load::Stream || cell.latency.samples() == 0);
            }
        }
    }
}
