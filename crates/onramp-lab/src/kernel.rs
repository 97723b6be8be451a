//! Compares the transmit path of the running kernel with Onramp's: what a qdisc costs, and how the
//! rate grows with more processors.
//!
//! Both sides (the kernel and Onramp) send packets of the same size from the same number of
//! threads, each bound to its own processor, as fast as the packets are taken. Each side has a
//! floor: the same sender and device without a qdisc. The cost of a qdisc is the CPU time that it
//! adds to the floor of its side.
//!
//! * The kernel's side: packet sockets in a separate network namespace, on a device with one queue
//!   that swallows all packets. Its floor is the qdisc `noqueue`. In the floor the threads share
//!   the device, as they do with a qdisc.
//! * Onramp's side: a [`Link`](onramp::Link) in front of a device that takes all packets. Its floor
//!   (`none`) is a loop without link and qdisc: take a packet from the pool, write the payload,
//!   read the clock, call the device, and return the packet to the pool. In the floor each thread
//!   has its own device.
//!
//! These differences between the sides remain in the comparison. A packet of the kernel is
//! allocated and freed each time, is limited by the socket's buffer instead of credits, and enters
//! by one system call per 64 packets; the kernel's floor (its cost with `noqueue`) includes all
//! these costs. Softirqs that interrupt a sender count as the sender's CPU time. The work of the
//! thread `ksoftirqd` does not count, but this thread has little to do in the experiment.

pub(crate) mod bed;
mod ours;
mod packets;

use std::fmt;
use std::thread;
use std::time::Duration;

use onramp_core::Setup;
use onramp_core::Spec;
use onramp_core::Tree;
use onramp_core::qdisc::{Dequeue, KINDS};
use onramp_queue::Packet;

use crate::measure::{Spread, Steps, rotated};
use crate::thread_group::Window;
use crate::{Error, pin};
use bed::{Bed, DEVICES};

/// Size of a packet, bytes. On the kernel's side this is the size of a frame with its headers, on
/// Onramp's side the size of the payload.
pub const PACKET: usize = 120;
/// Qdiscs that are compared whenever both the kernel and Onramp have them.
const USUAL: [&str; 5] = ["pfifo", "pfifo_fast", "fq", "fq_codel", "htb"];

/// One of the two transmit paths that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The kernel's transmit path.
    Kernel,
    /// Onramp's transmit path.
    Onramp,
}

impl Side {
    /// The kernel and Onramp, in the order in which they are measured.
    pub const ALL: [Self; 2] = [Self::Kernel, Self::Onramp];

    /// Returns the name of the side in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Onramp => "onramp",
        }
    }

    /// Returns the name of the side's floor (a path without a qdisc), which stands in place of a
    /// qdisc's name.
    #[must_use]
    pub fn floor(self) -> &'static str {
        match self {
            Self::Kernel => "noqueue",
            Self::Onramp => "none",
        }
    }

    /// Returns the qdiscs of `plan` that are measured on this side besides the floor. The kernel's
    /// floor is a qdisc too, which is not measured again.
    fn qdiscs(self, plan: &Plan) -> impl Iterator<Item = &str> {
        let qdiscs = plan.qdiscs.iter().map(String::as_str);
        qdiscs.filter(move |qdisc| self == Self::Onramp || *qdisc != self.floor())
    }
}

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Qdiscs to measure, in the syntax of tc. In the kernel and in Onramp, `htb` gets one class.
    pub qdiscs: Vec<String>,
    /// Numbers of processors to measure with; each processor has one sender. Each rate is divided
    /// by the rate with the first number.
    pub cpus: Vec<usize>,
    /// Time for which each combination of side, qdisc and number of processors is measured in a
    /// round.
    pub window: Duration,
    /// Number of rounds. Each round starts with another combination of side, qdisc and number of
    /// processors.
    pub rounds: usize,
}

/// The results of the experiment.
#[derive(Clone, Debug)]
pub struct Found {
    /// The kind of device on the kernel's side. An error says why the kernel's side could not be
    /// measured.
    pub device: Result<&'static str, String>,
    /// Qdiscs that the kernel or Onramp does not have.
    pub lacking: Vec<Lacking>,
    /// The measurements that have at least one round, ordered by side, qdisc (first the floor,
    /// which has no qdisc) and number of processors.
    pub cells: Vec<Measurement>,
}

