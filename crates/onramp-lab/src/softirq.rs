//! The experiment of 2001: pending work handed to a helper thread each time, against work done in
//! place, restarted a bounded number of times, with the helper woken only when that was not enough.
//!
//! Clients send a burst of requests, servers answer each, and a client goes on when all answers
//! are there. Requests and answers pass one queue: a pfifo, and a loopback behind it.
//!
//! Source: Molnár, softirq-2.4.10-A7 (linux-kernel, 26 September 2001), and `kernel/softirq.c` of
//! Linux 2.4 before and after it, by their behaviour.

mod in_link;
mod lab;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use onramp_core::{Clock, Instant};
use onramp_dev::{MonotonicClock, Network};

use self::in_link::InLink;
use self::lab::Softirq;
use crate::Error;
use crate::exchange::{Path, Talk, Talked, talk};
use crate::measure::{Latency, Rounds, rotated};

/// Bytes of payload in a packet.
pub const PAYLOAD: usize = 120;
/// Packets that may be on their way, of all threads.
pub const PACKETS_MAX: usize = 8_192;
/// The qdisc.
pub const QDISC: &str = "pfifo limit 16384";

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// A helper thread, called by each submission, which does one quota of work at a time.
    WakeAlways,
    /// Who submits, up to ten quotas in a row; then the helper, if anything is left.
    InPlace,
    /// A link of Onramp: senders, and the runner for what a busy port collects.
    Onramp,
    /// As before, and each submission ends with a flush that does not wait: nothing is left to be
    /// collected, as is best for a sender that waits for an answer.
    OnrampFlush,
    /// A link whose senders send at once; the runner does what a quota left.
    OnrampInline,
    /// A link whose runner alone sends.
    OnrampDedicated,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Clients, and as many servers.
    pub clients: usize,
    /// Requests that a client sends at once.
    pub burst: usize,
    /// How long each design is measured in a round.
    pub window: Duration,
    /// Rounds; the designs take turns in each.
    pub rounds: usize,
}

/// What one design did in one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Bursts answered, per second.
    pub transactions_per_second: f64,
    /// Context switches per second.
    pub switches_per_second: f64,
    /// Times that the helper or the runner was asked to come, per second.
    pub calls_per_second: f64,
    /// Of these, those for which it had to be woken.
    pub notifies_per_second: f64,
    /// The rest: a wake-up was not made, because it had become unnecessary.
    pub undone_per_second: f64,
    /// Times that the helper or the runner woke, per second.
    pub wakeups_per_second: f64,
    /// Of these, those that found nothing to do.
    pub idle_wakeups_per_second: f64,
    /// Quotas, or rounds of the runner, that were followed by another at once, per second.
    pub restarts_per_second: f64,
    /// Processor time of the process for each request and its answer, nanoseconds.
    pub cpu_ns_per_request: f64,
    /// From the first request of a burst to its last answer.
    pub latency: Latency,
}

/// A design.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The design.
    pub design: Design,
    /// Its rounds, in order.
    pub rounds: Vec<Round>,
    /// Of all rounds.
    pub latency: Latency,
    /// Requests in all rounds, warm-up included: each was answered.
    pub requests: u64,
}

impl Design {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::WakeAlways,
        Self::InPlace,
        Self::Onramp,
        Self::OnrampFlush,
        Self::OnrampInline,
        Self::OnrampDedicated,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WakeAlways => "wake-always",
            Self::InPlace => "in-place",
            Self::Onramp => "onramp",
            Self::OnrampFlush => "onramp-flush",
            Self::OnrampInline => "onramp-inline",
            Self::OnrampDedicated => "onramp-dedicated",
        }
    }
}

impl Rounds for Measurement {
    type Round = Round;

    fn rounds(&self) -> &[Round] {
        &self.rounds
    }
}

