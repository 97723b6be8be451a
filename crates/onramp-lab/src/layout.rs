//! The experiment of 2009. It compares two layouts of the fields that a port's threads write most
//! often: fields grouped by the thread that writes them, each group on its own cache lines, and the
//! same fields in an order in which several writers share lines.
//!
//! Threads push items into an intake that only counts them, with Onramp's protocol: a thread that
//! finds the intake idle becomes its owner, takes the items that other threads pushed, and does the
//! work for them. There are no packets, no qdisc and no device, so threads share only the fields,
//! and the experiment measures the cost of the fields' cache lines.
//!
//! In the stream load, threads push without pause. In the request-response load, a thread that has
//! pushed its burst checks the fields until the owner has done the work for the whole burst.
//!
//! Source: the discussion of 2009 on netdev about the order of fields in `struct Qdisc`.

mod fields;

use std::thread;
use std::time::Duration;

use onramp_core::Clock;
use onramp_dev::MonotonicClock;

use self::fields::{Fields, Grouped, Mixed};
use crate::measure::{Latency, Phase, PhaseCell, Rounds, Steps, rotated};
use crate::thread_group::{ThreadGroup, Window};
use crate::{Error, Load, pin};

/// Number of pushes of a stream between two looks at the phase of the experiment.
const RUN: u64 = 64;
/// Largest number of items that may wait, as in the intake of `onramp`.
const CAP: u64 = 16_384;
/// Number of arithmetic steps that stand for the owner's work on one packet, the same in both
/// layouts.
pub const WORK: u32 = 8;
/// Number of arithmetic steps that stand for a sender's work before it pushes. Larger than
/// [`WORK`], so that owners keep up.
pub const PREPARATION: u32 = 24;

/// The two layouts of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// The intake's word, which all threads change, the limit, which senders only read, and the
    /// counters, which only the owner writes, are on separate cache lines.
    Grouped,
    /// Fields of different writers are side by side.
    Mixed,
}

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of threads to measure with, one after another.
    pub threads: Vec<usize>,
    /// Measured time of each layout in a round.
    pub window: Duration,
    /// Number of rounds. Each round starts with the other layout.
    pub rounds: usize,
    /// Whether threads are bound to processors; thread after thread gets the next processor.
    pub pin: bool,
    /// The work of the threads: a stream, or bursts whose end the thread waits for.
    pub load: Load,
}

/// Results of one layout in one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Number of items per second that were pushed and for which an owner did the work.
    pub packets_per_second: f64,
    /// Number of bursts per second all of whose items an owner has worked on; `None` for a stream,
    /// which has no bursts.
    pub transactions_per_second: Option<f64>,
    /// Processor time of the process per item, nanoseconds.
    pub cpu_ns_per_packet: f64,
    /// Number of failed exchanges of the intake's word per item. An exchange fails if another
    /// thread has changed the word meanwhile.
    pub retries_per_packet: f64,
    /// Share of the pushes by which a thread became the owner.
    pub owned_share: f64,
    /// Number of pushes per item that were refused because too many items waited in the intake.
    pub refused_per_packet: f64,
    /// Time from before the first push of a burst until an owner has worked on all its items,
    /// nanoseconds; empty for a stream.
    pub latency: Latency,
}

/// The measurements of one layout with one number of threads.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The layout that was measured.
    pub design: Design,
    /// Number of threads.
    pub threads: usize,
    /// Results of the rounds, in order.
    pub rounds: Vec<Round>,
    /// Time from before the first push of a burst until an owner has worked on all its items, over
    /// all rounds, nanoseconds; empty for a stream.
    pub latency: Latency,
    /// Number of items that owners worked on in all rounds, including the warm-up. It equals the
    /// number of items pushed.
    pub packets: u64,
}

impl Design {
    /// All layouts that the experiment measures.
    pub const ALL: [Self; 2] = [Self::Grouped, Self::Mixed];

    /// Returns the layout's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grouped => "grouped",
            Self::Mixed => "mixed",
        }
    }

    /// Returns the size of the fields in this layout, from the first field to the last; bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Grouped => size_of::<Grouped>(),
            Self::Mixed => size_of::<Mixed>(),
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
/// if threads cannot be started or bound, or if an item is lost.
///
/// # Errors
///
/// [`Error`] if the kernel does not say which processors this process may use.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Result<Vec<Measurement>, Error> {
    let cpus = pin::allowed()?;
    let mut cells = Vec::new();
    for &threads in &plan.threads {
        let empty = |design| {
            let latency = Latency::default();
            Measurement { design, threads, rounds: Vec::new(), latency, packets: 0 }
        };
        let mut row = Design::ALL.map(empty);
        for round in 0..plan.rounds {
            for &design in rotated(&Design::ALL, round) {
                let cpus = plan.pin.then_some(&*cpus);
                let measure = || match design {
                    Design::Grouped => measure::<Grouped>(threads, plan, cpus),
                    Design::Mixed => measure::<Mixed>(threads, plan, cpus),
                };
                let name = format!("{}, {threads} threads", design.name());
                let found = steps.step(name, format!("round {}", round + 1), measure);
                let Some((round, packets)) = found else { continue };
                let cell = &mut row[design as usize];
                cell.latency.merge(&round.latency);
                cell.rounds.push(round);
                cell.packets += packets;
            }
        }
        cells.extend(row.into_iter().filter(|cell| !cell.rounds.is_empty()));
    }
    Ok(cells)
}

