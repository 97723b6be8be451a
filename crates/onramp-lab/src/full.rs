//! Measures the cost of a call of `try_send` that a full link refuses.
//!
//! Every port of the link holds packets whose departure times lie far in the future, so every port
//! has asked the runner for a later visit. One more sender has used up its credits with such
//! packets on the first port. That sender calls `try_send` again and again, and each call returns
//! `Full`.
//!
//! The machine interrupts and preempts the thread, so each call is measured by two clocks: by a
//! monotonic clock, which shows the elapsed time, and by the thread's CPU clock, which shows the
//! time that the thread itself was on a processor. The CPU time still includes interrupts that the
//! kernel charges to the thread, and refills of caches that other threads have emptied.
//!
//! To show the machine's part, each call is followed by a fixed computation of half a microsecond,
//! measured in the same way. A longer call meets more interrupts, so durations over [`LONG_NS`] are
//! counted per second of CPU time. If the calls have no more long durations per second than the
//! computation has, the machine causes the long durations. After each computation, an empty pair of
//! clock readings shows the cost of reading the clocks.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use onramp::dev::{MonotonicClock, Null};
use onramp::{Clock, Credits, Device, Flow, Link, LinkStats, Mapping, Sender, TrySendError};

use crate::Error;
use crate::measure::{Latency, Percentiles, Rounds, Steps, is_stopped, rotated, thread_cpu_ns};

/// Number of payload bytes in a packet.
pub const PAYLOAD: usize = 120;
/// Number of packets that each sender may have in flight. Every port holds this many packets of a
/// sender of its own.
pub const CREDITS: u32 = 4;
/// The qdisc of each port. It accepts departure times further ahead than it does by default.
pub const QDISC: &str = "fq initial_quantum 0 horizon 4200s";
/// Number of steps of the fixed computation, which takes about 0.5 µs at 3 GHz.
pub const BUSY_TURNS: u32 = 256;
/// CPU time, in nanoseconds and with the clock readings included, above which a call counts as
/// long.
pub const LONG_NS: u64 = 20_000;
/// The longest window that a plan may ask for. In a longer window, packets would begin to leave.
pub const WINDOW_MAX: Duration = Duration::from_secs(3_000);

/// Number of calls between two looks at whether the run shall end early.
const TURNS_PER_LOOK: u32 = 1_024;
/// How far in the future the packets' departure times lie.
const AHEAD: Duration = Duration::from_secs(4_000);
/// How long to wait until the packet counts of the link add up. They may not at first, because a
/// runner may be working at a port.
const PATIENCE: Duration = Duration::from_secs(10);

/// A piece of work whose duration is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// A call of `try_send` that the link refuses.
    TrySend,
    /// A fixed computation without memory accesses, locks and system calls.
    Busy,
}

impl Design {
    /// Both designs (kinds of work) that the experiment measures.
    pub const ALL: [Self; 2] = [Self::TrySend, Self::Busy];

    /// Returns the name of the work that is measured.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TrySend => "try-send",
            Self::Busy => "busy",
        }
    }
}

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of ports to measure with, one after another.
    pub ports: Vec<usize>,
    /// Measured time of each number of ports in a round, at most [`WINDOW_MAX`] long.
    pub window: Duration,
    /// Number of rounds. Each round starts with another number of ports.
    pub rounds: usize,
}

/// Durations of one kind of work by two clocks, clock readings included.
#[derive(Clone, Debug, Default)]
pub struct Timed {
    /// Durations by the monotonic clock, nanoseconds.
    pub took: Latency,
    /// Durations by the thread's CPU clock, nanoseconds. The CPU clock is read before and after the
    /// two readings of the monotonic clock.
    pub cpu: Latency,
    /// Sum of all durations by the thread's CPU clock, nanoseconds.
    cpu_ns: u64,
    /// Number of durations over [`LONG_NS`] by the thread's CPU clock.
    long: u64,
}

