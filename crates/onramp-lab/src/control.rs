//! Measures how much senders are slowed down while another thread reads the counters of a tree, or
//! changes the tree.
//!
//! One thread sends as fast as it can. Meanwhile another thread does one of two things. It reads
//! the counters of all qdiscs of a link with many queues, again and again. Or it changes the qdiscs
//! that the packets pass, a given number of times per second: a limit, a pacing rate, the rate of a
//! class, the kind of a qdisc.
//!
//! A thread that reads without a pause occupies a processor and its caches. To show the cost of
//! that alone, in a further design the thread reads the counters of another link, which no packet
//! passes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use onramp::dev::{MonotonicClock, Null};
use onramp::{Clock, Device, Instant, Link, Mapping, PortError, Setup};

use crate::Error;
use crate::measure::{Finally, Latency, Phase, PhaseCell, Rounds, Steps, pause, rotated};
use crate::thread_group::WARM_UP;

/// Number of payload bytes in a packet.
pub const PAYLOAD: usize = 120;
/// How long to wait, at the end of a run, until all packets have left.
const PATIENCE: Duration = Duration::from_secs(10);

/// The lines of `tc` that make the tree that the experiment changes.
const TREE: [&str; 3] = [
    "qdisc add dev lab root handle 1: htb default 1",
    "class add dev lab parent 1: classid 1:1 htb rate 100gbit",
    "qdisc add dev lab parent 1:1 handle 10: fq",
];

/// The changes of the tree, made one after another. The last two replace the `fq` by an `fq_codel`,
/// and that by an `fq`.
const CHANGES: [&str; 6] = [
    "qdisc change dev lab parent 1:1 handle 10: fq limit 2000",
    "class change dev lab parent 1: classid 1:1 htb rate 80gbit",
    "qdisc change dev lab parent 1:1 handle 10: fq maxrate 50gbit",
    "class change dev lab parent 1: classid 1:1 htb rate 100gbit",
    "qdisc replace dev lab parent 1:1 handle 11: fq_codel",
    "qdisc replace dev lab parent 1:1 handle 10: fq",
];

/// A situation that is measured: the link that a sender uses, and the work of a second thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// A link of many queues, one of which the sender uses; no thread reads the counters.
    Queues,
    /// Like `Queues`, while another thread continually reads the counters of all qdiscs of a second
    /// link, which has as many queues and no sender.
    QueuesElsewhere,
    /// Like `Queues`, while another thread continually reads the counters of all qdiscs of the
    /// sender's link.
    QueuesRead,
    /// A link of one queue with `htb` and `fq`; no thread changes the tree.
    Tree,
    /// Like `Tree`, while another thread changes that tree.
    TreeChanged,
}

impl Design {
    /// All designs (situations) that the experiment measures.
    pub const ALL: [Self; 5] =
        [Self::Queues, Self::QueuesElsewhere, Self::QueuesRead, Self::Tree, Self::TreeChanged];

    /// Returns the design's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queues => "queues",
            Self::QueuesElsewhere => "queues-elsewhere",
            Self::QueuesRead => "queues-read",
            Self::Tree => "tree",
            Self::TreeChanged => "tree-changed",
        }
    }

    /// Returns the design in which the sender uses the same kind of link without a second thread.
    #[must_use]
    pub const fn undisturbed(self) -> Self {
        match self {
            Self::Queues | Self::QueuesElsewhere | Self::QueuesRead => Self::Queues,
            Self::Tree | Self::TreeChanged => Self::Tree,
        }
    }

    /// For a design whose second thread reads the counters of the sender's link, returns the design
    /// whose second thread reads those of another link; `None` for all other designs.
    #[must_use]
    pub const fn elsewhere(self) -> Option<Self> {
        match self {
            Self::QueuesRead => Some(Self::QueuesElsewhere),
            _ => None,
        }
    }
}

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of queues of the link whose counters are read.
    pub queues: usize,
    /// Number of readings per second, if the machine is fast enough; 0 means that readings follow
    /// each other without a pause.
    pub readings: u32,
    /// Number of changes of the tree per second.
    pub changes: u32,
    /// Measured time of each design in a round, after a warm-up of a fifth of it, in which the
    /// second thread works, too.
    pub window: Duration,
    /// Number of rounds. Each round starts with another design.
    pub rounds: usize,
}