/// Results of one thread.
#[derive(Debug, Default)]
struct Done {
    pushed: u64,
    /// Number of items pushed in the measured window. The fields below count only that window, too.
    counted: u64,
    retries: u64,
    owned: u64,
    refused: u64,
    transactions: u64,
    latency: Latency,
}

/// Counts of pushes: items pushed, exchanges repeated, times that the thread became the owner, and
/// pushes refused.
#[derive(Clone, Copy, Debug, Default)]
struct Pushes {
    pushed: u64,
    retries: u64,
    owned: u64,
    refused: u64,
}

fn measure<F: Fields>(
    threads: usize,
    plan: &Plan,
    cpus: Option<&[usize]>,
) -> Result<(Round, u64), Error> {
    let (fields, group) = (F::new(CAP), ThreadGroup::default());
    let work = |number: usize| {
        if let Some(cpus) = cpus {
            pin::to(cpus[number % cpus.len()])?;
        }
        Ok(match plan.load {
            Load::Stream => stream(&fields, &group.phase),
            Load::Rr(burst) => rr(&fields, burst.into(), &group.phase),
        })
    };
    let (done, window) = group.run(threads, plan.window, work)?;
    let done = done.into_iter().collect::<Result<Vec<Done>, Error>>()?;
    conclude(&fields, done, window, plan.load)
}

/// Pushes items without a pause until the run is stopped.
fn stream(fields: &impl Fields, phase: &PhaseCell) -> Done {
    let mut done = Done::default();
    loop {
        let now = phase.get();
        if now == Phase::Stop {
            return done;
        }
        let mut pushes = Pushes::default();
        for _ in 0..RUN {
            fields::turns(PREPARATION, done.pushed);
            push(fields, &mut pushes);
        }
        if pushes.refused > 0 {
            // Yield, because the owner may need this processor.
            thread::yield_now();
        }
        done.add(pushes, now == Phase::Measure);
    }
}

/// Pushes a burst of `burst` items, waits until an owner has worked on all of them, and repeats
/// that until the run is stopped.
fn rr(fields: &impl Fields, burst: u64, phase: &PhaseCell) -> Done {
    let mut done = Done::default();
    while !phase.is_stop() {
        let measured = phase.get() == Phase::Measure;
        let (mut pushes, start) = (Pushes::default(), MonotonicClock.now());
        let mut before = pushes;
        while pushes.pushed < burst {
            fields::turns(PREPARATION, pushes.pushed);
            before = pushes;
            push(fields, &mut pushes);
            if pushes.refused > before.refused {
                // Yield, because the owner may need this processor.
                thread::yield_now();
            }
        }
        // If the last push made this thread the owner, the thread has done the work for its items:
        // `push` returns only when no item waits any more. Otherwise wait for the owner.
        if pushes.owned == before.owned {
            let mark = fields.mark();
            while !fields.has_left(mark) {
                // Yield, because the owner may need this processor.
                thread::yield_now();
            }
        }
        let counts = measured && phase.get() == Phase::Measure;
        if counts {
            done.transactions += 1;
            done.latency.record(MonotonicClock.now().since(start));
        }
        done.add(pushes, counts);
    }
    done
}

/// Pushes one item, unless too many items wait. If the push makes this thread the owner, the thread
/// works until no item waits.
#[inline]
fn push(fields: &impl Fields, done: &mut Pushes) {
    match fields.push(&mut done.retries) {
        None => done.refused += 1,
        Some(false) => done.pushed += 1,
        Some(true) => {
            (done.pushed, done.owned) = (done.pushed + 1, done.owned + 1);
            let mut came = 1;
            loop {
                for _ in 0..came {
                    fields.work(WORK);
                }
                came = fields.take_or_leave();
                if came == 0 {
                    return;
                }
            }
        }
    }
}

impl Done {
    fn add(&mut self, pushes: Pushes, counts: bool) {
        self.pushed += pushes.pushed;
        if counts {
            self.counted += pushes.pushed;
            self.retries += pushes.retries;
            self.owned += pushes.owned;
            self.refused += pushes.refused;
        }
    }
}

