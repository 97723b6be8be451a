//! Measures what it costs to forward frames between two interfaces: through a bridge of the kernel,
//! and through a bridge of Onramp, each also with a shaper.
//!
//! Two hosts are network namespaces. A third namespace joins them: two pairs of devices lead there,
//! and between the pairs is the kernel's bridge or Onramp's, as `onramp shape` has it, by packet
//! sockets or AF_XDP. Beside this, the hosts have a pair of devices that joins them directly, the
//! floor of all costs: its packets cross one pair and not two. Sender and receiver are the same.
//!
//! Without a shaper, datagrams are sent as fast as the sender can. The kernel's bridge then works
//! in softirqs on the sender's processor and slows the sender down; Onramp's bridge is a thread
//! that competes with it, and loses what it cannot take. So the processor time of a packet is also
//! measured at a load that all paths carry ([`EQUAL_LOAD`]). With a shaper, the sender offers 120 %
//! of the shaper's rate. TCP paces itself.
//!
//! Both shapers have the same parameters. Onramp's tree makes up for up to 5 ms by which its thread
//! comes late, which the kernel's shapers only do within their burst of 64 KiB (5 ms at this rate).
//!
//! The processor time is that of the whole machine, because the kernel charges softirqs to whoever
//! runs: so it contains the sender and the receiver, on every path alike, and everything else that
//! runs. Threads are not bound to processors.
//!
//! At last, 1,000 datagrams a second pass the path, and the receiver compares the clock with the
//! time that stands in them.

mod bed;
mod traffic;

use std::fmt;
use std::time::Duration;

use self::bed::Bed;
use crate::Error;
use crate::measure::{Latency, Rounds, Steps, rotated};
pub use crate::pacing::Shaper;

/// Rate of the shapers, bits per second.
pub const RATE_BITS: u64 = 100_000_000;
/// Number of datagrams a second at which the processor time of the paths is compared.
pub const EQUAL_LOAD: u64 = 20_000;
/// Data bytes of a segment of TCP.
const SEGMENT: u64 = 1_448;

/// What joins the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A pair of devices, and nothing else.
    Direct,
    /// The kernel's bridge between two pairs of devices, with the kernel's shaper on one of them.
    Bridge,
    /// Onramp's bridge between two pairs of devices by packet sockets, with the shaper in it.
    Onramp,
    /// The same by AF_XDP.
    OnrampXdp,
}

impl Path {
    /// All paths, in the order in which they are measured.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Bridge, Self::Onramp, Self::OnrampXdp];

    /// Returns the name of the path in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Bridge => "bridge",
            Self::Onramp => "onramp",
            Self::OnrampXdp => "onramp-xdp",
        }
    }
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Datagrams in frames of 64 bytes, the smallest of Ethernet, with the frame's checksum of 4
    /// bytes.
    Small,
    /// Datagrams in packets of 1,500 bytes, the usual MTU of Ethernet.
    Large,
    /// A TCP connection, whose segments the kernel sends in super-frames of up to 64 KiB (TSO).
    Tcp,
}

impl Traffic {
    /// All kinds, in the order in which they are measured.
    pub const ALL: [Self; 3] = [Self::Small, Self::Large, Self::Tcp];

    /// Returns the name of the kind in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "64",
            Self::Large => "1500",
            Self::Tcp => "tcp",
        }
    }

    /// Number of data bytes in a datagram.
    const fn payload(self) -> usize {
        match self {
            Self::Small => 64 - 4 - 42,
            Self::Large | Self::Tcp => 1_500 - 28,
        }
    }

    /// Length of a frame as shapers count it: with its Ethernet header, without its checksum.
    const fn frame(self) -> u64 {
        self.payload() as u64 + 42
    }
}

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What joins the hosts.
    pub paths: Vec<Path>,
    /// What is sent.
    pub traffic: Vec<Traffic>,
    /// Shapers of [`RATE_BITS`]; `None` for none. [`Path::Direct`] has none.
    pub shapers: Vec<Option<Shaper>>,
    /// Measured time of each measurement in a round, after a warm-up of a fifth of it. At equal
    /// load, and with little load, is measured for half of it each.
    pub window: Duration,
    /// Number of rounds. Each round starts with another measurement, and every second one goes
    /// backwards.
    pub rounds: usize,
}

/// One combination of settings that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// What joins the hosts.
    pub path: Path,
    /// What is sent.
    pub traffic: Traffic,
    /// The shaper.
    pub shaper: Option<Shaper>,
}

impl Cell {
    /// Number of datagrams that are sent in a second; `None` if as many as possible.
    fn offered(&self) -> Option<u64> {
        self.shaper.map(|_| RATE_BITS / 8 / self.traffic.frame() * 6 / 5)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shaper = self.shaper.map_or("no shaper", Shaper::name);
        write!(f, "{} {}, {shaper}", self.path.name(), self.traffic.name())
    }
}

