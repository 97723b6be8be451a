//! Requests and responses: clients send a burst, servers answer each packet, and a client goes on
//! when all answers are there.
//!
//! What packets go through is the experiment's; here is what it has in common with others: who
//! has which place of the network, how a transaction is timed, and that every request is answered.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onramp_core::{Clock, Instant};
use onramp_dev::{MonotonicClock, Network, Receiver};

use crate::Error;
use crate::lockstat::LockCounts;
use crate::measure::{Latency, Phase, PhaseCell};
use crate::thread_group::{ThreadGroup, Watched, Window};

/// How long a thread sleeps before it looks whether all is over.
const NAP: Duration = Duration::from_millis(10);
/// How long a transaction may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What packets go through.
pub(crate) trait Path: Sync {
    /// A thread's end.
    type End<'a>: End
    where
        Self: 'a;
    /// What it counts of itself.
    type Counts: Copy;

    /// What it is called in messages.
    fn name(&self) -> String;

    /// The end of thread `number`, which may have `burst` packets on their way.
    fn end(&self, number: usize, burst: usize) -> Self::End<'_>;

    /// Whether it wants a thread of its own.
    const HELPED: bool = false;

    /// Work for that thread, until `over` says so.
    fn help(&self, _over: &dyn Fn() -> bool) {}

    /// Wakes that thread, so that it looks at `over`.
    fn end_help(&self) {}

    /// What it counted up to now.
    fn counts(&self) -> Self::Counts;
}

/// A thread's end of a path.
pub(crate) trait End {
    /// Submits `count` packets to `place`.
    fn submit(&mut self, place: usize, count: usize);

    /// Begins its notes of locks anew.
    fn forget_notes(&mut self) {}

    /// What it noted of locks.
    fn notes(&self) -> LockCounts {
        LockCounts::default()
    }
}

/// Who talks to whom, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Talk {
    /// Clients, and as many servers.
    pub(crate) clients: usize,
    /// Requests that a client sends at once.
    pub(crate) burst: usize,
    /// How long it is measured.
    pub(crate) span: Duration,
    /// How long a transaction may take.
    patience: Duration,
}

/// What was said.
#[derive(Debug)]
pub(crate) struct Talked<C> {
    pub(crate) window: Window,
    /// Bursts answered in the window.
    pub(crate) transactions: u64,
    /// Requests in all, each of which was answered.
    pub(crate) requests: u64,
    /// From the first request of a burst to its last answer.
    pub(crate) latency: Latency,
    pub(crate) lock: LockCounts,
    /// What the path counted at the beginning and at the end of the window.
    pub(crate) counts: (C, C),
}

impl Talk {
    pub(crate) fn new(clients: usize, burst: usize, span: Duration) -> Self {
        Self { clients, burst, span, patience: PATIENCE }
    }

    /// A network with a place for each: servers have the first, clients the others. A mailbox
    /// holds all that may come.
    pub(crate) fn network(&self) -> Network {
        Network::new(2 * self.clients, u16::try_from(self.burst).unwrap_or(u16::MAX))
    }
}

/// What a thread has done.
#[derive(Debug, Default)]
struct Done {
    requests: u64,
    transactions: u64,
    latency: Latency,
    lock: LockCounts,
}

impl Done {
    /// Notes a transaction with the phases and the times in which it began and ended; only what
    /// began and ended in the window counts.
    fn note(&mut self, phases: (Phase, Phase), (start, end): (Instant, Instant)) {
        if phases == (Phase::Measure, Phase::Measure) {
            self.transactions += 1;
            self.latency.record(end.since(start));
        }
    }
}

/// Has clients and servers of `network` talk through `path`.
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
            let (end, receiver) = (path.end(number, burst), receiver(number));
            serve(end, receiver, clients + number, &group.phase, &over)
        }
        1 => {
            let (end, receiver) = (path.end(number, burst), receiver(number));
            let done = ask(end, receiver, number - clients, talk, &group.phase);
            asking.fetch_sub(1, Ordering::Release); // Release: pairs with `over`.
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

/// Answers everything, to `place`.
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
        // As one goes home, its sender may reuse it: so before it answers.
        let count = receiver.recv_all().len() as usize;
        if count > 0 {
            end.submit(place, count);
        }
    }
    Done { lock: end.notes(), ..Done::default() }
}

/// Sends bursts to `place`, and waits for the answers. A transaction that has begun ends.
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
            break; // The account says so.
        }
        done.note((began, phase.get()), (start, MonotonicClock.now()));
    }
    done.lock = end.notes();
    done
}

/// Every request reached a server, and every answer a client, once.
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
