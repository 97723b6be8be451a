//! Experiments with requests and responses: each client sends a burst of requests, a server answers
//! each request, and the client sends its next burst when all answers have arrived.
//!
//! Each experiment provides the path that the packets take. This module provides what all such
//! experiments share: it assigns the places (numbered receivers) of the in-memory network to
//! threads, times transactions, and checks that every request is answered.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onramp_core::{Clock, Instant};
use onramp_dev::{MonotonicClock, Network, Receiver};

use crate::Error;
use crate::lockstat::LockCounts;
use crate::measure::{Latency, Phase, PhaseCell};
use crate::thread_group::{ThreadGroup, Watched, Window};

/// How long a waiting thread sleeps before it checks whether the experiment is over.
const NAP: Duration = Duration::from_millis(10);
/// Longest time that a transaction (a burst and its answers) may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The path that packets take between clients and servers.
pub(crate) trait Path: Sync {
    /// One thread's end of the path.
    type End<'a>: End
    where
        Self: 'a;
    /// Type of the counters that the path keeps.
    type Counts: Copy;

    /// Returns the path's name, for error messages.
    fn name(&self) -> String;

    /// Returns the end of the path for thread `number`, which may have `burst` packets in flight.
    fn end(&self, number: usize, burst: usize) -> Self::End<'_>;

    /// Whether the path needs an additional thread, which calls `help`.
    const HELPED: bool = false;

    /// Does the work of the path's additional thread until `over` returns true.
    fn help(&self, _over: &dyn Fn() -> bool) {}

    /// Wakes the additional thread, so that it notices that the experiment is over.
    fn end_help(&self) {}

    /// Returns the path's counters up to now.
    fn counts(&self) -> Self::Counts;
}

/// A thread's end of a path.
pub(crate) trait End {
    /// Submits `count` packets that are addressed to `place`, a receiver of the network.
    fn submit(&mut self, place: usize, count: usize);

    /// Discards the lock measurements that this end has recorded so far.
    fn forget_notes(&mut self) {}

    /// Returns the lock measurements that this end has recorded.
    fn notes(&self) -> LockCounts {
        LockCounts::default()
    }
}

/// The number of clients, the size of bursts, and the times of an experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Talk {
    /// Number of clients; there are as many servers.
    pub(crate) clients: usize,
    /// Number of requests in a burst: a client sends them at once.
    pub(crate) burst: usize,
    /// Length of the measured window, which begins after the warm-up.
    pub(crate) span: Duration,
    /// Longest time that a transaction (a burst and its answers) may take.
    patience: Duration,
}

/// Results of an experiment.
#[derive(Debug)]
pub(crate) struct Talked<C> {
    pub(crate) window: Window,
    /// Number of bursts that were sent and completely answered within the measured window.
    pub(crate) transactions: u64,
    /// Number of all requests, warm-up included. Each request was answered.
    pub(crate) requests: u64,
    /// Time from the first request of a burst to its last answer, nanoseconds.
    pub(crate) latency: Latency,
    pub(crate) lock: LockCounts,
    /// Counters of the path at the beginning and at the end of the measured window.
    pub(crate) counts: (C, C),
}

impl Talk {
    pub(crate) fn new(clients: usize, burst: usize, span: Duration) -> Self {
        Self { clients, burst, span, patience: PATIENCE }
    }

    /// Makes a network with one place (a receiver with a mailbox) per thread: servers have the
    /// first places, clients the others. Each mailbox has room for all packets that can wait there
    /// at the same time.
    pub(crate) fn network(&self) -> Network {
        Network::new(2 * self.clients, u16::try_from(self.burst).unwrap_or(u16::MAX))
    }
}

/// Results of one client or server thread.
#[derive(Debug, Default)]
struct Done {
    requests: u64,
    transactions: u64,
    latency: Latency,
    lock: LockCounts,
}

impl Done {
    /// Counts a transaction. The arguments are the phases of the experiment and the times at which
    /// the transaction began and ended. Only transactions that began and ended in the phase
    /// `Measure` count.
    fn note(&mut self, phases: (Phase, Phase), (start, end): (Instant, Instant)) {
        if phases == (Phase::Measure, Phase::Measure) {
            self.transactions += 1;
            self.latency.record(end.since(start));
        }
    }
}

