//! Published measurements, repeated on the simulated machine, with parameters that come from other
//! sources: the designs of the laboratory under the load of the measurement, and for measurements
//! that are older than these designs the programs of [`history`].

use std::collections::BTreeMap;

use onramp_core::Kinds;
use onramp_lab::contention::simulated::{Cell, Outcome, run};
use onramp_lab::contention::{Design, Load, Manners};
use onramp_machine::{Setup, simulate};

use crate::charged::{charged, line};
use crate::history;
use crate::machines::{Description, Unknown};
use crate::parameter::Draw;
use crate::software::Parameters;

/// What a published text says of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// The figure is this value, or about this value.
    Value,
    /// The figure is more than this value.
    More,
    /// The figure is less than this value.
    Less,
}

impl Says {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::More => "more",
            Self::Less => "less",
        }
    }
}

/// A figure that was published, and the name of the same figure of the simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The name of the figure, which ends in its unit.
    pub name: &'static str,
    /// The value that was published.
    pub value: f64,
    /// What the text says of the value.
    pub says: Says,
}

const fn value(name: &'static str, value: f64) -> Published {
    Published { name, value, says: Says::Value }
}

const fn more(name: &'static str, value: f64) -> Published {
    Published { name, value, says: Says::More }
}

const fn less(name: &'static str, value: f64) -> Published {
    Published { name, value, says: Says::Less }
}

/// A measurement that was published.
#[derive(Debug)]
pub struct Experiment {
    /// A name for the command line.
    pub name: &'static str,
    /// The year of the publication.
    pub source: &'static str,
    /// What distinguishes the measurement from the others of that source.
    pub title: &'static str,
    /// The figures that were published.
    pub published: &'static [Published],
    program: Program,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
enum Program {
    /// An HTTP server with and without a patch, with Linux 2.4.10.
    Http2001,
    /// N senders to N receivers, with Linux 2.4.
    Loopback2004,
    /// Senders through one queue, with Linux 2.6.29.
    Udp2009,
    /// A design of the laboratory.
    Lab(Lab),
}

/// A design of the laboratory under the load of 2025.
#[derive(Clone, Copy, Debug)]
struct Lab {
    design: Design,
    is_pinned: bool,
}

const fn lab(design: Design, is_pinned: bool) -> Program {
    Program::Lab(Lab { design, is_pinned })
}

/// The measurements that can be repeated.
///
/// Sources: Ingo Molnar: "softirq performance fixes, cleanups, 2.4.10" (linux-kernel, September
/// 2001). Arthur Kepner: "lockless loopback" (netdev, May 2004), the table of the transmit lock and
/// the text below it. Vernon Mauery and others: "High contention on the sk_buff_head.lock"
/// (netdev, March 2009). Eric Dumazet: "net: dev_queue_xmit() llist adoption" (netdev, October
/// 2025), 240 netperf senders of 120 bytes on 480 hardware threads, 30 queues with fq.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "2001-http",
        source: "2001",
        title: "HTTP",
        published: &[
            value("switches after divided by before, ratio", 0.905),
            value("before, switches_per_second", 39_299.0),
            value("after, switches_per_second", 35_552.0),
            less("ksoftirqd after divided by before, ratio", 1.0),
            value("requests after divided by before, ratio", 1.02),
            more("after, idle_share", 0.0),
        ],
        program: Program::Http2001,
    },
    Experiment {
        name: "2004-loopback",
        source: "2004",
        title: "loopback",
        published: &[
            value("2 processors, utilisation_share", 0.060),
            value("8 processors, utilisation_share", 0.170),
            value("31 processors, utilisation_share", 0.722),
            value("64 processors, utilisation_share", 0.747),
            value("2 processors, contended_share", 0.039),
            value("8 processors, contended_share", 0.193),
            value("31 processors, contended_share", 0.884),
            value("64 processors, contended_share", 0.899),
            value("2 processors, waiting_share", 0.0018),
            value("8 processors, waiting_share", 0.025),
            value("31 processors, waiting_share", 0.397),
            value("64 processors, waiting_share", 0.315),
            value("greatest rate at, processors", 16.0),
            less("31 processors divided by 16, ratio", 1.0),
            less("64 processors divided by 16, ratio", 1.0),
        ],
        program: Program::Loopback2004,
    },
    Experiment {
        name: "2009-udp",
        source: "2009",
        title: "UDP, one queue",
        published: &[
            more("2 senders divided by 1, ratio", 1.0),
            less("4 senders divided by 2, ratio", 1.0),
            less("8 senders divided by 4, ratio", 1.0),
            value("8 senders divided by 1, ratio", 0.5),
            value("best of 1 to 8 senders, bits_per_second", 6e9),
        ],
        program: Program::Udp2009,
    },
    Experiment {
        name: "2025-before-free",
        source: "2025",
        title: "before, not pinned",
        published: &[
            value("packets_per_second", 16e6),
            value("busy_share", 0.52),
            value("send_mode_ns", 8_192.0),
        ],
        program: lab(Design::BusylockQueued, false),
    },
    Experiment {
        name: "2025-before-pinned",
        source: "2025",
        title: "before, pinned",
        published: &[value("packets_per_second", 41e6)],
        program: lab(Design::BusylockQueued, true),
    },
    Experiment {
        name: "2025-after-free",
        source: "2025",
        title: "after, not pinned",
        published: &[
            value("packets_per_second", 29e6),
            value("busy_share", 0.23),
            value("send_mode_ns", 256.0),
        ],
        program: lab(Design::LlistQueued, false),
    },
    Experiment {
        name: "2025-after-pinned",
        source: "2025",
        title: "after, pinned",
        published: &[value("packets_per_second", 57e6)],
        program: lab(Design::LlistQueued, true),
    },
];

