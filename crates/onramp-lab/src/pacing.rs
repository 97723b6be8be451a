//! Measures how exactly packets leave a shaper, and what that costs: with several slacks (how late
//! a runner may come on purpose) and spin budgets (how long it spins to come on time).
//!
//! One thread sends as fast as it may, so packets always wait in the qdisc, and the qdisc releases
//! one after the other at the rate of the measurement. The link's own time makes the intention of a
//! packet known: it is the instant with which the port calls the qdisc when the qdisc releases the
//! packet. A qdisc around the one that is measured writes this instant into the packet, and the
//! device compares it with the clock when it gets the packet. The difference is the error of the
//! departure.
//!
//! Time that a port cannot catch up on moves the instants themselves. It is no error of a single
//! packet, but is missing in the rate, and is counted by itself.
//!
//! A thread that only reads the clock, and notes when it first sees each instant of the same rate,
//! shows what the machine itself contributes: other programs, interrupts, a hypervisor.
//!
//! Beside this, the same shapers of the running kernel are measured. There, nobody knows when a
//! shaper released a packet. So datagrams go over a pair of devices between two network namespaces
//! to a socket that gets the kernel's time of arrival, and the instants are computed from the rate.
//! Links with the same shapers send the same datagrams to the same socket.
//!
//! These differences between a link and the kernel remain there. A link hands all packets that are
//! due to its socket in one call, and the kernel takes those of one size as one message (UDP GSO);
//! a sender on the kernel's path makes a call for each packet. And the kernel may charge the
//! delivery, which runs within a link's call, both to the process and to softirqs.

mod beside;
mod busy;
mod ours;
mod schedule;
mod timed;
mod wire;

use std::fmt;
use std::thread;
use std::time::Duration;

use self::wire::Wire;
pub(crate) use self::wire::overflowed;
use crate::Error;
use crate::measure::{Latency, Rounds, Steps, rotated};
use onramp::LinkBuilder;
use onramp_core::REST_MAX_NS;

/// Size of a packet on the wire, bytes, headers included.
pub const PACKET: u32 = 1_000;
/// Number of bytes that a shaper sends at once after a pause: two packets.
pub const BURST: u32 = 2 * PACKET;
/// Smallest and greatest rate that can be measured, packets per second.
pub const RATES: std::ops::RangeInclusive<u64> = 10..=1_000_000;

/// A kind of qdisc that holds packets back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shaper {
    /// The token bucket filter, with a burst of [`BURST`] bytes.
    Tbf,
    /// The hierarchical token bucket, with one class and a burst of [`BURST`] bytes.
    Htb,
    /// Common applications kept enhanced, with a bandwidth.
    Cake,
    /// Fair queueing, with a greatest rate for each flow and a quantum of one packet.
    Fq,
}

impl Shaper {
    /// All kinds, in the order in which they are measured.
    pub const ALL: [Self; 4] = [Self::Tbf, Self::Htb, Self::Cake, Self::Fq];

    /// Returns the name of the kind, as `tc` has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tbf => "tbf",
            Self::Htb => "htb",
            Self::Cake => "cake",
            Self::Fq => "fq",
        }
    }

    /// Returns the commands of `tc`, without the word `tc`, that put the qdisc at the root of the
    /// device `dev`, for `rate` packets of [`PACKET`] bytes per second.
    pub(crate) fn lines(self, dev: &str, rate: u64) -> Vec<String> {
        let bits = rate * u64::from(PACKET) * 8;
        let root = |qdisc: String| format!("qdisc replace dev {dev} root {qdisc}");
        match self {
            Self::Tbf => vec![root(format!("tbf rate {bits}bit burst {BURST} limit 10000000"))],
            Self::Htb => vec![
                root("handle 1: htb default 1".to_owned()),
                format!(
                    "class add dev {dev} parent 1: classid 1:1 htb rate {bits}bit ceil {bits}bit \
                     burst {BURST} cburst {BURST} quantum {PACKET}"
                ),
            ],
            Self::Cake => vec![root(format!("cake bandwidth {bits}bit besteffort flowblind"))],
            Self::Fq => vec![root(format!(
                "fq maxrate {bits}bit quantum {PACKET} initial_quantum {PACKET} flow_limit 10000"
            ))],
        }
    }
}