impl Timed {
    /// Does `work` and records how long it took.
    #[inline]
    fn record<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let cpu_ns = thread_cpu_ns();
        let began = MonotonicClock.now();
        let done = work();
        let took_ns = MonotonicClock.now().since(began);
        let cpu_ns = thread_cpu_ns().saturating_sub(cpu_ns);
        self.took.record(took_ns);
        self.record_cpu(cpu_ns);
        done
    }

    #[inline]
    fn record_cpu(&mut self, ns: u64) {
        self.cpu.record(ns);
        self.cpu_ns += ns;
        self.long += u64::from(ns > LONG_NS);
    }

    fn merge(&mut self, other: &Self) {
        self.took.merge(&other.took);
        self.cpu.merge(&other.cpu);
        self.cpu_ns += other.cpu_ns;
        self.long += other.long;
    }
}

/// Results of one design (refused calls, or the fixed computation) in one round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Largest CPU time of a call in this round, minus the median CPU time of the empty pairs of
    /// clock readings; nanoseconds.
    pub own_max_ns: f64,
    /// Number of calls that took more CPU time than [`LONG_NS`], divided by the sum of the CPU
    /// times of all calls in seconds.
    pub long_per_cpu_second: f64,
    /// Mean number of ports per call of which the calling thread became the owner, to send packets
    /// of other senders. `None` for the design that makes no calls of `try_send`.
    pub ports_per_call: Option<f64>,
}

/// The measurements of one design (refused calls, or the fixed computation) with one number of
/// ports.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The kind of work that was measured.
    pub design: Design,
    /// Number of ports of the link, each of which holds packets.
    pub ports: usize,
    /// Results of the rounds, in order.
    pub rounds: Vec<Round>,
    /// Durations of the measured work in all rounds.
    pub calls: Timed,
    /// Number of calls that the link refused: all of them. `None` for the design that makes no
    /// calls of `try_send`.
    pub refused: Option<u64>,
    /// Durations of the empty pairs of clock readings, as many as there are calls.
    pub empty: Timed,
}

impl Measurement {
    /// Returns the percentiles of the thread's own work in a call, nanoseconds: the call's CPU time
    /// minus the median CPU time of the empty pairs of clock readings. `None` if nothing was
    /// measured.
    #[must_use]
    pub fn own(&self) -> Option<Percentiles> {
        let readings_ns = median(&self.empty.cpu);
        let net = |ns: u64| ns.saturating_sub(readings_ns);
        let gross = self.calls.cpu.percentiles()?;
        Some(Percentiles {
            samples: gross.samples,
            p50: net(gross.p50),
            p99: net(gross.p99),
            p999: net(gross.p999),
            max: net(gross.max),
        })
    }

    /// Returns the median time that the clock readings add to a duration by the thread's CPU clock,
    /// nanoseconds.
    #[must_use]
    pub fn readings_cpu_ns(&self) -> u64 {
        median(&self.empty.cpu)
    }

    /// Returns the median time that the clock readings add to a duration by the monotonic clock,
    /// nanoseconds.
    #[must_use]
    pub fn readings_took_ns(&self) -> u64 {
        median(&self.empty.took)
    }
}

impl Rounds for Measurement {
    type Round = Round;

    fn rounds(&self) -> &[Round] {
        &self.rounds
    }
}

/// Runs the experiment. For each number of ports that has at least one round, returns the figures
/// of both designs, in the order of [`Design::ALL`]. A measurement fails if its link cannot be
/// made, a call is not refused, a packet leaves, or packets are lost or duplicated.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Vec<Measurement> {
    let cell = |ports, design| Measurement {
        design,
        ports,
        rounds: Vec::new(),
        calls: Timed::default(),
        refused: None,
        empty: Timed::default(),
    };
    let pair = |ports: &usize| Design::ALL.map(|design| cell(*ports, design));
    let mut cells: Vec<[Measurement; 2]> = plan.ports.iter().map(pair).collect();
    let order: Vec<usize> = (0..cells.len()).collect();
    for round in 0..plan.rounds {
        for &place in rotated(&order, round) {
            let ports = plan.ports[place];
            let (cell, part) = (format!("{ports} port(s)"), format!("round {}", round + 1));
            let found = steps.step(cell, part, || measure(ports, plan.window));
            let Some(outcome) = found else { continue };
            for cell in &mut cells[place] {
                cell.add(&outcome);
            }
        }
    }
    cells.into_iter().flatten().filter(|cell| !cell.rounds.is_empty()).collect()
}