/// A qdisc that the kernel or Onramp does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// The side of the comparison: the kernel or Onramp.
    pub side: Side,
    /// The qdisc, in the syntax of tc.
    pub qdisc: String,
    /// The error with which the kernel or Onramp refused the qdisc.
    pub why: String,
}

/// The measurements of a side with one qdisc and one number of processors.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The side of the comparison: the kernel or Onramp.
    pub side: Side,
    /// The qdisc in the syntax of tc, or the name of the floor (the path without a qdisc).
    pub qdisc: String,
    /// Number of processors; there are as many senders.
    pub cpus: usize,
    /// Results of the rounds, in order.
    pub rounds: Vec<Round>,
}

/// Results of one measurement (one combination of side, qdisc and number of processors) in one
/// round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Number of packets that the device took, per second.
    pub packets_per_second: f64,
    /// User and system time of the process per packet that the device took, nanoseconds. `None` if
    /// the device took no packets.
    pub cpu_ns_per_packet: Option<f64>,
    /// `cpu_ns_per_packet` minus the same figure of the floor (the path without a qdisc) with the
    /// same number of processors in this round: the cost of the qdisc. `None` for a floor.
    pub above_floor_ns: Option<f64>,
    /// The packet rate divided by the rate with the first number of processors in this round;
    /// `None` if that rate is zero or was not measured.
    pub scaling: Option<f64>,
    /// The share of its processors' time that the process used, from 0 to 1. A share below 1 means
    /// that other processes ran there too, so that rates mean little, or that senders waited.
    pub cpu_share: f64,
    /// Number of packets that the device took, including the warm-up.
    pub packets: u64,
    /// Number of packets that the qdisc dropped, including the warm-up.
    pub dropped: u64,
}

/// Onramp compared with the kernel, for a qdisc that both have.
#[derive(Clone, Debug)]
pub struct Ratio {
    /// The qdisc, in the syntax of tc.
    pub qdisc: String,
    /// Number of processors on each side.
    pub cpus: usize,
    /// Onramp's rate, divided by the kernel's in the same round.
    pub packets_per_second: Option<Spread>,
    /// The median CPU time that Onramp's qdisc adds to Onramp's path without a qdisc, divided by
    /// what the kernel's qdisc adds to the kernel's path. `None` if the kernel's qdisc adds no
    /// measurable cost.
    pub above_floor: Option<f64>,
}

/// Result of one run of one measurement (one combination of side, qdisc and number of processors).
#[derive(Clone, Copy, Debug)]
struct Trial {
    window: Window,
    /// Number of packets that the device took in the measured window.
    counted: u64,
    /// Number of packets that the device took in the whole run, warm-up included.
    taken: u64,
    dropped: u64,
}

impl Trial {
    /// Makes a trial. `seen` holds the device's packet counts at the beginning and at the end of
    /// the measured window.
    fn of(window: Window, seen: (u64, u64), taken: u64, dropped: u64) -> Self {
        Self { window, counted: seen.1 - seen.0, taken, dropped }
    }
}

impl Measurement {
    /// Returns the median and the extremes of `figure` over the rounds that have this figure.
    #[must_use]
    pub fn spread(&self, figure: impl Fn(&Round) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(figure))
    }

    /// Whether these are the measurements of a floor (a path without a qdisc).
    #[must_use]
    pub fn is_floor(&self) -> bool {
        self.qdisc == self.side.floor()
    }

    fn is(&self, side: Side, qdisc: &str, cpus: usize) -> bool {
        (self.side, self.qdisc.as_str(), self.cpus) == (side, qdisc, cpus)
    }
}

impl Found {
    /// Returns Onramp's figures divided by the kernel's, for qdiscs that both have.
    #[must_use]
    pub fn ratios(&self) -> Vec<Ratio> {
        let ours = self.cells.iter().filter(|cell| cell.side == Side::Onramp && !cell.is_floor());
        let pairs = ours.filter_map(|ours| {
            let theirs = |cell: &&Measurement| cell.is(Side::Kernel, &ours.qdisc, ours.cpus);
            Some((ours, self.cells.iter().find(theirs)?))
        });
        pairs.map(|(ours, theirs)| ratio(ours, theirs)).collect()
    }
}