/// A way of packets that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A thread that reads the clock without end, beside the shaper's other paths: no packets.
    Busy,
    /// A link over a device that compares the clock with the instants of the shaper.
    Onramp,
    /// A link over a socket that sends to another network namespace.
    OnrampUdp,
    /// The same kind of socket, with a shaper of the kernel on the device.
    Kernel,
}

impl Path {
    /// Returns the name of the path in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Onramp => "onramp",
            Self::OnrampUdp => "onramp-udp",
            Self::Kernel => "kernel",
        }
    }
}

/// How late the runner of a link may come on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slack {
    /// As a link has it unless told otherwise: a rest that follows from what a wake-up costs, at
    /// most [`REST_MAX_NS`].
    Default,
    /// So long after each instant.
    Fixed(Duration),
}

impl Slack {
    /// Returns the slack, unless it is the default.
    #[must_use]
    pub const fn fixed(self) -> Option<Duration> {
        match self {
            Self::Default => None,
            Self::Fixed(slack) => Some(slack),
        }
    }

    /// Returns by how much a runner comes late on purpose, at most.
    fn longest(self) -> Duration {
        self.fixed().unwrap_or(Duration::from_nanos(REST_MAX_NS))
    }

    fn of(self, link: LinkBuilder) -> LinkBuilder {
        self.fixed().into_iter().fold(link, LinkBuilder::slack)
    }
}

impl fmt::Display for Slack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Fixed(slack) => write!(f, "{slack:?}"),
        }
    }
}

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Kinds of qdiscs to measure.
    pub shapers: Vec<Shaper>,
    /// Rates to measure with, packets per second, each within [`RATES`].
    pub rates: Vec<u64>,
    /// Slacks to measure with.
    pub slacks: Vec<Slack>,
    /// Spin budgets to measure with.
    pub spins: Vec<Duration>,
    /// Whether the kernel's shapers are measured, too, and Onramp's over a socket beside them.
    pub kernel: bool,
    /// Measured time of each measurement in a round, after a warm-up of a fifth of it. Over
    /// sockets, the idle time in interrupts is measured first, for half of it.
    pub window: Duration,
    /// Number of rounds. Each round starts with another measurement.
    pub rounds: usize,
}

/// One combination of settings that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The kind of qdisc; on the path [`Path::Busy`], the one beside which this is measured.
    pub shaper: Shaper,
    /// The way of the packets.
    pub path: Path,
    /// The rate of the qdisc, packets per second.
    pub rate: u64,
    /// How late the runner may come on purpose. `None` where no runner is.
    pub slack: Option<Slack>,
    /// How long the runner spins before each instant. `None` where no runner is.
    pub spin: Option<Duration>,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, shaper, rate, slack, spin } = self;
        write!(f, "{} {} at {rate} packets/s", path.name(), shaper.name())?;
        slack.map_or(Ok(()), |slack| write!(f, ", slack {slack}"))?;
        spin.map_or(Ok(()), |spin| write!(f, ", spin {spin:?}"))
    }
}

impl Plan {
    /// Returns everything that is measured in a round: the busy thread, Onramp's path with every
    /// slack and every spin budget, and if the plan says so the kernel's path, and Onramp's over a
    /// socket with every slack and the first spin budget. The paths of a setting follow one
    /// another, so that they find the machine in the same state.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &shaper in &self.shapers {
            for &rate in &self.rates {
                let at = |(path, slack, spin)| Cell { path, shaper, rate, slack, spin };
                cells.extend(self.settings().into_iter().map(at));
            }
        }
        cells
    }

    /// Returns the paths, slacks and spin budgets with which each shaper is measured at each rate.
    fn settings(&self) -> Vec<(Path, Option<Slack>, Option<Duration>)> {
        let mut settings = vec![(Path::Busy, None, None)];
        for (slow, &slack) in self.slacks.iter().enumerate() {
            for (busy, &spin) in self.spins.iter().enumerate() {
                settings.push((Path::Onramp, Some(slack), Some(spin)));
                if self.kernel && busy == 0 {
                    settings.push((Path::OnrampUdp, Some(slack), Some(spin)));
                    settings.extend((slow == 0).then_some((Path::Kernel, None, None)));
                }
            }
        }
        settings
    }
}