/// Results of one design in one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Number of packets that the sender submitted, per second.
    pub packets_per_second: f64,
    /// Share of the submitted packets, those of the warm-up included, that were dropped, by qdiscs
    /// that were replaced.
    pub dropped_share: f64,
    /// Longest time that the sender took for one packet, nanoseconds.
    pub stall_max_ns: f64,
    /// Number of readings of all counters, or of changes, per second. `None` for a design without a
    /// second thread.
    pub operations_per_second: Option<f64>,
}

/// The measurements of one design.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The design that was measured.
    pub design: Design,
    /// Results of the rounds, in order.
    pub rounds: Vec<Round>,
    /// Durations of the readings or changes of all rounds, nanoseconds.
    pub operation: Latency,
    /// Number of packets sent in all rounds, warm-ups included. Each packet has left, or was
    /// dropped and counted.
    pub packets: u64,
}

impl Rounds for Measurement {
    type Round = Round;

    fn rounds(&self) -> &[Round] {
        &self.rounds
    }
}

/// Runs the experiment. Returns the measurements that have at least one round. A measurement fails
/// if its link cannot be made or changed, or if packets are lost or duplicated.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Vec<Measurement> {
    let empty = |design| Measurement {
        design,
        rounds: Vec::new(),
        operation: Latency::default(),
        packets: 0,
    };
    let mut cells = Design::ALL.map(empty);
    for round in 0..plan.rounds {
        for &design in rotated(&Design::ALL, round) {
            let part = format!("round {}", round + 1);
            let found = steps.step(design.name(), part, || measure(design, plan));
            let Some(outcome) = found else { continue };
            let cell = &mut cells[design as usize];
            cell.operation.merge(&outcome.operation);
            cell.packets += outcome.packets;
            cell.rounds.push(outcome.round);
        }
    }
    cells.into_iter().filter(|cell| !cell.rounds.is_empty()).collect()
}

struct Outcome {
    round: Round,
    operation: Latency,
    packets: u64,
}

/// What the sending thread did.
#[derive(Default)]
struct Sent {
    /// Number of packets that it submitted.
    packets: AtomicU64,
    /// How many of these it submitted after the warm-up.
    measured: AtomicU64,
    /// The longest time that it took for one packet after the warm-up.
    stall_max_ns: AtomicU64,
}

fn measure(design: Design, plan: &Plan) -> Result<Outcome, Error> {
    let queues = || link(&["qdisc add dev lab root handle 1: mq"], plan.queues);
    let link = match design.undisturbed() {
        Design::Queues => queues()?,
        _ => link(&TREE, 1)?,
    };
    let elsewhere = if design == Design::QueuesElsewhere { Some(queues()?) } else { None };
    let mut changes = CHANGES.iter().copied().cycle();
    let mut work = |time: Duration, operation: &mut Latency| {
        let until = MonotonicClock.now() + time;
        match design {
            Design::Queues | Design::Tree => pause(time),
            Design::QueuesElsewhere | Design::QueuesRead => {
                read(elsewhere.as_ref().unwrap_or(&link), plan, until, operation)
            }
            Design::TreeChanged => change(&link, &mut changes, plan.changes, until, operation),
        }
    };
    let (sent, mut operation) = (Sent::default(), Latency::default());
    let mut seconds = 0.0;
    beside_sender(&link, &sent, |phase| {
        work(plan.window / WARM_UP, &mut Latency::default())?;
        phase.set(Phase::Measure);
        let began = MonotonicClock.now();
        work(plan.window, &mut operation)?;
        seconds = MonotonicClock.now().since(began) as f64 / 1e9;
        Ok(())
    })?;
    // Relaxed: the sender's thread was joined before these loads.
    let packets = sent.packets.load(Ordering::Relaxed);
    let measured = sent.measured.load(Ordering::Relaxed);
    let dropped = add_up(design, &link, packets)?;
    let operations = operation.samples();
    let disturbed = design != design.undisturbed();
    // Relaxed: the sender's thread was joined before this load.
    let stall_max_ns = sent.stall_max_ns.load(Ordering::Relaxed);
    let round = Round {
        packets_per_second: measured as f64 / seconds,
        dropped_share: dropped as f64 / (packets as f64).max(1.0),
        stall_max_ns: stall_max_ns as f64,
        operations_per_second: disturbed.then(|| operations as f64 / seconds),
    };
    Ok(Outcome { round, operation, packets })
}

