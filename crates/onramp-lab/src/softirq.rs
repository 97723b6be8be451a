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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onramp_core::{Clock, Instant};
use onramp_dev::{MonotonicClock, Network, Receiver};

use self::in_link::InLink;
use self::lab::Softirq;
use crate::Error;
use crate::crew::{Crew, Window};
use crate::measure::{Latency, Phase, PhaseCell, Rounds, rotated};

/// Bytes of payload in a packet.
pub const PAYLOAD: usize = 120;
/// Packets that may be on their way, of all threads.
pub const PACKETS_MAX: usize = 8_192;
/// The qdisc.
pub const QDISC: &str = "pfifo limit 16384";
/// How long a thread sleeps before it looks whether all is over.
const NAP: Duration = Duration::from_millis(10);
/// How long a packet may take.
const PATIENCE_NS: u64 = 20_000_000_000;

/// Who does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// A helper thread, woken by each submission; one quota of work at a time, and woken again
    /// when some is left.
    WakeAlways,
    /// Who submits, up to ten quotas in a row; then the helper, if anything is left.
    InPlace,
    /// A link of Onramp: the sender or the runner.
    Onramp,
    /// As before, and each submission ends with a flush that does not wait: nothing is left to be
    /// collected, as is best for a sender that waits for an answer.
    OnrampFlush,
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
    /// Wake-ups of the helper or the runner, per second.
    pub wakeups_per_second: f64,
    /// Submissions after which nobody had to be woken, per second. `None`: not counted.
    pub undone_per_second: Option<f64>,
    /// Quotas that were followed by another in place, per second.
    pub restarts_per_second: f64,
    /// Processor time of the process for each request and its answer, nanoseconds.
    pub cpu_ns_per_request: f64,
    /// From the first request of a burst to its last answer.
    pub latency: Latency,
}

/// A design.
#[derive(Clone, Debug)]
pub struct Cell {
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
    pub const ALL: [Self; 4] = [Self::WakeAlways, Self::InPlace, Self::Onramp, Self::OnrampFlush];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WakeAlways => "wake-always",
            Self::InPlace => "in-place",
            Self::Onramp => "onramp",
            Self::OnrampFlush => "onramp-flush",
        }
    }
}