fn measure(ports: usize, window: Duration) -> Result<Outcome, Error> {
    let mut full = Full::new(ports, AHEAD, AHEAD)?;
    let outcome = full.measure(window)?;
    full.end()?;
    Ok(outcome)
}

fn median(latency: &Latency) -> u64 {
    latency.percentiles().map_or(0, |ns| ns.p50)
}

/// Results of one measured window.
#[derive(Debug, Default)]
struct Outcome {
    /// Durations of the two designs, in the order of [`Design::ALL`].
    calls: [Timed; 2],
    empty: Timed,
    refused: u64,
    /// Number of times that the calling thread became the owner of a port, to send packets of other
    /// senders.
    helped: u64,
}

impl Measurement {
    fn add(&mut self, outcome: &Outcome) {
        let calls = &outcome.calls[self.design as usize];
        let most_ns = calls.cpu.percentiles().map_or(0, |ns| ns.max);
        let tries = self.design == Design::TrySend;
        let per_call = || outcome.helped as f64 / calls.took.samples() as f64;
        self.rounds.push(Round {
            own_max_ns: most_ns.saturating_sub(median(&outcome.empty.cpu)) as f64,
            long_per_cpu_second: calls.long as f64 * 1e9 / calls.cpu_ns.max(1) as f64,
            ports_per_call: tries.then(per_call),
        });
        self.calls.merge(calls);
        self.refused = tries.then(|| self.refused.unwrap_or(0) + outcome.refused);
        self.empty.merge(&outcome.empty);
    }
}

/// A full link, and a sender at the link's first port that has no credit left.
struct Full {
    link: Link,
    /// The senders of the packets that the ports hold, one sender per port.
    others: Vec<Sender>,
    sender: Sender,
    flow: Flow,
}

