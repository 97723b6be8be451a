//! The experiment of 2001. It compares two ways of handling pending work (queued packets that have
//! to be sent): leaving all work to a helper thread, like Linux's `ksoftirqd`, and doing the work
//! in place, in the thread that caused it. In place, the thread goes on for a bounded number of
//! quotas, and wakes the helper thread only for work that is left then.
//!
//! Clients send bursts of requests, servers answer each request, and a client sends its next burst
//! when all answers have arrived. Requests and answers pass one queue: a pfifo with a loopback
//! device behind it.
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
use crate::measure::{Latency, Rounds, Steps, rotated};

/// Number of payload bytes in a packet.
pub const PAYLOAD: usize = 120;
/// Largest number of packets in flight of all threads together.
pub const PACKETS_MAX: usize = 8_192;
/// The qdisc in front of the loopback device.
pub const QDISC: &str = "pfifo limit 16384";

/// A design: it says which threads do the work (sending the queued packets).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// A helper thread, like Linux's `ksoftirqd`, does all work. Each submission of packets calls
    /// the helper thread, which sends one quota of packets at a time.
    WakeAlways,
    /// The thread that submits packets sends a quota of packets, and up to ten further quotas in a
    /// row. A helper thread, like Linux's `ksoftirqd`, sends the packets that are left then.
    InPlace,
    /// A link of Onramp in its default mode: the senders send, and the runner sends packets that a
    /// busy port has collected.
    Onramp,
    /// Like `Onramp`, but each submission ends with a flush that does not wait. So the port
    /// collects no packets, which is best for a sender that waits for an answer.
    OnrampFlush,
    /// A link of Onramp whose senders transmit at once. If a sender has used up its quota, the
    /// runner sends the packets that are left.
    OnrampInline,
    /// A link of Onramp in which only the runner transmits.
    OnrampDedicated,
}

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of clients; there are as many servers.
    pub clients: usize,
    /// Number of requests in a burst: a client sends them at once.
    pub burst: usize,
    /// Measured time of each design in a round.
    pub window: Duration,
    /// Number of rounds. Each round starts with another design.
    pub rounds: usize,
}

/// Results of one design in one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Number of bursts answered completely, per second.
    pub transactions_per_second: f64,
    /// Number of context switches of the process per second.
    pub switches_per_second: f64,
    /// Number of times per second that a thread asked the design's helper thread, or the link's
    /// runner, to work.
    pub calls_per_second: f64,
    /// Number of requests for work, per second, that had to wake the design's helper thread or the
    /// link's runner.
    pub notifies_per_second: f64,
    /// Number of requests for work, per second, that woke neither the design's helper thread nor
    /// the link's runner, because no wake-up was needed: the thread or runner was awake, or the
    /// calling thread did the work itself.
    pub undone_per_second: f64,
    /// Number of times that the design's helper thread or the link's runner woke up, per second.
    /// For a runner this includes wake-ups by its timer.
    pub wakeups_per_second: f64,
    /// Number of wake-ups, per second, after which the design's helper thread or the link's runner
    /// found nothing to do.
    pub idle_wakeups_per_second: f64,
    /// Number of times per second that a thread went on at once because packets were left: the
    /// design's helper thread after a quota, a submitting thread after a quota in place, or the
    /// link's runner after a round of visits to the ports.
    pub restarts_per_second: f64,
    /// Processor time of the process per request and its answer, nanoseconds.
    pub cpu_ns_per_request: f64,
    /// Time from the first request of a burst to its last answer, nanoseconds.
    pub latency: Latency,
}

/// The measurements of one design.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The design that was measured.
    pub design: Design,
    /// Results of the rounds, in order.
    pub rounds: Vec<Round>,
    /// Time from the first request of a burst to its last answer, over all rounds, nanoseconds.
    pub latency: Latency,
    /// Number of requests in all rounds, including the warm-up. Each request was answered.
    pub requests: u64,
}

impl Design {
    /// All designs that the experiment measures, in the order of the report.
    pub const ALL: [Self; 6] = [
        Self::WakeAlways,
        Self::InPlace,
        Self::Onramp,
        Self::OnrampFlush,
        Self::OnrampInline,
        Self::OnrampDedicated,
    ];

    /// Returns the design's name.
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

/// Runs the experiment. Returns the measurements that have at least one round. A measurement fails
/// if threads cannot be started, or a request is not answered.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Vec<Measurement> {
    let empty = |design| {
        let latency = Latency::default();
        Measurement { design, rounds: Vec::new(), latency, requests: 0 }
    };
    let mut cells = Design::ALL.map(empty);
    for round in 0..plan.rounds {
        for &design in rotated(&Design::ALL, round) {
            let part = format!("round {}", round + 1);
            let found = steps.step(design.name(), part, || measure(design, plan));
            let Some((round, requests)) = found else { continue };
            let cell = &mut cells[design as usize];
            cell.latency.merge(&round.latency);
            cell.rounds.push(round);
            cell.requests += requests;
        }
    }
    cells.into_iter().filter(|cell| !cell.rounds.is_empty()).collect()
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

/// The counters of a path, read at one moment. Each counts from the beginning of the path.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Number of times that a thread asked the design's helper thread or the link's runner to work.
    calls: u64,
    /// Number of requests for work that had to wake the design's helper thread or the link's
    /// runner.
    notifies: u64,
    /// Number of times that the design's helper thread or the link's runner woke up.
    wakeups: u64,
    /// Number of wake-ups after which the design's helper thread or the link's runner found nothing
    /// to do.
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
        // Calls and wake-ups are not counted at the same moment, so the difference of the two rates
        // may be negative.
        undone_per_second: (calls_per_second - notifies_per_second).max(0.0),
        wakeups_per_second: rate(|counts| counts.wakeups),
        idle_wakeups_per_second: rate(|counts| counts.idle),
        restarts_per_second: rate(|counts| counts.restarts),
        cpu_ns_per_request: window.cpu_ns_per(transactions * what.burst as u64),
        latency,
    };
    Ok((round, requests))
}

/// Returns a socket address whose packets the network delivers to `place`, one of its receivers.
fn address(places: usize, place: usize) -> SocketAddr {
    let port = u16::try_from(places + place).unwrap_or(u16::MAX);
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Returns the current time, to stamp packets.
fn now() -> Instant {
    MonotonicClock.now()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every request is answered (`run` fails otherwise), and every design is measured in each
    /// round.
    #[test]
    fn every_request_is_answered() {
        for (clients, burst) in [(1, 64), (3, 5), (2, 1), (1, 4_096)] {
            let window = Duration::from_millis(40);
            let plan = Plan { clients, burst, window, rounds: 2 };
            let (cells, told) = Steps::whole(|steps| run(&plan, steps));
            assert_eq!((cells.len(), told), (6, 12));
            for (cell, design) in cells.iter().zip(Design::ALL) {
                assert_eq!((cell.design, cell.rounds.len()), (design, 2));
                assert_eq!(cell.requests % burst as u64, 0, "{cell:?}");
                for round in &cell.rounds {
                    let Round { calls_per_second: calls, notifies_per_second: woken, .. } = round;
                    // The two counters are read one after the other, so `woken` may exceed `calls`.
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