impl Rounds for Cell {
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
pub fn run(plan: &Plan, mut told: impl FnMut(&str)) -> Result<Vec<Cell>, Error> {
    let empty = |design| {
        let latency = Latency::default();
        Cell { design, rounds: Vec::new(), latency, requests: 0 }
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
    // Servers have the first places, clients the others; a mailbox holds all that may come.
    let room = u16::try_from(plan.burst).unwrap_or(u16::MAX);
    let network = Network::new(2 * plan.clients, room);
    match design {
        Design::WakeAlways => {
            exchange(&Softirq::new(&network, 2 * plan.clients, true), &network, plan)
        }
        Design::InPlace => {
            exchange(&Softirq::new(&network, 2 * plan.clients, false), &network, plan)
        }
        Design::Onramp => exchange(&InLink::new(&network, plan, false)?, &network, plan),
        Design::OnrampFlush => exchange(&InLink::new(&network, plan, true)?, &network, plan),
    }
}

/// Counts of a path, up to now.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    wakeups: u64,
    undone: Option<u64>,
    restarts: u64,
}

/// What submissions go through.
trait Path: Sync {
    /// A thread's end.
    type End<'a>: PathEnd
    where
        Self: 'a;
    /// What it is called in messages.
    fn name(&self) -> &'static str;
    /// The end of thread `number`, which may have `burst` packets on their way.
    fn end(&self, number: usize, burst: usize) -> Self::End<'_>;
    /// Work for a thread of its own, until `over` says so; there is one if `HELPED`.
    fn help(&self, _over: &dyn Fn() -> bool) {}
    /// Whether it wants such a thread.
    const HELPED: bool = false;
    /// Wakes that thread, so that it looks at `over`.
    fn end_help(&self) {}
    fn counts(&self) -> Counts;
}

/// A thread's end of a path.
trait PathEnd {
    /// Submits `count` packets to `place`.
    fn submit(&mut self, place: usize, count: usize);
}

/// What a thread has done.
#[derive(Debug, Default)]
struct Done {
    requests: u64,
    /// Requests without answer, or answers nobody asked for.
    lost: u64,
    counted: u64,
    latency: Latency,
    /// What the path counted in the window.
    counts: Option<(Counts, Counts)>,
}

fn exchange<P: Path>(path: &P, network: &Network, plan: &Plan) -> Result<(Round, u64), Error> {
    let clients = plan.clients;
    let (crew, asking) = (Crew::default(), AtomicUsize::new(clients));
    let places = 0..2 * clients;
    // All are there before the first packet.
    let receivers: Vec<_> = places.map(|place| Mutex::new(network.receiver(place))).collect();
    let receiver = |place: usize| {
        let receiver = receivers[place].lock().unwrap_or_else(PoisonError::into_inner).take();
        receiver.expect("each thread has a place of its own")
    };
    // Acquire: pairs with the release of clients.
    let over = || asking.load(Ordering::Acquire) == 0;
    let work = |number: usize| match number / clients {
        0 => {
            serve(path.end(number, plan.burst), receiver(number), clients + number, &over);
            Done::default()
        }
        1 => {
            let (end, receiver) = (path.end(number, plan.burst), receiver(number));
            let counts = (number == clients).then_some(|| path.counts());
            let done = ask(end, receiver, number - clients, plan.burst, &crew.phase, counts);
            asking.fetch_sub(1, Ordering::Release); // Release: pairs with `over`.
            path.end_help();
            done
        }
        _ => {
            path.help(&over);
            Done::default()
        }
    };
    let (done, window) = crew.run(2 * clients + usize::from(P::HELPED), plan.window, work)?;
    conclude(path.name(), &done, window, plan)
}

/// Answers everything, to `place`.
fn serve(mut end: impl PathEnd, mut receiver: Receiver, place: usize, over: &dyn Fn() -> bool) {
    while !over() {
        receiver.wait(NAP);
        // As one goes home, its sender may reuse it: so before it answers.
        let count = receiver.recv_all().len() as usize;
        if count > 0 {
            end.submit(place, count);
        }
    }
}

/// Sends bursts to `place`, and waits for the answers.
fn ask(
    mut end: impl PathEnd,
    mut receiver: Receiver,
    place: usize,
    burst: usize,
    phase: &PhaseCell,
    counts: Option<impl Fn() -> Counts>,
) -> Done {
    let mut done = Done::default();
    let mut first = None;
    while !phase.is_stop() {
        let measured = phase.get() == Phase::Measure;
        if measured && first.is_none() {
            first = counts.as_ref().map(|counts| counts());
        }
        let start = MonotonicClock.now();
        end.submit(place, burst);
        done.requests += burst as u64;
        let mut answers = 0;
        while answers < burst && MonotonicClock.now().since(start) < PATIENCE_NS {
            receiver.wait(NAP);
            answers += receiver.recv_all().len() as usize;
        }
        if answers != burst {
            done.lost += answers.abs_diff(burst) as u64;
            break;
        }
        if measured && phase.get() == Phase::Measure {
            done.counted += 1;
            done.latency.record(MonotonicClock.now().since(start));
        }
    }
    done.counts = first.zip(counts.map(|counts| counts()));
    done
}

fn conclude(name: &str, done: &[Done], window: Window, plan: &Plan) -> Result<(Round, u64), Error> {
    let mut sum = Done::default();
    for one in done {
        sum.requests += one.requests;
        sum.lost += one.lost;
        sum.counted += one.counted;
        sum.latency.merge(&one.latency);
        sum.counts = sum.counts.or(one.counts);
    }
    if sum.lost > 0 {
        let Done { lost, requests, .. } = sum;
        return Err(Error::Conservation(format!(
            "softirq, {name}: of {requests} requests, {lost} have no answer after 20 s, or too many"
        )));
    }
    let (before, after) = sum.counts.unwrap_or_default();
    let rate = |of: fn(&Counts) -> u64| window.per_second(of(&after) - of(&before));
    let undone = before.undone.zip(after.undone);
    let round = Round {
        transactions_per_second: window.per_second(sum.counted),
        switches_per_second: window.per_second(window.usage.switches()),
        wakeups_per_second: rate(|counts| counts.wakeups),
        undone_per_second: undone.map(|(before, after)| window.per_second(after - before)),
        restarts_per_second: rate(|counts| counts.restarts),
        cpu_ns_per_request: window.cpu_ns_per(sum.counted * plan.burst as u64),
        latency: sum.latency,
    };
    Ok((round, sum.requests))
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

    /// Every request is answered, or the run fails; in place, nothing is left to a helper.
    #[test]
    fn every_request_is_answered() {
        for (clients, burst) in [(1, 64), (3, 5)] {
            let window = Duration::from_millis(40);
            let plan = Plan { clients, burst, window, rounds: 2 };
            let mut told = 0;
            let cells = run(&plan, |_| told += 1).expect("all are answered");
            assert_eq!((cells.len(), told), (4, 8));
            for cell in &cells {
                assert_eq!(cell.rounds.len(), 2);
                assert_eq!(cell.requests % burst as u64, 0, "{cell:?}");
                let undone = cell.rounds[0].undone_per_second.is_some();
                let ours = matches!(cell.design, Design::Onramp | Design::OnrampFlush);
                assert_eq!(undone, !ours, "the link does not count them");
            }
            assert!(cells.iter().any(|cell| cell.requests > 0), "somebody had a turn");
        }
    }
}
