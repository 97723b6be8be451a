//! Published measurements, repeated on the simulated machine: the designs of the laboratory under
//! the load of the measurement, with parameters that come from other sources.

use std::collections::BTreeMap;

use onramp_core::Kinds;
use onramp_lab::contention::simulated::{Cell, Outcome, run};
use onramp_lab::contention::{Design, Load, Manners};
use onramp_machine::{Setup, simulate};

use crate::charged::charged;
use crate::machines::{Description, Unknown};
use crate::parameter::Draw;
use crate::software::Parameters;

/// A figure that was published, and the name of the same figure of the simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The name of the figure, which ends in its unit.
    pub name: &'static str,
    /// The value that was published.
    pub value: f64,
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
    design: Design,
    is_pinned: bool,
}

/// The measurements that can be repeated.
///
/// Source: Eric Dumazet: "net: dev_queue_xmit() llist adoption" (netdev, October 2025), 240 netperf
/// senders of 120 bytes on 480 hardware threads, 30 queues with fq.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "2025-before-free",
        source: "2025",
        title: "before, not pinned",
        published: &[
            Published { name: "packets_per_second", value: 16e6 },
            Published { name: "busy_share", value: 0.52 },
            Published { name: "send_mode_ns", value: 8_192.0 },
        ],
        design: Design::BusylockQueued,
        is_pinned: false,
    },
    Experiment {
        name: "2025-before-pinned",
        source: "2025",
        title: "before, pinned",
        published: &[Published { name: "packets_per_second", value: 41e6 }],
        design: Design::BusylockQueued,
        is_pinned: true,
    },
    Experiment {
        name: "2025-after-free",
        source: "2025",
        title: "after, not pinned",
        published: &[
            Published { name: "packets_per_second", value: 29e6 },
            Published { name: "busy_share", value: 0.23 },
            Published { name: "send_mode_ns", value: 256.0 },
        ],
        design: Design::LlistQueued,
        is_pinned: false,
    },
    Experiment {
        name: "2025-after-pinned",
        source: "2025",
        title: "after, pinned",
        published: &[Published { name: "packets_per_second", value: 57e6 }],
        design: Design::LlistQueued,
        is_pinned: true,
    },
];

/// Number of senders and of queues.
const SENDERS: u16 = 240;
const QUEUES: u16 = 30;
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
    pub fn simulate(&self, seed: u64) -> Result<BTreeMap<&'static str, f64>, Unknown> {
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

    fn cell(&self, parameters: &Parameters, draw: &mut Draw, seed: u64) -> Result<Cell, Unknown> {
        let ps = |draw: &mut Draw, name: &str| parameters.picoseconds(draw, name);
        let (enqueue, dequeue) = (ps(draw, "enqueue_fq")?, ps(draw, "dequeue_fq")?);
        // Half of the lines that an enqueue touches are the qdisc's, the others the flow's.
        let lines = parameters.count(draw, "qdisc_lines_enqueue")?;
        let (own, flow) = (lines - lines / 2, lines / 2);
        let text =
            format!("charged-fq enqueue {enqueue} dequeue {dequeue} lines {own} flow-lines {flow}");
        let kind = charged("fq").ok_or_else(|| Unknown::new("there is no fq".to_owned()))?;
        let wrong = |why: onramp_core::ConfigError| Unknown::new(why.to_string());
        let qdisc = Kinds::new([kind]).and_then(|kinds| kinds.spec(&text)).map_err(wrong)?;
        let neighbours = parameters.draw(draw, "neighbours_pinned")?;
        let senders = (0..SENDERS).map(|n| self.processor(n, neighbours)).collect();
        let ns = |draw: &mut Draw, name: &str| Ok(parameters.picoseconds(draw, name)? / 1_000);
        Ok(Cell {
            design: self.design,
            manners: Manners::Linux,
            senders,
            load: Load::Stream,
            queues: QUEUES.into(),
            qdisc,
            credits: Some(parameters.count(draw, "sndbuf_packets")?),
            payload: 120,
            local_ns: ns(draw, "syscall_and_udp")?,
            local_lines: parameters.count(draw, "alloc_lines")? as usize,
            packet_ns: ns(draw, "driver_xmit")?,
            burst_ns: ns(draw, "doorbell")?,
            warm_up_ns: WARM_UP_NS,
            window_ns: WINDOW_NS,
            seed,
        })
    }

    /// Returns the processor of a sender. The next sender uses the next queue, so if the senders of
    /// one queue are neighbours (as with XPS), they lie side by side on the processors, and
    /// otherwise the senders of neighbouring queues do.
    fn processor(&self, sender: u16, neighbours: f64) -> Option<u16> {
        let each = SENDERS / QUEUES;
        let side_by_side = sender % QUEUES * each + sender / QUEUES;
        self.is_pinned.then_some(if neighbours > 0.4 { side_by_side } else { sender })
    }
}

/// Returns the figures of a simulation. The card sends at most `most` packets a second.
fn figures(outcome: &Outcome, most: f64) -> BTreeMap<&'static str, f64> {
    let times = &outcome.report.times;
    let busy = 1.0 - times.idle as f64 / times.all().max(1) as f64;
    let mode = outcome.send.octaves().buckets().max_by_key(|(_, _, count)| *count);
    let mode_ns = mode.map_or(0.0, |(from, ..)| from as f64);
    BTreeMap::from([
        ("packets_per_second", outcome.packets_per_second().min(most)),
        ("busy_share", busy),
        ("send_mode_ns", mode_ns),
    ])
}