/// Runs the experiment; tells `told` what it is about to do.
///
/// # Errors
///
/// [`Error`] when threads cannot be had, or a request stays without its answer.
pub fn run(plan: &Plan, mut told: impl FnMut(&str)) -> Result<Vec<Measurement>, Error> {
    let empty = |design| {
        let latency = Latency::default();
        Measurement { design, rounds: Vec::new(), latency, requests: 0 }
    };
    let mut cells = Design::ALL.map(empty);
    for round in 0..plan.rounds {
        for &design in rotated(&Design::ALL, round) {
            told(&format!("round {}: {}", round + 1, design.name()));
            let (round, requests) = measure(design, plan)?;
            let cell = &mut cells[design as usize];
            cell.latency.merge(&round.latency);
            cell.rounds.push(round);
            cell.requests += requests;
        }
    }
    Ok(cells.into())
}

fn measure(design: Design, plan: &Plan) -> Result<(Round, u64), Error> {
    let talk = Talk::new(plan.clients, plan.burst, plan.window);
    let network = talk.network();
    match design {
        Design::WakeAlways | Design::InPlace => {
            through(&Softirq::new(&network, 2 * plan.clients, design), &network, talk)
        }
        _ => through(&InLink::new(&network, plan, design)?, &network, talk),
    }
}

/// What a path counts, up to now.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Times the helper or the runner was asked to come.
    calls: u64,
    /// Of these, those that had to wake it.
    notifies: u64,
    /// Times it woke.
    wakeups: u64,
    /// Of these, those that found nothing to do.
    idle: u64,
    restarts: u64,
}

fn through<P: Path<Counts = Counts>>(
    path: &P,
    network: &Network,
    what: Talk,
) -> Result<(Round, u64), Error> {
    let talked = talk(path, network, what)?;
    let Talked { window, transactions, requests, latency, counts: (before, after), .. } = talked;
    let rate = |of: fn(&Counts) -> u64| window.per_second(of(&after) - of(&before));
    let (calls_per_second, notifies_per_second) =
        (rate(|counts| counts.calls), rate(|counts| counts.notifies));
    let round = Round {
        transactions_per_second: window.per_second(transactions),
        switches_per_second: window.per_second(window.usage.switches()),
        calls_per_second,
        notifies_per_second,
        // The two are not read at one moment.
        undone_per_second: (calls_per_second - notifies_per_second).max(0.0),
        wakeups_per_second: rate(|counts| counts.wakeups),
        idle_wakeups_per_second: rate(|counts| counts.idle),
        restarts_per_second: rate(|counts| counts.restarts),
        cpu_ns_per_request: window.cpu_ns_per(transactions * what.burst as u64),
        latency,
    };
    Ok((round, requests))
}

/// The address that the network takes to `place`.
fn address(places: usize, place: usize) -> SocketAddr {
    let port = u16::try_from(places + place).unwrap_or(u16::MAX);
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The time, for packets.
fn now() -> Instant {
    MonotonicClock.now()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every request is answered, or the run fails; every design has each round.
    #[test]
    fn every_request_is_answered() {
        for (clients, burst) in [(1, 64), (3, 5), (2, 1), (1, 4_096)] {
            let window = Duration::from_millis(40);
            let plan = Plan { clients, burst, window, rounds: 2 };
            let mut told = 0;
            let cells = run(&plan, |_| told += 1).expect("all are answered");
            assert_eq!((cells.len(), told), (6, 12));
            for (cell, design) in cells.iter().zip(Design::ALL) {
                assert_eq!((cell.design, cell.rounds.len()), (design, 2));
                assert_eq!(cell.requests % burst as u64, 0, "{cell:?}");
                for round in &cell.rounds {
                    let Round { calls_per_second: calls, notifies_per_second: woken, .. } = round;
                    // They are read one after the other.
                    let sum = round.undone_per_second + woken;
                    assert!((sum - calls.max(*woken)).abs() < 1e-6, "{design:?}: {round:?}");
                    assert!(round.idle_wakeups_per_second <= round.wakeups_per_second + 1e-6);
                }
            }
            assert!(cells.iter().any(|cell| cell.requests > 0), "somebody had a turn");
        }
    }

    #[test]
    fn a_packet_finds_its_place() {
        assert_eq!((0..4).map(|n| address(4, n).port() % 4).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
}