fn ratio(ours: &Measurement, theirs: &Measurement) -> Ratio {
    let rounds = ours.rounds.iter().zip(&theirs.rounds);
    let rates = rounds.map(|(ours, theirs)| ours.packets_per_second / theirs.packets_per_second);
    // In a single round, the cost that a qdisc adds may be close to zero or negative. So divide the
    // medians over all rounds.
    let cost =
        |cell: &Measurement| cell.spread(|round| round.above_floor_ns).map(|cost| cost.median);
    let theirs_ns = cost(theirs).filter(|ns| *ns > 0.0);
    Ratio {
        qdisc: ours.qdisc.clone(),
        cpus: ours.cpus,
        packets_per_second: Spread::of(rates.filter(|ratio| ratio.is_finite())),
        above_floor: theirs_ns.and_then(|theirs| Some(cost(ours)? / theirs)),
    }
}

/// Returns the kinds of qdisc to measure in the kernel and in Onramp: the usual ones, and all kinds
/// of Onramp that let packets through without options or classes.
#[must_use]
pub fn qdiscs() -> Vec<String> {
    let others = KINDS.iter().map(|kind| kind.id).filter(|id| !USUAL.contains(id) && sends(id));
    USUAL.into_iter().chain(others).map(str::to_owned).collect()
}

fn sends(id: &str) -> bool {
    let Ok(spec) = id.parse::<Spec>() else { return false };
    let mut tree = Tree::new(&spec, 1514);
    let now = onramp_core::Instant(1);
    let _ = tree.enqueue(now, Packet::new(60));
    matches!(tree.dequeue(now), Dequeue::Ready(_))
}

/// Runs the experiment. A measurement fails if threads cannot be started or bound, the kernel's
/// counters cannot be read, or packets are lost or duplicated.
///
/// If the process may not make a network namespace, or if iproute2 is missing, only Onramp's side
/// is measured, and [`Found::device`] says why.
///
/// # Errors
///
/// [`Error`] if the plan has an unusual qdisc that neither the kernel nor Onramp has, or more
/// processors than this process may use.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Result<Found, Error> {
    // The network namespace belongs to the thread that is started here, and ends with that thread.
    thread::scope(|scope| {
        let body = || measure(plan, &DEVICES, steps);
        let lab = thread::Builder::new().name("lab-kernel".to_owned()).spawn_scoped(scope, body);
        let lab = lab.map_err(|error| Error::Thread(0, 1, error))?;
        lab.join().map_err(|_| Error::Panicked)?
    })
}

/// Runs all rounds. Moves the calling thread into its own network namespace.
fn measure(
    plan: &Plan,
    devices: &'static [bed::Kind],
    steps: &mut Steps<'_>,
) -> Result<Found, Error> {
    let allowed = pin::allowed()?;
    if let Some(&cpus) = plan.cpus.iter().find(|&&cpus| cpus > allowed.len()) {
        let why =
            format!("this process may use {} processors, but {cpus} were requested", allowed.len());
        return Err(Error::Pin(cpus - 1, std::io::Error::other(why)));
    }
    let bed = Bed::lay(devices);
    let mut lacking = Vec::new();
    let mut cells = Vec::new();
    for side in Side::ALL {
        if side == Side::Kernel && bed.is_err() {
            continue;
        }
        let floor = (side.floor(), Ok(()));
        let qdiscs = side.qdiscs(plan).map(|qdisc| (qdisc, has(&bed, side, qdisc)));
        for (qdisc, had) in std::iter::once(floor).chain(qdiscs) {
            if let Err(why) = had {
                lacking.push(Lacking { side, qdisc: qdisc.to_owned(), why });
                continue;
            }
            let empty =
                |&cpus| Measurement { side, qdisc: qdisc.to_owned(), cpus, rounds: Vec::new() };
            cells.extend(plan.cpus.iter().map(empty));
        }
    }
    if bed.is_ok() || cells.iter().all(Measurement::is_floor) {
        nowhere(&cells, &lacking)?;
    }
    for number in 0..plan.rounds {
        let order: Vec<usize> = (0..cells.len()).collect();
        let mut trials = vec![None; cells.len()];
        for &at in rotated(&order, number) {
            let cell = &cells[at];
            let part = format!("round {} of {}", number + 1, plan.rounds);
            let measure = || trial(&bed, cell, &allowed[..cell.cpus], plan.window);
            trials[at] = steps.step(cell, part, measure);
        }
        add_round(&mut cells, &trials, plan.cpus.first().copied().unwrap_or(1));
    }
    cells.retain(|cell| !cell.rounds.is_empty());
    Ok(Found { device: bed.map(|bed| bed.device()), lacking, cells })
}