/// Results of one measurement in one round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Number of packets that left per second. On [`Path::Busy`], of instants, here and elsewhere.
    pub packets_per_second: f64,
    /// User and system time of the process for each packet that left, nanoseconds: of the runner
    /// and of the sender, or of the busy thread for each instant. The time of the thread that
    /// receives is left out. `None` if none left.
    pub cpu_ns_per_packet: Option<f64>,
    /// Time that all processors spent in interrupts and softirqs for each packet, whatever they
    /// were for, nanoseconds: there the kernel's shapers do their work. `None` if it was not
    /// measured, because the path does not lead through the kernel.
    pub interrupt_ns_per_packet: Option<f64>,
    /// How much of `interrupt_ns_per_packet` is no work for the packets: what the processors spent
    /// in interrupts just before, while nothing was sent, in as much time. `None` where that is.
    pub idle_interrupt_ns_per_packet: Option<f64>,
    /// `cpu_ns_per_packet`, and the time in interrupts above the idle time, which is at least 0,
    /// nanoseconds: the figure in which paths through the kernel can be compared. Softirqs that ran
    /// within a thread of the process are in it twice if the kernel charges them to the thread,
    /// which it does unless it was built with `CONFIG_IRQ_TIME_ACCOUNTING`. `None` where that is.
    pub total_ns_per_packet: Option<f64>,
    /// The sender's part of `cpu_ns_per_packet`. `None` if none left, or without a sender.
    pub sender_cpu_ns_per_packet: Option<f64>,
    /// Number of times that the runner woke for each packet that left. `None` if none left, or
    /// without a runner.
    pub wakeups_per_packet: Option<f64>,
    /// Share of the window that could not be made up for. On Onramp's path, the port counts it. On
    /// the paths over sockets, it is the time by which packets were later than the path can make
    /// up for, less what later packets made up for nevertheless. A link makes up for 5 ms and its
    /// slack; of the kernel's shapers, `tbf` for the time of one packet, `htb` for that of two
    /// (its burst), `fq` for half of that of one, and `cake` for 5 ms and, while packets wait, for
    /// more.
    pub lost_share: f64,
}

/// The measurements of one combination of settings.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// What was measured.
    pub cell: Cell,
    /// Results of the rounds, in order.
    pub rounds: Vec<Round>,
    /// Time from the instant at which the qdisc released a packet until the device got it, over all
    /// packets of the windows of all rounds; nanoseconds. On the paths over sockets: from the
    /// instant at which the packet was due by the rate until it arrived. On [`Path::Busy`]: from
    /// each instant until the thread saw it.
    pub error: Latency,
    /// Number of packets that were sent in all rounds, warm-ups included.
    pub packets: u64,
    /// Number of packets that the qdisc dropped in all rounds, warm-ups included.
    pub dropped: u64,
    /// How many of the packets that were sent arrived, but found the receive buffer full, in all
    /// rounds, warm-ups included. Their errors are unknown and not in `error`; the others keep
    /// their instants. 0 on the path [`Path::Onramp`], where nothing is received.
    pub overflowed: u64,
}

impl Rounds for Measurement {
    type Round = Round;

    fn rounds(&self) -> &[Round] {
        &self.rounds
    }
}

/// Results of one run of one measurement.
#[derive(Debug)]
struct Outcome {
    round: Round,
    error: Latency,
    packets: u64,
    dropped: u64,
    overflowed: u64,
}

/// The results of the experiment.
#[derive(Clone, Debug)]
pub struct Found {
    /// The measurements that have at least one round.
    pub cells: Vec<Measurement>,
    /// Why the kernel's shapers could not be measured, nor Onramp's beside them; `None` if they
    /// could, or if the plan did not ask for them.
    pub why_no_kernel: Option<String>,
    /// The shapers that this kernel does not have, and what it said.
    pub lacking: Vec<(Shaper, String)>,
}

/// Runs the experiment. A measurement fails if its link cannot be made, if a packet leaves before
/// its instant, or if packets are lost or duplicated.
///
/// # Errors
///
/// [`Error`] if the thread of the experiment cannot be started.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Result<Found, Error> {
    // The network namespace belongs to the thread that is started here, and ends with that thread.
    thread::scope(|scope| {
        let body = || rounds(plan, steps);
        let lab = thread::Builder::new().name("lab-pacing".to_owned()).spawn_scoped(scope, body);
        lab.map_err(|error| Error::Thread(0, 1, error))?.join().map_err(|_| Error::Panicked)
    })
}

