//! The experiment of 2004: pairs of senders and receivers over a loopback, with one transmit queue
//! behind a lock for all, and with a queue for each sender and no lock.
//!
//! The lock of Linux's loopback protected nothing but its counters. Here the queue, its counters
//! and the way to the receivers are the same code in every design; what differs is whether senders
//! share one queue, and take its lock for each packet, or have one each.

mod queue;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use onramp_core::Clock;
use onramp_dev::{MonotonicClock, Network, Receiver, ThreadWaker};
use onramp_queue::{Armed, Credits, PacketList, Pool};

use self::queue::{Own, Queues, SendEnd, Shared};
use crate::Error;
use crate::crew::{Crew, Window};
use crate::lock::{Spin, StdMutex};
use crate::lockstat::{LockCounts, LockRow};
use crate::measure::{Phase, PhaseCell, Rounds, rotated};

/// Bytes of payload in a packet.
pub const PAYLOAD: usize = 120;
/// Packets that a sender may have on their way.
pub const CREDITS: u32 = 64;
/// Packets that a receiver's mailbox holds: enough for those of its sender.
const ROOM: u16 = 1_000;
/// How long a receiver sleeps before it looks whether all is over.
const NAP: Duration = Duration::from_millis(10);
/// How long packets may take to come home when nobody sends any more.
const PATIENCE_NS: u64 = 20_000_000_000;

/// Who shares what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// One queue and its counters behind a spinlock.
    Spinlock,
    /// One queue and its counters behind a mutex that sleeps.
    Mutex,
    /// A queue and counters for each sender, and no lock.
    PerQueue,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of pairs.
    pub pairs: Vec<usize>,
    /// How long each design is measured in a round.
    pub window: Duration,
    /// Rounds; the designs take turns in each.
    pub rounds: usize,
}

/// What one design did in one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Packets received, per second.
    pub packets_per_second: f64,
    /// Processor time of the process for each, nanoseconds.
    pub cpu_ns_per_packet: f64,
    /// Context switches per second.
    pub switches_per_second: f64,
}

/// A design with a number of pairs.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The design.
    pub design: Design,
    /// Pairs of a sender and a receiver.
    pub pairs: usize,
    /// Its rounds, in order.
    pub rounds: Vec<Round>,
    /// What happened at the lock, in a round of its own: notes take time.
    pub lock: Option<LockRow>,
    /// Packets sent in all rounds, warm-up included: each was received, and came home.
    pub packets: u64,
}

impl Design {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Spinlock, Self::Mutex, Self::PerQueue];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spinlock => "spinlock",
            Self::Mutex => "mutex",
            Self::PerQueue => "per-queue",
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
/// [`Error`] when threads cannot be had, or a packet is lost.
pub fn run(plan: &Plan, mut told: impl FnMut(&str)) -> Result<Vec<Cell>, Error> {
    let mut cells = Vec::new();
    for &pairs in &plan.pairs {
        let empty = |design| Cell { design, pairs, rounds: Vec::new(), lock: None, packets: 0 };
        let mut row = Design::ALL.map(empty);
        for round in 0..plan.rounds {
            for &design in rotated(&Design::ALL, round) {
                told(&format!("{pairs} pairs, round {}: {}", round + 1, design.name()));
                let outcome = measure(design, pairs, plan.window, false)?;
                let cell = &mut row[design as usize];
                cell.packets += outcome.sent;
                cell.rounds.push(outcome.round());
            }
        }
        for cell in &mut row {
            told(&format!("{pairs} pairs, locks: {}", cell.design.name()));
            let outcome = measure(cell.design, pairs, plan.window, true)?;
            cell.packets += outcome.sent;
            cell.lock = outcome.kind.map(|kind| LockRow {
                name: "xmit_lock".to_owned(),
                kind,
                counts: outcome.lock,
                window_ns: outcome.window.ns,
            });
        }
        cells.extend(row);
    }
    Ok(cells)
}

/// One design in one round.
#[derive(Debug, Default)]
struct Outcome {
    window: Window,
    /// Packets received while they counted.
    counted: u64,
    sent: u64,
    lock: LockCounts,
    kind: Option<&'static str>,
}

impl Outcome {
    fn round(&self) -> Round {
        Round {
            packets_per_second: self.window.per_second(self.counted),
            cpu_ns_per_packet: self.window.cpu_ns_per(self.counted),
            switches_per_second: self.window.per_second(self.window.usage.switches()),
        }
    }
}

fn measure(design: Design, pairs: usize, span: Duration, noted: bool) -> Result<Outcome, Error> {
    let network = Network::new(pairs, ROOM);
    match design {
        Design::Spinlock => pairs_run(&Shared::<Spin>::new(&network), &network, pairs, span, noted),
        Design::Mutex => {
            pairs_run(&Shared::<StdMutex>::new(&network), &network, pairs, span, noted)
        }
        Design::PerQueue => pairs_run(&Own::new(&network), &network, pairs, span, noted),
    }
}

/// What a thread has done.
#[derive(Debug, Default)]
struct Done {
    /// Packets sent, or received.
    packets: u64,
    /// Those of them in the window.
    counted: u64,
    /// Packets that did not come home, or came in the wrong order.
    lost: u64,
    lock: LockCounts,
}