/// Returns an error if `lacking` has a qdisc that neither the kernel nor Onramp has. A missing
/// qdisc that is one of the usual ones (see [`qdiscs`]) is no error; it is only reported.
fn nowhere(cells: &[Measurement], lacking: &[Lacking]) -> Result<(), Error> {
    let usual = qdiscs();
    let unusual = |lacking: &&Lacking| !usual.contains(&lacking.qdisc);
    let ours = lacking.iter().filter(|lacking| lacking.side == Side::Onramp).filter(unusual);
    let is = |cell: &Measurement, qdisc: &str| cell.qdisc == qdisc && cell.side == Side::Kernel;
    let mut nowhere = ours.filter(|ours| !cells.iter().any(|cell| is(cell, &ours.qdisc)));
    nowhere.next().map_or(Ok(()), |ours| Err(Error::Qdisc(ours.qdisc.clone(), ours.why.clone())))
}

/// Returns the reason as an error if `side` does not have the qdisc.
fn has(bed: &Result<Bed, String>, side: Side, qdisc: &str) -> Result<(), String> {
    match (side, bed) {
        (Side::Kernel, Ok(bed)) => bed.set(qdisc).map(drop),
        (Side::Kernel, Err(why)) => Err(why.clone()),
        (Side::Onramp, _) => tree(qdisc).map(drop),
    }
}

/// Returns Onramp's tree for `qdisc`. The same `tc` commands make it as in the kernel, so that it
/// has a class where the kernel's qdisc has one.
fn tree(qdisc: &str) -> Result<Setup, String> {
    let mut tree = Setup::default();
    for line in bed::lines(qdisc) {
        tree.apply(&line).map_err(|error| error.to_string())?;
    }
    Ok(tree)
}

fn trial(
    bed: &Result<Bed, String>,
    cell: &Measurement,
    cpus: &[usize],
    span: Duration,
) -> Result<Trial, Error> {
    match (cell.side, bed) {
        (Side::Kernel, Ok(bed)) => {
            packets::trial(&bed.set(&cell.qdisc).map_err(Error::Kernel)?, cpus, span)
        }
        (Side::Kernel, Err(why)) => Err(Error::Kernel(why.clone())),
        (Side::Onramp, _) if cell.is_floor() => ours::floor(cpus, span),
        (Side::Onramp, _) => ours::trial(&tree(&cell.qdisc).map_err(Error::Kernel)?, cpus, span),
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {} processor(s)", self.side.name(), self.qdisc, self.cpus)
    }
}

/// Adds the results of one round (`trials`) to the measurements, each to its own (`cells`); a
/// measurement that failed has no result. Divides each packet rate by the rate of the same side and
/// qdisc with `first` processors.
fn add_round(cells: &mut [Measurement], trials: &[Option<Trial>], first: usize) {
    let rate = |trial: &Trial| trial.window.per_second(trial.counted);
    let cpu_ns = |trial: &Trial| {
        let packets = trial.counted;
        (packets > 0).then(|| trial.window.cpu_ns_per(packets))
    };
    let mut rounds = Vec::with_capacity(cells.len());
    for (at, (cell, trial)) in cells.iter().zip(trials).enumerate() {
        let Some(trial) = trial else { continue };
        let of = |qdisc: &str, cpus: usize| {
            let at = cells.iter().position(|other| other.is(cell.side, qdisc, cpus))?;
            trials.get(at)?.as_ref()
        };
        let floor = of(cell.side.floor(), cell.cpus).and_then(cpu_ns);
        let above = || Some(cpu_ns(trial)? - floor?);
        let alone = of(&cell.qdisc, first).map(rate).filter(|alone| *alone > 0.0);
        let round = Round {
            packets_per_second: rate(trial),
            cpu_ns_per_packet: cpu_ns(trial),
            above_floor_ns: if cell.is_floor() { None } else { above() },
            scaling: alone.map(|alone| rate(trial) / alone),
            cpu_share: trial.window.cpu_share(cell.cpus),
            packets: trial.taken,
            dropped: trial.dropped,
        };
        rounds.push((at, round));
    }
    for (at, round) in rounds {
        cells[at].rounds.push(round);
    }
}

#[cfg(test)]
mod tests;