/// Does `work` while another thread sends. The work begins in the phase of the warm-up, and sets
/// the phase in which the sender measures. If `work` panics, the sender stops too.
fn beside_sender(
    link: &Link,
    sent: &Sent,
    work: impl FnOnce(&PhaseCell) -> Result<(), Error>,
) -> Result<(), Error> {
    let phase = PhaseCell::new();
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(link, &phase, sent));
        let stops = Finally::new(|| phase.set(Phase::Stop));
        let worked = work(&phase);
        drop(stops);
        sender.join().map_err(|_| Error::Panicked)?;
        worked
    })
}

fn link(lines: &[&str], queues: usize) -> Result<Link, Error> {
    let mut setup = Setup::default();
    for line in lines {
        setup.apply(line).map_err(|error| Error::Setup((*line).into(), error.to_string()))?;
    }
    let devices = (0..queues).map(|_| Box::new(Null::default()) as Box<dyn Device>);
    Link::devices(devices).tree(&setup).build().map_err(Error::Link)
}

/// Sends through the first queue until the phase is [`Phase::Stop`], at least one packet, and waits
/// until all packets have left. Measures each packet whose call ends after the warm-up, so at least
/// one.
fn send(link: &Link, phase: &PhaseCell, sent: &Sent) {
    let mut sender = link.sender();
    let flow = sender.flow_with(None, Mapping::Port(0));
    let (mut packets, mut measured, mut stall_max_ns) = (0, 0, 0);
    let mut before = MonotonicClock.now();
    loop {
        let submitted = u64::from(sender.send(&flow, &[0; PAYLOAD]).is_ok());
        let (now, current) = (MonotonicClock.now(), phase.get());
        packets += submitted;
        if current != Phase::WarmUp {
            measured += submitted;
            stall_max_ns = now.since(before).max(stall_max_ns);
        }
        before = now;
        if current == Phase::Stop {
            break;
        }
    }
    sender.flush(PATIENCE);
    // Relaxed: the thread that reads these values joins this thread first.
    sent.packets.store(packets, Ordering::Relaxed);
    sent.measured.store(measured, Ordering::Relaxed);
    sent.stall_max_ns.store(stall_max_ns, Ordering::Relaxed);
}

/// Reads the counters of all qdiscs of `link` again and again, until the time `until`.
fn read(link: &Link, plan: &Plan, until: Instant, operation: &mut Latency) -> Result<(), Error> {
    let period = 1_000_000_000_u64.checked_div(plan.readings.into()).unwrap_or(0);
    let mut due = MonotonicClock.now();
    loop {
        let began = MonotonicClock.now();
        if began.max(due) >= until {
            return pause(Duration::from_nanos(until.since(began)));
        }
        pause(Duration::from_nanos(due.since(began)))?;
        let began = MonotonicClock.now();
        due = due.after(period).max(began);
        let views = link.tree_views().len();
        if views != plan.queues + 1 {
            let queues = plan.queues;
            return Err(Error::Stalled(format!("{views} views of {queues} queues and their mq")));
        }
        operation.record(MonotonicClock.now().since(began));
    }
}

/// Longest delay behind the schedule of changes, in nanoseconds, after which all missed changes are
/// still made. After a longer delay, some changes are left out.
const CATCH_UP_NS: u64 = 100_000_000;