fn conclude(
    fields: &impl Fields,
    done: Vec<Done>,
    window: Window,
    load: Load,
) -> Result<(Round, u64), Error> {
    let mut sum = Done::default();
    for one in done {
        sum.pushed += one.pushed;
        sum.counted += one.counted;
        sum.retries += one.retries;
        sum.owned += one.owned;
        sum.refused += one.refused;
        sum.transactions += one.transactions;
        sum.latency.merge(&one.latency);
    }
    let sent = fields.sent();
    if sent != sum.pushed {
        let pushed = sum.pushed;
        return Err(Error::Conservation(format!("layout: {pushed} pushed, {sent} went through")));
    }
    let per_packet = |count: u64| count as f64 / sum.counted.max(1) as f64;
    let round = Round {
        packets_per_second: window.per_second(sum.counted),
        transactions_per_second: load.burst().map(|_| window.per_second(sum.transactions)),
        cpu_ns_per_packet: window.cpu_ns_per(sum.counted),
        retries_per_packet: per_packet(sum.retries),
        owned_share: per_packet(sum.owned),
        refused_per_packet: per_packet(sum.refused),
        latency: sum.latency,
    };
    Ok((round, sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In both layouts, owners work on every item that is pushed; `run` fails otherwise.
    #[test]
    fn nothing_is_lost_in_either_layout() {
        let loads = [Load::Stream, Load::Rr(1), Load::Rr(5), Load::Rr(64), Load::Rr(32_768)];
        for (pin, load) in [false, true].into_iter().flat_map(|pin| loads.map(|load| (pin, load))) {
            let window = Duration::from_millis(30);
            let plan = Plan { threads: vec![1, 3], window, rounds: 2, pin, load };
            let had_turns = || {
                let (cells, told) = Steps::whole(|steps| run(&plan, steps));
                let cells = cells.expect("Linux tells");
                assert_eq!((cells.len(), told), (4, 8));
                for cell in &cells {
                    assert_eq!(cell.rounds.len(), 2);
                    let whole = u64::from(load.burst().unwrap_or(1));
                    assert_eq!(cell.packets % whole, 0, "whole bursts: {load:?}, {cell:?}");
                    let known = |round: &Round| round.transactions_per_second.is_some();
                    assert!(cell.rounds.iter().all(|round| known(round) == (load != Load::Stream)));
                }
                cells.iter().any(|cell| cell.packets > 0)
            };
            // On a busy machine, no thread may get a processor in such short windows.
            assert!((0..500).any(|_| had_turns()), "somebody had a turn");
        }
    }

    /// `has_left` returns true for an item when the owner has done the work for that item, and not
    /// earlier.
    fn leaves<F: Fields>() {
        let (fields, mut pushes) = (F::new(8), Pushes::default());
        push(&fields, &mut pushes);
        assert!(fields.has_left(fields.mark()), "the owner worked for it and left");
        assert_eq!(fields.push(&mut 0), Some(true), "another owns it");
        push(&fields, &mut pushes);
        let mark = fields.mark();
        assert!(!fields.has_left(mark), "it waits");
        assert_eq!(fields.take_or_leave(), 1);
        assert!(!fields.has_left(mark), "it was taken, and the owner works");
        assert_eq!(fields.push(&mut 0), Some(false), "another came meanwhile");
        assert_eq!(fields.take_or_leave(), 1);
        assert!(fields.has_left(mark), "the owner works for the other");
        assert_eq!(fields.take_or_leave(), 0);
        assert!(fields.has_left(fields.mark()), "it is idle");
    }

    #[test]
    fn a_number_has_left_when_it_was_worked_for() {
        leaves::<Grouped>();
        leaves::<Mixed>();
    }

    fn alone<F: Fields>() {
        let (fields, mut done) = (F::new(2), Pushes::default());
        (0..10).for_each(|_| push(&fields, &mut done));
        assert_eq!((done.pushed, done.owned, done.retries, fields.sent()), (10, 10, 0, 10));
        // While another thread is the owner, two items fit into an intake with a cap of two.
        assert_eq!(fields.push(&mut 0), Some(true));
        (0..5).for_each(|_| push(&fields, &mut done));
        assert_eq!((done.pushed, done.owned, done.refused), (12, 10, 3));
        assert_eq!([fields.take_or_leave(), fields.take_or_leave()], [2, 0]);
        assert_eq!(fields.push(&mut 0), Some(true), "it was left idle");
    }

    #[test]
    fn both_layouts_follow_the_protocol() {
        alone::<Grouped>();
        alone::<Mixed>();
    }
}