/// Number of senders and of queues.
const SENDERS: u16 = 240;
const QUEUES: u16 = 30;
/// Number of cores of the machine, which has two threads on each.
const CORES: u16 = 240;
/// Simulated time before the measurement and of the measurement, nanoseconds.
const WARM_UP_NS: u64 = 300_000;
const WINDOW_NS: u64 = 500_000;

impl Experiment {
    /// Returns the measurement with this name.
    ///
    /// # Errors
    ///
    /// [`Unknown`] names the measurements that there are.
    pub fn named(name: &str) -> Result<&'static Self, Unknown> {
        EXPERIMENTS.iter().find(|this| this.name == name).ok_or_else(|| {
            let names: Vec<_> = EXPERIMENTS.iter().map(|this| this.name).collect();
            let names = names.join(", ");
            Unknown::new(format!("there is no measurement {name:?}: there are {names}"))
        })
    }

    /// Simulates the measurement with values drawn from the intervals of all parameters, and
    /// returns its figures by name. `seed` 0 takes the middle of each interval.
    ///
    /// # Errors
    ///
    /// [`Unknown`] says what went wrong.
    pub fn simulate(&self, seed: u64) -> Result<BTreeMap<String, f64>, Unknown> {
        match self.program {
            Program::Http2001 => history::http_2001(seed),
            Program::Loopback2004 => history::loopback_2004(seed),
            Program::Udp2009 => history::udp_2009(seed),
            Program::Lab(lab) => lab.simulate(seed),
        }
    }
}

impl Lab {
    fn simulate(self, seed: u64) -> Result<BTreeMap<String, f64>, Unknown> {
        let mut draw = Draw::new(seed);
        let machine = Description::named("xeon-6985p")?.draw(&mut draw);
        let parameters = Parameters::linux_2025()?;
        let cell = self.cell(&parameters, &mut draw, seed)?;
        let most = parameters.draw(&mut draw, "nic_pps_max")? * 1e6;
        let setup = Setup { machine, limit_ns: 10_000_000_000, measure_ns: 0..0 };
        let (outcome, _) = simulate(&setup, move || run(&cell))
            .map_err(|why| Unknown::new(format!("the simulation failed: {why}")))?;
        let outcome = outcome.map_err(|why| Unknown::new(why.to_string()))?;
        Ok(figures(&outcome, most))
    }