/// Runs all rounds. If the plan says so, moves the calling thread into its own network namespace.
fn rounds(plan: &Plan, steps: &mut Steps<'_>) -> Found {
    let wire = if plan.kernel { Wire::lay().map(Some) } else { Ok(None) };
    let (wire, why_no_kernel) = wire.map_or_else(|why| (None, Some(why)), |wire| (wire, None));
    let mut lacking = Vec::new();
    if let (Some(wire), Some(&rate)) = (&wire, plan.rates.first()) {
        for &shaper in &plan.shapers {
            let why = wire.set(Some((shaper, rate))).err();
            lacking.extend(why.map(|why| (shaper, why)));
        }
    }
    let lacks = |shaper| lacking.iter().any(|(lacking, _)| *lacking == shaper);
    let can = |cell: &Cell| match cell.path {
        Path::Busy | Path::Onramp => true,
        Path::OnrampUdp => wire.is_some(),
        Path::Kernel => wire.is_some() && !lacks(cell.shaper),
    };
    let empty = |cell| Measurement {
        cell,
        rounds: Vec::new(),
        error: Latency::default(),
        packets: 0,
        dropped: 0,
        overflowed: 0,
    };
    let mut cells: Vec<Measurement> = plan.cells().into_iter().filter(can).map(empty).collect();
    let order: Vec<usize> = (0..cells.len()).collect();
    for round in 0..plan.rounds {
        for &place in rotated(&order, round) {
            let measurement = &mut cells[place];
            let (cell, part) = (measurement.cell, format!("round {}", round + 1));
            let found = steps.step(cell, part, || match (cell.path, &wire) {
                (Path::Busy, _) => busy::measure(cell, plan.window),
                (Path::OnrampUdp, Some(wire)) => beside::ours(wire, cell, plan.window),
                (Path::Kernel, Some(wire)) => beside::kernel(wire, cell, plan.window),
                _ => ours::measure(cell, plan.window),
            });
            let Some(outcome) = found else { continue };
            measurement.rounds.push(outcome.round);
            measurement.error.merge(&outcome.error);
            measurement.packets += outcome.packets;
            measurement.dropped += outcome.dropped;
            measurement.overflowed += outcome.overflowed;
        }
    }
    cells.retain(|measurement| !measurement.rounds.is_empty());
    Found { cells, why_no_kernel, lacking }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(kernel: bool) -> Plan {
        let times = |us: [u64; 2]| us.map(Duration::from_micros).to_vec();
        Plan {
            shapers: vec![Shaper::Tbf, Shaper::Fq],
            rates: vec![1_000, 2_000, 3_000],
            slacks: times([0, 100]).into_iter().map(Slack::Fixed).collect(),
            spins: times([0, 20]),
            kernel,
            window: Duration::from_millis(10),
            rounds: 1,
        }
    }

    /// Every setting of Onramp's path is measured; over sockets only with the first spin budget;
    /// and the kernel, which has neither option, once.
    #[test]
    fn each_path_is_measured_with_the_settings_that_it_has() {
        let count = |plan: &Plan, path| plan.cells().iter().filter(|it| it.path == path).count();
        let paths = [Path::Busy, Path::Onramp, Path::OnrampUdp, Path::Kernel];
        assert_eq!(paths.map(|path| count(&plan(true), path)), [6, 6 * 4, 6 * 2, 6]);
        assert_eq!(paths.map(|path| count(&plan(false), path)), [6, 6 * 4, 0, 0]);
    }

    /// The paths of one setting are measured next to one another, not minutes apart.
    #[test]
    fn the_paths_of_a_setting_follow_one_another() {
        let cells: Vec<_> = plan(true).cells().iter().take(8).map(ToString::to_string).collect();
        let want = [
            "busy tbf at 1000 packets/s",
            "onramp tbf at 1000 packets/s, slack 0ns, spin 0ns",
            "onramp-udp tbf at 1000 packets/s, slack 0ns, spin 0ns",
            "kernel tbf at 1000 packets/s",
            "onramp tbf at 1000 packets/s, slack 0ns, spin 20µs",
            "onramp tbf at 1000 packets/s, slack 100µs, spin 0ns",
            "onramp-udp tbf at 1000 packets/s, slack 100µs, spin 0ns",
            "onramp tbf at 1000 packets/s, slack 100µs, spin 20µs",
        ];
        assert_eq!(cells, want);
    }
}