/// Lets the clients and servers of `network` exchange packets through `path`.
pub(crate) fn talk<P: Path>(
    path: &P,
    network: &Network,
    talk: Talk,
) -> Result<Talked<P::Counts>, Error>
where
    P::Counts: Send,
{
    let Talk { clients, burst, span, .. } = talk;
    let (group, asking) = (ThreadGroup::default(), AtomicUsize::new(clients));
    let places = 0..2 * clients;
    // All receivers exist before the first packet is sent.
    let receivers: Vec<_> = places.map(|place| Mutex::new(network.receiver(place))).collect();
    let receiver = |place: usize| {
        let receiver = receivers[place].lock().unwrap_or_else(PoisonError::into_inner).take();
        receiver.expect("each thread has a place of its own")
    };
    // Acquire: makes visible what the clients did before they ended; pairs with the release with
    // which each client decrements `asking` when it ends.
    let over = || asking.load(Ordering::Acquire) == 0;
    let work = |number: usize| match number / clients {
        0 => {
            let (end, receiver) = (path.end(number, burst), receiver(number));
            serve(end, receiver, clients + number, &group.phase, &over)
        }
        1 => {
            let (end, receiver) = (path.end(number, burst), receiver(number));
            let done = ask(end, receiver, number - clients, talk, &group.phase);
            // Release: publishes what this client did; pairs with the acquire in `over`.
            asking.fetch_sub(1, Ordering::Release);
            path.end_help();
            done
        }
        _ => {
            path.help(&over);
            Done::default()
        }
    };
    let threads = 2 * clients + usize::from(P::HELPED);
    let Watched { given: done, window, seen } =
        group.run_watched(threads, span, || Ok(path.counts()), work)?;
    drop(receivers);
    check(path, network, clients, done.iter().map(|done| done.requests).sum())?;
    Ok(conclude(done, window, seen))
}

/// Answers every request that arrives, with a packet to `place`, until `over` returns true.
fn serve(
    mut end: impl End,
    mut receiver: Receiver,
    place: usize,
    phase: &PhaseCell,
    over: &dyn Fn() -> bool,
) -> Done {
    let mut measures = false;
    while !over() {
        receiver.wait(NAP);
        if !measures && phase.get() == Phase::Measure {
            measures = true;
            end.forget_notes();
        }
        // Drop the requests before answering them: their memory returns to the client's pool, and
        // the client can reuse it when the answers arrive.
        let count = receiver.recv_all().len() as usize;
        if count > 0 {
            end.submit(place, count);
        }
    }
    Done { lock: end.notes(), ..Done::default() }
}

/// Sends bursts of requests to `place` and waits for the answers, until the experiment is stopped.
/// If it is stopped while answers to a burst are missing, still waits for these answers.
fn ask(
    mut end: impl End,
    mut receiver: Receiver,
    place: usize,
    talk: Talk,
    phase: &PhaseCell,
) -> Done {
    let Talk { burst, patience, .. } = talk;
    let (mut done, mut measures) = (Done::default(), false);
    while !phase.is_stop() {
        let began = phase.get();
        if began == Phase::Measure && !measures {
            measures = true;
            end.forget_notes();
        }
        let start = MonotonicClock.now();
        end.submit(place, burst);
        done.requests += burst as u64;
        let (mut answers, until) = (0, start + patience);
        while answers < burst && MonotonicClock.now() < until {
            receiver.wait(NAP);
            answers += receiver.recv_all().len() as usize;
        }
        if answers < burst {
            // Some answers are missing; `check` will report them.
            break;
        }
        done.note((began, phase.get()), (start, MonotonicClock.now()));
    }
    done.lock = end.notes();
    done
}

/// Checks that every request reached a server once, and that every answer reached a client once.
fn check<P: Path>(path: &P, network: &Network, clients: usize, requests: u64) -> Result<(), Error> {
    let arrived = |place| {
        let stats = network.receiver_stats(place);
        stats.map_or(0, |stats| stats.packets.get() + stats.abandoned())
    };
    let served: u64 = (0..clients).map(arrived).sum();
    let answers: u64 = (clients..2 * clients).map(arrived).sum();
    if (served, answers) == (requests, requests) {
        return Ok(());
    }
    Err(Error::Conservation(format!(
        "{}: {requests} requests, of which {served} reached a server, and {answers} answers",
        path.name()
    )))
}

fn conclude<C>(done: Vec<Done>, window: Window, counts: (C, C)) -> Talked<C> {
    let mut sum = Done::default();
    for one in done {
        sum.requests += one.requests;
        sum.transactions += one.transactions;
        sum.latency.merge(&one.latency);
        sum.lock.merge(&one.lock);
    }
    let Done { requests, transactions, latency, lock } = sum;
    Talked { window, transactions, requests, latency, lock, counts }
}

#[cfg(test)]
mod tests;