impl Plan {
    /// Returns everything that is measured in a round. The paths of a setting follow one another,
    /// so that they find the machine in the same state.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &shaper in &self.shapers {
            for &traffic in &self.traffic {
                let paths = self.paths.iter().map(|&path| Cell { path, traffic, shaper });
                cells.extend(paths.filter(|it| it.path != Path::Direct || shaper.is_none()));
            }
        }
        cells
    }
}

/// Results of one measurement in one round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Number of datagrams that were sent per second. `None` for TCP.
    pub sent_per_second: Option<f64>,
    /// Number of packets that arrived per second; of TCP, the segments that the bytes fill.
    pub packets_per_second: f64,
    /// Number of data bits that arrived per second, headers not included.
    pub goodput_bits_per_second: f64,
    /// Time that the processors of the whole machine worked for each packet that arrived,
    /// nanoseconds. The kernel counts in ticks of 10 ms. `None` if none arrived.
    pub cpu_ns_per_packet: Option<f64>,
    /// The same at [`EQUAL_LOAD`]. `None` for TCP, and with a shaper.
    pub equal_load_cpu_ns_per_packet: Option<f64>,
    /// Share of the datagrams that did not arrive. Those that arrived but found the receiver's
    /// buffer full are not lost. `None` for TCP, which sends again what is lost.
    pub lost_share: Option<f64>,
}

/// The measurements of one combination of settings.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// What was measured.
    pub cell: Cell,
    /// Results of the rounds, in order.
    pub rounds: Vec<Round>,
    /// Time from the sender to the receiver at 1,000 datagrams a second, over all rounds,
    /// nanoseconds. Empty for TCP.
    pub idle: Latency,
}

impl Rounds for Measurement {
    type Round = Round;

    fn rounds(&self) -> &[Round] {
        &self.rounds
    }
}

/// The results of the experiment.
#[derive(Clone, Debug)]
pub struct Found {
    /// The measurements that have at least one round.
    pub cells: Vec<Measurement>,
    /// What this kernel lacks of the paths, and what it said.
    pub lacking: Vec<(&'static str, String)>,
}

/// Runs the experiment.
///
/// # Errors
///
/// [`Error::Network`] if the namespaces and the devices between them cannot be made.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Result<Found, Error> {
    let bed = Bed::lay().map_err(Error::Network)?;
    let mut lacking = Vec::new();
    if plan.paths.contains(&Path::Bridge) {
        lacking.extend(bed.make_bridge().err().map(|why| ("bridge", why)));
        for shaper in plan.shapers.iter().flatten() {
            lacking.extend(bed.shape(*shaper).err().map(|why| (shaper.name(), why)));
        }
        bed.unshape();
    }
    let lacks = |name| lacking.iter().any(|(lacking, _)| *lacking == name);
    let can = |cell: &Cell| {
        let needs_more = lacks("bridge") || cell.shaper.is_some_and(|shaper| lacks(shaper.name()));
        cell.path != Path::Bridge || !needs_more
    };
    let empty = |cell| Measurement { cell, rounds: Vec::new(), idle: Latency::default() };
    let mut cells: Vec<Measurement> = plan.cells().into_iter().filter(can).map(empty).collect();
    let order: Vec<usize> = (0..cells.len()).collect();
    for round in 0..plan.rounds {
        let mut places: Vec<usize> = rotated(&order, round).copied().collect();
        if round % 2 == 1 {
            places.reverse();
        }
        for place in places {
            let measurement = &mut cells[place];
            let (cell, part) = (measurement.cell, format!("round {}", round + 1));
            let found = steps.step(cell, part, || traffic::measure(&bed, cell, plan.window));
            let Some((found, idle)) = found else { continue };
            measurement.rounds.push(found);
            measurement.idle.merge(&idle);
        }
    }
    cells.retain(|measurement| !measurement.rounds.is_empty());
    Ok(Found { cells, lacking })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_measured_with_what_it_has() {
        let plan = Plan {
            paths: Path::ALL.to_vec(),
            traffic: Traffic::ALL.to_vec(),
            shapers: vec![None, Some(Shaper::Tbf)],
            window: Duration::from_millis(10),
            rounds: 1,
        };
        let cells: Vec<_> = plan.cells().iter().map(ToString::to_string).collect();
        assert_eq!(cells.len(), 4 * 3 + 3 * 3);
        assert_eq!(cells[..2], ["direct 64, no shaper", "bridge 64, no shaper"]);
        assert_eq!(cells[12..14], ["bridge 64, tbf", "onramp 64, tbf"]);
    }

    #[test]
    fn a_fifth_more_than_the_rate_is_offered() {
        let cell = Cell { path: Path::Onramp, traffic: Traffic::Large, shaper: Some(Shaper::Tbf) };
        assert_eq!(Traffic::Large.frame(), 1_514);
        assert_eq!(cell.offered(), Some(9_907));
        assert_eq!(Cell { shaper: None, ..cell }.offered(), None);
    }
}