impl Full {
    /// Makes a full link. The packets of the other senders may leave only when the time `others_in`
    /// has passed, those of the measured sender only after the time `own_in`.
    fn new(ports: usize, others_in: Duration, own_in: Duration) -> Result<Self, Error> {
        let devices = (0..ports).map(|_| Box::new(Null::default()) as Box<dyn Device>);
        let credits = Credits { packets: CREDITS, bytes: 1 << 20 };
        let link = Link::devices(devices).qdisc(QDISC).credits(credits).build();
        let link = link.map_err(Error::Link)?;
        let others = (0..ports).map(|port| {
            let mut sender = link.sender();
            let flow = sender.flow_with(None, Mapping::Port(port));
            spend(&link, &mut sender, &flow, others_in).map(|()| sender)
        });
        let others = others.collect::<Result<_, _>>()?;
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Port(0));
        spend(&link, &mut sender, &flow, own_in)?;
        let full = Self { link, others, sender, flow };
        full.settle()?;
        Ok(full)
    }

    /// Returns the number of packets that were given to the link.
    fn given(&self) -> u64 {
        (self.others.len() as u64 + 1) * u64::from(CREDITS)
    }

    /// Waits until the link holds all packets that it was given, and checks that each is in the
    /// right port.
    fn settle(&self) -> Result<(), Error> {
        let until = MonotonicClock.now() + PATIENCE;
        loop {
            let stats = self.link.stats();
            still(&stats)?;
            match balance(&stats, self.given(), 0) {
                Ok(()) => return in_every_port(&stats),
                Err(why) if MonotonicClock.now() >= until => return Err(why),
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Measures refused calls for the time `window`, after a warm-up of one fifth of that time.
    fn measure(&mut self, window: Duration) -> Result<Outcome, Error> {
        self.turns(window / 5, &mut Outcome::default())?;
        let mut outcome = Outcome::default();
        let helped = |link: &Link| link.stats().ports.iter().map(|port| port.helped).sum::<u64>();
        let before = helped(&self.link);
        self.turns(window, &mut outcome)?;
        outcome.helped = helped(&self.link) - before;
        self.settle()?;
        Ok(outcome)
    }

    /// Repeats until `window` is over: makes a call, then the fixed computation, then an empty pair
    /// of clock readings. Repeats at least twice, because the first refused call does other work
    /// than later ones.
    fn turns(&mut self, window: Duration, outcome: &mut Outcome) -> Result<(), Error> {
        let Outcome { calls: [calls, busy], empty, refused, .. } = outcome;
        let until = MonotonicClock.now() + window;
        let payload = [0; PAYLOAD];
        let mut turns = 0_u32;
        while turns < 2 || MonotonicClock.now() < until {
            if turns.is_multiple_of(TURNS_PER_LOOK) && is_stopped() {
                return Err(Error::Stopped);
            }
            match calls.record(|| self.sender.try_send(&self.flow, &payload)) {
                Err(TrySendError::Full) => *refused += 1,
                Err(why) => return Err(Error::NotFull(format!("a call to send failed: {why}"))),
                Ok(()) => return Err(Error::NotFull("a call to send was accepted".into())),
            }
            busy.record(compute);
            empty.record(|| ());
            turns = turns.saturating_add(1);
        }
        Ok(())
    }

    /// Closes the link, which must drop all packets that it holds and no others.
    fn end(self) -> Result<(), Error> {
        self.link.close(Duration::ZERO);
        let stats = self.link.stats();
        if stats.sent > 0 {
            return Err(Error::NotFull(format!("{} packets left before their time", stats.sent)));
        }
        balance(&stats, self.given(), self.given())
    }
}

/// Uses up the credits of `sender` with packets that may leave only when the time `ahead` has
/// passed.
fn spend(link: &Link, sender: &mut Sender, flow: &Flow, ahead: Duration) -> Result<(), Error> {
    let refused = |why: TrySendError| Error::NotFull(format!("a packet was refused: {why}"));
    for _ in 0..CREDITS {
        let mut packet = sender.packet(flow, &[0; PAYLOAD]).map_err(refused)?;
        packet.txtime_ns = (link.now() + ahead).0;
        sender.submit(flow, packet).map_err(|rejected| refused(rejected.why))?;
    }
    Ok(())
}

/// Checks that the link has sent and dropped no packet.
fn still(stats: &LinkStats) -> Result<(), Error> {
    match (stats.sent, stats.dropped_total()) {
        (0, 0) => Ok(()),
        (sent, dropped) => Err(Error::NotFull(format!(
            "{sent} packets left and {dropped} were dropped before their time"
        ))),
    }
}

/// Checks that every port holds the packets of its own sender, and that the first port also holds
/// those of the measured sender.
fn in_every_port(stats: &LinkStats) -> Result<(), Error> {
    for (port, snapshot) in stats.ports.iter().enumerate() {
        let (held, want) = (snapshot.held, u64::from(CREDITS) * if port == 0 { 2 } else { 1 });
        if held != want {
            return Err(Error::NotFull(format!("port {port} holds {held} packets, not {want}")));
        }
    }
    Ok(())
}

/// Checks that `dropped` of the `given` packets were dropped, and that the link has sent or still
/// holds all others.
fn balance(stats: &LinkStats, given: u64, dropped: u64) -> Result<(), Error> {
    let (submitted, sent, held) = (stats.submitted, stats.sent, stats.held);
    let lost = stats.dropped_total();
    if submitted == given && sent + lost + held == given && lost == dropped {
        return Ok(());
    }
    Err(Error::Conservation(format!(
        "{} ports: {given} were given, {submitted} submitted, {sent} left, {lost} were dropped \
         instead of {dropped}, {held} are held",
        stats.ports.len()
    )))
}

/// Runs the fixed computation: steps of a xorshift generator (Marsaglia 2003).
#[inline]
fn compute() -> u64 {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..BUSY_TURNS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state)
}

#[cfg(test)]
mod tests;