fn pairs_run<Q: Queues>(
    queues: &Q,
    network: &Network,
    pairs: usize,
    span: Duration,
    noted: bool,
) -> Result<Outcome, Error> {
    let (crew, sending) = (Crew::default(), AtomicUsize::new(pairs));
    // All are there before the first packet.
    let receivers: Vec<_> = (0..pairs).map(|place| Mutex::new(network.receiver(place))).collect();
    let work = |number: usize| match number.checked_sub(pairs) {
        None => {
            let done = send(queues.end(number, noted), number, &crew.phase);
            // Release: what was sent; pairs with the acquire of the receivers.
            sending.fetch_sub(1, Ordering::Release);
            done
        }
        Some(place) => {
            let receiver = receivers[place].lock().unwrap_or_else(PoisonError::into_inner).take();
            receiver.map_or_else(Done::default, |r| receive(r, &sending, &crew.phase))
        }
    };
    let (done, window) = crew.run(2 * pairs, span, work)?;
    let (senders, receivers) = done.split_at(pairs);
    for (pair, (sender, receiver)) in senders.iter().zip(receivers).enumerate() {
        if (sender.packets, sender.lost + receiver.lost) != (receiver.packets, 0) {
            return Err(Error::Conservation(format!(
                "loopback, {}, pair {pair} of {pairs}: {} sent, {} received, {} not home, {} out \
                 of order",
                Q::NAME,
                sender.packets,
                receiver.packets,
                sender.lost,
                receiver.lost
            )));
        }
    }
    let mut outcome = Outcome { window, kind: Q::KIND, ..Outcome::default() };
    for (sender, receiver) in senders.iter().zip(receivers) {
        outcome.sent += sender.packets;
        outcome.counted += receiver.counted;
        outcome.lock.merge(&sender.lock);
    }
    Ok(outcome)
}

/// Sends one packet after another, and sleeps when none may be out any more.
fn send(mut end: impl SendEnd, number: usize, phase: &PhaseCell) -> Done {
    let mut pool = Pool::new(Credits { packets: CREDITS, bytes: 1 << 20 });
    let (mut waker, mut done) = (ThreadWaker::default(), Done::default());
    let payload = [0x5a; PAYLOAD];
    let mut measures = false;
    while !phase.is_stop() {
        if !measures && phase.get() == Phase::Measure {
            measures = true;
            end.forget_notes();
        }
        let Some(mut pkt) = pool.take(PAYLOAD) else {
            wait(&mut pool, waker.get(), CREDITS / 2);
            continue;
        };
        pkt.set_payload(&payload);
        (pkt.flow, pkt.cookie, pkt.len) = (number as u64, done.packets, 162);
        let mut burst = PacketList::new();
        burst.push_back(pkt);
        end.send(&mut burst, phase);
        // What was not taken, because it is time to stop, goes home here.
        done.packets += 1 - u64::from(burst.len());
    }
    done.lock = end.notes();
    let until = MonotonicClock.now().after(PATIENCE_NS);
    while pool.out() > 0 && MonotonicClock.now() < until {
        wait(&mut pool, waker.get(), CREDITS);
    }
    done.lost = pool.out().into();
    done
}

/// Sleeps until `need` packets, or all, have come home, or somebody says otherwise.
fn wait(pool: &mut Pool, waker: &std::task::Waker, need: u32) {
    match pool.arm(waker, need) {
        Armed::Ready => {}
        Armed::Busy => thread::yield_now(),
        Armed::Armed => thread::park_timeout(NAP),
    }
    pool.reclaim(|_| {});
}

/// Receives until all have sent, and nothing is left.
fn receive(mut receiver: Receiver, sending: &AtomicUsize, phase: &PhaseCell) -> Done {
    let mut done = Done::default();
    loop {
        // Before the look: what was sent by then is seen. Acquire: pairs with the release of who
        // sends.
        let over = sending.load(Ordering::Acquire) == 0;
        if !over {
            receiver.wait(NAP);
        }
        let taken = receiver.recv_all();
        if over && taken.is_empty() {
            return done;
        }
        if phase.get() == Phase::Measure {
            done.counted += u64::from(taken.len());
        }
        for pkt in taken {
            done.lost += u64::from(pkt.cookie != done.packets || pkt.payload().len() != PAYLOAD);
            done.packets += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;

    /// Every design delivers everything, or the run fails; only locks have a row.
    #[test]
    fn every_design_delivers_everything() {
        let window = Duration::from_millis(30);
        let plan = Plan { pairs: vec![1, 3], window, rounds: 2 };
        let mut told = 0;
        let cells = run(&plan, |_| told += 1).expect("nothing is lost");
        assert_eq!((cells.len(), told), (6, 18));
        for cell in &cells {
            assert_eq!(cell.rounds.len(), 2);
            assert_eq!(cell.lock.is_some(), cell.design != Design::PerQueue, "{cell:?}");
        }
        assert!(cells.iter().any(|cell| cell.packets > 0), "somebody had a turn");
    }

    #[test]
    fn figures_over_rounds() {
        let round = |rate| Round {
            packets_per_second: rate,
            cpu_ns_per_packet: 1.0,
            switches_per_second: 0.0,
        };
        let cell = |rates: [f64; 3]| Cell {
            design: Design::Mutex,
            pairs: 1,
            rounds: rates.map(round).to_vec(),
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