/// Changes the tree of `link` `per_second` times per second, until the time `until`, by the next of
/// `lines` each time.
fn change(
    link: &Link,
    lines: &mut impl Iterator<Item = &'static str>,
    per_second: u32,
    until: Instant,
    operation: &mut Latency,
) -> Result<(), Error> {
    let (period, mut due) = (1_000_000_000 / u64::from(per_second), MonotonicClock.now());
    loop {
        let now = MonotonicClock.now();
        if now >= until {
            return Ok(());
        }
        pause(Duration::from_nanos(due.since(now)))?;
        // After a short delay of the machine, make the missed changes up. After a long delay, leave
        // some of them out.
        due = due.after(period).max(Instant(now.0.saturating_sub(CATCH_UP_NS)));
        let Some(line) = lines.next() else { return Ok(()) };
        let began = MonotonicClock.now();
        match link.change(line) {
            // `Late`: the owner of a port is still calling its device, and makes the change
            // afterwards.
            Ok(_) | Err(PortError::Late(_)) => {}
            Err(error) => return Err(Error::Setup(line.into(), error.to_string())),
        }
        operation.record(MonotonicClock.now().since(began));
    }
}

/// Checks that every packet was sent or dropped and that none is missing. Returns the number of
/// dropped packets.
fn add_up(design: Design, link: &Link, packets: u64) -> Result<u64, Error> {
    if !link.flush(PATIENCE) {
        return Err(Error::Stalled(design.name().to_owned()));
    }
    let stats = link.stats();
    let dropped = stats.dropped_total();
    if stats.submitted == packets && stats.sent + dropped == packets && stats.held == 0 {
        return Ok(dropped);
    }
    let (submitted, sent, held) = (stats.submitted, stats.sent, stats.held);
    Err(Error::Conservation(format!(
        "{}: {packets} were sent, {submitted} submitted, {sent} left, {dropped} were dropped, \
         {held} are held",
        design.name()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If it did not, this test would never end.
    #[test]
    fn the_sender_stops_when_the_work_panics() {
        let (link, sent) = (link(&TREE, 1).expect("a link"), Sent::default());
        let work = || beside_sender(&link, &sent, |_| panic!("as planned"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err());
        // Relaxed: the sender's thread has ended.
        let packets = sent.packets.load(Ordering::Relaxed);
        assert_eq!(add_up(Design::Tree, &link, packets).expect("no packet is lost"), 0);
    }

    /// Each design warms up for a fifth of its window, and the figures are those of the window.
    #[test]
    fn every_design_warms_up() {
        let window = Duration::from_millis(200);
        let plan = Plan { queues: 2, readings: 100, changes: 100, window, rounds: 1 };
        let began = MonotonicClock.now();
        let (cells, _) = Steps::whole(|steps| run(&plan, steps));
        let took = Duration::from_nanos(MonotonicClock.now().since(began));
        assert!(took >= 5 * window * 6 / 5, "{took:?}");
        for cell in &cells {
            // The last operation of the warm-up or of the window may be short of the limit.
            let second = cell.rounds[0].operations_per_second.unwrap_or(100.0);
            assert!(second <= 110.0, "{second} operations a second, not those of the warm-up too");
            let measured = cell.rounds[0].packets_per_second * window.as_secs_f64();
            assert!(measured < cell.packets as f64, "{measured} of {}", cell.packets);
        }
    }

    /// Each design yields the figures that belong to it: only designs with a second thread count
    /// readings or changes. No packet is lost (`run` fails otherwise).
    #[test]
    fn every_design_is_measured() {
        let window = Duration::from_millis(60);
        let plan = Plan { queues: 300, readings: 0, changes: 500, window, rounds: 2 };
        let (cells, told) = Steps::whole(|steps| run(&plan, steps));
        assert_eq!((cells.len(), told), (5, 10));
        for (cell, design) in cells.iter().zip(Design::ALL) {
            let disturbed = design != design.undisturbed();
            assert_eq!((cell.design, cell.rounds.len()), (design, 2));
            assert!(cell.packets > 0, "somebody had a turn: {cell:?}");
            assert_eq!(cell.operation.samples() > 0, disturbed, "{cell:?}");
            for round in &cell.rounds {
                assert_eq!(round.operations_per_second.is_some(), disturbed);
                assert!(round.stall_max_ns > 0.0 && round.packets_per_second > 0.0);
                // Packets are dropped only in the design in which a qdisc is replaced.
                assert!(round.dropped_share == 0.0 || design == Design::TreeChanged, "{round:?}");
            }
        }
    }
}