    fn cell(self, parameters: &Parameters, draw: &mut Draw, seed: u64) -> Result<Cell, Unknown> {
        let ps = |draw: &mut Draw, name: &str| parameters.picoseconds(draw, name);
        let (enqueue, dequeue) = (ps(draw, "enqueue_fq")?, ps(draw, "dequeue_fq")?);
        // Half of the lines that an enqueue touches are the qdisc's, the others the flow's.
        let lines = parameters.count(draw, "qdisc_lines_enqueue")?;
        // Of these, `fq` charges one line of the flow itself.
        let (own, flow) = (lines - lines / 2, (lines / 2).saturating_sub(1));
        let text = line("fq", enqueue, dequeue, own, flow);
        let kind = charged("fq").ok_or_else(|| Unknown::new("there is no fq".to_owned()))?;
        let wrong = |why: onramp_core::ConfigError| Unknown::new(why.to_string());
        let qdisc = Kinds::new([kind]).and_then(|kinds| kinds.spec(&text)).map_err(wrong)?;
        let neighbours = parameters.draw(draw, "neighbours_pinned")? > 0.4;
        // The middle stands for the low end, which the note calls the most likely.
        let siblings = parameters.draw(draw, "sibling_busy_pinned")? > 0.5;
        let used = u16::try_from(parameters.either(draw, "queues_used_pinned")?);
        let queues = if self.is_pinned { used.unwrap_or(QUEUES) } else { QUEUES };
        let place = |n| place(n, queues, neighbours, siblings);
        let senders = (0..SENDERS).map(|n| self.is_pinned.then(|| place(n))).collect();
        let ns = |draw: &mut Draw, name: &str| Ok(parameters.picoseconds(draw, name)? / 1_000);
        Ok(Cell {
            design: self.design,
            manners: Manners::Linux,
            senders,
            load: Load::Stream,
            queues: queues.into(),
            qdisc,
            credits: Some(parameters.count(draw, "sndbuf_packets")?),
            payload: 120,
            local_ns: ns(draw, "syscall_and_udp")?,
            packet_ns: ns(draw, "driver_xmit")?,
            burst_ns: ns(draw, "doorbell")?,
            warm_up_ns: WARM_UP_NS,
            window_ns: WINDOW_NS,
            seed,
        })
    }
}

/// Returns the processor of a sender. The next sender uses the next queue, so if the senders of one
/// queue are neighbours (as with XPS), they lie side by side on the processors, and otherwise the
/// senders of neighbouring queues do. If `siblings` is true, two senders share a core, on half of
/// the cores; otherwise each has one of its own.
fn place(sender: u16, queues: u16, neighbours: bool, siblings: bool) -> u16 {
    let each = SENDERS / queues;
    let at = if neighbours { sender % queues * each + sender / queues } else { sender };
    match siblings {
        // As Linux numbers them: the first threads of all cores, then the second ones.
        true => at / 2 + at % 2 * CORES,
        false => at,
    }
}

/// Returns the figures of a simulation. The card sends at most `most` packets a second.
fn figures(outcome: &Outcome, most: f64) -> BTreeMap<String, f64> {
    let times = &outcome.report.times;
    let busy = 1.0 - times.idle as f64 / times.all().max(1) as f64;
    let mode = outcome.send.octaves().buckets().max_by_key(|(_, _, count)| *count);
    let mode_ns = mode.map_or(0.0, |(from, ..)| from as f64);
    BTreeMap::from([
        ("packets_per_second".to_owned(), outcome.packets_per_second().min(most)),
        ("busy_share".to_owned(), busy),
        ("send_mode_ns".to_owned(), mode_ns),
    ])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Of the quickest measurement: a figure that is not simulated would have no row.
    #[test]
    fn what_was_published_is_simulated() {
        let experiment = Experiment::named("2001-http").unwrap();
        let figures = experiment.simulate(0).unwrap();
        for published in experiment.published {
            let figure = figures.get(published.name);
            assert!(figure.is_some_and(|it| it.is_finite()), "{published:?}");
        }
    }

    /// What the text does not tell of pinned senders is drawn: their queues, their neighbours, and
    /// whether they share cores.
    #[test]
    fn pinned_senders_are_placed_in_several_ways() {
        let parameters = Parameters::linux_2025().unwrap();
        let lab = Lab { design: Design::LlistQueued, is_pinned: true };
        let cell = |seed| lab.cell(&parameters, &mut Draw::new(seed), seed).unwrap();
        let ways = (0..40).map(|seed| {
            let cell = cell(seed);
            let places: BTreeSet<_> = cell.senders.iter().flatten().copied().collect();
            assert_eq!(places.len(), usize::from(SENDERS), "each sender has its own processor");
            let is_paired = places.last() >= Some(&CORES);
            (cell.queues, is_paired, cell.senders[1] == Some(1))
        });
        let ways: BTreeSet<_> = ways.collect();
        assert!(ways.len() >= 4, "{ways:?}");
        assert_eq!(cell(0).queues, 30);
        assert_eq!(cell(0).senders.last(), Some(&Some(SENDERS - 1)), "a core for each");
    }

    #[test]
    fn measurements_are_found_by_their_names() {
        for experiment in EXPERIMENTS {
            assert_eq!(Experiment::named(experiment.name).unwrap().title, experiment.title);
            let year = experiment.name.split('-').next();
            assert_eq!(year, Some(experiment.source));
        }
        let why = Experiment::named("1999").unwrap_err().to_string();
        assert!(why.contains("\"1999\"") && why.contains("2009-udp"), "{why}");
    }
}
